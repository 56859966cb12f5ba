# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""A site's files, each read once and to its end: what would stop or spoil a training later."""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from monai_fairfl.data import layouts
from monai_fairfl.data.file_facts import FileFacts, image_facts, label_facts
from monai_fairfl.data.fundus import is_pair
from monai_fairfl.data.layouts import CaseFiles, Found
from monai_fairfl.data.layouts.base import all_named
from monai_fairfl.data.layouts.image_files import WORKERS, largest_shift
from monai_fairfl.data.layouts.left_out import left_out
from monai_fairfl.data.layouts.pairing import UnpairedFiles, as_cases
from monai_fairfl.data.values import Values, check_values, values_of_masks
from monai_fairfl.errors import DataError

# In mm, at the first voxel. A converter's rounding of a header is smaller, half a voxel is much
# larger.
AFFINE_TOLERANCE = 1e-2
# Empty labels that are named one by one.
MOST_NAMED = 20
# Files that a note names.
FEW_NAMED = 3
# In degrees, from a right angle. What the rounding of a header's numbers makes is far smaller.
SHEAR_TOLERANCE = 0.1
# What nibabel assumes of a volume that stores no orientation (NIfTI-1, method 1).
ASSUMED_AXES = "LAS: axes to the left, to the front and to the head"
TAKEN_FOR_A_PAIR = (
    "taken for a stereo pair by its shape: only the left half is used; for single views set stereo"
    " to False"
)


class Inspection(NamedTuple):
    """One site, inspected.

    Args:
        site: its name.
        layout: its layout's name.
        lines: one entry per sound case, for JSON.
        problems: what would stop or spoil a training, each with file and fix.
        notes: what else a user should know.
        files: image and label of every case that could be read.
        values: structure -> lowest and highest pixel value, where structures were asked for.
    """

    site: str
    layout: str
    lines: list[dict[str, Any]]
    problems: list[str]
    notes: list[str]
    files: Sequence[tuple[FileFacts, FileFacts]] = ()
    values: Mapping[str, list[int]] = MappingProxyType({})


def inspect_site(
    site_dir: str | os.PathLike[str],
    structures: Sequence[str] = (),
    values: Mapping[str, Sequence[int]] | None = None,
    stereo: bool | None = None,
) -> Inspection:
    """Read every file of a site, several at a time, and store facts of each.

    Args:
        site_dir: the site's folder, of any layout, or its data list (NVFlare).
        structures: names of nested structures whose pixel values are looked for, the outermost
            first.
        values: the same given by hand.
        stereo: whether photographs are pairs of views; by their shape where it is not given.

    Raises:
        DataError: no layout recognises the site.
    """
    site = Path(site_dir)
    layout = layouts.layout_of(site)
    unpaired: Sequence[str] = ()
    try:
        found = layouts.LAYOUTS[layout].find(site)
    except UnpairedFiles as error:
        # The other files may have faults too, which are shown at the same time.
        unpaired = [f"{site}: {problem}" for problem in error.problems]
        found = Found(as_cases(error.pairs))
    files = _read_cases(found)
    pairs_by_shape = bool(structures) and stereo is None
    lines, case_problems = _sound_and_faulty(files, site, structures, pairs_by_shape)
    problems = [*unpaired, *case_problems]

    # Pixel values of the structures.
    known_values: Values = {}
    try:
        known_values = _values_of_structures(files, structures, values, str(site))
    except DataError as error:
        problems.append(str(error))
    if lines:
        problems.extend(_values_in_no_mask(known_values, lines))

    # Empty labels.
    empty = [line["image"] for line in lines if not line["gland_slices"]]
    if lines and len(empty) == len(files):
        problems.append(
            f"all {len(empty)} labels are empty; check that the right label files were exported"
        )

    readable = [(image, label) for image, label in files if image.digest and label.digest]
    notes = _notes(found, readable, site)
    if pairs_by_shape:
        notes.extend(_notes_on_pairs(readable, site))
    notes.extend(_notes_on_orientation(readable, site))
    notes.extend(_notes_on_shear(readable, site))
    labels_with_values = [(label, known_values) for _, label in readable]
    notes.extend(_notes_on_missing_structures(labels_with_values, site))
    notes.extend(_notes_on_empty(empty, site))
    name = layouts.name_of_site(site)
    return Inspection(name, layout, lines, problems, notes, readable, known_values)


def inspect_cases(
    site_dir: str | os.PathLike[str],
    cases: Sequence[CaseFiles],
    structures: Sequence[str] = (),
    stereo: bool | None = None,
) -> Inspection:
    """Read the files of some cases of a site. Faults of its other files are not looked for.

    Args:
        site_dir: as of :func:`inspect_site`.
        cases: of a data list, with absolute paths; the list has the values of structures.
        structures: as of :func:`inspect_site`.
        stereo: see there.
    """
    site = Path(site_dir)
    channels: tuple[str, ...] = ()
    with suppress(DataError):  # of other files
        channels = layouts.find(site).channels
    files = _read_cases(Found(list(cases), channels=channels))
    pairs_by_shape = bool(structures) and stereo is None
    lines, problems = _sound_and_faulty(files, site, structures, pairs_by_shape)
    readable = [(image, label) for image, label in files if image.digest and label.digest]
    empty = [line["image"] for line in lines if not line["gland_slices"]]
    labels_with_values = []
    for case, (_, label) in zip(cases, files, strict=True):
        if label.digest:
            labels_with_values.append((label, case.get("values", {})))
    notes = [
        *_notes_on_orientation(readable, site),
        *_notes_on_shear(readable, site),
        *_notes_on_missing_structures(labels_with_values, site),
        *_notes_on_empty(empty, site),
    ]
    name = layouts.name_of_site(site)
    return Inspection(name, "data list", lines, problems, notes, readable)


def _read_cases(found: Found) -> list[tuple[FileFacts, FileFacts]]:
    with ThreadPoolExecutor(WORKERS) as pool:
        return list(pool.map(partial(_read_case, found), found.cases))


def _sound_and_faulty(
    files: Sequence[tuple[FileFacts, FileFacts]],
    site: Path,
    structures: Sequence[str],
    pairs_by_shape: bool,
) -> tuple[list[dict[str, Any]], list[str]]:
    """A line for each case that is sound, and what is wrong with each of the others."""
    folder = layouts.folder_of_site(site)
    lines: list[dict[str, Any]] = []
    problems: list[str] = []
    for image, label in files:
        case_problems = _case_problems(image, label)
        if structures and image.over_8_bits:
            case_problems.append(
                f"{image.path} has more than 8 bits a channel, which a training in colour cuts off;"
                " save it with 8"
            )
        if pairs_by_shape and label.only_in_right_half:
            case_problems.append(
                f"{label.path} has its labels in the right half alone, of a photograph"
                f" {TAKEN_FOR_A_PAIR}"
            )
        if case_problems:
            problems.extend(case_problems)
        else:
            lines.append(_line(image, label, folder))
    return lines, problems


def _notes_on_orientation(files: Sequence[tuple[FileFacts, FileFacts]], site: Path) -> list[str]:
    """A note on the volumes that store no orientation, if there are any."""
    paths = []
    for case in files:
        for facts in case:
            if not facts.is_oriented:
                paths.append(facts.path)
    if not paths:
        return []
    return [
        f"{site}: {len(paths)} volume(s) store no orientation, neither sform nor qform"
        f" ({all_named(paths, FEW_NAMED, separator=', ')}). It is taken for {ASSUMED_AXES}. Where"
        " that is wrong, write the right affine (nibabel: image.set_sform(affine))"
    ]


def _notes_on_shear(files: Sequence[tuple[FileFacts, FileFacts]], site: Path) -> list[str]:
    """A note on the labels with axes that are not at right angles, if there are any."""
    angles: dict[str, float] = {}
    for _, label in files:
        if label.affine is not None and (angle := _shear(label.affine)) > SHEAR_TOLERANCE:
            angles[label.path] = angle
    if not angles:
        return []
    return [
        f"{site}: {len(angles)} label(s) have axes up to {max(angles.values()):.3g} degrees away"
        f" from right angles ({all_named(list(angles), FEW_NAMED, separator=', ')}). Distances"
        " between surfaces (HD95) take them for right angles, and so are wrong. Resample"
        " image and label to a grid with right angles"
    ]


def _shear(affine: np.ndarray) -> float:
    """By how many degrees the axes of a volume are at most away from right angles.

    >>> _shear(np.diag([0.5, 0.5, 3.0, 1.0]))
    0.0
    """
    axes = affine[:3, :3] / np.linalg.norm(affine[:3, :3], axis=0)
    cosines = np.abs(axes.T @ axes)[np.triu_indices(3, k=1)]
    return float(np.degrees(np.arcsin(cosines.clip(max=1))).max())


def _notes_on_missing_structures(
    labels: Sequence[tuple[FileFacts, Values]], site: Path
) -> list[str]:
    """A note for each structure that some masks have and others lack.

    Args:
        labels: each with the values of its structures; a structure without values is not labelled
            there.
        site: for the notes.
    """
    masks_with: dict[str, list[str]] = {}
    masks_without: dict[str, list[str]] = {}
    for label, values in labels:
        # Empty masks have notes of their own.
        if not label.labelled_slices:
            continue
        for name, (low, high) in values.items():
            is_there = any(low <= level <= high for level in label.labels)
            masks = masks_with if is_there else masks_without
            masks.setdefault(name, []).append(label.path)
    notes = []
    for name, without in masks_without.items():
        if name not in masks_with:
            continue
        total = len(masks_with[name]) + len(without)
        notes.append(
            f"{site}: {name} in {len(masks_with[name])} of {total} masks; where it is missing, it"
            f" counts as absent ({all_named(without, FEW_NAMED, separator=', ')}). Where nobody"
            " drew it although it is there, list these cases by hand, with values that leave it out"
            " (docs/data.md): then it is neither trained nor scored there"
        )
    return notes


def _notes_on_empty(empty: Sequence[str], site: Path) -> list[str]:
    """A note for each image whose label is empty."""
    notes = []
    for name in empty[:MOST_NAMED]:
        path = os.path.abspath(layouts.folder_of_site(site) / name)
        notes.append(f"{path}: its label is empty; the case is kept")
    if len(empty) > MOST_NAMED:
        notes.append(f"{site}: {len(empty) - MOST_NAMED} more labels are empty")
    return notes


def _read_case(found: Found, case: CaseFiles) -> tuple[FileFacts, FileFacts]:
    most_axes = 4 if found.channels else 3
    return image_facts(case["image"], most_axes), label_facts(case["label"])


def _case_problems(image: FileFacts, label: FileFacts) -> list[str]:
    """What is wrong with the files of a case, and with the two together."""
    problems = [facts.problem for facts in (image, label) if facts.problem]
    if not image.shape or not label.shape:
        return problems
    if image.shape != label.shape:
        problems.append(
            f"{label.path} has shape {label.shape} but its image {image.shape}; resample the label"
        )
    if image.affine is not None and label.affine is not None:
        shift = largest_shift(image.affine, label.affine, image.shape, AFFINE_TOLERANCE)
        # Not "> 0", so that an affine that is not a number is a problem.
        if shift != 0:
            problems.append(
                f"{label.path} lies up to {shift:.3g} mm from its image, by the affines of the two"
                f" (allowed: {AFFINE_TOLERANCE} mm, and the rounding of rotations); check that the"
                " label belongs to this image, then give it the image's header"
            )
    if image.digest and image.digest == label.digest:
        problems.append(
            f"{label.path} has the very pixels of its image; put the label in its place"
        )
    return problems


def _line(image: FileFacts, label: FileFacts, folder: Path) -> dict[str, Any]:
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
    return line


def _values_of_structures(
    files: Sequence[tuple[FileFacts, FileFacts]],
    structures: Sequence[str],
    values: Mapping[str, Sequence[int]] | None,
    site: str,
) -> Values:
    """The values given by hand, or those found in the masks; empty where none are asked for."""
    if values:
        return check_values(values, structures, site)
    masks = [label for _, label in files if not label.problem]
    if structures and masks:
        return values_of_masks(masks, structures, site)
    return {}


def _values_in_no_mask(values: Values, lines: Sequence[Mapping[str, Any]]) -> list[str]:
    """A problem for each structure whose values no mask has."""
    labels = labels_of(lines)
    problems = []
    for name, (low, high) in values.items():
        if not any(low <= label <= high for label in labels):
            problems.append(
                f"values of {name!r} are [{low}, {high}], which no mask has: found are {labels}"
            )
    return problems


def labels_of(lines: Sequence[Mapping[str, Any]]) -> list[int]:
    """The different label values of all cases, sorted.

    >>> labels_of([{"labels": [0, 2]}, {"labels": [0, 1]}])
    [0, 1, 2]
    """
    labels: set[int] = set()
    for line in lines:
        labels.update(line["labels"])
    return sorted(labels)


def digests_of_cases(inspection: Inspection) -> list[str]:
    """SHA-256 of each case: of the pixels of its image and label, and where its voxels lie.

    A file's name, its compression and the rest of its header do not count.
    """
    digests = []
    for image, label in inspection.files:
        # Adding 0 makes one zero of -0 and 0.
        affine = [] if image.affine is None else (np.round(image.affine, 4) + 0).tolist()
        text = f"{image.digest} {label.digest} {affine}"
        digests.append(hashlib.sha256(text.encode()).hexdigest())
    return digests


def _notes(found: Found, files: Sequence[tuple[FileFacts, FileFacts]], site: Path) -> list[str]:
    """The layout's notes, images that are left out, and channels that need a choice or differ."""
    notes = [f"{site}: {note}" for note in (*found.notes, *left_out(found.cases, site))]
    images_with = Counter(image.channels for image, _ in files)
    most_channels = max(images_with, default=1)
    if found.channels and most_channels > 1:
        names = ", ".join(f"{number}: {name}" for number, name in enumerate(found.channels))
        notes.append(
            f"{site}: images have {most_channels} channels on axis 3 ({names}); the training must"
            " choose one"
        )
    if len(images_with) > 1:
        counts = [
            f"{count} of {channels} channel(s)" for channels, count in sorted(images_with.items())
        ]
        notes.append(
            f"{site}: images differ in their channels ({', '.join(counts)}); convert them, or let"
            " the training do it"
        )
    return notes


def _notes_on_pairs(files: Sequence[tuple[FileFacts, FileFacts]], site: Path) -> list[str]:
    """A note on photographs that are taken for stereo pairs by their shape, if there are any."""
    pairs = []
    for image, _ in files:
        if image.spacing:
            continue
        height, width = image.shape
        if is_pair(width, height):
            pairs.append(image.path)
    if not pairs:
        return []
    return [f"{site}: {len(pairs)} photograph(s), {pairs[0]} first, {TAKEN_FOR_A_PAIR}"]
