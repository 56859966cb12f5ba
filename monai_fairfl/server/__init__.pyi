# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0

from .exchange import Exchange as Exchange
from .exchange import Transport as Transport
from .federation import Federation as Federation
from .federation import History as History
from .observer import Observer as Observer
from .settings import RunSettings as RunSettings
