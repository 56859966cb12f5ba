# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0

from .pool import WorkerPool as WorkerPool
from .transport import WorkerClients as WorkerClients
from .transport import dealt_out as dealt_out
