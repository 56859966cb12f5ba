# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The guards of a federation that names none."""

from __future__ import annotations

from monai_fairfl.guards.base import Guard
from monai_fairfl.guards.batch_statistics import BatchStatistics
from monai_fairfl.guards.copies import Copies
from monai_fairfl.guards.empty import Empty
from monai_fairfl.guards.noise import Noise
from monai_fairfl.guards.nonfinite import NonFinite
from monai_fairfl.guards.opposed import Opposed
from monai_fairfl.guards.outsized import Outsized
from monai_fairfl.guards.replayed import Replayed
from monai_fairfl.guards.too_long import TooLong

DEFAULT: tuple[Guard, ...] = (
    NonFinite(),
    BatchStatistics(),
    Outsized(),
    Copies(),
    TooLong(),
    Empty(),
    Noise(),
    Replayed(),
    Opposed(),
)
"""The guards of a federation that names none, in their order.

Copies come before all that compares a client with the others, so that one hospital under several
names cannot be "the others". What is too long is cut before anybody counts as empty beside it. Each
is here because it touched no honest client in any round of the real trainings that
``docs/guards.md`` lists.
"""
