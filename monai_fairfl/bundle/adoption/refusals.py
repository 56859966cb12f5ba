# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Whether a bundle can be adopted, and if not, why not."""

from __future__ import annotations

import re
from pathlib import Path

from monai_fairfl.bundle.adoption.training_config import TrainingConfig, target_of
from monai_fairfl.errors import ConfigError

TRAIN_FILES = ("configs/train.json", "configs/train.yaml", "configs/train.yml")

TRAINER = "train#trainer"
EVALUATOR = "validate#evaluator"

_PYTHONIC = re.compile(r"class\s+(\w+)\s*\([^)]*\bPythonicWorkflow\b")

ENGINES = {TRAINER: "SupervisedTrainer", EVALUATOR: "SupervisedEvaluator"}
"""Where MONAI's client of a federation looks for the engines, and which class each must be."""


def read_training(root: Path) -> TrainingConfig:
    """The training configuration of a bundle that can be federated.

    Engines that the bundle has elsewhere are moved to where MONAI's client looks for them.

    Raises:
        ConfigError: the bundle has no training configuration, or trains with something else than a
            ``SupervisedTrainer``; the text says what it has instead.
    """
    config = TrainingConfig(root, _train_file(root))
    for place, engine in ENGINES.items():
        _put_in_its_place(config, place, engine)

    trainer = config.get(TRAINER)
    if trainer is None:
        raise ConfigError(
            f"{root / config.file} has no train#trainer and no SupervisedTrainer elsewhere, and "
            "MONAI's client of a federation trains with it: a bundle that trains in a loop of its "
            "own can be federated in Python (docs/own_loop.md)"
        )
    if target_of(trainer) != ENGINES[TRAINER]:
        raise ConfigError(
            f"{root / config.file} trains with {trainer.get('_target_')!r}, and MONAI's client of "
            "a federation needs a SupervisedTrainer: other engines, such as those of detection or "
            "of GANs, cannot be adopted"
        )
    if config.get(EVALUATOR) is None:
        config.left.append(
            "Score: there is no validate#evaluator, so no model is scored. Methods that need a "
            "score are refused by name."
        )
    return config


def _train_file(root: Path) -> str:
    for file in TRAIN_FILES:
        if (root / file).is_file():
            return file
    workflow = _pythonic_workflow(root)
    if workflow:
        raise ConfigError(
            f"{root} trains with a PythonicWorkflow ({workflow}), which has no configuration that "
            "an overlay could change: give FairMonaiAlgo an object of it as train_workflow "
            "(docs/own_bundle.md), or write configs/train.json"
        )
    if not (root / "configs").is_dir():
        raise ConfigError(f"{root} is not a MONAI bundle: it has no folder configs/")
    present = ", ".join(sorted(path.name for path in (root / "configs").iterdir()))
    raise ConfigError(
        f"{root} has no configs/train.json or train.yaml, so it cannot be trained: configs/ holds "
        f"{present or 'nothing'}"
    )


def _pythonic_workflow(root: Path) -> str:
    """Where a bundle defines a ``PythonicWorkflow``, as ``file: class``; empty where it does not.

    The text is read, and nothing of it is run.
    """
    for file in sorted(root.rglob("*.py")):
        found = _PYTHONIC.search(file.read_text(encoding="utf-8", errors="replace"))
        if found:
            return f"{file.relative_to(root)}: {found[1]}"
    return ""


def _put_in_its_place(config: TrainingConfig, place: str, engine: str) -> None:
    """Move an engine that the bundle has under another key."""
    room = place.partition("#")[0]
    if config.get(place) is not None or not isinstance(config.get(room) or {}, dict):
        return
    for key, section in list(config.sections()):
        if target_of(section) == engine:
            config.add(room, {})
            config.set(place, section)
            config.set(key, f"@{place}")
            config.changed.append(f"Engines: {key} moves to {place}, where MONAI's client looks.")
            return
