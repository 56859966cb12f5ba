# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The first look: ``monai-fairfl try`` on folders that are right, and on some that are not."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from monai_fairfl.bundle.first_look import quick_file
from monai_fairfl.bundle.shipped import copy_bundle, find_bundle
from monai_fairfl.cli import main, trying
from monai_fairfl.cli.choosing import FUNDUS, PROSTATE, bundle_for, chosen_bundle
from monai_fairfl.cli.trying import try_sites
from monai_fairfl.data import CLINICS, write_clinics
from monai_fairfl.data.layouts import site_folders
from monai_fairfl.errors import ConfigError, DataError


@pytest.fixture(scope="module")
def clinics(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("clinics")
    write_clinics(root, clinics=CLINICS[:3], size=96, cases=4)
    return root


def test_the_bundle_follows_from_the_images(hospitals: Path, clinics: Path, tmp_path: Path) -> None:
    assert bundle_for(site_folders(hospitals)) == "prostate_mri_segmentation"
    assert bundle_for(site_folders(clinics)) == "fundus_disc_cup_segmentation"
    mixed = {"elm": hospitals / "elm", "acacia": clinics / "acacia"}
    with pytest.raises(DataError, match=r"elm hold volumes \(NIfTI\), acacia photographs"):
        bundle_for(mixed)


def test_a_copy_of_a_shipped_bundle_takes_its_images_only_and_one_of_ones_own_any(
    clinics: Path, tmp_path: Path
) -> None:
    root = copied(clinics, tmp_path / "sites")
    assert chosen_bundle(root, FUNDUS) == find_bundle(FUNDUS)
    copy = copy_bundle(PROSTATE, tmp_path / "my_prostate")
    with pytest.raises(ConfigError, match="photographs, and my_prostate is for volumes.*fundus_d"):
        chosen_bundle(root, str(copy))

    metadata = copy / "configs" / "metadata.json"
    metadata.write_text(metadata.read_text().replace('"name": "', '"name": "My own '))
    assert chosen_bundle(root, str(copy)) == copy


def test_grey_slices_are_no_photographs_of_the_fundus(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for kind in ("images", "masks"):
        (tmp_path / "I2CVB" / kind).mkdir(parents=True)
        Image.fromarray(rng.integers(0, 255, (48, 48), dtype=np.uint8)).save(
            tmp_path / "I2CVB" / kind / "Case00.png"
        )
    with pytest.raises(DataError, match="I2CVB hold grey pictures, such as slices"):
        bundle_for(site_folders(tmp_path))


def copied(clinics: Path, to: Path) -> Path:
    for site in clinics.iterdir():
        if site.is_dir():
            shutil.copytree(site, to / site.name)
    return to


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        ("mislabelled", ["acacia", "Case01.png"]),
        ("half_empty", ["beech", "masks"]),
        ("mixed", ["cypress", "Case00"]),
    ],
)
def test_bad_folders_are_reported_before_anything_is_trained(
    spoil: str, words: list[str], clinics: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = copied(clinics, tmp_path / "sites")
    if spoil == "mislabelled":  # a photograph in the place of a mask
        shutil.copy(
            root / "acacia" / "images" / "Case01.png", root / "acacia" / "masks" / "Case01.png"
        )
    elif spoil == "half_empty":
        shutil.rmtree(root / "beech" / "masks")
    else:  # the mask of another size
        mask = root / "cypress" / "masks" / "Case00.png"
        Image.fromarray(np.zeros((20, 30), np.uint8)).save(mask)
    assert main(["try", str(root), "--out", str(tmp_path / "out")]) == 2
    printed = capsys.readouterr()
    assert all(word in printed.out + printed.err for word in words), printed
    assert "give the same command again" in printed.err and not (tmp_path / "out").exists()


def test_one_hospital_is_no_federation(
    clinics: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(clinics / "acacia", tmp_path / "sites" / "acacia")
    assert main(["try", str(tmp_path / "sites"), "--out", str(tmp_path / "out")]) == 2
    assert "a federation needs two" in capsys.readouterr().err


def test_what_photographs_are_reaches_the_training_and_is_refused_for_volumes(
    hospitals: Path, tmp_path: Path
) -> None:
    line = trying.line_of(find_bundle(FUNDUS), tmp_path, tmp_path, stereo=False)
    # MONAI reads the words as Python does: a JSON false would be a text.
    assert line.words[line.words.index("--overrides#stereo") + 1] == "False"
    with pytest.raises(ConfigError, match="holds volumes: leave it out"):
        try_sites(hospitals, tmp_path / "out", stereo=True)


def test_what_is_not_given_is_left_to_the_bundle(tmp_path: Path) -> None:
    line = trying.line_of(find_bundle(PROSTATE), tmp_path, tmp_path)
    assert not {"rounds", "jobs", "local_epochs"} & set(line.arguments)
    line = trying.line_of(find_bundle(PROSTATE), tmp_path, tmp_path, rounds=7, jobs=3)
    assert (line.arguments["rounds"], line.arguments["jobs"]) == (7, 3)


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("kind", ["prostate", pytest.param("fundus", marks=pytest.mark.extended)])
def test_from_a_folder_to_a_report_in_one_command(
    kind: str, hospitals: Path, clinics: Path, tmp_path: Path
) -> None:
    root = tmp_path / "sites"
    for site in sorted(site_folders(hospitals if kind == "prostate" else clinics).values())[:2]:
        shutil.copytree(site, root / site.name)
    tiny = {
        "size": [32, 32],
        "channels": [4, 8, 8],
        **({"working_size": 64} if kind == "fundus" else {}),
    }
    name = bundle_for(site_folders(root))
    bundle = copy_bundle(name, tmp_path / "out" / "bundle")
    tiny_look = {"rounds": 1, "local_epochs": 1, "overrides": tiny}
    quick_file(bundle).write_text(json.dumps(tiny_look))
    jobs = None if kind == "prostate" else 1
    with (tmp_path / "log").open("w") as log:
        found = try_sites(root, tmp_path / "out", output=log, jobs=jobs)
        # Finished: nothing is trained again.
        again = try_sites(root, tmp_path / "out", output=log, jobs=jobs)
    assert found == again and Path(found["report"]).is_file()
    report = json.loads((tmp_path / "out" / "run" / "report.json").read_text())
    assert (
        list(report["strategies"]) == ["Standalone", "FedAvg", "FedCE"]
        and sorted(report["sites"]) == found["sites"]
    )
    assert all(site in (tmp_path / "log").read_text() for site in report["sites"])
    printed = (tmp_path / "log").read_text()
    assert "It calls no hospital better off" in printed and not any(
        strategy["judged"] for strategy in report["strategies"].values()
    )
    assert "about " in printed
    assert (
        "-m monai.bundle run" in found["command"]
        and (Path(found["bundle"]) / "configs" / "train.json").is_file()
    )


def test_a_first_look_at_other_hospitals_is_not_shown_for_these(
    clinics: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root, out = copied(clinics, tmp_path / "sites"), tmp_path / "out"
    earlier = {"data": {"acacia": str(tmp_path / "elsewhere" / "acacia")}}
    (out / "run").mkdir(parents=True)
    (out / "run" / "config.json").write_text(json.dumps(earlier))
    assert main(["try", str(root), "--out", str(out)]) == 2
    assert (
        "first look at other hospitals" in capsys.readouterr().err and not (out / "bundle").exists()
    )


@pytest.mark.parametrize(
    ("text", "words"), [('{"data": {', "config.json is damaged"), ("{}", "at other hospitals")]
)
def test_a_configuration_that_does_not_name_the_hospitals_is_no_first_look_at_these(
    text: str, words: str, clinics: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root, out = copied(clinics, tmp_path / "sites"), tmp_path / "out"
    (out / "run").mkdir(parents=True)
    (out / "run" / "config.json").write_text(text)
    assert main(["try", str(root), "--out", str(out)]) == 2
    assert words in capsys.readouterr().err
    assert not (out / "bundle").exists()
