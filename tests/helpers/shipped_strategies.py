# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The strategies of the package, by their public names."""

from __future__ import annotations

from monai_fairfl import Strategy
from monai_fairfl import strategies as room

SHIPPED: dict[str, type[Strategy]] = {
    name: kind
    for name, kind in ((name, getattr(room, name)) for name in room.__all__)
    if isinstance(kind, type) and issubclass(kind, Strategy) and kind is not Strategy
}
