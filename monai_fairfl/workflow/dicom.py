# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""DICOM series of a folder: grouped by SeriesInstanceUID, checked, and converted to NIfTI without
resampling.
"""

from __future__ import annotations

import hashlib
import os
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np
from monai.data import PydicomReader
from monai.utils import optional_import

from monai_fairfl.workflow.cases import Case
from monai_fairfl.workflow.volume_geometry import normal, spacing_problem

EXTRA = "pip install 'monai-fairfl[dicom]'"
FEWEST_SLICES = 3  # below, it is a localiser
LONGEST = 240  # bytes of a case's name: 255 are allowed of NAME_overlay.png
GEOMETRY = ("Rows", "Columns", "PixelSpacing", "ImageOrientationPatient", "ImagePositionPatient")
TAGS = [
    *(
        "SOPInstanceUID",
        "SeriesInstanceUID",
        "SeriesNumber",
        "SeriesDescription",
        "Modality",
        "ImageType",
    ),
    *("NumberOfFrames", "PhotometricInterpretation"),
    *GEOMETRY,
]
NO_IMAGES = {
    "AU",
    "DOC",
    "KO",
    "PLAN",
    "PR",
    "REG",
    "RTDOSE",
    "RTPLAN",
    "RTRECORD",
    "RTSTRUCT",
    "SEG",
    "SR",
}
PLANES = ("sagittal", "coronal")

File = tuple[Path, Any]  # with its header


def _files_under(folder: Path) -> Iterator[Path]:
    """Every file of a folder at any depth, in folders before those that are links to others; none
    twice.
    """
    starts, seen = [folder], set()
    for start in starts:  # grows by the links found
        for where, folders, names in os.walk(start):
            if (real := os.path.realpath(where)) in seen:  # links may form a loop
                folders.clear()
                continue
            seen.add(real)
            starts += [
                Path(where, name) for name in sorted(folders) if os.path.islink(Path(where, name))
            ]
            yield from (Path(where, name) for name in names)


def _is_dicom(path: Path) -> bool:
    """Whether a file says that it is DICOM, by its name or as PS3.10 asks."""
    if path.name == "DICOMDIR" or path.name.startswith("."):
        return False
    if path.suffix.lower() in (".dcm", ".ima"):
        return True  # a broken link too, which is then named as unreadable
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(132)[128:] == b"DICM"


def _read_headers(files: Sequence[Path]) -> tuple[dict[str, list[File]], dict[Path, str]]:
    """Files and headers of every series, and what is wrong with files that have none."""
    import pydicom  # an extra

    series: dict[str, list[File]] = defaultdict(list)
    unreadable: dict[Path, str] = {}
    for path in files:
        try:
            header = pydicom.dcmread(path, stop_before_pixels=True, force=True, specific_tags=TAGS)
            if not header.get("SeriesInstanceUID"):
                unreadable[path] = "no SeriesInstanceUID"
            elif header.get("Modality") not in NO_IMAGES:
                series[header.SeriesInstanceUID].append((path, header))
        except Exception as error:  # pydicom raises many kinds on broken files
            unreadable[path] = str(error)
    return series, unreadable


def frame_count(header: Any) -> int:
    """Images in one file: more than one in an enhanced MR image."""
    return int(header.get("NumberOfFrames") or 1)


def _kind_problem(headers: Sequence[Any], modality: str) -> str | None:
    """Why these are not slices of the wanted kind."""
    kinds = sorted({str(header.get("Modality", "unknown")) for header in headers})
    if kinds != [modality]:
        return f"modality {', '.join(kinds)}, and this model reads {modality}; leave the series out"
    if any("LOCALIZER" in (header.get("ImageType") or ()) for header in headers):
        return "ImageType LOCALIZER; leave the series out"
    slices = sum(map(frame_count, headers))
    if slices > len(headers) > 1:
        return "several files of several frames (NumberOfFrames); keep one of them"
    if slices > len(headers) and not optional_import("highdicom")[1]:
        return f"several frames in one file, which need highdicom to be read; {EXTRA}"
    if slices < FEWEST_SLICES:
        return f"{slices} slice(s), fewer than {FEWEST_SLICES}, as of a localiser; leave the series out"
    colours = sorted(
        {str(header.get("PhotometricInterpretation")) for header in headers} - {"MONOCHROME2"}
    )
    if colours:
        return (
            f"PhotometricInterpretation {', '.join(colours)}, not MONOCHROME2; leave the series out"
        )
    return None


def _grid_problem(files: Sequence[File]) -> str | None:
    """Why these slices have no common grid in plane."""
    for path, header in files:
        missing = [tag for tag in GEOMETRY if header.get(tag) in (None, "")]
        if missing:
            return (
                f"{path.name} lacks {', '.join(missing)}; send the series again, with its geometry"
            )
    headers = [header for _, header in files]
    if len({(header.Rows, header.Columns) for header in headers}) > 1:
        return "slices of different Rows and Columns; send them as separate series"
    spacing = np.array([header.PixelSpacing for header in headers], dtype=float)
    orientation = np.array([header.ImageOrientationPatient for header in headers], dtype=float)
    if not (spacing > 0).all() or not np.allclose(spacing, spacing[0], rtol=1e-3):
        return f"PixelSpacing from {spacing.min():.4g} to {spacing.max():.4g} mm; send one series per grid"
    if not abs(np.linalg.norm(normal(orientation[0])) - 1) < 1e-2:
        return f"ImageOrientationPatient {orientation[0].tolist()} are no perpendicular unit vectors; export it again"
    if not np.allclose(orientation, orientation[0], atol=1e-3):
        return "slices of different ImageOrientationPatient, as of a localiser; send one series per orientation"
    return None


def series_problem(files: Sequence[File], modality: str) -> tuple[list[File], str | None]:
    """The files of a series in the order of their slices, and why they cannot be used, if so.

    Args:
        files: path and header of each, in any order.
        modality: that they must have.
    """
    several = (
        frame_count(files[0][1]) > 1
    )  # their geometry is the frames', and highdicom's to check
    problem = _kind_problem([header for _, header in files], modality) or (
        None if several else _grid_problem(files)
    )
    if problem or several:
        return list(files), problem
    across = normal(np.array(files[0][1].ImageOrientationPatient, dtype=float))
    positions = np.array([header.ImagePositionPatient for _, header in files], dtype=float)
    order = np.argsort(positions @ across, kind="stable")
    files = [files[index] for index in order]
    return files, spacing_problem(positions[order], [path.name for path, _ in files])


def read_series(files: Sequence[str | Path]) -> nib.Nifti1Image:
    """A DICOM series as NIfTI volume (columns, rows, slices), rescaled as its headers say.

    Args:
        files: in the order of the slices.

    Raises:
        ValueError: naming the file whose pixels cannot be read.
    """
    import pydicom  # an extra

    slices = []
    for number, file in enumerate(files):
        try:
            slices.append(pydicom.dcmread(file, force=True))
            slices[-1].pixel_array  # noqa: B018  (decodes, and keeps what it decoded)
        except Exception as error:
            raise ValueError(f"{Path(file).name} cannot be decoded ({error})") from error
        slices[-1].InstanceNumber = (
            number  # by which MONAI stacks them, whatever the scanner counted
        )
    reader: Any = PydicomReader()
    reader.has_series, reader.filenames = True, [
        list(files)
    ]  # as its read() does for a folder of one series
    values, meta = reader.get_data(slices)
    return nib.Nifti1Image(values.astype(np.float32), meta["affine"])


def read_frames(file: str | Path) -> nib.Nifti1Image:
    """A DICOM file of several frames (enhanced MR) as NIfTI volume, as :func:`read_series` would
    read its frames.

    Args:
        file: its frames in any order.

    Raises:
        ValueError: they are no evenly spaced stack of one image each, or cannot be decoded.
    """
    import highdicom  # an extra

    try:
        stack = highdicom.imread(file).get_volume(
            dtype=np.float32, apply_real_world_transform=False
        )
    except Exception as error:
        raise ValueError(
            f"several frames in one file that cannot be read as a volume ({error})"
        ) from error
    stack = stack.flip_spatial(
        0
    )  # highdicom's (slice, row, column) is right-handed, ours (column, row, slice)
    affine = np.diag([-1.0, -1.0, 1.0, 1.0]) @ stack.affine[:, [2, 1, 0, 3]]
    return nib.Nifti1Image(stack.array.transpose(2, 1, 0), affine)


def _convert(case: Case, files: Sequence[File], modality: str, scratch: Path) -> None:
    """Give the case its files in order and its image, or say why there is none."""
    hint = "send the series again, uncompressed"
    try:
        files, problem = series_problem(files, modality)
        if problem:
            return case.skip(problem)
        case.files = tuple(str(path) for path, _ in files)
        if frame_count(files[0][1]) > 1:
            hint = "export it as single-frame images, one volume a series"
            volume = read_frames(case.files[0])
        else:
            volume = read_series(case.files)
        values = np.asanyarray(volume.dataobj)
        if not np.isfinite(values).all() or values.min() == values.max():
            return case.skip("pixels that are not finite, or all the same; send the series again")
        hint = f"make room in {scratch.parent}, or name another folder with --output_dir"
        nib.save(volume, scratch / f"{case.name}.nii")
    except Exception as error:  # pydicom raises many kinds on broken files
        return case.skip(f"{' '.join(str(error).split())}; {hint}")
    case.image = str(scratch / f"{case.name}.nii")
    axis = int(np.abs(volume.affine[:3, 2]).argmax())
    if axis < 2:
        case.note(
            f"{PLANES[axis]} slices, and the network was trained on axial ones; look at the overlay"
        )
    return None


def _named(
    folder: Path, series: dict[str, list[File]], taken: set[str]
) -> Iterator[tuple[str, str, str]]:
    """UID, folder and name of every series: of its folders, its number where they hold several, at
    last its UID.
    """
    folders = {
        uid: Path(os.path.commonpath([path.parent for path, _ in files]))
        for uid, files in series.items()
    }
    shared = Counter(folders.values())
    short = {}
    for uid, where in folders.items():
        parts = list(where.relative_to(folder).parts)
        if shared[where] > 1 or not parts:
            parts.append(f"series{series[uid][0][1].get('SeriesNumber') or ''}")
        short[uid] = "_".join(parts)
    often = Counter([*short.values(), *taken])
    for uid, name in short.items():
        yield uid, str(folders[uid]), _short(name if often[name] == 1 else f"{name}_{uid}", uid)


def _short(name: str, uid: str) -> str:
    """A name that a file can have: a longer one is cut, and ends in a hash of the UID.

    >>> _short("P1_T2", "1.2.3"), len(_short("P1_T2" * 60, "1.2.3"))
    ('P1_T2', 240)
    """
    coded = os.fsencode(name)
    if len(coded) <= LONGEST:
        return name
    end = f"_{hashlib.sha256(uid.encode()).hexdigest()[:12]}"
    return coded[: LONGEST - len(end)].decode("utf-8", "ignore") + end


def dicom_cases(
    folder: Path, scratch: Path, modality: str, series: str, taken: set[str]
) -> list[Case]:
    """Every DICOM series under a folder, and every DICOM file that belongs to none.

    Args:
        folder: searched with its sub-folders.
        scratch: where usable series are written as NIfTI.
        modality: that a series must have.
        series: pattern of the SeriesDescription.
        taken: names of other cases.
    """
    files = sorted(path for path in _files_under(folder) if _is_dicom(path))
    if not files:
        return []
    if not optional_import("pydicom")[1]:
        case = Case("DICOM", source=str(folder))
        case.skip(f"{len(files)} DICOM files, which need pydicom to be read: {EXTRA}")
        return [case]
    found, unreadable = _read_headers(files)
    wanted = {
        uid: members
        for uid, members in found.items()
        if fnmatch(str(members[0][1].get("SeriesDescription") or "").lower(), series.lower())
    }
    cases, names = [], set(taken)
    for uid, where, name in _named(folder, wanted, taken):
        about = {"series_description": str(wanted[uid][0][1].get("SeriesDescription") or "")}
        cases.append(case := Case(name, source=where, series=uid, results=about))
        if name in names:
            case.skip(
                "its outputs would have the names of another's; rename its folder, or the file of this name"
            )
            continue
        names.add(name)
        _convert(case, wanted[uid], modality, scratch)
        broken = [
            path.name
            for path in unreadable
            if path.parent in {file.parent for file, _ in wanted[uid]}
        ]
        if case.image and broken:
            case.note(f"may lack slices at an end: {', '.join(broken)} beside it cannot be read")
    for path, error in unreadable.items():
        cases.append(case := Case("_".join(path.relative_to(folder).parts), source=str(path)))
        case.skip(f"cannot be read as DICOM ({error}); send it again")
    return cases
