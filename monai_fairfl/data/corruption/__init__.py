# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Damaged cases: noisy or blurred images and wrong labels.

The damage is the same in every epoch, process and order. Both transforms are deterministic, so they
belong among a bundle's deterministic transforms and are cached with them. Put them after the
resizing (noise of larger images is averaged away by it) and before slices are drawn. What is random
in them is seeded by their seed and the case's file, ``FOLDER/NAME``; so moving the data changes
nothing.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
