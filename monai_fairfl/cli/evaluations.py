# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Evaluation of a model on the test cases of hospitals; ``score_tables`` has what it answers."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TextIO

from monai_fairfl.bundle.adaptation import (
    check_listed,
    files_of,
    recipe_of_training,
    values_of,
    values_of_list,
)
from monai_fairfl.bundle.adoption import listed_sites
from monai_fairfl.bundle.checks import check_sites
from monai_fairfl.bundle.configuration import (
    TRAIN,
    settings_of_files,
    takes_any_folder,
    train_config,
)
from monai_fairfl.bundle.first_look import recipe as training_of
from monai_fairfl.bundle.site import listed_cases
from monai_fairfl.bundle.site_scores import scores_at_site
from monai_fairfl.cli.asked import is_recorded, record_asked, state_of_files
from monai_fairfl.cli.inference import OVERLAY
from monai_fairfl.cli.named_models import bundle_of_model, model_file, site_of_run
from monai_fairfl.cli.running import MonaiLine, output_into
from monai_fairfl.cli.score_tables import WHOLE_DICE, cases_in_part, evaluation_text, scores_in
from monai_fairfl.cli.training_words import training_words
from monai_fairfl.data import sites as data_sites
from monai_fairfl.data.datalist import cases_of_list
from monai_fairfl.data.layouts import CaseFiles, all_cases
from monai_fairfl.data.sites import sites_at
from monai_fairfl.errors import ConfigError, DataError
from monai_fairfl.messages import to_json
from monai_fairfl.model_files.recipe import ModelRecipe, read_recipe
from monai_fairfl.utils.devices import best_device, require_device
from monai_fairfl.utils.files import private_folder, sha256_of, write_atomically
from monai_fairfl.utils.plain_values import object_of_json
from monai_fairfl.utils.spreadsheets import csv_text
from monai_fairfl.utils.terminal import warnings_as_notes
from monai_fairfl.workflow.carried import evaluation_overlay


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
                data_sites.find(folder)
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

        for number, (site, scoring) in enumerate(new.items()):
            folder = self.out / site
            # Another configuration may have other scores.
            for table in folder.glob("*_raw.csv"):
                table.unlink()
            # A scoring that was killed goes on with the same question.
            record_asked(scoring.asked, folder)
            # The lines of the others have other folders.
            self._score(site, scoring.datalist, output, verbose, shows_line=number == 0)
            record_asked(scoring.record, folder)

        found = {}
        for site, scoring in scorings.items():
            folder = self.out / site
            found[site] = {
                "cases": scores_in(folder),
                "split": scoring.split,
                "in_part": cases_in_part(folder),
            }
        trained = training_words(self._recipe.training) if self._recipe else ""
        plain: dict[str, Any] = to_json({"sites": found, "missing": list(self.missing)})
        return plain, evaluation_text(found, self.out, trained, self.missing)

    @cached_property
    def _recipe(self) -> ModelRecipe | None:
        """How the model was trained, if its file says so: it is read once, as all of it is read."""
        return read_recipe(self.model)

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
        if not is_recorded(scoring.asked, folder):
            raise ConfigError(
                f"{folder} holds the scores of another model or of other data: give these a "
                "folder of their own with --out"
            )
        return is_recorded(scoring.record, folder)

    def _check(self, scorings: Mapping[str, Scoring], output: TextIO) -> None:
        """Check the test cases of all hospitals before any is scored."""
        names = {str(self.sites[site]): site for site in scorings}

        def check(folder: str) -> None:
            site = names[folder]
            cases = cases_of_list(scorings[site].datalist, Path(folder), ("testing",))
            _require_utf8(case["image"] for case in cases)
            training = train_config(self.bundle, {}, self.adopted or TRAIN)
            training.update(settings_of_files(self._own_values(site)))
            check_listed(self.bundle, Path(folder), cases, training)

        with warnings_as_notes() as notes:
            check_sites({site: folder for folder, site in names.items()}, check)
        for note in notes:
            print(f"note: {note}", file=output, flush=True)

    def _score(
        self, site: str, datalist: Path, output: TextIO, verbose: bool, shows_line: bool
    ) -> None:
        """Score one hospital, and write its tables."""
        folder = self.out / site
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
        brought = evaluation_overlay(self._recipe, self.bundle) if self._recipe else {}
        if brought:
            overlay = folder / OVERLAY
            write_atomically(overlay, json.dumps(brought, indent=4).encode())
            files.insert(1, str(overlay))
        return MonaiLine(files, arguments)

    def _own_values(self, site: str) -> dict[str, Any]:
        """What the run of the model had for the images of this hospital, other than for all."""
        values = dict(self._recipe.sites.get(site, {})) if self._recipe else {}
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
            cases = data_sites.find(folder).cases
        begin = data_sites.folder_of_site(folder)
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


def _require_utf8(images: Iterable[str]) -> None:
    """Refuse names that MONAI cannot write into its tables of scores."""
    for image in images:
        try:
            image.encode()
        except UnicodeEncodeError as error:
            raise DataError(
                f"{image!r}: this path is not UTF-8, so the tables of scores cannot name it: "
                "rename the file or folder"
            ) from error


def _tested_files(datalist: Path, data: Path) -> list[Path]:
    """The images and labels of the test cases of a data list."""
    files = []
    for case in cases_of_list(datalist, data, ("testing",)):
        files += [Path(case["image"]), Path(case["label"])]
    return [file for file in files if file.exists()]
