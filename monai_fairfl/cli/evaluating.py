# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""A model that a command names, and its scores on the test cases of hospitals."""

from __future__ import annotations

import argparse
import csv
import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import mean
from typing import Any, NamedTuple

from monai_fairfl.bundle import adaptation, configuration
from monai_fairfl.bundle.adoption import listed_sites
from monai_fairfl.bundle.checks import check_sites
from monai_fairfl.bundle.shipped import TRAIN, bundle_names, find_bundle, locate_bundle
from monai_fairfl.bundle.site import OF_FILES, check_files, listed_cases
from monai_fairfl.cli.answers import LOG, Answer, emptied_unless_done, out_folder, say
from monai_fairfl.cli.running import MonaiLine, output_into, written_overlay
from monai_fairfl.data.datalist import cases_of_list
from monai_fairfl.data.image_files import count_of_files, files_under, sort_files
from monai_fairfl.data.layouts import all_cases, find, folder_of_site, sites_at
from monai_fairfl.errors import ConfigError
from monai_fairfl.messages import to_json
from monai_fairfl.model_files.recipe import ModelRecipe, read_recipe
from monai_fairfl.report.collect import find_runs, read_records
from monai_fairfl.run.resuming import SETTINGS, recorded_config
from monai_fairfl.utils.devices import best_device, require_device
from monai_fairfl.utils.files import private_folder, write_atomically
from monai_fairfl.utils.tables import text_of_table
from monai_fairfl.utils.terminal import warnings_as_notes
from monai_fairfl.workflow.recipes import overlay_of

# --- the model that a command names, its bundle, and the run that trained it


def model_file(given: str) -> Path:
    """The model that was given: its file, or the global model of a run's folder.

    Of a comparison's folder it is that of its only federation. Where every hospital trained alone,
    there is no trained global model.

    Raises:
        ConfigError: when there is none, or several.
    """
    path = Path(given).absolute()
    if path.is_file():
        return path
    runs = [run for run in find_runs([path]) if read_records(run)[0]["strategy"] != "Standalone"]
    if len(runs) != 1:
        names = ", ".join(map(str, runs)) or "Standalone's, where each hospital has a model"
        raise ConfigError(f"{path} must hold one run of a federation, and holds {names}: name one")
    model = runs[0] / adaptation.GLOBAL_MODEL
    if not model.is_file():
        raise ConfigError(f"{model} does not exist: let the run end, or name a hospital's model")
    return model


def find_model(
    given: str, bundle: str | None, device: str = "cpu"
) -> tuple[Path, Path, ModelRecipe]:
    """The model that was given, the bundle that uses it, and its recipe, empty if it has none.

    Args:
        given: see :func:`model_file`.
        bundle: name or folder; ``None``: the shipped one that trained the model.
        device: that is to use it.

    Raises:
        ConfigError: there is no such model or device; it does not say its bundle, or that is not
            shipped.
    """
    require_device(device)
    model = model_file(given)
    recipe = read_recipe(model) or ModelRecipe("", "", {})
    if bundle is not None:
        return model, locate_bundle(bundle), recipe
    for shipped in map(find_bundle, bundle_names()):
        if configuration.read_keys(shipped / configuration.METADATA).get("name") == recipe.bundle:
            return model, shipped, recipe
    trained_by = recipe.bundle or "an unknown bundle, since it has no recipe"
    raise ConfigError(f"{model} was trained by {trained_by}: name its folder with --bundle")


def training_words(recipe: ModelRecipe) -> str:
    """How a model was trained, and whether that was a first look; empty where it is not known.

    >>> full = {"rounds": 60, "local_epochs": 4}
    >>> known = {"strategy": "FedCE", "seed": 0, "local_epochs": 4, "full_run": full}
    >>> words = training_words(ModelRecipe("Prostate", "1", {}, training=known | {"rounds": 3}))
    >>> for sentence in words.split(". "):
    ...     print(sentence)
    The model: FedCE, 3 rounds, seed 0
    It is of a first look: a full run has 60 rounds.
    """
    training = recipe.training
    if "rounds" not in training:
        return ""
    words = "The model: {strategy}, {rounds} rounds, seed {seed}.".format(**training)
    full = training.get("full_run")
    epochs = training["rounds"] * training.get("local_epochs", 0)
    if full and epochs < full["rounds"] * full["local_epochs"]:
        words += " It is of a first look: a full run has {rounds} rounds.".format(**full)
    return words


class Cases(NamedTuple):
    """Of a hospital: its data list, in words what that is, and its own values of the configuration.

    No recipe has the values with which a run read its files, such as ``stereo``.
    """

    datalist: Path
    split: str
    values: dict[str, Any]


def site_of_run(model: Path, site: str) -> Cases | None:
    """What the run that a model is of had of a site; ``None``: there was none."""
    # The run that holds the model, at whatever depth, or the comparison that it is of. Without a
    # run beside them, data lists are of no run: ``monai-fairfl doctor`` wrote them.
    for folder in model.parents:
        try:
            config = recorded_config(folder)
        except ConfigError:  # of another program
            continue
        own = (config.get("sites") or {}).get(site) or {}
        datalist = Path(own.get("datalist_file") or folder / "datalists" / f"{site}.json")
        if datalist.is_file() and (folder / SETTINGS).is_file():
            split = f"of the run, for images in {(config.get('data') or {}).get(site)}"
            overrides = {**(config.get("overrides") or {}), **own}
            return Cases(
                datalist, split, {name: overrides[name] for name in OF_FILES if name in overrides}
            )
    return None


# --- its scores

WHOLE_DICE = "val_mean_dice"
"""Name of the mean Dice of all structures in MONAI's tables."""

TITLES = {WHOLE_DICE: "Dice", "hd95": "HD95, mm"}
"""Name of a score -> its column, where that is another one."""


def evaluate(args: argparse.Namespace) -> Answer:
    """Carry out ``evaluate``: all files are checked before a hospital is scored.

    The answer has ``sites``: site -> ``cases`` (image, and each score; ``None``: it has none) and
    ``split``; ``notes`` on the cases, such as an organ outside of what the network sees; and
    ``files`` (see :func:`~monai_fairfl.data.image_files.sort_files`).
    """
    data = Path(args.folder).absolute()
    out = out_folder(args.out, f"evaluate-{data.name}", new=True)
    device = args.device or best_device()
    model, bundle, recipe = find_model(args.model, args.bundle, device)
    adopted = None
    federate = configuration.read_keys(bundle / configuration.FEDERATE)
    if federate.get("any_folder"):
        adopted = list(recipe.files) or federate["config"]
        folders = listed_sites(data, bundle, adopted)
    else:
        folders = sites_at(data)
    evaluator = Evaluator(model, recipe, bundle, out, device, args.verbose, adopted)
    tested: dict[str, Cases] = {}
    found = {}
    used: set[str] = set()

    def check(site: str, folder: Path) -> None:
        cases = cases_of_list(tested[site].datalist, folder, ("testing",))
        for case in cases:
            used.update(os.path.abspath(case[name]) for name in ("image", "label"))
        check_files(bundle, folder, tested[site].values, cases, recipe.values)

    with emptied_unless_done(out):
        for site, folder in folders.items():
            tested[site] = evaluator.tested(site, folder)
        with warnings_as_notes() as notes:
            calls = {site: partial(check, site, folders[site]) for site in folders}
            check_sites(folders, calls, data)
        for site, folder in folders.items():
            say(f"{site} ...")
            scores = evaluator.score(site, folder, tested[site])
            found[site] = {"cases": scores, "split": tested[site].split}

    present = {os.path.abspath(file) for file in files_under(folder_of_site(data))}
    files = sort_files(present | used, used, {}, "it belongs to no test case")
    answer = to_json({"sites": found, "notes": notes, "files": files})
    lines = [evaluation_text(found), *[f"note: {note}" for note in notes]]
    lines += [training_words(recipe), f"Folder: {out}", count_of_files(files)]
    return Answer({"folder": str(out), **answer}, "\n".join(filter(None, lines)))


@dataclass(frozen=True)
class Evaluator:
    """Scores a model at one hospital after the other.

    Args:
        model: its file.
        recipe: how it was trained.
        bundle: that evaluates it.
        out: gets a folder of tables for each hospital.
        device: of the network.
        verbose: show what libraries print.
        adopted: files of the training configuration of an adopted bundle, which lists its own
            cases; ``None`` for any other bundle.
    """

    model: Path
    recipe: ModelRecipe
    bundle: Path
    out: Path
    device: str
    verbose: bool
    adopted: Sequence[str] | None

    def tested(self, site: str, folder: Path) -> Cases:
        """The cases of a hospital that are scored: those of the run, else all in a new list.

        The client of an adopted bundle needs a training case, which it does not score.
        """
        values = dict(self.recipe.sites.get(site, {}))
        if values:
            values["own_values"] = list(values)
        of_run = site_of_run(self.model, site)
        if of_run is not None:
            split = f"the test cases {of_run.split}"
            return Cases(of_run.datalist, split, values | of_run.values)
        if self.adopted is None:
            cases = find(folder).cases
        else:
            cases = all_cases(listed_cases(folder, self.bundle, self.adopted))
        begin = folder_of_site(folder)
        listed = []
        for case in cases:
            files = {name: os.path.relpath(case[name], begin) for name in ("image", "label")}
            listed.append(case | files)
        first = 0 if self.adopted is None else 1
        parts = {"training": listed[:first], "validation": [], "testing": listed[first:]}
        file = private_folder(self.out / "datalists") / f"{site}.json"
        write_atomically(file, json.dumps(parts, indent=2).encode())
        which = "all cases but the first" if first else "all cases"
        split = f"{which}: where the model was trained on some, their scores flatter it"
        return Cases(file, split, values)

    def score(self, site: str, data: Path, tested: Cases) -> dict[str, dict[str, float]]:
        """Score one hospital, and write its tables, see :func:`scores_in`."""
        folder = self.out / site
        training = configuration.train_config(self.bundle, {}, self.adopted or TRAIN)
        of_list = adaptation.values_of_list(tested.datalist, training)
        if self.adopted is not None:
            # Its own evaluation has other files and keys: it is scored as by a federation.
            recipe = adaptation.recipe_of_training(self.model) or self.recipe
            with output_into(self.out / LOG, self.verbose):
                scores = adaptation.scores_at_site(
                    self.model,
                    self.bundle,
                    data,
                    folder,
                    datalist_file=tested.datalist,
                    config=self.adopted,
                    overrides=adaptation.values_of(recipe, site, training) | of_list,
                    device=self.device,
                )
            return {case: {WHOLE_DICE: one.pop("dice"), **one} for case, one in scores.items()}
        places = {"bundle_root": self.bundle, "ckpt_path": self.model, "output_dir": folder}
        places |= {"dataset_dir": data, "datalist_file": tested.datalist}
        keys: dict[str, Any] = {name: str(place) for name, place in places.items()}
        keys |= of_list | tested.values | {"device": self.device}
        if "check_data" in training:
            # That was done for all hospitals.
            keys["check_data"] = False
        brought = overlay_of(self.recipe, self.bundle, training)
        between = written_overlay(brought, private_folder(folder))
        configs = self.bundle / "configs"
        files = [str(configs / "train.json"), *between, str(configs / "evaluate.json")]
        MonaiLine(files, keys).run(self.out / LOG, self.verbose)
        return scores_in(folder)


# --- tables


def scores_in(folder: Path) -> dict[str, dict[str, float]]:
    """The scores of all tables that MONAI's ``MetricsSaver`` wrote.

    Returns:
        Image -> name of a score -> its value, not a number where the case has none.

    >>> scores_in(Path("no/such/folder"))
    {}
    """
    scores: dict[str, dict[str, float]] = {}
    for file in sorted(folder.glob("*_raw.csv")):
        name = file.name.removesuffix("_raw.csv")
        with file.open(newline="", encoding="utf-8") as table:
            titles, *rows = csv.reader(table)
        number = len(titles) - 1
        for row in rows:
            # MONAI quotes nothing: a path with a comma is several cells. The mean comes last.
            scores.setdefault(",".join(row[:-number]), {})[name] = float(row[-1])
    return scores


def evaluation_text(found: Mapping[str, Mapping[str, Any]]) -> str:
    """A line of mean scores for each hospital, and what they are of.

    Args:
        found: hospital -> ``cases`` and ``split``.

    >>> cases = {"Case00.nii.gz": {"hd95": 4.0, "val_mean_dice": 0.75}}
    >>> found = {"elm": {"cases": cases, "split": "all cases"}}
    >>> for line in evaluation_text(found).splitlines()[2:]:
    ...     print(" ".join(line.split()))
    elm 0.750 (1) 4.000 (1)
    elm: all cases.
    """
    scored = [scores for entry in found.values() for scores in entry["cases"].values()]
    known = {name for scores in scored for name in scores}
    names = sorted(known, key=lambda name: (name != WHOLE_DICE, name))
    rows = []
    for site, entry in found.items():
        row = [site]
        for name in names:
            values = [scores.get(name, math.nan) for scores in entry["cases"].values()]
            values = [value for value in values if not math.isnan(value)]
            row.append(f"{mean(values):.3f} ({len(values)})" if values else "–")
        rows.append(row)
    of_sites = [f"{site}: {entry['split']}." for site, entry in found.items()]
    titles = ["hospital", *[f"{TITLES.get(name, name)} (cases)" for name in names]]
    return "\n".join([text_of_table(titles, rows), *of_sites])
