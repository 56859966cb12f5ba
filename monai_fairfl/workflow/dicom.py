# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""DICOM in and out: series as cases, checked and converted to NIfTI; masks as DICOM-SEG."""

from __future__ import annotations

import os
from collections import defaultdict
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
from monai_fairfl.data.image_files import begins_as_dicom, is_named_as_dicom, may_be_dicom
from monai_fairfl.errors import DataError, in_words
from monai_fairfl.workflow.cases import Case, CaseOutput, Cases, why_unreadable

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
PLANES = ("sagittal", "coronal", "")  # of slices that are stacked along each axis; of axial ones
DICOM_TO_NIFTI = np.diag([-1.0, -1.0, 1.0, 1.0])


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
    dicom = [path for path in files if _is_dicom(path)]
    if not dicom:
        return [], {}
    if not (optional_import("pydicom")[1] and optional_import("highdicom")[1]):
        case = Case("DICOM", source=str(folder), files=tuple(map(str, dicom)))
        case.skip("DICOM needs pydicom and highdicom: pip install 'monai-fairfl[dicom]'")
        return [case], {}
    from pydicom import dcmread  # an extra

    found: defaultdict[str, list[Any]] = defaultdict(list)
    cases: list[Case] = []
    left_out: dict[str, str] = {}
    unreadable: defaultdict[Path, list[str]] = defaultdict(list)
    for path in dicom:
        # pydicom raises many kinds of errors for broken files, also when a tag is first used.
        try:
            header = dcmread(path, stop_before_pixels=True, force=True, specific_tags=TAGS)
            uid = header.SeriesInstanceUID
            kind, description = header.get("Modality"), str(header.get("SeriesDescription") or "")
        except Exception as error:
            name = "_".join(path.relative_to(folder).parts)
            cases.append(Case(name, source=str(path), files=(str(path),)))
            cases[-1].skip(why_unreadable(error))
            unreadable[path.parent].append(path.name)
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
        number, parts = headers[0].get("SeriesNumber") or "", parent.relative_to(folder).parts
        names = ["_".join(parts), "_".join([*parts, f"series{number}"]), "_".join([*parts, uid])]
        taken = {case.name for case in cases}
        name = next(name for name in names if name and name not in taken)
        case = Case(name, source=str(parent), files=paths)
        case.results["series_instance_uid"] = uid
        case.results["series_description"] = str(headers[0].get("SeriesDescription") or "")
        cases.append(case)
        _convert(case, headers, modality, scratch)
        # Files beside the series may be its first or last slices.
        beside = [
            name for each in {Path(path).parent for path in paths} for name in unreadable[each]
        ]
        if case.image and beside:
            case.note(f"may lack slices at an end: {', '.join(beside)} beside it cannot be read")
    return cases, left_out


def _is_dicom(path: Path) -> bool:
    """Whether a file is DICOM by its name or by how it begins, or may be and cannot be read."""
    if path.name == "DICOMDIR" or path.name.startswith("."):
        return False
    try:
        # A broken link, too, if its name says so, which is then named as unreadable.
        return is_named_as_dicom(path.name) or (path.is_file() and begins_as_dicom(path))
    except OSError:
        return may_be_dicom(path.name)


def _convert(case: Case, headers: Sequence[Any], modality: str, scratch: Path) -> None:
    """Give the case its files in order and its image, or note why there is none."""
    path = scratch / f"{headers[0].SeriesInstanceUID}.nii"
    try:
        in_order = _in_order(headers, modality)
        case.files = tuple(header.filename for header in in_order)
        volume = _read_slices(in_order) if len(in_order) > 1 else _read_frames(case.files[0])
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
    except Exception as error:  # of pydicom and highdicom
        case.skip(f"no volume ({in_words(error)}); export it again, uncompressed, an image a file")
    else:
        case.image = str(path)
        if remark := plane_remark(volume.affine):
            case.note(remark)


def _read_slices(headers: Sequence[Any]) -> nib.Nifti1Image:
    """A series as a volume (columns, rows, slices), rescaled by its slopes and intercepts.

    Args:
        headers: of its files, in the order of the slices, two or more.
    """
    from pydicom import dcmread
    from pydicom.pixels import apply_rescale
    from pydicom.uid import ExplicitVRLittleEndian, ImplicitVRLittleEndian

    slices = []
    for header in headers:
        try:
            dataset = dcmread(header.filename, force=True)
            # A data set without the header of a file, whose pixels are then not compressed.
            is_implicit, _ = dataset.original_encoding
            plain = ImplicitVRLittleEndian if is_implicit else ExplicitVRLittleEndian
            dataset.file_meta.setdefault("TransferSyntaxUID", plain)
            slices.append(apply_rescale(dataset.pixel_array, dataset).astype(np.float32))
        except Exception as error:
            raise ValueError(f"{Path(header.filename).name} cannot be decoded") from error
    # DICOM PS3.3 C.7.6.2.1.1 in plane; from slice to slice the mean step. DICOM's axes point to
    # left and posterior, NIfTI's to right and anterior.
    first, last = (np.array(headers[end].ImagePositionPatient, dtype=float) for end in (0, -1))
    row, column = np.array(headers[-1].ImageOrientationPatient, dtype=float).reshape(2, 3)
    rows, columns = map(float, headers[-1].PixelSpacing)
    step = (last - first) / (len(headers) - 1)
    affine = nib.affines.from_matvec(np.stack([row * columns, column * rows, step], axis=1), first)
    return nib.Nifti1Image(np.stack(slices, axis=-1).swapaxes(0, 1), DICOM_TO_NIFTI @ affine)


def _read_frames(file: str) -> nib.Nifti1Image:
    """A DICOM file of several frames (enhanced MR) as :func:`_read_slices` reads slices.

    Args:
        file: its frames in any order.

    Raises:
        ValueError: they are no evenly spaced stack of one image each.
    """
    import highdicom

    image = highdicom.imread(file)
    stack = image.get_volume(dtype=np.float32, apply_real_world_transform=False)
    # highdicom's (slice, row, column) is a right-handed system; ours is (column, row, slice).
    stack = stack.flip_spatial(0)
    affine = DICOM_TO_NIFTI @ stack.affine[:, [2, 1, 0, 3]]
    return nib.Nifti1Image(stack.array.transpose(2, 1, 0), affine)


def _frames(header: Any) -> int:
    """Return the number of images in one file: more than one in an enhanced MR image."""
    return int(header.get("NumberOfFrames") or 1)


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
    slices = sum(map(_frames, headers))
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
            raise DataError(
                f"{len(owners)} values of {tag} under one SeriesInstanceUID, so that images of "
                "several series would be one volume; export each series with its own"
            )
    if slices > len(headers):
        return list(headers)  # the geometry of frames is highdicom's to check

    names = [Path(header.filename).name for header in headers]
    grid = {}
    for tag in (*GRID_TAGS, "ImagePositionPatient"):
        for header, name in zip(headers, names, strict=True):
            if header.get(tag) in (None, ""):
                raise DataError(f"{name} lacks {tag}; send the series again, with its geometry")
        values = grid[tag] = np.array([header.get(tag) for header in headers], dtype=float)
        if tag in GRID_TAGS and not np.allclose(values, values[0], rtol=1e-4, atol=1e-3):
            raise DataError(f"slices of different {tag}; send one series for each")
    # (column, row, slice) is a right-handed system. The normal of two perpendicular unit vectors is
    # a unit vector; not a number is none.
    normal = np.cross(*grid["ImageOrientationPatient"][0].reshape(2, 3))
    if not abs(np.linalg.norm(normal) - 1) < 1e-2 or not (grid["PixelSpacing"] > 0).all():
        raise DataError("axes that are not perpendicular, or without length; export it again")
    order = np.argsort(grid["ImagePositionPatient"] @ normal, kind="stable")
    # The two files whose step is most unlike the others.
    steps = np.diff(grid["ImagePositionPatient"][order], axis=0)
    usual = np.median(steps, axis=0)
    deviations = np.linalg.norm(steps - usual, axis=1)
    step, worst = np.linalg.norm(usual), int(deviations.argmax())
    if deviations[worst] > TOLERANCE * step or step < SAME_POSITION:
        raise DataError(
            f"from {names[order[worst]]} to {names[order[worst + 1]]} are "
            f"{np.linalg.norm(steps[worst]):.4g} mm, between most others {step:.4g} mm: slices are "
            "missing, double (copies, echoes, b-values) or not along one line; send the series "
            "again, or leave it out"
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


# ---- masks that name the images they were drawn on

# Type 2: must be there, may be empty; de-identification often takes them away altogether.
MAY_BE_EMPTY = (
    "PatientID PatientName PatientBirthDate PatientSex AccessionNumber StudyID StudyDate StudyTime"
).split()


def write_dicom_seg(
    mask: np.ndarray,
    files: Sequence[str | Path],
    path: str | Path,
    organ: str = "Prostate",
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

    Raises:
        ValueError: when the mask has not the size of the volume in the files.
        AttributeError: when the dictionary does not know the organ.
    """
    import highdicom
    from pydicom import dcmread
    from pydicom.sr.codedict import codes

    sources = [dcmread(file, stop_before_pixels=True, force=True) for file in files]
    for header in sources:
        for name in MAY_BE_EMPTY:
            header.setdefault(name, "")
    # highdicom wants (slice, row, column).
    frames: Any = (np.asarray(mask) > 0).astype(np.uint8).transpose(2, 1, 0)
    if _frames(sources[0]) > 1:
        # The order of the slices in which _read_frames read them.
        grid: Any = highdicom.imread(files[0], lazy_frame_retrieval=True).get_volume_geometry()
        frames = grid.flip_spatial(0).with_array(frames)
    segment = highdicom.seg.SegmentDescription(
        segment_number=1,
        segment_label=organ,
        segmented_property_category=codes.SCT.AnatomicalStructure,
        segmented_property_type=getattr(codes.SCT, organ),
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
        content_description=f"{organ}, automatic, not for clinical use",
        series_description=f"{organ} segmentation",
    )
    segmentation.save_as(path)


class SaveDicomSegd(CaseOutput):
    """Writes ``NAME_seg.dcm`` for each case that came as DICOM.

    Args:
        keys: of the masks, ``(1, columns, rows, slices)``.
        cases: of the run.
        organ: see :func:`write_dicom_seg`.

    >>> from pathlib import Path
    >>> from monai_fairfl.workflow import Cases
    >>> SaveDicomSegd("pred", Cases([], Path("volumes.json"))).organ
    'Prostate'
    """

    def __init__(self, keys: KeysCollection, cases: Cases, organ: str = "Prostate"):
        super().__init__(keys, cases)
        self.organ = organ

    def write(self, case: Case, pred: MetaTensor) -> Mapping[str, Any]:
        if "series_instance_uid" not in case.results:
            return {}
        name = f"{case.name}_seg.dcm"
        write_dicom_seg(pred[0].cpu().numpy(), case.files, self.folder / name, self.organ)
        return {"dicom_seg": name}
