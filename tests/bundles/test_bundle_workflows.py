# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Both bundles train, evaluate, infer and federate on generated data."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import warnings
from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np
import pytest
import torch
from helpers import warm_python
from helpers.checkout import CHECKOUT
from helpers.shipped_bundles import EVALUATE, INFERENCE, TRAIN, Bundle
from monai.bundle import ConfigParser
from PIL import Image

from monai_fairfl.bundle.shipped import copy_bundle
from monai_fairfl.data import find_cases
from monai_fairfl.errors import ConfigError, DataError
from monai_fairfl.run_folder.ledger import read_ledger


def saved_weights(file: Path) -> dict[str, torch.Tensor]:
    state: dict[str, torch.Tensor]
    state = torch.load(file, weights_only=True, map_location="cpu")["model"]
    return state


def require_same_weights(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> None:
    assert one.keys() == other.keys()
    for name, value in one.items():
        assert torch.equal(value, other[name].cpu()), name


# --- training


@pytest.mark.slow
def test_training_writes_the_best_model(bundle: Bundle, site: Path, tmp_path: Path) -> None:
    made = bundle.run(TRAIN, site, tmp_path, max_epochs=1)
    assert made.trainer.state.epoch == 1
    saved = saved_weights(tmp_path / "model.pt")
    assert saved.keys() == made.trainer.network.state_dict().keys()

    metrics = made.parser.get_parsed_content("validate#evaluator").state.metrics
    assert "val_mean_dice" in metrics
    for name, value in metrics.items():
        assert 0 <= value <= 1, name


@pytest.mark.slow
def test_without_validation_the_last_epochs_model_is_stored(
    bundle: Bundle, site: Path, tmp_path: Path
) -> None:
    made = bundle.run(TRAIN, site, tmp_path, max_epochs=2, val_interval=0)
    saved = saved_weights(tmp_path / "model.pt")
    require_same_weights(saved, made.trainer.network.state_dict())
    assert made.parser.get_parsed_content("validate#evaluator").state.epoch == 0


@pytest.mark.slow
def test_training_is_reproducible_from_its_seed(bundle: Bundle, site: Path, tmp_path: Path) -> None:
    for name in ("a", "b"):
        bundle.run(TRAIN, site, tmp_path / name, max_epochs=1, seed=3)
    first = saved_weights(tmp_path / "a" / "model.pt")
    second = saved_weights(tmp_path / "b" / "model.pt")
    require_same_weights(first, second)


def test_training_raises_no_warnings_about_its_transforms(
    bundle: Bundle, site: Path, tmp_path: Path
) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        bundle.run(TRAIN, site, tmp_path, max_epochs=1)
    about_transforms = []
    for warning in caught:
        message = str(warning.message)
        # With NumPy 2.2, of Python 3.10, MONAI's own tensors lack an argument of NumPy's.
        if message.startswith("__array__ implementation doesn't accept a copy keyword"):
            continue
        if "monai/transforms" in warning.filename or "Orientation" in message:
            about_transforms.append(message)
    assert about_transforms == []


# --- the check of the data before a training


def spoil(site: Path, folder: Path) -> Path:
    """A copy of a site with one mask that does not lie on its image."""
    copy = Path(shutil.copytree(site, folder))
    masks = []
    for path in sorted(copy.rglob("Case00*")):
        if "mask" in path.parent.name or "_seg" in path.name:
            masks.append(path)
    mask = masks[0]
    if mask.name.endswith(".nii.gz"):
        image = nib.Nifti1Image.from_filename(str(mask))
        shifted = image.affine.copy()
        shifted[2, 3] += 5.0
        nib.save(nib.Nifti1Image(np.asanyarray(image.dataobj), shifted), mask)
    else:
        with Image.open(mask) as opened:
            picture = opened.copy()
        picture.crop((0, 0, picture.width, picture.height - 8)).save(mask)
    return copy


def test_training_alone_checks_the_data_first(bundle: Bundle, site: Path, tmp_path: Path) -> None:
    spoilt = spoil(site, tmp_path / "spoilt")
    faulty = bundle.cause_of_failed_run(TRAIN, spoilt, tmp_path, max_epochs=1)
    assert isinstance(faulty, DataError)
    message = str(faulty)
    assert "1 problem(s)\n- " in message
    assert "Case00" in message
    assert "--check_data" not in message
    assert not (tmp_path / "model.pt").exists()

    nowhere = bundle.cause_of_failed_run(TRAIN, tmp_path / "nowhere", tmp_path, max_epochs=1)
    assert isinstance(nowhere, DataError)
    assert "nowhere is not a folder" in str(nowhere)


def test_a_list_that_leaves_the_faulty_case_out_trains_without_the_check(
    bundle: Bundle, site: Path, tmp_path: Path
) -> None:
    listed = bundle.workflow(TRAIN, site, tmp_path).parser.get_parsed_content("datalist")
    spoilt = spoil(site, tmp_path / "spoilt")
    by_hand = {}
    for part, cases in listed.items():
        by_hand[part] = []
        for case in cases:
            if "Case00" not in case["image"]:
                relative = {key: os.path.relpath(case[key], site) for key in ("image", "label")}
                by_hand[part].append(relative)
    (tmp_path / "hand.json").write_text(json.dumps(by_hand))

    hand = {"datalist_file": str(tmp_path / "hand.json"), "max_epochs": 1, "val_interval": 0}
    faulty = bundle.cause_of_failed_run(TRAIN, spoilt, tmp_path, **hand)
    assert "hand.json was made to leave these out, --check_data False" in str(faulty)
    bundle.run(TRAIN, spoilt, tmp_path, **hand, check_data=False)
    assert (tmp_path / "model.pt").is_file()


# --- evaluation


@pytest.mark.slow
def test_evaluation_and_inference_write_scores_masks_and_overlays(
    bundle: Bundle, site: Path, trained: Path, tmp_path: Path
) -> None:
    made = bundle.run(EVALUATE, site, tmp_path, ckpt_path=str(trained))
    assert set(made.evaluator.state.metrics) == bundle.metrics
    assert (tmp_path / "eval" / "val_mean_dice_raw.csv").is_file()

    bundle.run(INFERENCE, site / bundle.images, tmp_path, ckpt_path=str(trained))
    assert len(list((tmp_path / "eval").glob(bundle.masks))) == 4
    assert len(list((tmp_path / "eval").glob("*_overlay.png"))) == 4


@pytest.mark.slow
def test_an_evaluation_checks_its_test_cases_and_no_others(
    bundle: Bundle, site: Path, trained: Path, tmp_path: Path
) -> None:
    spoilt = spoil(site, tmp_path / "spoilt")
    listed = []
    for path in find_cases(spoilt):
        listed.append({key: os.path.relpath(path[key], spoilt) for key in ("image", "label")})
    faulty, *sound = listed
    file = tmp_path / "hand.json"
    given = {"ckpt_path": str(trained), "datalist_file": str(file)}

    tested = {"training": sound[:2], "validation": [], "testing": [faulty, *sound[2:]]}
    file.write_text(json.dumps(tested))
    error = bundle.cause_of_failed_run(EVALUATE, spoilt, tmp_path, **given)
    assert isinstance(error, DataError)
    assert "1 problem(s)\n- " in str(error) and "Case00" in str(error)
    assert not (tmp_path / "eval" / "val_mean_dice_raw.csv").exists()

    # No case of the test has the fault.
    file.write_text(json.dumps({"training": [faulty], "validation": [], "testing": sound[2:]}))
    bundle.run(EVALUATE, spoilt, tmp_path, **given)
    assert (tmp_path / "eval" / "val_mean_dice_raw.csv").is_file()


def test_evaluation_names_a_model_that_is_missing_or_of_another_size(
    bundle: Bundle, site: Path, trained: Path, tmp_path: Path
) -> None:
    missing = {"ckpt_path": str(tmp_path / "none.pt")}
    error = bundle.cause_of_failed_run(EVALUATE, site, tmp_path, **missing)
    assert isinstance(error, ConfigError)
    assert "No trained weights at" in str(error)

    smaller = {"ckpt_path": str(trained), "channels": [4, 8, 8]}
    error = bundle.cause_of_failed_run(EVALUATE, site, tmp_path, **smaller)
    assert isinstance(error, ConfigError)
    assert "channels is [4, 8, 8] here, and model.pt was trained with [4, 8, 16]" in str(error)


def test_an_evaluation_tests_the_cases_that_its_training_left(
    bundle: Bundle, site: Path, tmp_path: Path
) -> None:
    data = shutil.copytree(site, tmp_path / "site")

    def datalist(names: tuple[str, ...], **overrides: Any) -> dict[str, list[dict[str, str]]]:
        parser = ConfigParser()
        parser.read_config(bundle.files(*names))
        folders = {"dataset_dir": str(data), "ckpt_dir": str(tmp_path / "models")}
        parser.update({"bundle_root": str(bundle.root), **folders, **overrides})
        found: dict[str, list[dict[str, str]]] = parser.get_parsed_content("datalist")
        return found

    trained = datalist(TRAIN, seed=1)
    for path in sorted(data.rglob("Case00*")):
        shutil.copy(path, path.with_name(path.name.replace("00", "09", 1)))
    message = r"1 case\(s\) of .* are not in .*models/datalist.json and not used"
    with pytest.warns(UserWarning, match=message):
        assert datalist(EVALUATE, seed=1) == trained

    with pytest.raises(RuntimeError) as other_seed:
        datalist(EVALUATE)
    message = str(other_seed.value.__cause__)
    assert "datalist.json was made with" in message
    assert "'seed': 1" in message


@pytest.mark.slow
def test_every_overlay_trains_and_evaluates(bundle: Bundle, site: Path, tmp_path: Path) -> None:
    for overlay in bundle.overlays:
        out = tmp_path / overlay[-1]
        bundle.run(("train", *overlay), site, out, max_epochs=1)
        model = {"ckpt_path": str(out / "model.pt")}
        made = bundle.run(("train", *overlay, "evaluate"), site, out, **model)
        assert 0 <= made.evaluator.state.metrics["val_mean_dice"] <= 1, overlay


# --- inference


def test_inference_without_weights_names_the_argument(
    bundle: Bundle, one_image: Path, tmp_path: Path
) -> None:
    missing = {"ckpt_path": str(tmp_path / "none.pt")}
    message = str(bundle.cause_of_failed_run(INFERENCE, one_image, tmp_path, **missing))
    assert "No trained weights at" in message
    assert "--ckpt_path" in message


def test_inference_with_a_file_that_is_not_the_networks_names_the_difference(
    bundle: Bundle, one_image: Path, trained: Path, tmp_path: Path
) -> None:
    other = torch.load(trained, weights_only=True)
    first = next(iter(other["model"]))
    other["model"][first] = torch.zeros(7)
    torch.save(other, tmp_path / "other.pt")
    given = {"ckpt_path": str(tmp_path / "other.pt")}
    error = bundle.cause_of_failed_run(INFERENCE, one_image, tmp_path, **given)
    assert isinstance(error, ConfigError)
    assert f"of another network: {first} is (7,) in the file" in str(error)

    (tmp_path / "text.pt").write_text("no model")
    given = {"ckpt_path": str(tmp_path / "text.pt")}
    error = bundle.cause_of_failed_run(INFERENCE, one_image, tmp_path, **given)
    assert isinstance(error, ConfigError)
    assert "is no state_dict" in str(error)


def test_inference_without_images_names_the_argument(
    bundle: Bundle, trained: Path, tmp_path: Path
) -> None:
    (tmp_path / "empty").mkdir()
    given = {"ckpt_path": str(trained)}
    error = bundle.cause_of_failed_run(INFERENCE, tmp_path / "empty", tmp_path, **given)
    assert "--dataset_dir" in str(error)


# --- commands


def command(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return warm_python.run(["-W", "ignore", "-m", "monai.bundle", "run", *arguments], folder)


def options(values: dict[str, Any]) -> list[str]:
    """Values as options of a command."""
    words = []
    for name, value in values.items():
        words += [f"--{name}", str(value)]
    return words


@pytest.mark.slow
@pytest.mark.parametrize(
    "files", ["configs/train.json", "['configs/train.json','configs/evaluate.json']"]
)
def test_a_command_names_in_one_line_what_is_missing(
    bundle: Bundle, files: str, tmp_path: Path
) -> None:
    folders = {"dataset_dir": tmp_path / "nowhere", "ckpt_dir": tmp_path}
    done = command(bundle.root, *options({"config_file": files, **folders, "device": "cpu"}))
    assert done.returncode == 2
    assert "Traceback" not in done.stderr, done.stderr[-3000:]
    last = done.stderr.splitlines()[-1]
    assert last.startswith(("DataError: ", "ConfigError: "))
    assert str(tmp_path) in last


@pytest.mark.long
@pytest.mark.slow
def test_a_copy_of_the_bundle_trains_evaluates_and_infers_from_the_command_line(
    bundle: Bundle, site: Path, tmp_path: Path
) -> None:
    root = copy_bundle(bundle.name, tmp_path / "bundle")

    def succeed(values: dict[str, Any]) -> None:
        done = command(root, *options(values))
        assert done.returncode == 0, done.stderr[-3000:]

    common = {"dataset_dir": site, **bundle.small, "device": "cpu"}
    common["output_dir"] = tmp_path / "eval"
    succeed({"config_file": "configs/train.json", **common, "max_epochs": 1})
    succeed({"config_file": "['configs/train.json','configs/evaluate.json']", **common})

    infer = {"config_file": "configs/inference.json", "dataset_dir": site / bundle.images}
    for key, value in bundle.small.items():
        if key in bundle.config("inference"):
            infer[key] = value
    infer.update({"device": "cpu", "output_dir": tmp_path / "masks"})
    succeed(infer)
    assert len(list((tmp_path / "masks").glob(bundle.masks))) == 4

    (tmp_path / "empty").mkdir()
    nothing = command(root, *options({**infer, "dataset_dir": tmp_path / "empty"}))
    assert nothing.returncode == 2
    assert "Traceback" not in nothing.stderr
    assert "--dataset_dir" in nothing.stderr.splitlines()[-1], nothing.stderr[-3000:]


@pytest.mark.long
@pytest.mark.slow
def test_a_copy_of_the_bundle_federates_from_the_command_line(
    bundle: Bundle, sites: Path, tmp_path: Path
) -> None:
    root = copy_bundle(bundle.name, tmp_path / "bundle")
    for name in ("quality_shift", "corrupted_images"):
        shutil.copy(CHECKOUT / "experiments" / "overlays" / f"{name}.json", root / "configs")
    strategies = []
    for name in ("FedAvg", "ShapFed"):
        strategies.append({"_target_": f"monai_fairfl.strategies.{name}"})
    values = {
        "config_file": "['configs/federate.json','configs/quality_shift.json']",
        "sites_root": sites,
        "rounds": 2,
        "local_epochs": 1,
        "run_dir": tmp_path / "run",
        "overrides": dict(bundle.small),
        "strategies": strategies,
        "jobs": 1,
    }
    done = command(root, *options(values))
    assert done.returncode == 0, done.stderr[-3000:]

    # One of the two sites has corrupted images, by the overlay.
    report = json.loads((tmp_path / "run" / "report.json").read_text())
    sizes = {group: len(members) for group, members in report["groups"].items()}
    assert sizes == {"corrupted": 1, "clean": 1}
    assert "Mean, corrupted" in done.stdout
    assert "Mean, clean" in done.stdout

    rounds = read_ledger(tmp_path / "run" / "ShapFed" / "ledger.jsonl")[1:-1]
    for record in rounds:
        assert set(record["details"]["class_value"]) == set(report["sites"])
    scored = {}
    for site, measured in rounds[0]["measurements"].items():
        scored[site] = set(measured["global_score"])
    if bundle.partial is None:
        assert not rounds[0]["labelled"]
        for names in scored.values():
            assert "mean" in names
    else:
        # It labels the disc only: its cup is neither trained nor scored nor compared.
        assert rounds[0]["labelled"] == {bundle.partial: [True, False]}
        assert scored[bundle.partial] == {"mean", "disc"}
        assert {"mean", "disc", "cup"} in scored.values()
        for record in rounds:
            assert record["details"]["class_value"][bundle.partial]["1"] is None
