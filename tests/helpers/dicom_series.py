# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""A DICOM series as a scanner would send it: single-frame MR images with their geometry, written
with pydicom.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pydicom = pytest.importorskip("pydicom")

from pydicom.dataset import FileDataset, FileMetaDataset  # noqa: E402
from pydicom.uid import ExplicitVRLittleEndian, MRImageStorage, generate_uid  # noqa: E402

AXIAL = (1.0, 0.0, 0.0, 0.0, 1.0, 0.0)
SAGITTAL = (0.0, 1.0, 0.0, 0.0, 0.0, -1.0)
CORONAL = (1.0, 0.0, 0.0, 0.0, 0.0, -1.0)


def oblique(about_x: float = 15, about_z: float = -10) -> tuple[float, ...]:
    """Axial, tilted and turned by so many degrees."""
    a, b = np.radians([about_x, about_z])
    tilt = np.array([[1, 0, 0], [0, np.cos(a), -np.sin(a)], [0, np.sin(a), np.cos(a)]])
    turn = np.array([[np.cos(b), -np.sin(b), 0], [np.sin(b), np.cos(b), 0], [0, 0, 1]])
    rotation = tilt @ turn
    return (*rotation[:, 0], *rotation[:, 1])


def affine_of(
    orientation: Sequence[float], spacing: tuple[float, float], step: float, origin: Sequence[float]
) -> np.ndarray:
    """From (column, row, slice) to RAS mm, by Equation C.7.6.2.1-1 of DICOM PS3.3.

    Args:
        orientation: ImageOrientationPatient.
        spacing: PixelSpacing: between rows, between columns.
        step: between slices along the normal.
        origin: ImagePositionPatient of the first slice.
    """
    along_row, along_column = np.array(orientation[:3]), np.array(orientation[3:])
    affine = np.eye(4)
    affine[:3, 0] = along_row * spacing[1]
    affine[:3, 1] = along_column * spacing[0]
    affine[:3, 2] = np.cross(along_row, along_column) * step
    affine[:3, 3] = origin
    return np.diag([-1.0, -1.0, 1.0, 1.0]) @ affine


def write_series(
    folder: Path,
    volume: np.ndarray,
    *,
    orientation: Sequence[float] = AXIAL,
    spacing: tuple[float, float] = (0.75, 0.5),
    step: float = 3.0,
    origin: Sequence[float] = (-12.5, -20.25, 31.0),
    places: Sequence[float] | None = None,
    order: Sequence[int] | None = None,
    names: str = "IM{:04d}.dcm",
    **tags: Any,
) -> list[FileDataset]:
    """Write a series and return its datasets in the order of the volume.

    Args:
        folder: made when it is not there.
        volume: (slices, rows, columns), signed or unsigned 16 bit.
        places: of the slices along the normal, in steps; 0, 1, 2, ... if None.
        order: InstanceNumber and file number of each slice; counted from the first if None.
        tags: DICOM attributes of every image, ``None`` to leave one out.
    """
    folder.mkdir(parents=True, exist_ok=True)
    places = range(len(volume)) if places is None else places
    order = range(1, len(volume) + 1) if order is None else order
    normal = np.cross(orientation[:3], orientation[3:])
    common = {
        "PatientID": "P1",
        "PatientName": "Test^Patient",
        "PatientBirthDate": "19500101",
        "PatientSex": "M",
        "StudyInstanceUID": generate_uid(),
        "SeriesInstanceUID": generate_uid(),
        "FrameOfReferenceUID": generate_uid(),
        "StudyID": "1",
        "StudyDate": "20200102",
        "StudyTime": "030405",
        "AccessionNumber": "A1",
        "Modality": "MR",
        "SeriesNumber": 5,
        "SeriesDescription": "t2_tse_tra",
        "ImageType": ["ORIGINAL", "PRIMARY", "M", "ND"],
        "SliceThickness": step,
        "PixelSpacing": list(spacing),
        "ImageOrientationPatient": [round(value, 12) for value in orientation],
        **tags,
    }
    return [
        _write_image(
            folder / names.format(number),
            pixels,
            {
                **common,
                "InstanceNumber": number,
                "ImagePositionPatient": list(np.add(origin, normal * step * place)),
            },
        )
        for pixels, place, number in zip(volume, places, order)
    ]


def write_enhanced(
    path: Path, datasets: Sequence[FileDataset], order: Sequence[int] | None = None, **uids: str
) -> None:
    """Write the images of a series into one file of several frames, by highdicom, and put the
    frames in this order.
    """
    highdicom = pytest.importorskip("highdicom")
    path.parent.mkdir(parents=True, exist_ok=True)
    for dataset in datasets:
        for name in ("Manufacturer", "PositionReferenceIndicator", "AcquisitionNumber"):
            setattr(dataset, name, getattr(dataset, name, None))
    enhanced = highdicom.legacy.LegacyConvertedEnhancedMRImage(
        legacy_datasets=datasets,
        **{"series_instance_uid": generate_uid(), "sop_instance_uid": generate_uid(), **uids},
        series_number=7,
        instance_number=1,
    )
    order = range(len(datasets)) if order is None else order
    groups, pixels = enhanced.PerFrameFunctionalGroupsSequence, enhanced.pixel_array
    enhanced.PerFrameFunctionalGroupsSequence = [groups[index] for index in order]
    enhanced.PixelData = pixels[list(order)].tobytes()
    enhanced.save_as(path)


def _write_image(path: Path, pixels: np.ndarray, tags: dict[str, Any]) -> FileDataset:
    meta = FileMetaDataset()
    meta.MediaStorageSOPClassUID = MRImageStorage
    meta.MediaStorageSOPInstanceUID = generate_uid()
    meta.TransferSyntaxUID = ExplicitVRLittleEndian
    dataset = FileDataset(path, {}, file_meta=meta, preamble=bytes(128))
    dataset.SOPClassUID, dataset.SOPInstanceUID = MRImageStorage, meta.MediaStorageSOPInstanceUID
    dataset.set_pixel_data(np.ascontiguousarray(pixels), "MONOCHROME2", 16)
    for name, value in tags.items():
        if value is None:
            continue
        if name in (
            "ImagePositionPatient",
            "ImageOrientationPatient",
            "PixelSpacing",
            "SliceThickness",
        ):
            value = pydicom.multival.MultiValue(float, np.atleast_1d(value).tolist())
            value = [pydicom.valuerep.DSfloat(number, auto_format=True) for number in value]
            value = value[0] if name == "SliceThickness" else value
        setattr(dataset, name, value)
    dataset.save_as(path, enforce_file_format=True)
    return dataset
