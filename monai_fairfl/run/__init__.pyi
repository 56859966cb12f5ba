# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0

from .checkpoint import Checkpoint as Checkpoint
from .checkpoint import Checkpoints as Checkpoints
from .checkpoint import Models as Models
from .ledger import Ledger as Ledger
from .ledger import digest_of as digest_of
from .ledger import read_ledger as read_ledger
from .recorded_updates import record_round as record_round
from .recorded_updates import recorded_rounds as recorded_rounds
