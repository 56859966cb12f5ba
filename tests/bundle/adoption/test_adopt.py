# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""What an adoption writes into a bundle of others, and what it refuses."""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from helpers.foreign_bundles import write_foreign_bundle, write_nested_balls

from monai_fairfl.bundle.adoption import adopt_bundle
from monai_fairfl.bundle.configuration import train_config
from monai_fairfl.bundle.federation import BundleFederation
from monai_fairfl.bundle.initial import initial_model
from monai_fairfl.bundle.shipped import find_bundle
from monai_fairfl.bundle.site import FEDERATED_EVALUATE
from monai_fairfl.errors import ConfigError

# Each builds the network of a bundle.
pytestmark = pytest.mark.slow

TRAIN = ["configs/train.json", "configs/federated_train.json"]
WRITTEN = {"configs/federate.json", "configs/federated_train.json", FEDERATED_EVALUATE}


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    """A bundle of others with the smallest network."""
    return write_foreign_bundle(tmp_path / "bundle", "dynunet")


def change(bundle: Path, **keys: Any) -> None:
    """Change keys of a bundle's own ``train.json``; a ``#`` is written ``__``."""
    file = bundle / "configs" / "train.json"
    content = json.loads(file.read_text())
    for key, value in keys.items():
        *rooms, last = key.split("__")
        section = content
        for room in rooms:
            section = section[room]
        section[last] = value
    file.write_text(json.dumps(content))


def digests(folder: Path) -> dict[str, str]:
    """File -> digest of its bytes."""
    files = [file for file in sorted(folder.rglob("*")) if file.is_file()]
    return {
        str(file.relative_to(folder)): hashlib.sha256(file.read_bytes()).hexdigest()
        for file in files
    }


def sentences_about(topic: str, sentences: list[str]) -> list[str]:
    """The sentences of an adoption about one topic."""
    return [sentence for sentence in sentences if sentence.startswith(f"{topic}:")]


def test_the_bundles_own_files_stay_as_they_are(bundle: Path) -> None:
    before = digests(bundle)
    adoption = adopt_bundle(bundle)
    after = digests(bundle)
    assert set(adoption.written) == set(after) - set(before) == WRITTEN
    assert {file: after[file] for file in before} == before


def test_a_copy_is_adopted_in_the_place_of_the_bundle(bundle: Path, tmp_path: Path) -> None:
    before = digests(bundle)
    adoption = adopt_bundle(bundle, tmp_path / "copy")
    assert adoption.bundle == tmp_path / "copy"
    assert digests(bundle) == before
    assert set(digests(tmp_path / "copy")) == {*before, *WRITTEN}


def test_nothing_that_is_there_is_overwritten_unasked(bundle: Path, tmp_path: Path) -> None:
    own = bundle / "configs" / "federate.json"
    own.write_text("mine")
    with pytest.raises(ConfigError, match=r"federate\.json already: --replace"):
        adopt_bundle(bundle)
    assert own.read_text() == "mine"
    # Nothing else was written, either.
    assert not (bundle / TRAIN[1]).exists()

    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "a file").touch()
    with pytest.raises(ConfigError, match="not an empty folder"):
        adopt_bundle(bundle, tmp_path / "full")

    adopt_bundle(bundle, replace=True)
    assert json.loads(own.read_text())["config"] == TRAIN


def test_a_shipped_bundle_is_not_adopted() -> None:
    with pytest.raises(ConfigError, match="federates as it is"):
        adopt_bundle(find_bundle("prostate_mri_segmentation"))


def test_what_sites_would_share_becomes_each_sites_own(bundle: Path) -> None:
    adopt_bundle(bundle)
    config = train_config(bundle, {}, TRAIN)
    for part in ("train", "validate"):
        assert config[f"{part}#dataset#cache_dir"] == "@cache_dir"
        assert config.get_parsed_content(f"{part}#dataloader#num_workers") == 0


def test_a_folder_elsewhere_gets_the_slash_that_the_bundles_paths_need(
    bundle: Path, tmp_path: Path
) -> None:
    write_nested_balls(tmp_path / "sites", ["elm"], side=16)
    fir = write_nested_balls(tmp_path / "elsewhere", ["fir"], side=16) / "fir"
    adopt_bundle(bundle, site=tmp_path / "sites" / "elm")
    federation = BundleFederation(
        str(bundle),
        str(tmp_path / "sites"),
        "FedAvg",
        rounds=1,
        run_dir=str(tmp_path / "run"),
        sites={"fir": {"dataset_dir": str(fir)}},
        any_folder=True,
        config=TRAIN,
    )
    federation.read_settings()
    sites = federation.bundle_sites
    assert len(sites.listed("fir")["training"]) == 3
    client = sites.client_maker("fir", tmp_path / "run", "cpu")()
    assert client.train_kwargs["dataset_dir"] == f"{fir}/"


def test_what_acts_in_a_central_training_alone_is_off(bundle: Path) -> None:
    adoption = adopt_bundle(bundle)
    handlers = train_config(bundle, {}, TRAIN)["train#handlers"]
    off = [one["_target_"] for one in handlers if one.get("_disabled_")]
    assert off == ["CheckpointLoader", "TensorBoardStatsHandler"]
    assert len(sentences_about("Handlers", adoption.changed)) == 2


def test_a_handler_that_an_expression_may_turn_off_is_off_in_any_case(bundle: Path) -> None:
    handlers = json.loads((bundle / TRAIN[0]).read_text())["train"]["handlers"]
    [loader] = [one for one in handlers if one["_target_"] == "CheckpointLoader"]
    loader["_disabled_"] = "$not @finetune"
    change(bundle, finetune=True, train__handlers=handlers)
    adoption = adopt_bundle(bundle)
    found = train_config(bundle, {}, TRAIN)["train#handlers"][handlers.index(loader)]
    assert found["_target_"] == "CheckpointLoader" and found["_disabled_"] is True
    assert any("CheckpointLoader" in text for text in sentences_about("Handlers", adoption.changed))


def test_handlers_that_an_expression_makes_are_named(bundle: Path) -> None:
    change(bundle, train__trainer__train_handlers="$@train#handlers + []")
    [found] = sentences_about("Handlers", adopt_bundle(bundle).left)
    assert "train#trainer#train_handlers is the expression '$@train#handlers + []'" in found


def test_the_metric_of_several_outputs_is_not_computed_in_training(bundle: Path) -> None:
    adoption = adopt_bundle(bundle)
    trainer = train_config(bundle, {}, TRAIN)["train#trainer"]
    assert trainer["postprocessing"] is None and trainer["key_train_metric"] is None
    [found] = sentences_about("Outputs", adoption.changed)
    assert "2 outputs" in found


def test_a_network_that_gives_several_outputs_when_it_is_scored_is_scored_by_the_first(
    tmp_path: Path,
) -> None:
    bundle = write_foreign_bundle(tmp_path / "bundle", "basic_unet_plus_plus")
    adopt_bundle(bundle)
    inferer = train_config(bundle, {}, TRAIN)["validate#evaluator#inferer"]
    assert inferer["_target_"] == "monai_fairfl.inferers.FirstOutputInferer"
    assert inferer["inferer"]["_target_"] == "SlidingWindowInferer"


def test_a_copied_section_is_changed_in_the_place_of_the_copy_alone(bundle: Path) -> None:
    change(bundle, validate__dataset="%train#dataset")
    adopt_bundle(bundle)
    config = train_config(bundle, {}, TRAIN)
    assert config["train#dataset#data"] == "$@datalist['training']"
    assert config["validate#dataset#data"] == "$@datalist['validation']"


def test_an_accuracy_gives_way_to_a_dice_that_is_computed_besides(bundle: Path) -> None:
    dice = json.loads((bundle / TRAIN[0]).read_text())["validate"]["evaluator"]["key_val_metric"]
    accuracy = {"val_accuracy": {"_target_": "ignite.metrics.Accuracy"}}
    change(bundle, validate__evaluator__key_val_metric=accuracy)
    change(bundle, validate__evaluator__additional_metrics=dice)
    adopt_bundle(bundle)
    evaluator = train_config(bundle, {}, TRAIN)["validate#evaluator"]
    assert evaluator["key_val_metric"] == dice
    assert evaluator["additional_metrics"] == accuracy


def test_an_iou_gives_way_to_the_dice_of_the_same_outputs(bundle: Path) -> None:
    iou = {
        "_target_": "MeanIoUHandler",
        "include_background": True,
        "output_transform": "$monai.handlers.from_engine(['pred', 'label'])",
    }
    change(bundle, validate__evaluator__key_val_metric={"val_iou": iou})
    adoption = adopt_bundle(bundle)
    parser = train_config(bundle, {}, TRAIN)
    dice = {**iou, "_target_": "MeanDice"}
    assert parser["validate#evaluator#key_val_metric"] == {"val_mean_dice": dice}
    assert parser["validate#evaluator#additional_metrics"]["val_iou"] == iou
    assert "val_iou (MeanIoUHandler)" in sentences_about("Score", adoption.changed)[0]


def test_the_folder_of_the_images_may_have_another_name(bundle: Path) -> None:
    file = bundle / TRAIN[0]
    file.write_text(file.read_text().replace("dataset_dir", "image_folder"))
    with pytest.raises(ConfigError, match="--data-key"):
        adopt_bundle(bundle)
    adopt_bundle(bundle, data_key="image_folder")
    config = train_config(bundle, {"dataset_dir": "/hospital/"}, TRAIN)
    assert config.get_parsed_content("image_folder") == "/hospital/"


@pytest.mark.parametrize(
    ("data", "by_position"),
    [
        ("$@cases[:-9]", True),
        ("$monai.data.partition_dataset(@cases, (8, 2))[0]", True),
        ("@training_cases", True),
        ("$json.load(open(@dataset_dir + '/list.json'))['training']", False),
    ],
)
def test_a_split_by_position_is_told_from_one_that_came_with_the_data(
    data: str, by_position: bool, bundle: Path
) -> None:
    change(bundle, cases="$[]", training_cases="$@cases[:3]", train__dataset__data=data)
    change(bundle, validate__dataset__data="$@cases")
    adopt_bundle(bundle)
    assert train_config(bundle, {}, TRAIN)["datalist#by_position"] is by_position


def test_lists_that_are_not_of_images_and_labels_stay_the_bundles_own(
    bundle: Path, tmp_path: Path
) -> None:
    data = write_nested_balls(tmp_path / "data", ["A"], side=16, cases=1)
    change(bundle, train__dataset__data="$[{'image': [i, i], 'label': i} for i in @images]")
    adoption = adopt_bundle(bundle, site=data / "A")
    assert FEDERATED_EVALUATE not in adoption.written
    [found] = sentences_about("Split", adoption.left)
    assert "not one of cases with the files image and label" in found


# --- refusals


def test_a_pythonic_workflow_is_refused_with_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "configs").mkdir()
    (tmp_path / "scripts").mkdir()
    text = "class SpleenWorkflow(PythonicWorkflow):\n    pass\n"
    (tmp_path / "scripts" / "workflow.py").write_text(text)
    with pytest.raises(ConfigError) as refused:
        adopt_bundle(tmp_path)
    assert "PythonicWorkflow (scripts/workflow.py: SpleenWorkflow)" in str(refused.value)
    assert "train_workflow" in str(refused.value)


def test_a_bundle_without_a_training_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no folder configs/"):
        adopt_bundle(tmp_path)
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs" / "inference.json").touch()
    with pytest.raises(ConfigError, match=r"configs/ holds inference\.json"):
        adopt_bundle(tmp_path)


def test_another_engine_is_refused_by_name(bundle: Path) -> None:
    change(bundle, train__trainer___target_="GanTrainer")
    with pytest.raises(ConfigError, match="'GanTrainer'.*cannot be adopted"):
        adopt_bundle(bundle)


def test_engines_elsewhere_are_moved_to_where_the_client_looks(bundle: Path) -> None:
    file = bundle / TRAIN[0]
    content = json.loads(file.read_text())
    content["trainer"] = content["train"].pop("trainer")
    content["evaluator"] = content["validate"].pop("evaluator")
    file.write_text(json.dumps(content))
    adopt_bundle(bundle)
    config = train_config(bundle, {}, TRAIN)
    assert config["train#trainer#_target_"] == "SupervisedTrainer"
    assert config["trainer"] == "@train#trainer"
    assert config["validate#evaluator#_target_"] == "SupervisedEvaluator"


def test_a_bundle_in_yaml_is_adopted(bundle: Path) -> None:
    yaml = pytest.importorskip("yaml")
    file = bundle / TRAIN[0]
    (bundle / "configs" / "train.yaml").write_text(yaml.safe_dump(json.loads(file.read_text())))
    file.unlink()
    adopt_bundle(bundle)
    federate = json.loads((bundle / "configs" / "federate.json").read_text())
    assert federate["config"] == ["configs/train.yaml", TRAIN[1]]
    config = train_config(bundle, {}, federate["config"])
    assert config["train#trainer#_target_"] == "SupervisedTrainer"


def test_a_network_in_the_bundles_scripts_is_found(
    bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Modules and places of modules are those of this test alone.
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "modules", dict(sys.modules))
    (bundle / "scripts").mkdir()
    (bundle / "scripts" / "nets.py").write_text("from monai.networks.nets import UNet as Own\n")
    unet = {"spatial_dims": 3, "in_channels": 1, "channels": [4, 8], "strides": [2]}
    change(bundle, network_def={"_target_": "scripts.nets.Own", "out_channels": 2, **unet})
    adoption = adopt_bundle(bundle)
    assert not sentences_about("Outputs", adoption.left)
    weights, _ = initial_model(bundle, config=TRAIN)
    assert weights
