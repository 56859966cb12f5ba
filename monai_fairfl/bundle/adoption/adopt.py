# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Adopts a bundle: reads it, writes ``federate.json`` and the overlays, and says what it did."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from monai_fairfl.bundle import configuration
from monai_fairfl.bundle.adoption import cases, engines, schedule, scores
from monai_fairfl.bundle.adoption.training_config import TrainingConfig, read_training
from monai_fairfl.bundle.configuration import FEDERATE
from monai_fairfl.bundle.settings import federate_config
from monai_fairfl.bundle.shipped import IGNORED, bundle_names, check_new, find_bundle
from monai_fairfl.bundle.site import EVALUATE, FEDERATED_EVALUATE
from monai_fairfl.errors import ConfigError
from monai_fairfl.utils.files import write_atomically

OVERLAY = "configs/federated_train.json"


@dataclass(frozen=True)
class Adoption:
    """What an adoption wrote, and in words what it changed and what it could not change.

    Args:
        bundle: the adopted bundle.
        written: files, relative to it.
        changed: what is otherwise than in the bundle, a sentence or two each.
        left: what stayed, and why.

    >>> from pathlib import Path
    >>> length = "Length: 100 rounds of 1 local epoch(s), the bundle's 100 epochs."
    >>> adoption = Adoption(Path("brain"), ["configs/federate.json"], [length], [])
    >>> [sentence.partition(":")[0] for sentence in adoption.changed]
    ['Length']
    """

    bundle: Path
    written: list[str]
    changed: list[str]
    left: list[str]


def adopt_bundle(
    bundle: Path,
    out: Path | None = None,
    site: Path | None = None,
    data_key: str | None = None,
    replace: bool = False,
) -> Adoption:
    """Make a bundle of others federate.

    The bundle's own files stay as they are: an overlay comes after its training configuration, and
    another one after its ``evaluate.json``.

    Args:
        bundle: folder of a MONAI bundle that trains with ignite, from ``configs/train.json`` or
            ``train.yaml``.
        out: a new folder for a copy of the bundle, which is adopted instead; ``None``: the files go
            into the bundle.
        site: a folder of images as one site has them, in which the bundle's lists are looked at.
        data_key: the bundle's key of the folder of its images; ``None``: it is looked for.
        replace: whether files of an earlier adoption may be replaced.

    Raises:
        ConfigError: the bundle cannot be adopted, which the text explains; or files are there
            already that would have to be replaced.

    >>> from pathlib import Path
    >>> adopt_bundle(Path("/nowhere"))
    Traceback (most recent call last):
        ...
    monai_fairfl.errors.ConfigError: /nowhere is not a MONAI bundle: it has no folder configs/
    """
    root = bundle.absolute()
    config = read_training(root)
    configuration.make_scripts_importable(root)
    # A shape that the server's first model needs: its absence is found here.
    configuration.input_shape(root)
    cases.adopt_data_folder(config, data_key)
    has_test = cases.adopt_split(config, site)
    engines.adopt_folders(config)
    engines.adopt_workers(config)
    amp = engines.adopt_precision(config)
    engines.adopt_lengths(config)
    engines.adopt_handlers(config)
    length = schedule.adopt_length(config)
    schedule.adopt_schedule(config, length)
    scores.adopt_score(config)
    scores.adopt_network(config)
    _declare_recipe(config)

    files = {OVERLAY: config.overlay}
    if has_test:
        files[FEDERATED_EVALUATE] = _evaluation(config)
        config.changed.append(
            f"Test: {FEDERATED_EVALUATE} lets each site score its test cases at the end."
        )
    files[str(FEDERATE)] = _federate(config, length, amp, has_test)
    return _write(config, out, files, replace)


def _declare_recipe(config: TrainingConfig) -> None:
    """Let every model name the bundle and the files that trained it.

    Which of the bundle's values decide what a model gives is not known: the recipe has none.
    """
    recipe = {
        "_target_": "monai_fairfl.workflow.training_recipe",
        "bundle_root": "@bundle_root",
        "values": {},
        "sections": ["network_def"],
    }
    config.add("recipe", recipe)


def _evaluation(config: TrainingConfig) -> dict[str, Any]:
    """What comes after the bundle's own ``evaluate.json``, which may undo some of the overlay."""
    evaluation = config.followed_by(EVALUATE)
    engines.adopt_folders(evaluation)
    engines.adopt_workers(evaluation)
    engines.adopt_precision(evaluation)
    engines.adopt_handlers(evaluation)
    scores.adopt_score(evaluation)
    scores.score_test_cases(evaluation)
    return evaluation.overlay


def _federate(
    config: TrainingConfig, length: schedule.Length, amp: bool, listed: bool
) -> dict[str, Any]:
    """The content of ``federate.json``."""
    check = None
    if listed:
        check = "$partial(check_listed_site, bundle_root=@bundle_root, config=@config)"
    own = {
        "imports": [
            "$import torch",
            "$from functools import partial",
            "$from monai_fairfl.bundle import check_config",
            "$from monai_fairfl.bundle.adoption import check_listed_site",
        ],
        "config": [config.file, OVERLAY],
        # Layouts of docs/data.md need not know the files: the bundle lists its own.
        "any_folder": True,
        "check": check,
        "rounds": length.rounds,
        "local_epochs": length.local_epochs,
        "amp": "$torch.cuda.is_available()" if amp else False,
    }
    return federate_config(own)


def _write(
    config: TrainingConfig, out: Path | None, files: Mapping[str, Mapping[str, Any]], replace: bool
) -> Adoption:
    """Write all files or none, into the bundle or into a copy of it."""
    target = config.root
    if out is not None:
        target = out.absolute()
        check_new(target)
    elif config.root in [find_bundle(name) for name in bundle_names()]:
        raise ConfigError(f"{config.root.name} is a bundle of this package and federates as it is")
    present = [file for file in files if out is None and (target / file).exists()]
    if present and not replace:
        raise ConfigError(
            f"{target} has {', '.join(present)} already: --replace replaces them, and --out DIR "
            "adopts a copy of the bundle"
        )
    if out is not None:
        shutil.copytree(config.root, target, ignore=IGNORED, dirs_exist_ok=True)
    for file, content in files.items():
        write_atomically(target / file, (json.dumps(content, indent=4) + "\n").encode())
    return Adoption(target, list(files), config.changed, config.left)
