# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""A site's files, each read once and to its end: what they hold and what is wrong with them."""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from monai_fairfl.data import layouts
from monai_fairfl.data.fundus import is_pair
from monai_fairfl.data.layouts import Case, Found
from monai_fairfl.data.layouts.image_files import (
    WORKERS,
    grey,
    header_fault,
    is_nifti,
    left_out,
    read,
    read_nifti,
)
from monai_fairfl.data.layouts.values import Coding, Values, check_values, coding_of, combine
from monai_fairfl.errors import DataError

AFFINE_TOLERANCE = (
    1e-2  # mm: a converter's rounding of a header is smaller, half a voxel is much larger
)
TAKEN_FOR_A_PAIR = "taken for a stereo pair by its shape: only the left half is used; for single views set stereo to False"
MOST_NAMED = 20  # empty labels named one by one
MOST_COLOURS = 16  # of a mask drawn in colours
MOST_LABELS = 256  # different values of a label volume; an image has more


@dataclass(frozen=True)
class FileFacts:
    """What is kept of a file when its pixels are gone.

    Args:
        path: the file.
        problem: what is wrong with it, in a sentence; empty when nothing is.
        shape: pixels or voxels, without channels; empty when the file cannot be compared with its
            partner.
        channels: number of channels.
        digest: SHA-256 of the decoded pixels, the same for copies in another file format.
        affine: of a volume, with the spacing in mm.
        labels: different values of a label; of a noisy mask those that its pixels gather at.
        slices: slices of a label with a value that is not background.
        coding: of a mask that is a picture.
        deep: a picture with more than 8 bits a channel.
        right: a label as wide as a stereo pair's, with all that is labelled in its right half.
    """

    path: str
    problem: str = ""
    shape: tuple[int, ...] = ()
    channels: int = 1
    digest: str = ""
    affine: np.ndarray | None = None
    spacing: tuple[float, ...] = ()
    labels: tuple[int, ...] = ()
    slices: int = 0
    coding: Coding | None = None
    deep: bool = False
    right: bool = False


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
    """Read every file of a site, as many at a time as there are threads, and keep only what is
    needed of each.

    Args:
        site_dir: the site's folder, of any layout, or its data list (NVFlare).
        structures: names of nested structures whose pixel values are looked for, the outermost
            first.
        values: the same given by hand.
        stereo: whether photographs are pairs of views; by their shape where it is not given.

    Raises:
        DataError: no layout recognises the site, or its files do not pair.
    """
    site = Path(site_dir)
    layout, base = layouts.layout_of(site), Path(
        os.path.abspath(site.parent if site.is_file() else site)
    )
    found = layouts.LAYOUTS[layout].find(site)
    with ThreadPoolExecutor(WORKERS) as pool:
        files = list(pool.map(partial(_read_case, found), found.cases))
    problems: list[str] = []
    lines: list[dict[str, Any]] = []
    for image, label in files:
        wrong = _problems(image, label)
        if structures and image.deep:
            wrong.append(
                f"{image.path} has more than 8 bits a channel, which a training in colour cuts off; save it with 8"
            )
        if structures and stereo is None and label.right:
            wrong.append(
                f"{label.path} has its labels in the right half alone, of a photograph {TAKEN_FOR_A_PAIR}"
            )
        problems += wrong
        lines += [] if wrong else [_line(image, label, base)]
    codings = [label.coding for _, label in files if label.coding and label.coding.levels]
    known: Values = {}
    labels = sorted({value for line in lines for value in line["labels"]})
    try:
        if values:
            known = check_values(values, structures, str(site))
        elif structures and codings:
            known = combine(codings, structures, str(site))
    except DataError as error:
        problems.append(str(error))
    problems += [
        f"values of {name!r} are [{low}, {high}], which no mask has: found are {labels}"
        for name, (low, high) in known.items()
        if lines and not any(low <= value <= high for value in labels)
    ]
    empty = [line["image"] for line in lines if not line["gland_slices"]]
    if lines and len(empty) == len(files):
        problems.append(
            f"all {len(empty)} labels are empty; check that the right label files were exported"
        )
    readable = [pair for pair in files if pair[0].digest and pair[1].digest]
    notes = _notes(found, readable, site)
    if structures and stereo is None:
        wide = [
            image.path for image, _ in readable if not image.spacing and is_pair(*image.shape[::-1])
        ]
        notes += (
            [f"{site}: {len(wide)} photograph(s), {wide[0]} first, {TAKEN_FOR_A_PAIR}"]
            if wide
            else []
        )
    notes += [
        f"{os.path.normpath(base / name)}: its label is empty; the case is kept"
        for name in empty[:MOST_NAMED]
    ]
    notes += (
        [f"{site}: {len(empty) - MOST_NAMED} more labels are empty"]
        if len(empty) > MOST_NAMED
        else []
    )
    name = site.stem if site.is_file() else base.name
    return Inspection(name, layout, lines, problems, notes, readable, known)


def _read_case(found: Found, case: Case) -> tuple[FileFacts, FileFacts]:
    return _facts(case["image"], found, False), _facts(case["label"], found, True)


def _facts(path: str, found: Found, is_label: bool) -> FileFacts:
    """Facts of one file, whose pixels are forgotten."""
    try:
        if is_nifti(path):
            return _volume(path, 4 if found.channels and not is_label else 3, is_label)
        return _picture(path, is_label)
    except DataError as error:
        return FileFacts(path, str(error))


def _volume(path: str, axes: int, is_label: bool) -> FileFacts:
    nifti, values = read_nifti(path)
    if not 3 <= values.ndim <= axes or values.dtype.kind not in "biuf":
        found = f"{values.ndim}D with shape {values.shape} and type {values.dtype}"
        return FileFacts(path, f"{path} is {found}; store one 3D volume of real numbers")
    if fault := header_fault(path):
        return FileFacts(path, f"{path} {fault}")
    spacing = tuple(round(float(size), 4) for size in nifti.header.get_zooms()[:3])
    channels = values.shape[3] if values.ndim == 4 else 1
    facts = FileFacts(path, "", values.shape[:3], channels, affine=nifti.affine, spacing=spacing)
    if infinite := int(values.size - np.isfinite(values).sum()):
        return replace(
            facts, problem=f"{path} has {infinite} values that are not finite; convert it again"
        )
    if is_label:
        labels = np.unique(values)
        wrong = labels[(labels < 0) | (labels != np.round(labels))]
        if wrong.size:
            problem = (
                f"{path} has label values such as {wrong[0]:g}; labels are whole numbers from 0"
            )
            return replace(facts, problem=problem)
        if len(labels) > MOST_LABELS:
            return replace(
                facts,
                problem=f"{path} has {len(labels)} label values, as images have; give its label",
            )
        slices = int((values > 0).any(axis=(0, 1)).sum())
        facts = replace(facts, labels=tuple(labels.astype(int).tolist()), slices=slices)
    return replace(
        facts, digest=_digest(values.astype(np.float32) + 0)
    )  # + 0 makes one zero of -0 and 0


def _picture(path: str, is_label: bool) -> FileFacts:
    pixels = read(path)
    plain = grey(pixels)
    channels = pixels.shape[2] if pixels.ndim == 3 else 1
    facts = FileFacts(
        path, "", pixels.shape[:2], channels, _digest(pixels if plain is None else plain)
    )
    if not is_label:
        return replace(facts, deep=pixels.itemsize > 1)
    coding = coding_of(pixels, path)
    slices = int(bool(coding.foreground))
    labels = tuple(sorted({*coding.levels, *coding.hidden}))
    facts = replace(facts, labels=labels, slices=slices, coding=coding)
    height, width = pixels.shape[:2]
    if slices and is_pair(width, height):
        left = coding_of(pixels[:, : width // 2])
        facts = replace(facts, right=left.levels == (coding.background,))
    if coding.levels:
        return facts
    if plain is None and coding.colours <= MOST_COLOURS:
        return replace(
            facts,
            problem=f"{path} has {coding.colours} colours; store a label in one channel of grey levels",
        )
    kind = "colours" if plain is None else "grey levels that do not gather at a few"
    return replace(
        facts, problem=f"{path} has {coding.colours} {kind}, as photographs have; give its label"
    )


def _digest(pixels: np.ndarray) -> str:
    content = np.ascontiguousarray(
        pixels if pixels.dtype == np.uint8 else pixels.astype(np.float32)
    )
    return hashlib.sha256(
        f"{content.shape}{content.dtype}".encode() + content.tobytes()
    ).hexdigest()


def _problems(image: FileFacts, label: FileFacts) -> list[str]:
    """What is wrong with the files of a case, and with the two together."""
    problems = [facts.problem for facts in (image, label) if facts.problem]
    if not image.shape or not label.shape:
        return problems
    if image.shape != label.shape:
        problems.append(
            f"{label.path} has shape {label.shape} but its image {image.shape}; resample the label"
        )
    if image.affine is not None and label.affine is not None:
        gap = float(np.abs(image.affine - label.affine).max())
        if not gap <= AFFINE_TOLERANCE:
            problems.append(
                f"{label.path} and its image have affines up to {gap:.4g} apart (allowed: {AFFINE_TOLERANCE});"
                " check that the label belongs to this image, then give it the image's header"
            )
    if image.digest and image.digest == label.digest:
        problems.append(
            f"{label.path} has the very pixels of its image; put the label in its place"
        )
    return problems


def _line(image: FileFacts, label: FileFacts, base: Path) -> dict[str, Any]:
    line: dict[str, Any] = {"image": os.path.relpath(image.path, base), "shape": list(image.shape)}
    if image.spacing:
        line["spacing"] = list(image.spacing)
    if image.channels > 1 or not image.spacing:
        line["channels"] = image.channels
    return line | {"labels": list(label.labels), "gland_slices": label.slices}


def _notes(found: Found, files: Sequence[tuple[FileFacts, FileFacts]], site: Path) -> list[str]:
    """Channels that need a choice or that differ, and what the layout has to say."""
    notes = [f"{site}: {note}" for note in (*found.notes, *left_out(found.cases, site))]
    channels = Counter(image.channels for image, _ in files)
    if found.channels and max(channels, default=1) > 1:
        names = ", ".join(f"{number}: {name}" for number, name in enumerate(found.channels))
        notes.append(
            f"{site}: images have {max(channels)} channels on axis 3 ({names}); the training must choose one"
        )
    if len(channels) > 1:
        counts = ", ".join(f"{n} of {number} channel(s)" for number, n in sorted(channels.items()))
        notes.append(
            f"{site}: images differ in their channels ({counts}); convert them, or let the training do it"
        )
    return notes
