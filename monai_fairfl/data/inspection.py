# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""A site's files, each read once and to its end: what would stop or spoil a training later."""

from __future__ import annotations

import hashlib
import math
import os
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
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
    read,
    read_nifti,
)
from monai_fairfl.data.layouts import CaseFiles, Found, UnpairedFiles, Values, described_labels, few
from monai_fairfl.data.sites import (
    CONVERT_DICOM,
    find,
    folder_of_site,
    layout_of,
    name_of_site,
)
from monai_fairfl.errors import DataError

# Largest number of those that a training reads.
LARGEST_READ = float(np.finfo(np.float32).max)
# Different values of a label volume; an image has more.
MOST_LABELS = 256
# Grey levels of a mask that is a picture; a photograph has more.
MOST_LEVELS = 16
# Grey levels of masks in JPEG, and the least share of what is labelled that the middle one has:
# where it is an edge of the others, few pixels have it.
USUAL_LEVELS = (0, 128, 255)
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
    labels: tuple[int, ...] = ()
    labelled_slices: int = 0
    of_sides: float = 0.0
    of_all: float = 0.0
    seen: float = 1.0
    over_8_bits: bool = False
    only_in_right_half: bool = False


Case = tuple[FileFacts, FileFacts]
"""Image and label."""


def _facts(path: str, most_axes: int, is_label: bool, field_of_view: float) -> FileFacts:
    path = os.path.abspath(path)
    version = (0, 0)
    with suppress(OSError):  # reading the file raises the error that names it
        state = os.stat(path)
        version = (state.st_ctime_ns, state.st_size)
    try:
        return _facts_of_version(path, most_axes, is_label, field_of_view, version)
    except DataError as error:
        return FileFacts(path, str(error))


# A process reads each version of a file once: the check and all clients share it.
@lru_cache(maxsize=8192)
def _facts_of_version(
    path: str, most_axes: int, is_label: bool, field_of_view: float, version: tuple[int, int]
) -> FileFacts:
    if is_nifti(path):
        return _facts_of_volume(path, most_axes, is_label, field_of_view)
    return _facts_of_picture(path, is_label)


def _facts_of_volume(path: str, most_axes: int, is_label: bool, field_of_view: float) -> FileFacts:
    nifti, voxels = read_nifti(path)
    if not 3 <= voxels.ndim <= most_axes or voxels.dtype.kind not in "biuf":
        raise DataError(
            f"{path} is {voxels.ndim}D with shape {voxels.shape} and type {voxels.dtype}; store one"
            " 3D volume of real numbers"
        )
    if fault := header_fault(nifti) or forms_fault(nifti):
        raise DataError(f"{path} {fault}")
    # Trainings read 32-bit numbers.
    with np.errstate(over="ignore"):
        read_voxels = voxels.astype(np.float32)
    is_lost = ~np.isfinite(read_voxels)
    if is_lost.any():
        raise DataError(
            f"{path} has {is_lost.sum()} values that are not finite, or beyond {LARGEST_READ:.2g},"
            f" such as {voxels[is_lost][0]:.3g}, where a training reads them with 32 bits; convert"
            " it again, or scale the image"
        )
    about_label: dict[str, Any] = {}
    if is_label:
        _require_labels_of_volume(path, nifti, voxels)
        about_label = _about_label(voxels)
        central = voxels[_central(nifti.affine, voxels.shape, field_of_view)]
        if labelled := np.count_nonzero(voxels):
            about_label["seen"] = np.count_nonzero(central) / labelled
    elif read_voxels.min() == read_voxels.max():
        raise _constant(path, f"{read_voxels.min():g}", "voxels")
    return FileFacts(
        path,
        shape=voxels.shape[:3],
        channels=voxels.shape[3] if voxels.ndim == 4 else 1,
        # Adding 0 makes one zero of -0 and 0.
        digest=_digest(read_voxels + 0),
        affine=nifti.affine,
        spacing=tuple(round(float(size), 4) for size in nifti.header.get_zooms()[:3]),
        is_oriented=has_sform(nifti) or has_qform(nifti),
        **about_label,
    )


def _require_labels_of_volume(path: str, nifti: Any, voxels: np.ndarray) -> None:
    """Refuse a label volume of values that are no whole numbers from 0, or of too many."""
    labels = np.unique(voxels)
    wrong = labels[(labels < 0) | (labels != np.round(labels))]
    if wrong.size:
        # All digits: 0.99999998 is no label.
        problem = f"{path} has label values such as {wrong[0]!s}"
        slope = float(nifti.dataobj.slope)
        intercept = float(nifti.dataobj.inter)
        fix = "labels are whole numbers from 0"
        if (slope, intercept) != (1, 0):
            problem += (
                f", because its header scales the stored numbers (scl_slope {slope:.6g}, scl_inter"
                f" {intercept:.6g})"
            )
            fix += ", stored without a scale (nibabel: image.header.set_slope_inter(1, 0))"
        raise DataError(f"{problem}; {fix}")
    if len(labels) > MOST_LABELS:
        raise DataError(
            f"{path} has {len(labels)} different values, so it seems to be an image and no mask;"
            " put the mask in its place"
        )


def _about_label(mask: np.ndarray) -> dict[str, Any]:
    """The facts of a mask, H x W, or a label volume.

    The first and the last slice of a volume are no sides: volumes may end within an organ.
    """
    is_labelled = mask > 0
    sides = (is_labelled[0], is_labelled[-1], is_labelled[:, 0], is_labelled[:, -1])
    return {
        "labels": tuple(np.unique(mask).astype(int).tolist()),
        "labelled_slices": int(is_labelled.any(axis=(0, 1)).sum()),
        "of_sides": float(np.concatenate([side.ravel() for side in sides]).mean()),
        "of_all": float(is_labelled.mean()),
    }


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


def _facts_of_picture(path: str, is_label: bool) -> FileFacts:
    pixels = read(path)
    levels = grey(pixels)
    about: dict[str, Any] = {"over_8_bits": pixels.itemsize > 1}
    if is_label:
        mask = _mask_of_picture(path, pixels, levels)
        height, width = mask.shape
        about = _about_label(mask)
        about["only_in_right_half"] = bool(
            is_pair(width, height) and mask.any() and not mask[:, : width // 2].any()
        )
    elif (pixels == pixels[0, 0]).all():
        raise _constant(path, str(pixels[0, 0]), "pixels")
    return FileFacts(
        path,
        shape=pixels.shape[:2],
        channels=pixels.shape[2] if pixels.ndim == 3 else 1,
        # A grey picture has one digest, whether it is stored in one channel or in three.
        digest=_digest(pixels if levels is None else levels),
        **about,
    )


def _mask_of_picture(path: str, pixels: np.ndarray, levels: np.ndarray | None) -> np.ndarray:
    """The grey levels of a mask, whole numbers from 0.

    Raises:
        DataError: it is drawn in colours, or in its transparency alone.
    """
    if pixels.ndim == 3 and pixels.shape[2] in (2, 4):
        # Two channels are grey and alpha; four are colours and alpha.
        varies = pixels.min(axis=(0, 1)) != pixels.max(axis=(0, 1))
        if varies[-1] and not varies[:-1].any():
            raise DataError(
                f"{path} is drawn in its alpha channel alone, which is not read; save that channel"
                " as grey levels"
            )
    if levels is None:
        colours = len(np.unique(pixels.reshape(-1, pixels.shape[2]), axis=0))
        raise DataError(
            f"{path} has {colours} colours: a label has one channel of grey levels, and is no photo"
        )
    values = np.unique(levels)
    if values[0] < 0 or (values != values.round()).any():
        raise DataError(f"{path} has values such as {values[0]}; labels are whole numbers from 0")
    if not is_lossy(path):
        return levels
    # JPEG moves the values of a mask: each pixel has the nearest level, unless few pixels have it.
    usual = np.array(USUAL_LEVELS)
    nearest = np.abs(levels[..., None].astype(int) - usual).argmin(-1)
    counts = np.bincount(nearest.ravel(), minlength=len(usual))
    usual[1] = 128 if counts[1] > LEAST_SHARE * counts[1:].sum() else 255
    return usual[nearest]


def _constant(path: str, value: str, elements: str) -> DataError:
    """The problem of an image that shows nothing: one value in all its voxels or pixels."""
    return DataError(
        f"{path} has the value {value} in all its {elements}; convert or copy it again"
    )


def _digest(pixels: np.ndarray) -> str:
    """SHA-256 of pixels with their shape and type."""
    if pixels.dtype != np.uint8:
        pixels = pixels.astype(np.float32)
    pixels = np.ascontiguousarray(pixels)
    header = f"{pixels.shape}{pixels.dtype}".encode()
    return hashlib.sha256(header + pixels.tobytes()).hexdigest()


# One site


@dataclass
class Inspection:
    """One site, inspected.

    Args:
        site: its name.
        layout: its layout's name.
        lines: one entry per sound case, for JSON.
        problems: what would stop or spoil a training, each with file and fix.
        notes: what else a user should know.
        cases: image and label of every case that could be read.
        values: structure -> lowest and highest pixel value, where structures were asked for.
        labels: what the values of labels mean, where a ``dataset.json`` states it.
        used: images and labels of sound cases.
        refused: those of the other cases -> the problem.
    """

    site: str
    layout: str = "–"
    lines: list[dict[str, Any]] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    cases: Sequence[Case] = ()
    values: Values = field(default_factory=dict)
    labels: Values = field(default_factory=dict)
    used: set[str] = field(default_factory=set)
    refused: dict[str, str] = field(default_factory=dict)


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
    inspection = Inspection(name_of_site(site), "data list" if cases else "")
    problems, notes = inspection.problems, inspection.notes
    found = Found([])
    try:
        found = find(site)
    except UnpairedFiles as error:
        # The other files may have faults too, which are shown at the same time.
        problems += [f"{site}: {problem}" for problem in error.problems if cases is None]
        found = Found(error.cases)
    except DataError:
        if cases is None:
            raise
    if cases is None:
        inspection.layout = layout_of(site)
    listed = found.cases if cases is None else list(cases)
    folder = folder_of_site(site)
    named = found.labels or described_labels(folder)
    inspection.labels = named

    def look(case: CaseFiles) -> Case:
        most_axes = 4 if found.channels else 3
        return (
            _facts(case["image"], most_axes, False, field_of_view),
            _facts(case["label"], 3, True, field_of_view),
        )

    with ThreadPoolExecutor(WORKERS) as pool:
        files = list(pool.map(look, listed))

    # Pixel values of the structures.
    known = stated = stated_values(structures, replace(found, labels=named))
    try:
        known = check_values(values, structures, str(site)) if values else stated
    except DataError as error:
        problems.append(str(error))
    inspection.values = known

    # What is wrong with each case, or a line on it.
    organs = {name: bounds for name, bounds in named.items() if name.lower() != BACKGROUND}
    pairs_by_shape = bool(structures) and stereo is None
    values_of_labels = []
    for case, (image, label) in zip(listed, files, strict=True):
        of_case = case.get("values", known)
        faults = _faults_of_case(image, label, bool(structures), pairs_by_shape)
        if not faults:
            faults = _faults_of_values(label, named, of_case != stated, structures)
        problems += faults
        for facts in (image, label):
            if faults:
                inspection.refused[facts.path] = faults[0]
            else:
                inspection.used.add(facts.path)
        if not faults:
            inspection.lines.append(_line(image, label, folder, of_case or organs))
            values_of_labels.append((label, of_case))
    inspection.cases = [case for case in files if not (case[0].problem or case[1].problem)]
    labels = labels_of(inspection.lines)
    for name, (low, high) in known.items() if cases is None and any(labels) else ():
        if not any(low <= value <= high for value in labels):
            problems.append(
                f"values of {name!r} are [{low}, {high}], which no mask has: found are {labels}"
            )

    empty = [line["image"] for line in inspection.lines if not line["gland_slices"]]
    if cases is None:
        if empty and len(empty) == len(files):
            problems.append(
                f"all {len(empty)} labels are empty; check that the right were exported"
            )
        notes += [f"{site}: {note}" for note in (*found.notes, *_left_out(site, found.cases))]
    for note in (
        *_notes_on_images(inspection.cases, found.channels, pairs_by_shape),
        *_notes_on_labels(inspection.cases, field_of_view),
        *_notes_on_missing_structures(values_of_labels),
    ):
        notes.append(f"{site}: {note}")
    if empty:
        notes.append(f"{site}: {len(empty)} label(s) are empty, and kept ({few(empty)})")
    return inspection


def _faults_of_case(
    image: FileFacts, label: FileFacts, in_colour: bool, pairs_by_shape: bool
) -> list[str]:
    """What is wrong with the files of a case, or with the two together."""
    problems = [facts.problem for facts in (image, label) if facts.problem]
    if problems:
        return problems
    if image.affine is not None and label.affine is not None:
        problems += _faults_of_place(image, label)
    elif image.shape != label.shape:
        problems.append(f"{label.path} has shape {label.shape} but its image {image.shape}")
    if image.digest == label.digest:
        problems.append(
            f"{label.path} has the very pixels of its image; put the label in its place"
        )
    if in_colour and image.over_8_bits:
        problems.append(
            f"{image.path} has more than 8 bits a channel, which a training in colour cuts off;"
            " save it with 8"
        )
    if pairs_by_shape and label.only_in_right_half:
        problems.append(
            f"{label.path} has its labels in the right half alone, of a photograph"
            f" {TAKEN_FOR_A_PAIR}"
        )
    return problems


def _faults_of_place(image: Any, label: Any) -> list[str]:
    """Whether a label volume lies on the grid of its image, in whatever order both are stored."""
    if image.shape == label.shape:
        if largest_shift(image.affine, label.affine, image.shape, AFFINE_TOLERANCE) == 0:
            return []
    shape, affine = _in_one_order(image)
    label_shape, label_affine = _in_one_order(label)
    if shape != label_shape:
        return [
            f"{label.path} has shape {label.shape} but its image {image.shape}; resample the label"
            " on the grid of the image"
        ]
    shift = largest_shift(affine, label_affine, shape, AFFINE_TOLERANCE)
    # Not "> 0", so that an affine that is not a number is a problem.
    if shift == 0:
        return []
    return [
        f"{label.path} lies up to {shift:.3g} mm from its image, by the affines of the two; allowed"
        f" are {AFFINE_TOLERANCE} mm, and the rounding of rotations. Look at both in a viewer, and"
        " resample the label on the grid of the image that it belongs to"
    ]


def _in_one_order(volume: FileFacts) -> tuple[tuple[int, ...], Any]:
    """Shape and affine of a volume whose axes are stored to the right, the front and the head."""
    affine: Any = volume.affine
    if not np.isfinite(affine).all():
        return volume.shape, affine
    order = nib.io_orientation(affine)
    shape = tuple(volume.shape[axis] for axis in order[:, 0].argsort())
    return shape, affine @ nib.orientations.inv_ornt_aff(order, volume.shape)


def _faults_of_values(
    label: FileFacts, named: Values, is_by_hand: bool, structures: Sequence[str]
) -> list[str]:
    """What is wrong with the values of a mask that can be read.

    Args:
        label: the mask.
        named: what values mean by a ``dataset.json``.
        is_by_hand: whether a user gave the values of the structures.
        structures: those that were asked for.
    """
    for name, (low, high) in named.items():
        ignored = [value for value in label.labels if low <= value <= high]
        if name.lower() in IGNORED and ignored:
            return [
                f"{label.path} has the value {ignored[0]}, {name!r} by the site's dataset.json: a"
                " training would take it for the organ. Draw what is there, or move the case away"
            ]
    if is_lossy(label.path) and any(low == high > 0 for low, high in named.values()):
        return [
            f"{label.path} is a JPEG file, which moves the values of a mask: give the lowest and"
            ' the highest value of each label in dataset.json, such as "disc": [128, 255]'
        ]
    is_volume = label.affine is not None
    if not is_volume and len(label.labels) > MOST_LEVELS and not is_by_hand:
        return [
            f"{label.path} has {len(label.labels)} different values, grey levels as photographs"
            " have; give its label"
        ]
    unnamed = [value for value in label.labels if not _is_within(value, named.values())]
    if named and unnamed and not is_by_hand:
        return [
            f"{label.path} has the values {few(label.labels)}, and the site's dataset.json names no"
            f" {unnamed[0]}. Mend the mask, or the labels of dataset.json"
        ]
    is_stated = bool(named) or is_by_hand
    is_filled = label.of_sides > MOST_OF_SIDES or label.of_all > MOST_OF_ALL
    # Several structures may fill a mask, such as the tissues of a brain.
    if len(label.labels) <= 2 and is_filled and (is_volume or not is_stated):
        return [
            f"{label.path} labels {label.of_sides:.0%} of what lies at its sides, and"
            f" {label.of_all:.0%} of all, so its background seems to be labelled; give the"
            " background the value 0, and the structure 1"
        ]
    if is_stated:
        return []
    if VOID in label.labels and any(0 < value <= HIGHEST_CLASS for value in label.labels):
        return [
            f"{label.path} has the values {few(label.labels)}: {VOID} among classes is what nobody"
            " judged. Draw what is there, or name all values in dataset.json (docs/data.md)"
        ]
    if structures and len(label.labels) > 2:
        return [
            f"{label.path} has {len(label.labels)} values, {few(label.labels)}, and nothing states"
            f" which are {' and '.join(structures)}: name them in the site's dataset.json"
            " (docs/data.md), or with the key values"
        ]
    return []


def _line(image: FileFacts, label: FileFacts, folder: Path, values: Values) -> dict[str, Any]:
    """One sound case, for JSON."""
    line: dict[str, Any] = {
        "image": os.path.relpath(image.path, folder),
        "shape": list(image.shape),
    }
    if image.spacing:
        line["spacing"] = list(image.spacing)
    if image.channels > 1 or not image.spacing:
        line["channels"] = image.channels
    line["labels"] = list(label.labels)
    line["gland_slices"] = label.labelled_slices
    if values and not _has_any(label, values.values()):
        line["gland_slices"] = 0
    return line


def _is_within(value: int, bounds: Collection[Sequence[int]]) -> bool:
    """Whether a value lies between the lowest and highest one of some structure."""
    return any(low <= value <= high for low, high in bounds)


def _has_any(label: FileFacts, bounds: Collection[Sequence[int]]) -> bool:
    """Whether a mask has a value of some structure."""
    return any(_is_within(value, bounds) for value in label.labels)


def _left_out(site: Path, cases: Sequence[CaseFiles]) -> list[str]:
    """A note on each kind of image, also of those that are not read, that belongs to no case.

    Args:
        site: its folder, or its data list: then the folders of its cases are looked through.
        cases: of the site. In a folder of cases only kinds that the cases do not have are left
            out: the other channels of nnU-Net are no cases of their own.
    """
    kinds_of_cases: dict[str, set[str]] = {}
    for case in cases:
        for path in (Path(case["image"]), Path(case["label"])):
            kinds_of_cases.setdefault(str(path.parent), set()).add(kind_of_image(path))
    closed: list[str] = []
    # Kind -> the folder of each image of this kind that belongs to no case.
    left_out: dict[str, list[str]] = {}
    for root in [str(site)] if site.is_dir() else sorted(kinds_of_cases):
        for path in files_under(Path(root), lambda error: closed.append(error.filename)):
            folders = [name.lower() for name in path.relative_to(root).parts[:-1]]
            kind = kind_of_image(path)
            if not kind or kind in kinds_of_cases.get(str(path.parent), ()):
                continue
            if not any(name in UNLABELLED or name[0] == "." for name in folders):
                left_out.setdefault(kind, []).append(str(path.parent))
    notes = []
    if closed:
        notes.append(f"{few(closed)} cannot be read by this account; change the permissions")
    for kind, places in sorted(left_out.items()):
        fix = "move them to the cases, or convert them"
        if kind in ("DICOM", "DCM", "IMA"):
            fix = f"convert them {CONVERT_DICOM}"
        where = few(dict.fromkeys(places))
        notes.append(f"{len(places)} {kind} file(s) in {where} are left out; {fix}")
    return notes


def _notes_on_images(
    cases: Sequence[Case], channels: Sequence[str], pairs_by_shape: bool
) -> list[str]:
    """Notes on channels that need a choice or differ, and on photographs taken for pairs.

    Args:
        cases: all of them.
        channels: their names, where the layout states them.
        pairs_by_shape: whether photographs are taken for pairs.
    """
    notes = []
    images_with = Counter(image.channels for image, _ in cases)
    most_channels = max(images_with, default=1)
    if channels and most_channels > 1:
        names = ", ".join(f"{number}: {name}" for number, name in enumerate(channels))
        notes.append(f"images have {most_channels} channels on axis 3 ({names}); choose one")
    if len(images_with) > 1:
        counts = [f"{count} of {number} channel(s)" for number, count in images_with.items()]
        notes.append(f"images differ in their channels ({', '.join(counts)}); convert them")
    pairs = []
    for image, _ in cases:
        if pairs_by_shape and not image.spacing and is_pair(*reversed(image.shape)):
            pairs.append(image.path)
    if pairs:
        notes.append(f"{len(pairs)} photograph(s), {pairs[0]} first, {TAKEN_FOR_A_PAIR}")
    return notes


def _notes_on_labels(cases: Sequence[Case], field_of_view: float) -> list[str]:
    """Notes on volumes without orientation or right angles, and on organs that are cut off."""
    notes = []
    unoriented = [facts.path for case in cases for facts in case if not facts.is_oriented]
    if unoriented:
        notes.append(
            f"{len(unoriented)} volume(s) store no orientation ({few(unoriented)}), which is taken"
            f" for {ASSUMED_AXES}; if that is wrong, write the right affine as sform and qform"
        )
    angles = {}
    for _, label in cases:
        if label.affine is not None and (angle := _shear(label.affine)) > SHEAR_TOLERANCE:
            angles[label.path] = angle
    if angles:
        notes.append(
            f"{len(angles)} label(s) have axes up to {max(angles.values()):.3g} degrees away from"
            f" right angles ({few(angles)}), so that HD95 is wrong; resample images and labels"
        )
    cut = sorted((label.seen, label.path) for _, label in cases if label.seen < LEAST_SEEN)
    if cut:
        named = few(f"{path}: {seen:.0%}" for seen, path in cut)
        notes.append(
            f"{len(cut)} label(s) lie partly outside the field that the network sees, the central"
            f" {field_of_view:.0%} of each side of a slice ({named} within it), and can never be"
            " found whole; set field_of_view to 1, or crop the volumes around the organ"
        )
    return notes


def _shear(affine: np.ndarray) -> float:
    """By how many degrees the axes of a volume are at most away from right angles.

    >>> _shear(np.diag([0.5, 0.5, 3.0, 1.0]))
    0.0
    """
    axes = affine[:3, :3] / np.linalg.norm(affine[:3, :3], axis=0)
    cosines = np.abs(axes.T @ axes)[np.triu_indices(3, k=1)]
    return float(np.degrees(np.arcsin(cosines.clip(max=1))).max())


def _notes_on_missing_structures(labels: Sequence[tuple[FileFacts, Values]]) -> list[str]:
    """A note for each structure that some masks have and others lack.

    Args:
        labels: each with the values of its structures; a structure without values is not labelled
            there.
    """
    # Structure -> the masks, and those without it. Empty masks have notes of their own.
    masks: Counter[str] = Counter()
    without: dict[str, list[str]] = {}
    for label, values in labels:
        for name, bounds in values.items() if _has_any(label, values.values()) else ():
            masks[name] += 1
            if not _has_any(label, [bounds]):
                without.setdefault(name, []).append(label.path)
    notes = []
    for name, paths in without.items():
        if number := masks[name] - len(paths):
            notes.append(
                f"{name} in {number} of {masks[name]} masks; elsewhere ({few(paths)}) it counts as"
                " absent. If nobody drew it, list these cases by hand, with values that leave it"
                " out (docs/data.md)"
            )
    return notes


def labels_of(lines: Sequence[Mapping[str, Any]]) -> list[int]:
    """The different label values of all cases, sorted.

    >>> labels_of([{"labels": [0, 2]}, {"labels": [0, 1]}])
    [0, 1, 2]
    """
    return sorted({value for line in lines for value in line["labels"]})
