# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""A site's files, each read once and to its end: what would stop or spoil a training later."""

from __future__ import annotations

import hashlib
import math
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np

from monai_fairfl.data.datalist import check_values, stated_values
from monai_fairfl.data.fundus import is_pair
from monai_fairfl.data.image_files import (
    DICOM,
    WORKERS,
    files_under,
    forms_fault,
    grey,
    has_qform,
    has_sform,
    header_fault,
    is_lossy,
    is_nifti,
    kind_of_image,
    largest_shift,
    read_nifti,
    read_picture,
)
from monai_fairfl.data.layouts import CaseFiles, Found, Values, described_labels, few
from monai_fairfl.data.sites import CONVERT_DICOM, folder_of_site, name_of_site, recognise
from monai_fairfl.errors import DataError

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
TAKEN_FOR_A_PAIR = (
    "taken for a stereo pair by its shape: only the left half is used; for single views set stereo"
    " to False"
)
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


def facts_of(path: str, most_axes: int, is_label: bool, field_of_view: float) -> FileFacts:
    """Read a file and judge it by itself; a process reads each version of a file once.

    Args:
        path: NIfTI, PNG, JPEG, TIFF or BMP.
        most_axes: of a volume, 4 where several channels are expected.
        is_label: whether it is a mask.
        field_of_view: share of each side of a slice that a network sees of volumes.
    """
    path = os.path.abspath(path)
    version = (0, 0)
    with suppress(OSError):  # reading the file raises the error that names it
        state = os.stat(path)
        version = (state.st_ctime_ns, state.st_size)
    try:
        return _facts_of_version(path, most_axes, is_label, field_of_view, version)
    except DataError as error:
        return FileFacts(path, str(error))


# The check and all clients of a process share it.
@lru_cache(maxsize=8192)
def _facts_of_version(
    path: str, most_axes: int, is_label: bool, field_of_view: float, version: tuple[int, int]
) -> FileFacts:
    if is_nifti(path):
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
    central = is_labelled[_central(facts.affine, mask.shape, field_of_view)]
    return replace(facts, seen=float(central.sum() / is_labelled.sum()))


def _volume(path: str, most_axes: int) -> tuple[FileFacts, np.ndarray, np.ndarray]:
    """Facts of a volume, its voxels as a training reads them, and as they are."""
    nifti, voxels = read_nifti(path)
    if not 3 <= voxels.ndim <= most_axes or voxels.dtype.kind not in "biuf":
        raise DataError(
            f"{path} is {voxels.ndim}D with shape {voxels.shape} and type {voxels.dtype}; store one"
            " 3D volume of real numbers"
        )
    if fault := header_fault(nifti) or forms_fault(nifti):
        raise DataError(f"{path} {fault}")
    with np.errstate(over="ignore"):
        read = voxels.astype(np.float32)
    is_lost = ~np.isfinite(read)
    if is_lost.any():
        raise DataError(
            f"{path} has {is_lost.sum()} values that are not finite, or beyond {LARGEST_READ:.2g},"
            f" such as {voxels[is_lost][0]:.3g}; convert it again, or scale the image"
        )
    stored: Any = nifti.dataobj
    facts = FileFacts(
        path,
        shape=voxels.shape[:3],
        channels=voxels.shape[3] if voxels.ndim == 4 else 1,
        # Adding 0 makes one zero of -0 and 0.
        digest=_digest(read + 0),
        affine=nifti.affine,
        spacing=tuple(round(float(size), 4) for size in nifti.header.get_zooms()[:3]),
        is_oriented=has_sform(nifti) or has_qform(nifti),
        is_scaled=(stored.slope, stored.inter) != (1, 0),
    )
    return facts, read, voxels


def _picture(path: str, is_label: bool) -> tuple[FileFacts, np.ndarray, np.ndarray]:
    """Facts of a picture, its pixels, and the grey levels of a mask."""
    pixels = read_picture(path)
    levels = grey(pixels)
    channels = pixels.shape[2] if pixels.ndim == 3 else 1
    if is_label and channels in (2, 4):
        # Two channels are grey and alpha; four are colours and alpha.
        varies = pixels.min(axis=(0, 1)) != pixels.max(axis=(0, 1))
        if varies[-1] and not varies[:-1].any():
            raise DataError(f"{path} is drawn in its alpha channel alone; save that as grey levels")
    if is_label and levels is None:
        colours = len(np.unique(pixels.reshape(-1, channels), axis=0))
        raise DataError(
            f"{path} has {colours} colours: a label has one channel of grey levels, and is no photo"
        )
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


def _central(affine: np.ndarray, shape: Sequence[int], share: float) -> tuple[slice, ...]:
    """The part of a volume that MONAI's ``CenterScaleCropd`` keeps of axial slices.

    >>> _central(np.eye(4), (10, 20, 5), 0.5)
    (slice(3, 8, None), slice(5, 15, None), slice(0, 5, None))
    """
    slices = []
    axes = nib.io_orientation(affine)[:, 0] if np.isfinite(affine).all() else (0, 1, 2)
    for axis, length in zip(axes, shape):
        kept = math.ceil(length * share) if axis in (0, 1) else length
        start = length // 2 - kept // 2
        slices.append(slice(start, start + kept))
    return tuple(slices)


# One site


def inspect_site(
    site_dir: str | os.PathLike[str],
    structures: Sequence[str] = (),
    values: Mapping[str, Sequence[int]] | None = None,
    stereo: bool | None = None,
    cases: Sequence[CaseFiles] | None = None,
    field_of_view: float = FIELD_OF_VIEW,
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
        label = facts_of(case["label"], 3, True, field_of_view)
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

    with ThreadPoolExecutor(WORKERS) as pool:
        inspection.cases = list(pool.map(look, listed))
    for case in inspection.cases:
        problems += case.faults

    sound = inspection.sound
    empty = [case for case in sound if not case.slices]
    notes = [*_notes_on_images(inspection.readable, found.channels, pairs_by_shape)]
    notes += [*_notes_on_labels(inspection.readable, field_of_view)]
    notes += _notes_on_missing_structures(sound)
    if cases is None:
        labels = labels_of(sound)
        for name, bounds in known.items() if any(labels) else ():
            if not any(case.label.values_in(bounds) for case in sound):
                problems.append(
                    f"values of {name!r} are {bounds}, which no mask has: found are {labels}"
                )
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
        if largest_shift(image.affine, label.affine, image.shape, AFFINE_TOLERANCE) == 0:
            return ""
    shape, affine = _in_one_order(image)
    label_shape, label_affine = _in_one_order(label)
    if shape != label_shape:
        return f"has shape {label.shape} but its image {image.shape}"
    shift = largest_shift(affine, label_affine, shape, AFFINE_TOLERANCE)
    # Not "> 0", so that an affine that is not a number is a problem.
    if shift == 0:
        return ""
    return (
        f"lies up to {shift:.3g} mm from its image, by the affines of the two; allowed are"
        f" {AFFINE_TOLERANCE} mm, and the rounding of rotations"
    )


def _in_one_order(volume: Any) -> tuple[tuple[int, ...], Any]:
    """Shape and affine of a volume whose axes are stored to the right, the front and the head."""
    if not np.isfinite(volume.affine).all():
        return volume.shape, volume.affine
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
    listed = few(label.labels)
    is_volume = label.affine is not None
    is_stated = bool(named) or is_by_hand
    for name, bounds in named.items():
        if name.lower() in IGNORED and (ignored := label.values_in(bounds)):
            yield (
                f"has the value {ignored[0]}, {name!r} by the site's dataset.json: a training would"
                " take it for the organ. Draw what is there, or move the case away"
            )
    if is_lossy(label.path) and any(low == high > 0 for low, high in named.values()):
        yield (
            "is a JPEG file, which moves the values of a mask: give the lowest and the highest"
            ' value of each label in dataset.json, such as "disc": [128, 255]'
        )
    if not is_volume and len(label.labels) > MOST_LEVELS and not is_by_hand:
        yield f"has {len(label.labels)} grey levels, as photographs have; give its label"
    unnamed = sorted({*label.labels} - {*label.values_in(*named.values())})
    if named and unnamed and not is_by_hand:
        yield (
            f"has the values {listed}, and the site's dataset.json names no {unnamed[0]}. Mend the"
            " mask, or the labels of dataset.json"
        )
    # Several structures may fill a mask, such as the tissues of a brain.
    is_filled = label.of_sides > MOST_OF_SIDES or label.of_all > MOST_OF_ALL
    if len(label.labels) <= 2 and is_filled and (is_volume or not is_stated):
        yield (
            f"labels {label.of_sides:.0%} of what lies at its sides, and {label.of_all:.0%} of all,"
            " as a background; give the background the value 0, and the structure 1"
        )
    if is_stated:
        return
    if VOID in label.labels and any(0 < value <= HIGHEST_CLASS for value in label.labels):
        yield (
            f"has the values {listed}: {VOID} among classes is what nobody judged. Draw what is"
            " there, or name all values in dataset.json (docs/data.md)"
        )
    if structures and len(label.labels) > 2:
        yield (
            f"has {len(label.labels)} values, {listed}, and nothing states which are"
            f" {' and '.join(structures)}: name them in the site's dataset.json (docs/data.md)"
        )


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
        fix = f"convert them {CONVERT_DICOM}" if kind in DICOM else "move them to the cases"
        where = few(dict.fromkeys(places))
        yield f"{len(places)} {kind} file(s) in {where} are left out; {fix}"


def _notes_on_images(
    cases: Sequence[CaseFacts], channels: Sequence[str], pairs_by_shape: bool
) -> Iterator[str]:
    """Notes on channels that need a choice or differ, and on photographs taken for pairs.

    Args:
        cases: those that can be read.
        channels: their names, where the layout states them.
        pairs_by_shape: whether photographs are taken for pairs.
    """
    images_with = Counter(case.image.channels for case in cases)
    most_channels = max(images_with, default=1)
    if channels and most_channels > 1:
        names = ", ".join(f"{number}: {name}" for number, name in enumerate(channels))
        yield f"images have {most_channels} channels on axis 3 ({names}); choose one"
    if len(images_with) > 1:
        counts = [f"{count} of {number} channel(s)" for number, count in images_with.items()]
        yield f"images differ in their channels ({', '.join(counts)}); convert them"
    photographs = [case.image for case in cases if pairs_by_shape and not case.image.spacing]
    pairs = [image.path for image in photographs if is_pair(*reversed(image.shape))]
    if pairs:
        yield f"{len(pairs)} photograph(s), {pairs[0]} first, {TAKEN_FOR_A_PAIR}"


def _notes_on_labels(cases: Sequence[CaseFacts], field_of_view: float) -> Iterator[str]:
    """Notes on volumes without orientation or right angles, and on organs that are cut off."""
    files = [facts for case in cases for facts in (case.image, case.label)]
    unoriented = [facts.path for facts in files if not facts.is_oriented]
    if unoriented:
        yield (
            f"{len(unoriented)} volume(s) store no orientation ({few(unoriented)}), which is taken"
            f" for {ASSUMED_AXES}; if that is wrong, write the right affine as sform and qform"
        )
    labels = [case.label for case in cases]
    angles = {label.path: _shear(label.affine) for label in labels if label.affine is not None}
    sheared = [path for path, angle in angles.items() if angle > SHEAR_TOLERANCE]
    if sheared:
        yield (
            f"{len(sheared)} label(s) have axes up to {max(angles.values()):.3g} degrees away from"
            f" right angles ({few(sheared)}), so that HD95 is wrong; resample images and labels"
        )
    cut = sorted((label.seen, label.path) for label in labels if label.seen < LEAST_SEEN)
    if cut:
        named = few(f"{path}: {seen:.0%}" for seen, path in cut)
        yield (
            f"{len(cut)} label(s) lie partly outside the field that the network sees, the central"
            f" {field_of_view:.0%} of each side of a slice ({named} within it), and can never be"
            " found whole; set field_of_view to 1, or crop the volumes around the organ"
        )


def _shear(affine: np.ndarray) -> float:
    """By how many degrees the axes of a volume are at most away from right angles.

    >>> _shear(np.diag([0.5, 0.5, 3.0, 1.0]))
    0.0
    """
    axes = affine[:3, :3] / np.linalg.norm(affine[:3, :3], axis=0)
    cosines = np.abs(axes.T @ axes)[np.triu_indices(3, k=1)]
    return float(np.degrees(np.arcsin(cosines.clip(max=1))).max())


def _notes_on_missing_structures(cases: Sequence[CaseFacts]) -> Iterator[str]:
    """A note for each structure that some masks have and others lack.

    A structure without values is not labelled there, and empty masks have notes of their own.
    """
    # Structure -> the masks that may have it, and those without it.
    masks: Counter[str] = Counter()
    without: dict[str, list[str]] = {}
    for case in cases:
        for name, bounds in case.values.items() if case.slices else ():
            masks[name] += 1
            if not case.label.values_in(bounds):
                without.setdefault(name, []).append(case.label.path)
    for name, paths in without.items():
        if number := masks[name] - len(paths):
            yield (
                f"{name} in {number} of {masks[name]} masks; elsewhere ({few(paths)}) it counts as"
                " absent. If nobody drew it, list these cases by hand, with values that leave it"
                " out (docs/data.md)"
            )


def labels_of(cases: Sequence[CaseFacts]) -> list[int]:
    """The different label values of all cases, sorted."""
    return sorted({value for case in cases for value in case.label.labels})
