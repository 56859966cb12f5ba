# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Makes a foreign MONAI bundle federate: an overlay after its files, and ``federate.json``."""

from __future__ import annotations

import copy
import json
import math
import re
import shutil
import warnings
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from monai.bundle import ConfigParser, ReferenceResolver
from monai.transforms import LoadImage

from monai_fairfl.bundle import configuration
from monai_fairfl.bundle.settings import federate_config
from monai_fairfl.bundle.shipped import IGNORED, TRAIN, check_new, is_shipped
from monai_fairfl.bundle.site import EVALUATE, FEDERATED_EVALUATE, listed_cases
from monai_fairfl.bundle.sites import data_folders
from monai_fairfl.data.datalist import are_cases
from monai_fairfl.data.image_files import WORKERS
from monai_fairfl.data.layouts import CaseFiles, all_cases, all_named
from monai_fairfl.errors import ConfigError, DataError, in_words
from monai_fairfl.utils.arguments import is_finite
from monai_fairfl.utils.files import write_atomically

OVERLAY = "configs/federated_train.json"

TRAIN_FILES = ("configs/train.json", "configs/train.yaml", "configs/train.yml")

TRAINER = "train#trainer"
EVALUATOR = "validate#evaluator"
"""Where MONAI's client of a federation looks for the engines."""

LOADERS = {"training": f"{TRAINER}#train_data_loader", "validation": f"{EVALUATOR}#val_data_loader"}

DATA_KEYS = ("dataset_dir", "data_dir", "data_root", "dataroot", "dataset_root", "data_path")
"""Names that bundles give to the folder of their images."""

CUTS = re.compile(r"\[[^\[\]'\"]*:[^\[\]'\"]*\]|partition_dataset|train_test_split|KFold")
"""A slice, or a function that splits one list into parts."""

MOST_ROUNDS = 100
DEFAULT_EPOCHS = 100

FOLDERS = {"ckpt_dir": "models", "output_dir": "eval", "cache_dir": "cache"}
"""Key that a federation sets for each site -> its folder where a bundle trains alone."""

SAVES = {"CheckpointSaver": "@ckpt_dir", "MetricsSaver": "@output_dir"}
"""Handler that writes files -> the folder of a site that gets them."""

OFF = {"CheckpointLoader", "EarlyStopHandler", "EarlyStopping", "TensorBoardStatsHandler"}
OFF |= {"TensorBoardImageHandler", "MLFlowHandler", "ClearMLStatsHandler", "ClearMLImageHandler"}
"""Handlers that load another model, leave a round early, or log each step of a training."""

CHECK = "$partial(check_listed_site, bundle_root=@bundle_root, config=@config)"
"""The check of a site in ``federate.json``."""

MEAN_DICE = {
    "_target_": "MeanDice",
    "include_background": False,
    "output_transform": "$monai.handlers.from_engine(['pred', 'label'])",
}


@dataclass(frozen=True)
class Adoption:
    """What an adoption wrote, changed, and could not change.

    Args:
        bundle: the adopted bundle.
        written: files, relative to it.
        changed: keys of the training configuration that are new, or have another value.
        left: in words what stayed, and why.

    >>> Adoption(Path("brain"), ["configs/federate.json"], ["epochs"], []).changed
    ['epochs']
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

    >>> adopt_bundle(Path("/nowhere"))  # doctest: +ELLIPSIS
    Traceback (most recent call last):
        ...
    monai_fairfl.errors.ConfigError: /nowhere has no configs/train.json or train.yaml: ...
    """
    root = bundle.absolute()
    file = _train_file(root)
    draft = _Draft.of(root, [file])
    _require_engines(draft, root / file)
    configuration.make_scripts_importable(root)
    # A shape that the server's first model needs: its absence is found here.
    configuration.input_shape(root)
    _adopt_data_folder(draft, root / file, data_key)
    has_test = _adopt_split(draft, site)
    rounds, local_epochs = _adopt_length(draft)
    _adopt_engines(draft)
    if "network_def" not in draft.parser:
        draft.parser["network_def"] = draft.parser.get(draft.place(f"{TRAINER}#network"))
    # Which of the bundle's values decide what a model gives is not known: the recipe has none.
    recipe = {
        "_target_": "monai_fairfl.workflow.training_recipe",
        "bundle_root": "@bundle_root",
        "values": {},
        "sections": ["network_def"],
    }
    draft.default("recipe", recipe)

    files = {OVERLAY: draft.overlay()}
    if has_test:
        evaluation = _Draft.of(root, [file, files[OVERLAY], EVALUATE])
        _adopt_engines(evaluation)
        dataset = evaluation.mapping(evaluation.dataset(LOADERS["validation"]))
        dataset["data"] = "$@datalist['testing']"
        files[FEDERATED_EVALUATE] = evaluation.overlay()
    own = {
        "imports": [
            "$import torch",
            "$from functools import partial",
            "$from monai_fairfl.bundle import check_config",
            "$from monai_fairfl.bundle.adoption import check_listed_site",
        ],
        "config": [file, OVERLAY],
        # Layouts of docs/data.md need not know the files: the bundle lists its own.
        "any_folder": True,
        "check": CHECK if has_test else None,
        "rounds": rounds,
        "local_epochs": local_epochs,
        "amp": "$torch.cuda.is_available()" if draft.built("amp") else False,
    }
    files[str(configuration.FEDERATE)] = federate_config(own)
    target = _write(root, out, files, replace)
    return Adoption(target, list(files), list(files[OVERLAY]), draft.left)


def _write(root: Path, out: Path | None, files: Mapping[str, Any], replace: bool) -> Path:
    """Write all files or none, into the bundle or into a copy of it."""
    target = root if out is None else out.absolute()
    if out is not None:
        check_new(target)
    elif is_shipped(root):
        raise ConfigError(f"{root.name} is a bundle of this package and federates as it is")
    present = [file for file in files if (target / file).exists()]
    if present and not replace:
        raise ConfigError(
            f"{target} has {', '.join(present)} already: --replace replaces them, and --out DIR "
            "adopts a copy of the bundle"
        )
    if out is not None:
        shutil.copytree(root, target, ignore=IGNORED, dirs_exist_ok=True)
    for file, content in files.items():
        write_atomically(target / file, (json.dumps(content, indent=4) + "\n").encode())
    return target


# ---- what the bundle has, and what becomes of it


@dataclass(frozen=True)
class _Draft:
    """A configuration that is being changed.

    Args:
        before: as its files have it.
        parser: of a copy without macros, so that a change of a section concerns it alone.
        left: sentences on what stayed, and why.
    """

    before: Mapping[str, Any]
    parser: ConfigParser
    left: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, root: Path, files: Sequence[str | dict[str, Any]]) -> _Draft:
        """Of files of a bundle, or their content; one that is not there is left out."""
        contents = []
        for file in files:
            if isinstance(file, dict):
                contents.append(copy.deepcopy(file))
            elif (root / file).is_file():
                contents.append(configuration.read_keys(root / file))
        parser = configuration.merged(contents)
        parser["bundle_root"] = str(root)
        before = copy.deepcopy(parser.get())
        parser.resolve_macro_and_relative_ids()
        return cls(before, parser)

    def place(self, key: str) -> str:
        """The key where the value of ``key`` is written, after all references to it."""
        value = self.parser.get(key)
        match = re.fullmatch(r"@([\w#:]+)", value) if isinstance(value, str) else None
        return key if match is None else self.place(match[1].replace("::", "#"))

    def dataset(self, loader: str) -> str:
        """The key of the dataset that a loader loads."""
        return self.place(f"{self.place(loader)}#dataset")

    def mapping(self, key: str) -> dict[str, Any]:
        """What is written under a key; empty where no mapping is."""
        found = self.parser.get(self.place(key))
        return found if isinstance(found, dict) else {}

    def default(self, key: str, value: Any) -> None:
        """Give a key a value, where the bundle has none."""
        if key not in self.parser:
            self.parser[key] = value

    def built(self, key: str, **values: Any) -> Any:
        """What a key becomes when MONAI builds it, with other values of some keys."""
        return configuration.parsed_value(ConfigParser({**self.parser.get(), **values}), key)

    def overlay(self) -> dict[str, Any]:
        """The keys that differ from those of the files."""
        return dict(_differences(self.before, self.parser.get(), ""))


def _differences(before: Any, now: Any, key: str) -> list[tuple[str, Any]]:
    """Key and value of the smallest sections that differ."""
    written = ReferenceResolver.normalize_id(before) if isinstance(before, str) else before
    if written == now:
        return []
    if isinstance(now, list) and isinstance(before, list) and len(now) == len(before):
        before, now = dict(enumerate(before)), dict(enumerate(now))
    if not (isinstance(now, dict) and isinstance(before, dict)) or before.keys() - now.keys():
        return [(key, now)]
    found = []
    for name, value in now.items():
        inner = f"{key}#{name}" if key else str(name)
        if name in before:
            found += _differences(before[name], value, inner)
        else:
            found.append((inner, value))
    return found


def _target(section: Any) -> str:
    """The name of the class that a section makes, without its path; empty where it makes none."""
    if not isinstance(section, dict):
        return ""
    return str(section.get("_target_", "")).rpartition(".")[2]


def _train_file(root: Path) -> str:
    for file in TRAIN_FILES:
        if (root / file).is_file():
            return file
    held = ", ".join(sorted(str(path.relative_to(root)) for path in root.glob("configs/*")))
    raise ConfigError(
        f"{root} has no configs/train.json or train.yaml: it holds {held or 'no configs/'}. For a "
        "bundle that trains with a PythonicWorkflow, write its client in Python "
        "(docs/own_bundle.md)"
    )


def _require_engines(draft: _Draft, file: Path) -> None:
    """The engines are where MONAI's client looks, and the trainer is one that it can use."""
    trainer = draft.mapping(TRAINER)
    if _target(trainer) != "SupervisedTrainer":
        raise ConfigError(
            f"{file} has {trainer.get('_target_', 'nothing')!r} at {TRAINER}, and MONAI's client "
            "of a federation needs a SupervisedTrainer there: move yours to that key. Other "
            "engines, such as those of detection or of GANs, cannot be adopted; a training loop of "
            "your own can be federated in Python (docs/own_loop.md)"
        )
    if not draft.mapping(EVALUATOR):
        draft.left.append(
            f"Score: there is no {EVALUATOR}, so no model is scored. Methods that need a score are "
            "refused by name."
        )


def _adopt_data_folder(draft: _Draft, file: Path, data_key: str | None) -> None:
    """Let ``dataset_dir`` be the folder of a site's images."""
    names = DATA_KEYS if data_key is None else (data_key,)
    present = [name for name in names if draft.parser.get(name) is not None]
    if not present:
        raise ConfigError(
            f"{file} has no key {' or '.join(names)}: name the one that holds the folder of the "
            "images with --data-key KEY"
        )
    own = present[0]
    if own != "dataset_dir":
        draft.parser["dataset_dir"] = draft.parser[own]
        draft.parser[own] = "@dataset_dir"


def _adopt_split(draft: _Draft, site: Path | None) -> bool:
    """Let each site split its own cases into training, validation and test cases.

    Returns:
        Whether a site has a data list: whether there are test cases.
    """
    parser = draft.parser
    lists = {part: f"{draft.dataset(loader)}#data" for part, loader in LOADERS.items()}
    lists = {part: key for part, key in lists.items() if parser.get(key) is not None}
    fault = "" if "training" in lists else "what the trainer loads has no list of cases under data"
    for part, key in lists.items() if site is not None else ():
        folder = configuration.data_folder_of(parser, str(site))
        try:
            cases = draft.built(key, dataset_dir=folder)
        except Exception as error:  # whatever an expression raises
            raise ConfigError(
                f"the bundle's {part} cases cannot be listed in {site}: {in_words(error)}. Lay the "
                f"files of each site out as the bundle expects them; {key} is {parser[key]!r}"
            ) from error
        if not are_cases(cases):
            fault = f"its {part} list ({key}) is not one of cases with the files image and label"
    if fault:
        draft.left.append(
            f"Split: it stays the bundle's own, because {fault}. There are no test cases."
        )
        return False

    by_position = any(_is_cut(parser, key) for key in lists.values())
    for part in LOADERS:
        parser[f"listed_{part}"] = parser[lists[part]] if part in lists else []
    draft.default("ckpt_dir", "$@bundle_root + '/models'")
    parser["datalist_file"] = "$@ckpt_dir + '/datalist.json'"
    split = {"fractions": [0.5, 0.25, 0.25], "folds": None, "fold": 0, "seed": 0}
    for name, value in {**split, "validation": 0.2}.items():
        parser[f"split_{name}"] = value
    parser["datalist"] = {
        "_target_": "monai_fairfl.data.listed_datalist",
        "training": "@listed_training",
        "validation": "@listed_validation",
        "by_position": by_position,
        "dataset_dir": "@dataset_dir",
        "file": "@datalist_file",
        "share": "@split_validation",
        **{name: f"@split_{name}" for name in split},
    }
    for part, key in lists.items():
        parser[key] = f"$@datalist['{part}']"
    return True


def _is_cut(parser: ConfigParser, key: str) -> bool:
    """Whether a list, or one that it is made of, is cut by position."""
    seen = set()
    waiting = [key]
    while waiting:
        key = waiting.pop()
        text = parser.get(key)
        if key in seen or not isinstance(text, str):
            continue
        seen.add(key)
        if CUTS.search(text):
            return True
        waiting += ReferenceResolver.match_refs_pattern(text)
    return False


def _adopt_length(draft: _Draft) -> tuple[int, int]:
    """The rounds and local epochs that are as many epochs as the bundle trains.

    Schedules that are written by the bundle's own key of its epochs follow other numbers of rounds.
    """
    key = f"{TRAINER}#max_epochs"
    try:
        epochs = draft.built(key)
    except Exception:  # whatever an expression raises
        epochs = None
    if not is_finite(epochs) or epochs < 1:
        epochs = DEFAULT_EPOCHS
        draft.left.append(f"Length: the bundle has no {key}; {epochs} epochs are a guess.")
    local_epochs = math.ceil(epochs / MOST_ROUNDS)
    rounds = math.ceil(epochs / local_epochs)
    draft.parser["decay_epochs"] = rounds * local_epochs
    place = draft.place(key)
    if place != key:
        draft.parser[place] = "@decay_epochs"
    return rounds, local_epochs


def _adopt_engines(draft: _Draft) -> None:
    """Change what sites on one machine must not share, and what acts outside a round."""
    for name, folder in FOLDERS.items():
        draft.default(name, f"$@bundle_root + '/{folder}'")
    for loader in LOADERS.values():
        dataset = draft.mapping(draft.dataset(loader))
        if "cache_dir" in dataset:
            dataset["cache_dir"] = "@cache_dir"
        section = draft.mapping(loader)
        # A loader without workers refuses the other two.
        for name, value in (
            ("num_workers", 0),
            ("persistent_workers", False),
            ("prefetch_factor", None),
        ):
            if section.get(name):
                section[name] = value
    _turn_handlers_off(draft, f"{TRAINER}#train_handlers")
    _turn_handlers_off(draft, f"{EVALUATOR}#val_handlers")

    for engine, length in ((TRAINER, "epoch_length"), (EVALUATOR, "validation_length")):
        section = draft.mapping(engine)
        if not section:
            continue
        if isinstance(section.get("amp"), bool):
            draft.default("amp", section["amp"])
            section["amp"] = "@amp"
        # A trial ends after some batches.
        if section.get("epoch_length") is None:
            draft.default(length, None)
            section["epoch_length"] = f"@{length}"

    # A score of each training step is of no use, and does not fit several outputs.
    trainer = draft.mapping(TRAINER)
    for name in ("key_train_metric", "additional_metrics", "postprocessing"):
        if trainer.get(name) is not None:
            trainer[name] = None
    evaluator = draft.mapping(EVALUATOR)
    if evaluator:
        inferer = evaluator.get("inferer")
        first = "monai_fairfl.inferers.FirstOutputInferer"
        if not (isinstance(inferer, dict) and inferer.get("_target_") == first):
            evaluator["inferer"] = {"_target_": first, "inferer": inferer}
        _score_dice(draft, evaluator)


def _turn_handlers_off(draft: _Draft, handlers: str) -> None:
    """Turn off the handlers that a federation does without; others write into the site's folder."""
    place = draft.place(handlers)
    written = draft.parser.get(place)
    if isinstance(written, str):
        draft.left.append(
            f"Handlers: {place} is the expression {written!r}, and its handlers act at every site. "
            "Turn off a CheckpointLoader among them, and a schedule that follows a score."
        )
        return
    for index in range(len(written or ())):
        key = draft.place(f"{place}#{index}")
        handler = draft.mapping(key)
        name = _target(handler)
        # A schedule cannot follow a score, which is not there during a round.
        schedule = _target(draft.mapping(f"{key}#lr_scheduler"))
        follows = schedule == "ReduceLROnPlateau" or handler.get("step_transform") is not None
        if name in OFF or follows:
            handler["_disabled_"] = True
        elif name in SAVES and SAVES[name] not in str(handler.get("save_dir")):
            handler["save_dir"] = SAVES[name]


def _score_dice(draft: _Draft, evaluator: dict[str, Any]) -> None:
    """Let the key metric be a mean Dice, of which every report speaks."""
    metrics = {
        **draft.mapping(f"{EVALUATOR}#key_val_metric"),
        **draft.mapping(f"{EVALUATOR}#additional_metrics"),
    }
    dices = [name for name, section in metrics.items() if _target(section) == "MeanDice"]
    key = dices[0] if dices else "val_mean_dice"
    if key == next(iter(metrics), None):
        return
    evaluator["key_val_metric"] = {key: metrics.pop(key, MEAN_DICE)}
    evaluator["additional_metrics"] = metrics


# ---- sites of an adopted bundle


def check_listed_site(
    site_dir: str,
    bundle_root: str,
    config: Sequence[str] = TRAIN,
    cases: Sequence[CaseFiles] | None = None,
) -> dict[str, int]:
    """Make a site's data list, and read every file in it to its end.

    What the images mean is the bundle's own matter: sizes, channels and labels are not judged.

    Args:
        site_dir: the site's folder.
        bundle_root: of the adopted bundle.
        config: its training configuration and the overlay.
        cases: the only ones that are checked, of a data list, with absolute paths; ``None``: all
            that the bundle lists.

    Returns:
        Number of cases by part.

    Raises:
        DataError: with the number of problems of the site, and the first twenty.
        ConfigError: the configuration has no ``datalist``.

    >>> import tempfile
    >>> from monai_fairfl.data import SITES, write_sites
    >>> with tempfile.TemporaryDirectory() as root:
    ...     _ = write_sites(root, sites=SITES[:1], size=(24, 24, 6), cases=1)
    ...     image = f"{root}/alder/Case00.nii.gz"
    ...     label = f"{root}/alder/Case00_segmentation.nii.gz"
    ...     check_listed_site(f"{root}/alder", "brain", cases=[{"image": image, "label": label}])
    {'listed': 1}
    """
    if cases is None:
        parts = listed_cases(site_dir, bundle_root, config)
    else:
        parts = {"listed": list(cases)}
    files = [case[name] for case in all_cases(parts) for name in ("image", "label")]
    with ThreadPoolExecutor(WORKERS) as pool:
        faults = [fault for fault in pool.map(_fault_of, files) if fault]
    if faults:
        listed = all_named(faults, separator="\n- ")
        raise DataError(f"{site_dir}: {len(faults)} problem(s)\n- {listed}")
    return {part: len(members) for part, members in parts.items()}


def _fault_of(file: str) -> str:
    """Why a file cannot be used; empty where it can."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            values = np.asarray(LoadImage(image_only=True)(file))
    except Exception as error:  # whatever a reader raises
        return f"{file} cannot be read: {in_words(error)}; restore it from a copy"
    if not np.isfinite(values).all():
        return f"{file} has values that are not finite; mend or remove it"
    return ""


def listed_sites(folder: Path, bundle_root: Path, config: Sequence[str] = TRAIN) -> dict[str, Path]:
    """The site at ``folder``, or all sites in it, where an adopted bundle lists the cases.

    Raises:
        DataError: the folder is none, or holds no other.
    """
    if not folder.is_dir():
        raise DataError(f"{folder} is not a folder. Give a site's, or the one that holds them all")
    try:
        listed_cases(folder, bundle_root, config)
        return {folder.name: folder}
    except (ConfigError, DataError) as error:
        sites = data_folders(folder, any_folder=True)
        if not sites:
            raise DataError(f"{folder} holds no site: {error}") from error
        return sites
