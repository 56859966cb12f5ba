# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The cases of one inference run, volumes or photographs, the run's table, and the outputs.

The table has one line per image: what was found, what went wrong and what was written. An output of
a case is its mask, its overlay, its measures, or whether it ends at the border.
"""

from __future__ import annotations

import json
import logging
import math
import sys
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import nibabel as nib
import numpy as np
import torch
from monai.config import KeysCollection
from monai.data import MetaTensor, NibabelReader, PILReader
from monai.data.utils import affine_to_spacing
from monai.transforms import CenterScaleCrop, LoadImage, MapTransform, Orientation
from monai.utils import ImageMetaKey
from PIL import Image
from skimage.segmentation import find_boundaries
from skimage.util import montage

from monai_fairfl import __version__
from monai_fairfl.data import in_colours
from monai_fairfl.data.layouts import text_of_files
from monai_fairfl.errors import DataError, in_words
from monai_fairfl.metrics.segmentation import vertical_cup_to_disc_ratio
from monai_fairfl.utils.files import write_atomically
from monai_fairfl.utils.spreadsheets import csv_text
from monai_fairfl.utils.tables import text_of_table

SIDE = 960  # pixels of the picture's longer side
COLOURS = ((255, 210, 0), (0, 220, 255), (255, 80, 200))  # of the labels 1, 2 and 3
MOST_SLICES = 9  # of a volume in its picture
SAME_GRID = 0.1  # mm between the affine of a mask and that of its volume
VALUES_OF_FILE = np.array([0, 128, 255], np.uint8)
"""Pixel values of background, disc and cup in a written mask."""

COPY_AGAIN = "copy it again from its source, or change its permissions"

logger = logging.getLogger(__name__)


@dataclass
class Case:
    """One image of a run and its line of the table.

    Its status is ``waiting`` until an output was written, then ``segmented``; ``incomplete`` when
    an output failed, and ``skipped`` when the image cannot be used.

    Args:
        name: begins the names of its output files; unique in the run.
        source: file or folder that the user knows.
        image: file that the network reads; empty for a skipped case.
        files: of the folder that the image is made of; of a DICOM series in the order of slices.

    >>> case = Case("Case01", source="in/Case01.nii.gz")
    >>> case.skip("has 4 dimensions; store one 3D volume")
    >>> case.line()["status"], case.line()["problems"]
    ('skipped', ['has 4 dimensions; store one 3D volume'])
    """

    name: str
    source: str
    image: str = ""
    files: tuple[str, ...] = ()
    status: str = "waiting"
    problems: list[str] = field(default_factory=list)
    results: dict[str, Any] = field(default_factory=dict)

    def note(self, problem: str) -> None:
        """Record and log what somebody should look at, and what costs no output."""
        self.problems.append(problem)
        logger.warning("%s: %s", self.name, problem)

    def skip(self, problem: str | Exception, fix: str = COPY_AGAIN) -> None:
        """Record why the image cannot be used; ``fix`` is for errors of readers."""
        if isinstance(problem, Exception) and not isinstance(problem, DataError):
            problem = f"cannot be read ({in_words(problem)}); {fix}"
        self.image, self.status = "", "skipped"
        self.note(str(problem))

    def line(self) -> dict[str, Any]:
        """Return the case as it stands in the table."""
        begin = {"case": self.name, "status": self.status, "source": self.source}
        return {**begin, **self.results, "problems": self.problems}


@dataclass
class Cases:
    """All cases of a run, usable or not, and the run's table.

    Args:
        cases: in the order of the table.
        report: JSON file of the table, ``{"summary": {status: number}, "cases": [line, ...]}``. A
            CSV file of the same name lies beside it, and so do the files of the outputs.
        scratch: folder of converted images; removed with the end of the run.
        files: of the folder: ``used`` (number), ``refused`` (image -> why it is not used) and
            ``not_images`` (number); part of the table.

    >>> import tempfile
    >>> from pathlib import Path
    >>> found = [Case("a", "a.png", image="a.png"), Case("b", "b.png")]
    >>> cases = Cases(found, Path(tempfile.mkdtemp(), "table.json"))
    >>> cases.cases[1].skip("cannot be read; copy it again")
    >>> cases.images
    [{'image': 'a.png'}]
    >>> cases.cases[0].status = "segmented"
    >>> cases.finish()
    Traceback (most recent call last):
        ...
    SystemExit: 3
    """

    cases: list[Case]
    report: Path
    scratch: TemporaryDirectory[str] | None = None
    files: Mapping[str, Any] | None = None

    def __iter__(self) -> Iterator[Case]:
        return iter(self.cases)

    @property
    def images(self) -> list[dict[str, str]]:
        """List what a ``Dataset`` reads: ``{"image": file}`` of each usable case."""
        return [{"image": case.image} for case in self.cases if case.image]

    def of(self, pred: MetaTensor) -> Case:
        """Return the case from whose image this prediction was made."""
        image = pred.meta[ImageMetaKey.FILENAME_OR_OBJ]
        return next(case for case in self.cases if case.image == image)

    def table(self) -> dict[str, Any]:
        """Return the table as it is now."""
        summary = dict(Counter(case.status for case in self.cases))
        lines = [case.line() for case in self.cases]
        return {"summary": summary, "files": self.files, "cases": lines}

    def save(self) -> None:
        """Write the table as it is now, as JSON and as CSV."""
        table = self.table()
        columns = list(dict.fromkeys(key for line in table["cases"] for key in line))
        texts = {".json": json.dumps(table, indent=4), ".csv": csv_text(columns, table["cases"])}
        for ending, text in texts.items():
            # A file's name that is no UTF-8 must not cost the table.
            encoded = text.encode("utf-8", "backslashreplace")
            write_atomically(self.report.with_suffix(ending), encoded)

    def require(self) -> None:
        """Go on only with something to do, see :meth:`finish`."""
        if not self.images:
            self.finish()

    def finish(self) -> None:
        """Write the table, print it, and end the run.

        Raises:
            SystemExit: with code 2 when every case was skipped, with code 3 when one was or lacks
                an output. Without one the function returns.
        """
        # Before anything is printed: the reader of standard output may have left.
        self.save()
        text = f"{answer_text(self.table())}\nFolder: {self.report.parent}"
        # A file's name may be none of the terminal's encoding, which must not cost the exit code.
        shown = sys.stdout.encoding or "utf-8"
        print(text.encode(shown, "replace").decode(shown))
        if self.scratch is not None:
            self.scratch.cleanup()
        if any(case.status != "segmented" for case in self):
            # Each was named with its problem when it was found.
            logger.warning("not all cases are segmented; see %s", self.report)
            raise SystemExit(3 if self.images else 2)


class CaseOutput(MapTransform, ABC):
    """A post transform that makes one more output of every case.

    If it fails, only this output of this case is lost. A subclass writes its output in
    :meth:`write`.

    Args:
        keys: of the masks, MetaTensors ``(1, ...)`` of labels on the grid of the original image.
        cases: of the run. Files are written beside their table.

    >>> import tempfile, torch
    >>> from pathlib import Path
    >>> from monai.data import MetaTensor
    >>> class CountVoxels(CaseOutput):
    ...     def write(self, case, pred):
    ...         return {"voxels": int(pred.sum())}
    >>> case = Case("a", source="a.nii", image="a.nii")
    >>> mask = MetaTensor(torch.ones(1, 4, 4, 2), meta={"filename_or_obj": "a.nii"})
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = CountVoxels("pred", Cases([case], Path(folder, "table.json")))({"pred": mask})
    >>> case.line()["voxels"]
    32
    """

    def __init__(self, keys: KeysCollection, cases: Cases):
        super().__init__(keys)
        self.cases = cases
        self.folder = cases.report.parent

    @abstractmethod
    def write(self, case: Case, pred: MetaTensor) -> Mapping[str, Any]:
        """Make the output, and return what goes into the case's line of the table."""

    def __call__(self, data: Mapping[Hashable, Any]) -> dict[Hashable, Any]:
        for key in self.key_iterator(dict(data)):
            case = self.cases.of(data[key])
            if case.status == "waiting":
                case.status = "segmented"
            # Whatever goes wrong here, the other cases and outputs are worth having.
            try:
                case.results.update(self.write(case, data[key]))
            except Exception as error:
                case.status = "incomplete"
                case.note(f"{type(self).__name__} failed: {error}")
        # The table is written after each case, so that an aborted run leaves one, too.
        self.cases.save()
        return dict(data)


class SaveNiftid(CaseOutput):
    """Writes ``NAME_pred.nii.gz``: a mask on the grid of its volume.

    It has three axes, also where the volume has one slice. Programs choose between a header's sform
    and qform by rules of their own, so it has both of the volume, with their codes. A mask on
    another grid has its own affine as both.

    Args:
        keys: of the masks, ``(1, x, y, z)``.
        cases: of the run.

    >>> from pathlib import Path
    >>> SaveNiftid("pred", Cases([], Path("table.json"))).keys
    ('pred',)
    """

    def write(self, case: Case, pred: MetaTensor) -> Mapping[str, Any]:
        name = f"{case.name}_pred.nii.gz"
        labels = pred[0].cpu().numpy().astype(np.uint8)
        affine = np.asarray(pred.affine.cpu(), dtype=float)
        header: Any = nib.load(case.image).header.copy()
        header.set_data_dtype(np.uint8)
        # How a viewer shows the volume's own values.
        header["cal_min"] = header["cal_max"] = 0
        # Without an affine of its own, nibabel writes the forms of the volume as they are.
        on_grid = np.allclose(header.get_best_affine(), affine, atol=SAME_GRID)
        on_grid = on_grid and header.get_data_shape() == labels.shape
        nib.save(nib.Nifti1Image(labels, None if on_grid else affine, header), self.folder / name)
        return {"mask": name}


class SaveMaskd(CaseOutput):
    """Writes ``NAME_pred.png``: a mask on the photograph's own pixels.

    It has one channel: 0 background, 128 disc, 255 cup.

    Args:
        keys: of the masks, (1, width, height): 0 background, 1 disc, 2 cup.
        cases: of the run.

    >>> from pathlib import Path
    >>> SaveMaskd("pred", Cases([], Path("table.json"))).keys
    ('pred',)
    """

    def write(self, case: Case, pred: MetaTensor) -> Mapping[str, Any]:
        name = f"{case.name}_pred.png"
        # MONAI has the width first, Pillow the height.
        labels = pred[0].cpu().numpy().astype(int).T
        Image.fromarray(VALUES_OF_FILE[labels]).save(self.folder / name)
        return {"mask": name}


class SaveOverlayd(CaseOutput):
    """Writes ``NAME_overlay.png``: the outline of the mask on the original image.

    See :func:`.overlay` for what the picture shows.

    Args:
        keys: of the masks, ``(1, x, y[, z])``, labels.
        cases: of the run.

    >>> from pathlib import Path
    >>> SaveOverlayd("pred", Cases([], Path("table.json"))).keys
    ('pred',)
    """

    def write(self, case: Case, pred: MetaTensor) -> Mapping[str, Any]:
        reader: Any = NibabelReader() if pred.ndim == 4 else PILReader(converter=in_colours)
        image = LoadImage(reader, ensure_channel_first=True)(case.image)
        name = f"{case.name}_overlay.png"
        Image.fromarray(overlay(image, pred)).save(self.folder / name)
        return {"overlay": name}


class MeasureVolumed(CaseOutput):
    """Measures the volume of a mask, and counts its axial slices with gland.

    Into the case's line of the table go ``millilitres`` (voxels times the size of a voxel; of a
    file that has one: 1 x 1 x 1 mm is what files without one say), ``voxel_size_mm`` and ``shape``
    in the order of the file, and ``slices_with_gland``.

    Args:
        keys: of the masks, ``(1, x, y, z)``.
        cases: of the run.
        plausible: least and largest volume of such an organ, in ml; another one is noted.

    >>> from monai.data import MetaTensor
    >>> import tempfile, torch
    >>> from pathlib import Path
    >>> case = Case("a", source="a.nii", image="a.nii")
    >>> mask = MetaTensor(torch.ones(1, 10, 10, 5), affine=torch.diag(torch.tensor([2.0, 2, 5, 1])))
    >>> mask.meta["filename_or_obj"] = "a.nii"
    >>> cases = Cases([case], Path(tempfile.mkdtemp(), "volumes.json"))
    >>> _ = MeasureVolumed("pred", cases, plausible=(1, 200))({"pred": mask})
    >>> case.results["millilitres"], case.results["slices_with_gland"]
    (10.0, 5)
    """

    def __init__(self, keys: KeysCollection, cases: Cases, plausible: Sequence[float]):
        super().__init__(keys, cases)
        self.least, self.largest = plausible

    def write(self, case: Case, pred: MetaTensor) -> Mapping[str, Any]:
        affine = np.asarray(pred.affine.cpu(), dtype=float)
        gland = (pred > 0).cpu()
        results: dict[str, Any] = {
            "slices_with_gland": int(in_patient(gland).any(axis=(0, 1)).sum()),
            "voxel_size_mm": [round(float(side), 4) for side in affine_to_spacing(affine)],
            "shape": list(pred.shape[1:]),
        }
        if results["voxel_size_mm"] != [1, 1, 1]:
            volume = float(gland.sum()) * float(abs(np.linalg.det(affine[:3, :3]))) / 1000
            results["millilitres"] = round(volume, 4)
            if gland.any() and not self.least <= volume <= self.largest:
                case.note(f"outside of {self.least:g} to {self.largest:g} ml")
        return results


class MeasureCupToDiscd(CaseOutput):
    """Measures the vertical cup-to-disc ratio, and the pixels of disc and cup.

    Into the case's line of the table go ``vertical_cup_to_disc_ratio``
    (:func:`.vertical_cup_to_disc_ratio`), ``disc_pixels`` and ``cup_pixels``. The cup is part of
    the disc. Without a disc there is no ratio.

    Args:
        keys: of the masks, (1, width, height): 0 background, 1 disc, 2 cup.
        cases: of the run.

    >>> import torch
    >>> from monai.data import MetaTensor
    >>> import tempfile
    >>> from pathlib import Path
    >>> case = Case("a", source="a.png", image="a.png")
    >>> labels = MetaTensor(torch.full((1, 8, 8), 2.0))
    >>> labels.meta["filename_or_obj"] = "a.png"
    >>> cases = Cases([case], Path(tempfile.mkdtemp(), "table.json"))
    >>> _ = MeasureCupToDiscd("pred", cases)({"pred": labels})
    >>> case.results["vertical_cup_to_disc_ratio"], case.results["cup_pixels"]
    (1.0, 64)
    """

    def write(self, case: Case, pred: MetaTensor) -> Mapping[str, Any]:
        labels = pred.as_tensor()[0]
        disc, cup = labels >= 1, labels >= 2
        ratio = vertical_cup_to_disc_ratio(torch.stack([disc, cup]))
        return {
            "vertical_cup_to_disc_ratio": None if math.isnan(ratio) else round(ratio, 4),
            "disc_pixels": int(disc.sum()),
            "cup_pixels": int(cup.sum()),
        }


class CheckBorderd(CaseOutput):
    """Notes a mask that is empty, or touches the border of what the network saw.

    It may be cut off there. Of a volume the field is the central share of each slice, and the
    first and last slices of the stack are borders too.

    Args:
        keys: of the masks, ``(1, x, y[, z])`` on the grid of the image.
        cases: of the run.
        field_of_view: central share of the image in plane, above 0 and up to 1.

    >>> import torch
    >>> from monai.data import MetaTensor
    >>> import tempfile
    >>> from pathlib import Path
    >>> case = Case("a", source="a.nii", image="a.nii")
    >>> mask = MetaTensor(torch.zeros(1, 10, 10, 4))
    >>> mask.meta["filename_or_obj"] = "a.nii"
    >>> mask[0, 4:8, 4:6, 1] = 1  # the field is 2 to 8
    >>> cases = Cases([case], Path(tempfile.mkdtemp(), "volumes.json"))
    >>> _ = CheckBorderd("pred", cases, field_of_view=0.6)({"pred": mask})
    >>> print(case.problems[0])
    the mask touches the border of what the network saw
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
        ends = [seen[[0, -1]], seen[:, [0, -1]]]
        if is_volume and mask.shape[2] > 1:
            ends.append(mask[..., [0, -1]])
        if not mask.any():
            case.note("nothing was found: look at the overlay")
        if any(end.any() for end in ends):
            case.note("the mask touches the border of what the network saw")
        return {}


def in_patient(labels: torch.Tensor) -> np.ndarray:
    """The values of a volume, (1, x, y, z), towards left, posterior and superior: axial slices."""
    return Orientation(axcodes="LPS", labels=None)(labels.cpu())[0].numpy()


def overlay(image: Any, mask: Any) -> np.ndarray:
    """Draw the outline of each label of a mask, in a colour of its own, on the image.

    The image is a photograph or a volume. Of a volume, up to nine axial slices with mask are
    shown from feet to head; the patient's left is on the right, as radiologists look at it.

    Args:
        image: MetaTensor, (1, x, y, z) volume, shown from its 0.5 to its 99.5 percentile; or
            (3, x, y) photograph with values from 0 to 255.
        mask: MetaTensor, (1, x, y[, z]) on the same grid: 0 background, and up to three labels, 1
            to 3.

    Returns:
        (height, width, 3), unsigned 8-bit, the longer side of about 960 pixels.

    >>> from monai.data import MetaTensor
    >>> import torch
    >>> disc = torch.zeros(1, 32, 32)
    >>> disc[0, 8:24, 8:24] = 1
    >>> overlay(MetaTensor(torch.zeros(3, 32, 32)), MetaTensor(disc)).shape
    (960, 960, 3)
    """
    is_volume = image.ndim == 4
    spacing = np.ones(2)
    if is_volume:
        to_axial = Orientation(axcodes="LPS", labels=None)
        image, mask = to_axial(image), to_axial(mask)
        spacing = affine_to_spacing(image.affine)[:2].numpy()
        low, high = np.percentile(image.cpu().numpy(), [0.5, 99.5])
        image = (255 * ((image - low) / max(high - low, 1e-12)).clip(0, 1)).repeat(3, 1, 1, 1)
    else:
        image, mask = image[..., None], mask[..., None]
    values, labels = (each.cpu().numpy().astype(np.uint8) for each in (image, mask[0]))

    # Up to so many of the slices with mask, evenly spread; of all where none has mask.
    tiles = np.flatnonzero(labels.any(axis=(0, 1)) | ~labels.any())
    tiles = tiles[np.unique(np.linspace(0, tiles.size - 1, MOST_SLICES).round().astype(int))]
    # As tiles of one picture; its pixels are as wide as they are high.
    picture = montage(values[..., tiles].transpose(3, 2, 1, 0), fill=(0, 0, 0), channel_axis=-1)
    outline = montage(labels[..., tiles].transpose(2, 1, 0), fill=0)
    extent = np.array(outline.shape[::-1]) * spacing
    size = np.maximum(1, (extent * SIDE / extent.max()).round().astype(int))
    drawn = np.array(Image.fromarray(picture).resize(size, Image.Resampling.BILINEAR))
    enlarged = np.asarray(Image.fromarray(outline).resize(size, Image.Resampling.NEAREST))
    for label, colour in enumerate(COLOURS, start=1):
        # With the labels above: where one lies within another, its outline is drawn on that.
        drawn[find_boundaries(enlarged >= label, mode="thick")] = colour
    return drawn


# ---- masks that name the images they were drawn on

# Type 2: must be there, may be empty; de-identification often takes them away altogether.
MAY_BE_EMPTY = (
    "PatientID PatientName PatientBirthDate PatientSex AccessionNumber StudyID StudyDate StudyTime "
    "SliceThickness"
).split()


class SaveDicomSegd(CaseOutput):
    """Writes ``NAME_seg.dcm`` for each case that came as DICOM: binary DICOM Segmentation.

    It has one segment (DICOM PS3.3 A.51), an anatomical structure (SNOMED CT 91723000) of the type
    ``organ``. The object, which highdicom writes, joins the patient, the study and the frame of
    reference of the series, and refers to every image of it. Slices without organ get no frame.

    Args:
        keys: of the masks, ``(1, columns, rows, slices)``, gland where above 0.
        cases: of the run.
        organ: label of the segment and name of its SNOMED CT code in pydicom's dictionary.

    >>> from pathlib import Path
    >>> SaveDicomSegd("pred", Cases([], Path("volumes.json"))).organ
    'Prostate'
    """

    def __init__(self, keys: KeysCollection, cases: Cases, organ: str = "Prostate"):
        super().__init__(keys, cases)
        self.organ = organ

    def write(self, case: Case, pred: MetaTensor) -> Mapping[str, Any]:
        if "series_instance_uid" not in case.results:
            return {}
        import highdicom
        from pydicom import dcmread
        from pydicom.sr.codedict import codes

        sources = [dcmread(file, stop_before_pixels=True, force=True) for file in case.files]
        for header in sources:
            for name in MAY_BE_EMPTY:
                header.setdefault(name, "")
        # highdicom wants (slice, row, column).
        frames: Any = (pred[0].cpu().numpy() > 0).astype(np.uint8).transpose(2, 1, 0)
        if frames_of(sources[0]) > 1:
            # The order of the slices in which they were read.
            file: Any = highdicom.imread(case.files[0], lazy_frame_retrieval=True)
            frames = file.get_volume_geometry().flip_spatial(0).with_array(frames)
        segment = highdicom.seg.SegmentDescription(
            segment_number=1,
            segment_label=self.organ,
            segmented_property_category=codes.SCT.AnatomicalStructure,
            segmented_property_type=getattr(codes.SCT, self.organ),
            algorithm_type=highdicom.seg.SegmentAlgorithmTypeValues.AUTOMATIC,
            algorithm_identification=highdicom.AlgorithmIdentificationSequence(
                name="monai_fairfl", family=codes.DCM.ArtificialIntelligence, version=__version__
            ),
        )
        segmentation = highdicom.seg.Segmentation(
            source_images=sources,
            pixel_array=frames,
            segmentation_type=highdicom.seg.SegmentationTypeValues.BINARY,
            segment_descriptions=[segment],
            series_instance_uid=highdicom.UID(),
            series_number=1000,
            sop_instance_uid=highdicom.UID(),
            instance_number=1,
            manufacturer="MONAI FairFL contributors",
            manufacturer_model_name="monai_fairfl",
            software_versions=__version__,
            device_serial_number="none",
            series_description=f"{self.organ}, automatic, not for clinical use",
        )
        name = f"{case.name}_seg.dcm"
        segmentation.save_as(self.folder / name)
        return {"dicom_seg": name}


def frames_of(header: Any) -> int:
    """The number of images in one DICOM file: more than one in an enhanced MR image."""
    return int(header.get("NumberOfFrames") or 1)


# ---- the answer of a run


def answer_text(table: Mapping[str, Any]) -> str:
    """The cases in columns, and below them what to look at.

    Args:
        table: what a run's ``volumes.json`` or ``ratios.json`` holds.

    >>> line = {"case": "Case01", "status": "segmented", "millilitres": 41.26,
    ...         "mask": "a_pred.nii.gz", "problems": ["at the border"]}
    >>> for text in answer_text({"cases": [line], "files": None}).splitlines()[2:]:
    ...     print(" ".join(text.split()))
    Case01 41.3 ml a_pred.nii.gz
    1 of 1 cases segmented. Before you use a mask, look at it.
    Look at: Case01: at the border
    """
    lines = table["cases"]
    rows = []
    for line in lines:
        size = "–"
        if "millilitres" in line:
            size = f"{line['millilitres']:.1f} ml"
        elif line.get("vertical_cup_to_disc_ratio"):
            size = f"cup to disc {line['vertical_cup_to_disc_ratio']:.2f}"
        rows.append([line["case"], size, line.get("mask", line["status"])])
    segmented = sum(line["status"] == "segmented" for line in lines)
    found = [text_of_table(["case", "size", "mask"], rows)]
    found.append(f"{segmented} of {len(lines)} cases segmented. Before you use a mask, look at it.")
    for line in lines:
        for problem in line["problems"]:
            found.append(f"Look at: {line['case']}: {problem}")
    if table["files"]:
        found.append(text_of_files(table["files"], told="\n".join(found)))
    return "\n".join(found)
