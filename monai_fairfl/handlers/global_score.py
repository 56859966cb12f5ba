# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Scores the received model on the validation data, as an ignite handler."""

from __future__ import annotations

from monai_fairfl.handlers.measuring import ScoreHandler


class GlobalScore(ScoreHandler):
    """Mean Dice of the received model on the validation data, as ``fairfl/global_score``.

    Args:
        evaluator: the bundle's evaluator, ``"@validate#evaluator"``.
        board: name that the filter has, too.

    Example, in ``train#handlers``::

        {"_target_": "monai_fairfl.handlers.GlobalScore", "evaluator": "@validate#evaluator"}
    """

    name = "global_score"
