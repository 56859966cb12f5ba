# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""A model file holds how it was trained: who writes it, who reads it, and what is refused."""

from __future__ import annotations

import hashlib
import json
import math
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from helpers import warm_python
from helpers.shipped_bundles import (
    BUNDLES,
    EVALUATE,
    INFERENCE,
    OWN,
    PROSTATE,
    TRAIN,
    Bundle,
    Federated,
)
from monai.bundle import ConfigParser
from torch import nn

from monai_fairfl import BundleFederation, ModelRecipe
from monai_fairfl.cli import main
from monai_fairfl.errors import ConfigError
from monai_fairfl.model_files import read_recipe, save_model_file, state_of_file
from monai_fairfl.strategies import Ditto, Sparsified
from monai_fairfl.workflow import ModelValues, training_recipe

OTHER_SIZE = [48, 48]


def recipe_of(model: Path) -> ModelRecipe:
    recipe = read_recipe(model)
    assert recipe is not None
    return recipe


def with_recipe(trained: Path, out: Path, **changed: Any) -> Path:
    """A copy of the model whose recipe has other fields."""
    content = torch.load(trained, weights_only=True)
    content["recipe"].update(changed)
    torch.save(content, out)
    return out


def beside(model: Path) -> Path:
    """The recipe in a file of its own, for people to read."""
    return model.with_suffix(".recipe.json")


@pytest.fixture(scope="module")
def brings(bundle: Bundle, federated: Federated) -> Path:
    """The file of a model that brings a network and an inferer of its own; read only."""
    return federated(bundle, OWN) / "run" / "models" / "global.pt"


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


def test_nvflares_persistor_begins_from_the_file(trained: Path) -> None:
    pytest.importorskip("nvflare")
    from nvflare.app_opt.pt.model_persistence_format_manager import PTModelPersistenceFormatManager

    content = torch.load(trained, weights_only=True)
    manager = PTModelPersistenceFormatManager(content)
    weights = manager.to_model_learnable(exclude_vars=None)["weights"]
    assert weights.keys() == content["model"].keys()
    assert manager.to_persistence_dict()["recipe"] == content["recipe"]


def test_models_of_a_federation_carry_the_recipe_of_their_own_site(
    hospitals: Path, tmp_path: Path
) -> None:
    # Each site gets a reward, and keeps a model of its own.
    strategy = Ditto(reward=Sparsified())
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
    models = [(model.stem, model) for model in (tmp_path / "run" / "models").glob("*.pt")]
    for site in ("alder", "birch"):
        models += [(site, own) for own in (tmp_path / "run" / "sites" / site).rglob("*-own.pt")]
    names = sorted(name for name, _ in models)
    assert names == ["alder", "alder", "best", "birch", "birch", "global"]
    for name, model in models:
        recipe = recipe_of(model)
        assert list(recipe.files) == ["configs/train.json"]
        assert recipe.values["field_of_view"] == (0.9 if name == "birch" else 0.7)
        of_one_site = name in ("alder", "birch")
        assert recipe.sites == ({} if of_one_site else {"birch": own})
        if model.parent.name == "models":
            run = {"rounds": 1, "local_epochs": 1, "full_run": full_run}
            assert recipe.training == {"strategy": strategy.name, "seed": 0, **run}


# --- exports


def test_exports_carry_the_numbers_recipe_and_metadata_of_what_a_program_hands_in(
    bundle: Bundle, trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("a.ts", "a"):
        command = ["export", str(trained), "--out", str(tmp_path / name), "--json"]
        assert main(command) == 0
        # Nothing that is there is overwritten.
        capsys.readouterr()
        assert main(command) == 2
        assert name in capsys.readouterr().out
    assert recipe_of(tmp_path / "a/models/model.pt") == recipe_of(trained)
    inside = {"recipe.json": "", "inference.json": ""}
    network = torch.jit.load(tmp_path / "a.ts", _extra_files=inside)
    image, expected = bundle.prediction_of(trained)
    torch.testing.assert_close(network(image), expected)
    assert json.loads(inside["recipe.json"]) == recipe_of(trained).state_dict()
    assert json.loads(inside["inference.json"])["size"] == [32, 32]

    metadata = json.loads((tmp_path / "a" / "configs" / "metadata.json").read_text())
    image = metadata["network_data_format"]["inputs"]["image"]
    volume = bundle is PROSTATE
    # Of a volume one channel: the inferer makes channels of its slices.
    assert image["num_channels"] == len(image["channel_def"]) == (1 if volume else 3)
    assert len(image["spatial_shape"]) == (3 if volume else 2)
    inference = json.loads((tmp_path / "a" / "configs" / "inference.json").read_text())
    assert inference["size"] == [32, 32]


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
        out = tmp_path / "out"
        assert main(["export", str(model), "--out", str(out), "--bundle", str(root)]) == 2
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

    fewer = changed_copy(bundle, tmp_path, "inference", lambda config: config.pop("size"))
    refused(trained, fewer, "size")
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

    last = len(bundle.config("inference")["preprocessing"]["transforms"]) - 1
    disabled = f"preprocessing#transforms#{last}#_disabled_"
    network = {**bundle.config("inference")["network_def"], "extra": 1}
    key = "inferer#inferer#roi_size" if bundle is PROSTATE else "inferer#size"
    for changed in ({disabled: True}, {key: [16, 16]}, {"network_def": network}):
        message = refusal(bundle, INFERENCE, one_image, tmp_path, **model, **changed)
        assert f"{next(iter(changed)).partition('#')[0]} is not" in message
    key = f"validate#inferer#{key.rpartition('#')[2]}"
    message = refusal(bundle, EVALUATE, site, tmp_path, **model, **{key: [16, 16]})
    assert "validate#inferer is not" in message
    assert not list((tmp_path / "eval").glob(bundle.masks))


def test_own_values_batch_sizes_and_looks_may_differ_and_the_recipe_inside_counts(
    bundle: Bundle, one_image: Path, trained: Path, tmp_path: Path
) -> None:
    beside_it = tmp_path / "model.v1.recipe.json"
    beside_it.write_text(beside(trained).read_text().replace("32", "64"))
    model = with_recipe(trained, tmp_path / "model.v1.pt")
    given: dict[str, Any] = {"size": OTHER_SIZE, "own_values": ["size"]}
    if bundle is PROSTATE:
        given |= {"sw_batch_size": 3, "inferer#inferer#overlap": 0.5, "inferer#mirror_axes": []}
    used = infer(bundle, one_image, tmp_path, ckpt_path=str(model), **given)
    assert used["values"]["size"] == OTHER_SIZE
    assert used["recipe"]["values"]["size"] == [32, 32]
    # A new file of another model takes it away.
    save_model_file(model, state_of_file(trained))
    assert not beside_it.exists()


def test_the_interpolation_of_the_training_is_used(
    bundle: Bundle, site: Path, one_image: Path, tmp_path: Path
) -> None:
    bundle.run(TRAIN, site, tmp_path, max_epochs=1, interpolation=["nearest", "nearest-exact"])
    model = {"ckpt_path": str(tmp_path / "model.pt")}
    for names, data in ((EVALUATE, site), (INFERENCE, one_image)):
        made = bundle.without_overrides().workflow(names, data, tmp_path, **model)
        assert made.parser.get_parsed_content("interpolation") == ["nearest"]


def test_of_a_model_without_recipe_every_missing_value_is_listed(
    bundle: Bundle, site: Path, one_image: Path, trained: Path, tmp_path: Path
) -> None:
    plain = tmp_path / "plain.pt"
    torch.save(dict(state_of_file(trained)), plain)
    deciding = set(bundle.config("inference")["deciding"])
    for names, data in ((INFERENCE, one_image), (EVALUATE, site)):
        message = refusal(bundle, names, data, tmp_path, ckpt_path=str(plain), size=[32, 32])
        assert {key for key in deciding if f"--{key} " in message} == deciding - {"size"}
    infer(bundle, one_image, tmp_path, ckpt_path=str(plain), **recipe_of(trained).values)


def test_a_recipe_of_another_bundle_or_with_other_keys_is_refused(
    bundle: Bundle, one_image: Path, trained: Path, tmp_path: Path
) -> None:
    values = recipe_of(trained).values
    newer = with_recipe(trained, tmp_path / "newer.pt", values={**values, "flip": True})
    assert "flip" in refusal(bundle, INFERENCE, one_image, tmp_path, ckpt_path=str(newer))
    fewer = {key: value for key, value in values.items() if key != "size"}
    older = with_recipe(trained, tmp_path / "older.pt", values=fewer)
    assert "size" in refusal(bundle, INFERENCE, one_image, tmp_path, ckpt_path=str(older))
    spleen = with_recipe(trained, tmp_path / "o.pt", bundle="Spleen", values={"spacing": 1.0})
    assert "Spleen" in refusal(bundle, INFERENCE, one_image, tmp_path, ckpt_path=str(spleen))

    other = next(each for each in BUNDLES if each is not bundle)
    for root, word in ((other.root, "bundle"), (tmp_path / "elsewhere", "--bundle_root")):
        given = {"ckpt_path": str(trained), "bundle_root": str(root)}
        assert word in refusal(bundle, INFERENCE, one_image, tmp_path, **given)


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
    assert "size" in refusal(bundle, INFERENCE, one_image, tmp_path, **given)


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


# --- damaged recipes, and values that no file could hold


ACTING = [
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
]
"""A part that would do more than compute, and the word that names it."""


@pytest.mark.parametrize(
    ("changed", "word"),
    [
        *(
            ({"parts": {"validate#inferer": {"content": part, "values": []}}}, word)
            for part, word in ACTING
        ),
        ({"values": None}, "values"),
        ({"values": [1, 2]}, "values"),
        ({"values": {"field_of_view": "$print('here') or 0.7"}}, "code"),
        ({"values": {"channels": [4, "@optimizer"]}}, "code"),
        ({"sites": "x"}, "sites"),
        ({"sites": {"HK": 3}}, "sites"),
        ({"sites": {"HK": {"norm": {"_target_": "os.getcwd"}}}}, "code"),
        ({"sections": ["network_def"]}, "sections"),
        ({"bundle": 3}, "bundle"),
        ({"training": {"seed": "%/etc/hostname"}}, "code"),
        ({"parts": {"network_def": {"content": 3}}}, "network_def"),
    ],
)
def test_a_recipe_that_is_damaged_or_would_act_is_refused_by_the_files_name(
    changed: dict[str, Any], word: str, tmp_path: Path
) -> None:
    save_model_file(tmp_path / "plain.pt", {}, ModelRecipe("Prostate", "0.1.0", {}))
    model = with_recipe(tmp_path / "plain.pt", tmp_path / "model.v1.pt", **changed)
    with pytest.raises(ConfigError, match=rf"model\.v1\.pt.*{re.escape(word)}"):
        read_recipe(model)


def test_files_that_are_no_models_are_refused_in_one_short_line(tmp_path: Path) -> None:
    torch.save(nn.Linear(1, 1), tmp_path / "whole.pt")
    torch.save({"model": {}, "recipe": 5}, tmp_path / "number.pt")
    for name in ("whole.pt", "number.pt"):
        with pytest.raises(ConfigError, match=name) as refused:
            read_recipe(tmp_path / name)
        assert "\n" not in str(refused.value)
        assert len(str(refused.value)) < 300


def test_a_value_that_is_no_json_is_refused_by_its_key(tmp_path: Path) -> None:
    endless: list[Any] = []
    endless.append(endless)
    for value in (endless, (0.0, math.inf), {"low": [0, {"at": math.nan}]}):
        with pytest.raises(ConfigError, match="window"):
            training_recipe(tmp_path, {"size": [32, 32], "window": value})
    assert training_recipe(tmp_path, {"window": (None, 1.0)}).values == {"window": [None, 1.0]}


@pytest.mark.parametrize(("content", "place"), [('{"a": 1,\n "b" 2}', "line 2"), ("[1]", "object")])
def test_damaged_metadata_are_refused_by_file_and_place(
    content: str, place: str, tmp_path: Path
) -> None:
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs" / "metadata.json").write_text(content)
    with pytest.raises(ConfigError, match=f"metadata.json.*{place}"):
        training_recipe(tmp_path, {})


def test_a_version_of_the_bundle_that_prepared_images_otherwise_is_named(tmp_path: Path) -> None:
    sections = {"train#deterministic_transforms": "0" * 64}
    recipe = ModelRecipe("Prostate MRI segmentation", "0.0.9", {}, sections=sections)
    save_model_file(tmp_path / "m.pt", {}, recipe)
    with pytest.raises(ConfigError, match="0.0.9"):
        ModelValues(tmp_path / "m.pt", PROSTATE.root).require({})


def test_only_the_files_of_the_running_configuration_are_recorded() -> None:
    """As where a run of MONAI trains another bundle within."""
    workflow = SimpleNamespace(parser=ConfigParser({}))
    config_file = str(PROSTATE.configs / "train.json")  # noqa: F841 (looked for among the callers)

    def files_of(self: Any) -> list[str]:
        return list(training_recipe(PROSTATE.root, {}).files)

    assert files_of(workflow) == ["configs/train.json"]
    assert files_of(SimpleNamespace(parser=ConfigParser({}))) == []
