# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The models that a run leaves for inference."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from monai_fairfl.model_files.recipe import ModelRecipe, save_model_file
from monai_fairfl.protocol.model_spec import ModelSpec
from monai_fairfl.protocol.values import Measurement, Weights, value_of
from monai_fairfl.utils.files import safe_name

logger = logging.getLogger(__name__)


class Models:
    """``global.pt``, ``best.pt`` and, where clients are rewarded, ``CLIENT.pt``: files that a
    bundle's network loads.

    None is written where the clients keep tensors to themselves: each has a whole model of its own
    then.

    Args:
        folder: ``run_dir/models``.
        spec: the model's tensors.
        withheld: names of those that never leave the clients.
        recipe: how the models were trained, written into each file; ``None``: unknown.
    """

    def __init__(
        self,
        folder: Path,
        spec: ModelSpec,
        withheld: Collection[str] = (),
        recipe: ModelRecipe | None = None,
    ) -> None:
        self.folder = folder
        self.spec = spec
        self.withheld = withheld
        self.recipe = recipe
        self.best: dict[str, float] = (
            {}
        )  # round and mean validation score of the best global model so far

    def keep_best(
        self,
        number: int,
        weights: Weights,
        measured: Mapping[str, Mapping[str, Measurement]],
        name: str,
        everybody: Sequence[str],
    ) -> None:
        """Write the global model of round ``number`` if its mean ``name`` is the best so far.

        The mean is over ``everybody``, the clients that the run began with: one over some is over
        other patients. Where one of them did not measure it nothing is written.
        """
        if number < 0 or any(name not in measured.get(client, {}) for client in everybody):
            return
        score = sum(value_of(measured[client][name]) for client in everybody) / len(everybody)
        if not self.best or score > self.best["score"]:
            self.best = {"round": number, "score": score}
            self._save("best", weights, self.recipe)

    def write(self, weights: Weights, rewards: Mapping[str, Weights]) -> None:
        """The last global model, and every client's reward."""
        if self.withheld:
            logger.info(
                "the clients keep %d tensors of the model: each has its own whole one",
                len(self.withheld),
            )
        self._save("global", weights, self.recipe)
        for client, reward in rewards.items():
            of_client = None if self.recipe is None else self.recipe.of_site(client)
            self._save(safe_name(client), reward, of_client)

    def _save(self, name: str, weights: Weights, recipe: ModelRecipe | None) -> None:
        if not self.withheld:
            save_model_file(self.folder / f"{name}.pt", self.spec.with_aliases(weights), recipe)
