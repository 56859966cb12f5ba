# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0

from .dealing import Failed as Failed
from .dealing import Turn as Turn
from .dealing import Work as Work
from .dealing import WorkerClients as WorkerClients
from .dealing import carry_out as carry_out
from .process import prepare as prepare
