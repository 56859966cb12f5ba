# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0

from .base import ACTIONS as ACTIONS
from .base import Guard as Guard
from .base import Verdict as Verdict
from .directions import Copies as Copies
from .directions import Noise as Noise
from .directions import Opposed as Opposed
from .lengths import Empty as Empty
from .lengths import Outsized as Outsized
from .lengths import TooLong as TooLong
from .registry import DEFAULT as DEFAULT
from .replayed import Replayed as Replayed
from .values import BatchStatistics as BatchStatistics
from .values import NonFinite as NonFinite

__all__: list[str]
