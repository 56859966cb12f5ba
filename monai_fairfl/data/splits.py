# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Training, validation and testing cases, with no patient in two parts."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence

import numpy as np

from monai_fairfl.data.layouts import PARTS, CaseFiles, Found, all_named, sorted_by_image
from monai_fairfl.errors import DataError, DataWarning
from monai_fairfl.utils.words import count_words


def split_cases(
    cases: Sequence[CaseFiles],
    *,
    fractions: Sequence[float] = (0.5, 0.25, 0.25),
    folds: int | None = None,
    fold: int = 0,
    validation: float = 0.2,
    seed: int = 0,
    patients: Mapping[str, str] | None = None,
) -> dict[str, list[CaseFiles]]:
    """Split by case, so that no patient is in two parts.

    Without ``folds`` this is FedCE's rule (Jiang et al., CVPR 2023, released code): shuffle once,
    round(0.5 n) train, round(0.25 n) validate, the rest tests; each part gets at least one case.
    With ``folds`` it is cross-validation: each case is tested in exactly one fold.

    Args:
        cases: any order; they are sorted first.
        fractions: shares of training, validation and testing, which sum to 1; not used with
            ``folds``. The last one may be 0: then no case tests.
        folds: number of folds, at least 2.
        fold: which fold is tested, from 0; only with ``folds``.
        validation: share of the cases outside the fold that validates, rounded, at least one case.
        seed: of the shuffle.
        patients: image -> patient, where a patient has several cases; n then counts patients.

    Returns:
        ``training``, ``validation`` and ``testing``, each sorted.

    Raises:
        DataError: too few cases, or shares and folds that are out of range.

    >>> cases = [{"image": f"image{n:02d}.png", "label": f"mask{n:02d}.png"} for n in range(39)]
    >>> {part: len(members) for part, members in split_cases(cases).items()}
    {'training': 20, 'validation': 10, 'testing': 9}
    >>> no_tests = split_cases(cases, fractions=(0.75, 0.25, 0))
    >>> {part: len(members) for part, members in no_tests.items()}
    {'training': 29, 'validation': 10, 'testing': 0}
    >>> {part: len(members) for part, members in split_cases(cases, folds=3, fold=1).items()}
    {'training': 21, 'validation': 5, 'testing': 13}
    """
    require_folds(folds, fold)
    groups = _by_patient(cases, patients or {})
    n = len(groups)
    unit = "patient" if patients else "case"
    has_tests = folds is not None or list(fractions[2:]) != [0]
    least = 2 + has_tests
    if n < least:
        raise DataError(
            f"{n} {unit}(s) cannot be split into training, validation{' and testing' * has_tests}."
            f" Add cases; {least} is the least."
        )
    np.random.default_rng(seed).shuffle(groups)
    if folds is None:
        sums_to_one = abs(sum(fractions) - 1) <= 1e-6
        if len(fractions) != 3 or not sums_to_one or min(fractions[:2]) <= 0 or fractions[2] < 0:
            raise DataError(
                f"fractions={tuple(fractions)}: give three shares that sum to 1, as (0.5, 0.25,"
                " 0.25); only the last one, of testing, may be 0."
            )
        # One group must remain for validation and one for testing.
        num_training = min(max(1, round(fractions[0] * n)), n - 1 - has_tests)
        num_validating = max(1, round(fractions[1] * n)) if has_tests else n
        first_testing = min(num_training + num_validating, n - has_tests)
        training = groups[:num_training]
        validating = groups[num_training:first_testing]
        testing = groups[first_testing:]
    else:
        counted = f"{count_words(folds, 'fold')} of {n} {unit}s"
        if not 2 <= folds <= n:
            raise DataError(f"there cannot be {counted}: give 2 to {n} folds")
        if not 0 <= fold < folds or not 0 < validation < 1:
            raise DataError(
                f"fold {fold}, validation={validation}: with {counted}, give a fold from 0 to"
                f" {folds - 1}, and as validation a share between 0 and 1, such as 0.2"
            )
        testing = groups[fold::folds]
        others = [group for index, group in enumerate(groups) if index % folds != fold]
        validating, training = _draw(others, validation, np.random.default_rng([seed, fold]))
        if not training:
            raise DataError(
                f"{n} cases in {folds} folds leave nothing to train on: add cases, or folds"
            )
    parts = zip(PARTS, (training, validating, testing), strict=True)
    return {part: sorted_by_image(sum(members, [])) for part, members in parts}


def require_folds(folds: int | None, fold: int) -> None:
    """Refuse a fold of no cross-validation: every fold would be the same split.

    Args:
        folds: as of :func:`split_cases`.
        fold: which one is tested.

    Raises:
        DataError: with the fix.
    """
    if folds is None and fold != 0:
        raise DataError(
            f"fold {fold} needs the number of folds: give folds (split_folds of a bundle), or leave"
            " fold (split_fold) out"
        )


def complete_split(
    found: Found, validation: float = 0.2, seed: int = 0, site: str = "", tests: bool = True
) -> dict[str, list[CaseFiles]]:
    """Complete the split that came with the data.

    A part that it lacks is drawn from its training cases, patient by patient. A patient who is in
    two of its parts is a warning: published splits have such, and results are compared on them.

    Args:
        found: with ``parts``.
        validation: share of the training patients that such a part gets, rounded, at least one.
        seed: of the draw.
        site: for errors.
        tests: whether test cases are drawn where the split has none.

    Raises:
        DataError: too few training patients.

    >>> training = [{"image": f"train/{n}.png", "label": f"{n}"} for n in range(10)]
    >>> testing = [{"image": "test/0.png", "label": "0"}]
    >>> parts = {"training": training, "testing": testing}
    >>> split = complete_split(Found(training + testing, parts))
    >>> {part: len(members) for part, members in split.items()}
    {'training': 8, 'validation': 2, 'testing': 1}
    """
    own_parts = found.parts or {}
    parts = {part: list(own_parts.get(part, [])) for part in PARTS}
    warn_of_shared(parts, found.patients, site)
    for part in PARTS:
        if parts[part] or (part == "testing" and not tests):
            continue
        groups = _by_patient(parts["training"], found.patients)
        if len(groups) < 2 or not 0 < validation < 1:
            raise DataError(
                f"{site}: {len(groups)} training patient(s), validation={validation}: {part} is"
                " drawn from the training cases. Give 0 < validation < 1 and at least two patients."
            )
        drawn, others = _draw(groups, validation, np.random.default_rng(seed))
        parts[part] = sorted_by_image(sum(drawn, []))
        parts["training"] = sorted_by_image(sum(others, []))
    return parts


def warn_of_shared(
    parts: Mapping[str, Sequence[CaseFiles]], patients: Mapping[str, str], site: str
) -> None:
    """Warn of patients who are in two parts of a split.

    A case that has no patient is a patient of its own.
    """
    parts_of: dict[str, list[str]] = {}
    for part, cases in parts.items():
        patients_in_part = {_patient_of(case, patients) for case in cases}
        for patient in sorted(patients_in_part):
            parts_of.setdefault(patient, []).append(part)
    shared = []
    for patient, patient_parts in parts_of.items():
        if len(patient_parts) > 1:
            shared.append(f"{patient} is in {' and '.join(patient_parts)}")
    if shared:
        warnings.warn(
            f"{site}: its own split has patients in two parts, so a test sees who was trained:"
            f" {all_named(shared, 5)}. Move all images of a patient into one part, unless you"
            " compare with results on this very split.",
            DataWarning,
            stacklevel=3,
        )


def _patient_of(case: CaseFiles, patients: Mapping[str, str]) -> str:
    return patients.get(case["image"], case["image"])


def _by_patient(cases: Sequence[CaseFiles], patients: Mapping[str, str]) -> list[list[CaseFiles]]:
    """The cases of each patient, in the order of the first image of each."""
    groups: dict[str, list[CaseFiles]] = {}
    for case in sorted_by_image(cases):
        groups.setdefault(_patient_of(case, patients), []).append(case)
    return list(groups.values())


def _draw(
    groups: list[list[CaseFiles]], share: float, rng: np.random.Generator
) -> tuple[list[list[CaseFiles]], list[list[CaseFiles]]]:
    """Draw a share of the groups, at least one, and leave at least one unless there is only one.

    Returns:
        The drawn groups and the others.
    """
    rng.shuffle(groups)
    rounded = max(1, round(share * len(groups)))
    count = max(1, min(rounded, len(groups) - 1))
    return groups[:count], groups[count:]
