# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0

from .process import prepare as prepare
from .runs import Failed as Failed
from .runs import Turn as Turn
from .runs import Work as Work
from .runs import at_a_time as at_a_time
from .runs import carry_out as carry_out
from .transport import WorkerClients as WorkerClients
from .transport import dealt_out as dealt_out
