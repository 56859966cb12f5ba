# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0

from .pool import WorkerPool as WorkerPool
from .scheduler import Failed as Failed
from .scheduler import Turn as Turn
from .scheduler import Work as Work
from .scheduler import can_be_sent as can_be_sent
from .scheduler import carry_out as carry_out
from .transport import WorkerClients as WorkerClients
from .transport import dealt_out as dealt_out
