# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""One published method, one file, one class.

- ``base``: what every :class:`Strategy` has; ``playing``: plays its rounds;
- ``parts``, ``rewards``, ``robust``, ``coalitions``: what several methods are made of;
  ``composition``: strategies with parts of other methods;
- ``resolver``: strategies as users name them, for every command and engine; ``configuration``: a
  strategy as the ledger has it;
- ``arguments``, ``quantities``, ``catalogue``: their checks, names and texts for users and report.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
