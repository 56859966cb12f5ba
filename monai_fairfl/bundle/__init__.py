# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""A federation of a bundle's sites: settings, checks before the start, each site's client.

The names are ``BundleFederation``, ``SiteSettings``, ``bundle_client``, ``check_config``,
``copy_bundle``, ``find_bundle``, ``initial_model`` and ``locate_bundle``.
"""

import lazy_loader

# Without lazy_loader's __dir__: MONAI looks at every member that dir() lists of each loaded module
# whose name begins with "monai". Inference at a hospital would load the whole federation.
__getattr__, _, __all__ = lazy_loader.attach_stub(__name__, __file__)
