# Copyright (c) MONAI FairFL contributors
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#     http://www.apache.org/licenses/LICENSE-2.0
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS,
# WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
# See the License for the specific language governing permissions and
# limitations under the License.
"""A model knows how it was trained: whoever forgets an argument gets the evaluation's numbers, or an error."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np
import pytest
import torch
from monai.handlers import CheckpointLoader
from PIL import Image
from shipped_bundles import BUNDLES, EVALUATE, INFERENCE, TRAIN, Bundle

from monai_fairfl.cli import main
from monai_fairfl.data import SITES, write_sites
from monai_fairfl.errors import ConfigError
from monai_fairfl.federate import BundleFederation
from monai_fairfl.files import read_state_dict
from monai_fairfl.model_recipe import read_recipe, recipe_file
from monai_fairfl.strategies import CGSV, Ditto
from monai_fairfl.workflow.export import ONNX_KEY, export_model

OTHER_SIZE = {"prostate_mri_segmentation": [48, 48], "fundus_disc_cup_segmentation": [48, 48]}


@pytest.fixture(scope="module", params=BUNDLES, ids=lambda bundle: bundle.name.partition("_")[0])
def bundle(request: pytest.FixtureRequest) -> Bundle:
    torch.set_num_threads(1)
    made: Bundle = request.param
    return made


@pytest.fixture(scope="module")
def site(bundle: Bundle, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A generated site whose cases carry all labels; read only."""
    root = tmp_path_factory.mktemp("sites")
    bundle.write(root)
    return sorted(path for path in root.iterdir() if path.is_dir() and path.name != bundle.partial)[0]


@pytest.fixture(scope="module")
def trained(bundle: Bundle, site: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that has learnt enough for masks that are neither empty nor full."""
    folder = tmp_path_factory.mktemp("trained")
    longer = {"max_epochs": 60, "learning_rate": 0.01, "val_interval": 0, "augmentation": []}
    epoch = {"slices_per_volume": 8} if bundle.name.startswith("prostate") else {"photographs_per_epoch": 2}
    bundle.run(TRAIN, site, folder, **longer, **epoch)
    return folder / "model.pt"


def arguments_forgotten(bundle: Bundle, names: tuple[str, ...], data: Path, out: Path, **given: Any) -> None:
    """Run a workflow with nothing but its folders and its model."""
    forgotten = Bundle(bundle.name, bundle.write, {}, (), bundle.images, bundle.masks, bundle.metrics)
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
    found = [path for path in site.rglob(f"{case}*") if "mask" in path.parent.name or "_seg" in path.name]
    return found[0]


def from_masks(bundle: Bundle, site: Path, out: Path, cases: list[str]) -> dict[str, float]:
    """Case -> Dice of the outermost structure, from the mask that inference wrote and the untouched label."""
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
    from workflow.dicom_series import write_series

    datalist = {"datalist_file": str(trained.parent / "datalist.json")}
    arguments_forgotten(bundle, EVALUATE, site, tmp_path / "evaluation", ckpt_path=str(trained), **datalist)
    expected = evaluated(tmp_path / "evaluation")
    found = {}
    for case in expected:
        image = nib.Nifti1Image.from_filename(str(site / f"{case}.nii.gz"))
        label = np.asarray(nib.Nifti1Image.from_filename(str(label_of(site, case))).dataobj) > 0
        voxels = np.asarray(image.dataobj, dtype=np.float32)
        stored = np.round(voxels * (30000 / voxels.max())).astype(np.int16)
        # the axes of a stored NIfTI that runs to the left, to the back and upwards are columns, rows and slices
        assert nib.aff2axcodes(image.affine) == ("L", "P", "S")
        spacing = tuple(float(side) for side in image.header.get_zooms()[:3])
        folder = tmp_path / "series" / case
        write_series(folder, stored.transpose(2, 1, 0), spacing=(spacing[1], spacing[0]), step=spacing[2])
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
        assert "plain.pt does not say how it was trained" in message
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
            bundle, INFERENCE, site / bundle.images, tmp_path, ckpt_path=str(trained), network_def=network
        )
    assert "network_def of this configuration is not what model.pt was trained with" in str(wrong.value.__cause__)
    other = next(each for each in BUNDLES if each.name != bundle.name)
    with pytest.raises(RuntimeError) as wrong:
        arguments_forgotten(
            bundle, INFERENCE, site / bundle.images, tmp_path, ckpt_path=str(trained), bundle_root=str(other.root)
        )
    assert "is a model of the bundle" in str(wrong.value.__cause__)


def test_everybody_else_still_reads_the_file(bundle: Bundle, trained: Path) -> None:
    recipe = read_recipe(trained)
    assert recipe is not None and recipe.bundle == bundle.config("metadata")["name"]
    assert recipe.values["size"] == [32, 32] and set(recipe.values) == set(bundle.config("train")["deciding"])
    assert json.loads(recipe_file(trained).read_text()) == recipe.state_dict()
    network = bundle.workflow(TRAIN, trained.parent, trained.parent / "again").parser.get_parsed_content("network_def")
    state = torch.load(trained, weights_only=True)["model"]  # the line that the guide gives
    assert state.keys() == network.state_dict().keys()

    from ignite.engine import Engine

    loader = CheckpointLoader(load_path=str(trained), load_dict={"model": network})  # as the bundles call it
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


def test_exports_carry_the_recipe(bundle: Bundle, trained: Path, tmp_path: Path, capsys: Any) -> None:
    command = ["export-model", str(trained), "--bundle", str(bundle.root), "--out", str(tmp_path / "a.ts"), "--json"]
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


@pytest.mark.slow
def test_onnx_gives_the_networks_numbers_and_carries_the_recipe(bundle: Bundle, trained: Path, tmp_path: Path) -> None:
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


# --- the models of a federation


@pytest.fixture(scope="module")
def hospitals(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("hospitals")
    write_sites(root, sites=SITES[:2], size=(48, 48, 8), cases=4)
    return root


@pytest.mark.slow
@pytest.mark.parametrize("strategy", [CGSV(), Ditto()], ids=["rewards", "personal"])
def test_every_model_of_a_federation_carries_its_recipe(strategy: Any, hospitals: Path, tmp_path: Path) -> None:
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
    assert names == ({"best", "global", first, second} if strategy.name.startswith("CGSV") else {"best", "global"})
    for model in models:
        recipe = read_recipe(model)
        assert recipe is not None and recipe.values["size"] == [32, 32]
        assert list(recipe.files) == ["configs/train.json"]
        expected = 0.9 if model.stem == second else 0.7
        assert recipe.values["field_of_view"] == expected
        assert recipe.sites == ({} if model.stem in (first, second) else {second: {"field_of_view": 0.9}})
    for own in (tmp_path / "run" / "sites").rglob("*-own.pt"):
        recipe = read_recipe(own)
        assert recipe is not None
        assert recipe.values["field_of_view"] == (0.9 if second in own.parts else 0.7)
    assert len(list((tmp_path / "run" / "sites").rglob("*-own.pt"))) == (2 if strategy.personal else 0)


@pytest.mark.slow
def test_a_clients_own_model_needs_no_arguments_either(hospitals: Path, tmp_path: Path) -> None:
    prostate = BUNDLES[0]
    BundleFederation(
        str(prostate.root),
        str(hospitals),
        Ditto(),
        rounds=2,
        local_epochs=30,
        run_dir=str(tmp_path / "run"),
        overrides={**prostate.small, "learning_rate": 0.01, "slices_per_volume": 8},
        report=False,
    ).run()
    site = sorted(path for path in hospitals.iterdir() if path.is_dir())[0]
    own = next((tmp_path / "run" / "sites" / site.name).rglob("*-own.pt"))
    datalist = {"datalist_file": str(tmp_path / "run" / "datalists" / f"{site.name}.json")}
    arguments_forgotten(prostate, EVALUATE, site, tmp_path / "evaluation", ckpt_path=str(own), **datalist)
    expected = evaluated(tmp_path / "evaluation")
    kept = next((tmp_path / "run" / "sites" / site.name).rglob("*-personal_test_score-2-*.csv"))
    recorded = {row["case"].partition(".")[0]: float(row["dice"]) for row in csv.DictReader(kept.open())}
    assert expected == pytest.approx(recorded, abs=1e-4)
    arguments_forgotten(prostate, INFERENCE, site, tmp_path, ckpt_path=str(own))
    assert from_masks(prostate, site, tmp_path, list(expected)) == pytest.approx(expected, abs=1e-3)
