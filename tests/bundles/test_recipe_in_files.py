# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""A model file holds the recipe of its training: who writes it, who reads it, what is refused."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import warm_python
from helpers.changed_recipes import with_recipe
from helpers.shipped_bundles import INFERENCE, TRAIN, Bundle
from ignite.engine import Engine
from monai.handlers import CheckpointLoader

from monai_fairfl.cli import main
from monai_fairfl.errors import ConfigError
from monai_fairfl.model_files.recipe import read_recipe, recipe_file, save_model_file
from monai_fairfl.utils.saved_files import read_state_dict
from monai_fairfl.workflow.export import export_model

# --- what a training writes, and who reads it


@pytest.mark.slow
def test_the_training_writes_its_values_into_the_file_and_beside_it(
    bundle: Bundle, trained: Path
) -> None:
    recipe = read_recipe(trained)
    assert recipe is not None
    assert recipe.bundle == bundle.config("metadata")["name"]
    assert recipe.values["size"] == [32, 32]
    assert set(recipe.values) == set(bundle.config("train")["deciding"])
    assert json.loads(recipe_file(trained).read_text()) == recipe.state_dict()


def test_torch_and_monai_read_the_weights_as_from_any_file(
    bundle: Bundle, trained: Path, tmp_path: Path
) -> None:
    workflow = bundle.workflow(TRAIN, trained.parent, tmp_path)
    network = workflow.parser.get_parsed_content("network_def")
    # The line that docs/use_model.md gives.
    state = torch.load(trained, map_location="cpu", weights_only=True)["model"]
    assert state.keys() == network.state_dict().keys()

    # As the bundles call it.
    loader = CheckpointLoader(load_path=str(trained), load_dict={"model": network})
    engine = Engine(lambda engine, batch: None)
    loader.attach(engine)
    engine.run([0], 1)
    for name, value in network.state_dict().items():
        assert torch.equal(value, state[name]), name


@pytest.mark.nvflare
def test_nvflares_persistor_begins_from_the_file(trained: Path) -> None:
    pytest.importorskip("nvflare")
    from nvflare.app_opt.pt.model_persistence_format_manager import PTModelPersistenceFormatManager

    content = torch.load(trained, weights_only=True)
    manager = PTModelPersistenceFormatManager(content)
    weights = manager.to_model_learnable(exclude_vars=None)["weights"]
    assert weights.keys() == content["model"].keys()
    assert manager.to_persistence_dict()["recipe"] == content["recipe"]


@pytest.mark.slow
def test_the_command_that_trains_a_bundle_records_its_files(
    bundle: Bundle, site: Path, tmp_path: Path
) -> None:
    command = ["-m", "monai.bundle", "run"]
    command += ["--config_file", str(bundle.files("train", "light", "paper_setting"))]
    command += ["--bundle_root", str(bundle.root)]
    command += ["--dataset_dir", str(site)]
    command += ["--ckpt_dir", str(tmp_path)]
    command += ["--device", "cpu"]
    command += ["--max_epochs", "1"]
    for key, value in bundle.small.items():
        command += [f"--{key}", str(value)]
    done = warm_python.run(command, tmp_path)
    assert done.returncode == 0, done.stderr[-2000:]

    recipe = read_recipe(tmp_path / "model.pt")
    assert recipe is not None
    names = ("train", "light", "paper_setting")
    assert list(recipe.files) == [f"configs/{name}.json" for name in names]
    digest = hashlib.sha256((bundle.configs / "train.json").read_bytes()).hexdigest()
    assert recipe.files["configs/train.json"] == digest
    assert "train#deterministic_transforms" in recipe.sections


# --- exports


@pytest.mark.slow
def test_exports_carry_the_recipe(
    bundle: Bundle, trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["export-model", str(trained), "--out", str(tmp_path / "a.ts"), "--json"]
    assert main(command) == 0
    assert read_recipe(tmp_path / "a.ts") == read_recipe(trained)

    capsys.readouterr()
    assert main(command) == 2
    assert "is there already" in capsys.readouterr().out


def test_a_model_without_recipe_is_not_exported(
    bundle: Bundle, trained: Path, tmp_path: Path
) -> None:
    plain = tmp_path / "plain.pt"
    torch.save(read_state_dict(trained), plain)
    with pytest.raises(ConfigError, match="plain.pt has no recipe"):
        export_model(plain, tmp_path / "b.ts", bundle.root)
    assert not (tmp_path / "b.ts").exists()


def test_a_network_that_no_model_may_bring_is_not_exported_as_the_bundles_own(
    bundle: Bundle, trained: Path, tmp_path: Path
) -> None:
    recipe = read_recipe(trained)
    assert recipe is not None
    others = {**recipe.sections, "network_def": "0" * 64}
    parts = {name: part for name, part in recipe.parts.items() if name != "network_def"}
    other = with_recipe(trained, tmp_path / "model.pt", sections=others, parts=parts)
    with pytest.raises(ConfigError, match="model.pt was trained with another network_def"):
        export_model(other, tmp_path / "a.ts", bundle.root)
    assert not (tmp_path / "a.ts").exists()


def test_a_value_that_the_bundle_has_in_place_of_the_models_is_not_exported(
    bundle: Bundle, trained: Path, tmp_path: Path
) -> None:
    changed = changed_copy(bundle, tmp_path, "inference", lambda config: config.update(size=[8, 8]))
    for out in (tmp_path / "a.ts", tmp_path / "a"):
        with pytest.raises(
            ConfigError, match=r"inference.json has size \[8, 8\].* \[32, 32\]: wri"
        ):
            export_model(trained, out, changed)
        assert not out.exists()


def test_metadata_that_an_export_needs_are_asked_for_before_anything_is_written(
    bundle: Bundle, trained: Path, tmp_path: Path
) -> None:
    changed = changed_copy(
        bundle, tmp_path, "metadata", lambda content: content.pop("network_data_format")
    )
    goes_along_an_axis = "spatial_dim" in str(bundle.config("inference")["inferer"])
    if goes_along_an_axis:
        with pytest.raises(ConfigError, match="metadata.json must give network_data_format"):
            export_model(trained, tmp_path / "a", changed)
    (changed / "configs" / "metadata.json").unlink()
    for out in (tmp_path / "a.ts", tmp_path / "a"):
        with pytest.raises(ConfigError, match="metadata.json does not exist"):
            export_model(trained, out, changed)
        assert not out.exists()


def test_the_axis_of_an_inferer_that_another_key_has_goes_into_the_exported_metadata(
    bundle: Bundle, trained: Path, tmp_path: Path
) -> None:
    def move(config: dict[str, Any]) -> None:
        config["own_inferer"] = config["inferer"]
        config["inferer"] = "@own_inferer"

    export_model(trained, tmp_path / "own", bundle.root)
    export_model(trained, tmp_path / "moved", changed_copy(bundle, tmp_path, "inference", move))
    metadata = [tmp_path / name / "configs" / "metadata.json" for name in ("own", "moved")]
    assert metadata[0].read_text() == metadata[1].read_text()


def test_exported_metadata_have_the_image_that_a_program_hands_in(
    bundle: Bundle, trained: Path, tmp_path: Path
) -> None:
    export_model(trained, tmp_path / "out", bundle.root)
    metadata = json.loads((tmp_path / "out" / "configs" / "metadata.json").read_text())
    image = metadata["network_data_format"]["inputs"]["image"]
    # Of a volume one channel: the inferer makes channels of its slices.
    volume = bundle.images == "."
    assert image["num_channels"] == len(image["channel_def"]) == (1 if volume else 3)
    assert len(image["spatial_shape"]) == (3 if volume else 2)
    if volume:
        assert image["channel_def"]["0"].startswith("T2-weighted")


def changed_copy(
    bundle: Bundle, folder: Path, name: str, change: Callable[[dict[str, Any]], object]
) -> Path:
    """A copy of the bundle in ``folder``, one file of whose configuration is changed."""
    copy = folder / "changed"
    shutil.copytree(bundle.root, copy)
    file = copy / "configs" / f"{name}.json"
    content = json.loads(file.read_text())
    change(content)
    file.write_text(json.dumps(content))
    return copy


# --- two recipes, and recipes of other versions


@pytest.mark.slow
def test_the_recipe_inside_counts_and_another_beside_it_is_reported(
    bundle: Bundle,
    one_image: Path,
    trained: Path,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    model = with_recipe(trained, tmp_path / "model.pt")
    recipe_file(model).write_text(recipe_file(trained).read_text().replace("32", "48"))
    bundle.without_overrides().run(INFERENCE, one_image, tmp_path, ckpt_path=str(model))
    assert "model.recipe.json is not the recipe inside model.pt, which is used" in caplog.text

    save_model_file(model, read_state_dict(trained))
    assert not recipe_file(model).exists()


def test_two_models_whose_names_have_dots_have_two_recipe_files() -> None:
    assert recipe_file("HK.v1") != recipe_file("HK.v2")
    assert recipe_file("HK.v1.pt").name == "HK.v1.recipe.json"


def test_a_recipe_of_a_newer_version_is_used_and_its_unknown_fields_are_reported(
    trained: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = with_recipe(trained, tmp_path / "newer.pt", package="monai_fairfl 9.0", spacing="1 mm")
    assert read_recipe(model) is not None
    assert "newer.pt has spacing, which this version does not know" in caplog.text


# --- damaged files


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"values": None}, "it lacks values"),
        ({"values": [1, 2]}, "its values is"),
        ({"sites": "x"}, "its sites is"),
        ({"sites": {"HK": 3}}, "site HK has 3"),
        ({"sections": ["network_def"]}, "its sections is"),
        ({"bundle": 3}, "its bundle is 3"),
        ({"parts": {"network_def": {"content": 3}}}, "its network_def is"),
    ],
)
def test_a_damaged_recipe_is_refused_by_the_files_name(
    trained: Path, tmp_path: Path, changed: dict[str, Any], reason: str
) -> None:
    model = with_recipe(trained, tmp_path / "model.v1.pt", **changed)
    message = f"model.v1.pt holds a recipe that cannot be read: {reason}"
    with pytest.raises(ConfigError, match=message):
        read_recipe(model)


@pytest.mark.parametrize(
    "changed",
    [
        {"values": {"field_of_view": "$print('here') or 0.7"}},
        {"values": {"channels": [4, "@optimizer"]}},
        {"sites": {"HK": {"norm": {"_target_": "os.getcwd"}}}},
        {"training": {"seed": "%/etc/hostname"}},
    ],
)
def test_a_recipe_that_would_act_in_a_configuration_is_refused(
    trained: Path, tmp_path: Path, changed: dict[str, Any]
) -> None:
    """A model may come from anybody, and ``adapt`` gives its recipe's values to the bundle."""
    model = with_recipe(trained, tmp_path / "sent.pt", **changed)
    with pytest.raises(ConfigError, match="sent.pt holds a recipe with code or a reference in its"):
        read_recipe(model)


def test_a_torchscript_file_whose_recipe_is_damaged_is_refused_by_its_name(tmp_path: Path) -> None:
    file = tmp_path / "damaged.ts"
    network = torch.jit.script(torch.nn.Linear(1, 1))
    torch.jit.save(network, str(file), _extra_files={"recipe.json": "[1"})
    with pytest.raises(ConfigError, match="damaged.ts holds a recipe that cannot be read"):
        read_recipe(file)


def test_a_jobs_recipe_that_is_damaged_is_refused_by_its_name(tmp_path: Path) -> None:
    from monai_fairfl.transports.engines.initial_files import read_initial_recipe

    (tmp_path / "recipe.json").write_text("[1]")
    message = "recipe.json holds a recipe that cannot be read: it holds no JSON object but a list"
    with pytest.raises(ConfigError, match=message):
        read_initial_recipe(tmp_path)


def test_a_file_of_pickled_objects_is_refused_in_one_short_line(tmp_path: Path) -> None:
    torch.save(torch.nn.Linear(1, 1), tmp_path / "whole.pt")
    with pytest.raises(ConfigError) as refused:
        read_recipe(tmp_path / "whole.pt")
    message = str(refused.value)
    assert "save its state_dict" in message
    assert len(message.splitlines()) == 1
    assert len(message) < 300
