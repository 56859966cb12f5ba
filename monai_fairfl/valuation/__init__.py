# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Values what each client is worth to the federation, with the uncertainty of the answer.

A valuation is a choice of two parts: a :class:`Game` (who plays, what a coalition is worth) and a
method.

>>> images = {"A": 600, "B": 300, "C": 100}
>>> game = Game(images, lambda coalition: sum(images[client] for client in coalition) ** 0.5)
>>> found = permutation_shapley(game, samples=100, tolerance=0.5)
>>> {client: round(share, 1) for client, share in found.shares().items()}
{'A': 0.5, 'B': 0.3, 'C': 0.2}
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
