# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The model and the bundle that commands name, and inference of a folder of images."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from monai_fairfl.bundle.adaptation import GLOBAL_MODEL
from monai_fairfl.bundle.configuration import read_metadata, settings_of_files
from monai_fairfl.bundle.shipped import bundle_names, find_bundle, locate_bundle
from monai_fairfl.cli.running import MonaiLine
from monai_fairfl.cli.training_words import training_words
from monai_fairfl.errors import ConfigError, DataError
from monai_fairfl.model_files.recipe import read_recipe
from monai_fairfl.run_folder.ledger import count_rounds, read_ledger
from monai_fairfl.run_folder.resuming import begun, ended, recorded_config
from monai_fairfl.run_folder.schedule import Schedule
from monai_fairfl.utils.devices import require_device
from monai_fairfl.utils.files import write_atomically
from monai_fairfl.utils.plain_values import object_of_json
from monai_fairfl.utils.words import count_words
from monai_fairfl.workflow.answer import answer_text
from monai_fairfl.workflow.dicom_files import files_under

TABLES = ("volumes.json", "ratios.json")
"""Names of the table of an inference run, of volumes and of photographs."""

FILES_OF_CASE = ("mask", "overlay", "dicom_seg")
"""Entries of a case in these tables that name a file."""

MODEL = "model.json"
"""Name of an inference run's record of its model."""

CONFIG = "config.json"
"""What every run has, and no folder of data lists alone."""

ASKED = "asked.json"
"""File in which a run records what it was asked for, so that another one never mixes with it."""

BESIDE = (ASKED, "log.txt")
"""What an inference run writes besides the masks."""

MOST_CELLS = 3
"""So many trainings of a comparison an error lists."""


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
    # The runs of `try` are in the folder `run` of its own.
    for file in sorted([*path.glob(f"*/{GLOBAL_MODEL}"), *path.glob(f"run/*/{GLOBAL_MODEL}")]):
        if not _trained_alone(file.parents[1]):
            runs.append(file.parents[1])
    if len(runs) == 1:
        return runs[0] / GLOBAL_MODEL
    if runs:
        names = ", ".join(str(run) for run in runs)
        raise ConfigError(f"{path} holds several runs: name one of {names}")
    raise ConfigError(_why_no_model(path))


def _why_no_model(path: Path) -> str:
    """Why a folder has no model to use, and what to name instead."""
    inner = sorted([*path.glob("*/ledger.jsonl"), *path.glob("run/*/ledger.jsonl")])
    for run in (path, *[ledger.parent for ledger in inner]):
        if begun(run) and not ended(run):
            return (
                f"{run} is a run that stopped {_last_round(run)}, or still trains: give "
                "the same command again to finish it (python -m monai.bundle also needs "
                "--resume True), or name another run"
            )
    if any(path.glob("cells/*/*/ledger.jsonl")):
        return _why_no_model_of_comparison(path)
    if begun(path):
        return f"{path} is a run without a global model: name a hospital's model file"
    return f"{path / GLOBAL_MODEL} does not exist: name a model file, or the folder of a run"


def _last_round(run: Path) -> str:
    """How far a run came that has not ended, such as ``"with 1 of 12 rounds done"``."""
    records = read_ledger(run / "ledger.jsonl")
    done = count_rounds(records)
    if done == 0:
        return "before its first round was done"
    planned = Schedule.read(run).planned
    if not planned or planned[-1] is None:
        return f"with {count_words(done, 'round')} done"
    return f"with {done} of {planned[-1]} rounds done"


def _why_no_model_of_comparison(path: Path) -> str:
    """Why a comparison over seeds or folds has no model, and which of its trainings have one."""
    cells: list[str] = []
    for file in sorted(path.glob(f"cells/*/*/{GLOBAL_MODEL}")):
        cell = file.parents[1]
        if len(cells) < MOST_CELLS and not _trained_alone(cell):
            cells.append(str(cell))
    if not cells:
        return (
            f"{path} is a comparison, and no federation in its folder cells has ended: give the "
            "same command again to finish it, or name another run"
        )
    return f"{path} is a comparison: name one of its trainings, such as {', '.join(cells)}"


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


@dataclass(frozen=True)
class SiteOfRun:
    """A site that took part in a run.

    Args:
        name: of the site.
        datalist: with which it took part.
        config: of the run, its ``config.json``.
    """

    name: str
    datalist: Path
    config: Mapping[str, Any]

    def warning_of_other_data(self, data: Path) -> str:
        """Say so where the site's data list is used in another folder, maybe of another hospital.

        Args:
            data: the folder in which it is used.

        Returns:
            Half a sentence; empty where the site had this folder, or the run does not say.
        """
        recorded = (self.config.get("data") or {}).get(self.name)
        if recorded is None or Path(recorded).resolve() == data.resolve():
            return ""
        return (
            f", whose {self.name} was in {recorded}: where this is another hospital of that name, "
            "copy the model out of the run's folder"
        )

    def settings(self) -> dict[str, Any]:
        """The settings with which the run read the site's files, such as ``stereo``.

        A model's recipe does not have them: they are of the images.
        """
        of_all = self.config.get("overrides") or {}
        return settings_of_files({**of_all, **_of_site(self.config, self.name)})


def site_of_run(model: Path, site: str) -> SiteOfRun | None:
    """A site of the run that a model is of; ``None``: it did not take part, or there is no run."""
    # The run that holds the model, at whatever depth, or the comparison that it is of.
    for folder in model.parents:
        # Without a run beside them, data lists are of no run: ``monai-fairfl datalist`` wrote them.
        if not (folder / CONFIG).is_file():
            continue
        try:
            config = recorded_config(folder)
        except ConfigError:  # of another program
            continue
        named = _of_site(config, site).get("datalist_file")
        datalist = Path(named or folder / "datalists" / f"{site}.json")
        if datalist.is_file():
            return SiteOfRun(site, datalist, config)
    return None


def _of_site(config: Mapping[str, Any], site: str) -> Mapping[str, Any]:
    """What a run's site adds to the settings of all."""
    sites = config.get("sites")
    found = sites.get(site) if isinstance(sites, Mapping) else None
    return found if isinstance(found, Mapping) else {}


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
        line = MonaiLine([str(inference_file(root))], arguments)
        known = MonaiLine(line.files, {}).configuration()
        # Others draw no pictures.
        unknown = [key for key in arguments if key not in known and key != "pictures"]
        if unknown:
            raise ConfigError(
                f"{line.files[0]} has no {', '.join(unknown)}, so it would use another model or "
                "other images: run it with its own keys, by python -m monai.bundle run"
            )
        return cls(file, images, out, line)

    def carry_out(self, output: TextIO, verbose: bool) -> int:
        """Segment the images, unless that was done before.

        The outputs of an earlier run of the same command are removed first.

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
        asked = {"model": digest_of(self.model), "images": str(self.images)}
        images = [file for file in files_under(self.images) if self.out not in file.parents]
        files = state_of_files([*images, *(Path(file) for file in self.line.files)])
        pictures = bool(self.line.arguments.get("pictures", True))
        if _was_done(self.out, asked, files, pictures):
            print(f"{self.out} holds the answer already.\n", file=output, flush=True)
            return 0
        if not pictures and any(self.out.glob("*_overlay.png")):
            raise ConfigError(
                f"{self.out} has pictures of earlier masks, which --no-pictures would leave beside "
                "new masks: leave out --no-pictures, or choose another --out"
            )
        print(f"\n{self.line.text}\n", file=output, flush=True)
        recipe = read_recipe(self.model)
        if recipe is not None and recipe.training.get("overrides"):
            print(
                f"The model was trained with {dict(recipe.training['overrides'])}. This line does "
                "not have that: add what decides the images and the network.\n",
                file=output,
                flush=True,
            )
        self.out.mkdir(parents=True, exist_ok=True)
        _remove_previous_answer(self.out)
        record = {**asked, "files": files, "pictures": pictures}
        write_atomically(self.out / ASKED, json.dumps(record, indent=4).encode())
        try:
            self.line.run(self.out / "log.txt", verbose)
        except SystemExit as ended:
            # A configuration ends so where a case was skipped.
            code = int(ended.code or 0)
            if code != 0 and not any((self.out / name).is_file() for name in TABLES):
                raise
            return code
        return 0


def inference_file(bundle: Path) -> Path:
    """A bundle's configuration that segments images.

    Raises:
        ConfigError: when there is none.
    """
    file = bundle / "configs" / "inference.json"
    if not file.is_file():
        raise ConfigError(
            f"{file} does not exist: this bundle segments no images yet. Write that file "
            "(docs/own_bundle.md); monai-fairfl evaluate scores the model without it"
        )
    return file


def answer_of(out: Path) -> tuple[dict[str, Any], str]:
    """The table of an inference run, and its text."""
    for name in TABLES:
        file = out / name
        if file.is_file():
            table = object_of_json(file.read_bytes())
            lines = [answer_text(table), _training_of(out), f"Folder: {out}"]
            return table, "\n".join(line for line in lines if line)
    # Inference as others write it has no table.
    written = [path for path in out.rglob("*") if path.is_file() and path.name not in BESIDE]
    if not written:
        raise ConfigError(f"{out} holds no mask: {out / 'log.txt'} shows why")
    names = sorted(str(path.relative_to(out)) for path in written)
    return {"files": names}, f"{count_words(len(names), 'file')} written.\nFolder: {out}"


def _training_of(out: Path) -> str:
    """How the model of an inference run was trained, in words; empty where it is not known."""
    file = out / MODEL
    if not file.is_file():
        return ""
    recipe = object_of_json(file.read_bytes())["recipe"]
    return training_words(recipe.get("training", {})) if recipe else ""


def digest_of(file: Path) -> str:
    """SHA-256 of a file."""
    return hashlib.sha256(file.read_bytes()).hexdigest()


def state_of_files(files: Iterable[Path]) -> str:
    """A digest of names, sizes and times: another one where a file came, went or changed."""
    facts: list[tuple[Any, ...]] = []
    for file in sorted(files):
        try:
            # Of a broken link it is the link's own.
            found = file.stat() if file.exists() else file.lstat()
        except PermissionError:
            # In a folder that may be listed and not entered. The run names it.
            facts.append((str(file),))
            continue
        facts.append((str(file), found.st_size, found.st_mtime_ns))
    return hashlib.sha256(repr(facts).encode()).hexdigest()


def is_recorded(asked: Mapping[str, Any], record: Path) -> bool:
    """Whether a run of this model on this data left the record."""
    if not record.is_file():
        return False
    found = object_of_json(record.read_bytes())
    return {name: found.get(name) for name in asked} == asked


def _remove_previous_answer(out: Path) -> None:
    """Remove the tables of an earlier run, and the files that they name.

    The images of that run may have gone or changed since: a mask that stays would be taken for one
    of this run. Nothing else in the folder is touched.

    Args:
        out: the folder of the earlier run's outputs.
    """
    for name in TABLES:
        table = out / name
        if not table.is_file():
            continue
        for line in object_of_json(table.read_bytes()).get("cases", []):
            for entry in FILES_OF_CASE:
                _remove_output(out, line.get(entry))
        # The list of the files goes last, so that a run that ends here can still be tidied up.
        table.with_suffix(".csv").unlink(missing_ok=True)
        table.unlink()


def _remove_output(out: Path, name: Any) -> None:
    """Remove a file that a table names, if it lies in the folder of the outputs."""
    if not isinstance(name, str):
        return
    path = out / name
    is_within = out.resolve() in path.resolve().parents
    if is_within and path.is_file():
        path.unlink()


def _was_done(out: Path, asked: Mapping[str, Any], files: str, pictures: bool) -> bool:
    """Whether a folder holds the whole answer to this question, of these very files.

    Args:
        out: the folder.
        asked: the model and the images.
        files: their state, see :func:`state_of_files`.
        pictures: whether pictures belong to the answer; those of an earlier run may stay.

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
    if not is_recorded(asked, record):
        raise ConfigError(
            f"{out} holds the masks of other images or of another model: give these a folder of "
            "their own with --out"
        )
    for name in TABLES:
        if (out / name).is_file() and (out / MODEL).is_file():
            summary = object_of_json((out / name).read_bytes())["summary"]
            whole = {**asked, "files": files}
            if pictures:
                whole["pictures"] = True
            # A command that is given again may find the other files mended.
            return set(summary) == {"segmented"} and is_recorded(whole, record)
    return False
