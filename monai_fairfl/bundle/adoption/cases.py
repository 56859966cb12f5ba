# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Where each site's cases are, and how they are split."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

from monai_fairfl.bundle.adoption.training_config import EVALUATOR, TRAINER, TrainingConfig
from monai_fairfl.data.datalist import are_cases
from monai_fairfl.errors import ConfigError, in_words

DATA_KEYS = ("data_dir", "data_root", "dataroot", "dataset_root", "datadir", "data_path")
"""Names that bundles give to the folder of their images, beside ``dataset_dir``."""

FRACTIONS = [0.5, 0.25, 0.25]
SHARE_DRAWN = 0.2
"""Share of the training cases that becomes the validation or test cases that a split lacks."""

SPLITTERS = {"partition_dataset", "partition_dataset_classes", "train_test_split", "KFold"}
"""Functions that split one list into parts."""

_REFERENCES = re.compile(r"@([\w#:]+)")


def adopt_data_folder(config: TrainingConfig, data_key: str | None) -> None:
    """Let ``dataset_dir`` be the folder of a site's images.

    Args:
        config: of the bundle.
        data_key: the bundle's key of that folder; ``None``: it is looked for.

    Raises:
        ConfigError: the bundle has no such key.
    """
    if data_key is not None and config.get(data_key) is None:
        raise ConfigError(f"{config.root / config.file} has no key {data_key!r}")
    if data_key is None:
        names = [name for name in ("dataset_dir", *DATA_KEYS) if config.get(name) is not None]
        if not names:
            raise ConfigError(
                f"{config.root / config.file} has none of the keys dataset_dir, "
                f"{', '.join(DATA_KEYS)}: name the one that holds the folder of the images with "
                "--data-key KEY"
            )
        data_key = names[0]
    if data_key != "dataset_dir":
        config.set("dataset_dir", config.get(data_key))
        config.set(data_key, "@dataset_dir")
    slash = ""
    if str(config.get("dataset_dir")).endswith("/"):
        slash = ", with the / at its end that the bundle's own paths need"
    config.changed.append(f"Images: {data_key} is the folder of each site{slash}.")


def adopt_split(config: TrainingConfig, site: Path | None) -> bool:
    """Let each site split its own cases into training, validation and test cases.

    Args:
        config: of the bundle.
        site: a folder of images, in which the bundle's lists are looked at; ``None``: they are not.

    Returns:
        Whether a site has a data list: whether there are test cases.
    """
    data = {}
    for part, engine, loader in (
        ("training", TRAINER, "train_data_loader"),
        ("validation", EVALUATOR, "val_data_loader"),
    ):
        found = _data_of(config, f"{engine}#{loader}")
        if found is not None:
            data[part] = found
    if "training" not in data:
        config.left.append(
            "Split: what the trainer loads has no list of cases under data, so each site trains "
            "on what the bundle's own configuration makes of its folder. There are no test cases."
        )
        return False

    fault = _fault_of_lists(config, data, site)
    if fault:
        config.left.append(
            f"Split: it stays the bundle's own, because {fault}. There are no test cases."
        )
        return False

    by_position = any(_splits_by_position(config, key) for key in data.values())
    _write_lists(config, data, by_position)
    if by_position:
        config.changed.append(
            "Split: the bundle splits one list by position, which leaves a small site without "
            "training cases. Each site splits all its cases into training, validation and test "
            "cases, 0.5, 0.25 and 0.25 (split_fractions)."
        )
    else:
        config.changed.append(
            "Split: the bundle's training and validation cases stay. A share of 0.2 of a site's "
            "training cases (split_validation) becomes test cases."
        )
    return True


def _data_of(config: TrainingConfig, loader: str) -> str | None:
    """The key of the list of cases that a loader loads; ``None`` where there is none."""
    place = config.find(loader)
    if place is None:
        return None
    dataset = config.find(f"{place}#dataset")
    if dataset is None:
        return None
    key = f"{dataset}#data"
    return key if config.get(key) is not None else None


def _fault_of_lists(config: TrainingConfig, data: dict[str, str], site: Path | None) -> str:
    """Why the bundle's lists at a site cannot be split; empty where they can, or nobody looked."""
    if site is None:
        config.left.append(
            "Split: without --data nobody has seen the bundle's lists at a site. They must be of "
            "cases with the files image and label."
        )
        return ""
    slash = "/" if str(config.get("dataset_dir")).endswith("/") else ""
    for part, key in data.items():
        try:
            cases = config.built(key, dataset_dir=f"{site}{slash}")
        except Exception as error:  # whatever an expression raises
            raise ConfigError(
                f"the bundle's {part} cases cannot be listed in {site}: {in_words(error)}. Lay the "
                f"files of each site out as {config.file} expects them; {key} is "
                f"{config.get(key)!r}"
            ) from error
        if not are_cases(cases):
            return f"its {part} list ({key}) is not one of cases with the files image and label"
    return ""


def _splits_by_position(config: TrainingConfig, key: str) -> bool:
    """Whether a list is a slice of another one, or a part that a function made of it."""
    seen = set()
    waiting = [key]
    while waiting:
        key = waiting.pop()
        value = config.get(key)
        if key in seen or not isinstance(value, str):
            continue
        seen.add(key)
        if value.startswith("$") and _slices(value[1:]):
            return True
        waiting += [name.replace("::", "#") for name in _REFERENCES.findall(value)]
    return False


def _slices(expression: str) -> bool:
    """Whether an expression cuts a list by position.

    >>> _slices("[{'image': i} for i in zip(@images[:-9])]"), _slices("sorted(@images)")
    (True, False)
    """
    try:
        tree = ast.parse(_REFERENCES.sub("reference", expression), mode="eval")
    except SyntaxError:
        return False
    for node in ast.walk(tree):
        if isinstance(node, ast.Slice):
            return True
        name = getattr(node, "attr", getattr(node, "id", ""))
        if name in SPLITTERS:
            return True
    return False


def _write_lists(config: TrainingConfig, data: dict[str, str], by_position: bool) -> None:
    """Put each site's data list in the place of the bundle's lists."""
    config.add("ckpt_dir", "$@bundle_root + '/models'")
    config.set("datalist_file", "$@ckpt_dir + '/datalist.json'")
    config.set("split_fractions", FRACTIONS)
    config.set("split_folds", None)
    config.set("split_fold", 0)
    config.set("split_validation", SHARE_DRAWN)
    config.set("split_seed", 0)
    for part in ("training", "validation"):
        listed: Any = config.get(data[part]) if part in data else []
        config.set(f"listed_{part}", listed)
    config.set(
        "datalist",
        {
            "_target_": "monai_fairfl.data.listed_datalist",
            "training": "@listed_training",
            "validation": "@listed_validation",
            "by_position": by_position,
            "dataset_dir": "@dataset_dir",
            "file": "@datalist_file",
            "fractions": "@split_fractions",
            "folds": "@split_folds",
            "fold": "@split_fold",
            "share": "@split_validation",
            "seed": "@split_seed",
        },
    )
    for part, key in data.items():
        config.set(key, f"$@datalist['{part}']")
