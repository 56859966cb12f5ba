# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The programs of ``experiments`` are imported by their names, as they import each other."""

from __future__ import annotations

import sys

from helpers.checkout import CHECKOUT

sys.path.append(str(CHECKOUT / "experiments"))
