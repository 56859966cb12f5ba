# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""A foreign bundle's training configuration as it is written, and the overlay that changes it."""

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
