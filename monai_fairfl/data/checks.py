# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Checks of one site or of all, which find what would stop or spoil a training before it begins.

Each file is read once and to its end.
"""

from __future__ import annotations

import hashlib
import os
import re
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np
import torch
from monai.transforms import CenterScaleCrop, Resize

from monai_fairfl.data.datalist import site_datalist, values_of
from monai_fairfl.data.image_files import (
    WORKERS,
    WRITE_AGAIN,
    files_under,
    forms_fault,
    grey,
    is_lossy,
    is_nifti,
    is_oriented,
    largest_shift,
    read_picture,
    read_volume,
    sort_files,
)
from monai_fairfl.data.layouts import (
    CONVERT_DICOM,
    FILES,
    HIGHEST_CLASS,
    PARTS,
    CaseFiles,
    Found,
    StrPath,
    Values,
    all_named,
    described_labels,
    few,
    name_and_folder,
    recognise,
    text_of_files,
)
from monai_fairfl.data.transforms import is_pair
from monai_fairfl.errors import DataError, DataWarning, FairFLError
from monai_fairfl.utils.files import safe_name
from monai_fairfl.utils.tables import text_of_table
from monai_fairfl.utils.terminal import warnings_as_notes

# Different values of a label volume, and of a mask that is a picture; an image has more.
MOST_LABELS = 256
MOST_LEVELS = 16
# Masks in JPEG have the levels 0, 128 and 255: what lies between these, and the least share of what
# is labelled that the middle one has: where it is an edge of the others, few pixels have it.
BETWEEN_LEVELS = (65, 192)
LEAST_SHARE = 0.1
# Among the numbers of classes, it is what several tools write where nobody judged.
VOID = 255
# Names in a dataset.json: of what is no organ, and of what nobody judged, such as nnU-Net's ignore.
BACKGROUND = "background"
IGNORED = re.compile(
    "(?<![a-z])(ignore|void|un(label|annotated|known|sure)|not[ _-]?(annotated|labell?ed)"
    "|don.?t[ _-]?care)",
    re.IGNORECASE,
)
# Share of the sides of a mask of one structure that is labelled. That of an organ is far below, and
# that of a mask whose background is labelled in place of the organ is near 1.
MOST_OF_SIDES = 0.5
# In mm, at the first voxel. A converter's rounding of a header is smaller, half a voxel is much
# larger.
AFFINE_TOLERANCE = 1e-2
# Share of a label that a network sees; below it, its image was cropped beside the organ.
LEAST_SEEN = 0.9
# What the bundles see, where nothing else is set: the share of each side of a volume's slice, the
# pixels to which it is resampled, and those of each side to which a photograph is.
FIELD_OF_VIEW = 0.7
SIZE = (96, 96)
WORKING_SIZE = 512
# Width / height below which a photograph is one view; RIM-ONE r3's pairs have 1.5.
NARROWEST = 1.45


@dataclass(frozen=True)
class FileFacts:
    """What an inspection stores of a file; its pixels are not stored.

    Args:
        path: the file, absolute.
        shape: pixels or voxels, without channels.
        channels: number of channels.
        digest: SHA-256 of the decoded pixels, the same for copies in another file format.
        affine: of a volume, 4 x 4, in mm.
        is_oriented: whether a volume stores its orientation; without it, nibabel assumes one.
        labels: different values of a label.
        of_sides: share of a label's pixels at its sides, or at those of its slices, above 0.
        seen: share of a label volume's voxels above 0 in the central part of its slices.
        lost: value that no pixel has where a network resamples that part, or a picture -> the
            setting to enlarge.
        over_8_bits: whether it is a picture with more than 8 bits a channel.
    """

    path: str
    shape: tuple[int, ...]
    channels: int
    digest: str
    affine: np.ndarray | None = None
    is_oriented: bool = True
    labels: Sequence[int] = ()
    of_sides: float = 0.0
    seen: float = 1.0
    lost: Mapping[int, str] = field(default_factory=dict)
    over_8_bits: bool = False

    def values_in(self, *bounds: Sequence[int]) -> list[int]:
        """The values of a label between the lowest and the highest one of any structure."""
        return [each for each in self.labels if any(low <= each <= high for low, high in bounds)]


@dataclass(frozen=True)
class CaseFacts:
    """A sound case: an image and its label.

    Args:
        image: of the case.
        label: of the case.
        values: the pixel values of its structures.
        is_labelled: whether a voxel or pixel has a value of any structure.
        digest: SHA-256 of the pixels of both, and where the image's voxels lie. A file's name, its
            compression and the rest of its header do not count.
    """

    image: FileFacts
    label: FileFacts
    values: Values
    is_labelled: bool
    digest: str


class Summary(dict[str, Any]):
    """What an inspection found at a site, for JSON, see :func:`check_cases`.

    Args:
        site: its folder, or its data list.
        found: what its files say.
        values: structure -> lowest and highest pixel value, where structures were asked for.
        cases: those that a training can use.

    Attributes:
        folder: that its paths begin at.
        sound: the cases.
        refused: file of another case -> what is wrong with that.
        problems: what would stop or spoil a training, each with file and fix.
        notes: what else a user should know.
    """

    def __init__(
        self, site: StrPath, found: Found, values: Values, cases: Sequence[CaseFacts]
    ) -> None:
        name, self.folder = name_and_folder(site)
        self.sound, self.refused = cases, dict[str, str]()
        self.problems, self.notes = list(found.problems), list[str]()
        labels = sorted({label for case in cases for label in case.label.labels})
        super().__init__(site=name, layout=found.layout, num_cases=len(cases), labels=labels)
        self |= {"names": found.labels, "values": values}


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
        size: pixels to which it resamples this share, or a picture; empty: those of the file.
        version: of the file.

    Raises:
        DataError: what is wrong with it.
    """
    read = _volume if is_nifti(path) else _picture
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
        nearest = np.digitize(pixels, BETWEEN_LEVELS)
        counts = np.bincount(nearest.ravel(), minlength=3)
        middle = 128 if counts[1] > LEAST_SHARE * counts[1:].sum() else 255
        pixels = np.array([0, middle, 255])[nearest]
    is_labelled = pixels > 0
    # The first and the last slice of a volume are no sides: volumes may end within an organ.
    ends = [0, -1]
    sides = np.concatenate([is_labelled[ends].ravel(), is_labelled[:, ends].ravel()])
    labels = np.unique(pixels).astype(int).tolist()
    facts = replace(facts, labels=labels, of_sides=float(sides.mean()))
    if not is_labelled.any():
        return facts
    # What a network sees of axial slices, or of a photograph, and at how many pixels.
    is_volume = facts.affine is not None
    axes = nib.io_orientation(facts.affine)[:, 0].astype(int) if is_volume else [1, 0]
    whole = torch.from_numpy(pixels.astype(np.float32))[None]
    share = field_of_view if is_volume else 1
    central = CenterScaleCrop([share if axis < 2 else 1 for axis in axes])(whole)
    pixels_of = [size[axis] if axis < len(size[:2]) else -1 for axis in axes]
    sampled = Resize(pixels_of, mode="nearest-exact")(central)
    enlarge = "size" if is_volume else "working_size"
    lost = {
        label: enlarge if label in central else "field_of_view"
        for label in labels
        if label > 0 and label not in sampled
    }
    return replace(facts, seen=float((central > 0).sum() / is_labelled.sum()), lost=lost)


def _volume(path: str, is_label: bool) -> tuple[FileFacts, np.ndarray]:
    """Facts of a volume, and its voxels as a training reads them."""
    nifti, read = read_volume(path, most_axes=3 if is_label else 4)
    if fault := forms_fault(nifti):
        raise DataError(f"{path} {fault}")
    channels = (*read.shape, 1)[3]
    # Adding 0 makes one zero of -0 and 0.
    digest = _digest(read + 0)
    return FileFacts(path, read.shape[:3], channels, digest, nifti.affine, is_oriented(nifti)), read


def _picture(path: str, is_label: bool) -> tuple[FileFacts, np.ndarray]:
    """Facts of a picture, and its pixels; of one without colours, its grey levels."""
    pixels = read_picture(path)
    levels = grey(pixels)
    channels = pixels.shape[2] if pixels.ndim == 3 else 1
    if is_label and levels is None:
        colours = len(np.unique(pixels.reshape(-1, channels), axis=0))
        raise DataError(f"{path} has {colours} colours, as a photo has; draw it in grey levels")
    # A grey picture has one digest, whether it is stored in one channel or in three.
    levels = pixels if levels is None else levels
    is_deep = pixels.itemsize > 1
    facts = FileFacts(path, pixels.shape[:2], channels, _digest(levels), over_8_bits=is_deep)
    return facts, levels


def _digest(pixels: np.ndarray) -> str:
    """SHA-256 of pixels with their shape and type."""
    if pixels.dtype != np.uint8:
        pixels = pixels.astype(np.float32)
    header = f"{pixels.shape}{pixels.dtype}".encode()
    return hashlib.sha256(header + np.ascontiguousarray(pixels).tobytes()).hexdigest()


def _fault_of_place(image: Any, label: Any) -> str:
    """Why a label lies beside the grid of its image, in whatever order volumes are stored."""
    shape, shift = label.shape, 0.0
    if image.affine is not None and label.affine is not None:
        # The label in the order of its image, as both are reoriented for a training.
        orders = map(nib.io_orientation, (label.affine, image.affine))
        turn = nib.orientations.ornt_transform(*orders)
        shape = tuple(np.array(shape)[turn[:, 0].argsort()].tolist())
        place = label.affine @ nib.orientations.inv_ornt_aff(turn, label.shape)
        shift = largest_shift(image.affine, place, shape, AFFINE_TOLERANCE)
    if shape != image.shape:
        return f"has shape {label.shape} but its image {image.shape}"
    return f"lies up to {shift:.3g} mm from its image, by their affines" if shift else ""


def _faults(
    image: FileFacts, label: FileFacts, named: Values, is_by_hand: bool, structures: Sequence[str]
) -> Iterator[str]:
    """What is wrong with two files together, and with the values of the label.

    Args:
        image: of the case.
        label: of the case.
        named: what values mean by a ``dataset.json``.
        is_by_hand: whether a user gave the values of the structures.
        structures: those that were asked for.
    """
    path, levels, listed = label.path, len(label.labels), few(label.labels)
    is_volume = label.affine is not None
    if fault := _fault_of_place(image, label):
        fix = "resample it on the grid of its image with nearest neighbours if it lies right"
        yield f"{path} {fault}; {fix}, else export it again"
    if image.digest == label.digest:
        yield f"{path} has the very pixels of its image; put the label in its place"
    if structures and image.over_8_bits:
        yield f"{image.path} has more than 8 bits a channel, which are cut off; save it with 8"

    for name, bounds in named.items():
        ignored = label.values_in(bounds)
        # Some tools call the background unlabelled.
        if ignored and bounds[1] > 0 and IGNORED.search(name):
            yield f"{path} has the value {ignored[0]}, {name!r} in dataset.json; draw what is there"
    if is_lossy(path) and any(low == high > 0 for low, high in named.values()):
        yield f"{path} is JPEG, whose values move; give each label a range, such as [128, 255]"
    if levels > (MOST_LABELS if is_volume else MOST_LEVELS) and not is_by_hand:
        yield f"{path} has {levels} different values, as an image has; put the mask in its place"
    unnamed = sorted({*label.labels} - {*label.values_in(*named.values())})
    if named and unnamed and not is_by_hand:
        yield f"{path} has {listed}, and dataset.json names no {unnamed[0]}; mend one of them"
    # Several structures may fill a mask, such as the tissues of a brain.
    is_stated = bool(named) or is_by_hand
    if levels <= 2 and label.of_sides > MOST_OF_SIDES and (is_volume or not is_stated):
        yield f"{path} labels most of its sides; give the background the value 0, and the organ 1"
    names = " and ".join(structures)
    wanted = {name.lower() for name in structures}
    others = sorted({*named} - {BACKGROUND, *wanted})
    others = [name for name in others if not IGNORED.search(name)]
    if others and wanted - {*named} and not is_by_hand:
        yield f"{path}: dataset.json names {few(others)}; call the structures {names} there"
    if is_stated:
        return
    if VOID in label.labels and any(0 < value <= HIGHEST_CLASS for value in label.labels):
        yield f"{path} has {listed}, and {VOID} is often void; name all in dataset.json"
    if structures and levels > 2:
        example = '{"labels": {"background": 0, "disc": [1, 2], "cup": 2}}'
        yield f"{path} has the values {listed}; state {names} in dataset.json, such as {example}"


def _notes_on_cases(
    cases: Sequence[CaseFacts], stereo: bool | None, field_of_view: float
) -> Iterator[str]:
    """What a user should know of sound cases.

    Args:
        cases: all of them.
        stereo: see :func:`check_cases`.
        field_of_view: share of each side of a slice that a network sees of volumes.
    """
    images = [case.image for case in cases]
    labels = [case.label for case in cases]
    photographs = [image for image in images if image.affine is None]
    channels = {image.channels for image in images}
    if len(channels) > 1 or (channels - {1} and not photographs):
        counts = " or ".join(map(str, channels))
        yield f"images have {counts} channels, axis 3 of volumes; choose one, or convert them"
    pairs = [image.path for image in photographs if is_pair(*image.shape[::-1])]
    if stereo is None and pairs:
        taken = f"taken for stereo pairs ({few(pairs)}): the left half is used"
        yield f"{len(pairs)} photograph(s) {taken}, unless stereo is False"
    single = [image.path for image in photographs if image.shape[1] < NARROWEST * image.shape[0]]
    if stereo and single:
        taken = f"too narrow for stereo pairs ({few(single)}), and lose their right half"
        yield f"{len(single)} photograph(s) are {taken}; set stereo to False at this site"
    if unoriented := [facts.path for facts in (*images, *labels) if not facts.is_oriented]:
        # What nibabel assumes (NIfTI-1, method 1).
        assumed = f"store no orientation ({few(unoriented)}), taken for LAS: left, front, head"
        yield f"{len(unoriented)} volume(s) {assumed}; if that is wrong, {WRITE_AGAIN}"
    if cut := sorted((label.seen, label.path) for label in labels if label.seen < LEAST_SEEN):
        named = few(f"{path}: {seen:.0%}" for seen, path in cut)
        fix = "set field_of_view to 1, or crop the volumes around the organ"
        yield f"{len(cut)} label(s) leave the {field_of_view:.0%} that is seen ({named}); {fix}"
    for setting in ("size", "field_of_view", "working_size"):
        unseen: dict[str, list[Any]] = {}
        for label, values in [(case.label, case.values) for case in cases if case.label.seen]:
            lost = [value for value in label.lost if label.lost[value] == setting]
            # A structure may have several values; a photograph without structures needs no size.
            drawn = {name: {*label.values_in(values[name])} for name in values}
            names = [name for name in drawn if drawn[name] and drawn[name] <= {*lost}]
            if those := names if values or setting == "working_size" else lost:
                unseen[label.path] = those
        if unseen:
            named = few(f"{path}: {few(those)}" for path, those in unseen.items())
            fault = f"{len(unseen)} label(s) have a structure that the network does not see"
            yield f"{fault} ({named}); set a larger {setting}"
    # A structure without values is not labelled there, and empty masks have notes of their own.
    for name in sorted({name for case in cases for name in case.values}):
        known = [case for case in cases if case.is_labelled and name in case.values]
        without = [case.label.path for case in known if not case.label.values_in(case.values[name])]
        if without:
            absent = f"{name} counts as absent in {len(without)} masks ({few(without)})"
            yield f"{absent}; if nobody drew it, list these by hand, with values without {name}"


# What a user sees of a site


def check_cases(
    site_dir: StrPath,
    structures: Sequence[str] = (),
    values: Mapping[str, Sequence[int]] | None = None,
    stereo: bool | None = None,
    cases: Sequence[CaseFiles] | None = None,
    field_of_view: float = FIELD_OF_VIEW,
    size: Sequence[int] = SIZE,
    working_size: int = WORKING_SIZE,
    listed: Sequence[CaseFiles] = (),
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
        working_size: as ``size``, of each side of a photograph.
        listed: cases of a data list by hand, whose values of structures count.
        must: whether problems are an error, and notes warnings.

    Returns:
        For JSON: ``site``, ``layout``, ``num_cases``, ``labels`` (values found), ``names`` (what
        labels mean by a ``dataset.json``) and ``values`` (of structures that were asked for).

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
    sides = [*size, working_size] if isinstance(size, Sequence) else [None]
    if not all(isinstance(side, int) and side > 0 for side in sides):
        given = f"size is {size} and working_size {working_size}"
        raise DataError(
            f"{given}: give whole numbers above 0, such as {[*SIZE]} and {WORKING_SIZE}"
        )
    if cases is None:
        found = recognise(site_dir)
    else:
        found = Found("data list", cases, labels=described_labels(site_dir))
    known = values_of(structures, found, values, site_dir)
    by_list = {os.path.abspath(case["label"]): case.get("values") for case in listed}
    organs = {
        name: bounds
        for name, bounds in found.labels.items()
        if name != BACKGROUND and bounds[1] > 0
    }

    def look(case: CaseFiles) -> CaseFacts | str:
        facts = []
        try:
            for name in FILES:
                path = os.path.abspath(case[name])
                version = os.path.exists(path) and (os.path.getctime(path), os.path.getsize(path))
                pixels = tuple(size) if is_nifti(path) else (working_size,) * 2
                facts.append(facts_of(path, name == "label", field_of_view, pixels, version))
        except DataError as error:
            return str(error)
        image, label = facts
        of_case = by_list.get(label.path) or case.get("values", known)
        by_hand = bool(values) or of_case != known
        for fault in _faults(image, label, found.labels, by_hand, structures):
            return fault
        drawn = (of_case or organs).values()
        is_labelled = bool(label.values_in(*drawn) if drawn else [*filter(None, label.labels)])
        # Adding 0 makes one zero of -0 and 0.
        place = [] if image.affine is None else (np.round(image.affine, 4) + 0).tolist()
        digest = hashlib.sha256(f"{image.digest} {label.digest} {place}".encode()).hexdigest()
        return CaseFacts(image, label, of_case, is_labelled, digest)

    with ThreadPoolExecutor(WORKERS) as pool:
        looks = list(pool.map(look, found.cases))
    summary = Summary(site_dir, found, known, [one for one in looks if not isinstance(one, str)])
    for case, fault in zip(found.cases, looks):
        if isinstance(fault, str):
            summary.problems.append(fault)
            summary.refused |= {os.path.abspath(case[name]): fault for name in FILES}
    notes = [*_notes_on_cases(summary.sound, stereo if structures else False, field_of_view)]
    empty = [case.label.path for case in summary.sound if not case.is_labelled]
    if cases is None and empty and len(empty) == len(looks):
        summary.problems.append(
            f"{site_dir}: all {len(empty)} labels are empty; export the right ones"
        )
    if empty:
        notes.append(f"{len(empty)} label(s) are empty, and kept ({few(empty)})")
    summary.notes += [f"{site_dir}: {note}" for note in notes]
    if must and summary.problems:
        first = all_named(summary.problems, 3, separator="\n- ")
        raise DataError(f"{site_dir}: {len(summary.problems)} problem(s)\n- {first}")
    if must:
        for note in [*summary.notes, *notes_on_sites({summary["site"]: summary})]:
            warnings.warn(note, DataWarning, stacklevel=2)
    return summary


def notes_on_sites(sites: Mapping[str, Summary]) -> list[str]:
    """Find images that occur twice, and masks with several values above 0.

    Images are compared by the SHA-256 of their decoded pixels, so a copy in another lossless format
    counts too. A score on an image that was trained elsewhere is too good. The values are those of
    volumes whose structures were not looked for.

    Args:
        sites: site -> its summary.

    Returns:
        One sentence for each group of copies, and one for the values, with the fix.
    """
    # Digest of an image -> where each of its copies is.
    images: dict[str, list[str]] = {}
    labels: dict[str, list[int]] = {}
    for site, summary in sites.items():
        for case in summary.sound:
            images.setdefault(case.image.digest, []).append(f"{site}: {case.image.path}")
        found = [label for label in summary["labels"] if label > 0]
        is_of_volumes = any(case.image.affine is not None for case in summary.sound)
        if found and is_of_volumes and not summary["values"]:
            labels[site] = found
    copied = [copies for copies in images.values() if len(copies) > 1]
    notes = [f"an image occurs {len(each)} times, {', '.join(each)}. Keep one." for each in copied]
    if max(map(len, labels.values()), default=0) > 1:
        listed = [f"{site} has {few(_named(sites[site], labels[site]))}" for site in labels]
        notes.append(
            f"masks have several labels: {'; '.join(listed)}; the prostate bundle takes all above "
            "0 for the gland: set what is none to 0"
        )
    return notes


def _named(summary: Mapping[str, Any], labels: Sequence[int]) -> list[str]:
    """Values of labels, and what they mean by the site's ``dataset.json``.

    >>> _named({"names": {"disc": [1, 2], "cup": [2, 2]}}, [2, 3])
    ['2 (disc, cup)', '3']
    """
    known = [item for item in summary["names"].items() if item[0] != BACKGROUND]
    found = []
    for label in labels:
        names = [name for name, (low, high) in known if low <= label <= high]
        found.append(f"{label} ({', '.join(names)})" if names else str(label))
    return found


def overview(
    sites: Mapping[str, StrPath],
    structures: Sequence[str] = (),
    noticed: Sequence[str] = (),
    root: StrPath | None = None,
) -> tuple[dict[str, Any], str]:
    """Read every file of every site once, and report what each holds.

    Sites with problems are reported too. Nothing is written.

    Args:
        sites: site -> its folder or data list, as :func:`~monai_fairfl.data.site_folders` gives
            them.
        structures: names of nested structures whose pixel values are looked for, the outermost
            first.
        noticed: notes that the caller already has, such as on folders that are no site.
        root: the folder whose files are counted; ``None``: those of the sites.

    Returns:
        For JSON: ``sites`` (see :func:`~monai_fairfl.data.check_cases`, and the number of cases in
        each part), ``warnings`` and ``problems``, sentences, and ``files`` (see
        :func:`sorted_out`); and the same without problems as a table and lines of text.

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
    summaries: dict[str, Summary] = {}
    for name, path in sites.items():
        summary = Summary(path, Found("–"), {}, ())
        datalist: dict[str, list[CaseFiles]] = {}
        try:
            summary = check_cases(path, structures, must=False)
            if len(sites) > 1:
                # One hospital's own folder is no name in a federation.
                safe_name(name, "the name of the hospital's folder")
            if not summary.problems:
                with warnings_as_notes() as notes_on_split:
                    datalist = site_datalist(path, None, structures)
                summary.notes += notes_on_split
        except FairFLError as error:
            summary.problems.append(str(error))
        summaries[name] = summary
        notes += summary.notes
        problems += [f"site {name!r}: {fault}" for fault in summary.problems]
        summary |= {part: len(cases) for part, cases in datalist.items()}
        notes += notes_on_parts(summary, datalist)
    notes += notes_on_sites(summaries)
    roots = [Path(root)] if root is not None else [each.folder for each in summaries.values()]
    counts = sorted_out(roots, summaries.values())
    told = "\n".join(problems)
    found = f"{len(summaries)} site(s), {len(notes)} note(s), {len(problems)} problem(s)"
    text = [as_table(summaries), ""]
    text += [f"note: {note}" for note in notes]
    text += [f"{found} that would stop a training", text_of_files(counts, told)]
    data = {"sites": summaries, "warnings": notes, "problems": problems, "files": counts}
    return data, "\n".join(text)


def notes_on_parts(summary: Summary, parts: Mapping[str, Sequence[CaseFiles]]) -> list[str]:
    """A note for each part of a site's split whose labels are all empty."""
    labelled = {case.label.path for case in summary.sound if case.is_labelled}
    notes = []
    for part, cases in parts.items():
        if cases and labelled.isdisjoint(os.path.abspath(case["label"]) for case in cases):
            notes.append(
                f"site {summary['site']!r}: all labels of its {part} cases are empty; split by "
                "another seed, or a list by hand"
            )
    return notes


def sorted_out(roots: Iterable[Path], summaries: Iterable[Summary]) -> dict[str, Any]:
    """What became of every file of some folders; each is in one of the three.

    Args:
        roots: the folders.
        summaries: of the sites in them.

    Returns:
        As :func:`~monai_fairfl.data.image_files.sort_files`; used are images and labels of sound
        cases.
    """
    used: set[str] = set()
    reasons: dict[str, str] = {}
    for summary in summaries:
        reasons |= summary.refused
        for case in summary.sound:
            used |= {case.image.path, case.label.path}

    errors: list[OSError] = []
    found = {os.path.abspath(path) for root in roots for path in files_under(root, errors.append)}
    closed = {os.path.abspath(error.filename) for error in errors}
    reasons |= dict.fromkeys(closed, "this account may not read it; change the permissions")
    otherwise = (
        f"it belongs to no case of a site; convert DICOM {CONVERT_DICOM}, and name other images as "
        "docs/data.md says"
    )
    return sort_files(found | closed, used, reasons, otherwise)


TITLES = ("Site", "Layout", "Cases", "Size", "Spacing, mm", "Labels", "Split")


def as_table(summaries: Mapping[str, Summary]) -> str:
    """Sites side by side, for a terminal."""
    rows = []
    for site, summary in summaries.items():
        images = [case.image for case in summary.sound]
        affines = [image.affine for image in images if image.affine is not None]
        spacings = [nib.affines.voxel_sizes(affine).round(4).tolist() for affine in affines]
        row = [site, summary["layout"], str(summary["num_cases"])]
        row += [_range([image.shape for image in images]), _range(spacings)]
        lines = [all_named(_named(summary, summary["labels"]), 8, ", ")]
        lines += [f"{name} {low}-{high}" for name, (low, high) in summary["values"].items()]
        sizes = "/".join(str(summary[part]) for part in PARTS if part in summary)
        rows.append([*row, "\n".join(lines), sizes or "–"])
    return text_of_table(TITLES, rows)


def _range(rows: Sequence[Sequence[float]]) -> str:
    """Each column as one number or as its least and greatest.

    >>> _range([[384, 384, 15], [384, 384, 24]])
    '384 x 384 x 15-24'
    """
    ends = [(min(column), max(column)) for column in zip(*rows)]
    return " x ".join(f"{low:g}" if low == high else f"{low:g}-{high:g}" for low, high in ends)
