# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""A model file holds how it was trained: who writes it, who reads it, and what is refused."""

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
from helpers.shipped_bundles import EVALUATE, FUNDUS, INFERENCE, PROSTATE, TRAIN, Bundle
from ignite.engine import Engine
from monai.handlers import CheckpointLoader

from monai_fairfl import BundleFederation, ModelRecipe
from monai_fairfl.cli import main
from monai_fairfl.errors import ConfigError
from monai_fairfl.model_files import read_recipe, save_model_file, state_of_file
from monai_fairfl.strategies import CGSV, Ditto, Strategy

OTHER_SIZE = [48, 48]
OWN_PARTS: dict[str, dict[str, Any]] = {
    PROSTATE.name: {"network_def#act_name": "relu", "validate#inferer#mode": "gaussian"},
    FUNDUS.name: {"network_def#act": "RELU", "validate#inferer#margin": 3.0},
}


def recipe_of(model: Path) -> ModelRecipe:
    recipe = read_recipe(model)
    assert recipe is not None
    return recipe


def beside(model: Path) -> Path:
    """The recipe in a file of its own, for people to read."""
    return model.with_suffix(".recipe.json")


@pytest.fixture(scope="module")
def brings(bundle: Bundle, site: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file of a model that brings a network and an inferer of its own; read only."""
    folder = tmp_path_factory.mktemp("brings")
    bundle.run(TRAIN, site, folder, max_epochs=1, **OWN_PARTS[bundle.name])
    return folder / "model.pt"


# --- what a training writes, and who reads it


def test_a_training_by_the_command_writes_its_values_and_records_its_files(
    bundle: Bundle, site: Path, tmp_path: Path
) -> None:
    names = ("train", "light", "paper_setting")
    command = ["-m", "monai.bundle", "run", "--config_file", str(bundle.files(*names))]
    values = {**bundle.small, "device": "cpu", "max_epochs": 1}
    values |= {"bundle_root": bundle.root, "dataset_dir": site, "ckpt_dir": tmp_path}
    for key, value in values.items():
        command += [f"--{key}", str(value)]
    done = warm_python.run(command, tmp_path)
    assert done.returncode == 0, done.stderr[-2000:]

    model = tmp_path / "model.pt"
    recipe = recipe_of(model)
    assert recipe.bundle == bundle.config("metadata")["name"]
    assert recipe.values["size"] == [32, 32]
    assert set(recipe.values) >= set(bundle.config("train")["deciding"])
    assert list(recipe.files) == [f"configs/{name}.json" for name in names]
    digest = hashlib.sha256((bundle.configs / "train.json").read_bytes()).hexdigest()
    assert recipe.files["configs/train.json"] == digest
    assert "train#deterministic_transforms" in recipe.sections
    assert json.loads(beside(model).read_text()) == recipe.state_dict()


def test_torch_and_monai_read_the_weights_as_from_any_file(
    bundle: Bundle, trained: Path, tmp_path: Path
) -> None:
    workflow = bundle.workflow(TRAIN, trained.parent, tmp_path)
    network = workflow.parser.get_parsed_content("network_def")
    # The line that docs/use_model.md gives.
    state = torch.load(trained, map_location="cpu", weights_only=True)["model"]
    assert state.keys() == network.state_dict().keys()
    loader = CheckpointLoader(load_path=str(trained), load_dict={"model": network})
    engine = Engine(lambda engine, batch: None)
    loader.attach(engine)
    engine.run([0], 1)
    for name, value in network.state_dict().items():
        assert torch.equal(value, state[name]), name


@pytest.mark.parametrize("strategy", [CGSV(), Ditto()], ids=lambda strategy: strategy.name)
def test_models_of_a_federation_carry_the_recipe_of_their_own_site(
    strategy: Strategy, hospitals: Path, tmp_path: Path
) -> None:
    full_run = {"rounds": 60, "local_epochs": 4}
    own = {"field_of_view": 0.9}
    BundleFederation(
        str(PROSTATE.root),
        str(hospitals),
        strategy,
        rounds=1,
        run_dir=str(tmp_path / "run"),
        overrides=PROSTATE.small,
        site_names=["alder", "birch"],
        sites={"birch": own},
        full_run={**full_run, "mean_dice": 0.5},
        report=False,
    ).run()
    models = {model.stem: model for model in (tmp_path / "run" / "models").glob("*.pt")}
    # The reward of each site, or the model that it keeps.
    for site in ("alder", "birch"):
        for model in (tmp_path / "run" / "sites" / site).rglob("*-own.pt"):
            models[site] = model
    assert set(models) == {"best", "global", "alder", "birch"}
    for name, model in models.items():
        recipe = recipe_of(model)
        assert list(recipe.files) == ["configs/train.json"]
        assert recipe.values["field_of_view"] == (0.9 if name == "birch" else 0.7)
        of_one_site = name in ("alder", "birch")
        assert recipe.sites == ({} if of_one_site else {"birch": own})
        if model.parent.name == "models":
            run = {"rounds": 1, "local_epochs": 1, "full_run": full_run}
            assert recipe.training == {"strategy": strategy.name, "seed": 0, **run}


# --- exports


def test_exports_carry_the_recipe_and_metadata_of_what_a_program_hands_in(
    bundle: Bundle, trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("a.ts", "a"):
        command = ["export", str(trained), "--out", str(tmp_path / name), "--json"]
        assert main(command) == 0
        # Nothing that is there is overwritten.
        capsys.readouterr()
        assert main(command) == 2
        assert name in capsys.readouterr().out
    recipe = recipe_of(trained)
    for file in ("a.ts", "a/models/model.pt"):
        assert recipe_of(tmp_path / file) == recipe

    metadata = json.loads((tmp_path / "a" / "configs" / "metadata.json").read_text())
    image = metadata["network_data_format"]["inputs"]["image"]
    volume = bundle is PROSTATE
    # Of a volume one channel: the inferer makes channels of its slices.
    assert image["num_channels"] == len(image["channel_def"]) == (1 if volume else 3)
    assert len(image["spatial_shape"]) == (3 if volume else 2)
    inference = json.loads((tmp_path / "a" / "configs" / "inference.json").read_text())
    assert inference["size"] == [32, 32]

    def move(config: dict[str, Any]) -> None:
        config["own_inferer"] = config["inferer"]
        config["inferer"] = "@own_inferer"

    # Also where another key has the inferer.
    moved = changed_copy(bundle, tmp_path, "inference", move)
    export(trained, tmp_path / "moved", moved)
    assert json.loads((tmp_path / "moved" / "configs" / "metadata.json").read_text()) == metadata


def export(model: Path, out: Path, bundle: Path) -> None:
    assert main(["export", str(model), "--out", str(out), "--bundle", str(bundle)]) == 0


def changed_copy(
    bundle: Bundle, folder: Path, name: str, change: Callable[[dict[str, Any]], object]
) -> Path:
    """A copy of the bundle in a new folder, one file of whose configuration is changed."""
    copy = folder / f"changed_{name}"
    shutil.copytree(bundle.root, copy)
    file = copy / "configs" / f"{name}.json"
    content = json.loads(file.read_text())
    change(content)
    file.write_text(json.dumps(content))
    return copy


def test_what_cannot_be_exported_is_refused_before_anything_is_written(
    bundle: Bundle, trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def refused(model: Path, root: Path, word: str) -> None:
        for name in ("a.ts", "a"):
            out = tmp_path / "out" / name
            command = ["export", str(model), "--out", str(out), "--bundle", str(root)]
            assert main(command) == 2
            assert word in capsys.readouterr().err
            assert not out.exists()

    save_model_file(tmp_path / "plain.pt", state_of_file(trained))
    refused(tmp_path / "plain.pt", bundle.root, "plain.pt")

    # Another network, which the model does not bring.
    recipe = recipe_of(trained)
    others = {**recipe.sections, "network_def": "0" * 64}
    parts = {name: part for name, part in recipe.parts.items() if name != "network_def"}
    other = with_recipe(trained, tmp_path / "other.pt", sections=others, parts=parts)
    refused(other, bundle.root, "network_def")

    # A value of the bundle's in place of the model's.
    fixed = changed_copy(bundle, tmp_path, "inference", lambda config: config.update(size=[8, 8]))
    refused(trained, fixed, "size [8, 8]")
    lacking = changed_copy(
        bundle, tmp_path, "metadata", lambda content: content.pop("network_data_format")
    )
    if bundle is PROSTATE:
        refused(trained, lacking, "network_data_format")
    (lacking / "configs" / "metadata.json").unlink()
    refused(trained, lacking, "metadata.json")


# --- values by hand


def refusal(bundle: Bundle, names: tuple[str, ...], data: Path, out: Path, **given: Any) -> str:
    """The message with which a run is refused that is given these values and no others."""
    error = bundle.without_overrides().cause_of_failed_run(names, data, out, **given)
    assert isinstance(error, ConfigError), error
    return str(error)


def infer(bundle: Bundle, images: Path, out: Path, **given: Any) -> dict[str, Any]:
    """Segment a folder with these values and no others; the record of what was used."""
    bundle.without_overrides().run(INFERENCE, images, out, **given)
    assert list((out / "eval").glob(bundle.masks))
    content: dict[str, Any] = json.loads((out / "eval" / "model.json").read_text())
    return content


def test_a_value_or_section_that_differs_from_the_training_is_refused_with_both(
    bundle: Bundle, site: Path, one_image: Path, trained: Path, tmp_path: Path
) -> None:
    model = {"ckpt_path": str(trained)}
    for names, data in ((INFERENCE, one_image), (EVALUATE, site)):
        message = refusal(bundle, names, data, tmp_path, **model, size=OTHER_SIZE)
        assert "[48, 48]" in message and "[32, 32]" in message
    message = refusal(bundle, EVALUATE, site, tmp_path, **model, interpolation=["nearest"])
    assert "image_interpolation" in message and "nearest" in message

    key = "validate#inferer#roi_size" if bundle is PROSTATE else "validate#inferer#size"
    message = refusal(bundle, EVALUATE, site, tmp_path, **model, **{key: [16, 16]})
    assert "validate#inferer" in message
    network = {**bundle.config("inference")["network_def"], "extra": 1}
    message = refusal(bundle, INFERENCE, one_image, tmp_path, **model, network_def=network)
    assert "network_def" in message
    assert not list((tmp_path / "eval").glob(bundle.masks))

    # As a hospital's own it is used.
    own = {"own_values": ["validate#inferer"], key: [16, 16]}
    bundle.without_overrides().run(EVALUATE, site, tmp_path, **model, **own)


# --- parts that a model brings


def test_what_a_model_brings_is_used_by_our_commands_and_asked_for_elsewhere(
    bundle: Bundle, one_image: Path, brings: Path, tmp_path: Path
) -> None:
    message = refusal(bundle, INFERENCE, one_image, tmp_path, ckpt_path=str(brings))
    assert "monai-fairfl infer" in message
    out = tmp_path / "out"
    assert main(["infer", str(brings), str(one_image), "--out", str(out)]) == 0
    # The line that the command prints, with a value that a part was made of.
    merged = json.loads((out / "recipe.json").read_text())
    given = {"ckpt_path": str(brings), "size": OTHER_SIZE, "own_values": ["size"], **merged}
    assert "validate#inferer" in refusal(bundle, INFERENCE, one_image, tmp_path, **given)


def test_a_model_replaces_only_what_the_bundle_lets_models_bring(
    bundle: Bundle, one_image: Path, brings: Path, tmp_path: Path
) -> None:
    recipe = recipe_of(brings)
    parts = {**recipe.parts, "output_dir": {"content": "/elsewhere", "values": []}}
    values = {**recipe.values, "recipe#sections": ["output_dir"]}
    sent = with_recipe(brings, tmp_path / "sent.pt", parts=parts, values=values)
    assert "output_dir" in recipe_of(sent).parts
    out = tmp_path / "out"
    # A key of no value is refused.
    assert main(["infer", str(sent), str(one_image), "--out", str(out)]) == 2
    for file in out.glob("recipe.json"):
        assert "/elsewhere" not in file.read_text()
    assert not Path("/elsewhere").exists()


@pytest.mark.parametrize(
    ("content", "named"),
    [
        ({"_target_": "os.system", "command": "true"}, "os.system"),
        ({"_target_": "SliceInferer", "roi_size": "$print('here')"}, "$print"),
        ({"_target_": "SliceInferer", "roi_size": "@size"}, "@size"),
        ({"_target_": "SliceInferer", "_mode_": "debug"}, "_mode_"),
        ({"_target_": "UNet", "_requires_": ["x"]}, "_requires_"),
        ([{"_target_": "LoadImaged", "reader": "os.system"}], "os.system"),
        ([{"_target_": "LoadImaged", "reader": ["PILReader"]}], "PILReader"),
        ([{"_target_": "SaveImaged", "output_dir": "/"}], "SaveImaged"),
        ({"_target_": "SimpleInferer", "a": {"b": ["%/etc/passwd"]}}, "%/etc/passwd"),
        ({"_target_": ["os.system"]}, "os.system"),
    ],
)
def test_a_part_that_would_do_more_than_compute_is_refused(
    content: Any, named: str, brings: Path, tmp_path: Path
) -> None:
    parts = {"validate#inferer": {"content": content, "values": []}}
    sent = with_recipe(brings, tmp_path / "sent.pt", parts=parts)
    with pytest.raises(ConfigError) as refused:
        read_recipe(sent)
    for word in ("sent.pt", "validate#inferer", named):
        assert word in str(refused.value)


# --- damaged recipes, and values that no file could hold


@pytest.mark.parametrize(
    ("changed", "word"),
    [
        ({"values": None}, "values"),
        ({"values": [1, 2]}, "values"),
        ({"values": {"field_of_view": "$print('here') or 0.7"}}, "code"),
        ({"values": {"channels": [4, "@optimizer"]}}, "code"),
        ({"sites": "x"}, "sites"),
        ({"sites": {"HK": 3}}, "HK"),
        ({"sites": {"HK": {"norm": {"_target_": "os.getcwd"}}}}, "code"),
        ({"sections": ["network_def"]}, "sections"),
        ({"bundle": 3}, "bundle"),
        ({"training": {"seed": "%/etc/hostname"}}, "code"),
        ({"parts": {"network_def": {"content": 3}}}, "network_def"),
    ],
)
def test_a_recipe_that_is_damaged_or_would_act_is_refused_by_the_files_name(
    changed: dict[str, Any], word: str, trained: Path, tmp_path: Path
) -> None:
    model = with_recipe(trained, tmp_path / "model.v1.pt", **changed)
    with pytest.raises(ConfigError, match=rf"model\.v1\.pt.*{word}"):
        read_recipe(model)
