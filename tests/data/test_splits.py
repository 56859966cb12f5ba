# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""No patient is in two parts, and a split that came with the data stays as it is."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from helpers import public_layouts as made
from hypothesis import given
from hypothesis import strategies as st

from monai_fairfl.data import find_cases, site_datalist, split_cases
from monai_fairfl.data.layouts import PARTS, CaseFiles, Found
from monai_fairfl.data.layouts.base import all_cases
from monai_fairfl.data.overview import overview
from monai_fairfl.data.splits import complete_split
from monai_fairfl.errors import DataError


def eyes(patients: int) -> tuple[list[CaseFiles], dict[str, str]]:
    """Two images of each patient, three of every third."""
    owner = {}
    for n in range(patients):
        for eye in "LRX" if n % 3 == 0 else "LR":
            owner[f"im/{n:02d}-{eye}.png"] = f"{n:02d}"
    cases = [{"image": image, "label": f"masks/{image}"} for image in owner]
    return cases, owner


def patients_in(parts: dict[str, list[CaseFiles]], owner: dict[str, str]) -> list[set[str]]:
    patients = []
    for part in PARTS:
        patients.append({owner[case["image"]] for case in parts[part]})
    return patients


@given(
    patients=st.integers(4, 24),
    seed=st.integers(0, 5),
    folds=st.none() | st.integers(2, 4),
    order=st.randoms(),
)
def test_images_of_a_patient_stay_together(
    patients: int, seed: int, folds: int | None, order: random.Random
) -> None:
    cases, owner = eyes(patients)
    order.shuffle(cases)
    parts = split_cases(cases, seed=seed, folds=folds, patients=owner)
    training, validation, testing = patients_in(parts, owner)
    assert not training & validation and not training & testing and not validation & testing
    assert sorted(case["image"] for case in all_cases(parts)) == sorted(owner)
    # Shares are those of the patients.
    singles = [{"image": f"{n:02d}", "label": ""} for n in range(patients)]
    alone = split_cases(singles, seed=seed, folds=folds)
    assert {case["image"] for case in alone["training"]} == training
    assert {case["image"] for case in alone["validation"]} == validation
    assert {case["image"] for case in alone["testing"]} == testing


def test_both_eyes_of_a_patient_in_a_folder_stay_together(tmp_path: Path) -> None:
    for n in range(6):
        for eye in "LR":
            made.write(tmp_path / "images" / f"G-{n}-{eye}.png", made.photo(n))
            made.write(tmp_path / "masks" / f"G-{n}-{eye}.png", made.mask(n))
    for seed in range(3):
        parts = site_datalist(tmp_path, seed=seed)
        assert [len(parts[part]) for part in PARTS] == [6, 4, 2]
        for part in PARTS:
            numbers = [Path(case["image"]).name.split("-")[1] for case in parts[part]]
            assert len(set(numbers)) == len(numbers) / 2


def test_too_few_patients_are_counted_as_patients() -> None:
    cases, owner = eyes(2)
    with pytest.raises(DataError, match=r"2 patient\(s\) cannot be split"):
        split_cases(cases, patients=owner)


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"folds": 6}, "there cannot be 6 folds of 5 cases: give 2 to 5 folds"),
        ({"folds": 1}, "there cannot be 1 fold of 5 cases: give 2 to 5 folds"),
        (
            {"folds": 2, "fold": 5},
            "fold 5 does not exist: with 2 folds, give a number from 0 to 1",
        ),
        ({"folds": 2, "validation": 1.5}, "validation=1.5 is no share: give a number between"),
    ],
)
def test_only_the_number_that_makes_no_fold_is_named(wrong: dict[str, Any], says: str) -> None:
    cases = [{"image": f"{n}.png", "label": f"mask{n}.png"} for n in range(5)]
    with pytest.raises(DataError, match=f"^{says}"):
        split_cases(cases, **wrong)


def test_a_fold_without_the_number_of_folds_is_refused_also_for_a_list_that_is_there(
    tmp_path: Path,
) -> None:
    site, file = made.ONE_SITE["saml"](tmp_path), tmp_path / "list.json"
    site_datalist(site, file)
    with pytest.raises(DataError, match="^fold 2 needs the number of folds: give folds"):
        split_cases(find_cases(site), fold=2)
    for given_file in (None, file):
        with pytest.raises(DataError, match="fold 2 needs the number of folds"):
            site_datalist(site, given_file, fold=2)
    own_split = made.dofe(tmp_path / "Domain1")
    with pytest.raises(DataError, match="fold 2 needs the number of folds"):
        site_datalist(own_split, fold=2)


@pytest.mark.slow
@given(
    training=st.integers(2, 30),
    missing=st.sampled_from(["validation", "testing"]),
    share=st.floats(0.05, 0.95),
)
def test_what_a_split_lacks_is_drawn_from_its_training_patients(
    training: int, missing: str, share: float
) -> None:
    cases, owner = eyes(training)
    other = [{"image": "other.png", "label": ""}]
    parts = {"training": cases, **{part: other for part in PARTS[1:] if part != missing}}
    found = Found(cases + other, parts, owner)
    split = complete_split(found, share, seed=1)
    assert split == complete_split(found, share, seed=1)
    drawn = {owner[case["image"]] for case in split[missing]}
    trained = {owner[case["image"]] for case in split["training"]}
    assert drawn | trained == set(owner.values())
    assert not drawn & trained and drawn and trained
    assert len(drawn) == min(max(1, round(share * training)), training - 1)
    assert all(split[part] == other for part in PARTS[1:] if part != missing)


def test_a_patient_in_two_parts_of_a_given_split_is_a_warning(tmp_path: Path) -> None:
    file = made.ONE_SITE["nvflare"](tmp_path)
    content = json.loads(file.read_text())
    content["testing"].append(content["training"].pop())
    file.write_text(json.dumps(content))
    with pytest.warns(
        UserWarning, match=r"client_MSD.json: .*MSD/Image/Case1 is in training and testing. Move"
    ):
        parts = site_datalist(file)
    assert [len(parts[part]) for part in PARTS] == [3, 2, 3]  # as it came
    data, _ = overview({"client_MSD": file})
    assert (
        any("Case1 is in training and testing" in note for note in data["warnings"])
        and not data["problems"]
    )


def test_a_split_of_the_data_and_folds_exclude_each_other(tmp_path: Path) -> None:
    site, file = made.dofe(tmp_path / "Domain1"), tmp_path / "list.json"
    with pytest.raises(
        DataError, match="Domain1 comes with its own training and testing cases, which folds=3"
    ):
        site_datalist(site, folds=3)
    first = site_datalist(site, file, validation=0.5)
    assert json.loads(file.read_text())["split"] == {
        "validation": 0.5,
        "seed": 0,
        "kept": ["training", "testing"],
    }
    # Fractions play no part.
    assert site_datalist(site, file, validation=0.5, fractions=(0.8, 0.1, 0.1)) == first
    for other in (
        {"validation": 0.2},
        {"validation": 0.5, "seed": 1},
        {"validation": 0.5, "folds": 3},
    ):
        with pytest.raises(DataError, match="list.json was made with"):
            site_datalist(site, file, **other)


def test_a_whole_split_depends_on_no_argument(tmp_path: Path) -> None:
    site, file = made.ONE_SITE["nvflare"](tmp_path), tmp_path / "list.json"
    first = site_datalist(site, file, seed=1)
    assert json.loads(file.read_text())["split"] == {"kept": list(PARTS)}
    assert site_datalist(site, file, seed=2, validation=0.3) == first
    assert sum(map(len, first.values())) == len(find_cases(site))


def test_one_training_patient_cannot_be_divided(tmp_path: Path) -> None:
    with pytest.raises(
        DataError, match=r"Domain1: 1 training patient\(s\).* validation is drawn from the training"
    ):
        site_datalist(made.dofe(tmp_path / "Domain1", train=1))
    with pytest.raises(DataError, match="validation=1.5"):
        site_datalist(made.dofe(tmp_path / "Domain2"), validation=1.5)
