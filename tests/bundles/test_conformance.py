# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""What both bundles must do: MONAI's own bundle checks, every workflow on generated data, MONAI's
FL client.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np
import pytest
import torch
from helpers import warm_python
from helpers.shipped_bundles import BUNDLES, EVALUATE, INFERENCE, ROOT, TRAIN, Bundle
from monai.bundle import ConfigParser, ckpt_export, verify_metadata, verify_net_in_out
from monai.fl.client import MonaiAlgo, MonaiAlgoStats
from monai.fl.utils.constants import FlStatistics
from monai.fl.utils.exchange_object import ExchangeObject
from PIL import Image

from monai_fairfl.bundle.shipped import bundle_names, copy_bundle
from monai_fairfl.errors import ConfigError, DataError
from monai_fairfl.run_folder.ledger import read_ledger

SCHEMA = ROOT / "monai_fairfl" / "bundle_schema.json"


@pytest.fixture(scope="module")
def sites(bundle: Bundle, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two generated sites; read only."""
    root = tmp_path_factory.mktemp("sites")
    bundle.write(root)
    return root


@pytest.fixture(scope="module")
def site(sites: Path) -> Path:
    return sorted(path for path in sites.iterdir() if path.is_dir())[0]


@pytest.fixture(scope="module")
def trained(bundle: Bundle, site: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Checkpoint of a model trained for two epochs."""
    folder = tmp_path_factory.mktemp("trained")
    bundle.run(TRAIN, site, folder, max_epochs=2)
    return folder / "model.pt"


def test_both_bundles_are_tested_here() -> None:
    assert sorted(bundle.name for bundle in BUNDLES) == bundle_names()


# --- MONAI's own checks of a bundle


def test_metadata_satisfies_our_schema_offline(bundle: Bundle) -> None:
    verify_metadata(meta_file=str(bundle.configs / "metadata.json"), filepath=str(SCHEMA))
    metadata = bundle.config("metadata")
    assert metadata["version"] in metadata["changelog"]


@pytest.mark.parametrize("key", ["version", "network_data_format", "intended_use"])
def test_schema_refuses_metadata_without_a_required_field(
    bundle: Bundle, key: str, tmp_path: Path
) -> None:
    kept = {k: v for k, v in bundle.config("metadata").items() if k != key}
    (tmp_path / "metadata.json").write_text(json.dumps(kept))
    with pytest.raises(ValueError, match=f"'{key}' is a required property"):
        verify_metadata(meta_file=str(tmp_path / "metadata.json"), filepath=str(SCHEMA))


def test_every_property_of_the_workflows_is_defined_and_wired(
    bundle: Bundle, site: Path, tmp_path: Path
) -> None:
    for names in (TRAIN, EVALUATE, *(("train", overlay) for overlay in bundle.overlays)):
        assert bundle.workflow(names, site, tmp_path).check_properties() == [], names
    assert bundle.workflow(INFERENCE, site / bundle.images, tmp_path).check_properties() == []


@pytest.mark.parametrize("name", ["train", "inference"])
def test_network_takes_and_gives_what_the_metadata_says(bundle: Bundle, name: str) -> None:
    verify_net_in_out(
        "network_def", str(bundle.configs / "metadata.json"), bundle.files(name), device="cpu"
    )


def test_training_and_inference_define_the_same_network_and_the_same_image_preprocessing(
    bundle: Bundle,
) -> None:
    train, inference = bundle.config("train"), bundle.config("inference")
    assert set(inference["deciding"]) == set(train["deciding"])
    evaluate = bundle.config("evaluate")
    assert evaluate["defaults"] == inference["defaults"]
    for key in inference["defaults"]:
        assert evaluate[key] == inference[key], key
    from_model = {key for key in inference["deciding"] if inference[key] == f"$@recipe['{key}']"}
    assert from_model >= {"channels", "res_units", "norm", "size", "largest_component"}
    for key in from_model:
        assert json.dumps(train[key]) == json.dumps(inference["defaults"][key]), key
    assert (
        train["interpolation"][:1] == inference["interpolation"]
    )  # of the image; the second is the label's
    other = {"imports", "inferer", "run", "handlers", "recipe", "network", "interpolation"}
    shared = (set(train) & set(inference)) - from_model - other
    assert shared >= {"network_def", "activation", "discretisation", "deciding"}
    for key in shared:
        assert json.dumps(train[key]) == json.dumps(inference[key]), key
    trained = [t for t in train["train"]["deterministic_transforms"] if t["keys"] != "label"]
    trained = [t for t in trained if "label" not in t["_target_"].lower()]
    about_keys = {"keys", "mode", "anti_aliasing", "_desc_"}
    assert [{k: v for k, v in t.items() if k not in about_keys} for t in trained] == [
        {k: v for k, v in t.items() if k not in about_keys}
        for t in inference["preprocessing"]["transforms"]
    ]


def test_configs_are_pretty_json_without_anybodys_absolute_paths(bundle: Bundle) -> None:
    for path in bundle.configs.glob("*.json"):
        text = path.read_text()
        assert text == json.dumps(json.loads(text), indent=4, ensure_ascii=False) + "\n", path.name
        assert not re.search(
            r"(?<!\+ )[\"'](/|~|[A-Za-z]:\\)", text
        ), path.name  # "@bundle_root + '/models'" is relative


def test_the_bundle_ships_what_the_zoo_asks_for(bundle: Bundle) -> None:
    for name in (
        "LICENSE",
        "docs/README.md",
        "configs/metadata.json",
        "configs/inference.json",
        "configs/logging.conf",
    ):
        assert (bundle.root / name).is_file(), name
    assert "Apache License" in (bundle.root / "LICENSE").read_text()


def test_what_both_bundles_share_is_the_same_in_both() -> None:
    for name in (
        "logging.conf",
        "fl_handlers.json",
        "fl_filters.json",
        "quality_shift.json",
        "corrupted_images.json",
    ):
        assert len({(bundle.configs / name).read_text() for bundle in BUNDLES}) == 1, name
    federate = [bundle.config("federate") for bundle in BUNDLES]
    differ = {key for key in federate[0] if federate[0][key] != federate[1].get(key)}
    assert differ <= {"imports", "check", "full_run"} and set(federate[0]) == set(federate[1])


def documented(bundle: Bundle) -> dict[str, str]:
    """key -> default, as the README's table of the training configuration has them; empty where it
    says none.
    """
    text = (bundle.root / "docs" / "README.md").read_text()
    table = text.partition("## Training configuration")[2].partition("\n## ")[0]
    found = {}
    for line in re.findall(r"^\| `.*$", table, re.M):
        keys, defaults, *_ = (cell.strip() for cell in re.split(r"(?<!\\)\|", line.strip("|")))
        names, values = re.findall(r"`(\w+)`", keys), re.findall(r"`([^`]+)`", defaults)
        found |= dict(zip(names, values)) if len(names) == len(values) else dict.fromkeys(names, "")
    return found


def test_every_documented_key_exists_is_used_and_has_the_documented_default(bundle: Bundle) -> None:
    keys, train = documented(bundle), bundle.config("train")
    assert len(keys) > 15
    text = json.dumps(train) + json.dumps(bundle.config("evaluate"))
    for key, default in keys.items():
        assert key in train and re.search(rf"@{key}\b", text), key
        if default:
            value = train[key]
            assert default.replace(" ", "") in (
                json.dumps(value).replace(" ", ""),
                str(value).lstrip("@"),
            ), key


def test_every_documented_key_can_be_overridden(bundle: Bundle, site: Path, tmp_path: Path) -> None:
    other = {
        int: lambda v: v + 1,
        float: lambda v: v / 2,
        bool: lambda v: not v,
        str: lambda v: v,
        list: lambda v: v,
    }
    train = bundle.config("train")
    plain = {
        key: train[key]
        for key in documented(bundle)
        if type(train[key]) in other and key not in bundle.small
    }
    changed = {key: other[type(value)](value) for key, value in plain.items()}  # type: ignore[index]
    changed = {
        key: value
        for key, value in changed.items()
        if not (isinstance(value, str) and value.startswith(("@", "$")))
    }
    parser = bundle.workflow(TRAIN, site, tmp_path, **changed).parser
    assert {key: parser.get_parsed_content(key) for key in changed} == changed and len(changed) > 8


# --- train, evaluate, infer


def test_training_writes_the_best_model(bundle: Bundle, site: Path, tmp_path: Path) -> None:
    made = bundle.run(TRAIN, site, tmp_path, max_epochs=1)
    saved = torch.load(tmp_path / "model.pt", weights_only=True)["model"]
    assert (
        saved.keys() == made.trainer.network.state_dict().keys() and made.trainer.state.epoch == 1
    )
    metrics = made.parser.get_parsed_content("validate#evaluator").state.metrics
    assert "val_mean_dice" in metrics and all(0 <= value <= 1 for value in metrics.values())


def test_without_validation_the_last_epochs_model_is_kept(
    bundle: Bundle, site: Path, tmp_path: Path
) -> None:
    made = bundle.run(TRAIN, site, tmp_path, max_epochs=2, val_interval=0)
    saved, last = (
        torch.load(tmp_path / "model.pt", weights_only=True)["model"],
        made.trainer.network.state_dict(),
    )
    assert saved.keys() == last.keys() and all(torch.equal(saved[key], last[key]) for key in saved)
    assert made.parser.get_parsed_content("validate#evaluator").state.epoch == 0


def spoil(site: Path, folder: Path) -> Path:
    """A copy of a site with one mask that does not lie on its image."""
    copy = Path(shutil.copytree(site, folder))
    mask = sorted(
        path for path in copy.rglob("Case00*") if "mask" in path.parent.name or "_seg" in path.name
    )[0]
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


def test_training_alone_checks_the_data_first_unless_told_not_to(
    bundle: Bundle, site: Path, tmp_path: Path
) -> None:
    spoilt = spoil(site, tmp_path / "spoilt")
    with pytest.raises(RuntimeError) as faulty:
        bundle.run(TRAIN, spoilt, tmp_path, max_epochs=1)
    assert isinstance(faulty.value.__cause__, DataError) and "1 problem(s)\n- " in str(
        faulty.value.__cause__
    )
    assert "Case00" in str(faulty.value.__cause__) and "--check_data" not in str(
        faulty.value.__cause__
    )
    assert not (tmp_path / "model.pt").exists()
    with pytest.raises(RuntimeError) as nowhere:
        bundle.run(TRAIN, tmp_path / "nowhere", tmp_path, max_epochs=1)
    assert isinstance(nowhere.value.__cause__, DataError) and "nowhere is not a folder" in str(
        nowhere.value.__cause__
    )


def test_a_list_that_leaves_the_faulty_case_out_trains_without_the_check(
    bundle: Bundle, site: Path, tmp_path: Path
) -> None:
    listed = bundle.workflow(TRAIN, site, tmp_path).parser.get_parsed_content("datalist")
    spoilt = spoil(site, tmp_path / "spoilt")
    by_hand = {
        part: [
            {key: os.path.relpath(case[key], site) for key in ("image", "label")}
            for case in cases
            if "Case00" not in case["image"]
        ]
        for part, cases in listed.items()
    }
    (tmp_path / "hand.json").write_text(json.dumps(by_hand))
    hand = {"datalist_file": str(tmp_path / "hand.json"), "max_epochs": 1, "val_interval": 0}
    with pytest.raises(RuntimeError) as faulty:
        bundle.run(TRAIN, spoilt, tmp_path, **hand)
    assert "hand.json was made to leave these out, --check_data False" in str(
        faulty.value.__cause__
    )
    bundle.run(TRAIN, spoilt, tmp_path, **hand, check_data=False)
    assert (tmp_path / "model.pt").is_file()


def test_evaluation_says_what_is_wrong_with_its_model(
    bundle: Bundle, site: Path, trained: Path, tmp_path: Path
) -> None:
    for model, overrides, says in (
        (tmp_path / "none.pt", {}, "No trained weights at"),
        (
            trained,
            {"channels": [4, 8]},
            "channels is [4, 8] here, and model.pt was trained with [4, 8, 16]",
        ),
    ):
        with pytest.raises(RuntimeError) as wrong:
            bundle.run(EVALUATE, site, tmp_path, ckpt_path=str(model), **overrides)
        assert isinstance(wrong.value.__cause__, ConfigError) and says in str(wrong.value.__cause__)


@pytest.mark.slow
@pytest.mark.parametrize(
    "files", ["configs/train.json", "['configs/train.json','configs/evaluate.json']"]
)
def test_what_is_missing_is_told_in_one_line_on_the_command_line(
    bundle: Bundle, files: str, tmp_path: Path
) -> None:
    folders = ["--dataset_dir", str(tmp_path / "nowhere"), "--ckpt_dir", str(tmp_path)]
    done = command(bundle.root, "run", "--config_file", files, *folders, "--device", "cpu")
    assert done.returncode == 2 and "Traceback" not in done.stderr, done.stderr[-3000:]
    last = done.stderr.splitlines()[-1]
    assert last.startswith(("DataError: ", "ConfigError: ")) and str(tmp_path) in last


def test_training_is_reproducible_from_its_seed(bundle: Bundle, site: Path, tmp_path: Path) -> None:
    models = []
    for name in ("a", "b"):
        bundle.run(TRAIN, site, tmp_path / name, max_epochs=1, seed=3)
        models.append(torch.load(tmp_path / name / "model.pt", weights_only=True)["model"])
    assert all(torch.equal(models[0][key], models[1][key]) for key in models[0])


def test_training_raises_no_warnings_about_its_transforms(
    bundle: Bundle, site: Path, tmp_path: Path
) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        bundle.run(TRAIN, site, tmp_path, max_epochs=1)
    assert [
        str(w.message)
        for w in caught
        if "monai/transforms" in w.filename or "Orientation" in str(w.message)
    ] == []


def test_the_bundle_evaluates_and_infers(
    bundle: Bundle, site: Path, trained: Path, tmp_path: Path
) -> None:
    made = bundle.run(EVALUATE, site, tmp_path, ckpt_path=str(trained))
    assert set(made.evaluator.state.metrics) == bundle.metrics
    assert (tmp_path / "eval" / "val_mean_dice_raw.csv").is_file()
    bundle.run(INFERENCE, site / bundle.images, tmp_path, ckpt_path=str(trained))
    assert len(list((tmp_path / "eval").glob(bundle.masks))) == 4
    assert len(list((tmp_path / "eval").glob("*_overlay.png"))) == 4


def test_an_evaluation_tests_the_cases_that_its_training_left(
    bundle: Bundle, sites: Path, site: Path, tmp_path: Path
) -> None:
    def cases(*names: str, **overrides: Any) -> dict[str, list[dict[str, str]]]:
        parser = ConfigParser()
        parser.read_config(bundle.files(*names))
        parser.update(
            {
                "bundle_root": str(bundle.root),
                "dataset_dir": str(data),
                "ckpt_dir": str(tmp_path / "models"),
            }
        )
        parser.update(overrides)
        found: dict[str, list[dict[str, str]]] = parser.get_parsed_content("datalist")
        return found

    data = shutil.copytree(site, tmp_path / "site")
    trained = cases(*TRAIN, seed=1)
    for path in sorted(data.rglob("Case00*")):
        shutil.copy(path, path.with_name(path.name.replace("00", "09", 1)))
    with pytest.warns(
        UserWarning, match=r"1 case\(s\) of .* are not in .*models/datalist.json and not used"
    ):
        assert cases(*EVALUATE, seed=1) == trained
    with pytest.raises(RuntimeError) as other:
        cases(*EVALUATE)
    assert "datalist.json was made with" in str(other.value.__cause__) and "'seed': 1" in str(
        other.value.__cause__
    )


def test_every_overlay_trains_and_evaluates(bundle: Bundle, site: Path, tmp_path: Path) -> None:
    for overlay in bundle.overlays:
        bundle.run(("train", overlay), site, tmp_path / overlay, max_epochs=1)
        made = bundle.run(
            ("train", overlay, "evaluate"),
            site,
            tmp_path / overlay,
            ckpt_path=str(tmp_path / overlay / "model.pt"),
        )
        assert 0 <= made.evaluator.state.metrics["val_mean_dice"] <= 1, overlay


def test_inference_says_what_to_do_without_weights_or_images(
    bundle: Bundle, site: Path, trained: Path, tmp_path: Path
) -> None:
    with pytest.raises(RuntimeError) as missing:
        bundle.run(INFERENCE, site / bundle.images, tmp_path, ckpt_path=str(tmp_path / "none.pt"))
    assert "No trained weights at" in str(missing.value.__cause__) and "--ckpt_path" in str(
        missing.value.__cause__
    )
    other = torch.load(trained, weights_only=True)
    name = next(iter(other.get("model", other)))
    other.get("model", other)[name] = torch.zeros(7)
    torch.save(other, tmp_path / "other.pt")
    (tmp_path / "text.pt").write_text("no model")
    for file, says in (
        ("other.pt", f"of another network: {name} is (7,) in the file"),
        ("text.pt", "is no state_dict"),
    ):
        with pytest.raises(RuntimeError) as wrong:
            bundle.run(INFERENCE, site / bundle.images, tmp_path, ckpt_path=str(tmp_path / file))
        assert isinstance(wrong.value.__cause__, ConfigError) and says in str(wrong.value.__cause__)
    (tmp_path / "empty").mkdir()
    with pytest.raises(RuntimeError) as empty:
        bundle.run(INFERENCE, tmp_path / "empty", tmp_path, ckpt_path=str(trained))
    assert "--dataset_dir" in str(empty.value.__cause__)


def test_monais_own_export_gives_the_networks_numbers(
    bundle: Bundle, trained: Path, tmp_path: Path
) -> None:
    small = tmp_path / "small.json"
    small.write_text(json.dumps({**bundle.config("inference"), "ckpt_path": str(trained)}))
    files = (str(trained), str(bundle.configs / "metadata.json"), str(small))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ckpt_export("network_def", str(tmp_path / "model.ts"), *files, "model")
    network = ConfigParser(json.loads(small.read_text())).get_parsed_content("network_def")
    network.load_state_dict(torch.load(trained, weights_only=True)["model"])
    image = torch.rand(2, bundle.config("inference")["network_def"]["in_channels"], 32, 32)
    with torch.no_grad():
        torch.testing.assert_close(
            torch.jit.load(str(tmp_path / "model.ts")).eval()(image), network.eval()(image)
        )


# --- MONAI's FL client, and the federation


def client(bundle: Bundle, site: Path, out: Path) -> MonaiAlgo:
    kwargs = {
        "dataset_dir": str(site),
        **bundle.small,
        "ckpt_dir": str(out),
        "output_dir": str(out / "eval"),
    }
    kwargs["device"] = "cpu"
    algo = MonaiAlgo(
        str(bundle.root), local_epochs=1, train_kwargs=dict(kwargs), eval_kwargs=dict(kwargs)
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # MONAI reminds that a bundle is executable
        algo.initialize()
    return algo


def test_monais_client_trains_sends_and_evaluates(
    bundle: Bundle, site: Path, tmp_path: Path
) -> None:
    algo = client(bundle, site, tmp_path)
    assert algo.trainer is not None
    received: Mapping[str, torch.Tensor] = {
        k: v.clone() for k, v in algo.trainer.network.state_dict().items()
    }
    algo.train(ExchangeObject(weights=dict(received)))
    update = algo.get_weights()
    assert update.weights.keys() == received.keys()
    assert any(bool(change.any()) for change in update.weights.values())
    assert update.statistics[FlStatistics.NUM_EXECUTED_ITERATIONS] >= 1
    assert set(algo.evaluate(ExchangeObject(weights=dict(received))).metrics) == bundle.metrics
    algo.finalize()


def test_data_statistics_of_a_site_come_from_the_bundle(
    bundle: Bundle, site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(
        tmp_path
    )  # the analyser writes train_data_stats.yaml to the working directory
    stats = MonaiAlgoStats(str(bundle.root), workflow=bundle.workflow(TRAIN, site, tmp_path))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        stats.initialize()
    channels = 1 if bundle.images == "." else 3
    asked = {
        FlStatistics.HIST_BINS: [10] * channels,
        FlStatistics.HIST_RANGE: [[0, 1000]] * channels,
    }
    result = stats.get_data_stats(asked).statistics
    counts = {
        key: result[key][FlStatistics.DATA_COUNT]
        for key in ("train", "eval", FlStatistics.TOTAL_DATA)
    }
    assert counts == {"train": 2, "eval": 1, FlStatistics.TOTAL_DATA: 3}
    assert result["train"][FlStatistics.FAIL_COUNT] == 0


def command(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return warm_python.run(["-W", "ignore", "-m", "monai.bundle", *arguments], folder)


@pytest.mark.slow
def test_a_copy_of_the_bundle_trains_evaluates_infers_and_federates_from_the_command_line(
    bundle: Bundle, sites: Path, site: Path, tmp_path: Path
) -> None:
    root = copy_bundle(bundle.name, tmp_path / "bundle")
    small = [word for key, value in bundle.small.items() for word in (f"--{key}", str(value))]
    common = [
        "--dataset_dir",
        str(site),
        *small,
        "--device",
        "cpu",
        "--output_dir",
        str(tmp_path / "eval"),
    ]
    train = ["run", "--config_file", "configs/train.json", *common, "--max_epochs", "1"]
    evaluate = ["run", "--config_file", "['configs/train.json','configs/evaluate.json']", *common]

    infer = ["run", "--config_file", "configs/inference.json"]
    infer += ["--dataset_dir", str(site / bundle.images)]
    for key, value in bundle.small.items():
        if key in bundle.config("inference"):
            infer += [f"--{key}", str(value)]
    infer += ["--device", "cpu", "--output_dir", str(tmp_path / "masks")]

    strategies = []
    for name in ("FedAvg", "ShapFed"):
        strategies.append({"_target_": f"monai_fairfl.strategies.{name}"})
    federate = ["run", "--config_file", "['configs/federate.json','configs/quality_shift.json']"]
    federate += ["--sites_root", str(sites), "--rounds", "2", "--run_dir", str(tmp_path / "run")]
    federate += ["--overrides", str(dict(bundle.small)), "--strategies", str(strategies)]

    steps = [train, evaluate, infer, federate]
    for step in steps:
        done = command(root, *step)
        assert done.returncode == 0, done.stderr[-3000:]
    (tmp_path / "empty").mkdir()
    nothing = command(root, *steps[2][:4], str(tmp_path / "empty"), *steps[2][5:])
    assert nothing.returncode == 2 and "Traceback" not in nothing.stderr
    assert "--dataset_dir" in nothing.stderr.splitlines()[-1], nothing.stderr[-3000:]
    assert len(list((tmp_path / "masks").glob(bundle.masks))) == 4
    report = json.loads((tmp_path / "run" / "report.json").read_text())
    assert {group: len(of) for group, of in report["groups"].items()} == {
        "corrupted": 1,
        "clean": 1,
    }
    assert "Mean, corrupted" in done.stdout and "Mean, clean" in done.stdout
    rounds = read_ledger(tmp_path / "run" / "ShapFed" / "ledger.jsonl")[1:-1]
    assert all(set(record["details"]["class_value"]) == set(report["sites"]) for record in rounds)
    scored = {site: set(found["global_score"]) for site, found in rounds[0]["measurements"].items()}
    if bundle.partial is None:
        assert not rounds[0]["labelled"] and all("mean" in names for names in scored.values())
    else:  # labels the disc only: its cup is neither trained nor scored nor compared
        assert rounds[0]["labelled"] == {bundle.partial: [True, False]}
        assert (
            scored[bundle.partial] == {"mean", "disc"}
            and {"mean", "disc", "cup"} in scored.values()
        )
        assert all(
            record["details"]["class_value"][bundle.partial]["1"] is None for record in rounds
        )
