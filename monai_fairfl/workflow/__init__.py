# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""What a hospital runs alone.

Training checks the data first; inference finds and checks the images, and writes masks, overlays,
DICOM-SEG and one table per run.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
