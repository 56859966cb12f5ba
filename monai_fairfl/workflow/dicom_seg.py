# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Masks as DICOM Segmentation objects that name the images they were drawn on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from monai.config import KeysCollection
from monai.data import MetaTensor
from monai.utils import optional_import

from monai_fairfl import __version__
from monai_fairfl.errors import ConfigError, closest
from monai_fairfl.workflow.cases import Case, CaseFile, Cases
from monai_fairfl.workflow.dicom_checks import EXTRA
from monai_fairfl.workflow.dicom_files import frame_count

# Type 2: must be there, may be empty; de-identification often takes them away altogether.
MAY_BE_EMPTY = (
    "PatientID",
    "PatientName",
    "PatientBirthDate",
    "PatientSex",
    "AccessionNumber",
    "StudyID",
    "StudyDate",
    "StudyTime",
)


def write_dicom_seg(
    mask: np.ndarray,
    files: Sequence[str | Path] | str | Path,
    path: str | Path,
    organ: str = "Prostate",
    algorithm: str = "monai_fairfl",
) -> None:
    """Write a mask as binary DICOM Segmentation with one segment (DICOM PS3.3 A.51).

    The segment is an anatomical structure (SNOMED CT 91723000) of the type ``organ``. The object,
    which highdicom writes, joins the patient, the study and the frame of reference of the series,
    and refers to every image of it. Slices without organ get no frame.

    Args:
        mask: (columns, rows, slices), gland where above 0, as the NIfTI volume of the series.
        files: the DICOM files of the series, in the order of the slices; or the one that holds them
            all.
        path: to write to.
        organ: label of the segment and name of its SNOMED CT code in pydicom's dictionary.
        algorithm: name of what drew the mask.

    Raises:
        ConfigError: when there are no files, the mask has not the size of the volume in them, or
            the dictionary does not know the organ.
    """
    import highdicom  # an extra, as pydicom
    import pydicom
    from pydicom.sr.codedict import codes

    if organ not in codes.SCT.dir():
        meant = closest(str(organ), codes.SCT.dir())
        hint = "take a name of pydicom.sr.codedict.codes.SCT.dir(), such as 'Prostate'"
        if meant is not None:
            hint = f"did you mean {meant!r}?"
        raise ConfigError(f"organ {organ!r} has no SNOMED CT code in pydicom's dictionary: {hint}")
    if isinstance(files, (str, Path)):
        files = [files]
    if not files:
        raise ConfigError("files is empty: name the DICOM files of the series that the mask is of")
    sources = []
    for file in files:
        header = pydicom.dcmread(file, stop_before_pixels=True, force=True)
        for name in MAY_BE_EMPTY:
            if name not in header:
                setattr(header, name, "")
        sources.append(header)
    slices = sum(frame_count(source) for source in sources)
    volume = (sources[0].get("Columns"), sources[0].get("Rows"), slices)
    if np.shape(mask) != volume:
        found, expected = (" x ".join(map(str, shape)) for shape in (np.shape(mask), volume))
        raise ConfigError(
            f"the mask is {found}, and the volume in files {expected} (columns x rows x slices): "
            "name all files of the series that the mask is of, and no others"
        )
    # highdicom wants (slice, row, column).
    frames: Any = (np.asarray(mask) > 0).astype(np.uint8).transpose(2, 1, 0)
    if frame_count(sources[0]) > 1:
        # The order of the slices in which read_frames read them.
        grid: Any = highdicom.imread(files[0], lazy_frame_retrieval=True).get_volume_geometry()
        frames = grid.flip_spatial(0).with_array(frames)
    series_number = int(sources[0].get("SeriesNumber") or 0)
    segment = highdicom.seg.SegmentDescription(
        segment_number=1,
        segment_label=organ,
        segmented_property_category=codes.SCT.AnatomicalStructure,
        segmented_property_type=getattr(codes.SCT, organ),
        algorithm_type=highdicom.seg.SegmentAlgorithmTypeValues.AUTOMATIC,
        algorithm_identification=highdicom.AlgorithmIdentificationSequence(
            name=algorithm, family=codes.DCM.ArtificialIntelligence, version=__version__
        ),
    )
    segmentation = highdicom.seg.Segmentation(
        source_images=sources,
        pixel_array=frames,
        segmentation_type=highdicom.seg.SegmentationTypeValues.BINARY,
        segment_descriptions=[segment],
        series_instance_uid=highdicom.UID(),
        # After the source's number, and below the 2**31 that an IS may hold.
        series_number=1 + series_number % 10**8 * 10,
        sop_instance_uid=highdicom.UID(),
        instance_number=1,
        manufacturer="MONAI FairFL contributors",
        manufacturer_model_name="monai_fairfl",
        software_versions=__version__,
        device_serial_number="none",
        content_label=organ.upper(),
        content_description=f"{organ}, automatic, not for clinical use",
        series_description=f"{organ} segmentation",
    )
    segmentation.save_as(path)


class SaveDicomSegd(CaseFile):
    """Writes ``NAME_POSTFIX.dcm`` for each case that came as DICOM.

    Without highdicom the case gets a note instead.

    Args:
        keys: of the masks, ``(1, columns, rows, slices)``.
        cases: of the run.
        output_dir: folder for the files.
        output_postfix: of their names.
        organ: see :func:`write_dicom_seg`.
        algorithm: see :func:`write_dicom_seg`.

    >>> from monai_fairfl.workflow import Cases
    >>> SaveDicomSegd("pred", Cases([], "volumes.json"), output_dir="masks").organ
    'Prostate'
    """

    ending = "dcm"
    entry = "dicom_seg"
    output_postfix = "seg"

    def __init__(
        self,
        keys: KeysCollection,
        cases: Cases,
        output_dir: str | Path,
        output_postfix: str | None = None,
        organ: str = "Prostate",
        algorithm: str = "monai_fairfl",
    ):
        super().__init__(keys, cases, output_dir, output_postfix)
        self.organ = organ
        self.algorithm = algorithm

    def save(self, case: Case, pred: MetaTensor, path: Path) -> None:
        write_dicom_seg(pred[0].cpu().numpy(), case.files, path, self.organ, self.algorithm)

    def write(self, case: Case, pred: MetaTensor) -> Mapping[str, Any]:
        if not case.files:
            return {}
        if not optional_import("highdicom")[1]:
            case.note(f"no DICOM-SEG, which needs highdicom: {EXTRA}")
            return {}
        return super().write(case, pred)
