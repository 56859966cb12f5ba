# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""No patient is in two parts, and a split that came with the data stays as it is."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from helpers import public_layouts as made
from helpers.refusals import noted, refused
from hypothesis import given, settings
from hypothesis import strategies as st

from monai_fairfl.data import find_cases, listed_datalist, site_datalist, split_cases

PARTS = ("training", "validation", "testing")
Parts = dict[str, list[dict[str, Any]]]


def case_list(n: int) -> list[dict[str, str]]:
    return [{"image": f"Case{i:02d}.nii.gz", "label": f"mask{i:02d}.nii.gz"} for i in range(n)]


def images(cases: Sequence[dict[str, Any]]) -> list[str]:
    return [case["image"] for case in cases]


def sizes(parts: Parts) -> list[int]:
    return [len(parts[part]) for part in PARTS]


def every_image(parts: Parts) -> list[str]:
    return sorted(image for part in PARTS for image in images(parts[part]))


def test_part_sizes_are_those_of_the_released_fedce_data() -> None:
    # Numbers of cases of NVFlare's prostate clients, which FedCE uses.
    for released in ((20, 10, 9), (16, 8, 8), (20, 10, 10), (25, 12, 13), (49, 24, 25)):
        assert sizes(split_cases(case_list(sum(released)))) == list(released)
    assert sizes(split_cases(case_list(25), folds=5, validation=0.25)) == [15, 5, 5]
    assert sizes(split_cases(case_list(3), fractions=(0.98, 0.01, 0.01))) == [1, 1, 1]
    # A site may keep no case for testing.
    assert sizes(split_cases(case_list(2), fractions=(0.5, 0.5, 0.0))) == [1, 1, 0]


def test_the_draw_of_a_seed_is_that_of_every_release() -> None:
    parts = split_cases(case_list(10))
    assert images(parts["validation"]) == ["Case05.nii.gz", "Case09.nii.gz"]
    assert images(parts["testing"]) == ["Case00.nii.gz", "Case01.nii.gz", "Case08.nii.gz"]
    parts = split_cases(case_list(10), folds=3, fold=1, seed=4)
    assert images(parts["validation"]) == ["Case06.nii.gz"]
    assert images(parts["testing"]) == ["Case00.nii.gz", "Case04.nii.gz", "Case09.nii.gz"]
    draws = [images(split_cases(case_list(50), folds=5, fold=f)["validation"]) for f in range(5)]
    # The first cases of one order would be about 10.
    assert [len(draw) for draw in draws] == [8] * 5 and len({*sum(draws, [])}) > 16


FOLDS = st.none() | st.integers(2, 4)


@settings(max_examples=40)
@given(st.integers(4, 24), st.integers(0, 5), FOLDS, st.randoms())
def test_images_of_a_patient_stay_together_whatever_the_order(
    patients: int, seed: int, folds: int | None, order: random.Random
) -> None:
    # Two images of each patient, three of every third.
    owner = {}
    for n in range(patients):
        for eye in "LRX" if n % 3 == 0 else "LR":
            owner[f"im/{n:02d}-{eye}.png"] = f"{n:02d}"
    cases = [{"image": image, "label": f"masks/{image}"} for image in owner]
    order.shuffle(cases)
    parts = split_cases(cases, seed=seed, folds=folds, patients=owner)
    assert every_image(parts) == sorted(owner)
    # Shares are those of the patients, and no patient is in two parts.
    singles = [{"image": f"{n:02d}", "label": ""} for n in range(patients)]
    alone = split_cases(singles, seed=seed, folds=folds)
    for part in PARTS:
        assert sorted({owner[image] for image in images(parts[part])}) == images(alone[part])


@pytest.mark.parametrize("n, folds, validation", [(4, 4, 0.05), (9, 2, 0.5), (30, 8, 0.95)])
def test_each_case_is_tested_in_one_fold(n: int, folds: int, validation: float) -> None:
    tested = []
    for fold in range(folds):
        parts = split_cases(case_list(n), folds=folds, fold=fold, validation=validation, seed=2)
        assert all(parts[part] for part in PARTS) and every_image(parts) == images(case_list(n))
        others = n - len(parts["testing"])
        assert len(parts["validation"]) == min(max(1, round(validation * others)), others - 1)
        tested += images(parts["testing"])
    assert sorted(tested) == images(case_list(n))


# A split that came with the data


def test_a_split_of_the_data_and_folds_exclude_each_other(tmp_path: Path) -> None:
    site, file = made.dofe(tmp_path / "Domain1"), tmp_path / "list.json"
    site_datalist(site, file, validation=0.5)
    with refused(file, "validation"):
        site_datalist(site, file, validation=0.2)
    whole = made.ONE_SITE["nvflare"](tmp_path)
    assert every_image(site_datalist(whole)) == images(find_cases(whole))
    with refused("Domain2", "1 training"):
        site_datalist(made.dofe(tmp_path / "Domain2", train=1))


def test_slices_of_a_case_are_of_one_patient_who_may_not_be_in_two_parts(tmp_path: Path) -> None:
    file = made.ONE_SITE["nvflare"](tmp_path)
    content = json.loads(file.read_text())
    del content["validation"]
    file.write_text(json.dumps(content))
    # Both slices of one of the two training cases.
    assert sizes(site_datalist(file)) == [2, 2, 2]
    content["testing"].append(content["training"].pop())
    file.write_text(json.dumps(content))
    with noted(file, "MSD/Image/Case1", "training and testing"):
        assert sizes(site_datalist(file)) == [1, 2, 3]


# The lists of a bundle


def cases_in(folder: Path, names: Sequence[str]) -> list[dict[str, Any]]:
    """Cases with these images in a folder; the files are empty."""
    cases = []
    for name in names:
        image, label = folder / f"{name}.png", folder / f"{name}_seg.png"
        folder.mkdir(parents=True, exist_ok=True)
        image.touch()
        label.touch()
        cases.append({"image": str(image), "label": str(label), "fold": 0})
    return cases


@pytest.mark.parametrize("number, share", [(3, 0.9), (7, 0.05), (12, 0.4)])
def test_what_a_split_lacks_is_drawn_from_its_training_patients(
    number: int, share: float, tmp_path: Path
) -> None:
    # Each patient has a folder of two cases.
    folders = [tmp_path / "image" / f"{n:02d}" for n in range(number)]
    validation, *others = [cases_in(folder, "12") for folder in folders]
    file = tmp_path / "client_elm.json"
    file.write_text(json.dumps({"training": sum(others, []), "validation": validation}))
    parts = site_datalist(file, validation=share)
    assert parts == site_datalist(file, validation=share)
    assert images(parts["validation"]) == images(validation)
    assert every_image(parts) == images(sum(others, validation))
    drawn = {Path(image).parent for image in images(parts["testing"])}
    assert not drawn & {Path(image).parent for image in images(parts["training"])}
    assert len(drawn) == min(max(1, round(share * (number - 1))), number - 2)


def test_the_lists_of_a_bundle_are_split_anew_from_what_the_site_has(
    tmp_path: Path,
) -> None:
    cases = cases_in(tmp_path, "abcdefgh")
    elsewhere = [{"image": "/other/site/x.png", "label": "/other/site/y.png"}]
    # As a bundle with [:-9] and [-9:] lists a site with eight cases.
    parts = listed_datalist([[*cases[:-9], *elsewhere], cases[-9:]], tmp_path)
    assert sizes(parts) == [4, 2, 2] and every_image(parts) == images(cases)
    # A list that was written is read with all that a case has.
    file = tmp_path / "datalist.json"
    written = listed_datalist([cases, []], tmp_path, file)
    assert listed_datalist([cases, cases_in(tmp_path, "n")], tmp_path, file) == written
    assert written["training"][0]["fold"] == 0
    with refused(file, "'seed': 1"):
        listed_datalist([cases], tmp_path, file, seed=1)
    with refused(tmp_path, "none of the cases"):
        listed_datalist([elsewhere], tmp_path)
    for wrong in ([{"image": ["a", "b"], "label": "c"}], "ab"):
        with refused(tmp_path, "lists"):
            listed_datalist([wrong], tmp_path)  # type: ignore[list-item]
