# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0

from .base import Guard as Guard
from .base import Verdict as Verdict
from .registry import DEFAULT as DEFAULT
from .replayed import Replayed as Replayed
from .updates import Copies as Copies
from .updates import Empty as Empty
from .updates import Noise as Noise
from .updates import Opposed as Opposed
from .updates import Outsized as Outsized
from .updates import TooLong as TooLong
from .values import BatchStatistics as BatchStatistics
from .values import NonFinite as NonFinite

__all__: list[str]
