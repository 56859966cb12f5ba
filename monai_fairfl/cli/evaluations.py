# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Evaluation of a model on the test cases of hospitals."""

from __future__ import annotations

import csv
import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any, TextIO

from monai_fairfl.bundle.adaptation import (
    check_listed,
    files_of,
    recipe_of_training,
    values_of,
    values_of_list,
)
from monai_fairfl.bundle.adoption.site_check import listed_cases, listed_sites
from monai_fairfl.bundle.configuration import settings_of_files, takes_any_folder, train_config
from monai_fairfl.bundle.first_look import recipe as training_of
from monai_fairfl.bundle.preflight import check_sites
from monai_fairfl.bundle.settings import TRAIN
from monai_fairfl.bundle.site_scores import scores_at_site
from monai_fairfl.cli.asked import ASKED, is_recorded, state_of_files
from monai_fairfl.cli.named_models import bundle_of_model, model_file, site_of_run
from monai_fairfl.cli.running import MonaiLine, output_into
from monai_fairfl.cli.training_words import training_words
from monai_fairfl.data import layouts
from monai_fairfl.data.datalist_file import cases_of_list
from monai_fairfl.data.layouts import CaseFiles, sites_at
from monai_fairfl.data.layouts.base import all_cases
from monai_fairfl.errors import ConfigError, DataError
from monai_fairfl.model_files.recipe import read_recipe
from monai_fairfl.protocol.values import to_json
from monai_fairfl.utils.devices import best_device, require_device
from monai_fairfl.utils.files import sha256_of, write_atomically
from monai_fairfl.utils.plain_values import object_of_json
from monai_fairfl.utils.private import private_folder
from monai_fairfl.utils.spreadsheets import csv_text
from monai_fairfl.utils.terminal import warnings_as_notes
from monai_fairfl.workflow.answer import NOTHING, in_columns

WHOLE_DICE = "val_mean_dice"
"""Name of the mean Dice of all structures in MONAI's tables."""

TITLES = {
    WHOLE_DICE: "Dice",
    "dice_slices": "Dice of slices",
    "hd95": "HD95, mm",
    "cup_to_disc_error": "cup-to-disc error",
}
"""Name of a score -> its column."""

MEANINGS = {
    "dice_slices": (
        "mean over the cases of each one's mean over its slices that have the organ; FedCE's paper "
        "pools the slices of all cases, as metrics.csv does"
    ),
    "hd95": "95th percentile of the distance of the two surfaces, by the spacing in the files",
}
"""Name of a score that needs a word -> what it is."""


@dataclass(frozen=True)
class Scoring:
    """The scoring of one hospital.

    Args:
        datalist: its data list, whose test cases are scored.
        split: in words which cases these are.
        asked: the model and the hospital's folder.
        record: the same with the state of the files that decide the scores.
    """

    datalist: Path
    split: str
    asked: Mapping[str, Any]
    record: Mapping[str, Any]


@dataclass(frozen=True)
class Evaluation:
    """Scores a model on the test cases of hospitals, one after the other.

    Args:
        model: its file.
        bundle: that evaluates it.
        sites: name -> folder of each hospital.
        out: gets a folder of tables for each.
        device: of the network; ``None``: as the bundle has it.
        adopted: files of the training configuration of an adopted bundle, which lists its own
            cases; ``None`` for any other bundle.
        missing: hospitals of the model's run that are not among ``sites``, although others are.
    """

    model: Path
    bundle: Path
    sites: Mapping[str, Path]
    out: Path
    device: str | None = None
    adopted: Sequence[str] | None = None
    missing: Sequence[str] = ()

    @classmethod
    def of(
        cls, model: str, bundle: str | None, data: Path, out: Path, device: str | None = None
    ) -> Evaluation:
        """What a command line asks for.

        Raises:
            ConfigError: when there is no such model, it is not known which bundle uses it, or this
                machine does not have the device.
            DataError: when the folder holds no cases with labels.
        """
        if device is not None:
            require_device(device)
        file = model_file(model)
        root = bundle_of_model(file, bundle)
        if takes_any_folder(root):
            files = _files_of(file, root)
            sites: Mapping[str, Path] = listed_sites(data, root, files)
            return cls(file, root, sites, out, device, files, _missing(file, sites, data))
        sites = sites_at(data)
        for site, folder in sites.items():
            # Faults of files are named before anything is written; a run has a list of its cases.
            if site_of_run(file, site) is None:
                layouts.find(folder)
        return cls(file, root, sites, out, device, missing=_missing(file, sites, data))

    def carry_out(self, output: TextIO, verbose: bool) -> tuple[dict[str, Any], str]:
        """Score every hospital.

        Args:
            output: gets the first line that is run, and the hospitals' names.
            verbose: show what libraries print.

        Returns:
            ``sites``: site -> ``cases`` (image, and each score; ``None``: it has none), ``split``
            and ``in_part`` (cases whose Dice is of a part of the structures); ``missing``
            hospitals of the run; and the text.

        Raises:
            ConfigError: a folder holds scores of another model or of other data.
            DataError: with every fault of the test cases of all hospitals that have no scores yet.
        """
        model = sha256_of(self.model)
        scorings = {site: self._scoring(site, model) for site in self.sites}
        new = {}
        for site, scoring in scorings.items():
            if not self._is_done(site, scoring):
                new[site] = scoring
        self._check(new, output)

        line_shown = False
        for site, scoring in new.items():
            folder = self.out / site
            # Another configuration may have other scores.
            for table in folder.glob("*_raw.csv"):
                table.unlink()
            # A scoring that was killed goes on with the same question.
            write_atomically(folder / ASKED, json.dumps(scoring.asked, indent=4).encode())
            # The lines of the others have other folders.
            self._score(site, folder, scoring.datalist, output, verbose, shows_line=not line_shown)
            line_shown = True
            write_atomically(folder / ASKED, json.dumps(scoring.record, indent=4).encode())

        found = {}
        for site, scoring in scorings.items():
            folder = self.out / site
            found[site] = {
                "cases": _scores(folder),
                "split": scoring.split,
                "in_part": _cases_in_part(folder),
            }
        recipe = read_recipe(self.model)
        trained = training_words(recipe.training) if recipe else ""
        plain: dict[str, Any] = to_json({"sites": found, "missing": list(self.missing)})
        return plain, _evaluation_text(found, self.out, trained, self.missing)

    def _scoring(self, site: str, model: str) -> Scoring:
        """What is to be scored of one hospital.

        Args:
            site: the hospital.
            model: digest of the model.
        """
        data = self.sites[site]
        datalist, split = self._cases_of(site)
        asked = {"model": model, "data": str(data)}
        decisive = [*_tested_files(datalist, data), *(self.bundle / "configs").glob("*.json")]
        return Scoring(datalist, split, asked, {**asked, "files": state_of_files(decisive)})

    def _is_done(self, site: str, scoring: Scoring) -> bool:
        """Whether a hospital has these scores already.

        Raises:
            ConfigError: when it has those of another model, or of other data.
        """
        folder = self.out / site
        if not (folder / f"{WHOLE_DICE}_raw.csv").is_file():
            return False
        if not is_recorded(scoring.asked, folder / ASKED):
            raise ConfigError(
                f"{folder} holds the scores of another model or of other data: give these a "
                "folder of their own with --out"
            )
        return is_recorded(scoring.record, folder / ASKED)

    def _check(self, scorings: Mapping[str, Scoring], output: TextIO) -> None:
        """Check the test cases of all hospitals before any is scored."""
        names = {str(self.sites[site]): site for site in scorings}

        def check(folder: str) -> None:
            site = names[folder]
            cases = cases_of_list(scorings[site].datalist, Path(folder), ("testing",))
            training = train_config(self.bundle, {}, self.adopted or TRAIN)
            training.update(settings_of_files(self._own_values(site)))
            check_listed(self.bundle, Path(folder), cases, training)

        with warnings_as_notes() as notes:
            check_sites({site: folder for folder, site in names.items()}, check)
        for note in notes:
            print(f"note: {note}", file=output, flush=True)

    def _score(
        self,
        site: str,
        folder: Path,
        datalist: Path,
        output: TextIO,
        verbose: bool,
        shows_line: bool,
    ) -> None:
        """Score one hospital, and write its tables."""
        if self.adopted is not None:
            print(f"{site} ...", file=output, flush=True)
            self._score_as_a_federation(site, folder, datalist, self.adopted, verbose)
            return
        line = self._line_of(site, folder, datalist)
        if shows_line:
            print(f"\n{line.text}\n", file=output, flush=True)
        print(f"{site} ...", file=output, flush=True)
        line.run(folder / "log.txt", verbose)

    def _score_as_a_federation(
        self, site: str, folder: Path, datalist: Path, files: Sequence[str], verbose: bool
    ) -> None:
        """Score one hospital of an adopted bundle, whose own evaluation has other files and keys.

        The tables are like those that MONAI's ``MetricsSaver`` writes.
        """
        cases: dict[str, dict[str, float]] = {}
        recipe = recipe_of_training(self.model)
        training = train_config(self.bundle, {}, files)
        values = values_of(recipe, site, training) if recipe else {}
        for with_training in _datalists_with_training(datalist):
            with output_into(folder / "log.txt", verbose):
                scores = scores_at_site(
                    self.model,
                    self.bundle,
                    self.sites[site],
                    folder / with_training.stem,
                    datalist_file=with_training,
                    config=files,
                    overrides={**values, **values_of_list(with_training, training)},
                    device=self.device or best_device(),
                )
            for case, values_of_case in scores.items():
                # Each list has names of its own: the same one may be of another case.
                name = f"{with_training.stem}/{case}" if case in cases else case
                cases[name] = values_of_case
        # The whole Dice is the first column and the last file: a folder that has it is done.
        for name in reversed(list(next(iter(cases.values())))):
            rows = [{"filename": case, "mean": scores[name]} for case, scores in cases.items()]
            table = csv_text(["filename", "mean"], rows)
            of_monai = WHOLE_DICE if name == "dice" else name
            write_atomically(folder / f"{of_monai}_raw.csv", table.encode())

    def _line_of(self, site: str, folder: Path, datalist: Path) -> MonaiLine:
        """The line that scores one hospital."""
        training = train_config(self.bundle, {}, TRAIN)
        arguments: dict[str, Any] = {
            "bundle_root": str(self.bundle),
            "ckpt_path": str(self.model),
            "dataset_dir": str(self.sites[site]),
            "datalist_file": str(datalist),
            "output_dir": str(folder),
            **values_of_list(datalist, training),
            **self._own_values(site),
        }
        if "check_data" in training:
            # That was done for all hospitals.
            arguments["check_data"] = False
        if self.device is not None:
            arguments["device"] = self.device
        configs = self.bundle / "configs"
        files = [str(configs / "train.json"), str(configs / "evaluate.json")]
        return MonaiLine(files, arguments)

    def _own_values(self, site: str) -> dict[str, Any]:
        """What the run of the model had for the images of this hospital, other than for all."""
        recipe = read_recipe(self.model)
        values = dict(recipe.sites.get(site, {})) if recipe else {}
        if values:
            values["own_values"] = list(values)
        of_run = site_of_run(self.model, site)
        if of_run is not None:
            values.update(of_run.settings())
        return values

    def _cases_of(self, site: str) -> tuple[Path, str]:
        """The data list whose test cases are scored, and in words which cases these are."""
        of_run = site_of_run(self.model, site)
        if of_run is not None:
            other = of_run.warning_of_other_data(self.sites[site])
            return of_run.datalist, f"the test cases of the run{other}"
        file = self.out / "datalists" / f"{site}.json"
        split = "all cases: where the model was trained on some of them, their scores flatter it"
        private_folder(file.parent)
        # Cases may have come since.
        write_atomically(file, self._all_tested(self.sites[site]))
        return file, split

    def _all_tested(self, folder: Path) -> bytes:
        """A data list of a hospital, as one is made by hand, in which every case is a test case."""
        if self.adopted is not None:
            listed = listed_cases(folder, self.bundle, self.adopted)
            cases: Sequence[CaseFiles] = all_cases(listed)
        else:
            cases = layouts.find(folder).cases
        begin = layouts.folder_of_site(folder)
        relative = []
        for case in cases:
            files = {name: os.path.relpath(case[name], begin) for name in ("image", "label")}
            relative.append({**case, **files})
        parts = {"training": [], "validation": [], "testing": relative}
        return json.dumps(parts, indent=2).encode()


def _missing(model: Path, sites: Mapping[str, Path], data: Path) -> list[str]:
    """Hospitals of a model's run that are not among the evaluated ones, sorted.

    None is missing where the user asked for one hospital by its own folder, or where no hospital is
    of the run.

    Args:
        model: its file.
        sites: name -> folder of each evaluated hospital.
        data: the folder that the user named.
    """
    if data in sites.values():
        return []
    hospitals: set[str] = set()
    for site in sites:
        of_run = site_of_run(model, site)
        if of_run is not None:
            hospitals.update(of_run.config.get("sites") or ())
    return sorted(hospitals.difference(sites))


def _files_of(model: Path, bundle: Path) -> Sequence[str]:
    """The configuration files with which an adopted bundle trained a model."""
    recipe = read_recipe(model)
    if recipe is not None:
        return files_of(recipe, bundle)
    return training_of(bundle).config or TRAIN


def _datalists_with_training(file: Path) -> list[Path]:
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
        raise DataError(
            f"{file}: a hospital is scored on two cases or more, and this has one: add a labelled "
            "case"
        )
    lists = []
    for number, (idle, tested) in enumerate([(first, others), (others[0], [first])]):
        content = {"training": [idle], "validation": [], "testing": tested}
        lists.append(file.with_name(f"{file.stem}-{number}.json"))
        write_atomically(lists[-1], json.dumps(content, indent=2).encode())
    return lists


def _tested_files(datalist: Path, data: Path) -> list[Path]:
    """The images and labels of the test cases of a data list."""
    files = []
    for case in cases_of_list(datalist, data, ("testing",)):
        files += [Path(case["image"]), Path(case["label"])]
    return [file for file in files if file.exists()]


def _scores(folder: Path) -> dict[str, dict[str, float]]:
    """Image -> name of a score -> its value, of all tables that MONAI's ``MetricsSaver`` wrote."""
    scores: dict[str, dict[str, float]] = {}
    for file in sorted(folder.glob("*_raw.csv")):
        name = file.name.removesuffix("_raw.csv")
        for image, values in _rows_of(file):
            # The mean of the classes is the last one.
            scores.setdefault(image, {})[name] = values[-1]
    return scores


def _rows_of(table: Path) -> list[tuple[str, list[float]]]:
    """Image, and its values: of each class, if there are several, and their mean."""
    with table.open(newline="", encoding="utf-8") as file:
        titles, *rows = csv.reader(file)
    num_values = len(titles) - 1
    values_of_images = []
    for row in rows:
        # MONAI quotes nothing: a path with a comma is several cells.
        image = ",".join(row[:-num_values])
        values_of_images.append((image, [float(value) for value in row[-num_values:]]))
    return values_of_images


def _cases_in_part(folder: Path) -> int:
    """Number of cases whose Dice is of fewer structures than that of other cases of the hospital.

    MONAI's Dice of a structure that a label lacks is not a number, and does not count in the mean.
    """
    table = folder / f"{WHOLE_DICE}_raw.csv"
    if not table.is_file():
        return 0
    numbers = []
    for _, values in _rows_of(table):
        classes = values[:-1]
        number = sum(not math.isnan(value) for value in classes)
        # A case without any Dice has a note of its own.
        if number:
            numbers.append(number)
    return sum(number < max(numbers) for number in numbers)


def _known(cases: Mapping[str, Mapping[str, float]], name: str) -> dict[str, float]:
    """Image -> a score, where it has one: MONAI's Dice of an empty label is not a number."""
    known = {}
    for image, scores in cases.items():
        if not math.isnan(scores.get(name, math.nan)):
            known[image] = scores[name]
    return known


def _evaluation_text(
    found: Mapping[str, Mapping[str, Any]], out: Path, trained: str, missing: Sequence[str] = ()
) -> str:
    """The scores in columns: a line for each hospital, and the worst case of each.

    Args:
        found: hospital -> ``cases``, ``split`` and ``in_part``.
        out: folder of the tables.
        trained: how the model was trained; empty where it is not known.
        missing: hospitals of the run that were not evaluated.
    """
    names: list[str] = []
    for entry in found.values():
        for scores in entry["cases"].values():
            names += [name for name in scores if name not in names]
    names.sort(key=lambda name: list(TITLES).index(name) if name in TITLES else len(TITLES))
    rows = [["hospital", "cases", *[TITLES.get(name, name) for name in names], "worst case"]]
    notes = []
    for site, entry in found.items():
        cases: Mapping[str, Mapping[str, float]] = entry["cases"]
        row = [site, str(len(cases))]
        for name in names:
            known = _known(cases, name)
            row.append(f"{mean(known.values()):.3f}" if known else NOTHING)
            if len(known) < len(cases):
                notes.append(
                    f"{TITLES.get(name, name)} of {site} is of {len(known)} of {len(cases)} cases: "
                    "the labels of the others have no such structure."
                )
        in_part = entry.get("in_part", 0)
        if in_part:
            notes.append(
                f"Dice of {site} mixes structures: the labels of {in_part} of {len(cases)} cases "
                "lack a structure, and their Dice is that of the others alone. Each structure's own"
                f" is in {WHOLE_DICE}_raw.csv."
            )
        dice = _known(cases, WHOLE_DICE)
        worst = min(dice, key=lambda image: dice[image], default=None)
        rows.append([*row, NOTHING if worst is None else f"{Path(worst).name} {dice[worst]:.3f}"])
    if missing:
        notes.append(
            f"Not scored, because the folder does not have them: {', '.join(missing)} of the run. "
            "Add them, or bear in mind that no number is of them."
        )
    lines = [*in_columns(rows), *notes]
    sites_of: dict[str, list[str]] = {}
    for site, entry in found.items():
        sites_of.setdefault(entry["split"], []).append(site)
    for split, sites in sites_of.items():
        lines.append(f"{', '.join(sites)}: {split}.")
    for name in names:
        if name in MEANINGS:
            lines.append(f"{TITLES[name]}: {MEANINGS[name]}.")
    if trained:
        lines.append(trained)
    lines.append(f"Folder: {out}")
    return "\n".join(lines)
