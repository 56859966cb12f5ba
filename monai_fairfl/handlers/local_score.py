# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Scores the trained model on the validation data, as an ignite handler."""

from __future__ import annotations

from monai_fairfl.handlers.measuring import ScoreHandler


class LocalScore(ScoreHandler):
    """Mean Dice of the trained model on the validation data, as ``fairfl/local_score``.

    Args:
        evaluator: the bundle's evaluator, ``"@validate#evaluator"``.
        board: name that the filter has, too.

    Example, in ``train#handlers``::

        {"_target_": "monai_fairfl.handlers.LocalScore", "evaluator": "@validate#evaluator"}
    """

    name = "local_score"
