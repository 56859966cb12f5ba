# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""How long a model was trained, in words, for its users."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from monai_fairfl.utils.arguments import is_whole
from monai_fairfl.utils.words import count_words


def training_words(training: Mapping[str, Any]) -> str:
    """How a model was trained, and whether that was a first look.

    Args:
        training: of its recipe.

    Returns:
        One sentence or two; empty where nothing is known.

    >>> full = {"rounds": 60, "local_epochs": 4}
    >>> known = {"strategy": "FedCE", "seed": 0, "local_epochs": 4, "full_run": full}
    >>> training_words({**known, "rounds": 60})
    'The model: FedCE, 60 rounds of 4 local epochs, seed 0.'
    >>> _, first_look = training_words({**known, "rounds": 3}).split(". ")
    >>> first_look
    'It is of a first look: a full run of its bundle has 60 rounds of 4 local epochs.'
    """
    if "strategy" not in training or not is_whole(training.get("rounds")):
        return ""
    words = f"The model: {training['strategy']}, {_length(training)}, seed {training.get('seed')}."
    adapted = training.get("adapted")
    if isinstance(adapted, Mapping):
        epochs = count_words(adapted.get("epochs", 0), "epoch")
        words += f" Adapted to {adapted.get('hospital')} in {epochs}."
    full = training.get("full_run")
    if not isinstance(full, Mapping) or not is_whole(full.get("rounds")):
        return words
    if _has_epochs(training) and _has_epochs(full) and _epochs(training) < _epochs(full):
        words += f" It is of a first look: a full run of its bundle has {_length(full)}."
    return words


def _length(training: Mapping[str, Any]) -> str:
    rounds = count_words(training["rounds"], "round")
    if not _has_epochs(training):
        return rounds
    return f"{rounds} of {count_words(training['local_epochs'], 'local epoch')}"


def _has_epochs(training: Mapping[str, Any]) -> bool:
    return is_whole(training.get("local_epochs"))


def _epochs(training: Mapping[str, Any]) -> int:
    epochs: int = training["rounds"] * training["local_epochs"]
    return epochs
