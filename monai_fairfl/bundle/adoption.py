# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Makes a foreign MONAI bundle federate: an overlay after its files, and ``federate.json``."""

from __future__ import annotations

import json
import math
import re
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from monai.bundle import ConfigParser
from monai.bundle.utils import merge_kv
from monai.transforms import LoadImage

from monai_fairfl.bundle import configuration
from monai_fairfl.bundle.settings import federate_config
from monai_fairfl.bundle.shipped import TRAIN, copy_bundle
from monai_fairfl.bundle.site import EVALUATE, FEDERATED_EVALUATE, listed_cases
from monai_fairfl.data.layouts import FILES, CaseFiles, all_cases, all_named
from monai_fairfl.errors import ConfigError, DataError, in_words
from monai_fairfl.utils.files import write_atomically

OVERLAY = "configs/federated_train.json"

TRAINER = "train#trainer"
EVALUATOR = "validate#evaluator"
ENGINES = {TRAINER: "SupervisedTrainer", EVALUATOR: "SupervisedEvaluator"}
"""Where MONAI's client of a federation looks for the engines -> class of each."""

LOADERS = {"training": f"{TRAINER}#train_data_loader", "validation": f"{EVALUATOR}#val_data_loader"}

MOST_ROUNDS = 100

FOLDERS = {"ckpt_dir": "models", "output_dir": "eval", "cache_dir": "cache"}
"""Key that a federation sets for each site -> its folder where a bundle trains alone."""

WITHOUT_WORKERS = {"num_workers": 0, "persistent_workers": False, "prefetch_factor": None}
"""Arguments of a loader, which refuses the last two where it has no workers."""

SAVES = {"CheckpointSaver": "@ckpt_dir", "MetricsSaver": "@output_dir"}
"""Handler that writes files -> the folder of a site that gets them."""

OFF = {"CheckpointLoader", "EarlyStopHandler", "EarlyStopping", "TensorBoardStatsHandler"}
OFF |= {"TensorBoardImageHandler", "MLFlowHandler", "ClearMLStatsHandler", "ClearMLImageHandler"}
"""Handlers that load another model, leave a round early, or log each step of a training."""

MEAN_DICE = {
    "_target_": "MeanDice",
    "include_background": False,
    "output_transform": "$monai.handlers.from_engine(['pred', 'label'])",
}

SPLIT = {"fractions": [0.5, 0.25, 0.25], "folds": None, "fold": 0, "validation": 0.2, "seed": 0}

# Which of the bundle's values decide what a model gives is not known: the recipe has none.
RECIPE = {
    "_target_": "monai_fairfl.workflow.training_recipe",
    "bundle_root": "@bundle_root",
    "values": {},
    "sections": ["network_def"],
}


def adopt_bundle(bundle: Path, out: Path | None = None) -> dict[str, Any]:
    """Make a bundle of others federate.

    The bundle's own files stay as they are: an overlay comes after its training configuration, and
    another one after its ``evaluate.json``.

    Args:
        bundle: folder of a MONAI bundle that trains with ignite, from ``configs/train.json`` or
            ``train.yaml``.
        out: a new folder for a copy of the bundle, which is adopted instead; ``None``: the files go
            into the bundle.

    Returns:
        ``bundle``, the adopted one; ``written``, files relative to it; and ``changed``, keys of the
        training configuration that are new, or have another value.

    Raises:
        ConfigError: the bundle cannot be adopted, which the text explains; or it was already.

    >>> adopt_bundle(Path("/nowhere"))  # doctest: +ELLIPSIS
    Traceback (most recent call last):
        ...
    monai_fairfl.errors.ConfigError: /nowhere has no configs/train.json or train.yaml: ...
    """
    root = bundle.absolute()
    files = [file for file in (*TRAIN, "configs/train.yaml") if (root / file).is_file()]
    if not files:
        raise ConfigError(f"{root} has no configs/train.json or train.yaml: see docs/own_bundle.md")
    train_file = root / files[0]
    training = _Overlay(root, configuration.train_config(root, {}, files[:1]))
    # The server's first model needs it.
    configuration.input_shape(root, training.parser)
    for engine, kind in ENGINES.items():
        if _kind(training.parser.get(engine)) != kind:
            raise ConfigError(f"{train_file} has no {kind} at {engine}: move yours there")
    _adopt_cases(training, train_file)
    _adopt_engines(training)

    # As many epochs as the bundle trains; a schedule that is written by its own key follows them.
    length = training.place(f"{TRAINER}#max_epochs")
    try:
        epochs = training.parser.get_parsed_content(length)
    except Exception as error:  # whatever an expression raises
        value = training.parser.get(length)
        raise ConfigError(f"{length} ({value!r}) cannot be made: {in_words(error)}") from error
    local_epochs = math.ceil(epochs / MOST_ROUNDS)
    rounds = math.ceil(epochs / local_epochs)
    training.put("decay_epochs", rounds * local_epochs)
    if length != f"{TRAINER}#max_epochs":
        training.put(length, "@decay_epochs")
    training.default("network_def", training.get(f"{TRAINER}#network"))
    training.default("recipe", RECIPE)

    parser = configuration.train_config(root, {}, files[:1])
    content = {**training.changes, **configuration.read_keys(root / EVALUATE)}
    try:
        for key, value in content.items():
            merge_kv(parser, key, value)
        evaluation = _Overlay(root, parser)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{train_file}: write out the macro (%) of a section") from error
    _adopt_engines(evaluation)
    evaluation.put(f"{evaluation.dataset('validation')}#data", "$@datalist['testing']")

    own = {
        "imports": [
            "$import torch",
            "$from functools import partial",
            "$from monai_fairfl.bundle import check_config",
            "$from monai_fairfl.bundle.adoption import check_listed_site",
        ],
        "config": [files[0], OVERLAY],
        # Layouts of docs/data.md need not know the files: the bundle lists its own.
        "any_folder": True,
        "check": "$partial(check_listed_site, bundle_root=@bundle_root, config=@config)",
        "rounds": rounds,
        "local_epochs": local_epochs,
    }
    written = {
        OVERLAY: training.changes,
        FEDERATED_EVALUATE: evaluation.changes,
        str(configuration.FEDERATE): federate_config(own),
    }
    target = root if out is None else out.absolute()
    if present := [name for name in written if (target / name).exists()]:
        raise ConfigError(f"{target} has {', '.join(present)} already: remove them, or name --out")
    if out is not None:
        copy_bundle(root, target)
    for name, content in written.items():
        write_atomically(target / name, (json.dumps(content, indent=4) + "\n").encode())
    return {"bundle": str(target), "written": [*written], "changed": [*training.changes]}


class _Overlay:
    """Changes of a configuration, each where its files have the value.

    Args:
        root: of the bundle.
        parser: has the content of the files.
    """

    def __init__(self, root: Path, parser: ConfigParser):
        self.parser = parser
        self.parser["bundle_root"] = str(root)
        self.parser.resolve_macro_and_relative_ids()
        self.changes: dict[str, Any] = {}

    def place(self, key: str) -> str:
        """The key where the value of ``key`` is written, after all references to it."""
        value = self.parser.get(key)
        match = re.fullmatch(r"@([\w#:]+)", value) if isinstance(value, str) else None
        return key if match is None else self.place(match[1].replace("::", "#"))

    def get(self, key: str) -> Any:
        """What is written where the value of a key is."""
        return self.parser.get(self.place(key))

    def dataset(self, part: str) -> str:
        """The key of the dataset of ``"training"`` or ``"validation"``."""
        return self.place(f"{self.place(LOADERS[part])}#dataset")

    def put(self, key: str, value: Any) -> None:
        """Change what is written under a key."""
        if key not in self.parser or self.parser[key] != value:
            self.parser[key] = self.changes[key] = value

    def default(self, key: str, value: Any) -> None:
        """Give a key a value, where the bundle has none."""
        if key not in self.parser:
            self.put(key, value)


def _kind(section: Any) -> str:
    """The name of the class that a section makes, without its path; empty where it makes none."""
    target = section.get("_target_", "") if isinstance(section, dict) else ""
    return str(target).rpartition(".")[2]


def _adopt_cases(draft: _Overlay, file: Path) -> None:
    """Let each site split its own cases into training, validation and test cases."""
    if "dataset_dir" not in draft.parser:
        raise ConfigError(f"{file} has no key dataset_dir: name the images' folder so")
    for name, folder in FOLDERS.items():
        draft.default(name, f"$@bundle_root + '/{folder}'")
    draft.put("datalist_file", "$@ckpt_dir + '/datalist.json'")
    for name, value in SPLIT.items():
        draft.put(f"split_{name}", value)
    for part in LOADERS:
        key = f"{draft.dataset(part)}#data"
        if key not in draft.parser:
            raise ConfigError(f"{file} has no list of {part} cases at {key}: name them there")
        draft.put(f"listed_{part}", draft.parser[key])
        draft.put(key, f"$@datalist['{part}']")
    datalist = {
        "_target_": "monai_fairfl.data.listed_datalist",
        "lists": [f"@listed_{part}" for part in LOADERS],
        "dataset_dir": "@dataset_dir",
        "file": "@datalist_file",
    }
    draft.put("datalist", datalist | {name: f"@split_{name}" for name in SPLIT})


def _adopt_engines(draft: _Overlay) -> None:
    """Change what sites on one machine must not share, and what acts outside a round."""
    for part in LOADERS:
        cache = f"{draft.dataset(part)}#cache_dir"
        if cache in draft.parser:
            draft.put(cache, "@cache_dir")
        for name, value in WITHOUT_WORKERS.items():
            key = f"{draft.place(LOADERS[part])}#{name}"
            if draft.parser.get(key):
                draft.put(key, value)

    for listed in (f"{TRAINER}#train_handlers", f"{EVALUATOR}#val_handlers"):
        handlers = draft.get(listed)
        for index in range(len(handlers) if isinstance(handlers, list) else 0):
            key = draft.place(f"{draft.place(listed)}#{index}")
            handler = draft.parser[key]
            kind = _kind(handler)
            if kind in OFF:
                draft.put(f"{key}#_disabled_", True)
            elif kind in SAVES and SAVES[kind] not in str(handler.get("save_dir")):
                draft.put(f"{key}#save_dir", SAVES[kind])

    # A score of each training step is of no use, and does not fit several outputs.
    for name in ("key_train_metric", "additional_metrics", "postprocessing"):
        if draft.parser.get(f"{TRAINER}#{name}") is not None:
            draft.put(f"{TRAINER}#{name}", None)
    inferer = draft.parser.get(f"{EVALUATOR}#inferer")
    if _kind(inferer) != "FirstOutputInferer":
        first = {"_target_": "monai_fairfl.inferers.FirstOutputInferer", "inferer": inferer}
        draft.put(f"{EVALUATOR}#inferer", first)

    # Every report speaks of the key metric as a mean Dice.
    metrics: dict[str, Any] = {}
    for name in ("key_val_metric", "additional_metrics"):
        found = draft.get(f"{EVALUATOR}#{name}")
        metrics |= found if isinstance(found, dict) else {}
    dices = [name for name, section in metrics.items() if _kind(section) == "MeanDice"]
    key = dices[0] if dices else "val_mean_dice"
    if key != next(iter(metrics), None):
        draft.put(f"{EVALUATOR}#key_val_metric", {key: metrics.pop(key, MEAN_DICE)})
        draft.put(f"{EVALUATOR}#additional_metrics", metrics)


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
        if not parts:
            raise ConfigError(f"{bundle_root} has no key datalist: adopt it again")
    else:
        parts = {"listed": list(cases)}
    files = [case[name] for case in all_cases(parts) for name in FILES]
    faults = list(filter(None, map(_fault_of, files)))
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
