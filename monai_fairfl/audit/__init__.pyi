# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0

from .playing import LedgerRun as LedgerRun
from .playing import NotInLedgerError as NotInLedgerError
from .playing import Replayed as Replayed
from .playing import WhatIf as WhatIf
from .playing import play as play
from .playing import replay as replay
from .playing import what_if as what_if
from .proofs import Files as Files
from .proofs import Proof as Proof
from .proofs import Receipt as Receipt
from .proofs import check_files as check_files
from .proofs import check_head as check_head
from .proofs import check_receipts as check_receipts
from .proofs import read_receipts as read_receipts

__all__: list[str]
