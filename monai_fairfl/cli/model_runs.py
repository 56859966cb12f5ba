# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Runs of a model on images: inference of a folder, and evaluation of hospitals."""

from __future__ import annotations

import csv
import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any, TextIO

from monai_fairfl.bundle.shipped import bundle_names, find_bundle, locate_bundle
from monai_fairfl.cli.running import MonaiLine
from monai_fairfl.cli.training_words import training_words
from monai_fairfl.data import layouts
from monai_fairfl.data.layouts import site_folders
from monai_fairfl.errors import ConfigError, DataError
from monai_fairfl.model_files.recipe import read_recipe
from monai_fairfl.utils.devices import require_device
from monai_fairfl.utils.files import write_atomically
from monai_fairfl.utils.plain_values import object_of_json
from monai_fairfl.utils.private import private_folder
from monai_fairfl.workflow.answer import answer_text, in_columns
from monai_fairfl.workflow.bundle_files import read_metadata

TABLES = ("volumes.json", "ratios.json")
"""Names of the table of an inference run, of volumes and of photographs."""

TITLES = {
    "val_mean_dice": "Dice",
    "dice_slices": "Dice of slices",
    "hd95": "HD95, mm",
    "cup_to_disc_error": "cup-to-disc error",
}
"""Name of a score -> its column."""

MEANINGS = {
    "dice_slices": "mean of the Dice of each slice that has the organ, as FedCE reports it",
    "hd95": "95th percentile of the distance of the two surfaces, by the spacing in the files",
}
"""Name of a score that needs a word -> what it is."""

MODEL = "model.json"
"""Name of an inference run's record of its model."""

GLOBAL_MODEL = Path("models") / "global.pt"
"""Where a run keeps its global model."""

ASKED = "asked.json"
"""File in which a run records what it was asked for, so that another one never mixes with it."""


def model_file(given: str) -> Path:
    """The model that was given: its file, or the global model of a run's folder.

    Of a comparison's folder it is that of its only federation. Where every hospital trained alone,
    there is no trained global model.

    Raises:
        ConfigError: when there is none, or several.
    """
    path = Path(given).absolute()
    if not path.is_dir():
        if path.is_file():
            return path
        raise ConfigError(f"{path} does not exist: name a model file, or the folder of a run")
    of_run = path / GLOBAL_MODEL
    if of_run.is_file():
        if _trained_alone(path):
            raise ConfigError(
                f"{path} is of Standalone, in which each hospital trained a model of its own and "
                "nobody the global one: name the run of a federation, or a hospital's model file"
            )
        return of_run
    runs = []
    for file in sorted(path.glob(f"*/{GLOBAL_MODEL}")):
        if not _trained_alone(file.parents[1]):
            runs.append(file.parents[1])
    if len(runs) == 1:
        return runs[0] / GLOBAL_MODEL
    if runs:
        names = ", ".join(str(run) for run in runs)
        raise ConfigError(f"{path} holds several runs: name one of {names}")
    raise ConfigError(f"{of_run} does not exist: name a model file, or the folder of a run")


def _trained_alone(run: Path) -> bool:
    """Whether every hospital of a run trained alone, so that its global model is the first one."""
    recipe = read_recipe(run / GLOBAL_MODEL)
    return recipe is not None and recipe.training.get("strategy") == "Standalone"


def bundle_of_model(model: Path, given: str | None) -> Path:
    """The bundle that uses a model: the one that was given, else the shipped one that trained it.

    Raises:
        ConfigError: when the model does not say, or it was trained by no shipped bundle.
    """
    if given is not None:
        return locate_bundle(given)
    recipe = read_recipe(model)
    if recipe is None:
        raise ConfigError(
            f"{model} does not record how it was trained (it has no recipe): name its bundle with "
            "--bundle"
        )
    for name in bundle_names():
        bundle = find_bundle(name)
        if read_metadata(bundle).get("name") == recipe.bundle:
            return bundle
    raise ConfigError(
        f"{model} was trained by the bundle {recipe.bundle!r}, which is not shipped: name its "
        "folder with --bundle"
    )


def datalist_of_run(model: Path, site: str) -> Path | None:
    """The data list with which a site took part in the run of a model; ``None``: it did not."""
    # Of the run that holds the model, at whatever depth, or of the comparison that it is of.
    for folder in model.parents:
        of_run = folder / "datalists" / f"{site}.json"
        if of_run.is_file():
            return of_run
    return None


# --- inference


@dataclass(frozen=True)
class Inference:
    """Segments a folder of images.

    Args:
        model: its file.
        images: the folder.
        out: gets the outputs.
        line: that does it.
    """

    model: Path
    images: Path
    out: Path
    line: MonaiLine

    @classmethod
    def of(
        cls,
        model: str,
        bundle: str | None,
        images: Path,
        out: Path,
        pictures: bool = True,
        device: str | None = None,
    ) -> Inference:
        """What a command line asks for.

        Raises:
            ConfigError: when there is no such model, it is not known which bundle uses it, or this
                machine does not have the device.
        """
        if device is not None:
            require_device(device)
        file = model_file(model)
        root = bundle_of_model(file, bundle)
        arguments: dict[str, Any] = {
            "bundle_root": str(root),
            "ckpt_path": str(file),
            "dataset_dir": str(images),
            "output_dir": str(out),
        }
        if not pictures:
            arguments["pictures"] = False
        if device is not None:
            arguments["device"] = device
        line = MonaiLine([str(root / "configs" / "inference.json")], arguments)
        return cls(file, images, out, line)

    def carry_out(self, output: TextIO, verbose: bool) -> int:
        """Segment the images, unless that was done before.

        Args:
            output: gets the line that is run.
            verbose: show what libraries print.

        Returns:
            The exit code.

        Raises:
            ConfigError: when the folder holds something else.
        """
        if not self.images.is_dir():
            raise DataError(f"{self.images} is not a folder: name the folder of the images")
        asked = {"model": _digest(self.model), "images": str(self.images)}
        if _was_done(self.out, asked):
            print(f"{self.out} holds the answer already.\n", file=output, flush=True)
            return 0
        print(f"\n{self.line.text}\n", file=output, flush=True)
        self.out.mkdir(parents=True, exist_ok=True)
        write_atomically(self.out / ASKED, json.dumps(asked, indent=4).encode())
        try:
            self.line.run(self.out / "log.txt", verbose)
        except SystemExit as ended:
            # A configuration ends so where a case was skipped.
            code = int(ended.code or 0)
            if not any((self.out / name).is_file() for name in TABLES):
                raise
            return code
        return 0


def answer_of(out: Path) -> tuple[dict[str, Any], str]:
    """The table of an inference run, and its text."""
    for name in TABLES:
        file = out / name
        if file.is_file():
            table = object_of_json(file.read_bytes())
            lines = [answer_text(table), _training_of(out), f"Folder: {out}"]
            return table, "\n".join(line for line in lines if line)
    raise ConfigError(f"{out} holds no table of an inference run: {out / 'log.txt'} shows why")


def _training_of(out: Path) -> str:
    """How the model of an inference run was trained, in words; empty where it is not known."""
    file = out / MODEL
    if not file.is_file():
        return ""
    recipe = object_of_json(file.read_bytes())["recipe"]
    return training_words(recipe.get("training", {})) if recipe else ""


def _digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def _was_done(out: Path, asked: Mapping[str, Any]) -> bool:
    """Whether a folder holds the whole answer to this question.

    Raises:
        ConfigError: when it holds the answer to another one, or something else.
    """
    if not out.exists() or not any(out.iterdir()):
        return False
    record = out / ASKED
    if not record.is_file():
        raise ConfigError(
            f"{out} holds something else already: give the masks a folder of their own with --out"
        )
    if object_of_json(record.read_bytes()) != asked:
        raise ConfigError(
            f"{out} holds the masks of other images or of another model: give these a folder of "
            "their own with --out"
        )
    for name in TABLES:
        if (out / name).is_file() and (out / MODEL).is_file():
            summary = object_of_json((out / name).read_bytes())["summary"]
            # A command that is given again may find the other files mended.
            return set(summary) == {"segmented"}
    return False


# --- evaluation


@dataclass(frozen=True)
class Evaluation:
    """Scores a model on the test cases of hospitals, one after the other.

    Args:
        model: its file.
        bundle: that evaluates it.
        sites: name -> folder of each hospital.
        out: gets a folder of tables for each.
        device: of the network; ``None``: as the bundle has it.
    """

    model: Path
    bundle: Path
    sites: Mapping[str, Path]
    out: Path
    device: str | None = None

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
        try:
            layouts.find(data)
            sites: Mapping[str, Path] = {data.name: data}
        except DataError:
            sites = site_folders(data)
        return cls(file, root, sites, out, device)

    def carry_out(self, output: TextIO, verbose: bool) -> tuple[dict[str, Any], str]:
        """Score every hospital.

        Args:
            output: gets the first line that is run, and the hospitals' names.
            verbose: show what libraries print.

        Returns:
            Site -> ``cases`` (image, and each score) and ``split``; and the text.
        """
        found = {}
        line_shown = False
        for site in self.sites:
            folder = self.out / site
            asked = {"model": _digest(self.model), "data": str(self.sites[site])}
            lists, split = self._cases_of(site)
            if not (folder / "val_mean_dice_raw.csv").is_file():
                line = self._line_of(site, folder, lists)
                if not line_shown:
                    # The lines of the others have other folders.
                    print(f"\n{line.text}\n", file=output, flush=True)
                    line_shown = True
                print(f"{site} ...", file=output, flush=True)
                line.run(folder / "log.txt", verbose)
                write_atomically(folder / ASKED, json.dumps(asked, indent=4).encode())
            elif not _is_of(folder, asked):
                raise ConfigError(
                    f"{folder} holds the scores of another model or of other data: give these a "
                    "folder of their own with --out"
                )
            found[site] = {"cases": _scores(folder), "split": split}
        recipe = read_recipe(self.model)
        trained = training_words(recipe.training) if recipe else ""
        return {"sites": found}, _evaluation_text(found, self.out, trained)

    def _line_of(self, site: str, folder: Path, lists: Path) -> MonaiLine:
        """The line that scores one hospital."""
        arguments: dict[str, Any] = {
            "bundle_root": str(self.bundle),
            "ckpt_path": str(self.model),
            "dataset_dir": str(self.sites[site]),
            "datalist_file": str(lists),
            "output_dir": str(folder),
        }
        if self.device is not None:
            arguments["device"] = self.device
        configs = self.bundle / "configs"
        files = [str(configs / "train.json"), str(configs / "evaluate.json")]
        return MonaiLine(files, arguments)

    def _cases_of(self, site: str) -> tuple[Path, str]:
        """The data list whose test cases are scored, and in words which cases these are."""
        of_run = datalist_of_run(self.model, site)
        if of_run is not None:
            return of_run, "the test cases of the run"
        file = self.out / "datalists" / f"{site}.json"
        split = "all cases: where the model was trained on some of them, their scores flatter it"
        if not file.is_file():
            private_folder(file.parent)
            write_atomically(file, _all_tested(self.sites[site]))
        return file, split


def _all_tested(site: Path) -> bytes:
    """A data list, as one is made by hand, in which every case is a test case."""
    parts: dict[str, Any] = {"training": [], "validation": [], "testing": []}
    for case in layouts.find(site).cases:
        relative = {name: os.path.relpath(file, site) for name, file in case.items()}
        parts["testing"].append(relative)
    return json.dumps(parts, indent=2).encode()


def _is_of(folder: Path, asked: Mapping[str, Any]) -> bool:
    record = folder / ASKED
    return record.is_file() and object_of_json(record.read_bytes()) == asked


def _scores(folder: Path) -> dict[str, dict[str, float]]:
    """Image -> name of a score -> its value, of all tables that MONAI's ``MetricsSaver`` wrote."""
    scores: dict[str, dict[str, float]] = {}
    for file in sorted(folder.glob("*_raw.csv")):
        name = file.name.removesuffix("_raw.csv")
        with file.open(newline="", encoding="utf-8") as table:
            for row in csv.DictReader(table):
                scores.setdefault(row["filename"], {})[name] = float(row["mean"])
    return scores


def _evaluation_text(found: Mapping[str, Mapping[str, Any]], out: Path, trained: str) -> str:
    """The scores in columns: a line for each hospital, and the worst case of each.

    Args:
        found: hospital -> ``cases`` and ``split``.
        out: folder of the tables.
        trained: how the model was trained; empty where it is not known.
    """
    names: list[str] = []
    for entry in found.values():
        for scores in entry["cases"].values():
            names += [name for name in scores if name not in names]
    names.sort(key=lambda name: list(TITLES).index(name) if name in TITLES else len(TITLES))
    rows = [["hospital", "cases", *[TITLES.get(name, name) for name in names], "worst case"]]
    for site, entry in found.items():
        cases: Mapping[str, Mapping[str, float]] = entry["cases"]
        row = [site, str(len(cases))]
        for name in names:
            row.append(f"{mean(scores[name] for scores in cases.values()):.3f}")
        worst = min(cases, key=lambda image: cases[image].get("val_mean_dice", 0.0))
        rows.append([*row, f"{Path(worst).name} {cases[worst]['val_mean_dice']:.3f}"])
    lines = in_columns(rows)
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
