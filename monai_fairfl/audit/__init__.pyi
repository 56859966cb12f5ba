# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0

from .files import Files as Files
from .files import check_files as check_files
from .playing import LedgerRun as LedgerRun
from .playing import NotInLedgerError as NotInLedgerError
from .playing import play as play
from .questions import Replayed as Replayed
from .questions import WhatIf as WhatIf
from .questions import replay as replay
from .questions import what_if as what_if
from .receipts import Proof as Proof
from .receipts import Receipt as Receipt
from .receipts import check_head as check_head
from .receipts import check_receipts as check_receipts
from .receipts import read_receipts as read_receipts

__all__: list[str]
