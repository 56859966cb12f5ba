# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""DICOM series with a known geometry, and what inference finds in their folder."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np
import pytest

from monai_fairfl.workflow import Cases, find_images

pydicom = pytest.importorskip("pydicom")

from pydicom.dataset import FileDataset, FileMetaDataset  # noqa: E402
from pydicom.uid import ExplicitVRLittleEndian, MRImageStorage, generate_uid  # noqa: E402

AXIAL = (1.0, 0.0, 0.0, 0.0, 1.0, 0.0)
SAGITTAL = (0.0, 1.0, 0.0, 0.0, 0.0, -1.0)
SHUFFLED = (4, 1, 6, 2, 5, 3)
# Slices, rows, columns.
VOLUME = np.random.default_rng(0).integers(-200, 3000, (6, 10, 14)).astype(np.int16)
# Columns, rows, slices: as an image of VOLUME is loaded.
VOXELS = VOLUME.transpose(2, 1, 0)

COMMON: dict[str, Any] = {
    "SOPClassUID": MRImageStorage,
    "PatientID": "P1",
    "PatientName": "Test^Patient",
    "PatientBirthDate": "19500101",
    "PatientSex": "M",
    "StudyID": "1",
    "StudyDate": "20200102",
    "StudyTime": "030405",
    "AccessionNumber": "A1",
    "Modality": "MR",
    "SeriesNumber": 5,
    "SeriesDescription": "t2_tse_tra",
    "ImageType": ["ORIGINAL", "PRIMARY", "M", "ND"],
}
OWN_UIDS = ("StudyInstanceUID", "SeriesInstanceUID", "FrameOfReferenceUID")


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
    volume: np.ndarray = VOLUME,
    *,
    orientation: Sequence[float] = AXIAL,
    spacing: tuple[float, float] = (0.75, 0.5),
    step: float = 3.0,
    origin: Sequence[float] = (-12.5, -20.25, 31.0),
    places: Sequence[float] = range(99),
    order: Sequence[int] = range(1, 99),
    names: str = "IM{:04d}.dcm",
    **tags: Any,
) -> list[FileDataset]:
    """Write a series and return its datasets in the order of the volume.

    Args:
        folder: made when it is not there.
        volume: (slices, rows, columns), signed or unsigned 16 bit.
        places: of the slices along the normal, in steps.
        order: InstanceNumber and file number of each slice.
        tags: DICOM attributes of every image, ``None`` to leave one out.
    """
    folder.mkdir(parents=True, exist_ok=True)
    normal = np.cross(orientation[:3], orientation[3:])
    of_series = {
        **COMMON,
        **{name: generate_uid() for name in OWN_UIDS},
        "SliceThickness": step,
        "PixelSpacing": list(spacing),
        "ImageOrientationPatient": _rounded(orientation),
        **tags,
    }
    datasets = []
    for pixels, place, number in zip(volume, places, order, strict=False):
        meta = FileMetaDataset()
        meta.MediaStorageSOPClassUID = MRImageStorage
        meta.MediaStorageSOPInstanceUID = generate_uid()
        meta.TransferSyntaxUID = ExplicitVRLittleEndian
        path = folder / names.format(number)
        dataset = FileDataset(path, {}, file_meta=meta, preamble=bytes(128))
        dataset.set_pixel_data(np.ascontiguousarray(pixels), "MONOCHROME2", 16)
        dataset.SOPInstanceUID = meta.MediaStorageSOPInstanceUID
        dataset.InstanceNumber = number
        dataset.ImagePositionPatient = _rounded(origin + normal * step * place)
        for name, value in of_series.items():
            if value is not None:
                setattr(dataset, name, value)
        dataset.save_as(path, enforce_file_format=True)
        datasets.append(dataset)
    return datasets


def _rounded(values: Sequence[float] | np.ndarray) -> list[float]:
    """Numbers that DICOM can write in 16 characters."""
    return [round(float(value), 9) for value in values]


def write_enhanced(
    path: Path, datasets: Sequence[FileDataset], order: Sequence[int] = range(6), **uids: str
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
    order = order[: len(datasets)]
    groups, pixels = enhanced.PerFrameFunctionalGroupsSequence, enhanced.pixel_array
    enhanced.PerFrameFunctionalGroupsSequence = [groups[index] for index in order]
    enhanced.PixelData = pixels[list(order)].tobytes()
    enhanced.save_as(path)


def found(folder: Path, **settings: str) -> Cases:
    """The cases of a folder; their images are deleted with them."""
    return find_images(folder, folder.parent / "out" / "volumes.json", **settings)


def loaded(path: str | Path) -> tuple[np.ndarray, np.ndarray]:
    """Voxels and affine of an image."""
    image = nib.Nifti1Image.from_filename(path)
    return np.asanyarray(image.dataobj), image.affine
