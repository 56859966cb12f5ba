# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0

from .base import ACTIONS as ACTIONS
from .base import Guard as Guard
from .base import Verdict as Verdict
from .batch_statistics import BatchStatistics as BatchStatistics
from .copies import Copies as Copies
from .empty import Empty as Empty
from .noise import Noise as Noise
from .nonfinite import NonFinite as NonFinite
from .opposed import Opposed as Opposed
from .outsized import Outsized as Outsized
from .registry import DEFAULT as DEFAULT
from .replayed import Replayed as Replayed
from .too_long import TooLong as TooLong

__all__: list[str]
