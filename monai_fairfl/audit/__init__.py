# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""What a ledger proves: receipts of the sites, and its numbers computed again.

- ``proofs``: whether a ledger is the one whose heads the sites were sent, and whether models,
  checkpoints and recorded updates are those that it names;
- ``playing``: strategies played on the replies of its rounds: every weight and contribution
  computed again, and the same for a run without one site, or by another strategy.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
