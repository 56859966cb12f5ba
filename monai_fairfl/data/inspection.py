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
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from monai_fairfl.data import layouts
from monai_fairfl.data.file_facts import FileFacts, image_facts, label_facts
from monai_fairfl.data.fundus import is_pair
from monai_fairfl.data.layouts import CaseFiles, Found
from monai_fairfl.data.layouts.base import few
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
# In degrees, from a right angle. What the rounding of a header's numbers makes is far smaller.
SHEAR_TOLERANCE = 0.1
# What nibabel assumes of a volume that stores no orientation (NIfTI-1, method 1).
ASSUMED_AXES = "LAS: axes to the left, to the front and to the head"
TAKEN_FOR_A_PAIR = (
    "taken for a stereo pair by its shape: only the left half is used; for single views set stereo"
    " to False"
)

Case = tuple[FileFacts, FileFacts]
"""Image and label."""


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
    files: Sequence[Case] = ()
    values: Mapping[str, list[int]] = MappingProxyType({})


def inspect_site(
    site_dir: str | os.PathLike[str],
    structures: Sequence[str] = (),
    values: Mapping[str, Sequence[int]] | None = None,
    stereo: bool | None = None,
    cases: Sequence[CaseFiles] | None = None,
) -> Inspection:
    """Read every file of a site, several at a time, and store facts of each.

    Args:
        site_dir: the site's folder, of any layout, or its data list (NVFlare).
        structures: names of nested structures whose pixel values are looked for, the outermost
            first.
        values: the same given by hand.
        stereo: whether photographs are pairs of views; by their shape where it is not given.
        cases: the only ones that are read, of a data list, with absolute paths and the values of
            their structures; faults of other files are not looked for. ``None``: all cases.

    Raises:
        DataError: no layout recognises the site.
    """
    site = Path(site_dir)
    problems: list[str] = []
    notes: list[str] = []
    if cases is None:
        layout = layouts.layout_of(site)
        try:
            found = layouts.LAYOUTS[layout].find(site)
        except UnpairedFiles as error:
            # The other files may have faults too, which are shown at the same time.
            problems = [f"{site}: {problem}" for problem in error.problems]
            found = Found(as_cases(error.pairs))
        notes = [f"{site}: {note}" for note in (*found.notes, *left_out(found.cases, site))]
    else:
        layout = "data list"
        channels: tuple[str, ...] = ()
        with suppress(DataError):  # of other files
            channels = layouts.find(site).channels
        found = Found(list(cases), channels=channels)

    def read(case: CaseFiles) -> Case:
        return image_facts(case["image"], 4 if found.channels else 3), label_facts(case["label"])

    with ThreadPoolExecutor(WORKERS) as pool:
        files = list(pool.map(read, found.cases))

    # What is wrong with each case, or a line on it.
    folder = layouts.folder_of_site(site)
    pairs_by_shape = bool(structures) and stereo is None
    lines = []
    for image, label in files:
        case_problems = _case_problems(image, label, bool(structures), pairs_by_shape)
        problems += case_problems
        if not case_problems:
            lines.append(_line(image, label, folder))

    # Pixel values of the structures.
    readable = [case for case in files if not (case[0].problem or case[1].problem)]
    masks = [label for _, label in files if not label.problem]
    known: Values = {}
    try:
        if values:
            known = check_values(values, structures, str(site))
        elif structures and masks and cases is None:
            known = values_of_masks(masks, structures, str(site))
    except DataError as error:
        problems.append(str(error))
    labels = labels_of(lines)
    for name, (low, high) in known.items():
        if lines and not any(low <= value <= high for value in labels):
            problems.append(
                f"values of {name!r} are [{low}, {high}], which no mask has: found are {labels}"
            )

    empty = [line["image"] for line in lines if not line["gland_slices"]]
    if cases is None and empty and len(empty) == len(files):
        problems.append(
            f"all {len(empty)} labels are empty; check that the right label files were exported"
        )
    values_of_labels = []
    for case, (_, label) in zip(found.cases, files, strict=True):
        if not label.problem:
            values_of_labels.append((label, case.get("values", known)))
    for note in (
        *_notes_on_images(readable, found.channels, pairs_by_shape),
        *_notes_on_labels(readable),
        *_notes_on_missing_structures(values_of_labels),
    ):
        notes.append(f"{site}: {note}")
    for name in empty[:MOST_NAMED]:
        notes.append(f"{os.path.abspath(folder / name)}: its label is empty; the case is kept")
    if len(empty) > MOST_NAMED:
        notes.append(f"{site}: {len(empty) - MOST_NAMED} more labels are empty")
    name = layouts.name_of_site(site)
    return Inspection(name, layout, lines, problems, notes, readable, known)


def _case_problems(
    image: FileFacts, label: FileFacts, in_colour: bool, pairs_by_shape: bool
) -> list[str]:
    """What is wrong with the files of a case, or with the two together."""
    problems = [facts.problem for facts in (image, label) if facts.problem]
    if problems:
        return problems
    if image.shape != label.shape:
        problems.append(
            f"{label.path} has shape {label.shape} but its image {image.shape}; resample the label"
        )
    elif image.affine is not None and label.affine is not None:
        shift = largest_shift(image.affine, label.affine, image.shape, AFFINE_TOLERANCE)
        # Not "> 0", so that an affine that is not a number is a problem.
        if shift != 0:
            problems.append(
                f"{label.path} lies up to {shift:.3g} mm from its image, by the affines of the two"
                f" (allowed: {AFFINE_TOLERANCE} mm, and the rounding of rotations); check that the"
                " label belongs to this image, then give it the image's header"
            )
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


def _notes_on_images(
    files: Sequence[Case], channels: Sequence[str], pairs_by_shape: bool
) -> list[str]:
    """Notes on channels that need a choice or differ, and on photographs taken for pairs.

    Args:
        files: of all cases.
        channels: their names, where the layout states them.
        pairs_by_shape: whether photographs are taken for pairs.
    """
    notes = []
    images_with = Counter(image.channels for image, _ in files)
    most_channels = max(images_with, default=1)
    if channels and most_channels > 1:
        names = ", ".join(f"{number}: {name}" for number, name in enumerate(channels))
        notes.append(
            f"images have {most_channels} channels on axis 3 ({names}); the training must choose"
            " one"
        )
    if len(images_with) > 1:
        counts = [
            f"{count} of {number} channel(s)" for number, count in sorted(images_with.items())
        ]
        notes.append(
            f"images differ in their channels ({', '.join(counts)}); convert them, or let the"
            " training do it"
        )
    pairs = []
    for image, _ in files:
        if pairs_by_shape and not image.spacing and is_pair(*reversed(image.shape)):
            pairs.append(image.path)
    if pairs:
        notes.append(f"{len(pairs)} photograph(s), {pairs[0]} first, {TAKEN_FOR_A_PAIR}")
    return notes


def _notes_on_labels(files: Sequence[Case]) -> list[str]:
    """Notes on volumes without orientation, and on labels without right angles."""
    notes = []
    unoriented = [facts.path for case in files for facts in case if not facts.is_oriented]
    if unoriented:
        notes.append(
            f"{len(unoriented)} volume(s) store no orientation, neither sform nor qform"
            f" ({few(unoriented)}). It is taken for {ASSUMED_AXES}. Where that is wrong, write the"
            " right affine (nibabel: image.set_sform(affine))"
        )
    angles = {}
    for _, label in files:
        if label.affine is not None and (angle := _shear(label.affine)) > SHEAR_TOLERANCE:
            angles[label.path] = angle
    if angles:
        notes.append(
            f"{len(angles)} label(s) have axes up to {max(angles.values()):.3g} degrees away from"
            f" right angles ({few(angles)}). Distances between surfaces (HD95) take them for"
            " right angles, and so are wrong. Resample image and label to a grid with right angles"
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
        if not label.labelled_slices:
            continue
        for name, (low, high) in values.items():
            masks[name] += 1
            if not any(low <= level <= high for level in label.labels):
                without.setdefault(name, []).append(label.path)
    notes = []
    for name, paths in without.items():
        number = masks[name] - len(paths)
        if number:
            notes.append(
                f"{name} in {number} of {masks[name]} masks; where it is missing, it counts as"
                f" absent ({few(paths)}). Where nobody drew it although it is there, list these"
                " cases by hand, with values that leave it out (docs/data.md): then it is neither"
                " trained nor scored there"
            )
    return notes


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
