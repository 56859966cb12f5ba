# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""``monai-fairfl adapt``: a finished model is trained further at one hospital."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest
import torch
from helpers.command_line import run_json

from monai_fairfl.bundle import adaptation
from monai_fairfl.bundle.adaptation import Adaptation, adapt_model, check_listed
from monai_fairfl.bundle.configuration import train_config
from monai_fairfl.bundle.initial import bundle_recipe, initial_model
from monai_fairfl.bundle.shipped import find_bundle
from monai_fairfl.cli import main
from monai_fairfl.cli.adapting import adaptation_text
from monai_fairfl.data.datalist import site_datalist
from monai_fairfl.errors import ConfigError, DataError
from monai_fairfl.model_files.recipe import read_recipe, save_model_file, state_of_file
from monai_fairfl.protocol.values import Estimate, value_of

PROSTATE = find_bundle("prostate_mri_segmentation")
SMALL = {"size": [32, 32], "channels": [4, 8, 8]}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An untrained model: any training makes it better."""
    torch.manual_seed(0)
    weights, spec = initial_model(PROSTATE, SMALL)
    recipe = bundle_recipe(PROSTATE, SMALL, local_epochs=1)
    assert recipe is not None
    file = tmp_path_factory.mktemp("adapting") / "model.pt"
    recipe = recipe.trained(strategy="FedCE", rounds=2, seed=7)
    save_model_file(file, spec.with_aliases(weights), recipe)
    return file


@pytest.fixture(scope="module")
def datalist(hospitals: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two cases of alder train, two validate, none is tested."""
    file = tmp_path_factory.mktemp("adapting") / "alder.json"
    site_datalist(hospitals / "alder", file)
    lists = json.loads(file.read_text())
    cases = [*lists["training"], *lists["validation"], *lists["testing"]]
    lists.update(training=cases[:2], validation=cases[2:4], testing=cases[4:])
    file.write_text(json.dumps(lists))
    return file


@pytest.fixture(scope="module")
def adapted(
    model: Path, hospitals: Path, datalist: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Adaptation, Path]:
    out = tmp_path_factory.mktemp("adapting") / "out"
    settings = {"datalist_file": datalist, "epochs": 3, "rate": 0.01}
    return adapt_model(model, PROSTATE, hospitals / "alder", out, **settings), out


@pytest.mark.slow
def test_the_adapted_model_is_another_one_that_says_how_it_was_adapted(
    adapted: tuple[Adaptation, Path], model: Path
) -> None:
    found, out = adapted
    assert found.gain.n == 2 and found.gain.value > (found.gain.stderr or 1)
    assert found.model == out / "model.pt"
    recipe = read_recipe(found.model)
    assert recipe is not None and recipe.values["size"] == [32, 32]
    assert recipe.training == {
        "local_epochs": 1,
        "strategy": "FedCE",
        "rounds": 2,
        "seed": 7,
        "adapted": {"hospital": "alder", "epochs": found.epochs, "rate": 0.01},
    }
    before, after = state_of_file(model), state_of_file(found.model)
    assert before.keys() == after.keys()
    assert any(not torch.equal(before[name], after[name]) for name in before)


@pytest.mark.slow
def test_the_gain_is_the_difference_of_the_validation_scores(
    adapted: tuple[Adaptation, Path],
) -> None:
    found, _ = adapted
    difference = value_of(found.after["score"]) - value_of(found.before["score"])
    assert np.isclose(difference, found.gain.value, atol=1e-6)
    # The table shows the same two numbers.
    table = adaptation_text(found, "alder")
    for scores in (found.before, found.after):
        assert f"{value_of(scores['score']):.3f}" in table
    chosen = "The epoch was chosen on these cases, so the gain is too high"
    assert f"{chosen}: test cases would give the honest one." in table
    tested = {**found.after, "test_score": found.after["score"]}
    table = adaptation_text(replace(found, after=tested), "alder")
    assert f"{chosen}: the test Dice is the honest one." in table


@pytest.mark.long
@pytest.mark.slow
def test_the_same_seed_gives_the_same_model(
    adapted: tuple[Adaptation, Path], model: Path, hospitals: Path, datalist: Path, tmp_path: Path
) -> None:
    found, _ = adapted
    settings = {"datalist_file": datalist, "epochs": 3, "rate": 0.01}
    again = adapt_model(model, PROSTATE, hospitals / "alder", tmp_path, **settings)
    assert found.model is not None and again.model is not None
    assert found.model.read_bytes() == again.model.read_bytes()


@pytest.mark.slow
def test_the_command_says_that_one_validation_case_cannot_judge(
    model: Path, hospitals: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    words = ["adapt", str(model), str(hospitals / "alder"), "--out", str(out), "--epochs", "1"]
    assert main(words) == 0
    printed = capfd.readouterr().out
    assert "Not taken: alder has 1 validation case that can judge, and two are needed" in printed
    assert f"Split into cases (new): {out / 'datalist.json'}" in printed
    assert not (out / "model.pt").exists()

    # A second time it replaces nothing.
    assert main(words) == 2
    assert f"{out} is not empty" in capfd.readouterr().err


@pytest.mark.parametrize("fault", [KeyboardInterrupt(), OSError("the disk is gone")])
def test_the_same_command_may_be_given_again_after_a_stop_or_an_error(
    fault: BaseException,
    model: Path,
    hospitals: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    out = tmp_path / "out"

    def stopped(*_: object, datalist_file: Path, **__: object) -> None:
        (out / "site" / "state").mkdir(parents=True)
        for name in (datalist_file.name, "model.pt", ".model.recipe.json.writing"):
            (out / name).touch()
        raise fault

    monkeypatch.setattr(adaptation, "adapt_model", stopped)
    words = ["adapt", str(model), str(hospitals / "alder"), "--out", str(out)]
    first = main(words)
    assert first != 0
    assert [path.name for path in out.iterdir()] == ["log.txt"]
    assert main(words) == first


@pytest.mark.slow
def test_who_switches_the_check_of_the_files_off_is_not_refused_by_it(
    hospitals: Path, tmp_path: Path
) -> None:
    site = tmp_path / "alder"
    shutil.copytree(hospitals / "alder", site)
    next(site.glob("*_segmentation.nii.gz")).unlink()
    with pytest.raises(DataError, match="has no mask"):
        check_listed(PROSTATE, site, None, train_config(PROSTATE, {}))
    check_listed(PROSTATE, site, None, train_config(PROSTATE, {"check_data": False}))


def test_a_data_list_with_one_validation_case_trains_nothing(
    model: Path, hospitals: Path, datalist: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lists = json.loads(datalist.read_text())
    lists.update(validation=lists["validation"][:1], testing=lists["validation"][1:])
    file = tmp_path / "list.json"
    file.write_text(json.dumps(lists))
    out = tmp_path / "out"
    words = ["adapt", str(model), str(hospitals / "alder"), "--out", str(out)]
    words += ["--datalist", str(file)]
    assert main(words) == 0
    printed = capsys.readouterr()
    assert "Not taken: alder has 1 validation case that can judge, and two are" in printed.out
    assert "Nothing was trained.\n" in printed.out
    assert f"Split into cases (the one you named): {file}" in printed.out
    assert "epochs at a rate" not in printed.err
    # The folder may serve another list.
    assert not out.exists()
    found = run_json(capsys, *words)
    assert found == {"gain": None, "epochs": 0, "before": {}, "after": {}, "model": None}


def test_what_was_not_taken_says_why() -> None:
    scores = {"score": Estimate(0.5, 0.1, 3)}
    worse = Adaptation(Estimate(0.0, None, 3), 0, scores, scores, None)
    assert "no epoch was better" in adaptation_text(worse, "elm")
    unsure = Adaptation(Estimate(0.01, 0.02, 3), 4, scores, scores, None)
    assert (
        "Not taken: on 3 validation cases it gains +0.010 ± 0.020 Dice after 4 epochs, no more "
        "than its standard error" in adaptation_text(unsure, "elm")
    )


def test_a_model_without_a_recipe_is_refused(hospitals: Path, tmp_path: Path) -> None:
    file = tmp_path / "bare.pt"
    torch.save({"weight": torch.zeros(1)}, file)
    with pytest.raises(ConfigError, match="has no recipe"):
        adapt_model(file, PROSTATE, hospitals / "alder", tmp_path / "out")


def test_the_model_of_an_earlier_adaptation_is_not_taken_for_this_ones(
    hospitals: Path, tmp_path: Path
) -> None:
    (tmp_path / "model.pt").write_bytes(b"earlier")
    with pytest.raises(ConfigError, match=r"model\.pt is of an earlier adaptation: name another"):
        adapt_model(tmp_path / "model.pt", PROSTATE, hospitals / "alder", tmp_path)
    assert (tmp_path / "model.pt").read_bytes() == b"earlier"


def test_a_training_file_that_the_bundle_lacks_is_named(hospitals: Path, tmp_path: Path) -> None:
    torch.manual_seed(0)
    weights, spec = initial_model(PROSTATE, SMALL)
    recipe = bundle_recipe(PROSTATE, SMALL)
    assert recipe is not None
    file = tmp_path / "model.pt"
    other = {"configs/train.json": "", "mine.json": ""}
    save_model_file(file, spec.with_aliases(weights), recipe.of_site("").trained())
    recipe = type(recipe)(**{**recipe.state_dict(), "files": other})
    save_model_file(file, spec.with_aliases(weights), recipe)
    with pytest.raises(ConfigError, match=r"trained with mine.json, which .* does not have"):
        adapt_model(file, PROSTATE, hospitals / "alder", tmp_path / "out")


@pytest.mark.slow
def test_the_answer_is_also_plain(
    model: Path, hospitals: Path, datalist: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # A run's own split is used where the hospital took part.
    run = tmp_path / "run"
    for folder in ("models", "datalists"):
        (run / folder).mkdir(parents=True)
    (run / "models" / "global.pt").write_bytes(model.read_bytes())
    (run / "datalists" / "alder.json").write_bytes(datalist.read_bytes())
    (run / "config.json").write_text("{}")
    words = ["adapt", str(run), str(hospitals / "alder"), "--out", str(tmp_path / "out")]
    found = run_json(capsys, *words, "--epochs", "1", "--rate", "0.01")
    assert found["gain"]["n"] == 2 and set(found["before"]) == {"score"}


@pytest.mark.slow
def test_a_named_data_list_decides_which_cases_judge(
    model: Path, hospitals: Path, datalist: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    words = ["adapt", str(model), str(hospitals / "alder"), "--out", str(out), "--epochs", "1"]
    assert main([*words, "--datalist", str(tmp_path / "absent.json")]) == 2
    assert "absent.json: there is no such file" in capsys.readouterr().err

    # A new split would have one validation case.
    assert main([*words, "--rate", "0.01", "--datalist", str(datalist)]) == 0
    printed = capsys.readouterr().out
    assert "on 2 validation cases" in printed
    assert f"Split into cases (the one you named): {datalist}" in printed


@pytest.mark.slow
def test_files_at_fault_are_named_and_the_same_command_goes_on_when_they_are_mended(
    model: Path, hospitals: Path, datalist: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hospital = tmp_path / "alder"
    shutil.copytree(hospitals / "alder", hospital)
    listed = json.loads(datalist.read_text())["training"][0]["label"]
    mask = nib.load(hospital / listed)
    nib.save(nib.Nifti1Image(np.asanyarray(mask.dataobj) * 0.4, mask.affine), hospital / listed)
    words = ["adapt", str(model), str(hospital), "--out", str(tmp_path / "out"), "--epochs", "1"]
    # Of a data list, and of all files where a list is to be made.
    for more in (["--datalist", str(datalist)], []):
        error = run_json(capsys, *words, *more, code=2)["error"]
        assert f"1 problem(s): {hospital / listed} has label values such as 0.4" in error
    shutil.copy(hospitals / "alder" / listed, hospital / listed)
    found = run_json(capsys, *words, "--datalist", str(datalist))
    assert found["gain"]["n"] == 2


@pytest.mark.slow
def test_cases_without_a_score_are_counted(
    model: Path, hospitals: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    hospital = tmp_path / "alder"
    shutil.copytree(hospitals / "alder", hospital)
    cases = []
    for number in range(4):
        name = f"Case{number:02d}"
        cases.append({"image": f"{name}.nii.gz", "label": f"{name}_segmentation.nii.gz"})
    mask = nib.load(hospital / cases[3]["label"])
    empty = np.zeros(mask.shape, np.uint8)
    nib.save(nib.Nifti1Image(empty, mask.affine), hospital / cases[3]["label"])
    file = tmp_path / "list.json"
    parts = {"training": cases[:1], "validation": cases[:2], "testing": cases[2:]}
    file.write_text(json.dumps(parts))
    words = ["adapt", str(model), str(hospital), "--out", str(tmp_path / "out")]
    assert main([*words, "--epochs", "1", "--datalist", str(file)]) == 0
    printed = capfd.readouterr().out
    assert "Validation Dice is of 2 cases" in printed
    assert "Test Dice is of 1 case " in printed


def test_a_model_of_another_bundle_is_refused(model: Path, hospitals: Path, tmp_path: Path) -> None:
    fundus = find_bundle("fundus_disc_cup_segmentation")
    with pytest.raises(ConfigError, match="model.pt is a model of the bundle 'Prostate .* and .*"):
        adapt_model(model, fundus, hospitals / "alder", tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("rate", ["0", "-0.01", "nan", "inf", "fast"])
def test_a_rate_that_trains_nothing_is_refused(
    rate: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(["adapt", "model.pt", str(tmp_path), f"--rate={rate}"])
    refused = f"argument --rate: {rate!r} is not a number above 0"
    assert refused in capsys.readouterr().err


def test_what_is_no_hospitals_folder_is_refused_before_anything_is_written(
    model: Path, hospitals: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    images = tmp_path / "new"
    images.mkdir()
    shutil.copy(hospitals / "alder" / "Case00.nii.gz", images)
    for folder, words in (
        (hospitals, f"name the folder of one, such as {hospitals / 'alder'}"),
        (hospitals / "aldr", "does not exist. Give a site"),
        (images, "Case00.nii.gz has no mask"),
    ):
        assert main(["adapt", str(model), str(folder), "--out", str(out), "--json"]) == 2
        assert words in json.loads(capsys.readouterr().out)["error"]
        assert not out.exists()
