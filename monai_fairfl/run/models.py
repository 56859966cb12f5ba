# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The models that a run leaves for inference."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from monai_fairfl.messages import Measurement, ModelSpec, Weights, value_of
from monai_fairfl.model_files.recipe import ModelRecipe, save_model_file
from monai_fairfl.utils.names import safe_name

logger = logging.getLogger(__name__)


@dataclass
class Models:
    """Writes ``global.pt``, ``best.pt`` and, for each reward, ``CLIENT.pt``.

    A bundle's network loads them. None is written where some tensors never leave the clients: each
    has a whole model of its own then.

    Args:
        folder: ``run_dir/models``.
        spec: the model's tensors.
        everybody: the clients that the run began with. A score is the mean over all of them, since
            one over some is over other patients.
        withheld: names of the tensors that never leave the clients.
        recipe: how the models were trained, written into each file; ``None``: unknown.
        best: round and mean validation score of the best global model so far.

    >>> import torch
    >>> from pathlib import Path
    >>> from tempfile import TemporaryDirectory
    >>> from monai_fairfl import ModelSpec
    >>> with TemporaryDirectory() as folder:
    ...     models = Models(Path(folder), ModelSpec(("w",)), ["elm"])
    ...     for number, score in enumerate((0.8, 0.7)):
    ...         measured = {"elm": {"score": score}}
    ...         models.save_if_best(number, {"w": torch.zeros(1)}, measured, "score")
    >>> models.best
    {'round': 0, 'score': 0.8}
    """

    folder: Path
    spec: ModelSpec
    everybody: Sequence[str]
    withheld: Collection[str] = ()
    recipe: ModelRecipe | None = None
    best: dict[str, float] = field(default_factory=dict)

    def save_if_best(
        self,
        number: int,
        weights: Weights,
        measured: Mapping[str, Mapping[str, Measurement]],
        name: str,
    ) -> None:
        """Write the global model of round ``number`` if its mean ``name`` is the best so far.

        Args:
            number: of the round; below 0 it is the initial model, which is not stored.
            weights: the global model.
            measured: client -> what it measured of this model.
            name: of the score; where a client of the start did not measure it nothing is written.
        """
        known = [
            measured[client][name] for client in self.everybody if name in measured.get(client, {})
        ]
        if number < 0 or len(known) < len(self.everybody):
            return
        score = sum(map(value_of, known)) / len(known)
        if not self.best or score > self.best["score"]:
            self.best = {"round": number, "score": score}
            self._save("best", weights, number + 1)

    def write(self, weights: Weights, rewards: Mapping[str, Weights], rounds: int) -> None:
        """Write the last global model, after ``rounds``, and every client's reward."""
        if self.withheld:
            logger.info(
                "%d tensors of the model stay at the clients: each has its own whole model",
                len(self.withheld),
            )
        self._save("global", weights, rounds)
        for client, reward in rewards.items():
            self._save(safe_name(client), reward, rounds, client)

    def _save(self, name: str, weights: Weights, rounds: int, client: str = "") -> None:
        """Write one model; of a ``client``, where only that one uses it."""
        if self.withheld:
            return
        recipe = self.recipe
        if recipe is not None:
            recipe = recipe.trained(rounds=rounds)
            recipe = recipe.of_site(client) if client else recipe
        save_model_file(self.folder / f"{name}.pt", self.spec.with_aliases(weights), recipe)
