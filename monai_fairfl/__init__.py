# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Fair federated medical image segmentation for MONAI.

Each name loads its own module when it is used, so ``import monai_fairfl`` is quick.
``__init__.pyi`` lists the names.
"""

import lazy_loader

__version__ = "0.1.0"

# Without lazy_loader's __dir__: MONAI looks at every member that dir() lists of each loaded module
# whose name begins with "monai". Inference at a hospital would load the whole federation.
__getattr__, _, __all__ = lazy_loader.attach_stub(__name__, __file__)
