# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Each layout is recognised by its files and by no other's; errors explain what is in a folder."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from helpers import public_layouts as made
from helpers.checkout import CHECKOUT
from helpers.refusals import closed, folder_of_everybody, noted, notes, refused

from monai_fairfl.data import (
    check_cases,
    find_cases,
    overview,
    site_datalist,
    site_folders,
    sites_at,
)

SIZES = {
    "saml": (2, 1, 1),
    "folders": (2, 1, 1),
    "dofe": (5, 1, 2),
    "nvflare": (4, 2, 2),
    "msd": (2, 1, 1),
    "nnunet": (2, 1, 1),
}
"""Layout -> cases of the site in ``made.ONE_SITE`` that train, validate and test."""


def sizes(parts: dict[str, list[Any]]) -> tuple[int, ...]:
    return tuple(len(parts[part]) for part in ("training", "validation", "testing"))


@pytest.mark.parametrize("name", SIZES)
def test_a_site_of_each_layout_keeps_its_list_where_it_is_moved(name: str, tmp_path: Path) -> None:
    site = made.ONE_SITE[name](tmp_path / "old")
    cases = find_cases(site)
    assert cases == sorted(cases, key=lambda case: case["image"])
    for case in cases:
        assert set(case) == {"image", "label"} and all(Path(p).is_file() for p in case.values())
    summary = check_cases(site)
    assert (summary["layout"], summary["num_cases"], len(cases)) == (name, *[sum(SIZES[name])] * 2)
    file = tmp_path / "list.json"
    first = site_datalist(site, file, seed=2)
    assert sizes(first) == SIZES[name] and site_datalist(site, file, seed=2) == first
    if name == "dofe":  # its test cases stay such
        tested = ["/test/" in case["image"] for cases in first.values() for case in cases]
        assert tested == [False] * 6 + [True] * 2
    assert not Path(json.loads(file.read_text())["testing"][0]["image"]).is_absolute()
    (tmp_path / "old").rename(tmp_path / "new")
    again = site_datalist(tmp_path / "new" / site.relative_to(tmp_path / "old"), file, seed=2)
    assert json.dumps(again) == json.dumps(first).replace(f"{tmp_path}/old", f"{tmp_path}/new")


def test_the_page_names_every_layout() -> None:
    page = (CHECKOUT / "docs" / "data.md").read_text().splitlines()
    assert [line.split("`")[1] for line in page if line.startswith("| `")] == list(SIZES)


def test_a_root_holds_sites_of_any_layout_and_a_path_may_have_dots(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("saml", "folders", "dofe", "msd", "nnunet"):
        made.ONE_SITE[name](tmp_path / name)
    made.touch(tmp_path, "papers/readme.txt", "lost+found/x", "$RECYCLE.BIN/x")
    names = ["dofe", "folders", "msd", "nnunet", "saml"]
    assert site_folders(tmp_path) == {name: tmp_path / name for name in names}
    found = overview(site_folders(tmp_path))[0]
    assert found["problems"] == [] and list(found["sites"]) == names
    monkeypatch.chdir(tmp_path / "folders" / "images")
    assert check_cases("..")["site"] == "folders"


def test_files_that_the_description_of_nnunet_lists_may_lie_anywhere(tmp_path: Path) -> None:
    site = made.saml(tmp_path / "elm" / "raw").parent
    listed = {"c": {"images": ["raw/Case00.nii.gz"], "label": "raw/Case00_segmentation.nii.gz"}}
    (site / "dataset.json").write_text(json.dumps({"file_ending": ".nii.gz", "dataset": listed}))
    names = [f"{site}/raw/Case00{end}.nii.gz" for end in ("", "_segmentation")]
    assert find_cases(site) == [dict(zip(("image", "label"), names))]


def test_a_hospital_whose_folder_is_no_site_is_reported(tmp_path: Path) -> None:
    made.saml(tmp_path / "BIDMC" / "nifti")  # one folder too deep
    made.touch(
        tmp_path, "HK/7/images/eye.png", "UCL/Case00.nrrd", ".cache/a.png", "papers/readme.txt"
    )
    with refused("BIDMC", "nifti/Case00.nii.gz", "HK", "7/images/eye.png", "UCL", "Case00.nrrd"):
        site_folders(tmp_path)
    made.saml(tmp_path / "RUNMC")
    made.touch(tmp_path, "template.nii.gz")
    with notes() as found:
        assert list(sites_at(tmp_path)) == ["RUNMC"]
    assert [Path(note.split()[0]).name for note in found] == ["BIDMC", "HK", "UCL"]


@pytest.mark.parametrize("images", ["dataset_2D", "."])
def test_each_list_of_nvflare_is_a_site(tmp_path: Path, images: str) -> None:
    """The list that merges the others is none."""
    made.nvflare(tmp_path, images=images)
    lists = {c: tmp_path / "datalist_2D" / f"{c}.json" for c in ("client_I2CVB", "client_MSD")}
    assert site_folders(tmp_path) == lists == site_folders(tmp_path / "datalist_2D")
    given = json.loads(lists["client_MSD"].read_text())
    for part, cases in site_datalist(lists["client_MSD"]).items():
        expected = [str(tmp_path / images / case["image"]) for case in given[part]]
        assert [case["image"] for case in cases] == expected
    # Folders and lists lie side by side, and a path with dots leads to the same sites.
    made.folders(tmp_path / "HK")
    assert list(site_folders(tmp_path / "HK" / "..")) == ["HK", *lists]


def test_a_list_may_begin_with_the_mark_of_windows_and_other_lists_are_no_sites(
    tmp_path: Path,
) -> None:
    file = made.ONE_SITE["nvflare"](tmp_path / "list")
    for each in (file, made.msd(tmp_path / "Task05") / "dataset.json"):
        content = json.loads(each.read_text()) | {"labels": {"0": "background"}}
        each.write_text(json.dumps(content), encoding="utf-8-sig")
    assert len(find_cases(file)) == 8 and len(find_cases(tmp_path / "Task05")) == 4
    # Lists that this package wrote, or that belong to a folder, are no sites.
    site = made.saml(tmp_path / "root" / "elm")
    parts = site_datalist(site, tmp_path / "root" / "elm.json")
    site_datalist(site, tmp_path / "root" / "datalist" / "elm.json")
    text = json.dumps(parts).replace(f"{site}/", "")
    made.touch(tmp_path / "root", "hand.json", "datalists/elm.json", "elm/datalist.json", text=text)
    assert site_folders(tmp_path / "root") == {"elm": site}


DAMAGED: dict[str, tuple[Callable[[str], str], str]] = {
    "the first is missing": (lambda text: text.replace("MSD/Image/Case0/0", "no"), "no.png"),
    "no label": (lambda text: text.replace("]}", ', {"image": "x.png"}]}'), "label"),
    "too deep": (lambda text: '{"training": ' + "[" * 60 + "]" * 60 + "}", "deeper"),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_a_damaged_list_is_a_site_whose_error_says_what_is_wrong(name: str, tmp_path: Path) -> None:
    file, (damage, word) = made.ONE_SITE["nvflare"](tmp_path), DAMAGED[name]
    file.write_text(damage(file.read_text()))
    made.touch(file.parent, "._client_MSD.json")
    assert list(site_folders(tmp_path)) == ["client_I2CVB", "client_MSD"]
    with refused("client_MSD.json", word):
        find_cases(file)


def test_an_empty_folder_is_a_site_whose_data_is_missing(tmp_path: Path) -> None:
    made.saml(tmp_path / "elm")
    # What a desktop leaves in a folder is no data either.
    made.touch(tmp_path, "oak/.DS_Store", "notes/README.txt")
    with refused("oak", "no case"):
        check_cases(site_folders(tmp_path)["oak"])


HALVES = [
    (["imagesTr/1.png"], ["dataset.json is missing"]),
    (["labels/1.png"], ["labels/1.png"]),
    (["images/1.png", "masks/1.gif"], ["masks/1.gif"]),
    (["other.txt"], ["other.txt"]),
]


def test_half_a_site_is_explained_by_what_is_there(tmp_path: Path) -> None:
    for number, (files, words) in enumerate(HALVES):
        site = made.touch(tmp_path / str(number), *files)
        with refused(site, *words):
            find_cases(site)
    (tmp_path / "none").mkdir()
    with refused(tmp_path / "none", "no site"):
        site_folders(tmp_path / "none")
    with refused("datalist_2D/client_All.json"):
        find_cases(made.nvflare(tmp_path / "flare"))


def test_a_folder_that_may_not_be_read_is_named() -> None:
    with folder_of_everybody() as root:
        for name in ("elm", "oak"):
            made.folders(root / name)
        with closed(root / "oak"), refused(root / "oak", "permissions"):
            site_folders(root)
        made.touch(root, "elm/closed/x")
        with closed(root / "elm" / "closed"):
            files = overview({"elm": root / "elm"})[0]["files"]
        assert "permissions" in files["refused"][str(root / "elm" / "closed")]


def test_a_task_of_the_decathlon_names_channels_and_an_unusable_list(tmp_path: Path) -> None:
    with noted("2 channels", "axis 3"):
        summary = check_cases(made.msd(tmp_path))
    assert summary.sound[0].image.shape == (8, 8, 4)
    with refused("dataset.json", "training"):
        find_cases(made.touch(tmp_path, "dataset.json", text='{"training": ["a.nii.gz"]}'))


def test_nnunet_takes_the_first_channel_and_names_files_that_do_not_pair(tmp_path: Path) -> None:
    site = made.nnunet(tmp_path / "two")
    assert Path(find_cases(site)[1]["image"]).name == "case_001_0000.nii.gz"
    # Version 1 lists images without the channel; an ending may lack its dot.
    names = [f"case_{n:03d}.nii.gz" for n in range(4)]
    for start in ("./", "", "../two/"):
        listed = [{key: f"{start}{key}sTr/{name}" for key in ("image", "label")} for name in names]
        for more in (
            {"modality": ["T2", "ADC"], "labels": {"0": "background", "1": "gland"}},
            {"file_ending": "nii.gz", "labels": {}},
            {"file_ending": ".nii.gz", "channel_names": {"0": "T2"}},
        ):
            made.touch(site, "dataset.json", text=json.dumps({"training": listed} | more))
            assert check_cases(site)["layout"] == "nnunet" and len(find_cases(site)) == 4
    (site / "imagesTr").rename(site / "ImagesTr")
    (site / "labelsTr" / "case_000.nii.gz").unlink()
    (site / "ImagesTr" / "case_002_0000.nii.gz").unlink()
    with refused("ImagesTr/case_000_0000.nii.gz", "labelsTr/case_002.nii.gz"):
        find_cases(site)
    made.touch(site, "dataset.json", text='{"file_ending": ".nii"}')
    with refused("file_ending"):
        find_cases(site)
