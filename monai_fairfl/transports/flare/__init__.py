# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""NVIDIA FLARE 2.9: the same federation over its server and clients.

Needs the extra ``nvflare``. ``recipe`` makes jobs, ``controller`` runs them at the server and
``sites`` at the sites; ``wire`` is what both send, ``policy`` what they must allow. ``aggregator``
is for scripts of the user's own.
"""

from importlib.util import find_spec

import lazy_loader

from monai_fairfl.errors import ConfigError

if find_spec("nvflare") is None:
    raise ConfigError("NVIDIA FLARE is not installed: pip install 'monai-fairfl[nvflare]'")

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
