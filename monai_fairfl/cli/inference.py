# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Inference of a folder of images with one model, unless that was done before."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

from monai_fairfl.bundle.configuration import INFERENCE
from monai_fairfl.cli.asked import ASKED, is_recorded, record_asked, state_of_files
from monai_fairfl.cli.named_models import bundle_of_model, model_file
from monai_fairfl.cli.running import MonaiLine
from monai_fairfl.cli.training_words import training_words
from monai_fairfl.data.image_files import files_under
from monai_fairfl.errors import ConfigError, DataError
from monai_fairfl.model_files.recipe import read_recipe
from monai_fairfl.utils.devices import require_device
from monai_fairfl.utils.files import sha256_of, write_atomically
from monai_fairfl.utils.plain_values import object_of_json
from monai_fairfl.utils.words import count_words
from monai_fairfl.workflow.answer import answer_text
from monai_fairfl.workflow.carried import inference_overlay

TABLES = ("volumes.json", "ratios.json")
"""Names of the table of an inference run, of volumes and of photographs."""

FILES_OF_CASE = ("mask", "overlay", "dicom_seg")
"""Entries of a case in these tables that name a file."""

MODEL = "model.json"
"""Name of an inference run's record of its model."""

OVERLAY = "recipe.json"
"""Name of the overlay with what the model brings, where the bundle has it otherwise."""

BESIDE = (ASKED, "log.txt", OVERLAY)
"""What an inference run writes besides the masks."""


@dataclass(frozen=True)
class Inference:
    """Segments a folder of images.

    Args:
        model: its file.
        images: the folder.
        out: gets the outputs.
        line: that does it.
        brought: content of the overlay :data:`OVERLAY` that the line reads; empty: it reads none.
    """

    model: Path
    images: Path
    out: Path
    line: MonaiLine
    brought: Mapping[str, Any] = field(default_factory=dict)

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
        recipe = read_recipe(file)
        brought = inference_overlay(recipe, root) if recipe is not None else {}
        if brought:
            line = MonaiLine([*line.files, str(out / OVERLAY)], arguments)
        return cls(file, images, out, line, brought)

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
        asked = {"model": sha256_of(self.model), "images": str(self.images)}
        images = [file for file in files_under(self.images) if self.out not in file.parents]
        files = state_of_files([*images, Path(self.line.files[0])])
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
        record_asked({**asked, "files": files, "pictures": pictures}, self.out)
        if self.brought:
            write_atomically(self.out / OVERLAY, json.dumps(self.brought, indent=4).encode())
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
    file = bundle / INFERENCE
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
    if not (out / ASKED).is_file():
        raise ConfigError(
            f"{out} holds something else already: give the masks a folder of their own with --out"
        )
    if not is_recorded(asked, out):
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
            return set(summary) == {"segmented"} and is_recorded(whole, out)
    return False
