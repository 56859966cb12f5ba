# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""A foreign bundle's training configuration as it is written, the overlay that changes it, and why
some cannot be adopted."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from monai.bundle import ConfigParser
from monai.bundle.utils import merge_kv

from monai_fairfl.errors import ConfigError, in_words
from monai_fairfl.utils.arguments import is_finite

REFERENCE = re.compile(r"[@%]([\w#:]+)")
"""A value that only stands for another one of the same configuration."""


class TrainingConfig:
    """The training configuration of a bundle, unresolved, with what an adoption changes of it.

    Every change goes into :attr:`overlay` and acts on what is read afterwards. ``changed`` and
    ``left`` say in words what was changed and what was not, and why.

    Args:
        root: of the bundle.
        file: the configuration, relative to the bundle.

    Raises:
        ConfigError: the file is no configuration.
    """

    def __init__(self, root: Path, file: str):
        self.root = root
        self.file = file
        self.parser = ConfigParser()
        try:
            self.parser.read_config(str(root / file))
        except Exception as error:  # of JSON, of YAML
            raise ConfigError(f"{root / file} is not a configuration: {in_words(error)}") from error
        self.overlay: dict[str, Any] = {}
        self.changed: list[str] = []
        self.left: list[str] = []

    def followed_by(self, file: str) -> TrainingConfig:
        """This configuration with its overlay, and another file of the bundle after both.

        The overlay of the result is empty: it comes after all of them.
        """
        merged = TrainingConfig(self.root, self.file)
        merged.parser = ConfigParser(copy.deepcopy(self.parser.config))
        if (self.root / file).is_file():
            for key, value in ConfigParser.load_config_file(str(self.root / file)).items():
                merge_kv(merged.parser, key, value)
        return merged

    def get(self, key: str) -> Any:
        """What is written under a key such as ``train#dataset``; ``None`` where nothing is."""
        try:
            return self.parser[key]
        except (KeyError, IndexError, TypeError, ValueError):
            return None

    def set(self, key: str, value: Any) -> None:
        """Let the overlay give a key another value."""
        self.overlay[key] = value
        self.parser[key] = copy.deepcopy(value)

    def add(self, key: str, value: Any) -> None:
        """Let the overlay give a key a value, where the bundle has no such key."""
        if key not in self.parser:
            self.set(key, value)

    def find(self, key: str) -> str | None:
        """The key where the value of ``key`` is written, after all references.

        A value that a ``%`` copies from another key is written out in the overlay, so that a change
        concerns it alone.

        Returns:
            The key; ``None`` where nothing is written.
        """
        seen = set()
        while key not in seen:
            seen.add(key)
            value = self.get(key)
            if value is None:
                return None
            match = REFERENCE.fullmatch(value) if isinstance(value, str) else None
            if match is None:
                return key
            target = match[1].replace("::", "#")
            if value.startswith("@"):
                key = target
                continue
            source = self.find(target)
            if source is not None:
                self.set(key, copy.deepcopy(self.get(source)))
            return key
        return None

    def built(self, key: str, **values: Any) -> Any:
        """What a key becomes when MONAI builds it.

        Args:
            key: of the configuration.
            values: of other keys, in place of those that are written.
        """
        parser = ConfigParser(copy.deepcopy(self.parser.config))
        parser["bundle_root"] = str(self.root)
        for name, value in values.items():
            parser[name] = value
        return parser.get_parsed_content(key)

    def number(self, key: str) -> float | None:
        """The number under a key, references and expressions included; ``None``: it is none."""
        if self.get(key) is None:
            return None
        try:
            value = self.built(key)
        except Exception:  # whatever an expression raises
            return None
        return value if is_finite(value) else None

    def sections(self, key: str = "") -> Iterator[tuple[str, Any]]:
        """Yields every key below ``key`` with its value, the outer ones first."""
        value = self.parser.config if key == "" else self.get(key)
        if isinstance(value, dict):
            names = list(value)
        elif isinstance(value, list):
            names = [str(index) for index in range(len(value))]
        else:
            return
        for name in names:
            inner = f"{key}#{name}" if key else str(name)
            yield inner, self.get(inner)
            yield from self.sections(inner)


def target_of(section: Any) -> str:
    """The name of the class that a section makes, without its path; empty where it makes none.

    >>> target_of({"_target_": "monai.engines.SupervisedTrainer"}), target_of("@trainer")
    ('SupervisedTrainer', '')
    """
    if not isinstance(section, dict):
        return ""
    return str(section.get("_target_", "")).rpartition(".")[2]


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
