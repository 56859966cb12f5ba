# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""One file of a site, read once and to its end: what it holds, and what is wrong with it."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np
from scipy.ndimage import find_objects, maximum_filter, minimum_filter

from monai_fairfl.data.fundus import is_pair
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
# Different values of a label volume; an image has more.
MOST_LABELS = 256
# Colours of a mask drawn in colours; a photograph has more.
MOST_COLOURS = 16
# Numbers of classes are exact; values above are grey levels, which may have noise.
HIGHEST_CLASS = 31
# Different values of a mask of grey levels without noise; a photograph has more.
MOST_VALUES = 16
# Shares of a label volume that are labelled: of the voxels at its sides, and of all. Those of an
# organ are far below (real prostates: 0 and 0.05), and those of a mask whose background is labelled
# in place of the organ are near 1.
MOST_OF_SIDES = 0.5
MOST_OF_VOLUME = 0.75
# Grey levels in use, which JPEG and smoothed edges move; JPEG by up to RINGING.
USUAL_LEVELS = (0, 128, 255)
RINGING = 16
# Least share of a noisy mask's foreground that lies at a level, and least share of what lies around
# a level that lies very near it. On edges and in photographs it is less.
LEAST_SHARE = 0.05
LEAST_PEAK = 0.35
# Largest share of the foreground that may lie between the levels. In photographs it is more.
MOST_STRAY = 0.3


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
        labels: different values of a label; of a noisy mask those that its pixels gather at.
        background: the value that dominates the sides of a label.
        extents: value of a label -> pixels or voxels of the box around it.
        labelled_slices: slices of a label with a value that is not background.
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
    background: int = 0
    extents: Mapping[int, int] = field(default_factory=dict)
    labelled_slices: int = 0
    over_8_bits: bool = False
    only_in_right_half: bool = False


def image_facts(path: str, most_axes: int) -> FileFacts:
    """Read an image.

    Args:
        path: the file.
        most_axes: of a volume: 4 where the layout states channels, else 3.
    """
    return _facts(path, most_axes, is_label=False)


def label_facts(path: str) -> FileFacts:
    """Read a label."""
    return _facts(path, most_axes=3, is_label=True)


def _facts(path: str, most_axes: int, is_label: bool) -> FileFacts:
    path = os.path.abspath(path)
    try:
        state = os.stat(path)
        version = (state.st_ctime_ns, state.st_size)
    except OSError:
        # Reading the file raises the error that names it.
        version = (0, 0)
    try:
        return _facts_of_version(path, most_axes, is_label, version)
    except DataError as error:
        return FileFacts(path, str(error))


# A process reads each version of a file once: the check, the list and all clients share it.
@lru_cache(maxsize=8192)
def _facts_of_version(
    path: str, most_axes: int, is_label: bool, version: tuple[int, int]
) -> FileFacts:
    if is_nifti(path):
        return _volume_facts(path, most_axes, is_label)
    return _mask_facts(path) if is_label else _photograph_facts(path)


def _volume_facts(path: str, most_axes: int, is_label: bool) -> FileFacts:
    nifti, voxels = read_nifti(path)
    if not 3 <= voxels.ndim <= most_axes or voxels.dtype.kind not in "biuf":
        raise DataError(
            f"{path} is {voxels.ndim}D with shape {voxels.shape} and type {voxels.dtype}; store one"
            " 3D volume of real numbers"
        )
    fault = header_fault(nifti) or forms_fault(nifti)
    if fault:
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
        about_label = _labels_of_volume(path, nifti, voxels)
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


def _labels_of_volume(path: str, nifti: Any, voxels: np.ndarray) -> dict[str, Any]:
    """The facts of a label volume's values.

    Raises:
        DataError: what is wrong with them.
    """
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
    levels = labels.astype(int).tolist()
    is_labelled = voxels > 0
    share_of_sides = float(_sides(is_labelled).mean())
    share_of_volume = float(is_labelled.mean())
    # Several structures may fill a volume, such as the tissues of a brain.
    has_one_structure = len(labels) <= 2
    fills = share_of_sides > MOST_OF_SIDES or share_of_volume > MOST_OF_VOLUME
    if has_one_structure and fills:
        raise DataError(
            f"{path} labels {share_of_sides:.0%} of the voxels at the sides of its slices, and"
            f" {share_of_volume:.0%} of all, so its background seems to be labelled; give the"
            " background the value 0, and the structure 1"
        )
    return {
        **_about_levels(_numbers(voxels, levels), levels),
        "labelled_slices": int(is_labelled.any(axis=(0, 1)).sum()),
    }


def _sides(mask: np.ndarray) -> np.ndarray:
    """The pixels at the four sides of a picture, or of all slices of a volume.

    The first and the last slice do not count: volumes may end within an organ.
    """
    sides = (mask[0], mask[-1], mask[:, 0], mask[:, -1])
    return np.concatenate([side.ravel() for side in sides])


def _numbers(mask: np.ndarray, levels: list[int]) -> np.ndarray:
    """For each pixel the number, from 1, of the level that is nearest to it."""
    bounds = (np.array(levels[1:]) + np.array(levels[:-1])) / 2
    numbers = np.empty(mask.shape, np.uint16)
    # A row at a time, since NumPy's numbers take eight bytes each.
    for row, pixels in enumerate(mask):
        numbers[row] = np.digitize(pixels, bounds) + 1
    return numbers


def _about_levels(numbers: np.ndarray, levels: list[int]) -> dict[str, Any]:
    """Labels, background and extents of a mask, from the :func:`_numbers` of its levels."""
    background = levels[int(np.bincount(_sides(numbers)).argmax()) - 1]
    extents = {}
    for level, box in zip(levels, find_objects(numbers)):
        extents[level] = int(np.prod([side.stop - side.start for side in box or ()]))
    return {"labels": tuple(levels), "background": background, "extents": extents}


def _constant(path: str, value: str, elements: str) -> DataError:
    """The problem of an image that shows nothing: one value in all its voxels or pixels."""
    return DataError(
        f"{path} has the value {value} in all its {elements}; convert or copy it again"
    )


def _photograph_facts(path: str) -> FileFacts:
    pixels = read(path)
    if (pixels == pixels[0, 0]).all():
        raise _constant(path, str(pixels[0, 0]), "pixels")
    return FileFacts(path, **_picture_facts(pixels), over_8_bits=pixels.itemsize > 1)


def _mask_facts(path: str) -> FileFacts:
    pixels = read(path)
    mask = grey(pixels)
    if pixels.ndim == 3 and pixels.shape[2] in (2, 4):
        # Two channels are grey and alpha; four are colours and alpha.
        varies = pixels.min(axis=(0, 1)) != pixels.max(axis=(0, 1))
        if varies[-1] and not varies[:-1].any():
            raise DataError(
                f"{path} is drawn in its alpha channel (transparency), which is not read: its"
                " colours are the same in all pixels; save that channel as grey levels"
            )
    if mask is None:
        colours = len(np.unique(pixels.reshape(-1, pixels.shape[2]), axis=0))
        if colours > MOST_COLOURS:
            raise DataError(f"{path} has {colours} colours, as photographs have; give its label")
        raise DataError(
            f"{path} has {colours} colours; store a label in one channel of grey levels"
        )
    levels = _levels_of_picture(mask)
    if not levels:
        raise DataError(
            f"{path} has {len(np.unique(mask))} different values, grey levels that do not gather at"
            " a few, as photographs have; give its label"
        )
    numbers = _numbers(mask, levels)
    about = _about_levels(numbers, levels)
    is_labelled = numbers != levels.index(about["background"]) + 1
    height, width = mask.shape
    return FileFacts(
        path,
        **_picture_facts(pixels),
        **about,
        labelled_slices=int(is_labelled.any()),
        only_in_right_half=bool(
            is_pair(width, height) and is_labelled.any() and not is_labelled[:, : width // 2].any()
        ),
    )


def _levels_of_picture(mask: np.ndarray) -> list[int]:
    """The values of a mask, or those that its pixels gather at; none where they gather nowhere."""
    values, counts = np.unique(mask, return_counts=True)
    if (values != values.round()).any() or values[0] < 0:
        return []
    values = values.astype(int)
    # Values that no noise can have made.
    is_far_apart = np.diff(values).min(initial=HIGHEST_CLASS + 1) > HIGHEST_CLASS
    if values[-1] <= HIGHEST_CLASS or (len(values) <= 3 and is_far_apart):
        return values.tolist()
    is_foreground = np.abs(values - values[counts.argmax()]) > RINGING
    foreground = max(1, counts[is_foreground].sum())
    levels = []
    for level in USUAL_LEVELS:
        distances = np.abs(values - level)
        around = counts[distances <= RINGING].sum()
        very_near = counts[distances <= RINGING // 4].sum()
        if around >= LEAST_SHARE * foreground and very_near >= LEAST_PEAK * around:
            levels.append(level)
    if levels:
        distances = np.abs(values[:, None] - np.array(levels)).min(axis=1)
        stray = counts[distances > RINGING].sum()
        # Noise fills no areas. Where more values do than there are levels, these are structures.
        is_flat = minimum_filter(mask, 3) == maximum_filter(mask, 3)
        areas = np.unique(mask[is_flat], return_counts=True)[1]
        number_of_areas = (areas >= LEAST_SHARE * foreground).sum()
        if stray <= MOST_STRAY * foreground and number_of_areas <= len(levels):
            return levels
    return values.tolist() if len(values) <= MOST_VALUES else []


def _picture_facts(pixels: np.ndarray) -> dict[str, Any]:
    """Facts that photographs and masks have in common."""
    # A grey picture has one digest, whether it is stored in one channel or in three.
    grey_levels = grey(pixels)
    return {
        "shape": pixels.shape[:2],
        "channels": pixels.shape[2] if pixels.ndim == 3 else 1,
        "digest": _digest(pixels if grey_levels is None else grey_levels),
    }


def _digest(pixels: np.ndarray) -> str:
    """SHA-256 of pixels with their shape and type."""
    if pixels.dtype != np.uint8:
        pixels = pixels.astype(np.float32)
    pixels = np.ascontiguousarray(pixels)
    header = f"{pixels.shape}{pixels.dtype}".encode()
    return hashlib.sha256(header + pixels.tobytes()).hexdigest()
