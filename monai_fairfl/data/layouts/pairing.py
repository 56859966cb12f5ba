# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Images paired with masks, and eyes with patients, by the names of their files."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from monai_fairfl.data.layouts.base import CaseFiles, all_named
from monai_fairfl.data.layouts.image_files import stem
from monai_fairfl.errors import DataError

# _mask, _OD; not _2, which is another image
_MASK_SUFFIX = re.compile(r"[_\-. ][A-Za-z_\-. ]+")
# Between two marks, or between a mark and an end of the name: P0_left_2020, OD_P0.
_EYE_WORD = re.compile(r"(?<![^_\-. ])(L|R|OD|OS|left|right)(?![^_\-. ])", re.IGNORECASE)
# After a number at the end, as in RET002OD. A single letter may be a series there, as in 2024R.
_EYE_AFTER_NUMBER = re.compile(r"(?<=\d)(OD|OS)$", re.IGNORECASE)


class UnpairedFiles(DataError):
    """Some files of a site do not pair.

    Args:
        text: names all of them.
        problems: the same one by one.
        pairs: of the other files, image and mask.
    """

    def __init__(
        self, text: str, problems: Sequence[str], pairs: Sequence[tuple[Path, Path]]
    ) -> None:
        super().__init__(text)
        self.problems = tuple(problems)
        self.pairs = tuple(pairs)


def pair(images: Sequence[Path], masks: Sequence[Path], where: str) -> list[tuple[Path, Path]]:
    """Pair images with the masks of the same stem, or of the same stem and one common suffix.

    Args:
        images: image files.
        masks: mask files; all that have a suffix have the same one.
        where: the site, for errors.

    Raises:
        DataError: files that do not pair, a stem that occurs twice, or several suffixes; the error
            names all of them.

    >>> image, mask = Path("images/7.jpg"), Path("masks/7_OD.tif")
    >>> pair([image], [mask], "elm") == [(image, mask)]
    True
    """
    image_stems = {stem(path) for path in images}
    suffix = _common_suffix(masks, image_stems, where)

    images_by_case: dict[str, list[Path]] = {}
    for path in images:
        images_by_case.setdefault(stem(path), []).append(path)
    masks_by_case: dict[str, list[Path]] = {}
    for path in masks:
        case = stem(path)
        if case not in image_stems:
            case = case.removesuffix(suffix)
        masks_by_case.setdefault(case, []).append(path)

    return pair_by_case(images_by_case, masks_by_case, where, suffix)


def pair_by_case(
    images: Mapping[str, Sequence[Path]],
    masks: Mapping[str, Sequence[Path]],
    where: str,
    suffix: str = "",
) -> list[tuple[Path, Path]]:
    """Pair the one image with the one mask of each case, sorted by case.

    Args:
        images: case -> its image files.
        masks: case -> its mask files.
        where: the site, for errors.
        suffix: what the masks' names have beside the images', for errors.

    Raises:
        UnpairedFiles: files that do not pair; the error names all of them, and has the other pairs.
    """
    problems: list[str] = []
    pairs = []
    for case in sorted(images.keys() | masks.keys()):
        files = {"image": images.get(case, []), "mask": masks.get(case, [])}
        case_problems = []
        for kind, other, partner in (("image", "mask", case + suffix), ("mask", "image", case)):
            if len(files[kind]) > 1:
                names = " and ".join(file.name for file in files[kind])
                case_problems.append(f"{case} has {len(files[kind])} {kind}s, {names}; keep one")
            if not files[other]:
                file = files[kind][0]
                ending = file.name.removeprefix(stem(file))
                case_problems.append(
                    f"{file.parent.name}/{file.name} has no {other} {partner}{ending}; add it, or"
                    " remove the file"
                )
        problems += case_problems
        if not case_problems:
            pairs.append((files["image"][0], files["mask"][0]))
    if problems:
        raise UnpairedFiles(f"{where}: {all_named(problems)}", problems, pairs)
    return pairs


def _common_suffix(masks: Sequence[Path], image_stems: set[str], where: str) -> str:
    """What masks add to the stems of their images, as ``_mask``; empty when they add nothing."""
    example_of: dict[str, str] = {}
    for path in masks:
        mask = stem(path)
        # The longest image stem that the mask's begins with.
        begins = [mask[:end] for end in range(1, len(mask) + 1) if mask[:end] in image_stems]
        suffix = mask.removeprefix(begins[-1]) if begins else ""
        if _MASK_SUFFIX.fullmatch(suffix):
            example_of.setdefault(suffix, path.name)
    if len(example_of) > 1:
        examples = " and ".join(sorted(example_of.values()))
        raise DataError(
            f"{where}: masks end differently, {examples}. Keep the masks of one kind there; a mask"
            " that holds several structures codes them by its values."
        )
    return next(iter(example_of), "")


def as_cases(pairs: Sequence[tuple[Path, Path]]) -> list[CaseFiles]:
    """Pairs as cases, sorted by image."""
    return [{"image": str(image), "label": str(mask)} for image, mask in sorted(pairs)]


def patients_of(cases: Sequence[CaseFiles]) -> dict[str, str]:
    """Map images to patients, where the names of files say which eye they show.

    The eye is a word of the name, such as ``L``, ``OD`` or ``left``, or ``OD`` or ``OS`` after a
    number at its end. What remains of the name is the patient.

    >>> patients_of([{"image": "G-1-L.png"}, {"image": "G-1-R.png"}, {"image": "V0001.png"}])
    {'G-1-L.png': 'G-1', 'G-1-R.png': 'G-1'}
    >>> patients_of([{"image": "P0_left_2020.png"}, {"image": "OD_P0.png"}, {"image": "P0OS.png"}])
    {'P0_left_2020.png': 'P0_2020', 'OD_P0.png': 'P0', 'P0OS.png': 'P0'}
    """
    patients = {}
    for case in cases:
        patient = _without_eye(stem(Path(case["image"])))
        if patient:
            patients[case["image"]] = patient
    return patients


def _without_eye(name: str) -> str:
    """What a name has beside the eye; empty where it names no eye, or nothing else.

    >>> _without_eye("P0_left_2020"), _without_eye("IDRiD_03"), _without_eye("left")
    ('P0_2020', '', '')
    """
    after_number = _EYE_AFTER_NUMBER.search(name)
    if after_number:
        return name[: after_number.start()]
    words = list(_EYE_WORD.finditer(name))
    if not words:
        return ""
    # Of several words the last one is the eye: L may be a series in L_12_OD.
    eye = words[-1]
    before, after = name[: eye.start()], name[eye.end() :]
    if not before:
        return after[1:]
    # The mark before the eye goes with it.
    return before[:-1] + after
