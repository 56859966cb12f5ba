# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json
import warnings
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from monai_fairfl.data import check_cases, find_cases, site_datalist, site_folders, split_cases
from monai_fairfl.data.layouts.base import all_cases
from monai_fairfl.errors import DataError

PARTS = ("training", "validation", "testing")


def case_list(n: int) -> list[dict[str, str]]:
    return [
        {"image": f"Case{i:02d}.nii.gz", "label": f"Case{i:02d}_segmentation.nii.gz"}
        for i in range(n)
    ]


def save(path: Path, array: np.ndarray, affine: np.ndarray | None = None) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    nib.save(nib.Nifti1Image(array, np.diag([2.0, 2, 3, 1]) if affine is None else affine), path)


def image() -> np.ndarray:
    return np.arange(60, dtype=np.float32).reshape(5, 4, 3)


def mask() -> np.ndarray:
    array = np.zeros((5, 4, 3), np.uint8)
    array[2, 2, 1:] = 1
    return array


@pytest.fixture
def site(tmp_path: Path) -> Path:
    for number in range(4):
        save(tmp_path / f"SITE/Case{number:02d}.nii.gz", image())
        save(tmp_path / f"SITE/Case{number:02d}_segmentation.nii.gz", mask())
    return tmp_path / "SITE"


# layout


def test_both_published_spellings_and_both_endings_are_paired(tmp_path):
    names = (
        "Case00.nii.gz",
        "Case00_segmentation.nii.gz",
        "Case01.nii",
        "Case01_Segmentation.nii.gz",
        "notes.txt",
        "._Case00.nii.gz",
    )
    for name in names:
        (tmp_path / name).touch()
    pairs = [(Path(case["image"]).name, Path(case["label"]).name) for case in find_cases(tmp_path)]
    assert pairs == [names[:2], names[2:4]]


def test_sites_are_the_folders_with_images_in_order(tmp_path):
    for name in ("UCL/Case00.nii.gz", "BMC/Case00.nii", "docs/readme.txt", "Case00.nii.gz"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    assert list(site_folders(tmp_path)) == ["BMC", "UCL"]


def test_missing_and_empty_folders_are_named(tmp_path):
    for function in (site_folders, find_cases, check_cases):
        with pytest.raises(DataError, match="nowhere (is not a folder|does not exist)"):
            function(tmp_path / "nowhere")
    with pytest.raises(DataError, match=f"{tmp_path.name} has no site"):
        list(site_folders(tmp_path))
    with pytest.raises(DataError, match=f"{tmp_path.name} holds no case"):
        find_cases(tmp_path)


def test_all_files_that_do_not_pair_are_named_at_once(tmp_path):
    for name in (
        "Case00.nii.gz",
        "Case01_segmentation.nii.gz",
        "Case02.nii",
        "Case02_segmentation.nii",
        "Case02_Segmentation.nii",
    ):
        (tmp_path / name).touch()
    with pytest.raises(DataError) as error:
        find_cases(tmp_path)
    text = str(error.value)
    assert "Case00.nii.gz has no mask; add Case00_segmentation.nii.gz" in text
    assert "Case01_segmentation.nii.gz has no image; add Case01.nii.gz" in text
    assert "Case02 has 2 masks" in text and "Case02_Segmentation.nii" in text and "keep one" in text


def test_a_mask_with_another_suffix_is_to_be_renamed(tmp_path):
    for name in (
        "Case2.nii.gz",
        "Case2_segmentation.nii.gz",
        "Case26.nii.gz",
        "Case26_seg.nii.gz",
        "Case261.nii.gz",
    ):
        (tmp_path / name).touch()
    with pytest.raises(DataError) as error:
        find_cases(tmp_path)
    text = str(error.value)
    assert (
        "Case26_seg.nii.gz has no mask; if it is the mask of Case26, rename it to"
        " Case26_segmentation.nii.gz" in text
    )
    # Another number is another case.
    assert "Case261.nii.gz has no mask; add Case261_segmentation.nii.gz" in text


# contents


def test_a_sound_site_is_summarised_for_json(site):
    summary = json.loads(json.dumps(check_cases(site)))
    assert summary["site"] == "SITE" and summary["num_cases"] == 4 and summary["labels"] == [0, 1]
    assert summary["gland_slices"] == 8
    line = {
        "image": "Case00.nii.gz",
        "shape": [5, 4, 3],
        "spacing": [2.0, 2.0, 3.0],
        "labels": [0, 1],
        "gland_slices": 2,
    }
    assert summary["cases"][0] == line


def test_two_zones_in_a_mask_are_fine(site):
    two = mask()
    two[0, 0, 0] = 2
    save(site / "Case00_segmentation.nii.gz", two)
    assert check_cases(site)["labels"] == [0, 1, 2]


def damage(site: Path, kind: str) -> tuple[str, str]:
    """Break Case01; return the file to be named and a word of the explanation."""
    image_file, label_file = site / "Case01.nii.gz", site / "Case01_segmentation.nii.gz"
    bad = image()
    if kind == "truncated":
        image_file.write_bytes(image_file.read_bytes()[:-20])
    elif kind == "not nifti":
        label_file.write_bytes(b"not a NIfTI file")
        return label_file.name, "cannot be read"
    elif kind == "4D":
        save(image_file, bad[..., None])
        return image_file.name, "4D"
    elif kind == "colour":
        save(image_file, np.zeros((5, 4, 3), [("R", "u1"), ("G", "u1"), ("B", "u1")]))
        return image_file.name, "real numbers"
    elif kind == "shape":
        save(label_file, mask()[:4])
        return label_file.name, "shape (4, 4, 3)"
    elif kind == "affine":
        save(label_file, mask(), np.diag([2.0, 2, 3.5, 1]))
        return label_file.name, "lies up to 1 mm from its image, by the affines"
    elif kind == "nan":
        bad[1, 1, 1] = np.nan
        save(image_file, bad)
        return image_file.name, "not finite"
    elif kind == "fraction":
        save(label_file, mask() * np.float32(0.5))
        return label_file.name, "label values such as 0.5"
    elif kind == "negative":
        save(label_file, -mask().astype(np.int16))
        return label_file.name, "label values such as -1"
    return image_file.name, "cannot be read"


KINDS = ("truncated", "not nifti", "4D", "colour", "shape", "affine", "nan", "fraction", "negative")


@pytest.mark.parametrize("kind", KINDS)
def test_a_damaged_file_is_named_with_its_problem(site, kind):
    name, words = damage(site, kind)
    with pytest.raises(DataError) as error:
        check_cases(site)
    (line,) = [line for line in str(error.value).splitlines() if line.startswith("- ")]
    assert name in line and words in line


def test_all_problems_of_a_site_come_at_once(site):
    damage(site, "nan")
    save(site / "Case01_segmentation.nii.gz", -mask().astype(np.int16))
    (site / "Case03.nii.gz").write_bytes(b"")
    with pytest.raises(DataError, match=r"3 problem\(s\)") as error:
        check_cases(site)
    assert all(
        word in str(error.value)
        for word in ("Case01.nii.gz", "Case01_segmentation.nii.gz", "Case03.nii.gz")
    )


def test_affines_may_differ_by_rounding(site):
    save(site / "Case00_segmentation.nii.gz", mask(), np.diag([2.0001, 2, 3, 1]))
    assert check_cases(site)["num_cases"] == 4


def test_one_empty_label_warns_and_only_empty_labels_are_an_error(site):
    save(site / "Case02_segmentation.nii.gz", mask() * 0)
    with pytest.warns(UserWarning, match="Case02.nii.gz: its label is empty"):
        assert check_cases(site)["cases"][2]["gland_slices"] == 0
    for number in range(4):
        save(site / f"Case{number:02d}_segmentation.nii.gz", mask() * 0)
    with pytest.raises(DataError, match="all 4 labels are empty"):
        check_cases(site)


# split


@pytest.mark.parametrize(
    "cases, train, valid, test",
    [(39, 20, 10, 9), (32, 16, 8, 8), (40, 20, 10, 10), (50, 25, 12, 13), (98, 49, 24, 25)],
)
def test_part_sizes_are_those_of_the_released_fedce_data(cases, train, valid, test):
    # numbers of cases of NVFlare's prostate clients, which FedCE uses
    assert [len(split_cases(case_list(cases))[part]) for part in PARTS] == [train, valid, test]


@given(n=st.integers(3, 40), seed=st.integers(0, 5), order=st.randoms())
def test_every_case_is_in_exactly_one_part_whatever_the_order(n, seed, order):
    cases = case_list(n)
    parts = split_cases(cases, seed=seed)
    assert all(parts[part] for part in PARTS)
    assert sorted(case["image"] for case in all_cases(parts)) == [case["image"] for case in cases]
    order.shuffle(cases)
    assert split_cases(cases, seed=seed) == parts


@given(
    n=st.integers(4, 30),
    folds=st.integers(2, 8),
    seed=st.integers(0, 5),
    validation=st.floats(0.05, 0.95),
)
def test_each_case_is_tested_in_exactly_one_fold(n, folds, seed, validation):
    folds = min(n, folds)
    tested = []
    for fold in range(folds):
        parts = split_cases(case_list(n), folds=folds, fold=fold, validation=validation, seed=seed)
        assert all(parts[part] for part in PARTS)
        every_image = [case["image"] for case in case_list(n)]
        assert sorted(case["image"] for case in all_cases(parts)) == every_image
        assert parts == split_cases(
            case_list(n), folds=folds, fold=fold, validation=validation, seed=seed
        )
        tested += [case["image"] for case in parts["testing"]]
    assert sorted(tested) == [case["image"] for case in case_list(n)]


def test_validation_share_is_of_the_cases_that_are_not_tested():
    parts = split_cases(case_list(25), folds=5, validation=0.25)
    assert [len(parts[part]) for part in PARTS] == [15, 5, 5]


def test_validation_draws_differ_by_fold_and_splits_by_seed():
    draws = [split_cases(case_list(50), folds=5, fold=fold)["validation"] for fold in range(5)]
    assert [len(draw) for draw in draws] == [8] * 5
    drawn = set()
    for draw in draws:
        drawn.update(case["image"] for case in draw)
    # The first cases of one order would be about 10.
    assert len(drawn) > 16
    assert split_cases(case_list(20), seed=0) != split_cases(case_list(20), seed=1)


@pytest.mark.parametrize(
    "n, arguments",
    [
        (2, {}),
        (3, {"folds": 4}),
        (3, {"folds": 2}),
        (9, {"folds": 1}),
        (9, {"folds": 3, "fold": 3}),
        (9, {"folds": 3, "fold": -1}),
        (9, {"folds": 3, "validation": 0.0}),
        (9, {"fractions": (0.5, 0.5)}),
        (9, {"fractions": (0.6, 0.5, -0.1)}),
    ],
)
def test_impossible_splits_are_refused_with_a_fix(n, arguments):
    with pytest.raises(DataError, match="Add cases|give"):
        split_cases(case_list(n), **arguments)


# data list


def test_a_data_list_is_written_once_with_relative_paths_and_reused(site, tmp_path):
    file = tmp_path / "lists/site.json"
    first = site_datalist(site, file, seed=1)
    assert [len(first[part]) for part in PARTS] == [2, 1, 1]
    for case in all_cases(first):
        for path in case.values():
            assert Path(path).is_absolute() and Path(path).is_file()
    content = json.loads(file.read_text())
    assert content["training"][0]["image"].startswith("Case") and content["split"]["seed"] == 1
    assert [path.name for path in file.parent.iterdir()] == ["site.json"]
    save(site / "Case09.nii.gz", image())
    save(site / "Case09_segmentation.nii.gz", mask())
    with pytest.warns(
        UserWarning,
        match=r"1 case\(s\) of .*SITE are not in .*site.json and not used: .*Case09.nii.gz",
    ):
        assert site_datalist(site, file, seed=1) == first
    assert site_datalist(site, seed=1) != first


def test_a_moved_site_keeps_its_data_list(site, tmp_path):
    site_datalist(site, site / "datalist.json")
    moved = site.rename(tmp_path / "elsewhere")
    assert Path(
        site_datalist(moved, moved / "datalist.json")["testing"][0]["image"]
    ).is_relative_to(moved)


def test_a_list_of_other_split_arguments_is_refused(site, tmp_path):
    file = tmp_path / "site.json"
    site_datalist(site, file, folds=2)
    # Fractions play no part in folds.
    assert site_datalist(site, file, folds=2, fractions=(0.2, 0.4, 0.4))
    with pytest.raises(
        DataError,
        match="site.json was made with .*'fold': 0.*the arguments that made the file.*another file",
    ):
        site_datalist(site, file, folds=2, fold=1)


def test_a_list_made_by_hand_is_used_as_it_is(site, tmp_path):
    one = {"image": "Case02.nii.gz", "label": "Case02_segmentation.nii.gz"}
    other = {"image": "Case00.nii.gz", "label": "Case00_segmentation.nii.gz"}
    (tmp_path / "hand.json").write_text(
        json.dumps({"training": [one], "validation": [other], "testing": []})
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # a list made by hand leaves cases out on purpose
        parts = site_datalist(site, tmp_path / "hand.json", seed=7)
    assert (
        parts["training"] == [{key: str(site / path) for key, path in one.items()}]
        and parts["testing"] == []
    )


def test_a_case_in_two_parts_of_a_list_by_hand_is_a_warning(site, tmp_path):
    one = {"image": "Case02.nii.gz", "label": "Case02_segmentation.nii.gz"}
    (tmp_path / "hand.json").write_text(
        json.dumps({"training": [one], "validation": [], "testing": [one]})
    )
    with pytest.warns(UserWarning, match=r"hand.json: .*Case02.nii.gz is in training and testing"):
        assert site_datalist(site, tmp_path / "hand.json")["testing"]


def test_both_eyes_of_a_patient_in_two_parts_of_a_list_by_hand_are_a_warning(tmp_path):
    parts = {"training": "7_L", "validation": "8_L", "testing": "7_R"}
    for name in parts.values():
        for kind in ("images", "masks"):
            (tmp_path / "HK" / kind).mkdir(parents=True, exist_ok=True)
            (tmp_path / "HK" / kind / f"{name}.png").touch()
    hand = {
        part: [{"image": f"images/{name}.png", "label": f"masks/{name}.png"}]
        for part, name in parts.items()
    }
    (tmp_path / "hand.json").write_text(json.dumps(hand))
    with pytest.warns(UserWarning, match=r"hand.json: .*: 7 is in training and testing"):
        site_datalist(tmp_path / "HK", tmp_path / "hand.json")


@pytest.mark.parametrize(
    "content, words",
    [
        ("{", "no data list"),
        ('{"training": [], "validation": []}', "KeyError: 'testing'"),
        ('{"training": ["Case00.nii.gz"], "validation": [], "testing": []}', "no data list"),
        (
            '{"training": [{"image": "x.nii", "label": "y.nii"}], "validation": [], "testing": []}',
            "2 file.*x.nii",
        ),
    ],
)
def test_an_unusable_list_is_refused_with_a_fix(site, tmp_path, content, words):
    (tmp_path / "bad.json").write_text(content)
    with pytest.raises(DataError, match=f"bad.json .*{words}.*delete"):
        site_datalist(site, tmp_path / "bad.json")


def test_unknown_split_arguments_are_refused_also_when_a_list_exists(site, tmp_path):
    site_datalist(site, tmp_path / "site.json")
    with pytest.raises(TypeError, match="folder"):
        site_datalist(site, tmp_path / "site.json", folder=3)


@pytest.mark.parametrize("part", ["validation", "testing"])
def test_a_list_by_hand_scores_no_case_twice(hospitals: Path, tmp_path: Path, part: str) -> None:
    """Twice the same would be two cases without a difference between them."""
    file = tmp_path / "elm.json"
    site_datalist(hospitals / "elm", file)
    lists = json.loads(file.read_text())
    del lists["split"]
    # Training may repeat a case.
    lists["training"] *= 2
    file.write_text(json.dumps(lists))
    assert len(site_datalist(hospitals / "elm", file)["training"]) == 4
    lists[part].append({**lists[part][0], "image": f"./{lists[part][0]['image']}"})
    file.write_text(json.dumps(lists))
    with pytest.raises(DataError, match=rf"2 times under {part}, and each case counts once"):
        site_datalist(hospitals / "elm", file)
