# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Checks of what clients sent, before a strategy sees it."""

from monai_fairfl.guards.base import Guard, Verdict
from monai_fairfl.guards.nonfinite import NonFinite
from monai_fairfl.guards.outsized import Outsized

__all__ = ["DEFAULT", "Guard", "NonFinite", "Outsized", "Verdict"]

DEFAULT: tuple[Guard, ...] = (NonFinite(), Outsized())
"""The guards of a federation that names none."""
