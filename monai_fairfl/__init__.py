# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Fair federated medical image segmentation for MONAI.

Each name loads its own module when it is used, so ``import monai_fairfl`` is quick. The names are:

- runs: ``BundleFederation``, ``Federation``, ``History``, ``InProcess``, ``Transport``;
- strategies: ``Strategy``, ``RoundResult``, ``compose``, ``argument``, ``remembered``,
  ``normalise``, ``Train``, ``Measure``;
- clients: ``FairMonaiAlgo``, ``bundle_client``, ``find_bundle``, ``Client``;
- messages: ``Request``, ``Reply``, ``Replies``, ``Estimate``, ``ModelSpec``, ``read_spec``;
- results: ``write_report``, ``read_ledger``, ``ModelRecipe``;
- random numbers: ``own_random_state``, ``seed_of``.

More names are in the packages, such as ``monai_fairfl.strategies``. The single modules are
``errors``, ``games``, ``inferers``, ``losses``, ``messages`` and ``replies``.
"""

import lazy_loader

__version__ = "0.1.0"

# Without lazy_loader's __dir__: MONAI looks at every member that dir() lists of each loaded module
# whose name begins with "monai". Inference at a hospital would load the whole federation.
__getattr__, _, __all__ = lazy_loader.attach_stub(__name__, __file__)
