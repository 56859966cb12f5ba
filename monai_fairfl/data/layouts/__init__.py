# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The layouts of public data sets, each recognised by its files.

Each layout is a module with ``recognises`` and ``find``. A layout of your own is one more module,
named in ``LAYOUTS`` of ``finding.py``.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
