# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""One file of a site, read to its end: what it holds, and what is wrong with it."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from monai_fairfl.data.fundus import is_pair
from monai_fairfl.data.layouts.coding import Coding, coding_of
from monai_fairfl.data.layouts.image_files import (
    forms_fault,
    grey,
    has_qform,
    has_sform,
    header_fault,
    is_nifti,
    read,
    read_nifti,
)
from monai_fairfl.errors import DataError

# Largest number of those that a training reads.
LARGEST_READ = float(np.finfo(np.float32).max)
# Colours of a mask drawn in colours; a photograph has more.
MOST_COLOURS = 16
# Different values of a label volume; an image has more.
MOST_LABELS = 256
# Shares of a label volume that are labelled: of the voxels at its sides, and of all. Those of an
# organ are far below (real prostates: 0 and 0.05), and those of a mask whose background is labelled
# in place of the organ are near 1.
MOST_OF_SIDES = 0.5
MOST_OF_VOLUME = 0.75


@dataclass(frozen=True)
class FileFacts:
    """What an inspection stores of a file; its pixels are not stored.

    Args:
        path: the file.
        problem: what is wrong with it, in a sentence; empty when nothing is.
        shape: pixels or voxels, without channels; empty when the file cannot be compared with its
            partner.
        channels: number of channels.
        digest: SHA-256 of the decoded pixels, the same for copies in another file format.
        affine: of a volume, 4 x 4, in mm.
        spacing: of a volume, voxel sizes in mm; empty for a picture.
        is_oriented: whether a volume stores its orientation; without it, nibabel assumes one.
        labels: different values of a label; of a noisy mask those that its pixels gather at.
        labelled_slices: slices of a label with a value that is not background.
        coding: of a mask that is a picture.
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
    coding: Coding | None = None
    over_8_bits: bool = False
    only_in_right_half: bool = False


def image_facts(path: str, most_axes: int) -> FileFacts:
    """Read an image.

    Args:
        path: the file.
        most_axes: of a volume: 4 where the layout states channels, else 3.
    """
    try:
        if is_nifti(path):
            return _volume_facts(path, most_axes, is_label=False)
        return _photograph_facts(path)
    except DataError as error:
        return FileFacts(path, str(error))


def label_facts(path: str) -> FileFacts:
    """Read a label."""
    try:
        if is_nifti(path):
            return _volume_facts(path, most_axes=3, is_label=True)
        return _mask_facts(path)
    except DataError as error:
        return FileFacts(path, str(error))


def _volume_facts(path: str, most_axes: int, is_label: bool) -> FileFacts:
    nifti, voxels = read_nifti(path)
    if not 3 <= voxels.ndim <= most_axes or voxels.dtype.kind not in "biuf":
        found = f"{voxels.ndim}D with shape {voxels.shape} and type {voxels.dtype}"
        return FileFacts(path, f"{path} is {found}; store one 3D volume of real numbers")
    fault = header_fault(path) or forms_fault(nifti)
    if fault:
        return FileFacts(path, f"{path} {fault}")
    channels = voxels.shape[3] if voxels.ndim == 4 else 1
    spacing = tuple(round(float(size), 4) for size in nifti.header.get_zooms()[:3])
    facts = FileFacts(
        path,
        shape=voxels.shape[:3],
        channels=channels,
        affine=nifti.affine,
        spacing=spacing,
        is_oriented=has_sform(nifti) or has_qform(nifti),
    )
    num_infinite = int(voxels.size - np.isfinite(voxels).sum())
    if num_infinite:
        problem = f"{path} has {num_infinite} values that are not finite; convert it again"
        return replace(facts, problem=problem)
    # Trainings read 32-bit numbers.
    with np.errstate(over="ignore"):
        read_voxels = voxels.astype(np.float32)
    num_too_large = int(voxels.size - np.isfinite(read_voxels).sum())
    if num_too_large:
        problem = (
            f"{path} has {num_too_large} values beyond {LARGEST_READ:.2g}, such as"
            f" {np.abs(voxels).max():.3g}, which become infinite where a training reads them with"
            " 32 bits; scale the image"
        )
        return replace(facts, problem=problem)
    if is_label:
        facts = _with_labels(facts, voxels, _scaling_of(nifti))
        if facts.problem:
            return facts
    elif read_voxels.min() == read_voxels.max():
        return replace(facts, problem=_constant(path, f"{read_voxels.min():g}", "voxels"))
    # Adding 0 makes one zero of -0 and 0.
    return replace(facts, digest=_digest(read_voxels + 0))


def _scaling_of(nifti: Any) -> str:
    """How a header scales the stored values, in words; empty where it does not."""
    slope = float(nifti.dataobj.slope)
    intercept = float(nifti.dataobj.inter)
    if (slope, intercept) == (1, 0):
        return ""
    return f"scl_slope {slope:.6g}, scl_inter {intercept:.6g}"


def _with_labels(facts: FileFacts, voxels: np.ndarray, scaling: str) -> FileFacts:
    """The facts of a label volume with its values, or with what is wrong with them.

    Args:
        facts: of the volume.
        voxels: its values, as they are read.
        scaling: as :func:`_scaling_of` gives it.
    """
    labels = np.unique(voxels)
    wrong = labels[(labels < 0) | (labels != np.round(labels))]
    if wrong.size:
        # All digits: 0.99999998 is no label.
        problem = f"{facts.path} has label values such as {wrong[0]!s}"
        if scaling:
            problem += f", because its header scales the stored numbers ({scaling})"
        problem += "; labels are whole numbers from 0"
        if scaling:
            problem += ", stored without a scale (nibabel: image.header.set_slope_inter(1, 0))"
        return replace(facts, problem=problem)
    if len(labels) > MOST_LABELS:
        problem = (
            f"{facts.path} has {len(labels)} different values, so it seems to be an image and no "
            "mask; put the mask in its place"
        )
        return replace(facts, problem=problem)
    is_labelled = voxels > 0
    share_of_sides = float(_in_plane_sides(is_labelled).mean())
    share_of_volume = float(is_labelled.mean())
    # Several structures may fill a volume, such as the tissues of a brain.
    has_one_structure = len(labels) <= 2
    fills = share_of_sides > MOST_OF_SIDES or share_of_volume > MOST_OF_VOLUME
    if has_one_structure and fills:
        problem = (
            f"{facts.path} labels {share_of_sides:.0%} of the voxels at the sides of its slices,"
            f" and {share_of_volume:.0%} of all, so its background seems to be labelled; give the"
            " background the value 0, and the structure 1"
        )
        return replace(facts, problem=problem)
    return replace(
        facts,
        labels=tuple(labels.astype(int).tolist()),
        labelled_slices=int(is_labelled.any(axis=(0, 1)).sum()),
    )


def _in_plane_sides(voxels: np.ndarray) -> np.ndarray:
    """The voxels at the four sides of all slices.

    The first and the last slice do not count: volumes may end within an organ.
    """
    sides = (voxels[0], voxels[-1], voxels[:, 0], voxels[:, -1])
    return np.concatenate([side.ravel() for side in sides])


def _constant(path: str, value: str, elements: str) -> str:
    """The problem of an image that shows nothing.

    Args:
        path: of the image.
        value: of its pixels or voxels.
        elements: what it is made of, such as ``voxels``.
    """
    return f"{path} has the value {value} in all its {elements}; convert or copy it again"


def _photograph_facts(path: str) -> FileFacts:
    pixels = read(path)
    facts = replace(_picture_facts(path, pixels), over_8_bits=pixels.itemsize > 1)
    is_constant = pixels.min(axis=(0, 1)) == pixels.max(axis=(0, 1))
    if is_constant.all():
        return replace(facts, problem=_constant(path, str(pixels[0, 0]), "pixels"))
    return facts


def _mask_facts(path: str) -> FileFacts:
    pixels = read(path)
    coding = coding_of(pixels, path)
    is_labelled = bool(coding.foreground)
    if _is_drawn_in_alpha(pixels):
        problem = (
            f"{path} is drawn in its alpha channel (transparency), which is not read: its colours"
            " are the same in all pixels; save that channel as grey levels"
        )
        return FileFacts(path, problem)
    facts = replace(
        _picture_facts(path, pixels),
        labels=tuple(sorted({*coding.levels, *coding.hidden})),
        labelled_slices=int(is_labelled),
        coding=coding,
    )
    height, width = pixels.shape[:2]
    if is_labelled and is_pair(width, height):
        left_half = coding_of(pixels[:, : width // 2])
        facts = replace(facts, only_in_right_half=left_half.levels == (coding.background,))
    if coding.levels:
        return facts

    # The pixels do not gather at a few values.
    is_coloured = grey(pixels) is None
    if is_coloured and coding.colours <= MOST_COLOURS:
        problem = (
            f"{path} has {coding.colours} colours; store a label in one channel of grey levels"
        )
        return replace(facts, problem=problem)
    kind = "colours" if is_coloured else "grey levels that do not gather at a few"
    problem = f"{path} has {coding.colours} {kind}, as photographs have; give its label"
    return replace(facts, problem=problem)


def _is_drawn_in_alpha(pixels: np.ndarray) -> bool:
    """Whether a picture shows something by its transparency alone.

    >>> _is_drawn_in_alpha(np.array([[[255, 0], [255, 200]]]))
    True
    """
    # Two channels are grey and alpha; four are colours and alpha.
    if pixels.ndim != 3 or pixels.shape[2] not in (2, 4):
        return False
    varies = pixels.min(axis=(0, 1)) != pixels.max(axis=(0, 1))
    return bool(varies[-1] and not varies[:-1].any())


def _picture_facts(path: str, pixels: np.ndarray) -> FileFacts:
    """Facts that photographs and masks have in common."""
    channels = pixels.shape[2] if pixels.ndim == 3 else 1
    # A grey picture has one digest, whether it is stored in one channel or in three.
    grey_levels = grey(pixels)
    compared = pixels if grey_levels is None else grey_levels
    return FileFacts(path, shape=pixels.shape[:2], channels=channels, digest=_digest(compared))


def _digest(pixels: np.ndarray) -> str:
    """SHA-256 of pixels with their shape and type."""
    if pixels.dtype != np.uint8:
        pixels = pixels.astype(np.float32)
    pixels = np.ascontiguousarray(pixels)
    header = f"{pixels.shape}{pixels.dtype}".encode()
    return hashlib.sha256(header + pixels.tobytes()).hexdigest()
