# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Coalition games: what each player is worth, exact or sampled, with the uncertainty.

A :class:`Game` asks for the utility of a coalition at most once. These functions value its players:

- :func:`exact_shapley`: the Shapley values from all 2^N coalitions;
- :func:`permutation_shapley`: from a number of samples, or until a standard error is reached;
- :func:`gtg_shapley`: of a federation's rounds, with truncation;
- :func:`leave_one_out`: what is lost without each player.

Each returns a :class:`Valuation`.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
