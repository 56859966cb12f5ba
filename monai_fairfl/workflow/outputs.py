# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Outputs of each case: its mask, its overlay, and the volume of what was found."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import methodcaller
from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np
from monai.config import KeysCollection
from monai.data import MetaTensor
from monai.data.utils import affine_to_spacing
from monai.transforms import LoadImage, Orientation
from PIL import Image

from monai_fairfl.workflow.cases import Case, CaseFile, CaseOutput, Cases
from monai_fairfl.workflow.findings import has_real_spacing, size_words
from monai_fairfl.workflow.nifti_orientation import mask_of_volume
from monai_fairfl.workflow.overlays import overlay


class SaveNiftid(CaseFile):
    """Writes ``NAME_POSTFIX.nii.gz``: a mask on the grid of its volume.

    It has three axes, also where the volume has one slice, and the volume's sform and qform.

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
        affine = np.asarray(pred.affine.cpu(), dtype=float)
        nib.save(mask_of_volume(pred[0].cpu().numpy(), affine, case.image), path)


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
        reader_arguments: dict[str, Any] = {}
        if reader == "PILReader":
            reader_arguments["converter"] = methodcaller("convert", "RGB")
        self.load = LoadImage(reader=reader, ensure_channel_first=True, **reader_arguments)

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
        self,
        keys: KeysCollection,
        cases: Cases,
        plausible: Sequence[float] | None = None,
    ):
        super().__init__(keys, cases)
        self.plausible = plausible

    def write(self, case: Case, pred: MetaTensor) -> Mapping[str, Any]:
        affine = np.asarray(pred.affine.cpu(), dtype=float)
        voxel_mm3 = float(abs(np.linalg.det(affine[:3, :3])))
        gland = (pred > 0).cpu()
        # Towards left, posterior and superior, the last axis counts axial slices.
        axial = Orientation(axcodes="LPS", labels=None)(gland)
        slices = int(axial.any(dim=(0, 1, 2)).sum())
        if not slices:
            case.note(
                "no gland was found; look at the overlay, and check that this is an axial "
                "T2-weighted prostate"
            )
        volume = round(float(gland.sum()) * voxel_mm3 / 1000, 4)
        results = {
            "millilitres": volume,
            "share": round(float(gland.float().mean()), 6),
            "slices_with_gland": slices,
            "voxel_size_mm": [round(float(side), 4) for side in affine_to_spacing(affine)],
            "shape": list(pred.shape[1:]),
        }
        flags = list(case.results.get("flags", []))
        if self.plausible is not None and volume and has_real_spacing(results):
            least, largest = self.plausible
            if not least <= volume <= largest:
                flags.append(
                    f"{size_words(volume, True)} is outside {least:g} to {largest:g} ml, which is "
                    "plausible for this organ: look at it, and check the spacing of the file"
                )
        if flags:
            results["flags"] = flags
        return results
