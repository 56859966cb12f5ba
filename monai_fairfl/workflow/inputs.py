# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The images of a folder as cases of a run, each checked before the network sees it.

Every file of the folder is used, or an image that is refused with the reason, or no image.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from fnmatch import fnmatch
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import nibabel as nib
import numpy as np
from monai.data.utils import affine_to_spacing
from monai.utils import optional_import
from PIL import Image

from monai_fairfl.bundle.configuration import errors_in_one_line
from monai_fairfl.data import image_files
from monai_fairfl.data.layouts import text_of_files
from monai_fairfl.data.transforms import is_pair
from monai_fairfl.errors import ConfigError, DataError
from monai_fairfl.workflow.cases import Case, Cases, frames_of

SCRATCH_PREFIX = ".volumes-"
LEAST_COLOUR = 8  # of 255, between a pixel's channels; compression of a grey picture stays below
GRID_TAGS = "Rows Columns PixelSpacing ImageOrientationPatient".split()
# What one series has one value of (DICOM PS3.3 C.7.1 to C.7.4).
OWNER_TAGS = "PatientID StudyInstanceUID FrameOfReferenceUID".split()
TAGS = (
    "SeriesInstanceUID SeriesDescription Modality ImageType NumberOfFrames "
    "PhotometricInterpretation ImagePositionPatient"
).split() + [*OWNER_TAGS, *GRID_TAGS]
MODALITIES_WITHOUT_IMAGES = "AU DOC KO PLAN PR REG RTDOSE RTPLAN RTRECORD RTSTRUCT SEG SR".split()
FEWEST_SLICES = 3  # below, it is a localiser
TOLERANCE = 0.05  # of a step between slices: rounded headers stay below, a wrong step does not
LEANING = 1e-4  # 1 less the cosine between the stack and the normal of its slices: 0.8 degrees
# The axis of slices is the one of this many times the spacing of the others.
FACTOR_OF_SLICES = 1.5
LONGEST_NAME = 80  # letters of a case's; the file system's limit is 255 bytes, with an ending
PLANES = ("sagittal", "coronal", "")  # of slices that are stacked along each axis; of axial ones
DICOM_TO_NIFTI = np.diag([-1.0, -1.0, 1.0, 1.0])


def find_images(
    folder: str | Path,
    report: str | Path,
    pattern: str = "*",
    modality: str = "MR",
    series: str = "*",
) -> Cases:
    """Find the NIfTI volumes and DICOM series of a folder, and check that each can be used.

    A NIfTI volume must be undamaged, 3D, of one channel, finite as 32-bit numbers and not constant;
    a doubtful orientation, or slices that are not axial, are noted. A DICOM series, that is all
    files of one SeriesInstanceUID wherever they lie, must be of one patient and study, of the right
    modality, no localiser, and a complete stack of parallel slices at even distances; it is
    converted to NIfTI beside the report, so that the network reads images one way, and the copy is
    removed at the end of the run. What fails a check becomes a skipped case; so does a folder that
    may not be read, and a file that may not be read and may be an image. All other images, such as
    volumes of other formats and NIfTI files in subfolders, are named in the table.

    Args:
        folder: with NIfTI files, DICOM files in folders of any depth and mixture, or both.
        report: JSON file of the run's table, in the folder of its outputs.
        pattern: of the NIfTI files' names, relative to the folder. Names with ``_segmentation`` are
            left out.
        modality: of the DICOM series.
        series: pattern of the SeriesDescription, as of file names (``*``, ``?``), in any case of
            letters.

    Returns:
        All cases, by name. A series is named after its folders; of the same name the second gets
        ``_2`` behind it.

    Raises:
        DataError: no such folder, or nothing in it.
        ConfigError: the report is to lie in it, or below.

    >>> import tempfile
    >>> from monai_fairfl.data import SITES, write_sites
    >>> root = tempfile.mkdtemp()
    >>> _ = write_sites(root, sites=SITES[:1], size=(24, 24, 6), cases=2)
    >>> [case.name for case in find_images(f"{root}/alder", f"{root}/volumes.json")]
    ['Case00', 'Case01']
    """
    return _find(Path(folder), Path(report), pattern, _check_volume, (modality, series))


def find_photographs(
    folder: str | Path, report: str | Path, pattern: str = "*", stereo: bool | None = None
) -> Cases:
    """Find the photographs of a folder, and check that each can be used.

    A photograph is a PNG, JPEG, TIFF or BMP, in colour. Pictures of other formats, and those in
    subfolders, are named in the table.

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
        ConfigError: the report is to lie in it, or below.

    >>> find_photographs("/no/such/folder", "table.json")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
        ...
    monai_fairfl.errors.DataError: /no/such/folder is not a folder...
    """
    return _find(Path(folder), Path(report), pattern, lambda case: _check_photograph(case, stereo))


@errors_in_one_line()
def _find(
    folder: Path,
    report: Path,
    pattern: str,
    check: Callable[[Case], None],
    dicom: tuple[str, str] | None = None,
) -> Cases:
    """Make a case of each image of a folder, and sort every file into one of the three.

    Args:
        folder: of the images.
        report: file of the run's table, in the folder of the outputs.
        pattern: of file names.
        check: raises an error where an image cannot be used.
        dicom: of volumes, modality and description of series that are used, too.
    """
    outputs = report.parent.resolve()
    if not folder.is_dir():
        raise DataError(f"{folder} is not a folder: name another one (dataset_dir)")
    if folder.resolve() in (outputs, *outputs.parents):
        raise ConfigError(f"{outputs} is in {folder}, of images: name another (--out, output_dir)")
    outputs.mkdir(parents=True, exist_ok=True)
    cases: list[Case] = []
    found = image_files.files_under(
        folder, lambda error: cases.append(_unreadable(folder, Path(error.filename), error))
    )
    files = sorted(found)
    is_kind = image_files.is_nifti if dicom else image_files.is_picture
    chosen = set(folder.glob(pattern))
    reasons: dict[str, str] = {}
    for path in files:
        if path.name.startswith(".") or not is_kind(path):
            continue
        if "_segmentation" in path.name.lower():
            reasons[str(path)] = "it is a mask by its name"
        elif path not in chosen:
            reasons[str(path)] = f"only {pattern} of {folder} is read: move or rename it"
        else:
            case = Case(image_files.stem(path), str(path), image=str(path), files=(str(path),))
            cases.append(case)
            # Readers have many ways to refuse a damaged file; MemoryError is one.
            try:
                check(case)
            except Exception as error:
                case.skip(error)
    scratch = None
    if dicom is not None:
        # Copies of images that a killed run left.
        for left in outputs.glob(f"{SCRATCH_PREFIX}*"):
            shutil.rmtree(left)
        # SIGTERM now ends Python in order, which removes those of this run.
        in_main_thread = threading.current_thread() is threading.main_thread()
        if in_main_thread and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
            signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
        scratch = TemporaryDirectory(dir=outputs, prefix=SCRATCH_PREFIX)
        others = [path for path in files if not is_kind(path)]
        series, of_no_series = dicom_cases(folder, others, Path(scratch.name), *dicom)
        cases += series
        reasons |= of_no_series

    taken: set[str] = set()
    for case in cases:
        name, number = case.name, 1
        while case.name in taken:
            number += 1
            case.name = f"{name}_{number}"
        taken.add(case.name)
        if not case.image:
            reasons |= dict.fromkeys(case.files, case.problems[-1])
    used = {file for case in cases if case.image for file in case.files}
    convert = f"convert it to {'NIfTI' if dicom else 'PNG'}"
    known = image_files.sort_files(map(str, files), used, reasons, convert)
    if not cases:
        raise DataError(
            f"no images in {folder}: name the folder that holds them (dataset_dir)\n"
            f"{text_of_files(known)}"
        )
    return Cases(sorted(cases, key=lambda case: case.name), report, scratch, known)


def _unreadable(folder: Path, path: Path, error: Exception) -> Case:
    """A file or a folder that may be an image, and cannot be read."""
    case = Case(
        "_".join(path.relative_to(folder).parts) or path.name, str(path), files=(str(path),)
    )
    case.skip(error)
    return case


def _check_volume(case: Case) -> None:
    """Note what somebody should know of a NIfTI volume, which is read to its end.

    Raises:
        DataError: why it cannot be segmented.
    """
    nifti, values = image_files.read_volume(case.image)
    # Also of values that are too small for 32 bits.
    if values.min() == values.max():
        raise DataError("values all the same; export it again")
    if not image_files.is_oriented(nifti):
        case.note("no orientation stored: look at the overlay")
    if fault := image_files.forms_fault(nifti):
        case.note(f"it {fault}; the sform is used here: look at the overlay")
    if remark := plane_remark(nifti.affine):
        case.note(remark)


def _check_photograph(case: Case, stereo: bool | None) -> None:
    """Note what somebody should know of a photograph, which is read to its end.

    Raises:
        DataError: why it cannot be outlined.
    """
    with Image.open(case.image) as image:
        image_files.as_stored(image)
        frames = getattr(image, "n_frames", 1)
        if frames > 1 or not in_colour(image):
            raise DataError(f"{frames} picture(s), or no colour; export one photograph of 8 bits")
        is_wide = is_pair(*image.size)
    if stereo is None and is_wide:
        case.note("used is the left half, as of a stereo pair; for single views --stereo False")


def in_colour(picture: Image.Image) -> bool:
    """Return whether a picture is more than grey.

    >>> in_colour(Image.new("L", (4, 4), 90))
    False
    """
    return bool(np.ptp(np.asarray(picture.convert("RGB")), axis=2).max() >= LEAST_COLOUR)


# ---- DICOM series


def dicom_cases(
    folder: Path, files: Iterable[Path], scratch: Path, modality: str, series: str
) -> tuple[list[Case], dict[str, str]]:
    """Make a case of every DICOM series of a folder, and of all that may be one and is unreadable.

    Args:
        folder: that was searched with its sub-folders.
        files: that lie in it.
        scratch: where usable series are written as NIfTI.
        modality: that a series must have.
        series: pattern of the SeriesDescription.

    Returns:
        The cases; and DICOM file -> why it is of no case.
    """
    dicom = [path for path in files if image_files.kind_of_image(path) == "DICOM"]
    if not dicom:
        return [], {}
    if not optional_import("highdicom")[1]:
        case = Case("DICOM", source=str(folder), files=tuple(map(str, dicom)))
        case.skip("DICOM needs pydicom and highdicom: pip install 'monai-fairfl[dicom]'")
        return [case], {}
    from pydicom import dcmread  # an extra

    found: defaultdict[str, list[Any]] = defaultdict(list)
    cases: list[Case] = []
    left_out: dict[str, str] = {}
    unreadable: list[Path] = []
    for path in dicom:
        # pydicom raises many kinds of errors for broken files, also when a tag is first used.
        try:
            header = dcmread(path, stop_before_pixels=True, force=True, specific_tags=TAGS)
            uid = str(header.SeriesInstanceUID)
            kind, description = header.get("Modality"), str(header.get("SeriesDescription") or "")
        except Exception as error:
            cases.append(_unreadable(folder, path, error))
            unreadable.append(path)
            continue
        # Programs that remove names may give a report the series of its images.
        if kind in MODALITIES_WITHOUT_IMAGES:
            left_out[str(path)] = f"it holds no image, but {kind}"
        elif not fnmatch(description.lower(), series.lower()):
            left_out[str(path)] = f"the description of its series is not {series}"
        else:
            found[uid].append(header)

    for uid, headers in found.items():
        paths = tuple(header.filename for header in headers)
        parent = Path(os.path.commonpath([Path(path).parent for path in paths]))
        parts = parent.relative_to(folder).parts
        # No header has a say in it, as it names files.
        name = "_".join(parts)[-LONGEST_NAME:] or "series"
        case = Case(name, source=str(parent), files=paths)
        description = str(headers[0].get("SeriesDescription") or "")
        case.results = {"series_instance_uid": uid, "series_description": description}
        cases.append(case)
        _convert(case, headers, modality, scratch / f"{len(cases)}.nii")
        # Files beside the series may be its first or last slices.
        parents = {Path(path).parent for path in paths}
        beside = [path.name for path in unreadable if path.parent in parents]
        if case.image and beside:
            case.note(f"may lack slices at an end: {', '.join(beside)} beside it cannot be read")
    return cases, left_out


def _convert(case: Case, headers: Sequence[Any], modality: str, path: Path) -> None:
    """Give the case its files in order and its image, or note why there is none."""
    try:
        in_order = _in_order(headers, modality)
        case.files = tuple(header.filename for header in in_order)
        volume = _read(in_order)
        # Both forms, as the mask gets those of this copy; code 1 is that of a scanner.
        volume.set_sform(volume.affine, code=1)
        volume.set_qform(volume.affine, code=1)
        nib.save(volume, path)
        case.image = str(path)
        _check_volume(case)
    except Exception as error:  # of pydicom, highdicom and the disk, too
        case.skip(error, "export it again, uncompressed, an image a file")


def _read(headers: Sequence[Any]) -> nib.Nifti1Image:
    """A series as a volume (columns, rows, slices), rescaled by its slopes and intercepts.

    Args:
        headers: of its files in the order of the slices, or of the one that holds them all.
    """
    import highdicom
    from pydicom import dcmread
    from pydicom.uid import ImplicitVRLittleEndian

    datasets = [dcmread(header.filename, force=True) for header in headers]
    for dataset in datasets:
        # A data set without the header of a file, whose pixels are then not compressed.
        dataset.file_meta.setdefault("TransferSyntaxUID", ImplicitVRLittleEndian)
    settings: Any = {"dtype": np.float64, "apply_real_world_transform": False}
    if len(datasets) > 1:
        # What highdicom wants to be equal, _in_order found to be so but for rounding and gaps.
        for tag in ("FrameOfReferenceUID", "PixelSpacing", "ImageOrientationPatient"):
            for dataset in datasets:
                setattr(dataset, tag, datasets[-1].get(tag) or "1.2")
        settings |= {"rtol": TOLERANCE, "perpendicular_tol": LEANING}
        stack = highdicom.get_volume_from_series(datasets, **settings)
    else:
        stack = highdicom.Image.from_dataset(datasets[0]).get_volume(**settings)
    # highdicom's (slice, row, column) is a right-handed system; ours is (column, row, slice).
    # DICOM's axes point to left and posterior, NIfTI's to right and anterior.
    stack = stack.flip_spatial(0)
    affine = DICOM_TO_NIFTI @ stack.affine[:, [2, 1, 0, 3]]
    return nib.Nifti1Image(stack.array.transpose(2, 1, 0).astype(np.float32), affine)


def _in_order(headers: Sequence[Any], modality: str) -> list[Any]:
    """Sort the headers of a series by the order of their slices.

    Raises:
        DataError: why the series cannot be segmented: its kind, its owner, its grid, or the places
            of its slices, which must be parallel, at even distances, on one grid.
    """
    for tag, expected in (("Modality", modality), ("PhotometricInterpretation", "MONOCHROME2")):
        for header in headers:
            if header.get(tag) != expected:
                raise DataError(f"{tag} {header.get(tag)}, not {expected}; leave the series out")
    slices = sum(map(frames_of, headers))
    if slices > len(headers) > 1:
        raise DataError("several files of several frames (NumberOfFrames); keep one of them")
    is_localiser = any("LOCALIZER" in (header.get("ImageType") or ()) for header in headers)
    if slices < FEWEST_SLICES or is_localiser:
        raise DataError(f"a localiser, or {slices} slice(s) as of one; leave the series out")
    # An anonymiser that gives every series the same UID mixes them. Values that are empty or not
    # there are left out: de-identification removes them.
    for tag in OWNER_TAGS:
        owners = {header.get(tag) for header in headers} - {None, ""}
        if len(owners) > 1:
            raise DataError(f"{len(owners)} values of {tag} in one series; export each as its own")
    if slices > len(headers):
        return list(headers)  # the geometry of frames is highdicom's to check

    names = [Path(header.filename).name for header in headers]
    grid = {}
    for tag in (*GRID_TAGS, "ImagePositionPatient"):
        found = [header.get(tag) for header in headers]
        if None in found or "" in found:
            raise DataError(f"an image lacks {tag}; send the series again, with its geometry")
        values = grid[tag] = np.array(found, dtype=float)
        if tag in GRID_TAGS and not np.allclose(values, values[0], rtol=1e-4, atol=1e-3):
            raise DataError(f"slices of different {tag}; send one series for each")
    # (column, row, slice) is a right-handed system, which highdicom checks.
    normal = np.cross(*grid["ImageOrientationPatient"][0].reshape(2, 3))
    order = np.argsort(grid["ImagePositionPatient"] @ normal, kind="stable")
    # The two files whose step is most unlike the others.
    steps = np.diff(grid["ImagePositionPatient"][order], axis=0)
    usual = np.median(steps, axis=0)
    deviations = np.linalg.norm(steps - usual, axis=1)
    step, worst = np.linalg.norm(usual), int(deviations.argmax())
    if deviations[worst] >= TOLERANCE * step:
        raise DataError(
            f"from {names[order[worst]]} to {names[order[worst + 1]]} are "
            f"{np.linalg.norm(steps[worst]):.4g} mm, between most others {step:.4g} mm: slices are "
            "missing, double or beside the line; send the series again, or leave it out"
        )
    return [headers[index] for index in order]


def plane_remark(affine: np.ndarray) -> str:
    """Return a remark on slices that are not axial; empty for axial ones.

    A header of NIfTI seldom stores along which axis slices are stacked. It is the axis of by far
    the largest spacing; else the third one, as converters from DICOM write it. Slices that are
    tilted by more than 45 degrees count as those of the plane that is nearer.

    >>> plane_remark(np.diag([0.5, 0.5, 3.0, 1.0]))
    ''
    >>> plane_remark(np.diag([3.0, 0.5, 0.5, 1.0]))[:15]
    'sagittal slices'
    """
    spacing = affine_to_spacing(affine)
    _, second, largest = sorted(spacing)
    stacked = int(spacing.argmax()) if largest > FACTOR_OF_SLICES * second else 2
    plane = PLANES[int(np.abs(affine[:3, stacked]).argmax())]
    return plane and (
        f"{plane} slices, and the network was trained on axial ones; look at the overlay"
    )
