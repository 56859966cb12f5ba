# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""DICOM in and out: series as cases, checked and converted to NIfTI; masks as DICOM-SEG."""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np
from monai.config import KeysCollection
from monai.data import MetaTensor
from monai.data.utils import affine_to_spacing
from monai.utils import optional_import

from monai_fairfl import __version__
from monai_fairfl.data.image_files import (
    begins_as_dicom,
    is_named_as_dicom,
    is_unreadable_kind,
    may_be_dicom,
)
from monai_fairfl.errors import ConfigError, DataError, closest, in_words
from monai_fairfl.workflow.cases import Case, CaseFile, Cases, why_unreadable

EXTRA = "pip install 'monai-fairfl[dicom]'"
GRID_TAGS = "Rows Columns PixelSpacing ImageOrientationPatient".split()
# What one series has one value of (DICOM PS3.3 C.7.1 to C.7.4).
OWNER_TAGS = "PatientID StudyInstanceUID FrameOfReferenceUID".split()
TAGS = (
    "SeriesInstanceUID SeriesNumber SeriesDescription Modality ImageType NumberOfFrames "
    "PhotometricInterpretation ImagePositionPatient"
).split() + [*OWNER_TAGS, *GRID_TAGS]
MODALITIES_WITHOUT_IMAGES = "AU DOC KO PLAN PR REG RTDOSE RTPLAN RTRECORD RTSTRUCT SEG SR".split()
FEWEST_SLICES = 3  # below, it is a localiser
TOLERANCE = 0.05  # of a step between slices: rounded headers stay below, a wrong step does not
SAME_POSITION = 0.01  # mm
# The axis of slices is the one of this many times the spacing of the others.
FACTOR_OF_SLICES = 1.5
PLANES = ("sagittal", "coronal")  # of slices that are stacked along the first or the second axis
DICOM_TO_NIFTI = np.diag([-1.0, -1.0, 1.0, 1.0])
LONGEST_NAME = 170  # bytes: with a UID of 64 and _overlay.png it may be a file's name


def dicom_cases(
    folder: Path,
    files: Iterable[Path],
    scratch: Path,
    modality: str,
    series: str,
    taken: Iterable[str],
) -> tuple[list[Case], dict[str, str]]:
    """Make a case of every DICOM series of a folder, and of all that may be one and is unreadable.

    Args:
        folder: that was searched with its sub-folders.
        files: that lie in it.
        scratch: where usable series are written as NIfTI.
        modality: that a series must have.
        series: pattern of the SeriesDescription.
        taken: names of other cases.

    Returns:
        The cases; and DICOM file -> why it is of no case.
    """
    dicom = [path for path in files if _is_dicom(path)]
    if not dicom:
        return [], {}
    if not (optional_import("pydicom")[1] and optional_import("highdicom")[1]):
        case = Case("DICOM", source=str(folder), files=tuple(map(str, dicom)))
        case.skip(f"{len(dicom)} DICOM files, which need pydicom and highdicom: {EXTRA}")
        return [case], {}
    found, broken = _read_headers(dicom)
    left_out: dict[str, str] = {}
    for uid, members in list(found.items()):
        # Programs that remove names may give a report the series of its images.
        for header in list(members):
            if (kind := header.get("Modality")) in MODALITIES_WITHOUT_IMAGES:
                left_out[header.filename] = f"it holds no image, but {kind}"
                members.remove(header)
        if members and not fnmatch(_description(members).lower(), series.lower()):
            why = f"the description of its series is not {series}"
            left_out.update((header.filename, why) for header in members)
            members.clear()
        if not members:
            del found[uid]

    cases = []
    for uid, name, parent in _names(folder, found, taken):
        members = found[uid]
        paths = tuple(header.filename for header in members)
        case = Case(name, source=str(parent), series=uid, files=paths)
        case.results["series_description"] = _description(members)
        cases.append(case)
        _convert(case, members, modality, scratch)
        # Files beside the series may be its first or last slices.
        parents = {Path(path).parent for path in paths}
        beside = [path.name for path in broken if path.parent in parents]
        if case.image and beside:
            case.note(f"may lack slices at an end: {', '.join(beside)} beside it cannot be read")
    for path, problem in broken.items():
        name = "_".join(path.relative_to(folder).parts)
        case = Case(name, source=str(path), files=(str(path),))
        case.skip(problem)
        cases.append(case)
    return cases, left_out


def _is_dicom(path: Path) -> bool:
    """Whether a file is DICOM by its name or by how it begins, or may be and cannot be read."""
    if path.name == "DICOMDIR" or path.name.startswith("."):
        return False
    if is_named_as_dicom(path.name):
        return True  # a broken link too, which is then named as unreadable
    try:
        return path.is_file() and begins_as_dicom(path)
    except OSError:
        return may_be_dicom(path.name) or is_unreadable_kind(path.name)


def _read_headers(files: Sequence[Path]) -> tuple[dict[str, list[Any]], dict[Path, str]]:
    """UID -> the headers of a series, without pixels; and path -> what is wrong with it."""
    import pydicom  # an extra

    series = defaultdict(list)
    broken = {}
    for path in files:
        # pydicom raises many kinds of errors for broken files, also when a tag is first used.
        try:
            header = pydicom.dcmread(path, stop_before_pixels=True, force=True, specific_tags=TAGS)
            if not (uid := header.get("SeriesInstanceUID")):
                raise DataError("no SeriesInstanceUID")
            series[uid].append(header)
        except PermissionError as error:
            broken[path] = why_unreadable(error)
        except Exception as error:
            broken[path] = f"cannot be read as DICOM ({in_words(error)}); send it again"
    return series, broken


def _description(headers: Sequence[Any]) -> str:
    return str(headers[0].get("SeriesDescription") or "")


def _names(
    root: Path, series: dict[str, list[Any]], taken: Iterable[str]
) -> Iterable[tuple[str, str, Path]]:
    """UID, name and folder of each series.

    It is named after its folders, its number where they hold several, at last its UID.
    """
    folders = {}
    for uid, headers in series.items():
        parents = [Path(header.filename).parent for header in headers]
        folders[uid] = Path(os.path.commonpath(parents))
    in_folder = Counter(folders.values())
    names = {}
    for uid, folder in folders.items():
        parts = list(folder.relative_to(root).parts)
        if in_folder[folder] > 1 or not parts:
            parts.append(f"series{series[uid][0].get('SeriesNumber') or ''}")
        names[uid] = "_".join(parts)
    uses = Counter([*names.values(), *taken])
    for uid, name in names.items():
        encoded = os.fsencode(name)
        if uses[name] > 1 or len(encoded) > LONGEST_NAME:
            # A character that is cut in its middle is left out.
            name = f"{encoded[:LONGEST_NAME].decode('utf-8', 'ignore')}_{uid}"
        yield uid, name, folders[uid]


def _convert(case: Case, headers: Sequence[Any], modality: str, scratch: Path) -> None:
    """Give the case its files in order and its image, or note why there is none."""
    path = scratch / f"{case.name}.nii"
    try:
        in_order = _usable(headers, modality)
        case.files = tuple(header.filename for header in in_order)
        has_frames = _frames(in_order[0]) > 1
        volume = _read_frames(case.files[0]) if has_frames else _read_slices(case.files)
        values = np.asanyarray(volume.dataobj)
        if not np.isfinite(values).all() or values.min() == values.max():
            raise DataError("pixels that are not finite, or all the same; send the series again")
        # Both forms, as the mask gets those of this copy; code 1 is that of a scanner.
        volume.set_sform(volume.affine, code=1)
        volume.set_qform(volume.affine, code=1)
        nib.save(volume, path)
    except DataError as error:
        case.skip(str(error))
    except OSError as error:
        case.skip(f"{error}; make room in {scratch.parent}, or name another folder of outputs")
    except Exception as error:  # of pydicom, which raises many kinds for values that are none
        case.skip(f"{in_words(error)}; send the series again")
    else:
        case.image = str(path)
        if remark := plane_remark(volume.affine):
            case.note(remark)


def _read_slices(files: Sequence[str]) -> nib.Nifti1Image:
    """A series as a volume (columns, rows, slices), rescaled by its slopes and intercepts.

    Args:
        files: in the order of the slices, two or more.

    Raises:
        DataError: naming the file whose pixels cannot be read.
    """
    import pydicom

    slices = []
    positions = []
    for file in files:
        try:
            dataset = pydicom.dcmread(file, force=True)
            if "TransferSyntaxUID" not in dataset.file_meta:
                # A data set without the header of a file, whose pixels are then not compressed.
                is_implicit = dataset.original_encoding[0]
                uid = pydicom.uid
                syntax = uid.ImplicitVRLittleEndian if is_implicit else uid.ExplicitVRLittleEndian
                dataset.file_meta.TransferSyntaxUID = syntax
            pixels = dataset.pixel_array.astype(float)
        except Exception as error:
            raise DataError(
                f"{Path(file).name} cannot be decoded ({in_words(error)}); send the series again, "
                "uncompressed"
            ) from error
        slope, intercept = dataset.get("RescaleSlope", 1), dataset.get("RescaleIntercept", 0)
        slices.append((pixels * float(slope) + float(intercept)).astype(np.float32))
        positions.append(np.array(dataset.ImagePositionPatient, dtype=float))
    # DICOM PS3.3 C.7.6.2.1.1 in plane; from slice to slice the mean step. DICOM's axes point to
    # left and posterior, NIfTI's to right and anterior.
    affine = np.eye(4)
    row, column = np.array(dataset.ImageOrientationPatient, dtype=float).reshape(2, 3)
    affine[:3, 0] = row * float(dataset.PixelSpacing[1])
    affine[:3, 1] = column * float(dataset.PixelSpacing[0])
    affine[:3, 2] = (positions[-1] - positions[0]) / (len(positions) - 1)
    affine[:3, 3] = positions[0]
    return nib.Nifti1Image(np.stack(slices, axis=-1).swapaxes(0, 1), DICOM_TO_NIFTI @ affine)


def _read_frames(file: str) -> nib.Nifti1Image:
    """A DICOM file of several frames (enhanced MR) as :func:`_read_slices` reads slices.

    Args:
        file: its frames in any order.

    Raises:
        DataError: they are no evenly spaced stack of one image each, or cannot be decoded.
    """
    import highdicom

    try:
        stack = highdicom.imread(file).get_volume(
            dtype=np.float32, apply_real_world_transform=False
        )
    except Exception as error:
        raise DataError(
            f"several frames in one file that cannot be read as a volume ({in_words(error)}); "
            "export it as single-frame images, one volume a series"
        ) from error
    # highdicom's (slice, row, column) is a right-handed system; ours is (column, row, slice).
    stack = stack.flip_spatial(0)
    affine = DICOM_TO_NIFTI @ stack.affine[:, [2, 1, 0, 3]]
    return nib.Nifti1Image(stack.array.transpose(2, 1, 0), affine)


def _frames(header: Any) -> int:
    """Return the number of images in one file: more than one in an enhanced MR image."""
    return int(header.get("NumberOfFrames") or 1)


# ---- whether a series can be segmented: its kind, its owner, its grid, and its slices' places


def _usable(headers: Sequence[Any], modality: str) -> list[Any]:
    """Sort the headers of a series by the order of their slices.

    Raises:
        DataError: why the series cannot be used.
    """
    for tag, expected in (("Modality", modality), ("PhotometricInterpretation", "MONOCHROME2")):
        found = sorted({str(header.get(tag, "unknown")) for header in headers})
        if found != [expected]:
            raise DataError(f"{tag} {', '.join(found)}, not {expected}; leave the series out")
    if any("LOCALIZER" in (header.get("ImageType") or ()) for header in headers):
        raise DataError("ImageType LOCALIZER; leave the series out")
    slices = sum(map(_frames, headers))
    if slices > len(headers) > 1:
        raise DataError("several files of several frames (NumberOfFrames); keep one of them")
    if slices < FEWEST_SLICES:
        raise DataError(f"{slices} slice(s), as of a localiser; leave the series out")
    # An anonymiser that gives every series the same UID mixes them. Values that are empty or not
    # there are left out: de-identification removes them.
    for tag in OWNER_TAGS:
        values = sorted({str(header.get(tag) or "") for header in headers} - {""})
        if len(values) > 1:
            # A PatientID would name patients in the table and the log.
            shown = "" if tag == "PatientID" else f" ({', '.join(values[:2])})"
            raise DataError(
                f"{len(values)} values of {tag}{shown} under one SeriesInstanceUID, so that images "
                "of several series would be one volume; export each series with its own"
            )
    if slices > len(headers):
        return list(headers)  # the geometry of frames is highdicom's to check
    return _in_order(headers)


def _in_order(headers: Sequence[Any]) -> list[Any]:
    """Sort the headers of slices along their normal.

    Raises:
        DataError: when they are no stack of parallel slices at even distances on one grid.
    """
    names = [Path(header.filename).name for header in headers]
    values = {}
    for tag in (*GRID_TAGS, "ImagePositionPatient"):
        for header, name in zip(headers, names, strict=True):
            if header.get(tag) in (None, ""):
                raise DataError(f"{name} lacks {tag}; send the series again, with its geometry")
        values[tag] = np.array([header.get(tag) for header in headers], dtype=float)
    for tag in GRID_TAGS:
        if not np.allclose(values[tag], values[tag][0], rtol=1e-4, atol=1e-3):
            raise DataError(f"slices of different {tag}; send one series for each")
    # (column, row, slice) is a right-handed system. The normal of two perpendicular unit vectors is
    # a unit vector; not a number is none.
    row, column = values["ImageOrientationPatient"][0].reshape(2, 3)
    normal = np.cross(row, column)
    if not abs(np.linalg.norm(normal) - 1) < 1e-2 or not (values["PixelSpacing"] > 0).all():
        raise DataError(
            "ImageOrientationPatient or PixelSpacing is not of perpendicular axes; export it again"
        )
    positions = values["ImagePositionPatient"]
    order = np.argsort(positions @ normal, kind="stable")
    require_even_steps(positions[order], [names[index] for index in order])
    return [headers[index] for index in order]


def require_even_steps(positions: np.ndarray, names: Sequence[str]) -> None:
    """Refuse a sorted stack of slices that is no volume: one is missing, double, or beside it.

    Args:
        positions: of the slices in order, (n, 3), in mm.
        names: of the slices' files.

    Raises:
        DataError: with the two files whose distance is most unlike the others.

    >>> even = np.outer([0.0, 3, 6, 9, 12], [0, 0, 1])
    >>> require_even_steps(even, "abcde")
    >>> require_even_steps(even[[0, 1, 2, 4]], "abce")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
        ...
    monai_fairfl.errors.DataError: from c to e are 6 mm, between most others 3 mm: slices are ...
    """
    steps = np.diff(positions, axis=0)
    usual = np.median(steps, axis=0)
    deviations = np.linalg.norm(steps - usual, axis=1)
    step = np.linalg.norm(usual)
    worst = int(deviations.argmax())
    if deviations[worst] > TOLERANCE * step or step < SAME_POSITION:
        raise DataError(
            f"from {names[worst]} to {names[worst + 1]} are {np.linalg.norm(steps[worst]):.4g} mm, "
            f"between most others {step:.4g} mm: slices are missing, double (copies, echoes, "
            "b-values) or not along one line; send the series again, or leave it out"
        )


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
    stacked = int(spacing.argmax())
    if spacing[stacked] <= FACTOR_OF_SLICES * np.delete(spacing, stacked).max():
        stacked = 2
    axis = int(np.abs(affine[:3, stacked]).argmax())
    if axis >= len(PLANES):
        return ""
    return f"{PLANES[axis]} slices, and the network was trained on axial ones; look at the overlay"


# ---- masks that name the images they were drawn on

# Type 2: must be there, may be empty; de-identification often takes them away altogether.
MAY_BE_EMPTY = (
    "PatientID PatientName PatientBirthDate PatientSex AccessionNumber StudyID StudyDate StudyTime"
).split()


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
        meant = closest(str(organ), codes.SCT.dir()) or "Prostate"
        raise ConfigError(f"{organ!r} is no name in pydicom.sr.codedict.codes.SCT, as {meant!r} is")
    paths = [files] if isinstance(files, (str, Path)) else files
    if not paths:
        raise ConfigError("files is empty: name the DICOM files of the series that the mask is of")
    sources = []
    for file in paths:
        header = pydicom.dcmread(file, stop_before_pixels=True, force=True)
        for name in MAY_BE_EMPTY:
            if name not in header:
                setattr(header, name, "")
        sources.append(header)
    slices = sum(map(_frames, sources))
    volume = (sources[0].get("Columns"), sources[0].get("Rows"), slices)
    if np.shape(mask) != volume:
        found, expected = (" x ".join(map(str, shape)) for shape in (np.shape(mask), volume))
        raise ConfigError(
            f"the mask is {found}, and files hold {expected} (columns x rows x slices): name all "
            "files of the series that the mask is of, and no others"
        )
    # highdicom wants (slice, row, column).
    frames: Any = (np.asarray(mask) > 0).astype(np.uint8).transpose(2, 1, 0)
    if _frames(sources[0]) > 1:
        # The order of the slices in which _read_frames read them.
        grid: Any = highdicom.imread(paths[0], lazy_frame_retrieval=True).get_volume_geometry()
        frames = grid.flip_spatial(0).with_array(frames)
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
        series_number=1 + int(sources[0].get("SeriesNumber") or 0) % 10**8 * 10,
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
        return super().write(case, pred) if case.series else {}
