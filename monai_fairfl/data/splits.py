# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Training, validation and testing cases, with no patient in two parts."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence

import numpy as np

from monai_fairfl.data.layouts import PARTS, Case, Found
from monai_fairfl.data.layouts.base import all_named
from monai_fairfl.errors import DataError


def split_cases(
    cases: Sequence[Case],
    *,
    fractions: Sequence[float] = (0.5, 0.25, 0.25),
    folds: int | None = None,
    fold: int = 0,
    validation: float = 0.2,
    seed: int = 0,
    patients: Mapping[str, str] | None = None,
) -> dict[str, list[Case]]:
    """Split by case, so that no patient is in two parts.

    Without ``folds`` this is FedCE's rule (Jiang et al., CVPR 2023, released code): shuffle once,
    round(0.5 n) train, round(0.25 n) validate, the rest tests; each part gets at least one case.
    With ``folds`` it is cross-validation: each case is tested in exactly one fold.

    Args:
        cases: any order; they are sorted first.
        fractions: shares of training, validation and testing, which sum to 1; not used with
            ``folds``.
        folds: number of folds, at least 2.
        fold: which fold is tested, from 0.
        validation: share of the cases outside the fold that validates, rounded, at least one case.
        seed: of the shuffle.
        patients: image -> patient, where several cases are of one; n then counts patients.

    Returns:
        ``training``, ``validation`` and ``testing``, each sorted.

    Raises:
        DataError: too few cases, or shares and folds that are out of range.

    >>> cases = [{"image": f"Case{n:02d}.nii.gz", "label": f"Case{n:02d}_segmentation.nii.gz"} for n in range(39)]
    >>> {part: len(members) for part, members in split_cases(cases).items()}
    {'training': 20, 'validation': 10, 'testing': 9}
    >>> {part: len(members) for part, members in split_cases(cases, folds=3, fold=1).items()}
    {'training': 21, 'validation': 5, 'testing': 13}
    """
    shuffled = _by_patient(cases, patients or {})
    n = len(shuffled)
    if n < 3:
        raise DataError(
            f"{n} {'patient' if patients else 'case'}(s) cannot be split into training, validation and testing. Add"
            " cases; 3 is the least."
        )
    np.random.default_rng(seed).shuffle(shuffled)
    if folds is None:
        if len(fractions) != 3 or min(fractions) <= 0 or abs(sum(fractions) - 1) > 1e-6:
            raise DataError(
                f"fractions={tuple(fractions)}: give three positive shares that sum to 1, as (0.5, 0.25, 0.25)."
            )
        train = min(max(1, round(fractions[0] * n)), n - 2)
        end = min(train + max(1, round(fractions[1] * n)), n - 1)
        parts = [shuffled[:train], shuffled[train:end], shuffled[end:]]
    else:
        if not 2 <= folds <= n or not 0 <= fold < folds or not 0 < validation < 1:
            raise DataError(
                f"folds={folds}, fold={fold}, validation={validation} with {n} cases: give 2 <= folds <= {n},"
                " 0 <= fold < folds and 0 < validation < 1."
            )
        rest = [group for index, group in enumerate(shuffled) if index % folds != fold]
        drawn, rest = _draw(rest, validation, np.random.default_rng([seed, fold]))
        if not rest:
            raise DataError(
                f"{n} cases in {folds} folds leave nothing to validate. Add cases or use more folds."
            )
        parts = [rest, drawn, shuffled[fold::folds]]
    return {name: _flat(part) for name, part in zip(PARTS, parts)}


def complete_split(
    found: Found, validation: float = 0.2, seed: int = 0, site: str = ""
) -> dict[str, list[Case]]:
    """The split that came with the data; a part that it lacks is drawn from its training cases,
    patient by patient.

    A patient who is in two of its parts is a warning: published splits have such, and results are
    compared on them.

    Args:
        found: with ``parts``.
        validation: share of the training patients that such a part gets, rounded, at least one.
        seed: of the draw.
        site: for errors.

    Raises:
        DataError: too few training patients.

    >>> training = [{"image": f"train/{n}.png", "label": f"{n}"} for n in range(10)]
    >>> testing = [{"image": "test/0.png", "label": "0"}]
    >>> split = complete_split(Found(training + testing, {"training": training, "testing": testing}))
    >>> {part: len(members) for part, members in split.items()}
    {'training': 8, 'validation': 2, 'testing': 1}
    """
    parts = {part: list((found.parts or {}).get(part, [])) for part in PARTS}
    warn_of_shared(parts, found.patients, site)
    for part in (part for part in PARTS if not parts[part]):
        groups = _by_patient(parts["training"], found.patients)
        if len(groups) < 2 or not 0 < validation < 1:
            raise DataError(
                f"{site}: {len(groups)} training patient(s), validation={validation}: {part} is drawn from the training"
                " cases. Give 0 < validation < 1 and at least two patients."
            )
        drawn, rest = _draw(groups, validation, np.random.default_rng(seed))
        parts |= {part: _flat(drawn), "training": _flat(rest)}
    return parts


def warn_of_shared(
    parts: Mapping[str, Sequence[Case]], patients: Mapping[str, str], site: str
) -> None:
    """Warn of patients who are in two parts of a split; a case that has no patient is one of its
    own.
    """
    owners: dict[str, list[str]] = {}
    for part, cases in parts.items():
        for patient in sorted({patients.get(case["image"], case["image"]) for case in cases}):
            owners.setdefault(patient, []).append(part)
    shared = [
        f"{patient} is in {' and '.join(several)}"
        for patient, several in owners.items()
        if len(several) > 1
    ]
    if shared:
        warnings.warn(
            f"{site}: its own split has patients in two parts, so a test sees who was trained: {all_named(shared, 5)}."
            " Move all images of a patient into one part, unless you compare with results on this very split.",
            stacklevel=3,
        )


def _by_patient(cases: Sequence[Case], patients: Mapping[str, str]) -> list[list[Case]]:
    groups: dict[str, list[Case]] = {}
    for case in sorted(cases, key=lambda case: case["image"]):
        groups.setdefault(patients.get(case["image"], case["image"]), []).append(case)
    return list(groups.values())


def _draw(
    groups: list[list[Case]], share: float, rng: np.random.Generator
) -> tuple[list[list[Case]], list[list[Case]]]:
    """A share of the groups, at least one, and the others; nothing remains of one group."""
    rng.shuffle(groups)
    count = max(1, min(max(1, round(share * len(groups))), len(groups) - 1))
    return groups[:count], groups[count:]


def _flat(groups: Sequence[Sequence[Case]]) -> list[Case]:
    return sorted((case for group in groups for case in group), key=lambda case: case["image"])
