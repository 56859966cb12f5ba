# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Data of a site.

Data lists of public layouts and their checks, splits, synthetic hospitals and clinics, and
transforms: slices, crops and structures.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
