# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Each layout is recognised by its files and by no other's; errors explain what is in a folder."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from helpers import public_layouts as made
from helpers.bundle_runs import federation
from helpers.checkout import CHECKOUT

from monai_fairfl.bundle.preflight import data_folders, site_names
from monai_fairfl.data import check_cases, find_cases, site_datalist, site_folders
from monai_fairfl.data.layouts import LAYOUTS, find, layout_of, sites_at
from monai_fairfl.errors import DataError
from monai_fairfl.strategies import FedAvg

CASES = {"saml": 4, "folders": 4, "dofe": 8, "nvflare": 8, "msd": 4, "nnunet": 4}


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_layout_is_recognised_alone_and_all_of_its_cases_are_found(
    name: str, tmp_path: Path
) -> None:
    site = made.ONE_SITE[name](tmp_path / "site")
    recognising = [other for other, layout in LAYOUTS.items() if layout.recognises(site)]
    assert recognising == [name] == [layout_of(site)]
    cases = find_cases(site)
    assert len(cases) == CASES[name] == check_cases(site)["num_cases"]
    for case in cases:
        assert set(case) == {"image", "label"}
        assert Path(case["image"]).is_file() and Path(case["label"]).is_file()
    assert cases == sorted(cases, key=lambda case: case["image"])
    assert all(site_datalist(site)[part] for part in ("training", "validation", "testing"))


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_data_list_is_read_as_it_was_written_wherever_the_site_was_moved(
    name: str, tmp_path: Path
) -> None:
    site = made.ONE_SITE[name](tmp_path / "old")
    first = site_datalist(site, tmp_path / "list.json", seed=2)
    assert site_datalist(site, tmp_path / "list.json", seed=2) == first
    (tmp_path / "old").rename(tmp_path / "new")
    moved = tmp_path / "new" / site.relative_to(tmp_path / "old")
    again = site_datalist(moved, tmp_path / "list.json", seed=2)
    written = json.loads((tmp_path / "list.json").read_text())
    for path in written["testing"][0].values():
        assert not Path(path).is_absolute()
    assert list(again) == list(first)
    for part in again:
        names = [Path(case["image"]).relative_to(tmp_path / "new") for case in again[part]]
        previous = [Path(case["image"]).relative_to(tmp_path / "old") for case in first[part]]
        assert names == previous
        assert all(".." not in case["image"] for case in again[part])


def test_a_root_may_hold_sites_of_any_layout(tmp_path: Path) -> None:
    for name in ("saml", "folders", "msd", "nnunet"):
        made.ONE_SITE[name](tmp_path / name)
    for domain in ("Domain1", "Domain2"):
        made.dofe(tmp_path / domain)
    made.nvflare(tmp_path / "one_client", ["MSD"])
    (tmp_path / "papers").mkdir()
    (tmp_path / "papers" / "readme.txt").touch()
    names = ["Domain1", "Domain2", "folders", "msd", "nnunet", "one_client", "saml"]
    assert list(site_folders(tmp_path)) == names
    assert site_folders(tmp_path) == {name: tmp_path / name for name in names}
    assert {layout_of(folder) for folder in site_folders(tmp_path).values()} == set(LAYOUTS)


def test_a_hospital_whose_folder_is_no_site_is_reported(tmp_path: Path) -> None:
    made.saml(tmp_path / "BIDMC" / "nifti")  # one folder too deep
    made.write(tmp_path / "HK" / "7" / "images" / "eye.png", made.photo(0))
    (tmp_path / "UCL").mkdir()
    (tmp_path / "UCL" / "Case00.nrrd").touch()  # of a kind that is not read
    for quiet in (".cache", "papers"):
        (tmp_path / quiet).mkdir()
    (tmp_path / ".cache" / "thumb.png").touch()
    (tmp_path / "papers" / "readme.txt").touch()
    with pytest.raises(DataError, match="has no site") as caught:
        site_folders(tmp_path)
    notes = str(caught.value).splitlines()[1:]
    expected = [
        "BIDMC .* takes no part: nifti/ with 8 NII.GZ",
        "HK .*: 7/ with no files",
        "UCL .*: 1 NRRD",
    ]
    assert len(notes) == 3
    for words, note in zip(expected, notes):
        assert re.search(words, note)
    made.saml(tmp_path / "RUNMC")
    with pytest.warns(UserWarning) as warned:
        assert list(site_folders(tmp_path)) == ["RUNMC"]
    assert [f"- {warning.message}" for warning in warned] == notes


@pytest.mark.parametrize(
    "file", ["Case01/1.dcm", "DICOM/P1/study/series/1.dcm", "P1/IM0001", "P1/1.2.840.113"]
)
def test_a_hospital_of_dicom_alone_is_reported_with_the_fix(tmp_path: Path, file: str) -> None:
    made.saml(tmp_path / "RUNMC")
    (tmp_path / "BIDMC" / file).parent.mkdir(parents=True)
    (tmp_path / "BIDMC" / file).write_bytes(bytes(128) + b"DICM")
    fix = "; convert the DICOM series to NIfTI, for example with dcm2niix"
    with pytest.warns(UserWarning, match=f"BIDMC holds images but is no site .*{fix}$"):
        assert list(site_folders(tmp_path)) == ["RUNMC"]
    with pytest.raises(DataError, match=f"BIDMC holds no case. There is .*{fix}\\. A site's"):
        layout_of(tmp_path / "BIDMC")


def test_files_without_an_ending_that_do_not_begin_as_dicom_make_no_hospital(
    tmp_path: Path,
) -> None:
    made.saml(tmp_path / "RUNMC")
    for name in ("notes/LICENSE", "notes/backup.2", "series/DICOMDIR", "series/.IM0001"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        dicom = bytes(128) + b"DICM"
        (tmp_path / name).write_bytes(dicom if "series" in name else b"MIT")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert list(site_folders(tmp_path)) == ["RUNMC"]


@pytest.mark.parametrize("images", ["dataset_2D", "."])
def test_each_list_of_nvflare_is_a_site_and_the_merged_list_is_not(
    tmp_path: Path, images: str
) -> None:
    made.nvflare(tmp_path, images=images)
    lists = {}
    for client in ("client_I2CVB", "client_MSD"):
        lists[client] = tmp_path / "datalist_2D" / f"{client}.json"
    assert site_folders(tmp_path) == lists == site_folders(tmp_path / "datalist_2D")
    parts = site_datalist(lists["client_MSD"])
    given = json.loads(lists["client_MSD"].read_text())
    for part, cases in given.items():
        expected = [str(tmp_path / images / case["image"]) for case in cases]
        assert [case["image"] for case in parts[part]] == expected


def test_lists_beside_the_images_are_sites_too(tmp_path: Path) -> None:
    made.nvflare(tmp_path, images=".")
    for file in (tmp_path / "datalist_2D").iterdir():
        file.rename(tmp_path / file.name)
    (tmp_path / "datalist_2D").rmdir()
    assert list(site_folders(tmp_path)) == ["client_I2CVB", "client_MSD"]
    assert len(site_datalist(tmp_path / "client_MSD.json")["training"]) == 4


def test_lists_that_this_package_wrote_or_that_belong_to_a_folder_are_no_sites(
    tmp_path: Path,
) -> None:
    made.saml(tmp_path / "elm")
    site_datalist(tmp_path / "elm", tmp_path / "elm.json")
    site_datalist(tmp_path / "elm", tmp_path / "datalist" / "elm.json")
    hand = site_datalist(tmp_path / "elm")
    relative: dict[str, list[dict[str, str]]] = {}
    for part, cases in hand.items():
        relative[part] = []
        for case in cases:
            image, label = Path(case["image"]).name, Path(case["label"]).name
            relative[part].append({"image": image, "label": label})
    (tmp_path / "hand.json").write_text(json.dumps(relative))
    (tmp_path / "datalists").mkdir()
    shutil.copy(tmp_path / "hand.json", tmp_path / "datalists" / "elm.json")
    shutil.copy(tmp_path / "hand.json", tmp_path / "elm" / "datalist.json")
    assert site_folders(tmp_path) == {"elm": tmp_path / "elm"}


def test_lists_and_folders_lie_side_by_side(tmp_path: Path) -> None:
    for name, images in (("beneath", "dataset_2D"), ("beside", ".")):
        root = made.nvflare(tmp_path / name, images=images)
        made.folders(root / "HK")
        made.saml(root / "UCL")
        assert (
            list(site_folders(root))
            == ["HK", "UCL", "client_I2CVB", "client_MSD"]
            == sorted(sites_at(root))
        )
        (root / "datalist_2D" / "client_MSD.json").unlink()
        assert {"HK", "UCL", "client_I2CVB"} <= set(sites_at(root))
    (root / "datalist_2D" / "client_I2CVB.json").rename(root / "datalist_2D" / "HK.json")
    with pytest.raises(
        DataError, match=r"datalist_2D/HK.json and .*/HK are two sites 'HK'. Rename one"
    ):
        list(site_folders(root))


def test_a_path_with_dots_leads_to_the_same_sites(tmp_path: Path) -> None:
    made.saml(tmp_path / "root" / "elm")
    listed: dict[str, list[dict[str, str]]] = {}
    for part, cases in site_datalist(tmp_path / "root" / "elm").items():
        listed[part] = []
        for case in cases:
            image, label = Path(case["image"]).name, Path(case["label"]).name
            listed[part].append({"image": f"elm/{image}", "label": f"elm/{label}"})
    file = tmp_path / "root" / "datalist" / "elm.json"
    file.parent.mkdir()
    file.write_text(json.dumps(listed))
    assert site_folders(tmp_path / "root") == {"elm": file}
    with_dots = tmp_path / "root" / "elm" / ".."
    assert site_folders(with_dots) == {"elm": with_dots / "datalist" / "elm.json"}


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda text: text[:-20], r"it cannot be read as JSON \(.*export it again"),
        (
            lambda text: text.replace('"training"', '"train"'),
            'no list "training" .* the keys train, validation, testing',
        ),
        (lambda text: f"[{text}]", "it holds no JSON object"),
        (lambda text: text.replace('"image"', '"img"'), "its images are neither in"),
    ],
)
def test_a_damaged_list_is_a_site_whose_error_says_what_is_wrong(
    tmp_path: Path, damage: Callable[[str], str], words: str
) -> None:
    file = made.ONE_SITE["nvflare"](tmp_path)
    file.write_text(damage(file.read_text()))
    (tmp_path / "datalist_2D" / "._client_MSD.json").touch()
    for root in (tmp_path, tmp_path / "datalist_2D"):
        assert list(site_folders(root)) == ["client_I2CVB", "client_MSD"]
    with pytest.raises(DataError, match=f"client_MSD.json.* {words}"):
        find_cases(file)


def test_a_list_may_name_its_labels_and_begin_with_the_mark_of_windows(tmp_path: Path) -> None:
    file = made.ONE_SITE["nvflare"](tmp_path)
    content = json.loads(file.read_text()) | {"labels": {"0": "background", "1": "prostate"}}
    file.write_text(json.dumps(content), encoding="utf-8-sig")
    assert (
        list(site_folders(tmp_path)) == ["client_I2CVB", "client_MSD"]
        and len(find_cases(file)) == 8
    )
    task = made.msd(tmp_path / "Task05") / "dataset.json"
    task.write_text(task.read_text(), encoding="utf-8-sig")
    assert layout_of(task.parent) == "msd" and sites_at(task.parent) == {"Task05": task.parent}


def test_a_federation_sees_lists_as_sites_and_an_empty_folder_as_one_whose_data_is_missing(
    tmp_path: Path,
) -> None:
    made.nvflare(tmp_path / "flare")
    (tmp_path / "flare" / "empty").mkdir()
    assert site_names(tmp_path / "flare", None, {}) == ["client_I2CVB", "client_MSD"]
    assert data_folders(tmp_path / "flare")["client_MSD"].name == "client_MSD.json"
    made.folders(tmp_path / "clinics" / "elm")
    (tmp_path / "clinics" / "oak").mkdir()
    assert site_names(tmp_path / "clinics", None, {}) == ["elm", "oak"]
    with pytest.raises(DataError, match="oak holds no case. There is nothing in it"):
        check_cases(data_folders(tmp_path / "clinics")["oak"])


def test_a_folder_that_holds_only_what_a_desktop_left_is_a_site_whose_data_is_missing(
    tmp_path: Path,
) -> None:
    made.folders(tmp_path / "elm")
    for site, name in (("ash", "desktop.ini"), ("fir", "Thumbs.db"), ("oak", ".DS_Store")):
        (tmp_path / site).mkdir()
        (tmp_path / site / name).touch()
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "README.txt").touch()
    assert site_names(tmp_path, None, {}) == ["ash", "elm", "fir", "oak"]
    with pytest.raises(DataError, match="oak holds no case"):
        check_cases(data_folders(tmp_path)["oak"])


def test_folders_that_a_disk_has_of_itself_are_no_hospitals(tmp_path: Path) -> None:
    made.folders(tmp_path / "elm")
    for name in ("lost+found", "$RECYCLE.BIN", "System Volume Information"):
        (tmp_path / name).mkdir()
    for any_folder in (False, True):
        assert site_names(tmp_path, None, {}, any_folder) == ["elm"]


def test_a_hospitals_folder_that_may_not_be_read_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("elm", "oak"):
        made.folders(tmp_path / name)
    listed = Path.iterdir

    # Permissions do not stop an administrator, who may run this test.
    def refuse(path: Path) -> Iterator[Path]:
        if path == tmp_path / "oak":
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return listed(path)

    monkeypatch.setattr(Path, "iterdir", refuse)
    for look in (site_folders, data_folders):
        with pytest.raises(DataError, match="oak cannot be read, because this account may not"):
            look(tmp_path)


def test_a_site_has_its_name_also_where_it_is_the_folder_that_one_is_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = made.folders(tmp_path / "elm")
    monkeypatch.chdir(site)
    assert list(sites_at(".")) == ["elm"]
    assert check_cases(".", cases=find_cases("."))["site"] == check_cases(".")["site"] == "elm"
    monkeypatch.chdir(site / "images")
    assert list(sites_at("..")) == ["elm"]


def test_one_site_or_all_sites_may_be_named(tmp_path: Path) -> None:
    made.folders(tmp_path / "elm")
    assert sites_at(tmp_path) == sites_at(tmp_path / "elm") == {"elm": tmp_path / "elm"}
    file = made.nvflare(tmp_path / "flare") / "datalist_2D" / "client_MSD.json"
    assert sites_at(file) == {"client_MSD": file} and len(sites_at(tmp_path / "flare")) == 2


def test_the_page_shows_every_layout() -> None:
    page = (CHECKOUT / "docs" / "data.md").read_text()
    assert [line.split("`")[1] for line in page.splitlines() if line.startswith("| `")] == list(
        LAYOUTS
    )


# explanations


def test_half_a_site_is_a_site_whose_error_says_what_is_there_and_what_is_missing(
    tmp_path: Path,
) -> None:
    made.folders(tmp_path / "elm", cases=12)
    made.folders(tmp_path / "oak", cases=12)
    shutil.rmtree(tmp_path / "oak" / "masks")
    assert list(site_folders(tmp_path)) == ["elm", "oak"]
    with pytest.raises(
        DataError, match=r"oak holds no case. There is images/ with 12 PNG, but masks/ is missing"
    ) as caught:
        find_cases(tmp_path / "oak")
    for name, layout in LAYOUTS.items():
        assert f"- {name}: {layout.EXPECTS}" in str(caught.value)


def test_files_of_a_kind_that_cannot_be_read_are_counted(tmp_path: Path) -> None:
    made.folders(tmp_path)
    for path in (tmp_path / "masks").iterdir():
        path.rename(path.with_suffix(".gif"))
    with pytest.raises(DataError, match=r"images/ with 4 PNG, masks/ with 4 GIF"):
        find_cases(tmp_path)


def test_two_layouts_in_one_folder_are_refused_by_name(tmp_path: Path) -> None:
    made.saml(made.folders(tmp_path))
    with pytest.raises(
        DataError, match=r"could be 2 layouts: saml \(.*\); folders \(.*Move the files"
    ):
        find_cases(tmp_path)


def test_roots_that_are_sites_or_hold_several_lists_are_explained(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"has no site: .* It is a site itself \(saml\)"):
        list(site_folders(made.saml(tmp_path / "elm")))
    with pytest.raises(
        DataError, match="a list for each of 2 sites; give one of them, such as .*client_I2CVB.json"
    ):
        find_cases(made.nvflare(tmp_path / "flare"))
    shutil.copytree(tmp_path / "flare" / "datalist_2D", tmp_path / "flare" / "datalist")
    with pytest.raises(
        DataError, match="has lists in datalist and datalist_2D. Give one of these folders"
    ):
        list(site_folders(tmp_path / "flare"))
    (tmp_path / "other.json").write_text("{}")
    with pytest.raises(DataError, match="a file that is no data list"):
        find_cases(tmp_path / "other.json")


# what each layout adds


@pytest.mark.parametrize(
    "names", [("image", "mask"), ("Images", "Masks"), ("imgs", "labels"), ("images", "masks")]
)
def test_folders_go_by_several_names(names: tuple[str, str], tmp_path: Path) -> None:
    assert len(find_cases(made.folders(tmp_path, names=names))) == 4


def test_two_folders_for_masks_are_refused(tmp_path: Path) -> None:
    made.folders(made.folders(tmp_path), names=("images", "labels"))
    with pytest.raises(DataError, match="has labels/ and masks/. Keep one"):
        find_cases(tmp_path)


def test_test_cases_of_dofe_stay_test_cases_and_the_others_are_split(tmp_path: Path) -> None:
    parts = site_datalist(made.dofe(tmp_path / "Domain4", train=10, test=3))
    assert {part: len(cases) for part, cases in parts.items()} == {
        "training": 8,
        "validation": 2,
        "testing": 3,
    }
    assert all("/test/ROIs/image/" in case["image"] for case in parts["testing"])
    assert not any("/test/" in case["image"] for case in parts["training"] + parts["validation"])


def test_dofe_without_its_masks_or_images_is_named(tmp_path: Path) -> None:
    shutil.rmtree(made.dofe(tmp_path) / "test" / "ROIs" / "mask")
    with pytest.raises(DataError, match="test/ROIs/mask holds no images"):
        find_cases(tmp_path)
    shutil.rmtree(tmp_path / "test")
    assert find(tmp_path).parts is None
    shutil.rmtree(tmp_path / "train" / "ROIs")
    (tmp_path / "test" / "ROIs").mkdir(parents=True)
    with pytest.raises(DataError, match="train/ROIs/image holds no image"):
        find_cases(tmp_path)


def test_a_list_of_nvflare_names_what_it_lacks(tmp_path: Path) -> None:
    file = made.ONE_SITE["nvflare"](tmp_path)
    (tmp_path / "dataset_2D" / "MSD" / "Mask" / "Case1" / "0.png").unlink()
    with pytest.raises(
        DataError, match="client_MSD.json: .*MSD/Mask/Case1/0.png does not exist. Export"
    ):
        find_cases(file)
    shutil.rmtree(tmp_path / "dataset_2D")
    with pytest.raises(
        DataError, match=r"client_MSD.json: its images are neither in .* nor in a folder dataset\*"
    ):
        find_cases(file)
    made.nvflare(tmp_path)
    content = json.loads(file.read_text())
    file.write_text(json.dumps(content | {"testing": [{"image": "x.png"}]}))
    with pytest.raises(DataError, match="client_MSD.json: each entry must be"):
        find_cases(file)


def test_slices_of_a_case_are_of_one_patient(tmp_path: Path) -> None:
    found = find(made.ONE_SITE["nvflare"](tmp_path))
    assert len(set(found.patients.values())) == 4 and len(found.patients) == 8


def test_images_in_one_folder_are_not_of_one_patient(tmp_path: Path) -> None:
    file = made.ONE_SITE["nvflare"](tmp_path)
    flat = {"training": [], "testing": []}
    for n in range(4):
        for key in ("image", "mask"):
            made.write(tmp_path / "dataset_2D" / "all" / key / f"{n}.png", made.mask(n))
        flat["testing" if n == 3 else "training"].append(
            {"image": f"all/image/{n}.png", "label": f"all/mask/{n}.png"}
        )
    file.write_text(json.dumps(flat))
    assert find(file).patients == {}
    assert {part: len(cases) for part, cases in site_datalist(file, validation=0.4).items()} == {
        "training": 2,
        "validation": 1,
        "testing": 1,
    }


def test_a_list_by_hand_for_a_site_that_is_a_list_begins_from_its_folder(tmp_path: Path) -> None:
    file = made.ONE_SITE["nvflare"](tmp_path)
    one = {key: f"../dataset_2D/MSD/{key.title()}/Case0/0.png" for key in ("image", "mask")}
    case = {"image": one["image"], "label": one["mask"]}
    (tmp_path / "hand.json").write_text(
        json.dumps({"training": [case], "validation": [case], "testing": []})
    )
    (used,) = site_datalist(file, tmp_path / "hand.json")["training"]
    assert used["image"] == str(tmp_path / "dataset_2D" / "MSD" / "Image" / "Case0" / "0.png")


def test_a_task_of_the_decathlon_keeps_its_channels_and_names_missing_files(tmp_path: Path) -> None:
    assert find(made.msd(tmp_path)).channels == ("T2", "ADC")
    (tmp_path / "labelsTr" / "prostate_02.nii.gz").unlink()
    with pytest.raises(
        DataError, match=r"dataset.json: .*labelsTr/prostate_02.nii.gz does not exist"
    ):
        find_cases(tmp_path)
    (tmp_path / "dataset.json").write_text('{"training": ["imagesTr/prostate_00.nii.gz"]}')
    with pytest.raises(DataError, match='"training" must hold'):
        find_cases(tmp_path)
    (tmp_path / "dataset.json").write_text('{"training": []}')
    with pytest.raises(DataError, match="it lists no case"):
        find_cases(tmp_path)


def test_nnunet_takes_the_first_channel_and_names_files_that_do_not_pair(tmp_path: Path) -> None:
    site = made.nnunet(tmp_path / "two")
    assert Path(find(site).cases[1]["image"]).name == "case_001_0000.nii.gz"
    assert "0: T2, 1: ADC" in find(site).notes[0]
    colour = made.nnunet(tmp_path / "colour", channels=1, ending=".png")
    about = json.loads((colour / "dataset.json").read_text())
    names = {"0": "R", "1": "G", "2": "B"}  # three channels in one file need no choice
    (colour / "dataset.json").write_text(
        json.dumps(about | {"channel_names": names, "training": [{"image": "x"}]})
    )
    assert layout_of(colour) == "nnunet" and not find(colour).notes
    (site / "labelsTr" / "case_000.nii.gz").unlink()
    (site / "imagesTr" / "case_002_0000.nii.gz").unlink()
    with pytest.raises(
        DataError,
        match="case_000_0000.nii.gz has no labelsTr.*labelsTr/case_002.nii.gz has no imagesTr",
    ):
        find_cases(site)
    assert len(find_cases(made.nnunet(tmp_path / "pictures", channels=1, ending=".png"))) == 4
    (tmp_path / "bare").mkdir()
    (tmp_path / "bare" / "dataset.json").write_text('{"file_ending": ".nii.gz"}')
    with pytest.raises(DataError, match="hold no case with the ending .nii.gz"):
        find_cases(tmp_path / "bare")


@pytest.mark.slow
def test_a_federation_trains_on_the_lists_of_nvflare(hospitals: Path, tmp_path: Path) -> None:
    root = tmp_path / "prostate"
    (root / "datalist").mkdir(parents=True)
    for site in ("alder", "cedar"):
        shutil.copytree(hospitals / site, root / "dataset" / site)
        split = site_datalist(root / "dataset" / site)
        listed: dict[str, list[dict[str, str]]] = {}
        for part, cases in split.items():
            listed[part] = []
            for case in cases:
                image = os.path.relpath(case["image"], root / "dataset")
                label = os.path.relpath(case["label"], root / "dataset")
                listed[part].append({"image": image, "label": label})
        (root / "datalist" / f"client_{site}.json").write_text(json.dumps(listed))
    (history,) = federation(root, tmp_path / "run", FedAvg(), rounds=1, check=check_cases).run()
    assert history.finished and set(history.rounds[0]["samples"]) == {
        "client_alder",
        "client_cedar",
    }
    used = json.loads((tmp_path / "run" / "datalists" / "client_cedar.json").read_text())
    assert used["split"] == {"kept": ["training", "validation", "testing"]}
    expected = []
    for case in listed["testing"]:
        expected.append(
            {"image": f"../dataset/{case['image']}", "label": f"../dataset/{case['label']}"}
        )
    assert used["testing"] == expected
