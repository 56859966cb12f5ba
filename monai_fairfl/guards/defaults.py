# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The guards of a federation that names none."""

from __future__ import annotations

from monai_fairfl.guards.base import Guard
from monai_fairfl.guards.nonfinite import NonFinite
from monai_fairfl.guards.outsized import Outsized

DEFAULT: tuple[Guard, ...] = (NonFinite(), Outsized())
"""The guards of a federation that names none."""
