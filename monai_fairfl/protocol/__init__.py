# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Messages between server and clients, and the arithmetic of replies: no I/O, no MONAI.

- ``messages``: requests and replies; ``checks``: which replies are refused;
- ``measured``: unit and range of every measurement;
- ``values``: numbers with their uncertainty; ``model_spec``: what each tensor of a model is;
- ``replies``: the replies of one exchange, and their averages; ``averages``: weights of sum one;
- ``geometry``: inner products of the updates; ``memory``: what every round uses again.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
