# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Fundus photographs as a folder of cases, and the cup-to-disc ratio of each."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from monai.data import MetaTensor
from PIL import Image

from monai_fairfl.bundle.configuration import errors_in_one_line
from monai_fairfl.data.fundus import is_pair
from monai_fairfl.data.image_files import fault_of, files_under, is_picture
from monai_fairfl.errors import DataError
from monai_fairfl.metrics.cup_to_disc import vertical_cup_to_disc_ratio
from monai_fairfl.workflow.cases import Case, CaseFile, CaseOutput, Cases
from monai_fairfl.workflow.input_folder import file_cases, files_without_case, require_folders
from monai_fairfl.workflow.passed_over import kinds_of, passed_over

logger = logging.getLogger(__name__)

PHOTOGRAPHS = "*.[pPjJtTbB][nNpPiImM][gGfFeEpP]*"  # png, jpg, jpeg, tif, tiff, bmp
LEAST_COLOUR = 8  # of 255, between a pixel's channels; compression of a grey picture stays below
SMALLEST_SIDE = 32  # pixels
VALUES_OF_FILE = np.array([0, 128, 255], np.uint8)
"""Pixel values of background, disc and cup in a written mask."""


def photograph_problem(path: Path) -> str | None:
    """Return why a file is not a photograph that can be outlined, if so.

    The file is read to its end.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp(), "a.png")
    >>> Image.new("RGB", (64, 64)).save(path)
    >>> photograph_problem(path)
    'the same colour in all 64 x 64 pixels; export it again'
    """
    with Image.open(path) as image:
        frames = getattr(image, "n_frames", 1)
        fault = fault_of(image)
        mode = image.mode
        pixels = np.asarray(image.convert("RGB"))
    height, width = pixels.shape[:2]
    if frames > 1:
        return f"{frames} pictures in one file; store each in a file of its own"
    if fault:
        return fault
    if mode not in ("L", "LA", "P", "RGB", "RGBA"):
        return f"mode {mode!r} instead of colour of 8 bits; export the colour photograph"
    if min(width, height) < SMALLEST_SIDE:
        return f"{width} x {height} pixels; export it at full size"
    if (pixels == pixels[0, 0]).all():
        return f"the same colour in all {width} x {height} pixels; export it again"
    if not in_colour(pixels):
        return (
            "no colour; a fundus photograph is orange to red. Take out other pictures, or export "
            "it in colour"
        )
    return None


def in_colour(pixels: np.ndarray) -> bool:
    """Return whether a picture, (height, width, 3) of 8 bits, is more than grey.

    >>> in_colour(np.full((4, 4, 3), 90, np.uint8))
    False
    """
    colourfulness = pixels.max(axis=2) - pixels.min(axis=2)
    return bool(colourfulness.max() >= LEAST_COLOUR)


def find_photographs(
    folder: str | Path, report: str | Path, pattern: str = PHOTOGRAPHS, stereo: bool | None = None
) -> Cases:
    """Find the photographs of a folder, and check that each can be used.

    A photograph is a PNG, JPEG, TIFF or BMP, in colour. Pictures of other formats, and those in
    subfolders, are passed over and named in the log.

    Args:
        folder: of photographs.
        report: JSON file of the run's table, in the folder of its outputs.
        pattern: of file names, relative to the folder. Names with ``_segmentation`` are left out.
        stereo: whether they are pairs of views; where it is not given, one taken for a pair by its
            shape is noted.

    Returns:
        All cases, by name; those with a problem as skipped ones.

    Raises:
        DataError: no such folder, or nothing in it.
        ConfigError: the report is to lie in it, or its folder cannot be made.

    >>> find_photographs("/no/such/folder", "table.json")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
        ...
    monai_fairfl.errors.DataError: /no/such/folder is not a folder...
    """
    folder = Path(folder).expanduser()
    report = Path(report).expanduser()
    hint = (
        "name the folder that holds the photographs themselves, as IMAGES of `monai-fairfl infer` "
        "or with --dataset_dir."
    )
    with errors_in_one_line():
        require_folders(folder, report, hint)
        found = list(file_cases(folder, pattern, photograph_problem, report))
        others = files_without_case(sorted(files_under(folder)), found, folder, report)
        notes = passed_over(folder, others, is_picture, "picture(s)", "PNG")
        if not found:
            there = ". ".join([kinds_of(others), *notes])
            raise DataError(
                f"No photograph {pattern} in {folder}: {hint} In it and its subfolders are: {there}"
            )
    for note in notes:
        logger.warning("%s: %s", folder, note)
    if stereo is None:
        for case in found:
            if case.image and _looks_like_pair(case.image):
                case.note(
                    "taken for a stereo pair by its shape: only the left half is used; for single "
                    "views --stereo False"
                )
    return Cases(found, report)


def _looks_like_pair(path: str) -> bool:
    with Image.open(path) as image:
        width, height = image.size
    return is_pair(width, height)


class SaveMaskd(CaseFile):
    """Writes ``NAME_POSTFIX.png``: a mask on the photograph's own pixels.

    It has one channel: 0 background, 128 disc, 255 cup. A data list recognises these values.

    Args:
        keys: of the masks, (1, width, height): 0 background, 1 disc, 2 cup.
        cases: of the run.
        output_dir: folder for the files.
        output_postfix: of their names.

    >>> SaveMaskd("pred", Cases([], "table.json"), "masks").output_postfix
    'pred'
    """

    ending = "png"
    entry = "mask"
    output_postfix = "pred"

    def save(self, case: Case, pred: MetaTensor, path: Path) -> None:
        labels = pred[0].cpu().numpy().astype(int)
        picture = VALUES_OF_FILE[labels]
        # MONAI has the width first, Pillow the height.
        Image.fromarray(picture.T).save(path)


class MeasureCupToDiscd(CaseOutput):
    """Measures the vertical cup-to-disc ratio, and the pixels of disc and cup.

    Into the case's line of the table go ``vertical_cup_to_disc_ratio``
    (:func:`.vertical_cup_to_disc_ratio`), ``disc_pixels`` and ``cup_pixels``, and ``share`` (of the
    disc, of all pixels). The cup is part of the disc. Without a disc there is no ratio, and the
    case is noted.

    Args:
        keys: of the masks, (1, width, height): 0 background, 1 disc, 2 cup.
        cases: of the run.

    >>> import torch
    >>> from monai.data import MetaTensor
    >>> import tempfile
    >>> case = Case("a", source="a.png", image="a.png")
    >>> labels = MetaTensor(torch.full((1, 8, 8), 2.0))
    >>> labels.meta["filename_or_obj"] = "a.png"
    >>> cases = Cases([case], tempfile.mkdtemp() + "/table.json")
    >>> _ = MeasureCupToDiscd("pred", cases)({"pred": labels})
    >>> case.results["vertical_cup_to_disc_ratio"], case.results["cup_pixels"]
    (1.0, 64)
    """

    def write(self, case: Case, pred: MetaTensor) -> Mapping[str, Any]:
        labels = pred.as_tensor()[0]
        disc = labels >= 1
        cup = labels >= 2
        ratio = vertical_cup_to_disc_ratio(torch.stack([disc, cup]))
        rounded = None
        if math.isnan(ratio):
            case.note(
                "no disc was found; look at the overlay, and check that this is a fundus photograph"
            )
        else:
            rounded = round(ratio, 4)
        return {
            "vertical_cup_to_disc_ratio": rounded,
            "disc_pixels": int(disc.sum()),
            "cup_pixels": int(cup.sum()),
            "share": round(float(disc.float().mean()), 6),
        }
