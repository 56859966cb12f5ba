# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The prostate bundle on generated hospitals: MONAI's own bundle checks, the three workflows,
MONAI's FL client.
"""

from __future__ import annotations

import csv
import json
import subprocess
import warnings
from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np
import pytest
import torch
from helpers import warm_python
from monai.bundle import ConfigParser, ConfigWorkflow
from monai.fl.client import MonaiAlgo
from monai.fl.utils.exchange_object import ExchangeObject
from monai.transforms import Invertd

from monai_fairfl.bundle.initial import bundle_recipe
from monai_fairfl.data.synthetic import SITES, write_sites
from monai_fairfl.utils.saved_files import read_state_dict

ROOT = Path(__file__).parents[2]
BUNDLE = ROOT / "bundles" / "prostate_mri_segmentation"
CONFIGS = BUNDLE / "configs"
SCHEMA = ROOT / "monai_fairfl" / "bundle_schema.json"
SMALL: dict[str, Any] = {
    "device": "cpu",
    "size": [32, 32],
    "channels": [4, 8, 16],
    "slices_per_volume": 4,
}
TRAIN, EVALUATE, INFERENCE = ("train",), ("train", "evaluate"), ("inference",)


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A hospital of four generated cases."""
    root = tmp_path_factory.mktemp("sites")
    return root / write_sites(root, sites=SITES[:1], size=(48, 48, 8), cases=4)[0]


@pytest.fixture(scope="module")
def trained(site: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Checkpoint of a model trained for two epochs."""
    folder = tmp_path_factory.mktemp("trained")
    run(TRAIN, site, folder, max_epochs=2)
    return folder / "models" / "model.pt"


def files(*names: str) -> list[str]:
    return [str(CONFIGS / f"{name}.json") for name in names]


def config(name: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((CONFIGS / f"{name}.json").read_text())
    return content


def folders(out: Path, names: tuple[str, ...]) -> dict[str, Any]:
    kept = {"output_dir": str(out / "eval")}
    return kept if "inference" in names else {**kept, "ckpt_dir": str(out / "models")}


def workflow(names: tuple[str, ...], data: Path, out: Path, **overrides: Any) -> ConfigWorkflow:
    """The workflow of these config files at a small size, parsed and ready to run."""
    made = ConfigWorkflow(
        config_file=files(*names),
        meta_file=str(CONFIGS / "metadata.json"),
        logging_file=False,
        workflow_type="infer" if "inference" in names else "train",
        **{
            "bundle_root": str(BUNDLE),
            "dataset_dir": str(data),
            **SMALL,
            **folders(out, names),
            **overrides,
        },
    )
    made.initialize()
    return made


def run(names: tuple[str, ...], data: Path, out: Path, **overrides: Any) -> ConfigWorkflow:
    made = workflow(names, data, out, **overrides)
    made.run()
    made.finalize()
    return made


def content(made: ConfigWorkflow, key: str) -> Any:
    return made.parser.get_parsed_content(key)


def dice(a: np.ndarray, b: np.ndarray) -> float:
    return float(2 * np.sum((a > 0) & (b > 0)) / (np.sum(a > 0) + np.sum(b > 0)))


def voxels(path: str | Path) -> np.ndarray:
    return np.asanyarray(volume(path).dataobj)


def volume(path: str | Path) -> nib.Nifti1Image:
    return nib.Nifti1Image.from_filename(str(path))


# --- training


def test_training_writes_the_best_model_and_scores_whole_volumes(
    site: Path, tmp_path: Path
) -> None:
    made = run(TRAIN, site, tmp_path, max_epochs=1)
    assert (
        read_state_dict(tmp_path / "models" / "model.pt").keys()
        == made.trainer.network.state_dict().keys()
    )
    assert made.trainer.state.epoch == 1
    metrics = content(made, "validate#evaluator").state.metrics
    assert set(metrics) == {"val_mean_dice", "dice_slices"} and all(
        0 <= v <= 1 for v in metrics.values()
    )


@pytest.mark.parametrize("side", [32, 64])
def test_every_size_can_be_overridden(side: int, site: Path, tmp_path: Path) -> None:
    made = workflow(TRAIN, site, tmp_path, size=[side, side], slices_per_volume=3, batch_size=2)
    batch = next(iter(content(made, "train#dataloader")))
    # The slices before and after are further channels of an image.
    assert batch["image"].shape == (6, 3, side, side)
    assert batch["label"].shape == (6, 1, side, side)
    assert set(batch["label"].unique().tolist()) <= {0.0, 1.0}
    validation = next(iter(content(made, "validate#dataloader")))
    assert validation["image"].shape == (1, 1, side, side, 8)


def test_case_is_normalised_over_its_own_volume(site: Path, tmp_path: Path) -> None:
    image = next(iter(content(workflow(TRAIN, site, tmp_path), "validate#dataset")))["image"]
    assert float(image.mean()) == pytest.approx(0, abs=1e-4)
    assert float(image.std(correction=0)) == pytest.approx(1, abs=1e-4)


def test_labels_above_zero_are_merged(site: Path, tmp_path: Path) -> None:
    folder = tmp_path / "zones"
    folder.mkdir()
    for source in site.glob("Case*.nii.gz"):
        image = volume(source)
        values = np.asanyarray(image.dataobj)
        if "_segmentation" in source.name:
            values = values.astype(np.uint8) * np.arange(
                1, 9, dtype=np.uint8
            )  # another number in every slice
        nib.save(nib.Nifti1Image(values, image.affine), folder / source.name)
    plain, zones = (
        next(iter(content(workflow(TRAIN, data, tmp_path), "validate#dataset")))["label"]
        for data in (site, folder)
    )
    assert plain.sum() > 0
    torch.testing.assert_close(zones.as_tensor(), plain.as_tensor())


@pytest.mark.slow
def test_of_images_with_several_channels_the_named_one_is_trained_and_evaluated(
    site: Path, tmp_path: Path
) -> None:
    listed = []
    for source in sorted(site.glob("Case??.nii.gz")):
        image, label = volume(source), source.with_name(
            source.name.replace(".nii", "_segmentation.nii")
        )
        both = np.stack([voxels(source), voxels(source)[::-1]], axis=-1)
        for folder, values in (("imagesTr", both), ("labelsTr", voxels(label))):
            (tmp_path / "Task05" / folder).mkdir(parents=True, exist_ok=True)
            nib.save(
                nib.Nifti1Image(values, image.affine), tmp_path / "Task05" / folder / source.name
            )
        listed.append({"image": f"imagesTr/{source.name}", "label": f"labelsTr/{source.name}"})
    about = {"modality": {"0": "T2", "1": "ADC"}, "training": listed}
    (tmp_path / "Task05" / "dataset.json").write_text(json.dumps(about))

    def first(data: Path, **overrides: Any) -> torch.Tensor:
        made = workflow(TRAIN, data, tmp_path / data.name, **overrides)
        return next(iter(content(made, "validate#dataset")))["image"].as_tensor()

    assert torch.equal(first(tmp_path / "Task05"), first(site)) and torch.equal(
        first(site, channel=1), first(site)
    )
    assert not torch.equal(first(tmp_path / "Task05", channel=1), first(site))
    run(TRAIN, tmp_path / "Task05", tmp_path, max_epochs=1)
    scores = run(EVALUATE, tmp_path / "Task05", tmp_path).evaluator.state.metrics
    assert 0 <= scores["val_mean_dice"] <= 1


def test_learning_rate_decays_to_its_floor_and_resumes(site: Path, tmp_path: Path) -> None:
    settings = {"learning_rate": 0.1, "decay_epochs": 4, "decay_power": 1.0, "decay_floor": 0.25}
    rates = []
    made = workflow(TRAIN, site, tmp_path, **settings)
    optimizer, scheduler = content(made, "optimizer"), content(made, "lr_scheduler")
    for epoch in range(6):
        if epoch == 3:  # as after a restart
            states = optimizer.state_dict(), scheduler.state_dict()
            made = workflow(TRAIN, site, tmp_path, **settings)
            optimizer, scheduler = content(made, "optimizer"), content(made, "lr_scheduler")
            optimizer.load_state_dict(states[0])
            scheduler.load_state_dict(states[1])
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    assert rates == pytest.approx([0.1, 0.075, 0.05, 0.025, 0.025, 0.025])


@pytest.mark.slow
def test_a_model_of_an_overlay_needs_no_overlay_to_evaluate_and_infer(
    site: Path, tmp_path: Path
) -> None:
    run(("train", "two_channel"), site, tmp_path, max_epochs=1)
    made = run(EVALUATE, site, tmp_path)
    assert 0 <= made.evaluator.state.metrics["val_mean_dice"] <= 1
    run(("inference",), site, tmp_path, ckpt_path=str(tmp_path / "models" / "model.pt"))
    masks = sorted((tmp_path / "eval").glob("*_pred.nii.gz"))
    assert len(masks) == 4
    assert all(set(np.unique(voxels(mask))) <= {0, 1} for mask in masks)


@pytest.mark.slow
def test_paper_setting_is_that_of_the_paper(site: Path, tmp_path: Path) -> None:
    overlay = config("paper_setting")
    channels = {
        "size": overlay["size"],
        "channels": overlay["channels"],
        "slices_per_volume": overlay["slices_per_volume"],
    }
    made = workflow(("train", "light", "paper_setting"), site, tmp_path, **channels)
    optimizer = content(made, "optimizer")
    assert tuple(optimizer.defaults["betas"]) == (0.9, 0.99) and optimizer.defaults["lr"] == 1e-3
    assert type(content(made, "loss")).__name__ == "DiceLoss"
    assert content(made, "augmentation") == []
    batch = next(iter(content(made, "train#dataloader")))
    assert batch["image"].shape == (8, 1, 256, 256)
    assert all(label.any() for label in batch["label"])


# --- back to the original grid


def test_label_survives_the_way_through_the_preprocessing_and_back(
    site: Path, tmp_path: Path
) -> None:
    made = workflow(TRAIN, site, tmp_path, size=[64, 64])
    preprocessing = content(made, "validate#preprocessing")
    for item in content(made, "datalist")["validation"]:
        case = preprocessing(item)
        back = Invertd(keys="label", transform=preprocessing, nearest_interp=False)(case)["label"]
        original = voxels(item["label"])
        assert back.shape[1:] == original.shape
        assert dice(back[0].numpy(), original) > 0.9


def oblique_affine() -> np.ndarray:
    """Anisotropic, stored back to front, 20 degrees off the axes in two planes."""
    a, b = np.radians(20), np.radians(-20)
    about_x = np.array([[1, 0, 0], [0, np.cos(a), -np.sin(a)], [0, np.sin(a), np.cos(a)]])
    about_z = np.array([[np.cos(b), -np.sin(b), 0], [np.sin(b), np.cos(b), 0], [0, 0, 1]])
    stored = np.array([[0, 0.6, 0], [-0.8, 0, 0], [0, 0, 3.6]])
    affine = np.eye(4)
    affine[:3, :3] = about_x @ about_z @ stored
    affine[:3, 3] = 11.5, -37.25, 4.0
    return affine


def bright_blob() -> np.ndarray:
    """An off-centre ellipsoid on noise, in a volume of three different sides."""
    x, y, z = np.indices((44, 60, 9))
    blob = ((x - 18) / 8) ** 2 + ((y - 35) / 10) ** 2 + ((z - 5) / 3) ** 2 < 1
    return blob


@pytest.mark.slow
@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1)], ids=["axial", "slices stored first"])
def test_masks_lie_on_the_grid_and_affine_of_their_volume(
    order: tuple[int, ...], tmp_path: Path
) -> None:
    # With the identity as network the gland is what is bright, so the right mask is known.
    blob = bright_blob().transpose(order)
    affine = oblique_affine()[:, [*order, 3]]
    image = 200.0 * blob + np.random.default_rng(0).normal(100, 5, blob.shape)
    volumes, masks = tmp_path / "volumes", tmp_path / "masks"
    volumes.mkdir()
    nib.save(nib.Nifti1Image(image.astype(np.float32), affine), volumes / "case.nii.gz")
    nib.save(nib.Nifti1Image(blob.astype(np.uint8), affine), volumes / "case_Segmentation.nii.gz")
    torch.save({}, tmp_path / "identity.pt")
    recipe = bundle_recipe(BUNDLE, {key: SMALL[key] for key in ("channels",)})
    assert recipe is not None
    run(
        INFERENCE,
        volumes,
        tmp_path,
        network_def={"_target_": "torch.nn.Identity"},
        ckpt_path=str(tmp_path / "identity.pt"),
        activation={
            "_target_": "Activationsd",
            "keys": "pred",
            "other": "$lambda x: torch.sigmoid(4 * x - 8)",
        },
        output_dir=str(masks),
        **{
            **recipe.values,
            "size": [96, 96],
            "neighbours": 0,
            "smoothing": 0.0,
        },  # the file has no recipe, so every value must be given
    )
    assert [path.name for path in masks.glob("*.nii.gz")] == ["case_pred.nii.gz"]
    mask = volume(masks / "case_pred.nii.gz")
    assert mask.shape == blob.shape
    assert mask.get_data_dtype() == np.uint8
    np.testing.assert_allclose(mask.affine, affine, atol=1e-5)
    assert dice(np.asanyarray(mask.dataobj), blob) > 0.95


@pytest.mark.slow
def test_evaluation_scores_the_saved_masks_against_the_untouched_labels(
    site: Path, trained: Path, tmp_path: Path
) -> None:
    made = run(EVALUATE, site, tmp_path, ckpt_path=str(trained))
    run(INFERENCE, site, tmp_path / "inference", ckpt_path=str(trained))
    testing = content(made, "datalist")["testing"]
    expected = {
        item["image"]: dice(
            voxels(
                tmp_path
                / "inference"
                / "eval"
                / Path(item["image"]).name.replace(".nii.gz", "_pred.nii.gz")
            ),
            voxels(item["label"]),
        )
        for item in testing
    }
    with (tmp_path / "eval" / "val_mean_dice_raw.csv").open() as handle:
        reported = {row["filename"]: float(row["mean"]) for row in csv.DictReader(handle)}
    assert reported == pytest.approx(expected, abs=1e-6)
    for metric in ("val_mean_dice", "dice_slices", "hd95"):
        assert (tmp_path / "eval" / f"{metric}_summary.csv").is_file()
    assert set(made.evaluator.state.metrics) == {"val_mean_dice", "dice_slices", "hd95"}


def test_slices_are_axial_however_the_file_was_stored(
    site: Path, trained: Path, tmp_path: Path
) -> None:
    stored = tmp_path / "sagittal"
    stored.mkdir()
    for source in site.glob("Case*.nii.gz"):
        image = volume(source)
        turned = nib.Nifti1Image(
            np.asanyarray(image.dataobj).transpose(2, 0, 1), image.affine[:, [2, 0, 1, 3]]
        )
        nib.save(turned, stored / source.name)
    scores = [
        run(EVALUATE, data, tmp_path / data.name, ckpt_path=str(trained)).evaluator.state.metrics
        for data in (site, stored)
    ]
    assert scores[1] == pytest.approx(scores[0], rel=1e-4)


# --- MONAI's FL client


def client(site: Path, out: Path) -> MonaiAlgo:
    kwargs = {
        "dataset_dir": str(site),
        **SMALL,
        "ckpt_dir": str(out / "models"),
        "output_dir": str(out / "eval"),
    }
    algo = MonaiAlgo(
        str(BUNDLE), local_epochs=1, train_kwargs=dict(kwargs), eval_kwargs=dict(kwargs)
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # MONAI reminds that a bundle is executable
        algo.initialize()
    return algo


def test_monais_client_does_not_shorten_the_schedule_to_one_round(
    site: Path, tmp_path: Path
) -> None:
    algo = client(site, tmp_path)
    assert algo.trainer is not None
    weights = {k: v.clone() for k, v in algo.trainer.network.state_dict().items()}
    for _ in range(2):
        algo.train(ExchangeObject(weights=dict(weights)))
    rate = algo.trainer.optimizer.param_groups[0]["lr"]
    assert rate == pytest.approx(
        config("train")["learning_rate"] * (1 - 2 / config("train")["max_epochs"]) ** 0.9
    )


# --- the commands of the README


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    return warm_python.run(["-m", "monai.bundle", *arguments], BUNDLE)


@pytest.mark.long
@pytest.mark.slow
def test_commands_train_evaluate_and_infer(site: Path, tmp_path: Path) -> None:
    common = [
        "--dataset_dir",
        str(site),
        "--size",
        "[32,32]",
        "--channels",
        "[4,8,16]",
        "--device",
        "cpu",
    ]
    common += ["--output_dir", str(tmp_path / "eval")]
    models = ["--ckpt_dir", str(tmp_path / "models")]
    overlay = "['configs/train.json','configs/evaluate.json']"
    steps = [
        ["run", "--config_file", "configs/train.json", *common, *models, "--max_epochs", "1"],
        ["run", "--config_file", overlay, *common, *models],
        [
            "run",
            "--config_file",
            "configs/inference.json",
            *common,
            "--ckpt_path",
            str(tmp_path / "models" / "model.pt"),
        ],
    ]
    for step in steps:
        done = command(*step)
        assert done.returncode == 0, done.stderr[-2000:]
    assert (tmp_path / "eval" / "hd95_summary.csv").is_file()
    for source in site.glob("Case??.nii.gz"):
        image, mask = volume(source), volume(
            tmp_path / "eval" / source.name.replace(".nii", "_pred.nii")
        )
        assert mask.shape == image.shape and mask.get_data_dtype() == np.uint8
        np.testing.assert_allclose(mask.affine, image.affine, atol=1e-5)


@pytest.mark.slow
def test_commands_check_and_export_the_bundle(tmp_path: Path) -> None:
    network = ConfigParser(config("inference")).get_parsed_content("network_def")
    torch.save(network.state_dict(), tmp_path / "model.pt")
    described = ["--meta_file", "configs/metadata.json", "--config_file", "configs/inference.json"]
    export = ["ckpt_export", "network_def", "--filepath", str(tmp_path / "model.ts")]
    for step in (
        ["verify_metadata", "--meta_file", "configs/metadata.json", "--filepath", str(SCHEMA)],
        ["verify_net_in_out", "network_def", *described, "--device", "cpu"],
        [*export, "--ckpt_file", str(tmp_path / "model.pt"), *described],
    ):
        done = command(*step)
        assert done.returncode == 0, done.stderr[-2000:]
    assert torch.jit.load(str(tmp_path / "model.ts"))(torch.zeros(1, 3, 96, 96)).shape == (
        1,
        1,
        96,
        96,
    )
