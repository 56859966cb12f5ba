# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Outputs of each case: its mask, its overlay, its measures, and whether it ends at the border."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from operator import methodcaller
from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np
import torch
from monai.config import KeysCollection
from monai.data import MetaTensor
from monai.data.utils import affine_to_spacing
from monai.transforms import CenterScaleCrop, LoadImage, Orientation
from PIL import Image, ImageDraw
from skimage.segmentation import find_boundaries
from skimage.util import montage

from monai_fairfl.metrics.cup_to_disc import vertical_cup_to_disc_ratio
from monai_fairfl.workflow.answer import has_real_spacing, size_words
from monai_fairfl.workflow.cases import Case, CaseFile, CaseOutput, Cases

SIDE = 960  # pixels of the picture's longer side
COLOURS = ((255, 210, 0), (0, 220, 255), (255, 80, 200))  # of the labels 1, 2 and 3
SAME_GRID = 0.1  # mm between the affine of a mask and that of its volume
VALUES_OF_FILE = np.array([0, 128, 255], np.uint8)
"""Pixel values of background, disc and cup in a written mask."""

SIDES_OF_VOLUME = (("right", "left"), ("anterior", "posterior"), ("lowest", "highest"))
"""The two ends of each axis, towards left, posterior and superior."""

SIDES_OF_PHOTOGRAPH = (("left", "right"), ("upper", "lower"))


class SaveNiftid(CaseFile):
    """Writes ``NAME_POSTFIX.nii.gz``: a mask on the grid of its volume.

    It has three axes, also where the volume has one slice. Programs choose between a header's sform
    and qform by rules of their own, so it has both of the volume, with their codes. A mask on
    another grid has its own affine as both.

    Args:
        keys: of the masks, ``(1, x, y, z)``.
        cases: of the run.
        output_dir: folder for the files.
        output_postfix: of their names.

    >>> from monai_fairfl.workflow import Cases
    >>> SaveNiftid("pred", Cases([], "table.json"), "masks").output_postfix
    'pred'
    """

    ending = "nii.gz"
    entry = "mask"
    output_postfix = "pred"

    def save(self, case: Case, pred: MetaTensor, path: Path) -> None:
        labels = pred[0].cpu().numpy().astype(np.uint8)
        affine = np.asarray(pred.affine.cpu(), dtype=float)
        volume: Any = nib.load(case.image)
        mask = nib.Nifti1Image(labels, affine)
        if volume.shape == labels.shape and np.allclose(volume.affine, affine, atol=SAME_GRID):
            header = volume.header.copy()
            header.set_data_dtype(np.uint8)
            # How a viewer shows the volume's own values.
            header["cal_min"] = header["cal_max"] = 0
            # Without an affine of its own, nibabel writes the forms as they are.
            mask = nib.Nifti1Image(labels, None, header)
        nib.save(mask, path)


class SaveMaskd(CaseFile):
    """Writes ``NAME_POSTFIX.png``: a mask on the photograph's own pixels.

    It has one channel: 0 background, 128 disc, 255 cup.

    Args:
        keys: of the masks, (1, width, height): 0 background, 1 disc, 2 cup.
        cases: of the run.
        output_dir: folder for the files.
        output_postfix: of their names.

    >>> from monai_fairfl.workflow import Cases
    >>> SaveMaskd("pred", Cases([], "table.json"), "masks").output_postfix
    'pred'
    """

    ending = "png"
    entry = "mask"
    output_postfix = "pred"

    def save(self, case: Case, pred: MetaTensor, path: Path) -> None:
        # MONAI has the width first, Pillow the height.
        labels = pred[0].cpu().numpy().astype(int).T
        Image.fromarray(VALUES_OF_FILE[labels]).save(path)


class SaveOverlayd(CaseFile):
    """Writes ``NAME_POSTFIX.png``: the outline of the mask on the original image.

    See :func:`.overlay` for what the picture shows.

    Args:
        keys: of the masks, ``(1, x, y[, z])``, labels.
        cases: of the run.
        output_dir: folder for the files.
        output_postfix: of their names.
        reader: MONAI's reader of the images, see ``LoadImage``; of ``PILReader`` in RGB, as the
            network's.

    >>> from monai_fairfl.workflow import Cases
    >>> SaveOverlayd("pred", Cases([], "table.json"), output_dir="masks").output_postfix
    'overlay'
    """

    ending = "png"
    entry = "overlay"
    output_postfix = "overlay"

    def __init__(
        self,
        keys: KeysCollection,
        cases: Cases,
        output_dir: str | Path,
        output_postfix: str | None = None,
        reader: str = "NibabelReader",
    ):
        super().__init__(keys, cases, output_dir, output_postfix)
        in_rgb: Any = {"converter": methodcaller("convert", "RGB")} if reader == "PILReader" else {}
        self.load = LoadImage(reader=reader, ensure_channel_first=True, **in_rgb)

    def save(self, case: Case, pred: MetaTensor, path: Path) -> None:
        image = self.load(case.image)
        Image.fromarray(overlay(image, pred, title=case.name)).save(path)


class MeasureVolumed(CaseOutput):
    """Measures the volume of a mask, and counts its axial slices with gland.

    Into the case's line of the table go ``millilitres`` (voxels times the size of a voxel),
    ``share`` (of all voxels), ``voxel_size_mm`` and ``shape`` in the order of the file, and
    ``slices_with_gland``.

    Args:
        keys: of the masks, ``(1, x, y, z)``.
        cases: of the run.
        plausible: least and largest volume of such an organ, in ml; another one, of a file that has
            a spacing, gets a text among ``flags``. ``None``: every volume is plausible.

    >>> from monai.data import MetaTensor
    >>> import tempfile, torch
    >>> from monai_fairfl.workflow import Case, Cases
    >>> case = Case("a", source="a.nii", image="a.nii")
    >>> mask = MetaTensor(torch.ones(1, 10, 10, 5), affine=torch.diag(torch.tensor([2.0, 2, 5, 1])))
    >>> mask.meta["filename_or_obj"] = "a.nii"
    >>> cases = Cases([case], tempfile.mkdtemp() + "/volumes.json")
    >>> _ = MeasureVolumed("pred", cases)({"pred": mask})
    >>> case.results["millilitres"], case.results["slices_with_gland"]
    (10.0, 5)
    """

    def __init__(
        self, keys: KeysCollection, cases: Cases, plausible: Sequence[float] | None = None
    ):
        super().__init__(keys, cases)
        least, largest = plausible or (0, math.inf)
        self.least, self.largest = float(least), float(largest)

    def write(self, case: Case, pred: MetaTensor) -> Mapping[str, Any]:
        affine = np.asarray(pred.affine.cpu(), dtype=float)
        gland = (pred > 0).cpu()
        voxel_mm3 = float(abs(np.linalg.det(affine[:3, :3])))
        volume = round(float(gland.sum()) * voxel_mm3 / 1000, 4)
        results = {
            "millilitres": volume,
            "share": round(float(gland.float().mean()), 6),
            "slices_with_gland": int(in_patient(gland).any(axis=(0, 1)).sum()),
            "voxel_size_mm": [round(float(side), 4) for side in affine_to_spacing(affine)],
            "shape": list(pred.shape[1:]),
        }
        if not gland.any():
            case.note(
                "no gland was found; look at the overlay, and check that this is an axial "
                "T2-weighted prostate"
            )
        elif has_real_spacing(results) and not self.least <= volume <= self.largest:
            case.flag(
                f"{size_words(results, True)} is outside {self.least:g} to {self.largest:g} ml, "
                "which is plausible for this organ: look at it, and check the spacing of the file"
            )
        return results


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
        disc, cup = labels >= 1, labels >= 2
        ratio = vertical_cup_to_disc_ratio(torch.stack([disc, cup]))
        if math.isnan(ratio):
            case.note(
                "no disc was found; look at the overlay, and check that this is a fundus photograph"
            )
        return {
            "vertical_cup_to_disc_ratio": None if math.isnan(ratio) else round(ratio, 4),
            "disc_pixels": int(disc.sum()),
            "cup_pixels": int(cup.sum()),
            "share": round(float(disc.float().mean()), 6),
        }


class CheckBorderd(CaseOutput):
    """Notes a mask that touches the border of what the network saw: it may be cut off there.

    Into the case's line of the table go ``flags``, texts. Of a volume the field is the central
    share of each slice, and the stack's first and last slices are borders too.

    Args:
        keys: of the masks, ``(1, x, y[, z])`` on the grid of the image.
        cases: of the run.
        field_of_view: central share of the image in plane, above 0 and up to 1.

    >>> import torch
    >>> from monai.data import MetaTensor
    >>> import tempfile
    >>> case = Case("a", source="a.nii", image="a.nii")
    >>> mask = MetaTensor(torch.zeros(1, 10, 10, 4))
    >>> mask.meta["filename_or_obj"] = "a.nii"
    >>> mask[0, 4:8, 4:6, 1] = 1  # the field is 2 to 8
    >>> cases = Cases([case], tempfile.mkdtemp() + "/volumes.json")
    >>> _ = CheckBorderd("pred", cases, field_of_view=0.6)({"pred": mask})
    >>> print(case.results["flags"][0])
    the mask touches the border of the field (right), the central 60 % of the image: look at it
    """

    def __init__(self, keys: KeysCollection, cases: Cases, field_of_view: float = 1.0):
        super().__init__(keys, cases)
        self.field_of_view = field_of_view

    def write(self, case: Case, pred: MetaTensor) -> Mapping[str, Any]:
        is_volume = pred.ndim == 4
        mask = in_patient(pred > 0) if is_volume else np.asarray((pred[0] > 0).cpu())
        # The field was cut out in this order of the axes.
        crop = CenterScaleCrop([self.field_of_view] * 2 + [1.0] * is_volume)
        seen = np.asarray(crop(torch.as_tensor(mask)[None])[0])
        touched = []
        for axis, sides in enumerate(SIDES_OF_VOLUME if is_volume else SIDES_OF_PHOTOGRAPH):
            ends = zip(sides, (0, -1), strict=True)
            field = seen if axis < 2 else mask
            touched.append([side for side, end in ends if field.take(end, axis).any()])
        if in_plane := [side for sides in touched[:2] for side in sides]:
            where = ", ".join(in_plane)
            border = f"the image ({where})"
            if self.field_of_view < 1:
                share = 100 * self.field_of_view
                border = f"the field ({where}), the central {share:.0f} % of the image"
            case.flag(f"the mask touches the border of {border}: look at it")
        if is_volume and touched[2] and seen.shape[2] > 1:
            where = " and the ".join(touched[2])
            case.flag(f"the mask reaches the {where} slice: the images may end within the organ")
        return {}


def in_patient(labels: torch.Tensor) -> np.ndarray:
    """The values of a volume, (1, x, y, z), towards left, posterior and superior: axial slices."""
    return np.asarray(torch.as_tensor(Orientation(axcodes="LPS", labels=None)(labels.cpu())[0]))


def overlay(image: Any, mask: Any, most: int = 9, title: str = "") -> np.ndarray:
    """Draw the outline of each label of a mask, in a colour of its own, on the image.

    The image is a photograph or a volume. Of a volume, up to ``most`` axial slices with mask are
    shown from feet to head, each with its number; the patient's left is on the right, as
    radiologists look at it.

    Args:
        image: MetaTensor, (1, x, y, z) volume, or (1 or 3, x, y) photograph with values from 0 to
            255.
        mask: MetaTensor, (1, x, y[, z]) on the same grid: 0 background, and up to three labels, 1
            to 3.
        most: slices in the picture.
        title: such as the case's name, in the upper left corner.

    Returns:
        (height, width, 3), unsigned 8-bit, the longer side of about 960 pixels.

    >>> from monai.data import MetaTensor
    >>> import torch
    >>> disc = torch.zeros(1, 32, 32)
    >>> disc[0, 8:24, 8:24] = 1
    >>> overlay(MetaTensor(torch.zeros(3, 32, 32)), MetaTensor(disc)).shape
    (960, 960, 3)
    """
    spacing = np.ones(2)
    if image.ndim == 4:
        to_axial = Orientation(axcodes="LPS", labels=None)
        image, mask = to_axial(image), to_axial(mask)
        spacing = affine_to_spacing(image.affine)[:2].numpy()
    else:
        image, mask = image[..., None], mask[..., None]
    values = _as_bytes(image.cpu().numpy())
    labels = mask[0].cpu().numpy().astype(np.uint8)
    slices = values.shape[-1]

    # Up to so many of the slices with mask, evenly spread; of all where none has mask.
    with_mask = np.flatnonzero(labels.any(axis=(0, 1)))
    candidates = with_mask if with_mask.size else np.arange(slices)
    places = np.linspace(0, candidates.size - 1, min(most, candidates.size)).round().astype(int)
    shown = candidates[np.unique(places)]

    # As many columns as rows, or one more, fill the picture's longer side.
    columns = int(np.ceil(np.sqrt(shown.size)))
    rows = int(np.ceil(shown.size / columns))
    extent = np.array(values.shape[1:3]) * spacing
    width, height = np.maximum(1, (extent * SIDE / columns / extent.max()).round().astype(int))
    tiles: list[np.ndarray] = []
    for index in shown:
        picture = Image.fromarray(values[..., index].transpose(2, 1, 0))
        tile = np.array(picture.resize((width, height), Image.Resampling.BILINEAR))
        outline = Image.fromarray(labels[..., index].T)
        enlarged = np.asarray(outline.resize((width, height), Image.Resampling.NEAREST))
        for label, colour in enumerate(COLOURS, start=1):
            # With the labels above: where one lies within another, its outline is drawn on that.
            tile[find_boundaries(enlarged >= label, mode="thick")] = colour
        texts = [title] * (bool(title) and not tiles)
        if slices > 1:
            texts.append(f"{index + 1} of {slices}")
        drawn = Image.fromarray(tile)
        ImageDraw.Draw(drawn).text((5, 5), ", ".join(texts), fill="white")
        tiles.append(np.asarray(drawn))
    return montage(np.stack(tiles), grid_shape=(rows, columns), fill=(0, 0, 0), channel_axis=-1)


def _as_bytes(image: np.ndarray) -> np.ndarray:
    """An image in three channels of 8 bits.

    Photographs stay as they are; other images have their 0.5 and 99.5 percentiles as black and
    white.
    """
    is_photograph = len(image) == 3 and 0 <= image.min() and image.max() <= 255
    if not is_photograph and image.dtype != np.uint8:
        low, high = np.percentile(image, [0.5, 99.5])
        image = 255 * np.clip((image - low) / max(high - low, 1e-12), 0, 1)
    return image.astype(np.uint8).repeat(3 // len(image), axis=0)
