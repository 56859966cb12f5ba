# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Scores of a model on the test cases of hospitals, one after the other."""

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

from monai_fairfl.bundle.adaptation import (
    files_of,
    recipe_of_training,
    scores_at_site,
    values_of,
    values_of_list,
)
from monai_fairfl.bundle.adoption import listed_sites
from monai_fairfl.bundle.checks import check_sites
from monai_fairfl.bundle.configuration import (
    FEDERATE,
    read_keys,
    takes_any_folder,
    train_config,
)
from monai_fairfl.bundle.shipped import TRAIN
from monai_fairfl.bundle.site import check_files, listed_cases
from monai_fairfl.cli.named_models import (
    bundle_of_model,
    model_file,
    site_of_run,
    training_words,
)
from monai_fairfl.cli.options import LOG, emptied_unless_done, say
from monai_fairfl.cli.running import MonaiLine, output_into, written_overlay
from monai_fairfl.data.datalist import cases_of_list
from monai_fairfl.data.layouts import CaseFiles, all_cases
from monai_fairfl.data.sites import find, folder_of_site, sites_at
from monai_fairfl.errors import DataError
from monai_fairfl.messages import to_json
from monai_fairfl.model_files.recipe import ModelRecipe, read_recipe
from monai_fairfl.utils.devices import best_device, require_device
from monai_fairfl.utils.files import private_folder, write_atomically
from monai_fairfl.utils.plain_values import object_of_json
from monai_fairfl.utils.spreadsheets import csv_text
from monai_fairfl.utils.tables import text_of_table
from monai_fairfl.utils.terminal import warnings_as_notes
from monai_fairfl.workflow.carried import evaluation_overlay

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
        run; and the text.

    Raises:
        ConfigError: there is no such model, it is not known which bundle uses it, or this machine
            does not have the device.
        DataError: the folder holds no cases with labels; or every fault of the test cases of all
            hospitals.
    """
    if device is not None:
        require_device(device)
    file = model_file(model)
    root = bundle_of_model(file, bundle)
    recipe = read_recipe(file)
    adopted = None
    if takes_any_folder(root):
        of_bundle = read_keys(root / FEDERATE).get("config") or TRAIN
        adopted = files_of(recipe, root) if recipe is not None else of_bundle
    evaluator = Evaluator(file, recipe, root, out, device, verbose, adopted)
    sites = evaluator.sites_in(data)
    with emptied_unless_done(out):
        lists = {site: evaluator.cases_of(site, folder) for site, folder in sites.items()}
        evaluator.check(sites, {site: datalist for site, (datalist, _) in lists.items()})
        say(f"Into the folder {out}")
        found = {}
        for site, (datalist, split) in lists.items():
            say(f"{site} ...")
            evaluator.score(site, sites[site], datalist)
            cases, in_part = scores_in(out / site)
            found[site] = {"cases": cases, "split": split, "in_part": in_part}

    # Nobody is missing where the user asked for one hospital by its own folder.
    hospitals: set[str] = set()
    for site in sites if data not in sites.values() else ():
        if of_run := site_of_run(file, site):
            hospitals.update(of_run.config.get("sites") or ())
    missing = sorted(hospitals.difference(sites))
    plain: dict[str, Any] = to_json({"sites": found, "missing": missing})
    lines = [evaluation_text(found)]
    if missing:
        lines.append(f"Not scored, because the folder does not have them: {', '.join(missing)}.")
    lines += filter(None, [training_words(evaluator.recipe), f"Folder: {out}"])
    return plain, "\n".join(lines)


@dataclass(frozen=True)
class Evaluator:
    """Scores a model at one hospital after the other.

    Args:
        model: its file.
        recipe: how it was trained, where its file says so.
        bundle: that evaluates it.
        out: gets a folder of tables for each hospital.
        device: of the network; ``None``: as the bundle has it.
        verbose: show what libraries print.
        adopted: files of the training configuration of an adopted bundle, which lists its own
            cases; ``None`` for any other bundle.
    """

    model: Path
    recipe: ModelRecipe | None
    bundle: Path
    out: Path
    device: str | None
    verbose: bool
    adopted: Sequence[str] | None

    def sites_in(self, data: Path) -> dict[str, Path]:
        """Name -> folder of the hospitals; faults of files are named before anything is written."""
        if self.adopted is not None:
            return dict(listed_sites(data, self.bundle, self.adopted))
        sites = sites_at(data)
        for site, folder in sites.items():
            # A run has a list of its cases.
            if site_of_run(self.model, site) is None:
                find(folder)
        return sites

    def cases_of(self, site: str, folder: Path) -> tuple[Path, str]:
        """The data list whose test cases are scored, and in words which cases these are."""
        of_run = site_of_run(self.model, site)
        if of_run is not None:
            return of_run.datalist, f"the test cases of a split, {of_run.split(folder)}"
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

    def check(self, sites: Mapping[str, Path], lists: Mapping[str, Path]) -> None:
        """Check the test cases of all hospitals before any is scored."""

        def check(site: str, folder: Path) -> None:
            cases = cases_of_list(lists[site], folder, ("testing",))
            for case in cases:
                image = case["image"]
                if image != image.encode(errors="replace").decode():
                    # MONAI writes the names into its tables of scores.
                    raise DataError(f"{image!r}: this path is not UTF-8: rename the file or folder")
            check_files(self.bundle, folder, self._own_values(site), cases)

        with warnings_as_notes() as notes:
            check_sites(sites, check)
        for note in notes:
            say(f"note: {note}")

    def _own_values(self, site: str) -> dict[str, Any]:
        """What the run of the model had for the images of this hospital, other than for all."""
        values = dict(self.recipe.sites.get(site, {})) if self.recipe else {}
        if values:
            values["own_values"] = list(values)
        of_run = site_of_run(self.model, site)
        return values | (of_run.settings() if of_run is not None else {})

    def score(self, site: str, data: Path, datalist: Path) -> None:
        """Score one hospital, and write its tables."""
        folder = self.out / site
        if self.adopted is not None:
            self._score_as_a_federation(site, data, datalist, self.adopted)
            return
        training = train_config(self.bundle, {}, TRAIN)
        keys = {
            "bundle_root": str(self.bundle),
            "ckpt_path": str(self.model),
            "dataset_dir": str(data),
            "datalist_file": str(datalist),
            "output_dir": str(folder),
            **values_of_list(datalist, training),
            **self._own_values(site),
        }
        if "check_data" in training:
            # That was done for all hospitals.
            keys["check_data"] = False
        if self.device is not None:
            keys["device"] = self.device
        brought = evaluation_overlay(self.recipe, self.bundle) if self.recipe else {}
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
        recipe = recipe_of_training(self.model)
        training = train_config(self.bundle, {}, files)
        values = values_of(recipe, site, training) if recipe else {}
        cases: Scores = {}
        for number, listed in enumerate(_lists_with_training(datalist)):
            with output_into(self.out / LOG, self.verbose):
                scores = scores_at_site(
                    self.model,
                    self.bundle,
                    data,
                    folder / listed.stem,
                    datalist_file=listed,
                    config=files,
                    overrides={**values, **values_of_list(listed, training)},
                    device=self.device or best_device(),
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
    for site, entry in found.items():
        cases = entry["cases"]
        row = [site, str(len(cases))]
        notes.append(f"{site}: {entry['split']}.")
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
    titles = ["hospital", "cases", *[TITLES.get(name, name) for name in names], "worst case"]
    return "\n".join([text_of_table(titles, rows), *notes])
