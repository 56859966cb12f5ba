# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0

from .counterfactual import WhatIf as WhatIf
from .counterfactual import what_if as what_if
from .files import Files as Files
from .files import check_files as check_files
from .ledger_replies import NotInLedgerError as NotInLedgerError
from .playing import LedgerRun as LedgerRun
from .playing import play as play
from .receipts import Proof as Proof
from .receipts import Receipt as Receipt
from .receipts import check_head as check_head
from .receipts import check_receipts as check_receipts
from .receipts import read_receipts as read_receipts
from .replaying import Replayed as Replayed
from .replaying import replay as replay

__all__: list[str]
