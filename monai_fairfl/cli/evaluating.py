# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""A model that a command names, and its scores on the test cases of hospitals."""

from __future__ import annotations

import csv
import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any

from monai_fairfl.bundle import adaptation, configuration
from monai_fairfl.bundle.adoption import listed_sites
from monai_fairfl.bundle.checks import check_sites
from monai_fairfl.bundle.shipped import TRAIN, bundle_names, find_bundle, locate_bundle
from monai_fairfl.bundle.site import check_files, listed_cases
from monai_fairfl.cli.options import LOG, emptied_unless_done, say
from monai_fairfl.cli.running import MonaiLine, output_into, written_overlay
from monai_fairfl.data.datalist import cases_of_list
from monai_fairfl.data.image_files import count_of_files, files_under, sort_files
from monai_fairfl.data.layouts import CaseFiles, all_cases, find, folder_of_site, sites_at
from monai_fairfl.errors import ConfigError, DataError
from monai_fairfl.messages import to_json
from monai_fairfl.model_files.recipe import ModelRecipe, read_recipe
from monai_fairfl.report.collect import find_runs, read_records
from monai_fairfl.run.resuming import SETTINGS, recorded_config
from monai_fairfl.utils.devices import best_device, require_device
from monai_fairfl.utils.files import private_folder, write_atomically
from monai_fairfl.utils.plain_values import object_of_json
from monai_fairfl.utils.spreadsheets import csv_text
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
    runs = find_runs([path])
    federated = [run for run in runs if read_records(run)[0]["strategy"] != "Standalone"]
    if not federated:
        raise ConfigError(
            f"{path} is of Standalone, in which each hospital trained a model of its own: name the "
            "run of a federation, or a hospital's model file"
        )
    if len(federated) > 1:
        names = ", ".join(map(str, federated))
        raise ConfigError(f"{path} holds several runs: name one of {names}")
    model = federated[0] / adaptation.GLOBAL_MODEL
    if not model.is_file():
        raise ConfigError(
            f"{model} does not exist: the run stopped or still trains, and its command goes on; or "
            "its hospitals keep some tensors: name a hospital's model file"
        )
    return model


def find_model(given: str, bundle: str | None) -> tuple[Path, Path]:
    """The model that was given, and the bundle that uses it.

    Args:
        given: see :func:`model_file`.
        bundle: name or folder; ``None``: the shipped one that trained the model.

    Raises:
        ConfigError: there is no such model; it does not say its bundle, or that is not shipped.
    """
    model = model_file(given)
    if bundle is not None:
        return model, locate_bundle(bundle)
    recipe = read_recipe(model)
    for shipped in map(find_bundle, bundle_names()):
        if recipe is not None and configuration.read_metadata(shipped).get("name") == recipe.bundle:
            return model, shipped
    by = "a bundle that it does not name (it has no recipe)"
    if recipe is not None:
        by = f"the bundle {recipe.bundle!r}, which is not shipped"
    raise ConfigError(f"{model} was trained by {by}: name its folder with --bundle")


def training_words(recipe: ModelRecipe | None) -> str:
    """How a model was trained, and whether that was a first look; empty where it is not known.

    >>> full = {"rounds": 60, "local_epochs": 4}
    >>> known = {"strategy": "FedCE", "seed": 0, "local_epochs": 4, "full_run": full}
    >>> words = training_words(ModelRecipe("Prostate", "1", {}, training=known | {"rounds": 3}))
    >>> for sentence in words.split(". "):
    ...     print(sentence)
    The model: FedCE, 3 rounds of 4 local epochs, seed 0
    It is of a first look: a full run has 60 rounds of 4 local epochs.
    """
    training = recipe.training if recipe is not None else {}
    if not {"strategy", "rounds", "local_epochs"} <= set(training):
        return ""
    length = "{rounds} rounds of {local_epochs} local epochs"
    words = f"The model: {training['strategy']}, {length.format(**training)}"
    words += f", seed {training.get('seed')}."
    if adapted := training.get("adapted"):
        words += " Adapted to {hospital} in {epochs} epochs.".format(**adapted)
    full = training.get("full_run") or {"rounds": 0, "local_epochs": 0}
    epochs = training["rounds"] * (training["local_epochs"] or 0)
    if epochs < full["rounds"] * full["local_epochs"]:
        words += f" It is of a first look: a full run has {length.format(**full)}."
    return words


@dataclass(frozen=True)
class SiteOfRun:
    """A site that took part in a run.

    Args:
        name: of the site.
        datalist: with which it took part.
        config: of the run, its ``settings.json``.
    """

    name: str
    datalist: Path
    config: Mapping[str, Any]

    def split(self, data: Path) -> str:
        """Which split into cases this is, in words.

        Args:
            data: the folder in which it is used, maybe that of another hospital.
        """
        recorded = (self.config.get("data") or {}).get(self.name)
        if recorded is None or Path(recorded).resolve() == data.resolve():
            return "of the run"
        return (
            f"of the run, whose {self.name} was in {recorded}: where this is another hospital "
            "of that name, copy the model out of the run's folder"
        )

    def settings(self) -> dict[str, Any]:
        """The settings with which the run read the site's files, such as ``stereo``.

        A model's recipe does not have them: they are of the images.
        """
        own = (self.config.get("sites") or {}).get(self.name) or {}
        return configuration.settings_of_files({**(self.config.get("overrides") or {}), **own})


def site_of_run(model: Path, site: str) -> SiteOfRun | None:
    """A site of the run that a model is of; ``None``: it did not take part, or there is no run."""
    # The run that holds the model, at whatever depth, or the comparison that it is of. Without a
    # run beside them, data lists are of no run: ``monai-fairfl doctor`` wrote them.
    for folder in model.parents:
        if not (folder / SETTINGS).is_file():
            continue
        try:
            config = recorded_config(folder)
        except ConfigError:  # of another program
            continue
        sites = config.get("sites")
        own = (sites.get(site) if isinstance(sites, Mapping) else None) or {}
        datalist = Path(own.get("datalist_file") or folder / "datalists" / f"{site}.json")
        if datalist.is_file():
            return SiteOfRun(site, datalist, config)
    return None


# --- its scores

WHOLE_DICE = "val_mean_dice"
"""Name of the mean Dice of all structures in MONAI's tables."""

TITLES = {
    WHOLE_DICE: "Dice",
    "dice_slices": "Dice of slices",
    "hd95": "HD95, mm",
    "cup_to_disc_error": "cup-to-disc error",
}
"""Name of a score -> its column."""

Scores = dict[str, dict[str, float]]
"""Image -> name of a score -> its value, not a number where the case has none."""


def evaluation(
    model: str, bundle: str | None, data: Path, out: Path, device: str | None, verbose: bool
) -> tuple[dict[str, Any], str]:
    """Score a model at every hospital of a folder, after all their files were checked.

    Returns:
        ``sites``: site -> ``cases`` (image, and each score; ``None``: it has none), ``split`` and
        ``in_part`` (cases whose Dice is of a part of the structures); ``missing`` hospitals of the
        run; ``notes`` on the cases, such as an organ outside of what the network sees; ``files``
        (see :func:`~monai_fairfl.data.image_files.sort_files`); and the text.

    Raises:
        ConfigError: there is no such model, it is not known which bundle uses it, or this machine
            does not have the device.
        DataError: the folder holds no cases with labels; or every fault of the test cases of all
            hospitals.
    """
    device = device or best_device()
    require_device(device)
    file, root = find_model(model, bundle)
    recipe = read_recipe(file)
    adopted: Sequence[str] | None = None
    if configuration.takes_any_folder(root):
        of_bundle = configuration.read_keys(root / configuration.FEDERATE).get("config") or TRAIN
        adopted = list(recipe.files if recipe is not None else ()) or of_bundle
    sites = sites_at(data) if adopted is None else listed_sites(data, root, adopted)
    of_runs = {site: site_of_run(file, site) for site in sites}
    evaluator = Evaluator(file, recipe, root, of_runs, out, device, verbose, adopted)
    with emptied_unless_done(out):
        lists = {site: evaluator.cases_of(site, folder) for site, folder in sites.items()}
        datalists = {site: datalist for site, (datalist, _) in lists.items()}
        notes, used = evaluator.check(sites, datalists)
        say(f"Into the folder {out}")
        found = {}
        for site, (datalist, split) in lists.items():
            say(f"{site} ...")
            evaluator.score(site, sites[site], datalist)
            cases, in_part = scores_in(out / site)
            found[site] = {"cases": cases, "split": split, "in_part": in_part}

    # Nobody is missing where the user asked for one hospital by its own folder.
    hospitals: set[str] = set()
    for of_run in of_runs.values() if data not in sites.values() else ():
        hospitals.update((of_run.config.get("sites") if of_run else None) or ())
    missing = sorted(hospitals.difference(sites))
    folders = map(folder_of_site, sites.values())
    present = {os.path.abspath(file) for folder in folders for file in files_under(folder)}
    files = sort_files(present | used, used, {}, "it belongs to no test case")
    answer = {"sites": found, "missing": missing, "notes": notes, "files": files}
    plain: dict[str, Any] = to_json(answer)
    lines = [evaluation_text(found), *[f"note: {note}" for note in notes]]
    if missing:
        lines.append(f"Not scored, because the folder does not have them: {', '.join(missing)}.")
    lines += filter(None, [training_words(recipe), f"Folder: {out}"])
    lines.append(count_of_files(files))
    return plain, "\n".join(lines)


@dataclass(frozen=True)
class Evaluator:
    """Scores a model at one hospital after the other.

    Args:
        model: its file.
        recipe: how it was trained, where its file says so.
        bundle: that evaluates it.
        of_runs: hospital -> what the run of the model had of it; ``None``: it took no part.
        out: gets a folder of tables for each hospital.
        device: of the network.
        verbose: show what libraries print.
        adopted: files of the training configuration of an adopted bundle, which lists its own
            cases; ``None`` for any other bundle.
    """

    model: Path
    recipe: ModelRecipe | None
    bundle: Path
    of_runs: Mapping[str, SiteOfRun | None]
    out: Path
    device: str
    verbose: bool
    adopted: Sequence[str] | None

    def cases_of(self, site: str, folder: Path) -> tuple[Path, str]:
        """The data list whose test cases are scored, and in words which cases these are."""
        of_run = self.of_runs[site]
        if of_run is not None:
            return of_run.datalist, f"the test cases {of_run.split(folder)}"
        if self.adopted is not None:
            cases: Sequence[CaseFiles] = all_cases(listed_cases(folder, self.bundle, self.adopted))
        else:
            cases = find(folder).cases
        # As a list that was made by hand.
        begin = folder_of_site(folder)
        tested = []
        for case in cases:
            files = {name: os.path.relpath(case[name], begin) for name in ("image", "label")}
            tested.append({**case, **files})
        file = private_folder(self.out / "datalists") / f"{site}.json"
        _write_list(file, [], tested)
        return file, "all cases: where the model was trained on some, their scores flatter it"

    def check(
        self, sites: Mapping[str, Path], lists: Mapping[str, Path]
    ) -> tuple[list[str], set[str]]:
        """Check the test cases of all hospitals before any is scored; notes, and their files."""
        used: set[str] = set()
        values = self.recipe.values if self.recipe else {}

        def check(site: str, folder: Path) -> None:
            cases = cases_of_list(lists[site], folder, ("testing",))
            for case in cases:
                used.update(os.path.abspath(case[name]) for name in ("image", "label"))
            check_files(self.bundle, folder, self._own_values(site), cases, values)

        with warnings_as_notes() as notes:
            check_sites(sites, check)
        return notes, used

    def _own_values(self, site: str) -> dict[str, Any]:
        """What the run of the model had for the images of this hospital, other than for all."""
        values = dict(self.recipe.sites.get(site, {})) if self.recipe else {}
        if values:
            values["own_values"] = list(values)
        of_run = self.of_runs[site]
        return values | (of_run.settings() if of_run is not None else {})

    def score(self, site: str, data: Path, datalist: Path) -> None:
        """Score one hospital, and write its tables."""
        folder = self.out / site
        if self.adopted is not None:
            self._score_as_a_federation(site, data, datalist, self.adopted)
            return
        places = {"bundle_root": self.bundle, "ckpt_path": self.model, "dataset_dir": data}
        places |= {"datalist_file": datalist, "output_dir": folder}
        keys: dict[str, Any] = {name: str(place) for name, place in places.items()}
        training = configuration.train_config(self.bundle, {}, TRAIN)
        keys |= adaptation.values_of_list(datalist, training) | self._own_values(site)
        keys["device"] = self.device
        if "check_data" in training:
            # That was done for all hospitals.
            keys["check_data"] = False
        brought = overlay_of(self.recipe, self.bundle, training) if self.recipe else {}
        configs = self.bundle / "configs"
        between = written_overlay(brought, private_folder(folder))
        files = [str(configs / "train.json"), *between, str(configs / "evaluate.json")]
        MonaiLine(files, keys).run(self.out / LOG, self.verbose)

    def _score_as_a_federation(
        self, site: str, data: Path, datalist: Path, files: Sequence[str]
    ) -> None:
        """Score one hospital of an adopted bundle, whose own evaluation has other files and keys.

        The tables are like those that MONAI's ``MetricsSaver`` writes.
        """
        folder = self.out / site
        recipe = adaptation.recipe_of_training(self.model)
        training = configuration.train_config(self.bundle, {}, files)
        values = adaptation.values_of(recipe, site, training) if recipe else {}
        cases: Scores = {}
        for number, listed in enumerate(_lists_with_training(datalist)):
            with output_into(self.out / LOG, self.verbose):
                scores = adaptation.scores_at_site(
                    self.model,
                    self.bundle,
                    data,
                    folder / listed.stem,
                    datalist_file=listed,
                    config=files,
                    overrides=values | adaptation.values_of_list(listed, training),
                    device=self.device,
                )
            for case, values_of_case in scores.items():
                # Each list has names of its own: the same one may be of another case.
                cases[f"{number}/{case}" if case in cases else case] = values_of_case
        for name in next(iter(cases.values())):
            rows = [{"filename": case, "mean": scores[name]} for case, scores in cases.items()]
            of_monai = WHOLE_DICE if name == "dice" else name
            table = csv_text(["filename", "mean"], rows)
            write_atomically(folder / f"{of_monai}_raw.csv", table.encode())


def _write_list(file: Path, training: Sequence[Any], testing: Sequence[Any]) -> None:
    """Write a data list without validation cases."""
    parts = {"training": training, "validation": [], "testing": testing}
    write_atomically(file, json.dumps(parts, indent=2).encode())


def _lists_with_training(file: Path) -> list[Path]:
    """Data lists that together test the cases of one, each with a training case.

    A federation's client builds the training, too, which needs a case, and it scores no case that
    it could train. So where a list has test cases alone, a second one tests the first case.

    Raises:
        DataError: the list has a single case.
    """
    parts = object_of_json(file.read_bytes())
    if parts["training"]:
        return [file]
    first, *others = parts["testing"]
    if not others:
        raise DataError(f"{file}: a hospital is scored on two cases or more: add a labelled case")
    lists = [file.with_name(f"{file.stem}-{number}.json") for number in range(2)]
    _write_list(lists[0], [first], others)
    _write_list(lists[1], [others[0]], [first])
    return lists


# --- tables


def scores_in(folder: Path) -> tuple[Scores, int]:
    """The scores of all tables that MONAI's ``MetricsSaver`` wrote.

    Returns:
        The scores; and how many cases have a Dice of fewer structures than others, since MONAI's
        Dice of a structure that a label lacks is not a number, and does not count in the mean.

    >>> scores_in(Path("no/such/folder"))
    ({}, 0)
    """
    scores: Scores = {}
    structures = []
    for file in sorted(folder.glob("*_raw.csv")):
        name = file.name.removesuffix("_raw.csv")
        with file.open(newline="", encoding="utf-8") as table:
            titles, *rows = csv.reader(table)
        number = len(titles) - 1
        for row in rows:
            # MONAI quotes nothing: a path with a comma is several cells. The mean comes last.
            *classes, whole = map(float, row[-number:])
            scores.setdefault(",".join(row[:-number]), {})[name] = whole
            if name == WHOLE_DICE and not math.isnan(whole):
                structures.append(sum(not math.isnan(value) for value in classes))
    return scores, sum(count < max(structures) for count in structures)


def evaluation_text(found: Mapping[str, Mapping[str, Any]]) -> str:
    """A line of mean scores for each hospital with its worst case, and what they are of.

    Args:
        found: hospital -> ``cases``, ``split`` and ``in_part``.

    >>> cases = {"Case00.nii.gz": {"hd95": 4.0, "val_mean_dice": 0.75}}
    >>> found = {"elm": {"cases": cases, "split": "all cases", "in_part": 0}}
    >>> for line in evaluation_text(found).splitlines()[2:]:
    ...     print(" ".join(line.split()))
    elm 1 0.750 4.000 Case00.nii.gz 0.750
    elm: all cases.
    """
    known = {
        name for entry in found.values() for scores in entry["cases"].values() for name in scores
    }
    names = [*[name for name in TITLES if name in known], *sorted(known - {*TITLES})]
    rows, notes = [], []
    splits: dict[str, list[str]] = {}
    for site, entry in found.items():
        cases = entry["cases"]
        row = [site, str(len(cases))]
        splits.setdefault(entry["split"], []).append(site)
        for name in names:
            values = [
                one[name] for one in cases.values() if not math.isnan(one.get(name, math.nan))
            ]
            row.append(f"{mean(values):.3f}" if values else "–")
            if len(values) < len(cases):
                notes.append(
                    f"{TITLES.get(name, name)} of {site} is of {len(values)} of {len(cases)} "
                    "cases: the labels of the others have no such structure."
                )
        dice = {image: scores.get(WHOLE_DICE, math.nan) for image, scores in cases.items()}
        dice = {image: value for image, value in dice.items() if not math.isnan(value)}
        worst = min(dice, key=lambda image: dice[image], default="–")
        rows.append([*row, f"{Path(worst).name} {dice[worst]:.3f}" if dice else worst])
        if entry["in_part"]:
            notes.append(
                f"Dice of {site} mixes structures: {entry['in_part']} of {len(cases)} labels lack "
                f"one. Each structure's own is in {WHOLE_DICE}_raw.csv."
            )
    of_sites = [f"{', '.join(sites)}: {split}." for split, sites in splits.items()]
    titles = ["hospital", "cases", *[TITLES.get(name, name) for name in names], "worst case"]
    return "\n".join([text_of_table(titles, rows), *of_sites, *notes])
