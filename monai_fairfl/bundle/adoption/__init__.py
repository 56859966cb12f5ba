# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Makes a foreign MONAI bundle federate: reads it, and writes an overlay and ``federate.json``."""

import lazy_loader

# Without lazy_loader's __dir__, as in the room above.
__getattr__, _, __all__ = lazy_loader.attach_stub(__name__, __file__)
