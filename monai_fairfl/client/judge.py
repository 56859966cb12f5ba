# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Compares models on a site's validation cases, of which no training has seen any."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from monai_fairfl.measurements.probe import MEAN_COLUMN, Probe, estimate
from monai_fairfl.messages import Estimate, Weights


class Judge:
    """Compares models with the one that a site would use, case by case.

    Args:
        probe: of the validation cases.
        own: the model that the site would use.
    """

    def __init__(self, probe: Probe, own: Weights):
        self._probe = probe
        self.own = own
        self._before = self._scores_of_cases(own)

    @property
    def no_gain(self) -> Estimate:
        """The gain of the model that the site would use: none."""
        return Estimate(0.0, None, len(self._before))

    def gain(self, weights: Weights) -> Estimate:
        """The mean over the cases of a model's score less that of the site's own, with its error.

        Args:
            weights: the model.
        """
        after = self._scores_of_cases(weights)
        differences = [after[case] - self._before[case] for case in self._before]
        found = estimate(torch.tensor(differences, dtype=torch.float64))
        if not found.n:
            # A case may have no score, such as one without any label.
            return Estimate(0.0, None, 0)
        return found

    def _scores_of_cases(self, weights: Weights) -> Mapping[str, float]:
        """Validation case -> its score; none where the metric gives a mean alone."""
        self._probe.score(weights)
        return {case: columns[MEAN_COLUMN] for case, columns in self._probe.take_cases().items()}
