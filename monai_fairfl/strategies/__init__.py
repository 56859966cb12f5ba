# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""One published method, one file, one class.

- ``base``: what every :class:`Strategy` has, and what plays its rounds;
- ``parts``, ``coalitions``: what several methods are made of, and what every strategy
  takes in place of its own;
- ``registry``: strategies as users write them and as the ledger has them.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
