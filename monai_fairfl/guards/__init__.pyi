# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0

from .base import Guard as Guard
from .base import Verdict as Verdict
from .defaults import DEFAULT as DEFAULT
from .nonfinite import NonFinite as NonFinite
from .outsized import Outsized as Outsized
