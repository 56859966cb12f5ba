# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Copies of both bundles by ``python -m monai.bundle``, in two processes, and as the zoo runs them.

The model zoo's own program runs where ``MONAI_FAIRFL_MODEL_ZOO`` names a checkout of it. What it
checks in a fresh clone is checked in ``test_files.py`` in any case. Two processes are what the
``docs/README.md`` of a bundle starts with ``torchrun``.
"""

from __future__ import annotations

import csv
import json
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np
import pytest
import torch
from helpers import warm_python
from helpers.checkout import CHECKOUT
from helpers.shipped_bundles import EVALUATE, PROSTATE, TRAIN, Bundle

from monai_fairfl import read_ledger
from monai_fairfl.cli import main
from monai_fairfl.data import find_cases

UNIT_TESTS = CHECKOUT / "tests" / "bundles" / "unit_tests"
SCHEMA = CHECKOUT / "monai_fairfl" / "bundle_schema.json"


def run(folder: Path, **values: Any) -> subprocess.CompletedProcess[str]:
    """``python -m monai.bundle run`` in a folder, with values as options."""
    words = ["-W", "ignore", "-m", "monai.bundle", "run"]
    for name, value in values.items():
        words += [f"--{name}", str(value)]
    return warm_python.run(words, folder)


def succeed(folder: Path, **values: Any) -> str:
    done = run(folder, **values)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def copied(bundle: Bundle, folder: Path) -> Path:
    ignored = shutil.ignore_patterns("*.pt", "*.ts", "datalist.json", "eval", "__pycache__")
    return Path(shutil.copytree(bundle.root, folder, ignore=ignored))


def test_a_command_names_in_one_line_what_is_missing(bundle: Bundle, tmp_path: Path) -> None:
    both = "['configs/train.json','configs/evaluate.json']"
    for files in ("configs/train.json", both):
        folders = {"dataset_dir": tmp_path / "nowhere", "ckpt_dir": tmp_path}
        done = run(bundle.root, config_file=files, **folders, device="cpu")
        assert done.returncode == 2
        assert "Traceback" not in done.stderr, done.stderr[-3000:]
        last = done.stderr.splitlines()[-1]
        assert last.startswith(("DataError: ", "ConfigError: "))
        assert str(tmp_path) in last


def test_a_copy_of_the_bundle_trains_evaluates_and_infers(
    bundle: Bundle, site: Path, tmp_path: Path
) -> None:
    root = tmp_path / "bundle"
    assert main(["bundle", "copy", bundle.name, "--out", str(root)]) == 0
    common = {"dataset_dir": site, **bundle.small, "device": "cpu", "output_dir": tmp_path / "eval"}
    succeed(root, config_file="configs/train.json", **common, max_epochs=1)
    succeed(root, config_file="['configs/train.json','configs/evaluate.json']", **common)
    for metric in bundle.metrics:
        assert (tmp_path / "eval" / f"{metric}_summary.csv").is_file()

    infer = {"config_file": "configs/inference.json", "device": "cpu"}
    infer["output_dir"] = str(tmp_path / "masks")
    succeed(root, **infer, dataset_dir=site / bundle.images)
    masks = list((tmp_path / "masks").glob(bundle.masks))
    assert len(masks) == len(list((tmp_path / "masks").glob("*_overlay.png"))) == 4
    if bundle is PROSTATE:
        for source in site.glob("Case??.nii.gz"):
            image = nib.Nifti1Image.from_filename(str(source))
            name = source.name.replace(".nii", "_pred.nii")
            mask = nib.Nifti1Image.from_filename(str(tmp_path / "masks" / name))
            assert mask.shape == image.shape
            assert mask.get_data_dtype() == np.uint8
            np.testing.assert_allclose(mask.affine, image.affine, atol=1e-5)

    (tmp_path / "empty").mkdir()
    nothing = run(root, **infer, dataset_dir=tmp_path / "empty")
    assert nothing.returncode == 2
    assert "Traceback" not in nothing.stderr
    assert "--dataset_dir" in nothing.stderr.splitlines()[-1], nothing.stderr[-3000:]


def test_a_copy_of_the_bundle_federates_and_an_overlay_reaches_its_group(
    bundle: Bundle, sites: Path, tmp_path: Path
) -> None:
    root = copied(bundle, tmp_path / "bundle")
    for name in ("quality_shift", "corrupted_images"):
        shutil.copy(CHECKOUT / "experiments" / "overlays" / f"{name}.json", root / "configs")
    targets = [{"_target_": f"monai_fairfl.strategies.{name}"} for name in ("FedAvg", "ShapFed")]
    succeed(
        root,
        config_file="['configs/federate.json','configs/quality_shift.json']",
        sites_root=sites,
        rounds=2,
        local_epochs=1,
        run_dir=tmp_path / "run",
        overrides=dict(bundle.small),
        strategies=targets,
        jobs=1,
    )
    # One of the two sites has corrupted images, by the overlay.
    report = json.loads((tmp_path / "run" / "report.json").read_text())
    sizes = {group: len(members) for group, members in report["groups"].items()}
    assert sizes == {"corrupted": 1, "clean": 1}
    assert "corrupted" in (tmp_path / "run" / "report.html").read_text()

    rounds = read_ledger(tmp_path / "run" / "ShapFed" / "ledger.jsonl")[1:-1]
    for record in rounds:
        assert set(record["details"]["class_value"]) == set(report["sites"])
    scored = {}
    for name, measured in rounds[0]["measurements"].items():
        scored[name] = set(measured["global_score"])
    if bundle.partial is None:
        assert not rounds[0]["labelled"]
        assert all("mean" in names for names in scored.values())
    else:
        # It labels the disc only: its cup is neither trained nor scored nor compared.
        assert rounds[0]["labelled"] == {bundle.partial: [True, False]}
        assert scored[bundle.partial] == {"mean", "disc"}
        assert {"mean", "disc", "cup"} in scored.values()
        for record in rounds:
            assert record["details"]["class_value"][bundle.partial]["1"] is None


# --- two processes


def run_two(names: tuple[str, ...], bundle: Bundle, data: Path, out: Path, **values: Any) -> None:
    """Run a workflow in two processes that find each other as torchrun's do."""
    given = {"bundle_root": bundle.root, "dataset_dir": data, "ckpt_dir": out}
    given["output_dir"] = out / "eval"
    words = ["-W", "ignore", "-m", "monai.bundle", "run"]
    words += ["--config_file", json.dumps(bundle.files(*names))]
    for key, value in {**given, **values}.items():
        words += [f"--{key}", str(value) if isinstance(value, Path) else json.dumps(value)]

    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    group = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    started = {}
    for rank in ("0", "1"):
        log = out.parent / f"{out.name}_{rank}.log"
        each = {"RANK": rank, "LOCAL_RANK": rank, **group}
        started[log] = warm_python.start(words, CHECKOUT, log, log, **each)
    for log, process in started.items():
        process.join(240)
        if process.exitcode is None:
            process.kill()
        assert process.exitcode == 0, log.read_text()[-3000:]


def write_list(file: Path, site: Path, training: list[int]) -> Path:
    """A data list made by hand: these cases for training, all others for the rest."""
    cases = []
    for case in find_cases(site):
        cases.append({key: str(Path(case[key]).relative_to(site)) for key in ("image", "label")})
    rest = {"validation": cases[2:], "testing": cases[2:]}
    file.write_text(json.dumps({"training": [cases[number] for number in training], **rest}))
    return file


def saved_weights(file: Path) -> dict[str, torch.Tensor]:
    state: dict[str, torch.Tensor] = torch.load(file, weights_only=True)["model"]
    return state


def dice_by_case(folder: Path) -> dict[str, list[float]]:
    found = {}
    with open(folder / "val_mean_dice_raw.csv") as file:
        for row in csv.DictReader(file):
            case = Path(row.pop("filename")).name
            assert case not in found
            found[case] = [float(value) for value in row.values()]
    return found


def test_two_processes_evaluate_each_case_once_as_one_process_does(
    bundle: Bundle, site: Path, tmp_path: Path
) -> None:
    datalist = write_list(tmp_path / "list.json", site, [0, 1])
    learning = {**bundle.quick_learning, "max_epochs": 60, "val_interval": 0}
    bundle.run(TRAIN, site, tmp_path, datalist_file=str(datalist), **learning)
    model = tmp_path / "model.pt"
    given = {"ckpt_path": str(model), "datalist_file": str(datalist)}
    bundle.without_overrides().run(EVALUATE, site, tmp_path, **given)

    names = (*EVALUATE, "multi_gpu_evaluate")
    run_two(names, bundle, site, tmp_path / "two", ckpt_path=model, datalist_file=datalist)
    expected = dice_by_case(tmp_path / "eval")
    assert len(expected) == 2
    found = dice_by_case(tmp_path / "two" / "eval")
    assert found.keys() == expected.keys()
    for case, scores in expected.items():
        assert min(scores) > 0.05, "of an empty mask the Dice says nothing"
        assert found[case] == pytest.approx(scores, abs=1e-6), case


# --- as the model zoo runs them


@pytest.mark.parametrize("ending", ["", pytest.param("_dist", marks=pytest.mark.consumers)])
def test_the_unit_test_that_goes_to_the_zoo_passes_there(
    ending: str, bundle: Bundle, tmp_path: Path
) -> None:
    name = f"test_{bundle.name}{ending}.py"
    copied(bundle, tmp_path / "models" / bundle.name)
    (tmp_path / "ci" / "unit_tests").mkdir(parents=True)
    shutil.copy(UNIT_TESTS / name, tmp_path / "ci" / "unit_tests")
    # torchrun lies beside this Python.
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    words = ["-W", "ignore", "-m", "unittest", f"ci/unit_tests/{name}"]
    done = warm_python.run(words, tmp_path, timeout=600, PATH=path)
    if "SIGABRT" in done.stderr:
        # On a busy machine PyTorch's process group may abort when its other process has ended.
        done = warm_python.run(words, tmp_path, timeout=600, PATH=path)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-3000:]
    assert "Ran 1 test" in done.stderr


RUN_THE_ZOOS_PROGRAM = """
import sys
sys.path.insert(0, "ci")
import bundle_custom_data
name, mode, without_weights = sys.argv[1:]
if without_weights == "yes":
    # What a bundle without weights adds in its pull request.
    bundle_custom_data.exclude_verify_preferred_files_list.append(name)
    bundle_custom_data.exclude_verify_torchscript_list.append(name)
from verify_bundle import verify
verify(name, "models", mode)
"""


@pytest.mark.parametrize(
    ("mode", "weights"), [("min", "without"), ("full", "without"), ("full", "with")]
)
def test_the_zoos_own_program_ends_without_an_error(
    bundle: Bundle, trained: Path, mode: str, weights: str, tmp_path: Path
) -> None:
    named = os.environ.get("MONAI_FAIRFL_MODEL_ZOO")
    if not named:
        pytest.skip("MONAI_FAIRFL_MODEL_ZOO names no checkout of the model zoo")
    shutil.copytree(Path(named, "ci"), tmp_path / "ci")
    root = copied(bundle, tmp_path / "models" / bundle.name)
    shutil.copy(Path(named, "models", "model_info.json"), tmp_path / "models")
    # The official schema where the zoo's ci/prepare_schema.py downloads it; else ours.
    downloaded = Path(named, "models", "meta_schema_20240725.json")
    (root / "eval").mkdir()
    schema = downloaded if downloaded.is_file() else SCHEMA
    shutil.copy(schema, root / "eval" / "schema.json")
    if weights == "with":
        # As docs/model_zoo.md says: the model's values, and bare weights.
        assert main(["export", str(trained), "--out", str(tmp_path / "export")]) == 0
        shutil.copy(tmp_path / "export" / "configs" / "inference.json", root / "configs")
        torch.save(saved_weights(trained), root / "models" / "model.pt")
    absent = "yes" if weights == "without" else "no"
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", RUN_THE_ZOOS_PROGRAM, bundle.name, mode, absent],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(CHECKOUT)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "verified correctly" in done.stdout
    if weights == "with":
        assert "TorchScript" in done.stdout
