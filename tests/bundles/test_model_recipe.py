# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""A model knows how it was trained.

A user who forgets an argument gets the evaluation's numbers, or an error.
"""

from __future__ import annotations

import csv
import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np
import pytest
import torch
from helpers import warm_python
from helpers.shipped_bundles import BUNDLES, EVALUATE, INFERENCE, TRAIN, Bundle
from monai.fl.client import MonaiAlgo
from monai.handlers import CheckpointLoader
from PIL import Image

from monai_fairfl.bundle.federation import BundleFederation
from monai_fairfl.bundle.initial import bundle_recipe, warn_of_other_training
from monai_fairfl.cli import main
from monai_fairfl.data import SITES, write_sites
from monai_fairfl.errors import ConfigError
from monai_fairfl.model_files.recipe import read_recipe, recipe_file, save_model_file
from monai_fairfl.strategies import CGSV, Ditto
from monai_fairfl.utils.files import read_state_dict
from monai_fairfl.workflow.export import ONNX_KEY, export_model

OTHER_SIZE = {"prostate_mri_segmentation": [48, 48], "fundus_disc_cup_segmentation": [48, 48]}


@pytest.fixture(scope="module")
def site(bundle: Bundle, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A generated site whose cases carry all labels; read only."""
    root = tmp_path_factory.mktemp("sites")
    bundle.write(root)
    return sorted(path for path in root.iterdir() if path.is_dir() and path.name != bundle.partial)[
        0
    ]


@pytest.fixture(scope="module")
def trained(bundle: Bundle, site: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that has learnt enough for masks that are neither empty nor full."""
    folder = tmp_path_factory.mktemp("trained")
    longer = {"max_epochs": 60, "learning_rate": 0.01, "val_interval": 0, "augmentation": []}
    epoch = (
        {"slices_per_volume": 8}
        if bundle.name.startswith("prostate")
        else {"photographs_per_epoch": 2}
    )
    bundle.run(TRAIN, site, folder, **longer, **epoch)
    return folder / "model.pt"


def arguments_forgotten(
    bundle: Bundle, names: tuple[str, ...], data: Path, out: Path, **given: Any
) -> None:
    """Run a workflow with nothing but its folders and its model."""
    forgotten = Bundle(
        bundle.name, bundle.write, {}, (), bundle.images, bundle.masks, bundle.metrics
    )
    forgotten.run(names, data, out, **given)


def evaluated(out: Path) -> dict[str, float]:
    """Case -> Dice of its outermost structure, as the evaluation wrote it."""
    found = {}
    with open(out / "eval" / "val_mean_dice_raw.csv") as file:
        for row in csv.DictReader(file):
            found[Path(row["filename"]).name.partition(".")[0]] = float(row["class0"])
    return found


def mask_of(path: Path) -> np.ndarray:
    """The outermost structure of a mask."""
    if path.suffix == ".png":
        with Image.open(path) as picture:
            levels = np.asarray(picture.convert("L"))
        return levels > 0
    return np.asarray(nib.Nifti1Image.from_filename(str(path)).dataobj) > 0


def dice(one: np.ndarray, other: np.ndarray) -> float:
    return float(2 * (one & other).sum() / (one.sum() + other.sum()))


def label_of(site: Path, case: str) -> Path:
    found = [
        path for path in site.rglob(f"{case}*") if "mask" in path.parent.name or "_seg" in path.name
    ]
    return found[0]


def from_masks(bundle: Bundle, site: Path, out: Path, cases: list[str]) -> dict[str, float]:
    """Case -> Dice of the outermost structure, from the mask that inference wrote and the untouched
    label.
    """
    found = {}
    for case in cases:
        mask = next((out / "eval").glob(f"{case}{bundle.masks}"))
        found[case] = dice(mask_of(mask), mask_of(label_of(site, case)))
    return found


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["plain", "torchscript"])
def test_inference_without_arguments_gives_the_evaluations_dice(
    bundle: Bundle, site: Path, trained: Path, kind: str, tmp_path: Path
) -> None:
    model = trained
    if kind == "torchscript":
        model = tmp_path / "model.ts"
        export_model(trained, model, bundle.root)
    evaluation = tmp_path / "evaluation"
    datalist = {"datalist_file": str(trained.parent / "datalist.json")}
    arguments_forgotten(bundle, EVALUATE, site, evaluation, ckpt_path=str(trained), **datalist)
    expected = evaluated(evaluation)
    assert expected and all(score > 0.05 for score in expected.values())
    arguments_forgotten(bundle, INFERENCE, site / bundle.images, tmp_path, ckpt_path=str(model))
    assert from_masks(bundle, site, tmp_path, list(expected)) == pytest.approx(expected, abs=1e-3)
    used = json.loads((tmp_path / "eval" / "model.json").read_text())
    assert used["recipe"]["values"]["size"] == [32, 32] and used["settings"]["inferer"]


@pytest.mark.slow
def test_dicom_without_arguments_gives_the_evaluations_dice(
    bundle: Bundle, site: Path, trained: Path, tmp_path: Path
) -> None:
    if not bundle.name.startswith("prostate"):
        pytest.skip("photographs are no DICOM series here")
    pytest.importorskip("highdicom")
    from helpers.dicom_series import write_series

    datalist = {"datalist_file": str(trained.parent / "datalist.json")}
    arguments_forgotten(
        bundle, EVALUATE, site, tmp_path / "evaluation", ckpt_path=str(trained), **datalist
    )
    expected = evaluated(tmp_path / "evaluation")
    found = {}
    for case in expected:
        image = nib.Nifti1Image.from_filename(str(site / f"{case}.nii.gz"))
        label = np.asarray(nib.Nifti1Image.from_filename(str(label_of(site, case))).dataobj) > 0
        voxels = np.asarray(image.dataobj, dtype=np.float32)
        stored = np.round(voxels * (30000 / voxels.max())).astype(np.int16)
        # the axes of a stored NIfTI that runs to the left, to the back and upwards are columns,
        # rows and slices
        assert nib.aff2axcodes(image.affine) == ("L", "P", "S")
        spacing = tuple(float(side) for side in image.header.get_zooms()[:3])
        folder = tmp_path / "series" / case
        write_series(
            folder, stored.transpose(2, 1, 0), spacing=(spacing[1], spacing[0]), step=spacing[2]
        )
        arguments_forgotten(bundle, INFERENCE, folder.parent, tmp_path, ckpt_path=str(trained))
        found[case] = dice(mask_of(tmp_path / "eval" / f"{case}_pred.nii.gz"), label)
    assert found == pytest.approx(expected, abs=0.01)


def test_a_value_that_differs_from_the_training_is_an_error_that_names_both(
    bundle: Bundle, site: Path, trained: Path, tmp_path: Path
) -> None:
    given = {"ckpt_path": str(trained), "size": OTHER_SIZE[bundle.name]}
    for names, data in ((INFERENCE, site / bundle.images), (EVALUATE, site)):
        with pytest.raises(RuntimeError) as wrong:
            arguments_forgotten(bundle, names, data, tmp_path, **given)
        error = wrong.value.__cause__
        assert isinstance(error, ConfigError)
        assert "size is [48, 48] here, and model.pt was trained with [32, 32]" in str(error)
    assert not list((tmp_path / "eval").glob(bundle.masks))
    batches = {"sw_batch_size": 3} if "sw_batch_size" in bundle.config("inference") else {}
    own = {"own_values": ["size"], **batches}
    arguments_forgotten(bundle, INFERENCE, site / bundle.images, tmp_path, **given, **own)
    assert list((tmp_path / "eval").glob(bundle.masks))


def test_for_a_model_without_recipe_every_missing_value_is_listed(
    bundle: Bundle, site: Path, trained: Path, tmp_path: Path
) -> None:
    plain = tmp_path / "plain.pt"
    torch.save(read_state_dict(trained), plain)
    deciding = bundle.config("inference")["deciding"]
    for names, data in ((INFERENCE, site / bundle.images), (EVALUATE, site)):
        with pytest.raises(RuntimeError) as wrong:
            arguments_forgotten(bundle, names, data, tmp_path, ckpt_path=str(plain), size=[32, 32])
        message = str(wrong.value.__cause__)
        assert "plain.pt does not record how it was trained" in message
        for key in set(deciding) - {"size"}:
            assert f"--{key} " in message, key
        assert "--size" not in message
    recipe = read_recipe(trained)
    assert recipe is not None
    given = {"ckpt_path": str(plain), **recipe.values}
    arguments_forgotten(bundle, INFERENCE, site / bundle.images, tmp_path, **given)
    assert list((tmp_path / "eval").glob(bundle.masks))


def test_another_network_or_bundle_than_the_models_is_refused(
    bundle: Bundle, site: Path, trained: Path, tmp_path: Path
) -> None:
    network = {**bundle.config("inference")["network_def"], "act": "RELU"}
    with pytest.raises(RuntimeError) as wrong:
        arguments_forgotten(
            bundle,
            INFERENCE,
            site / bundle.images,
            tmp_path,
            ckpt_path=str(trained),
            network_def=network,
        )
    assert "network_def of this configuration is not what model.pt was trained with" in str(
        wrong.value.__cause__
    )
    other = next(each for each in BUNDLES if each.name != bundle.name)
    with pytest.raises(RuntimeError) as wrong:
        arguments_forgotten(
            bundle,
            INFERENCE,
            site / bundle.images,
            tmp_path,
            ckpt_path=str(trained),
            bundle_root=str(other.root),
        )
    assert "is a model of the bundle" in str(wrong.value.__cause__)


def test_everybody_else_still_reads_the_file(bundle: Bundle, trained: Path) -> None:
    recipe = read_recipe(trained)
    assert recipe is not None and recipe.bundle == bundle.config("metadata")["name"]
    assert recipe.values["size"] == [32, 32] and set(recipe.values) == set(
        bundle.config("train")["deciding"]
    )
    assert json.loads(recipe_file(trained).read_text()) == recipe.state_dict()
    network = bundle.workflow(
        TRAIN, trained.parent, trained.parent / "again"
    ).parser.get_parsed_content("network_def")
    state = torch.load(trained, weights_only=True)["model"]  # the line that the guide gives
    assert state.keys() == network.state_dict().keys()

    from ignite.engine import Engine

    loader = CheckpointLoader(
        load_path=str(trained), load_dict={"model": network}
    )  # as the bundles call it
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


def test_exports_carry_the_recipe(
    bundle: Bundle, trained: Path, tmp_path: Path, capsys: Any
) -> None:
    command = [
        "export-model",
        str(trained),
        "--bundle",
        str(bundle.root),
        "--out",
        str(tmp_path / "a.ts"),
        "--json",
    ]
    assert main(command) == 0
    recipe = read_recipe(trained)
    assert read_recipe(tmp_path / "a.ts") == recipe
    capsys.readouterr()
    assert main(command) == 2 and "is there already" in capsys.readouterr().out
    plain = tmp_path / "plain.pt"
    torch.save(read_state_dict(trained), plain)
    with pytest.raises(ConfigError, match="plain.pt has no recipe"):
        export_model(plain, tmp_path / "b.ts", bundle.root)
    assert not (tmp_path / "b.ts").exists()


def test_a_network_that_the_training_changed_is_not_exported_as_the_bundles_own(
    bundle: Bundle, site: Path, tmp_path: Path
) -> None:
    leaky = {"network_def#act": ["LEAKYRELU", {"negative_slope": 0.3}]}
    bundle.run(TRAIN, site, tmp_path / "leaky", max_epochs=1, **leaky)
    changed = tmp_path / "changed"
    shutil.copytree(bundle.root, changed)
    file = changed / "configs" / "inference.json"
    config = json.loads(file.read_text())
    config["network_def"]["act"] = "RELU"  # its weights have the same names
    file.write_text(json.dumps(config))
    with pytest.raises(ConfigError, match="model.pt was trained with another network_def"):
        export_model(tmp_path / "leaky" / "model.pt", tmp_path / "a.ts", changed)
    assert not (tmp_path / "a.ts").exists()


def test_a_torchscript_file_whose_recipe_is_damaged_is_refused_by_its_name(tmp_path: Path) -> None:
    file = tmp_path / "damaged.ts"
    torch.jit.save(
        torch.jit.script(torch.nn.Linear(1, 1)), str(file), _extra_files={"recipe.json": "[1"}
    )
    with pytest.raises(ConfigError, match="damaged.ts holds a recipe that cannot be read"):
        read_recipe(file)


def test_a_jobs_recipe_that_is_damaged_is_refused_by_its_name(tmp_path: Path) -> None:
    from monai_fairfl.transports.flare.initial_files import read_initial_recipe

    (tmp_path / "recipe.json").write_text("[1]")
    with pytest.raises(
        ConfigError, match="recipe.json holds a recipe that cannot be read: it is a list"
    ):
        read_initial_recipe(tmp_path)


@pytest.mark.slow
def test_onnx_gives_the_networks_numbers_and_carries_the_recipe(
    bundle: Bundle, trained: Path, tmp_path: Path
) -> None:
    onnx = pytest.importorskip("onnx")
    pytest.importorskip("onnxscript")
    from onnx.reference import ReferenceEvaluator

    recipe = export_model(trained, tmp_path / "model.onnx", bundle.root)
    model = onnx.load(str(tmp_path / "model.onnx"))
    metadata = {entry.key: entry.value for entry in model.metadata_props}
    assert json.loads(metadata[ONNX_KEY]) == recipe.state_dict()
    export_model(trained, tmp_path / "model.ts", bundle.root)
    image = torch.rand(3, bundle.config("inference")["network_def"]["in_channels"], 32, 32)
    with torch.no_grad():
        expected = torch.jit.load(str(tmp_path / "model.ts"))(image)
    found = ReferenceEvaluator(model).run(None, {"image": image.numpy()})[0]
    torch.testing.assert_close(torch.as_tensor(found), expected, atol=1e-4, rtol=1e-4)


# --- every other way to give a model other images than its training did


def refusal(bundle: Bundle, names: tuple[str, ...], data: Path, out: Path, **given: Any) -> str:
    """What a run is refused with."""
    with pytest.raises(RuntimeError) as wrong:
        arguments_forgotten(bundle, names, data, out, **given)
    error = wrong.value.__cause__
    assert isinstance(error, ConfigError), error
    return str(error)


def with_recipe(trained: Path, out: Path, **changed: Any) -> Path:
    """A copy of the model whose recipe has other fields; ``None`` removes one."""
    content = torch.load(trained, weights_only=True)
    for name, value in changed.items():
        content["recipe"][name] = value
        if value is None:
            del content["recipe"][name]
    torch.save(content, out)
    return out


def test_a_section_that_is_changed_by_hand_is_an_error_that_names_both(
    bundle: Bundle, site: Path, trained: Path, tmp_path: Path
) -> None:
    ckpt_path = str(trained)
    last = len(bundle.config("inference")["preprocessing"]["transforms"]) - 1
    key = f"preprocessing#transforms#{last}#_disabled_"
    images = site / bundle.images
    message = refusal(bundle, INFERENCE, images, tmp_path, ckpt_path=ckpt_path, **{key: True})
    assert f"{key} is True here, and absent in configs/inference.json" in message
    size = {"roi_size": [16, 16]} if bundle.name.startswith("prostate") else {"size": [16, 16]}
    name, value = next(iter(size.items()))
    message = refusal(
        bundle, INFERENCE, images, tmp_path, ckpt_path=ckpt_path, **{f"inferer#{name}": value}
    )
    assert f"inferer#{name} is a list of 2 here, and '@size'" in message
    message = refusal(
        bundle, EVALUATE, site, tmp_path, ckpt_path=ckpt_path, **{f"validate#inferer#{name}": value}
    )
    assert f"validate#inferer#{name} is a list of 2 here" in message
    assert not list((tmp_path / "eval").glob(bundle.masks))
    own = {"own_values": ["validate#inferer"], f"validate#inferer#{name}": value}
    arguments_forgotten(bundle, EVALUATE, site, tmp_path, ckpt_path=ckpt_path, **own)
    used = json.loads((tmp_path / "eval" / "model.json").read_text())
    assert used["by_hand"] == {f"validate#inferer#{name}": {"here": [16, 16], "bundle": "@size"}}


def test_the_interpolation_of_the_training_is_used_and_another_is_refused(
    bundle: Bundle, site: Path, trained: Path, tmp_path: Path
) -> None:
    message = refusal(
        bundle, EVALUATE, site, tmp_path, ckpt_path=str(trained), interpolation=["nearest"]
    )
    assert "image_interpolation is 'nearest' here, and model.pt was trained with" in message
    bundle.run(TRAIN, site, tmp_path, max_epochs=1, interpolation=["nearest", "nearest-exact"])
    recipe = read_recipe(tmp_path / "model.pt")
    assert recipe is not None and recipe.values["image_interpolation"] == "nearest"
    model = {"ckpt_path": str(tmp_path / "model.pt")}
    evaluation = bundle.workflow(EVALUATE, site, tmp_path, **model)
    assert evaluation.parser.get_parsed_content("interpolation") == ["nearest"]
    inference = Bundle(
        bundle.name, bundle.write, {}, (), bundle.images, bundle.masks, bundle.metrics
    )
    parser = inference.workflow(INFERENCE, site / bundle.images, tmp_path, **model).parser
    assert parser.get_parsed_content("interpolation") == ["nearest"]


def test_overlap_and_mirrored_looks_may_differ_and_are_recorded(
    site: Path, bundle: Bundle, trained: Path, tmp_path: Path
) -> None:
    if not bundle.name.startswith("prostate"):
        pytest.skip("photographs are not cut into windows")
    given = {"inferer#overlap": 0.5, "inferer#_target_": "SliceInferer"}
    arguments_forgotten(bundle, INFERENCE, site, tmp_path, ckpt_path=str(trained), **given)
    used = json.loads((tmp_path / "eval" / "model.json").read_text())
    assert used["by_hand"]["inferer#overlap"]["here"] == 0.5
    assert used["by_hand"]["inferer#_target_"]["here"] == "SliceInferer"


def test_the_values_that_a_hospital_gives_by_hand_are_recorded(
    bundle: Bundle, site: Path, trained: Path, tmp_path: Path
) -> None:
    given = {"ckpt_path": str(trained), "size": [48, 48], "own_values": ["size"]}
    arguments_forgotten(bundle, INFERENCE, site / bundle.images, tmp_path, **given)
    used = json.loads((tmp_path / "eval" / "model.json").read_text())
    assert used["values"]["size"] == [48, 48] and used["recipe"]["values"]["size"] == [32, 32]


def test_a_value_of_the_recipe_that_the_configuration_does_not_know_is_refused(
    bundle: Bundle, site: Path, trained: Path, tmp_path: Path
) -> None:
    recipe = read_recipe(trained)
    assert recipe is not None
    images = site / bundle.images
    newer = with_recipe(trained, tmp_path / "newer.pt", values={**recipe.values, "flip": True})
    message = refusal(bundle, INFERENCE, images, tmp_path, ckpt_path=str(newer))
    assert "newer.pt was trained with flip True, which this configuration does not know" in message
    message = refusal(
        bundle, INFERENCE, images, tmp_path, ckpt_path=str(trained), deciding={}, size=[48, 48]
    )
    assert "which this configuration does not know" in message
    fewer = {key: value for key, value in recipe.values.items() if key != "size"}
    older = with_recipe(trained, tmp_path / "older.pt", values=fewer)
    message = refusal(bundle, INFERENCE, images, tmp_path, ckpt_path=str(older))
    assert "older.pt does not give size" in message and "it has no recipe" not in message


def test_the_other_bundles_model_is_named_as_such(
    bundle: Bundle, site: Path, trained: Path, tmp_path: Path
) -> None:
    other = with_recipe(trained, tmp_path / "other.pt", bundle="Spleen", values={"spacing": 1.0})
    message = refusal(bundle, INFERENCE, site / bundle.images, tmp_path, ckpt_path=str(other))
    assert "other.pt is a model of the bundle 'Spleen'" in message


def test_a_wrong_bundle_root_does_not_switch_the_checks_off(
    bundle: Bundle, site: Path, trained: Path, tmp_path: Path
) -> None:
    given = {"ckpt_path": str(trained), "bundle_root": str(tmp_path / "elsewhere")}
    message = refusal(bundle, INFERENCE, site / bundle.images, tmp_path, **given)
    assert "has no configs/inference.json: name the bundle with --bundle_root" in message


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"values": None}, "it lacks values"),
        ({"values": [1, 2]}, "its values is"),
        ({"sites": "x"}, "its sites is"),
        ({"sites": {"HK": 3}}, "site HK has 3"),
        ({"sections": ["network_def"]}, "its sections is"),
        ({"bundle": 3}, "its bundle is 3"),
    ],
)
def test_a_damaged_recipe_is_refused_by_the_files_name(
    trained: Path, tmp_path: Path, changed: dict[str, Any], reason: str
) -> None:
    model = with_recipe(trained, tmp_path / "model.v1.pt", **changed)
    with pytest.raises(
        ConfigError, match=f"model.v1.pt holds a recipe that cannot be read: {reason}"
    ):
        read_recipe(model)


def test_a_recipe_of_a_newer_version_is_used_and_what_it_has_more_is_reported(
    trained: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = with_recipe(trained, tmp_path / "newer.pt", package="monai_fairfl 9.0", spacing="1 mm")
    assert read_recipe(model) is not None
    assert "newer.pt has spacing, which this version does not know" in caplog.text


def test_a_file_of_pickled_objects_is_refused_in_one_short_line(tmp_path: Path) -> None:
    torch.save(torch.nn.Linear(1, 1), tmp_path / "whole.pt")
    with pytest.raises(ConfigError) as wrong:
        read_recipe(tmp_path / "whole.pt")
    assert "save its state_dict" in str(wrong.value) and len(str(wrong.value).splitlines()) == 1
    assert len(str(wrong.value)) < 300


def test_the_recipe_inside_counts_and_another_beside_it_is_reported(
    bundle: Bundle, site: Path, trained: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = with_recipe(trained, tmp_path / "model.pt")
    recipe_file(model).write_text(recipe_file(trained).read_text().replace("32", "48"))
    arguments_forgotten(bundle, INFERENCE, site / bundle.images, tmp_path, ckpt_path=str(model))
    assert "model.recipe.json is not the recipe inside model.pt, which is used" in caplog.text
    save_model_file(model, read_state_dict(trained))
    assert not recipe_file(model).exists()


def test_two_models_whose_names_have_dots_have_two_recipe_files() -> None:
    assert recipe_file("HK.v1") != recipe_file("HK.v2")
    assert recipe_file("HK.v1.pt").name == "HK.v1.recipe.json"


def test_evaluation_runs_torchscript_as_it_runs_the_plain_model(
    bundle: Bundle, site: Path, trained: Path, tmp_path: Path
) -> None:
    export_model(trained, tmp_path / "model.ts", bundle.root)
    scores = []
    for model in (trained, tmp_path / "model.ts"):
        datalist = {"datalist_file": str(trained.parent / "datalist.json")}
        arguments_forgotten(bundle, EVALUATE, site, tmp_path, ckpt_path=str(model), **datalist)
        scores.append(evaluated(tmp_path))
    assert scores[0] == pytest.approx(scores[1], abs=1e-6)


@pytest.mark.slow
def test_the_command_that_trains_a_bundle_records_its_files(
    bundle: Bundle, site: Path, tmp_path: Path
) -> None:
    small = []
    for key, value in {**bundle.small, "max_epochs": 1}.items():
        small += [f"--{key}", str(value)]
    root = str(bundle.root)
    folders = [
        "--bundle_root",
        root,
        "--dataset_dir",
        str(site),
        "--ckpt_dir",
        str(tmp_path),
        "--device",
        "cpu",
    ]
    files = str(bundle.files("train", "corrupted_images"))
    command = [
        "-m",
        "monai.bundle",
        "run",
        "--config_file",
        files,
        *folders,
        *small,
    ]
    done = warm_python.run(command, tmp_path)
    assert done.returncode == 0, done.stderr[-2000:]
    recipe = read_recipe(tmp_path / "model.pt")
    assert recipe is not None
    assert list(recipe.files) == ["configs/train.json", "configs/corrupted_images.json"]
    digest = hashlib.sha256((bundle.configs / "train.json").read_bytes()).hexdigest()
    assert recipe.files["configs/train.json"] == digest
    assert "train#deterministic_transforms" in recipe.sections


def test_monais_own_client_is_warned_where_its_evaluation_is_given_no_values(
    bundle: Bundle, site: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    kwargs = {
        "dataset_dir": str(site),
        "ckpt_dir": str(tmp_path),
        "output_dir": str(tmp_path / "eval"),
    }
    kwargs["device"] = "cpu"
    client = MonaiAlgo(str(bundle.root), config_train_filename=None, eval_kwargs=kwargs)
    client.initialize()
    assert caplog.text.count("this evaluation has no model file") == 1


# --- the models of a federation


def test_a_federation_that_begins_from_a_model_of_other_values_reports_them(
    trained: Path, bundle: Bundle, caplog: pytest.LogCaptureFixture
) -> None:
    same = bundle_recipe(bundle.root, bundle.small)
    warn_of_other_training(trained, same)
    assert not caplog.text
    warn_of_other_training(trained, bundle_recipe(bundle.root, {**bundle.small, "size": [48, 48]}))
    assert (
        "model.pt was trained with size [32, 32], and this federation trains with [48, 48]"
        in caplog.text
    )


@pytest.fixture(scope="module")
def hospitals(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("hospitals")
    write_sites(root, sites=SITES[:2], size=(48, 48, 8), cases=4)
    return root


@pytest.mark.slow
@pytest.mark.parametrize("strategy", [CGSV(), Ditto()], ids=["rewards", "personal"])
def test_every_model_of_a_federation_carries_its_recipe(
    strategy: Any, hospitals: Path, tmp_path: Path
) -> None:
    prostate = BUNDLES[0]
    first, second = sorted(path.name for path in hospitals.iterdir() if path.is_dir())
    BundleFederation(
        str(prostate.root),
        str(hospitals),
        strategy,
        rounds=1,
        run_dir=str(tmp_path / "run"),
        overrides=prostate.small,
        sites={second: {"field_of_view": 0.9}},
        report=False,
    ).run()
    models = sorted((tmp_path / "run" / "models").glob("*.pt"))
    names = {model.stem for model in models}
    assert names == (
        {"best", "global", first, second}
        if strategy.name.startswith("CGSV")
        else {"best", "global"}
    )
    for model in models:
        recipe = read_recipe(model)
        assert recipe is not None and recipe.values["size"] == [32, 32]
        assert list(recipe.files) == ["configs/train.json"]
        expected = 0.9 if model.stem == second else 0.7
        assert recipe.values["field_of_view"] == expected
        assert recipe.sites == (
            {} if model.stem in (first, second) else {second: {"field_of_view": 0.9}}
        )
    for own in (tmp_path / "run" / "sites").rglob("*-own.pt"):
        recipe = read_recipe(own)
        assert recipe is not None
        assert recipe.values["field_of_view"] == (0.9 if second in own.parts else 0.7)
        assert list(recipe.files) == ["configs/train.json"]
    assert len(list((tmp_path / "run" / "sites").rglob("*-own.pt"))) == (
        2 if strategy.personal else 0
    )


@pytest.mark.slow
def test_a_clients_own_model_needs_no_arguments_either(bundle: Bundle, tmp_path: Path) -> None:
    bundle.write(tmp_path / "sites")
    epoch = (
        {"slices_per_volume": 8}
        if bundle.name.startswith("prostate")
        else {"photographs_per_epoch": 2}
    )
    BundleFederation(
        str(bundle.root),
        str(tmp_path / "sites"),
        Ditto(),
        rounds=2,
        local_epochs=30,
        run_dir=str(tmp_path / "run"),
        overrides={**bundle.small, "learning_rate": 0.01, "augmentation": [], **epoch},
        report=False,
    ).run()
    folders = [
        path
        for path in (tmp_path / "sites").iterdir()
        if path.is_dir() and path.name != bundle.partial
    ]
    site = sorted(folders)[0]
    own = next((tmp_path / "run" / "sites" / site.name).rglob("*-own.pt"))
    datalist = {"datalist_file": str(tmp_path / "run" / "datalists" / f"{site.name}.json")}
    arguments_forgotten(
        bundle, EVALUATE, site, tmp_path / "evaluation", ckpt_path=str(own), **datalist
    )
    expected = evaluated(tmp_path / "evaluation")
    measured = next((tmp_path / "run" / "sites" / site.name).rglob("*-personal_test_score-2-*.csv"))
    recorded = {}
    for row in csv.DictReader(measured.open()):
        recorded[row["case"].partition(".")[0]] = float(row.get("disc", row["dice"]))
    assert expected and all(score > 0.05 for score in expected.values())
    assert expected == pytest.approx(recorded, abs=1e-4)
    arguments_forgotten(bundle, INFERENCE, site / bundle.images, tmp_path, ckpt_path=str(own))
    assert from_masks(bundle, site, tmp_path, list(expected)) == pytest.approx(expected, abs=1e-3)
