# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Clients and whole federations in worker processes of this machine, several at a time."""

import lazy_loader

# Without lazy_loader's __dir__: see monai_fairfl/bundle/__init__.py.
__getattr__, _, __all__ = lazy_loader.attach_stub(__name__, __file__)
