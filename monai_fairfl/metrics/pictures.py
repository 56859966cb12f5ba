# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Pictures of an evaluation, which stay at the hospital: they show its images."""

from __future__ import annotations

import io
import logging
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from ignite.engine import Events
from monai.transforms import EnsureChannelFirst, LoadImage, Orientation
from nibabel.orientations import aff2axcodes
from numpy.typing import NDArray
from PIL import Image, ImageDraw
from skimage.segmentation import find_boundaries

from monai_fairfl.errors import in_words
from monai_fairfl.utils.files import write_atomically
from monai_fairfl.utils.spreadsheets import csv_text

logger = logging.getLogger(__name__)

MARGIN = 0.1
"""So much of an image is shown around its structures, as a share of its longer side."""

PANEL = 320
"""Longer side of a picture, in pixels."""

REFERENCE, PREDICTION = (51, 221, 102), (255, 212, 0)
MISSED, TOO_MUCH = (230, 25, 25), (25, 100, 255)
"""Colours: of the outlines, and of what only the reference or only the prediction has."""

TINT = 0.45
"""Opacity of the latter."""

COLUMNS = ("case", "dice", "reference", "prediction", "unit")
"""Of the table of sizes."""


class Case(NamedTuple):
    """What is remembered of a case until all of them are scored.

    Args:
        file: of its image.
        dice: mean over the structures that it labels.
        slice: number of the slice with the largest reference; ``None`` of a photograph.
        axes: codes of a volume's axes, such as ``LPS``.
        label, pred: of this slice, bool (structures, x, y).
        sizes: of reference and prediction, in ml, or in thousands of pixels of a photograph.
    """

    file: str
    dice: float
    slice: int | None
    axes: tuple[str, ...]
    label: NDArray[np.bool_]
    pred: NDArray[np.bool_]
    sizes: tuple[float, float]


class CasePictures:
    """Draws the best, the median and the worst case of an evaluation, and writes all sizes.

    Reference and prediction are outlined in green and yellow; what the prediction misses is red,
    and what it has too much blue. A volume is shown by the slice with the largest reference. Cases
    without a reference have no Dice, and are left out.

    ``pred`` and ``label`` of the evaluator's output must be on one grid, after all postprocessing;
    the image is read again from its file.

    Args:
        file: PNG; another one of this name is replaced.
        table: CSV with :data:`COLUMNS`, one row for each case: Dice, and size of reference and
            prediction.

    Example, in ``validate#handlers`` of an ``evaluate.json``::

        {
            "_target_": "monai_fairfl.metrics.CasePictures",
            "file": "$@output_dir + '/cases.png'",
            "table": "$@output_dir + '/sizes.csv'"
        }

    >>> import tempfile, torch
    >>> from pathlib import Path
    >>> from monai.data import MetaTensor
    >>> from monai.engines import SupervisedEvaluator
    >>> from PIL import Image
    >>> folder, cpu = Path(tempfile.mkdtemp()), torch.device("cpu")
    >>> Image.new("L", (8, 8)).save(folder / "elm.png")
    >>> meta = {"filename_or_obj": str(folder / "elm.png")}
    >>> disc = MetaTensor(torch.eye(8)[None, None], meta=meta)
    >>> evaluator = SupervisedEvaluator(cpu, [{"image": disc, "label": disc}], torch.nn.ReLU())
    >>> CasePictures(folder / "cases.png", folder / "sizes.csv").attach(evaluator)
    >>> evaluator.run()
    >>> print((folder / "sizes.csv").read_text().strip())
    case,dice,reference,prediction,unit
    elm.png,1.0000,0.01,0.01,thousand pixels
    """

    def __init__(self, file: str | Path, table: str | Path):
        self.file = Path(file)
        self.table = Path(table)
        self._cases: list[Case] = []

    def attach(self, engine: Any) -> None:
        """Remember each case of a run of ``engine``, and draw at its end."""
        engine.add_event_handler(Events.STARTED, self._cases.clear)
        engine.add_event_handler(Events.ITERATION_COMPLETED, self._remember)
        engine.add_event_handler(Events.COMPLETED, self._write)

    def _remember(self, engine: Any) -> None:
        try:
            cases = [case_of(output) for output in engine.state.output]
        except Exception as error:  # the scores are made whether or not a case can be drawn
            logger.warning("a case is in no picture: %s", in_words(error))
            return
        self._cases += [case for case in cases if case is not None]

    def _write(self, engine: Any) -> None:
        if not self._cases:
            return
        rows = []
        for case in self._cases:
            unit = "thousand pixels" if case.slice is None else "ml"
            numbers = (f"{case.dice:.4f}", *(f"{size:.2f}" for size in case.sizes))
            rows.append(dict(zip(COLUMNS, (Path(case.file).name, *numbers, unit))))
        write_atomically(self.table, csv_text(COLUMNS, rows).encode(errors="replace"))

        ranked = sorted(self._cases, key=lambda case: -case.dice)
        shown = {"best": ranked[0], "median": ranked[len(ranked) // 2], "worst": ranked[-1]}
        page = Image.new("RGB", (3 * PANEL + 20, PANEL + 34), "white")
        words = ImageDraw.Draw(page)
        for number, (name, case) in enumerate(shown.items()):
            left = number * (PANEL + 10)
            title = f"{name}: Dice {case.dice:.3f}\n{Path(case.file).name[-50:]}"
            try:
                words.text((left, 2), title, fill="black")
                page.paste(picture_of(case), (left, 34))
            except Exception as error:  # as above
                logger.warning("%s is not drawn: %s", case.file, in_words(error))
        stream = io.BytesIO()
        page.save(stream, "PNG")
        write_atomically(self.file, stream.getvalue())


def case_of(output: Any) -> Case | None:
    """A case of an evaluator's output; ``None`` without a reference, which has no Dice."""
    label, pred = (torch.as_tensor(output[key]).cpu() > 0.5 for key in ("label", "pred"))
    # A structure that the case does not label cannot be predicted wrongly.
    labelled = label.flatten(1).any(1)
    if not labelled.any():
        return None
    label, pred = label[labelled], pred[labelled]
    of_label, of_pred = label.flatten(1).sum(1), pred.flatten(1).sum(1)
    dice = 2 * (label & pred).flatten(1).sum(1) / (of_label + of_pred)
    number, axes, unit = None, (), 1e-3
    if label.ndim == 4:
        affine = np.asarray(output["label"].affine)
        axes = aff2axcodes(affine)
        unit *= abs(float(np.linalg.det(affine[:3, :3])))
        number = int(label.sum((0, 1, 2)).argmax())
        label, pred = label[..., number], pred[..., number]
    sizes = float(of_label.sum()) * unit, float(of_pred.sum()) * unit
    file = str(output["image"].meta["filename_or_obj"])
    return Case(file, float(dice.mean()), number, axes, label.numpy(), pred.numpy(), sizes)


def picture_of(case: Case) -> Image.Image:
    """The part of a case's slice that has its structures, with outlines and errors."""
    is_photograph = case.slice is None
    reader = "PILReader" if is_photograph else None
    image = EnsureChannelFirst()(LoadImage(reader, image_only=True)(case.file))
    if not is_photograph:
        image = Orientation(axcodes="".join(case.axes), labels=None)(image)[..., case.slice]
    if image.shape[1:] != case.label.shape[1:]:  # labelled in a part of the image
        image = torch.full((1, *case.label.shape[1:]), 0.5)
    # The three channels of a photograph; of a volume's several the first.
    channels = image.numpy()[: 3 if is_photograph and len(image) > 2 else 1]
    low, high = np.percentile(channels, (0.5, 99.5))
    grey = 255 * np.clip((channels - low) / max(high - low, 1e-6), 0, 1)
    # What has the structures, with MONAI's x axis first.
    wanted = np.nonzero(np.any([*case.label, *case.pred], axis=0))
    spare = int(MARGIN * max(grey.shape))
    part = [slice(max(int(at.min()) - spare, 0), int(at.max()) + spare + 1) for at in wanted]

    def enlarged(array: NDArray[Any]) -> NDArray[np.uint8]:
        """The part of (x, y) or (3, x, y), at the picture's size (height, width[, 3])."""
        image = Image.fromarray(array[..., part[0], part[1]].T.astype(np.uint8))
        scale = PANEL / max(image.size)
        return np.array(image.resize((round(scale * image.width), round(scale * image.height))))

    picture = enlarged(np.broadcast_to(grey, (3, *grey.shape[1:])))
    label, pred = (
        np.stack([enlarged(255 * mask) > 127 for mask in masks])
        for masks in (case.label, case.pred)
    )
    for colour, errors in ((MISSED, label & ~pred), (TOO_MUCH, pred & ~label)):
        where = errors.any(0)
        picture[where] = (1 - TINT) * picture[where] + TINT * np.array(colour)
    for colour, masks in ((REFERENCE, label), (PREDICTION, pred)):
        for mask in masks:
            picture[find_boundaries(mask)] = colour
    return Image.fromarray(picture)
