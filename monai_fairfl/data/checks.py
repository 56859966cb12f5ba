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
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np

from monai_fairfl.data import image_files as files
from monai_fairfl.data.datalist import check_values, site_datalist, stated_values
from monai_fairfl.data.fundus import is_pair
from monai_fairfl.data.image_files import files_under, is_lossy, kind_of_image
from monai_fairfl.data.layouts import (
    PARTS,
    CaseFiles,
    Found,
    Values,
    all_named,
    described_labels,
    few,
)
from monai_fairfl.data.sites import (
    CONVERT_DICOM,
    folder_of_site,
    layouts_once,
    name_of_site,
    recognise,
)
from monai_fairfl.errors import ConfigError, DataError, DataWarning
from monai_fairfl.utils.files import safe_name
from monai_fairfl.utils.tables import text_of_table
from monai_fairfl.utils.terminal import warnings_as_notes

LISTED = 3
"""Problems of a site that an error lists: a wrong folder has one for each file."""

MOST_SHOWN = 8
"""Values of labels that a table shows; JPEG's noise makes more."""

# Largest number of those that a training reads.
LARGEST_READ = float(np.finfo(np.float32).max)
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
# Shares of a mask of one structure that are labelled: of what lies at its sides, and of all. Those
# of an organ are far below (real prostates: 0 and 0.05), and those of a mask whose background is
# labelled in place of the organ are near 1.
MOST_OF_SIDES = 0.5
MOST_OF_ALL = 0.75
# In mm, at the first voxel. A converter's rounding of a header is smaller, half a voxel is much
# larger.
AFFINE_TOLERANCE = 1e-2
# In degrees, from a right angle. What the rounding of a header's numbers makes is far smaller.
SHEAR_TOLERANCE = 0.1
# Share of a label that a network sees; below it, its image was cropped beside the organ.
LEAST_SEEN = 0.9
# The share of each side of a slice that the prostate bundle sees, where nothing else is set.
FIELD_OF_VIEW = 0.7
# What nibabel assumes of a volume that stores no orientation (NIfTI-1, method 1).
ASSUMED_AXES = "LAS: axes to the left, to the front and to the head"
TAKEN_FOR_A_PAIR = "taken for a stereo pair: only its left half is used, unless stereo is False"
# Test cases of the Decathlon and of nnU-Net have no labels, so no note about them is needed.
UNLABELLED = {"imagests", "labelsts"}


@dataclass(frozen=True)
class FileFacts:
    """What an inspection stores of a file; its pixels are not stored.

    Args:
        path: the file, absolute.
        problem: what is wrong with it, in a sentence; then nothing else is known. Empty when
            nothing is.
        shape: pixels or voxels, without channels.
        channels: number of channels.
        digest: SHA-256 of the decoded pixels, the same for copies in another file format.
        affine: of a volume, 4 x 4, in mm.
        spacing: of a volume, voxel sizes in mm; empty for a picture.
        is_oriented: whether a volume stores its orientation; without it, nibabel assumes one.
        is_scaled: whether a volume's header scales the stored numbers.
        labels: different values of a label.
        labelled_slices: slices of a label with a value above 0.
        of_sides: share of a label's pixels at its sides, or at those of its slices, above 0.
        of_all: share of all its pixels.
        seen: share of a label volume's voxels above 0 in the central part of its slices.
        lost: values in that part that no pixel has where a network resamples it.
        over_8_bits: whether it is a picture with more than 8 bits a channel.
        only_in_right_half: whether it is a label as wide as a stereo pair's, with all that is
            labelled in its right half.
    """

    path: str
    problem: str = ""
    shape: tuple[int, ...] = ()
    channels: int = 1
    digest: str = ""
    affine: np.ndarray | None = None
    spacing: tuple[float, ...] = ()
    is_oriented: bool = True
    is_scaled: bool = False
    labels: tuple[int, ...] = ()
    labelled_slices: int = 0
    of_sides: float = 0.0
    of_all: float = 0.0
    seen: float = 1.0
    lost: tuple[int, ...] = ()
    over_8_bits: bool = False
    only_in_right_half: bool = False

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
        faults: what is wrong with it, in sentences; a sound case has none.
        slices: slices of a volume, or 1 of a picture, with a value of any structure.
    """

    image: FileFacts
    label: FileFacts
    values: Values
    faults: tuple[str, ...] = ()
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
    def readable(self) -> list[CaseFacts]:
        """The cases whose files could be read."""
        return [case for case in self.cases if not (case.image.problem or case.label.problem)]

    @property
    def sound(self) -> list[CaseFacts]:
        """The cases that a training can use."""
        return [case for case in self.cases if not case.faults]


# One file


def facts_of(
    path: str, most_axes: int, is_label: bool, field_of_view: float, size: tuple[int, ...] = ()
) -> FileFacts:
    """Read a file and judge it by itself; a process reads each version of a file once.

    Args:
        path: NIfTI, PNG, JPEG, TIFF or BMP.
        most_axes: of a volume, 4 where several channels are expected.
        is_label: whether it is a mask.
        field_of_view: share of each side of a slice that a network sees of volumes.
        size: pixels to which it resamples this share; empty: those of the file.
    """
    path = os.path.abspath(path)
    version = (0, 0)
    with suppress(OSError):  # reading the file raises the error that names it
        state = os.stat(path)
        version = (state.st_ctime_ns, state.st_size)
    try:
        return _facts_of_version(path, most_axes, is_label, field_of_view, size, version)
    except DataError as error:
        return FileFacts(path, str(error))


# The check and all clients of a process share it.
@lru_cache(maxsize=8192)
def _facts_of_version(
    path: str,
    most_axes: int,
    is_label: bool,
    field_of_view: float,
    size: tuple[int, ...],
    version: tuple[int, int],
) -> FileFacts:
    if files.is_nifti(path):
        facts, pixels, mask = _volume(path, most_axes)
    else:
        facts, pixels, mask = _picture(path, is_label)
    if not is_label:
        first = pixels[(0,) * len(facts.shape)]
        if (pixels == first).all():
            raise DataError(f"{path} has the value {first} everywhere; convert or copy it again")
        return facts
    if fault := _fault_of_labels(np.unique(mask), facts.is_scaled):
        raise DataError(f"{path} {fault}")
    if is_lossy(path):
        # JPEG moves the values of a mask: each pixel has the nearest level, unless few have it.
        nearest = np.abs(mask[..., None].astype(int) - USUAL_LEVELS).argmin(-1)
        counts = np.bincount(nearest.ravel(), minlength=3)
        middle = 128 if counts[1] > LEAST_SHARE * counts[1:].sum() else 255
        mask = np.array([0, middle, 255])[nearest]
    is_labelled = mask > 0
    # The first and the last slice of a volume are no sides: volumes may end within an organ.
    sides = (is_labelled[0], is_labelled[-1], is_labelled[:, 0], is_labelled[:, -1])
    facts = replace(
        facts,
        labels=tuple(np.unique(mask).astype(int).tolist()),
        labelled_slices=int(is_labelled.any(axis=(0, 1)).sum()),
        of_sides=float(np.concatenate([side.ravel() for side in sides]).mean()),
        of_all=float(is_labelled.mean()),
    )
    if not is_labelled.any():
        return facts
    if facts.affine is None:
        width = mask.shape[1]
        is_right = is_pair(width, len(mask)) and not is_labelled[:, : width // 2].any()
        return replace(facts, only_in_right_half=bool(is_right))
    central = mask[np.ix_(*_field(facts.affine, mask.shape, field_of_view))]
    sampled = mask[np.ix_(*_field(facts.affine, mask.shape, field_of_view, size))]
    lost = set(np.unique(central)) - set(np.unique(sampled))
    seen = float((central > 0).sum() / is_labelled.sum())
    return replace(facts, seen=seen, lost=tuple(sorted(map(int, lost))))


def _volume(path: str, most_axes: int) -> tuple[FileFacts, np.ndarray, np.ndarray]:
    """Facts of a volume, its voxels as a training reads them, and as they are."""
    nifti, voxels = files.read_nifti(path)
    if not 3 <= voxels.ndim <= most_axes or voxels.dtype.kind not in "biuf":
        kind = f"{voxels.ndim}D with shape {voxels.shape} and type {voxels.dtype}"
        raise DataError(f"{path} is {kind}; store one 3D volume of real numbers")
    if fault := files.header_fault(nifti) or files.forms_fault(nifti):
        raise DataError(f"{path} {fault}")
    with np.errstate(over="ignore"):
        read = voxels.astype(np.float32)
    is_lost = ~np.isfinite(read)
    if is_lost.any():
        fault = f"not finite or beyond {LARGEST_READ:.2g}, such as {voxels[is_lost][0]:.3g}"
        raise DataError(f"{path} has {is_lost.sum()} values {fault}; scale the image, or mend it")
    stored: Any = nifti.dataobj
    facts = FileFacts(
        path,
        shape=voxels.shape[:3],
        channels=voxels.shape[3] if voxels.ndim == 4 else 1,
        # Adding 0 makes one zero of -0 and 0.
        digest=_digest(read + 0),
        affine=nifti.affine,
        spacing=tuple(round(float(size), 4) for size in nifti.header.get_zooms()[:3]),
        is_oriented=files.has_sform(nifti) or files.has_qform(nifti),
        is_scaled=(stored.slope, stored.inter) != (1, 0),
    )
    return facts, read, voxels


def _picture(path: str, is_label: bool) -> tuple[FileFacts, np.ndarray, np.ndarray]:
    """Facts of a picture, its pixels, and the grey levels of a mask."""
    pixels = files.read_picture(path)
    levels = files.grey(pixels)
    channels = pixels.shape[2] if pixels.ndim == 3 else 1
    if is_label and channels in (2, 4):
        # Two channels are grey and alpha; four are colours and alpha.
        varies = pixels.min(axis=(0, 1)) != pixels.max(axis=(0, 1))
        if varies[-1] and not varies[:-1].any():
            raise DataError(f"{path} is drawn in its alpha channel alone; save that as grey levels")
    if is_label and levels is None:
        colours = len(np.unique(pixels.reshape(-1, channels), axis=0))
        raise DataError(f"{path} has {colours} colours, as a photo has; draw it in grey levels")
    facts = FileFacts(
        path,
        shape=pixels.shape[:2],
        channels=channels,
        # A grey picture has one digest, whether it is stored in one channel or in three.
        digest=_digest(pixels if levels is None else levels),
        over_8_bits=not is_label and pixels.itemsize > 1,
    )
    return facts, pixels, pixels if levels is None else levels


def _digest(pixels: np.ndarray) -> str:
    """SHA-256 of pixels with their shape and type."""
    if pixels.dtype != np.uint8:
        pixels = pixels.astype(np.float32)
    header = f"{pixels.shape}{pixels.dtype}".encode()
    return hashlib.sha256(header + np.ascontiguousarray(pixels).tobytes()).hexdigest()


def _fault_of_labels(values: np.ndarray, is_scaled: bool) -> str:
    """Why the different values of a mask are none of labels, and the fix; empty where they are."""
    wrong = values[(values < 0) | (values != np.round(values))]
    if wrong.size:
        fix = "store whole numbers from 0"
        if is_scaled:
            fix += " without scl_slope (nibabel: image.header.set_slope_inter(1, 0))"
        # All digits: 0.99999998 is no label.
        return f"has label values such as {wrong[0]!s}; {fix}"
    if len(values) > MOST_LABELS:
        return f"has {len(values)} different values, as an image has; put the mask in its place"
    return ""


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


# One site


def inspect_site(
    site_dir: str | os.PathLike[str],
    structures: Sequence[str] = (),
    values: Mapping[str, Sequence[int]] | None = None,
    stereo: bool | None = None,
    cases: Sequence[CaseFiles] | None = None,
    field_of_view: float = FIELD_OF_VIEW,
    size: Sequence[int] = (),
) -> Inspection:
    """Read every file of a site, several at a time, and store facts of each.

    Args:
        site_dir: the site's folder, of any layout, or its data list (NVFlare).
        structures: names of nested structures, the outermost first.
        values: which pixel values they have, by hand.
        stereo: whether photographs are pairs of views; by their shape where it is not given.
        cases: the only ones that are read, of a data list, with absolute paths and the values of
            their structures; faults of other files are not looked for. ``None``: all cases.
        field_of_view: share of each side of a slice that a network sees of volumes.
        size: pixels to which it resamples this share; empty: those of the file.

    Raises:
        DataError: no layout recognises the site.
    """
    site = Path(site_dir)
    folder = folder_of_site(site)
    inspection = Inspection(name_of_site(site), folder, "data list")
    if cases is None:
        inspection.layout, found = recognise(site)
    else:
        # The files of a list made by hand may be in no layout.
        found = Found([], labels=described_labels(folder))
        with suppress(DataError):
            found = recognise(site)[1]
    listed = found.cases if cases is None else cases
    inspection.labels = found.labels
    problems = inspection.problems
    problems += [f"{site}: {problem}" for problem in found.problems if cases is None]

    # The pixel values of the structures.
    known = stated = stated_values(structures, found)
    try:
        known = check_values(values, structures, str(site)) if values else stated
    except DataError as error:
        problems.append(str(error))
    inspection.values = known

    pairs_by_shape = bool(structures) and stereo is None
    organs = {name: bounds for name, bounds in found.labels.items() if name.lower() != BACKGROUND}

    def look(case: CaseFiles) -> CaseFacts:
        axes = 4 if found.channels else 3
        image = facts_of(case["image"], axes, False, field_of_view)
        label = facts_of(case["label"], 3, True, field_of_view, tuple(size))
        of_case = case.get("values", known)
        faults = [facts.problem for facts in (image, label) if facts.problem]
        if not faults:
            faults += _faults_of_case(image, label, bool(structures), pairs_by_shape)
        if not faults:
            of_values = _faults_of_values(label, found.labels, of_case != stated, structures)
            faults = [f"{label.path} {fault}" for fault in of_values][:1]
        drawn = (of_case or organs).values()
        slices = label.labelled_slices if not drawn or label.values_in(*drawn) else 0
        return CaseFacts(image, label, of_case, tuple(faults), slices)

    with ThreadPoolExecutor(files.WORKERS) as pool:
        inspection.cases = list(pool.map(look, listed))
    problems += [fault for case in inspection.cases for fault in case.faults]
    sound = inspection.sound
    empty = [case for case in sound if not case.slices]
    notes = [*_notes_on_cases(inspection, found.channels, pairs_by_shape, field_of_view)]
    if cases is None:
        labels = labels_of(sound)
        for name, bounds in known.items():
            if any(labels) and not any(case.label.values_in(bounds) for case in sound):
                problems.append(f"values of {name!r} are {bounds}; mend them: masks have {labels}")
        if empty and len(empty) == len(inspection.cases):
            problems.append(f"all {len(empty)} labels are empty; export the right ones")
        notes = [*found.notes, *_left_out(site, found.cases), *notes]
    if empty:
        paths = [os.path.relpath(case.image.path, folder) for case in empty]
        notes.append(f"{len(empty)} label(s) are empty, and kept ({few(paths)})")
    inspection.notes = [f"{site}: {note}" for note in notes]
    return inspection


def _faults_of_case(
    image: FileFacts, label: FileFacts, in_colour: bool, pairs_by_shape: bool
) -> Iterator[str]:
    """What is wrong with two files together that can be read."""
    if image.affine is not None and label.affine is not None:
        if fault := _fault_of_place(image, label):
            yield f"{label.path} {fault}; resample it on the grid of the image that it belongs to"
    elif image.shape != label.shape:
        yield f"{label.path} has shape {label.shape} but its image {image.shape}"
    if image.digest == label.digest:
        yield f"{label.path} has the very pixels of its image; put the label in its place"
    if in_colour and image.over_8_bits:
        yield f"{image.path} has more than 8 bits a channel, which are cut off; save it with 8"
    if pairs_by_shape and label.only_in_right_half:
        yield f"{label.path} has its labels in the right half, of a photograph {TAKEN_FOR_A_PAIR}"


def _fault_of_place(image: Any, label: Any) -> str:
    """Why a label volume lies beside the grid of its image, in whatever order both are stored."""
    if image.shape == label.shape:
        if files.largest_shift(image.affine, label.affine, image.shape, AFFINE_TOLERANCE) == 0:
            return ""
    shape, affine = _in_one_order(image)
    label_shape, label_affine = _in_one_order(label)
    if shape != label_shape:
        return f"has shape {label.shape} but its image {image.shape}"
    shift = files.largest_shift(affine, label_affine, shape, AFFINE_TOLERANCE)
    if shift == 0:
        return ""
    return f"lies up to {shift:.3g} mm from its image by their affines, above {AFFINE_TOLERANCE} mm"


def _in_one_order(volume: Any) -> tuple[tuple[int, ...], Any]:
    """Shape and affine of a volume whose axes are stored to the right, the front and the head."""
    order = nib.io_orientation(volume.affine)
    shape = tuple(volume.shape[axis] for axis in order[:, 0].argsort())
    return shape, volume.affine @ nib.orientations.inv_ornt_aff(order, volume.shape)


def _faults_of_values(
    label: FileFacts, named: Values, is_by_hand: bool, structures: Sequence[str]
) -> Iterator[str]:
    """What is wrong with the values of a mask that can be read.

    Args:
        label: the mask.
        named: what values mean by a ``dataset.json``.
        is_by_hand: whether a user gave the values of the structures.
        structures: those that were asked for.
    """
    levels = len(label.labels)
    listed = few(label.labels)
    is_volume = label.affine is not None
    is_stated = bool(named) or is_by_hand
    for name, bounds in named.items():
        if name.lower() in IGNORED and (ignored := label.values_in(bounds)):
            yield f"has the value {ignored[0]}, {name!r} in dataset.json; draw what is there"
    if is_lossy(label.path) and any(low == high > 0 for low, high in named.values()):
        yield "is a JPEG file, whose values move; give each label a range, such as [128, 255]"
    if not is_volume and levels > MOST_LEVELS and not is_by_hand:
        yield f"has {levels} grey levels, as photographs have; give its label"
    unnamed = sorted({*label.labels} - {*label.values_in(*named.values())})
    if named and unnamed and not is_by_hand:
        yield f"has the values {listed}, and dataset.json names no {unnamed[0]}; mend one of them"
    # Several structures may fill a mask, such as the tissues of a brain.
    is_filled = label.of_sides > MOST_OF_SIDES or label.of_all > MOST_OF_ALL
    if levels <= 2 and is_filled and (is_volume or not is_stated):
        shares = f"{label.of_sides:.0%} of its sides, {label.of_all:.0%} of all"
        yield f"labels {shares}; give the background the value 0, and the organ 1"
    if is_stated:
        return
    if VOID in label.labels and any(0 < value <= HIGHEST_CLASS for value in label.labels):
        yield f"has the values {listed}, and {VOID} is often void; name all in dataset.json"
    if structures and levels > 2:
        yield f"has {levels} values, {listed}; state {' and '.join(structures)} in dataset.json"


def _left_out(site: Path, cases: Sequence[CaseFiles]) -> Iterator[str]:
    """A note on each kind of image, also of those that are not read, that belongs to no case.

    Args:
        site: its folder, or its data list: then the folders of its cases are looked through.
        cases: of the site. In a folder of cases only kinds that the cases do not have are left
            out: the other channels of nnU-Net are no cases of their own.
    """
    kinds_of_cases: dict[Path, set[str]] = {}
    for case in cases:
        for path in (Path(case["image"]), Path(case["label"])):
            kinds_of_cases.setdefault(path.parent, set()).add(kind_of_image(path))
    closed: list[str] = []
    # Kind -> the folder of each image of this kind that belongs to no case.
    left_out: dict[str, list[Path]] = {}
    for root in [site] if site.is_dir() else sorted(kinds_of_cases):
        for path in files_under(root, lambda error: closed.append(error.filename)):
            folders = [name.lower() for name in path.relative_to(root).parts[:-1]]
            kind = kind_of_image(path)
            if not kind or kind in kinds_of_cases.get(path.parent, ()):
                continue
            if not any(name in UNLABELLED or name[0] == "." for name in folders):
                left_out.setdefault(kind, []).append(path.parent)
    if closed:
        yield f"{few(closed)} cannot be read by this account; change the permissions"
    for kind, places in sorted(left_out.items()):
        fix = f"convert them {CONVERT_DICOM}" if kind in files.DICOM else "move them to the cases"
        where = few(dict.fromkeys(places))
        yield f"{len(places)} {kind} file(s) in {where} are left out; {fix}"


def _notes_on_cases(
    inspection: Inspection, channels: Sequence[str], pairs: bool, field_of_view: float
) -> Iterator[str]:
    """What a user should know of the cases that can be read.

    Args:
        inspection: of the site.
        channels: their names, where the layout states them.
        pairs: whether photographs of the shape of stereo pairs are taken for such.
        field_of_view: share of each side of a slice that a network sees of volumes.
    """
    images = [case.image for case in inspection.readable]
    labels = [case.label for case in inspection.readable]
    images_with = Counter(image.channels for image in images)
    most_channels = max(images_with, default=1)
    if channels and most_channels > 1:
        names = ", ".join(f"{number}: {name}" for number, name in enumerate(channels))
        yield f"images have {most_channels} channels on axis 3 ({names}); choose one"
    if len(images_with) > 1:
        counts = [f"{count} of {number} channel(s)" for number, count in images_with.items()]
        yield f"images differ in their channels ({', '.join(counts)}); convert them"
    photographs = [image for image in images if pairs and not image.spacing]
    stereo = [image.path for image in photographs if is_pair(*image.shape[::-1])]
    if stereo:
        yield f"{len(stereo)} photograph(s), {stereo[0]} first, {TAKEN_FOR_A_PAIR}"
    unoriented = [facts.path for facts in (*images, *labels) if not facts.is_oriented]
    if unoriented:
        assumed = f"store no orientation ({few(unoriented)}), taken for {ASSUMED_AXES}"
        yield f"{len(unoriented)} volume(s) {assumed}; if that is wrong, {files.WRITE_AGAIN}"
    angles = {label.path: _shear(label.affine) for label in labels if label.affine is not None}
    sheared = [path for path, angle in angles.items() if angle > SHEAR_TOLERANCE]
    if sheared:
        angle = f"up to {max(angles.values()):.3g} degrees away from right angles ({few(sheared)})"
        yield f"{len(sheared)} label(s) have axes {angle}: HD95 is wrong; resample both files"
    cut = sorted((label.seen, label.path) for label in labels if label.seen < LEAST_SEEN)
    if cut:
        named = few(f"{path}: {seen:.0%}" for seen, path in cut)
        where = f"outside the central {field_of_view:.0%} of their slices ({named} within it)"
        fix = "set field_of_view to 1, or crop the volumes around the organ"
        yield f"{len(cut)} label(s) lie partly {where}, which is all that the network sees; {fix}"
    if lost := [label for label in labels if label.lost]:
        named = few(f"{label.path}: {', '.join(map(str, label.lost))}" for label in lost)
        where = f"where the network resamples slices ({named})"
        yield f"{len(lost)} label(s) have a structure that is lost {where}; set a larger size"
    # A structure without values is not labelled there, and empty masks have notes of their own.
    masks_of: dict[str, dict[str, bool]] = {}
    for case in inspection.sound:
        for name, bounds in case.values.items() if case.slices else ():
            masks_of.setdefault(name, {})[case.label.path] = bool(case.label.values_in(bounds))
    for name, masks in masks_of.items():
        without = [path for path, has_it in masks.items() if not has_it]
        if 0 < len(without) < len(masks):
            share = f"{len(masks) - len(without)} of {len(masks)}"
            absent = f"{name} in {share} masks: elsewhere ({few(without)}) it counts as absent"
            yield f"{absent}; if nobody drew it, list these by hand, with values without {name}"


def _shear(affine: np.ndarray) -> float:
    """By how many degrees the axes of a volume are at most away from right angles.

    >>> _shear(np.diag([0.5, 0.5, 3.0, 1.0]))
    0.0
    """
    axes = affine[:3, :3] / np.linalg.norm(affine[:3, :3], axis=0)
    cosines = np.abs(axes.T @ axes)[np.triu_indices(3, k=1)]
    return float(np.degrees(np.arcsin(cosines.clip(max=1))).max())


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
) -> Summary:
    """Read every file of a site and report all that would stop a training later.

    Every file must be readable to its end, an image and its label of one size and not the same
    pixels. Volumes must be 3D (images of a layout that states its channels may be 4D), with affines
    that place every corner within 0.01 mm and the rounding of rotations, in whatever order each
    stores its axes; images finite, labels whole numbers from 0. A case with an empty label,
    channels that need a choice and files that occur twice are warnings; a site where all labels are
    empty is an error.

    Args:
        site_dir: the site's folder, of any layout, or its data list (NVFlare); see
            :func:`find_cases`.
        structures: names of nested structures, the outermost first. Which pixel values they have
            is stated by ``values``, or in a ``dataset.json`` of the site; of masks with two values,
            the one above 0 is the outermost.
        values: structure -> ``[lowest, highest]``.
        stereo: whether photographs are pairs of views side by side; ``None``: by their shape, which
            is noted, and an error where a label lies in the half that is not used.
        cases: the only ones that are checked, of a data list, with absolute paths; the other files
            of the site may have faults, and all these labels may be empty. ``None``: all cases.
        field_of_view: share of each side of a slice that the network sees of volumes; a label that
            lies partly outside is a warning.
        size: pixels to which the network resamples that share; a structure that is lost there is a
            warning. Empty: those of the file.

    Returns:
        For JSON: ``site``, ``layout``, ``num_cases``, ``labels`` (values found), ``gland_slices``
        (slices, or pictures, with a label), ``names`` where a ``dataset.json`` states what labels
        mean, ``values`` where structures were asked for, and ``cases`` with ``image``, ``shape``
        (voxels, or rows and columns), ``spacing`` (mm, of volumes), ``channels`` (of pictures, or
        if above 1), ``labels`` and ``gland_slices`` of each.

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
    inspection = inspect_site(site_dir, structures, values, stereo, cases, field_of_view, size)
    if inspection.problems:
        listed = all_named(inspection.problems, LISTED, separator="\n- ")
        if len(inspection.problems) > LISTED:
            listed += f"; monai-fairfl doctor {site_dir} lists all"
        raise DataError(f"{site_dir}: {len(inspection.problems)} problem(s)\n- {listed}")
    for note in [*inspection.notes, *check_duplicates({inspection.site: inspection})]:
        warnings.warn(note, DataWarning, stacklevel=2)
    return Summary(inspection)


class Summary(dict[str, Any]):
    """An inspection's summary for JSON, see :func:`check_cases`."""

    def __init__(self, inspection: Inspection) -> None:
        self.inspection = inspection
        sound = inspection.sound
        super().__init__(
            site=inspection.site,
            layout=inspection.layout,
            num_cases=len(sound),
            labels=labels_of(sound),
            gland_slices=sum(case.slices for case in sound),
        )
        if inspection.labels:
            self["names"] = dict(inspection.labels)
        if inspection.values:
            self["values"] = dict(inspection.values)
        self["cases"] = []
        for case in sound:
            image = case.image
            path = os.path.relpath(image.path, inspection.folder)
            line: dict[str, Any] = {"image": path, "shape": list(image.shape)}
            if image.spacing:
                line["spacing"] = list(image.spacing)
            if image.channels > 1 or not image.spacing:
                line["channels"] = image.channels
            line |= {"labels": list(case.label.labels), "gland_slices": case.slices}
            self["cases"].append(line)


def check_duplicates(sites: Mapping[str, str | os.PathLike[str] | Inspection]) -> list[str]:
    """Find the same image, or the same label of different images, at two sites or twice at one.

    Files are compared by the SHA-256 of their decoded pixels, so a copy in another lossless format
    counts too. A score on an image that was trained elsewhere is too good. Empty labels are alike
    and not compared.

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
    # Digest of a label -> digest of an image -> where the label is.
    labels: dict[str, dict[str, str]] = {}
    for site, source in sites.items():
        inspection = source if isinstance(source, Inspection) else inspect_site(source)
        for case in inspection.readable:
            image, label = case.image, case.label
            images.setdefault(image.digest, []).append(f"{site}: {image.path}")
            if len(label.labels) > 1:
                images_of_label = labels.setdefault(label.digest, {})
                images_of_label.setdefault(image.digest, f"{site}: {label.path}")
    found = []
    for copies in images.values():
        if len(copies) > 1:
            found.append(f"an image occurs {len(copies)} times, {', '.join(copies)}. Keep one.")
    for of in labels.values():
        if len(of) > 1:
            found.append(f"different images have one label, {', '.join(of.values())}. Mend these.")
    return found


def digests_of_cases(inspection: Inspection) -> list[str]:
    """SHA-256 of each case: of the pixels of its image and label, and where its voxels lie.

    A file's name, its compression and the rest of its header do not count.
    """
    digests = []
    for case in inspection.readable:
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
        One note, or none where the sites have equally many values. It names the masks that have a
        value which at most half of their site's masks have.
    """
    listed = []
    numbers_of_values = set()
    for site, inspection in sites.items():
        # Value -> the masks that have it.
        masks: dict[int, list[str]] = {}
        for case in inspection.readable:
            for value in set(case.label.labels) - {0}:
                masks.setdefault(value, []).append(case.label.path)
        if not masks or inspection.values:
            continue
        numbers_of_values.add(len(masks))
        total = len(inspection.readable)
        words = []
        for value, paths in sorted(masks.items()):
            rare = f" ({few(paths)})" if 2 * len(paths) <= total else ""
            named = _with_name(value, inspection.labels)
            words.append(f"{named} in {len(paths)} of {total} cases{rare}")
        listed.append(f"{site} has {', '.join(words)}")
    if len(numbers_of_values) < 2:
        return []
    fault = f"the sites' masks have different numbers of labels: {', '.join(listed)}"
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
        inspection = inspections[name] = Inspection(name, folder_of_site(Path(path)))
        faults = []
        datalist: dict[str, list[CaseFiles]] = {}
        try:
            inspection = inspections[name] = inspect_site(path, structures, stereo=stereo)
            faults += inspection.problems
            if not faults:
                with warnings_as_notes() as notes_on_split:
                    datalist = site_datalist(path, None, structures, **split)
                inspection.notes.extend(notes_on_split)
        except DataError as error:
            faults.append(str(error))
        if len(sites) > 1:
            # One hospital's own folder is no name in a federation.
            try:
                safe_name(name, "the name of the hospital's folder")
            except ConfigError as error:
                problems.append(str(error))
        notes += inspection.notes
        problems += [f"site {name!r}: {fault}" for fault in faults]
        sizes = {part: len(cases) for part, cases in datalist.items()}
        summaries[name] = Summary(inspection) | sizes
        for part in ("validation", "testing"):
            listed = {os.path.abspath(case["label"]) for case in datalist.get(part, ())}
            of_part = [case for case in inspection.sound if case.label.path in listed]
            if of_part and not any(case.label.labelled_slices for case in of_part):
                fault = f"all labels of its {part} cases are empty: no score"
                notes.append(f"site {name!r}: {fault}; split by another seed, or a list by hand")
    notes += [*check_duplicates(inspections), *check_label_values(inspections)]
    problems = layouts_once(problems)
    roots = [Path(root)] if root is not None else [each.folder for each in inspections.values()]
    counts = sorted_out(roots, inspections.values())

    found = f"{len(inspections)} site(s), {len(notes)} note(s), {len(problems)} problem(s)"
    text = [as_table(summaries), ""]
    text += [f"note: {note}" for note in notes]
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
    for inspection in inspections:
        for case in inspection.cases:
            paths = (case.image.path, case.label.path)
            used.update(paths if not case.faults else ())
            reasons |= dict.fromkeys(paths, case.faults[0]) if case.faults else {}
    present = {os.path.abspath(path) for root in roots for path in files_under(root)}
    return files.sort_files(present, used, reasons, "it belongs to no case of a site")


TITLES = ("Site", "Layout", "Cases", "Size", "Channels", "Spacing, mm", "Labels", "Empty", "Split")


def as_table(summaries: Mapping[str, Mapping[str, Any]]) -> str:
    """Sites side by side, for a terminal.

    >>> case = {"shape": [4, 6], "channels": 3, "labels": [0, 255], "gland_slices": 1}
    >>> site = {"layout": "folders", "num_cases": 1, "labels": [0, 255], "cases": [case]}
    >>> as_table({"elm": site}).splitlines()[-1].split()
    ['elm', 'folders', '1', '4', 'x', '6', '3', '0,', '255', '0', '–']
    """
    return text_of_table(TITLES, [_row(site, summary) for site, summary in summaries.items()])


def _row(site: str, summary: Mapping[str, Any]) -> list[str]:
    """The cells of a site, in the order of :data:`TITLES`."""
    cases = summary["cases"]
    shapes = [case["shape"] for case in cases]
    channels = [[case.get("channels", 1)] for case in cases]
    spacings = [case["spacing"] for case in cases if "spacing" in case]
    labels = [_with_name(label, summary.get("names", {})) for label in summary["labels"]]
    if len(labels) > MOST_SHOWN:
        labels = [*labels[:MOST_SHOWN], f"... ({len(labels)} values)"]
    label_lines = [", ".join(labels)]
    for name, (low, high) in summary.get("values", {}).items():
        label_lines.append(f"{name} {low}-{high}")
    num_empty = sum(1 for case in cases if not case["gland_slices"])
    part_sizes = [str(summary[part]) for part in PARTS if part in summary]
    ranges = [_range(rows) for rows in (shapes, channels, spacings)]
    ends = ["\n".join(label_lines), str(num_empty), "/".join(part_sizes) or "–"]
    return [site, summary["layout"], str(summary["num_cases"]), *ranges, *ends]


def _range(rows: Sequence[Sequence[float]]) -> str:
    """Each column as one number or as its least and greatest.

    >>> _range([[384, 384, 15], [384, 384, 24]])
    '384 x 384 x 15-24'
    """
    ranges = []
    for column in zip(*rows):
        low, high = min(column), max(column)
        ranges.append(f"{low:g}" if low == high else f"{low:g}-{high:g}")
    return " x ".join(ranges)
