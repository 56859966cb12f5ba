# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Checks of one site or of all, which find what would stop or spoil a training before it begins.

Each file is read once and to its end.
"""

from __future__ import annotations

import hashlib
import math
import os
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np

from monai_fairfl.data import image_files as files
from monai_fairfl.data.datalist import check_values, site_datalist, stated_values
from monai_fairfl.data.fundus import is_pair
from monai_fairfl.data.image_files import files_under, is_lossy
from monai_fairfl.data.layouts import (
    CONVERT_DICOM,
    PARTS,
    CaseFiles,
    Found,
    Values,
    all_named,
    described_labels,
    few,
    folder_of_site,
    name_of_site,
    recognise,
)
from monai_fairfl.errors import DataError, DataWarning, FairFLError
from monai_fairfl.utils.files import safe_name
from monai_fairfl.utils.tables import text_of_table
from monai_fairfl.utils.terminal import warnings_as_notes

# Different values of a label volume, and of a mask that is a picture; an image has more.
MOST_LABELS = 256
MOST_LEVELS = 16
# Grey levels of masks in JPEG, and the least share of what is labelled that the middle one has:
# where it is an edge of the others, few pixels have it.
USUAL_LEVELS = np.array([0, 128, 255])
LEAST_SHARE = 0.1
# Numbers of classes are below; among them, 255 is what several tools write where nobody judged.
HIGHEST_CLASS = 31
VOID = 255
# Names in a dataset.json, in small letters: of what is no organ, and of what nobody judged; the
# first of these is nnU-Net's.
BACKGROUND = "background"
IGNORED = {"ignore", "ignored", "void", "unlabelled", "unlabeled", "unknown", "unsure"}
# Share of the sides of a mask of one structure that is labelled. That of an organ is far below, and
# that of a mask whose background is labelled in place of the organ is near 1.
MOST_OF_SIDES = 0.5
# In mm, at the first voxel. A converter's rounding of a header is smaller, half a voxel is much
# larger.
AFFINE_TOLERANCE = 1e-2
# Share of a label that a network sees; below it, its image was cropped beside the organ.
LEAST_SEEN = 0.9
# The share of each side of a slice that the prostate bundle sees, where nothing else is set.
FIELD_OF_VIEW = 0.7
# What nibabel assumes of a volume that stores no orientation (NIfTI-1, method 1).
ASSUMED_AXES = "LAS: axes to the left, to the front and to the head"
TAKEN_FOR_A_PAIR = "taken for a stereo pair: only its left half is used, unless stereo is False"


@dataclass(frozen=True)
class FileFacts:
    """What an inspection stores of a file; its pixels are not stored.

    Args:
        path: the file, absolute.
        shape: pixels or voxels, without channels.
        channels: number of channels.
        digest: SHA-256 of the decoded pixels, the same for copies in another file format.
        affine: of a volume, 4 x 4, in mm.
        spacing: of a volume, voxel sizes in mm; empty for a picture.
        is_oriented: whether a volume stores its orientation; without it, nibabel assumes one.
        labels: different values of a label.
        labelled_slices: slices of a label with a value above 0.
        of_sides: share of a label's pixels at its sides, or at those of its slices, above 0.
        seen: share of a label volume's voxels above 0 in the central part of its slices.
        lost: values in that part that no pixel has where a network resamples it.
        over_8_bits: whether it is a picture with more than 8 bits a channel.
    """

    path: str
    shape: tuple[int, ...] = ()
    channels: int = 1
    digest: str = ""
    affine: np.ndarray | None = None
    spacing: tuple[float, ...] = ()
    is_oriented: bool = True
    labels: tuple[int, ...] = ()
    labelled_slices: int = 0
    of_sides: float = 0.0
    seen: float = 1.0
    lost: tuple[int, ...] = ()
    over_8_bits: bool = False

    def values_in(self, *bounds: Sequence[int]) -> list[int]:
        """The values of a label between the lowest and the highest one of any structure."""
        return [each for each in self.labels if any(low <= each <= high for low, high in bounds)]


@dataclass(frozen=True)
class CaseFacts:
    """An image and its label.

    Args:
        image: of the case.
        label: of the case.
        values: the pixel values of its structures.
        fault: what is wrong with it, in a sentence; empty of a sound case.
        slices: slices of a volume, or 1 of a picture, with a value of any structure.
    """

    image: FileFacts
    label: FileFacts
    values: Values
    fault: str = ""
    slices: int = 0


@dataclass
class Inspection:
    """One site, inspected.

    Args:
        site: its name.
        folder: that its paths begin at.
        layout: its layout's name.
        cases: all of them.
        problems: what would stop or spoil a training, each with file and fix.
        notes: what else a user should know.
        values: structure -> lowest and highest pixel value, where structures were asked for.
        labels: what the values of labels mean, where a ``dataset.json`` states it.
    """

    site: str
    folder: Path
    layout: str = "–"
    cases: list[CaseFacts] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    values: Values = field(default_factory=dict)
    labels: Values = field(default_factory=dict)

    @property
    def sound(self) -> list[CaseFacts]:
        """The cases that a training can use."""
        return [case for case in self.cases if not case.fault]


# One file


# The check and all clients of a process share it.
@lru_cache(maxsize=8192)
def facts_of(
    path: str, is_label: bool, field_of_view: float, size: tuple[int, ...], version: object
) -> FileFacts:
    """Read a file and judge it by itself; a process reads each version of a file once.

    Args:
        path: NIfTI, PNG, JPEG, TIFF or BMP.
        is_label: whether it is a mask.
        field_of_view: share of each side of a slice that a network sees of volumes.
        size: pixels to which it resamples this share; empty: those of the file.
        version: of the file.

    Raises:
        DataError: what is wrong with it.
    """
    read = _volume if files.is_nifti(path) else _picture
    facts, pixels = read(path, is_label)
    if not is_label:
        first = pixels[(0,) * len(facts.shape)]
        if (pixels == first).all():
            raise DataError(f"{path} has the value {first} everywhere; convert or copy it again")
        return facts
    wrong = pixels[(pixels < 0) | (pixels != np.round(pixels))]
    if wrong.size:
        raise DataError(f"{path} has label values such as {wrong[0]!s}; store whole numbers from 0")
    if is_lossy(path):
        # JPEG moves the values of a mask: each pixel has the nearest level, unless few have it.
        nearest = np.abs(pixels[..., None].astype(int) - USUAL_LEVELS).argmin(-1)
        counts = np.bincount(nearest.ravel(), minlength=3)
        middle = 128 if counts[1] > LEAST_SHARE * counts[1:].sum() else 255
        pixels = np.array([0, middle, 255])[nearest]
    is_labelled = pixels > 0
    # The first and the last slice of a volume are no sides: volumes may end within an organ.
    sides = (is_labelled[0], is_labelled[-1], is_labelled[:, 0], is_labelled[:, -1])
    facts = replace(
        facts,
        labels=tuple(np.unique(pixels).astype(int).tolist()),
        labelled_slices=int(is_labelled.any(axis=(0, 1)).sum()),
        of_sides=float(np.concatenate([side.ravel() for side in sides]).mean()),
    )
    if facts.affine is None or not is_labelled.any():
        return facts
    central = pixels[np.ix_(*_field(facts.affine, pixels.shape, field_of_view))]
    sampled = pixels[np.ix_(*_field(facts.affine, pixels.shape, field_of_view, size))]
    lost = set(np.unique(central)) - set(np.unique(sampled))
    seen = float((central > 0).sum() / is_labelled.sum())
    return replace(facts, seen=seen, lost=tuple(sorted(map(int, lost))))


def _volume(path: str, is_label: bool) -> tuple[FileFacts, np.ndarray]:
    """Facts of a volume, and its voxels as a training reads them."""
    nifti, voxels = files.read_nifti(path)
    if voxels.ndim not in ((3,) if is_label else (3, 4)) or voxels.dtype.kind not in "biuf":
        kind = f"{voxels.ndim}D with shape {voxels.shape} and type {voxels.dtype}"
        raise DataError(f"{path} is {kind}; store one 3D volume of real numbers")
    if fault := files.header_fault(nifti) or files.forms_fault(nifti):
        raise DataError(f"{path} {fault}")
    with np.errstate(over="ignore"):
        read = voxels.astype(np.float32)
    is_lost = ~np.isfinite(read)
    if is_lost.any():
        fault = f"not finite or beyond 3.4e+38, such as {voxels[is_lost][0]:.3g}"
        raise DataError(f"{path} has {is_lost.sum()} values {fault}; scale the image, or mend it")
    facts = FileFacts(
        path,
        shape=voxels.shape[:3],
        channels=voxels.shape[3] if voxels.ndim == 4 else 1,
        # Adding 0 makes one zero of -0 and 0.
        digest=_digest(read + 0),
        affine=nifti.affine,
        spacing=tuple(round(float(size), 4) for size in nifti.header.get_zooms()[:3]),
        is_oriented=files.has_sform(nifti) or files.has_qform(nifti),
    )
    return facts, read


def _picture(path: str, is_label: bool) -> tuple[FileFacts, np.ndarray]:
    """Facts of a picture, and its pixels; of one without colours, its grey levels."""
    pixels = files.read_picture(path)
    levels = files.grey(pixels)
    channels = pixels.shape[2] if pixels.ndim == 3 else 1
    if is_label and levels is None:
        colours = len(np.unique(pixels.reshape(-1, channels), axis=0))
        raise DataError(f"{path} has {colours} colours, as a photo has; draw it in grey levels")
    # A grey picture has one digest, whether it is stored in one channel or in three.
    levels = pixels if levels is None else levels
    is_deep = not is_label and pixels.itemsize > 1
    facts = FileFacts(path, pixels.shape[:2], channels, _digest(levels), over_8_bits=is_deep)
    return facts, levels


def _digest(pixels: np.ndarray) -> str:
    """SHA-256 of pixels with their shape and type."""
    if pixels.dtype != np.uint8:
        pixels = pixels.astype(np.float32)
    header = f"{pixels.shape}{pixels.dtype}".encode()
    return hashlib.sha256(header + np.ascontiguousarray(pixels).tobytes()).hexdigest()


def _field(
    affine: np.ndarray, shape: Sequence[int], share: float, size: Sequence[int] = ()
) -> tuple[np.ndarray, ...]:
    """The voxels of each axis that MONAI's ``CenterScaleCropd`` keeps of axial slices.

    Args:
        affine: of the volume.
        shape: of the volume.
        share: of each side of a slice.
        size: only the voxels in the middle of so many pixels.

    >>> [places.tolist() for places in _field(np.eye(4), (10, 4, 2), 0.5, (2, 2))]
    [[4, 6], [1, 2], [0, 1]]
    """
    found = []
    for axis, length in zip(nib.io_orientation(affine)[:, 0].astype(int), shape):
        kept = math.ceil(length * share) if axis in (0, 1) else length
        count = size[axis] if axis < min(2, len(size)) else kept
        middles = (np.arange(count) + 0.5) * kept / count
        found.append(length // 2 - kept // 2 + middles.astype(int))
    return tuple(found)


def _faults_of_case(image: FileFacts, label: FileFacts, in_colour: bool) -> Iterator[str]:
    """What is wrong with two files together."""
    if image.affine is not None and label.affine is not None:
        if fault := _fault_of_place(image, label):
            yield f"{label.path} {fault}; resample it on the grid of the image that it belongs to"
    elif image.shape != label.shape:
        yield f"{label.path} has shape {label.shape} but its image {image.shape}"
    if image.digest == label.digest:
        yield f"{label.path} has the very pixels of its image; put the label in its place"
    if in_colour and image.over_8_bits:
        yield f"{image.path} has more than 8 bits a channel, which are cut off; save it with 8"


def _fault_of_place(image: Any, label: Any) -> str:
    """Why a label volume lies beside the grid of its image, in whatever order both are stored."""
    # Each axis of the label runs along one of the image, there or back.
    matrix = np.linalg.solve(image.affine[:3, :3], label.affine[:3, :3])
    turn = np.sign(matrix) * (np.abs(matrix) == np.abs(matrix).max(axis=0))
    if (np.abs(turn) @ label.shape).tolist() != list(image.shape):
        return f"has shape {label.shape} but its image {image.shape}"
    start = np.where(turn.sum(axis=1) < 0, np.array(image.shape) - 1, 0)
    place = image.affine @ nib.affines.from_matvec(turn, start)
    shift = files.largest_shift(place, label.affine, label.shape, AFFINE_TOLERANCE)
    if shift == 0:
        return ""
    return f"lies up to {shift:.3g} mm from its image by their affines, above {AFFINE_TOLERANCE} mm"


def _faults_of_values(
    label: FileFacts, named: Values, is_by_hand: bool, structures: Sequence[str]
) -> Iterator[str]:
    """What is wrong with the values of a mask.

    Args:
        label: the mask.
        named: what values mean by a ``dataset.json``.
        is_by_hand: whether a user gave the values of the structures.
        structures: those that were asked for.
    """
    path, levels, listed = label.path, len(label.labels), few(label.labels)
    is_volume = label.affine is not None
    is_stated = bool(named) or is_by_hand
    for name, bounds in named.items():
        if name.lower() in IGNORED and (ignored := label.values_in(bounds)):
            yield f"{path} has the value {ignored[0]}, {name!r} in dataset.json; draw what is there"
    if is_lossy(path) and any(low == high > 0 for low, high in named.values()):
        yield f"{path} is JPEG, whose values move; give each label a range, such as [128, 255]"
    if levels > (MOST_LABELS if is_volume else MOST_LEVELS) and not is_by_hand:
        yield f"{path} has {levels} different values, as an image has; put the mask in its place"
    unnamed = sorted({*label.labels} - {*label.values_in(*named.values())})
    if named and unnamed and not is_by_hand:
        fault = f"has the values {listed}, and dataset.json names no {unnamed[0]}"
        yield f"{path} {fault}; mend one of them"
    # Several structures may fill a mask, such as the tissues of a brain.
    if levels <= 2 and label.of_sides > MOST_OF_SIDES and (is_volume or not is_stated):
        fault = f"labels {label.of_sides:.0%} of its sides"
        yield f"{path} {fault}; give the background the value 0, and the organ 1"
    if is_stated:
        return
    if VOID in label.labels and any(0 < value <= HIGHEST_CLASS for value in label.labels):
        yield f"{path} has {listed}, and {VOID} is often void; name all in dataset.json"
    if structures and levels > 2:
        fix = f"state {' and '.join(structures)} in dataset.json"
        yield f"{path} has {levels} values, {listed}; {fix}"


def _notes_on_cases(cases: Sequence[CaseFacts], pairs: bool, field_of_view: float) -> Iterator[str]:
    """What a user should know of the cases that can be read.

    Args:
        cases: those that can be read.
        pairs: whether photographs of the shape of stereo pairs are taken for such.
        field_of_view: share of each side of a slice that a network sees of volumes.
    """
    images = [case.image for case in cases]
    labels = [case.label for case in cases]
    images_with = Counter(image.channels for image in images)
    most_channels = max((image.channels for image in images if image.spacing), default=1)
    if most_channels > 1:
        yield f"images have {most_channels} channels on axis 3; choose one"
    if len(images_with) > 1:
        yield f"images have {' or '.join(map(str, images_with))} channels; convert them"
    photographs = [image for image in images if pairs and not image.spacing]
    stereo = [image.path for image in photographs if is_pair(*image.shape[::-1])]
    if stereo:
        yield f"{len(stereo)} photograph(s), {stereo[0]} first, {TAKEN_FOR_A_PAIR}"
    unoriented = [facts.path for facts in (*images, *labels) if not facts.is_oriented]
    if unoriented:
        assumed = f"store no orientation ({few(unoriented)}), taken for {ASSUMED_AXES}"
        yield f"{len(unoriented)} volume(s) {assumed}; if that is wrong, {files.WRITE_AGAIN}"
    cut = sorted((label.seen, label.path) for label in labels if label.seen < LEAST_SEEN)
    if cut:
        named = few(f"{path}: {seen:.0%}" for seen, path in cut)
        where = f"outside the central {field_of_view:.0%} of their slices ({named} within it)"
        fix = "set field_of_view to 1, or crop the volumes around the organ"
        yield f"{len(cut)} label(s) lie partly {where}, which is all that the network sees; {fix}"
    if lost := [label for label in labels if label.lost]:
        named = few(f"{label.path}: {few(label.lost)}" for label in lost)
        where = f"where the network resamples slices ({named})"
        yield f"{len(lost)} label(s) have a structure that is lost {where}; set a larger size"
    # A structure without values is not labelled there, and empty masks have notes of their own.
    for name in sorted({name for case in cases for name in case.values}):
        drawn = [case for case in cases if case.slices and name in case.values]
        without = [case.label.path for case in drawn if not case.label.values_in(case.values[name])]
        if without:
            share = f"{len(drawn) - len(without)} of {len(drawn)}"
            absent = f"{name} in {share} masks: elsewhere ({few(without)}) it counts as absent"
            yield f"{absent}; if nobody drew it, list these by hand, with values without {name}"


def labels_of(cases: Sequence[CaseFacts]) -> list[int]:
    """The different label values of all cases, sorted."""
    return sorted({value for case in cases for value in case.label.labels})


# What a user sees of a site


def check_cases(
    site_dir: str | os.PathLike[str],
    structures: Sequence[str] = (),
    values: Mapping[str, Sequence[int]] | None = None,
    stereo: bool | None = None,
    cases: Sequence[CaseFiles] | None = None,
    field_of_view: float = FIELD_OF_VIEW,
    size: Sequence[int] = (),
    must: bool = True,
) -> Summary:
    """Read every file of a site and report all that would stop a training later.

    Every file must be readable to its end, an image and its label of one size and not the same
    pixels. Volumes must be 3D (images may be 4D), with affines that place every corner within
    0.01 mm and the rounding of rotations, in whatever order each stores its axes; images finite,
    labels whole numbers from 0. A case with an empty label, channels that need a choice and files
    that occur twice are warnings; a site where all labels are empty is an error.

    Args:
        site_dir: the site's folder, of any layout, or its data list (NVFlare); see
            :func:`find_cases`.
        structures: names of nested structures, the outermost first. Which pixel values they have
            is stated by ``values``, or in a ``dataset.json`` of the site; of masks with two values,
            the one above 0 is the outermost.
        values: structure -> ``[lowest, highest]``.
        stereo: whether photographs are pairs of views side by side; ``None``: by their shape, which
            is noted.
        cases: the only ones that are checked, of a data list, with absolute paths; the other files
            of the site may have faults, and all these labels may be empty. ``None``: all cases.
        field_of_view: share of each side of a slice that the network sees of volumes; a label that
            lies partly outside is a warning.
        size: pixels to which the network resamples that share; a structure that is lost there is a
            warning. Empty: those of the file.
        must: whether problems are an error, and notes warnings.

    Returns:
        For JSON: ``site``, ``layout``, ``num_cases``, ``labels`` (values found), ``gland_slices``
        (slices, or pictures, with a label), ``names`` (what labels mean by a ``dataset.json``),
        ``values`` (of structures that were asked for), and ``cases`` with ``image``, ``shape``
        (voxels, or rows and columns), ``spacing`` (mm, of volumes), ``channels``, ``labels`` and
        ``gland_slices`` of each.

    Raises:
        DataError: with the number of problems, and the first three.

    >>> import tempfile
    >>> from monai_fairfl.data import SITES, write_sites
    >>> root = tempfile.mkdtemp()
    >>> _ = write_sites(root, sites=SITES[:1], size=(24, 24, 6), cases=2)
    >>> summary = check_cases(f"{root}/alder")
    >>> summary["layout"], summary["num_cases"], summary["labels"]
    ('saml', 2, [0, 1])
    """
    site = Path(site_dir)
    folder = folder_of_site(site)
    layout, found = "data list", Found(list(cases or ()), labels=described_labels(folder))
    if cases is None:
        layout, found = recognise(site)
    problems = [f"{site}: {problem}" for problem in found.problems]
    stated = stated_values(structures, found)
    known = check_values(values, structures, str(site)) if values else stated
    organs = {name: bounds for name, bounds in found.labels.items() if name.lower() != BACKGROUND}

    def read(path: str, is_label: bool) -> FileFacts:
        version = os.path.exists(path) and (os.path.getctime(path), os.path.getsize(path))
        return facts_of(path, is_label, field_of_view, tuple(size), version)

    def look(case: CaseFiles) -> CaseFacts:
        image_file, label_file = (os.path.abspath(case[name]) for name in ("image", "label"))
        of_case = case.get("values", known)
        try:
            image, label = read(image_file, False), read(label_file, True)
        except DataError as error:
            return CaseFacts(FileFacts(image_file), FileFacts(label_file), of_case, str(error))
        faults = chain(
            _faults_of_case(image, label, bool(structures)),
            _faults_of_values(label, found.labels, of_case != stated, structures),
        )
        drawn = (of_case or organs).values()
        fault = next(faults, "")
        is_empty = fault or (drawn and not label.values_in(*drawn))
        return CaseFacts(image, label, of_case, fault, 0 if is_empty else label.labelled_slices)

    with ThreadPoolExecutor(files.WORKERS) as pool:
        facts = list(pool.map(look, found.cases))
    problems += [case.fault for case in facts if case.fault]
    sound = [case for case in facts if not case.fault]
    empty = [os.path.relpath(case.image.path, folder) for case in sound if not case.slices]
    readable = [case for case in facts if case.image.shape]
    notes = list(_notes_on_cases(readable, bool(structures) and stereo is None, field_of_view))
    if cases is None and empty and len(empty) == len(facts):
        problems.append(f"all {len(empty)} labels are empty; export the right ones")
    if empty:
        notes.append(f"{len(empty)} label(s) are empty, and kept ({few(empty)})")
    notes = [f"{site}: {note}" for note in notes]
    name = name_of_site(site)
    inspection = Inspection(name, folder, layout, facts, problems, notes, known, found.labels)
    if must and problems:
        first = all_named(problems, 3, separator="\n- ")
        raise DataError(f"{site_dir}: {len(problems)} problem(s)\n- {first}")
    for note in [*notes, *check_duplicates({name: inspection})] if must else ():
        warnings.warn(note, DataWarning, stacklevel=2)
    return Summary(inspection)


class Summary(dict[str, Any]):
    """An inspection's summary for JSON, see :func:`check_cases`."""

    def __init__(self, inspection: Inspection) -> None:
        self.inspection = inspection
        sound = inspection.sound
        cases = []
        for case in sound:
            image = case.image
            path = os.path.relpath(image.path, inspection.folder)
            line: dict[str, Any] = {"image": path, "shape": [*image.shape]}
            line |= {"spacing": [*image.spacing], "channels": image.channels}
            cases.append(line | {"labels": [*case.label.labels], "gland_slices": case.slices})
        super().__init__(
            site=inspection.site,
            layout=inspection.layout,
            num_cases=len(sound),
            labels=labels_of(sound),
            gland_slices=sum(case.slices for case in sound),
            names=dict(inspection.labels),
            values=dict(inspection.values),
            cases=cases,
        )


def check_duplicates(sites: Mapping[str, str | os.PathLike[str] | Inspection]) -> list[str]:
    """Find the same image at two sites or twice at one.

    Files are compared by the SHA-256 of their decoded pixels, so a copy in another lossless format
    counts too. A score on an image that was trained elsewhere is too good.

    Args:
        sites: site -> its folder or data list, or its inspection.

    Returns:
        One sentence for each group of copies, with the fix; none when there is no copy.

    >>> import shutil, tempfile
    >>> from monai_fairfl.data import SITES, site_folders, write_sites
    >>> root = tempfile.mkdtemp()
    >>> _ = write_sites(root, sites=SITES[:1], size=(24, 24, 6), cases=2)
    >>> _ = shutil.copytree(f"{root}/alder", f"{root}/copy")
    >>> len(check_duplicates(site_folders(root)))
    2
    """
    # Digest of an image -> where each of its copies is.
    images: dict[str, list[str]] = {}
    for site, source in sites.items():
        inspection = (
            source if isinstance(source, Inspection) else check_cases(source, must=False).inspection
        )
        for case in inspection.sound:
            images.setdefault(case.image.digest, []).append(f"{site}: {case.image.path}")
    copied = [copies for copies in images.values() if len(copies) > 1]
    return [f"an image occurs {len(each)} times, {', '.join(each)}. Keep one." for each in copied]


def digests_of_cases(inspection: Inspection) -> list[str]:
    """SHA-256 of each case: of the pixels of its image and label, and where its voxels lie.

    A file's name, its compression and the rest of its header do not count.
    """
    digests = []
    for case in inspection.sound:
        affine = case.image.affine
        # Adding 0 makes one zero of -0 and 0.
        place = [] if affine is None else (np.round(affine, 4) + 0).tolist()
        text = f"{case.image.digest} {case.label.digest} {place}"
        digests.append(hashlib.sha256(text.encode()).hexdigest())
    return digests


def check_label_values(sites: Mapping[str, Inspection]) -> list[str]:
    """Find sites whose masks have more values than those of others, such as a second structure.

    Which numbers they are does not matter: one site may write 255 where others write 1. Sites whose
    structures were looked for are not compared.

    Args:
        sites: site -> its inspection.

    Returns:
        One note, or none where the sites have equally many values.
    """
    found = {}
    for site, inspection in sites.items():
        labels = [label for label in labels_of(inspection.sound) if label > 0]
        if labels and not inspection.values:
            found[site] = [_with_name(label, inspection.labels) for label in labels]
    if len({len(labels) for labels in found.values()}) < 2:
        return []
    listed = "; ".join(f"{site} has {few(labels)}" for site, labels in found.items())
    fault = f"the sites' masks have different numbers of labels: {listed}"
    return [f"{fault}; give all the same: the prostate bundle takes all above 0 for the gland"]


def _with_name(value: int, named: Values) -> str:
    """A value of a label, and what it means by the site's ``dataset.json``.

    >>> _with_name(2, {"disc": [1, 2], "cup": [2, 2]}), _with_name(3, {})
    ('2 (disc, cup)', '3')
    """
    within = [name for name, (low, high) in named.items() if low <= value <= high]
    names = [name for name in within if name.lower() != BACKGROUND]
    return f"{value} ({', '.join(names)})" if names else str(value)


def overview(
    sites: Mapping[str, str | os.PathLike[str]],
    structures: Sequence[str] = (),
    stereo: bool | None = None,
    noticed: Sequence[str] = (),
    reading: Callable[[str], None] = lambda site: None,
    root: str | os.PathLike[str] | None = None,
    **split: Any,
) -> tuple[dict[str, Any], str]:
    """Read every file of every site once, and report what each holds.

    Sites with problems are reported too. Nothing is written.

    Args:
        sites: site -> its folder or data list, as :func:`~monai_fairfl.data.site_folders` gives
            them.
        structures: names of nested structures whose pixel values are looked for, the outermost
            first.
        stereo: whether photographs are pairs of views; by their shape where it is not given.
        noticed: notes that the caller already has, such as on folders that are no site.
        reading: called with the name of each site before its files are read.
        root: the folder whose files are counted; ``None``: those of the sites.
        split: arguments of :func:`~monai_fairfl.data.split_cases`.

    Returns:
        For JSON: ``sites`` (see :func:`~monai_fairfl.data.check_cases`, and the number of cases in
        each part), ``warnings`` and ``problems``, sentences, and ``files`` (see
        :func:`sorted_out`); and the same as a table and lines of text.

    >>> import tempfile
    >>> from monai_fairfl.data import SITES, site_folders, write_sites
    >>> root = tempfile.mkdtemp()
    >>> _ = write_sites(root, sites=SITES[:2], size=(24, 24, 6), cases=4)
    >>> data, text = overview(site_folders(root))
    >>> data["problems"], data["sites"]["alder"]["training"], text.splitlines()[-1]
    ([], 2, '16 file(s): 16 used, 0 image(s) refused, 0 not an image')
    """
    notes = list(noticed)
    problems: list[str] = []
    inspections: dict[str, Inspection] = {}
    summaries: dict[str, dict[str, Any]] = {}
    for name, path in sites.items():
        reading(name)
        inspection = Inspection(name, folder_of_site(Path(path)))
        datalist: dict[str, list[CaseFiles]] = {}
        try:
            inspection = check_cases(path, structures, stereo=stereo, must=False).inspection
            if len(sites) > 1:
                # One hospital's own folder is no name in a federation.
                safe_name(name, "the name of the hospital's folder")
            if not inspection.problems:
                with warnings_as_notes() as notes_on_split:
                    datalist = site_datalist(path, None, structures, **split)
                inspection.notes.extend(notes_on_split)
        except FairFLError as error:
            inspection.problems.append(str(error))
        inspections[name] = inspection
        notes += inspection.notes
        problems += [f"site {name!r}: {fault}" for fault in inspection.problems]
        sizes = {part: len(cases) for part, cases in datalist.items()}
        summaries[name] = Summary(inspection) | sizes
        slices = {case.label.path: case.slices for case in inspection.sound}
        for part in ("validation", "testing"):
            of_part = [slices[os.path.abspath(case["label"])] for case in datalist.get(part, ())]
            if of_part and not any(of_part):
                fault = f"all labels of its {part} cases are empty: no score"
                notes.append(f"site {name!r}: {fault}; split by another seed, or a list by hand")
    notes += [*check_duplicates(inspections), *check_label_values(inspections)]
    roots = [Path(root)] if root is not None else [each.folder for each in inspections.values()]
    counts = sorted_out(roots, inspections.values())
    refused = few(f"{path}: {reason}" for path, reason in counts["refused"].items())
    found = f"{len(inspections)} site(s), {len(notes)} note(s), {len(problems)} problem(s)"
    text = [as_table(summaries), ""]
    text += [f"note: {note}" for note in notes]
    text += [f"refused: {refused}"] if refused else []
    text += [f"problem: {problem}" for problem in problems]
    text += [f"{found} that would stop a training", files.count_of_files(counts)]
    data = {"sites": summaries, "warnings": notes, "problems": problems, "files": counts}
    return data, "\n".join(text)


def sorted_out(roots: Iterable[Path], inspections: Iterable[Inspection]) -> dict[str, Any]:
    """What became of every file of some folders; each is in one of the three.

    Args:
        roots: the folders.
        inspections: of the sites in them.

    Returns:
        As :func:`~monai_fairfl.data.image_files.sort_files`; used are images and labels of sound
        cases.
    """
    used: set[str] = set()
    reasons: dict[str, str] = {}
    present: set[str] = set()
    closed: list[str] = []
    for inspection in inspections:
        for case in inspection.cases:
            paths = (case.image.path, case.label.path)
            if case.fault:
                reasons |= dict.fromkeys(paths, case.fault)
            else:
                used.update(paths)
    for root in roots:
        reading = files_under(root, lambda error: closed.append(os.path.abspath(error.filename)))
        present.update(os.path.abspath(path) for path in reading)
    reasons |= dict.fromkeys(closed, "this account may not read it; change the permissions")
    otherwise = f"it belongs to no case of a site; convert DICOM {CONVERT_DICOM}"
    return files.sort_files(present.union(closed), used, reasons, otherwise)


TITLES = ("Site", "Layout", "Cases", "Size", "Channels", "Spacing, mm", "Labels", "Empty", "Split")


def as_table(summaries: Mapping[str, Mapping[str, Any]]) -> str:
    """Sites side by side, for a terminal.

    >>> case = {"shape": [4, 6], "spacing": [], "channels": 3, "gland_slices": 1}
    >>> site = {"layout": "folders", "num_cases": 1, "labels": [0, 255], "cases": [case]}
    >>> site |= {"names": {}, "values": {}}
    >>> as_table({"elm": site}).splitlines()[-1].split()
    ['elm', 'folders', '1', '4', 'x', '6', '3', '0,', '255', '0', '–']
    """
    return text_of_table(TITLES, [_row(site, summary) for site, summary in summaries.items()])


def _row(site: str, summary: Mapping[str, Any]) -> list[str]:
    """The cells of a site, in the order of :data:`TITLES`."""
    cases = summary["cases"]
    columns = ([case["shape"] for case in cases], [[case["channels"]] for case in cases])
    spacings = [case["spacing"] for case in cases if case["spacing"]]
    labels = [_with_name(label, summary["names"]) for label in summary["labels"]]
    lines = [all_named(labels, 8, ", ")]
    lines += [f"{name} {low}-{high}" for name, (low, high) in summary["values"].items()]
    num_empty = sum(1 for case in cases if not case["gland_slices"])
    part_sizes = [str(summary[part]) for part in PARTS if part in summary]
    ranges = [_range(rows) for rows in (*columns, spacings)]
    ends = ["\n".join(lines), str(num_empty), "/".join(part_sizes) or "–"]
    return [site, summary["layout"], str(summary["num_cases"]), *ranges, *ends]


def _range(rows: Sequence[Sequence[float]]) -> str:
    """Each column as one number or as its least and greatest.

    >>> _range([[384, 384, 15], [384, 384, 24]])
    '384 x 384 x 15-24'
    """
    ends = [(min(column), max(column)) for column in zip(*rows)]
    return " x ".join(f"{low:g}" if low == high else f"{low:g}-{high:g}" for low, high in ends)
