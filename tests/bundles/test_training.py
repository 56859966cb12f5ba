# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Both bundles train and evaluate alone: what they see, what they write, which data they refuse."""

from __future__ import annotations

import json
import os
import shutil
import warnings
from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np
import pytest
import torch
from helpers.client_requests import after, same, stored_state, tiny_client, tiny_model, train
from helpers.shipped_bundles import EVALUATE, FUNDUS, INFERENCE, PROSTATE, TRAIN, Bundle
from monai.bundle import ConfigParser
from monai.transforms import Invertd
from PIL import Image
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from monai_fairfl.data import CLINICS, find_cases, write_clinics
from monai_fairfl.errors import ConfigError, DataError


def saved_weights(file: Path) -> dict[str, torch.Tensor]:
    state: dict[str, torch.Tensor]
    state = torch.load(file, weights_only=True, map_location="cpu")["model"]
    return state


def require_same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> None:
    assert one.keys() == other.keys()
    for name, value in one.items():
        assert torch.equal(value, other[name].cpu()), name


# --- what a training writes


def test_a_training_writes_its_best_model_and_the_same_one_again_from_its_seed(
    bundle: Bundle, site: Path, tmp_path: Path
) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        made = bundle.run(TRAIN, site, tmp_path / "a", max_epochs=1, seed=3)
    saved = saved_weights(tmp_path / "a" / "model.pt")
    assert saved.keys() == made.trainer.network.state_dict().keys()
    metrics = made.parser.get_parsed_content("validate#evaluator").state.metrics
    assert "val_mean_dice" in metrics
    for name, value in metrics.items():
        assert 0 <= value <= 1, name
    bundle.run(TRAIN, site, tmp_path / "b", max_epochs=1, seed=3)
    require_same(saved, saved_weights(tmp_path / "b" / "model.pt"))

    about_transforms = []
    for warning in caught:
        message = str(warning.message)
        # With NumPy 2.2, of Python 3.10, MONAI's own tensors lack an argument of NumPy's.
        if message.startswith("__array__ implementation doesn't accept a copy keyword"):
            continue
        if "monai/transforms" in warning.filename or "Orientation" in message:
            about_transforms.append(message)
    assert about_transforms == []


def test_without_validation_the_last_epochs_model_is_stored(
    bundle: Bundle, site: Path, tmp_path: Path
) -> None:
    made = bundle.run(TRAIN, site, tmp_path, max_epochs=2, val_interval=0)
    require_same(saved_weights(tmp_path / "model.pt"), made.trainer.network.state_dict())
    assert made.parser.get_parsed_content("validate#evaluator").state.epoch == 0


def test_every_overlay_trains_and_evaluates(bundle: Bundle, site: Path, tmp_path: Path) -> None:
    for overlay in bundle.overlays:
        out = tmp_path / overlay[-1]
        bundle.run(("train", *overlay), site, out, max_epochs=1)
        model = {"ckpt_path": str(out / "model.pt")}
        made = bundle.run(("train", *overlay, "evaluate"), site, out, **model)
        assert 0 <= made.evaluator.state.metrics["val_mean_dice"] <= 1, overlay


def test_the_paper_setting_is_that_of_the_paper(tmp_path: Path) -> None:
    site = tmp_path / "sites" / PROSTATE.write(tmp_path / "sites")[0]
    overlay = PROSTATE.config("paper_setting")
    own = {key: overlay[key] for key in ("size", "channels", "slices_per_volume")}
    parser = PROSTATE.workflow(("train", "light", "paper_setting"), site, tmp_path, **own).parser
    optimizer = parser.get_parsed_content("optimizer")
    assert tuple(optimizer.defaults["betas"]) == (0.9, 0.99)
    assert optimizer.defaults["lr"] == 1e-3
    assert type(parser.get_parsed_content("loss")).__name__ == "DiceLoss"
    assert parser.get_parsed_content("augmentation") == []
    batch = next(iter(parser.get_parsed_content("train#dataloader")))
    assert batch["image"].shape == (8, 1, 256, 256)
    assert all(label.any() for label in batch["label"])


def test_the_learning_rate_decays_to_its_floor_and_resumes(
    bundle: Bundle, site: Path, tmp_path: Path
) -> None:
    settings = {"learning_rate": 0.1, "decay_epochs": 4, "decay_power": 1.0, "decay_floor": 0.25}
    rates = []

    def made() -> tuple[Any, Any]:
        parser = bundle.workflow(TRAIN, site, tmp_path, **settings).parser
        return parser.get_parsed_content("optimizer"), parser.get_parsed_content("lr_scheduler")

    optimizer, scheduler = made()
    for epoch in range(6):
        if epoch == 3:
            # As after a restart.
            states = optimizer.state_dict(), scheduler.state_dict()
            optimizer, scheduler = made()
            optimizer.load_state_dict(states[0])
            scheduler.load_state_dict(states[1])
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    assert rates == pytest.approx([0.1, 0.075, 0.05, 0.025, 0.025, 0.025])


# --- what the network sees of a volume


@pytest.fixture(scope="module")
def hospital(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A site of four small volumes; read only."""
    root = tmp_path_factory.mktemp("volumes")
    return root / PROSTATE.write(root)[0]


def parsed(data: Path, out: Path, key: str, **overrides: Any) -> Any:
    return PROSTATE.workflow(TRAIN, data, out, **overrides).parser.get_parsed_content(key)


def first_image(data: Path, out: Path, key: str = "image", **overrides: Any) -> torch.Tensor:
    case = next(iter(parsed(data, out, "validate#dataset", **overrides)))
    tensor: torch.Tensor = case[key].as_tensor()
    return tensor


def test_a_batch_has_slices_with_their_neighbours_and_a_volume_is_normalised(
    hospital: Path, tmp_path: Path
) -> None:
    settings = {"size": [64, 64], "slices_per_volume": 3, "batch_size": 2}
    batch = next(iter(parsed(hospital, tmp_path, "train#dataloader", **settings)))
    assert batch["image"].shape == (6, 3, 64, 64)
    assert batch["label"].shape == (6, 1, 64, 64)
    assert set(batch["label"].unique().tolist()) <= {0.0, 1.0}
    image = first_image(hospital, tmp_path, **settings)
    assert image.shape == (1, 64, 64, 8)
    assert float(image.mean()) == pytest.approx(0, abs=1e-4)
    assert float(image.std(correction=0)) == pytest.approx(1, abs=1e-4)


def test_labels_above_zero_are_merged_and_survive_the_way_there_and_back(
    hospital: Path, tmp_path: Path
) -> None:
    zones = Path(shutil.copytree(hospital, tmp_path / "zones"))
    for file in zones.glob("*_segmentation*"):
        label = nib.Nifti1Image.from_filename(str(file))
        # Another number in every slice.
        values = np.asanyarray(label.dataobj).astype(np.uint8) * np.arange(1, 9, dtype=np.uint8)
        nib.save(nib.Nifti1Image(values, label.affine), file)
    plain = first_image(hospital, tmp_path, "label")
    assert plain.sum() > 0
    torch.testing.assert_close(first_image(zones, tmp_path, "label"), plain)

    parser = PROSTATE.workflow(TRAIN, hospital, tmp_path, size=[64, 64]).parser
    preprocessing = parser.get_parsed_content("validate#preprocessing")
    for item in parser.get_parsed_content("datalist")["validation"]:
        case = preprocessing(item)
        back = Invertd(keys="label", transform=preprocessing, nearest_interp=False)(case)["label"]
        original = np.asanyarray(nib.Nifti1Image.from_filename(item["label"]).dataobj) > 0
        assert back.shape[1:] == original.shape
        found = back[0].numpy() > 0
        assert 2 * (found & original).sum() / (found.sum() + original.sum()) > 0.9


def test_of_images_with_several_channels_the_named_one_is_trained_and_evaluated(
    hospital: Path, tmp_path: Path
) -> None:
    task = tmp_path / "Task05"
    listed = []
    for source in sorted(hospital.glob("Case??.nii.gz")):
        image = nib.Nifti1Image.from_filename(str(source))
        values = np.asanyarray(image.dataobj)
        label = source.with_name(source.name.replace(".nii", "_segmentation.nii"))
        (task / "imagesTr").mkdir(parents=True, exist_ok=True)
        (task / "labelsTr").mkdir(exist_ok=True)
        both = nib.Nifti1Image(np.stack([values, values[::-1]], axis=-1), image.affine)
        nib.save(both, task / "imagesTr" / source.name)
        shutil.copy(label, task / "labelsTr" / source.name)
        listed.append({"image": f"imagesTr/{source.name}", "label": f"labelsTr/{source.name}"})
    about = {"modality": {"0": "T2", "1": "ADC"}, "training": listed}
    (task / "dataset.json").write_text(json.dumps(about))

    expected = first_image(hospital, tmp_path / "one")
    assert torch.equal(first_image(task, tmp_path / "two"), expected)
    assert torch.equal(first_image(hospital, tmp_path / "one", channel=1), expected)
    assert not torch.equal(first_image(task, tmp_path / "two", channel=1), expected)
    PROSTATE.run(TRAIN, task, tmp_path, max_epochs=1)
    scores = PROSTATE.run(EVALUATE, task, tmp_path).evaluator.state.metrics
    assert 0 <= scores["val_mean_dice"] <= 1


# --- formats of numbers, and layouts in memory


class NoBFloat16(TorchDispatchMode):
    """Refuses every operation that takes or makes a tensor in bfloat16."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        found = func(*args, **(kwargs or {}))
        for leaf in tree_leaves((args, kwargs, found)):
            if isinstance(leaf, torch.Tensor) and leaf.dtype is torch.bfloat16:
                raise AssertionError(f"{func} computes in bfloat16")
        return found


@pytest.mark.parametrize(
    ("bundle_of", "recipe"),
    [(PROSTATE, "strong"), (PROSTATE, "volumes"), (PROSTATE, ""), (FUNDUS, "")],
    ids=lambda value: value if isinstance(value, str) else value.name[:8],
)
def test_without_bfloat16_in_hardware_no_recipe_computes_in_it(
    bundle_of: Bundle, recipe: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = tmp_path / "sites" / sorted(bundle_of.write(tmp_path / "sites"))[0]
    names = ("train", recipe) if recipe else ("train",)
    monkeypatch.setattr("monai_fairfl.inferers.has_bfloat16", lambda device: False)
    with NoBFloat16():
        bundle_of.run(names, site, tmp_path / "without", max_epochs=1)
    assert (tmp_path / "without" / "model.pt").is_file()
    if not recipe:
        return
    # The same look finds it where the hardware has it.
    monkeypatch.setattr("monai_fairfl.inferers.has_bfloat16", lambda device: True)
    with pytest.raises(RuntimeError) as failed, NoBFloat16():
        bundle_of.run(names, site, tmp_path / "with", max_epochs=1)
    assert "bfloat16" in str(failed.value.__cause__)


def test_a_training_has_the_layout_that_is_chosen_and_is_compiled_when_asked(
    bundle: Bundle, site: Path, tmp_path: Path
) -> None:
    plain: dict[str, Any] = {"memory_format": "preserve_format"}
    parser = bundle.workflow(TRAIN, site, tmp_path, **plain).parser
    network = parser.get_parsed_content("network")
    assert all(tensor.is_contiguous() for tensor in network.state_dict().values())
    assert network._compiled_call_impl is None

    settings = {"memory_format": "channels_last", "compiled": True}
    parser = bundle.workflow(TRAIN, site, tmp_path, **settings).parser
    other = parser.get_parsed_content("network")
    kernels = [tensor for tensor in other.parameters() if tensor.ndim == 4]
    assert kernels
    assert all(tensor.is_contiguous(memory_format=torch.channels_last) for tensor in kernels)
    assert other._compiled_call_impl is not None
    assert parser.get_parsed_content("train#trainer").network is other
    assert list(other.state_dict()) == list(network.state_dict())


def test_what_a_client_of_another_layout_sends_lies_as_usual(
    hospitals: Path, tmp_path: Path
) -> None:
    weights, _ = tiny_model()
    client = tiny_client(hospitals, tmp_path, memory_format="channels_last")
    model = weights
    for number in range(2):
        reply = train(client, model, number)
        sent = {**(reply.update or {}), **(reply.buffers or {})}
        assert set(sent) == set(weights)
        assert all(tensor.is_contiguous() for tensor in sent.values())
        model = after(model, reply)

    # A new process goes on from the file, to the bit.
    again = tiny_client(hospitals, tmp_path, memory_format="channels_last")
    third = train(client, model, 2).update
    assert same(train(again, model, 2).update, third)
    stored = stored_state(tmp_path, 2)["local"]
    for name, tensor in after(model, train(again, model, 2)).items():
        torch.testing.assert_close(stored[name], tensor)


# --- data that is refused, and data lists


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


def listed_cases(site: Path) -> list[dict[str, str]]:
    """The cases of a site, relative to it; ``Case00`` comes first."""
    found = []
    for case in find_cases(site):
        found.append({key: os.path.relpath(case[key], site) for key in ("image", "label")})
    return found


def test_a_training_checks_its_data_first_unless_its_list_leaves_the_faulty_case_out(
    bundle: Bundle, site: Path, tmp_path: Path
) -> None:
    spoilt = spoil(site, tmp_path / "spoilt")
    faulty = bundle.cause_of_failed_run(TRAIN, spoilt, tmp_path, max_epochs=1)
    assert isinstance(faulty, DataError)
    assert "Case00" in str(faulty) and "1 problem" in str(faulty)
    assert not (tmp_path / "model.pt").exists()
    nowhere = bundle.cause_of_failed_run(TRAIN, tmp_path / "nowhere", tmp_path, max_epochs=1)
    assert isinstance(nowhere, DataError)
    assert "nowhere" in str(nowhere)

    _, *sound = listed_cases(spoilt)
    parts = {"training": sound[:1], "validation": sound[1:2], "testing": sound[2:]}
    (tmp_path / "hand.json").write_text(json.dumps(parts))
    hand = {"datalist_file": str(tmp_path / "hand.json"), "max_epochs": 1, "val_interval": 0}
    faulty = bundle.cause_of_failed_run(TRAIN, spoilt, tmp_path, **hand)
    assert "--check_data" in str(faulty)
    bundle.run(TRAIN, spoilt, tmp_path, **hand, check_data=False)
    assert (tmp_path / "model.pt").is_file()


def test_an_evaluation_checks_its_test_cases_and_no_others(
    bundle: Bundle, site: Path, trained: Path, tmp_path: Path
) -> None:
    spoilt = spoil(site, tmp_path / "spoilt")
    faulty, *sound = listed_cases(spoilt)
    file = tmp_path / "hand.json"
    given = {"ckpt_path": str(trained), "datalist_file": str(file)}

    tested = {"training": sound[:2], "validation": [], "testing": [faulty, *sound[2:]]}
    file.write_text(json.dumps(tested))
    error = bundle.cause_of_failed_run(EVALUATE, spoilt, tmp_path, **given)
    assert isinstance(error, DataError)
    assert "Case00" in str(error)
    assert not (tmp_path / "eval" / "val_mean_dice_raw.csv").exists()
    # No case of the test has the fault.
    file.write_text(json.dumps({"training": [faulty], "validation": [], "testing": sound[2:]}))
    made = bundle.run(EVALUATE, spoilt, tmp_path, **given)
    assert set(made.evaluator.state.metrics) == bundle.metrics
    for metric in bundle.metrics:
        assert (tmp_path / "eval" / f"{metric}_summary.csv").is_file()


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
    assert datalist(EVALUATE, seed=1) == trained
    for file in list(data.rglob("Case03*")):
        shutil.copy(file, file.with_name(file.name.replace("Case03", "Case04")))
    with pytest.warns(UserWarning, match="1 case.* not used"):
        assert datalist(EVALUATE, seed=1) == trained
    with pytest.raises(RuntimeError) as other_seed:
        datalist(EVALUATE)
    assert "'seed': 1" in str(other_seed.value.__cause__)


# --- model files that do not fit


@pytest.mark.parametrize("names", [EVALUATE, INFERENCE], ids=["evaluate", "infer"])
def test_a_model_that_is_missing_or_no_model_or_another_networks_is_named(
    names: tuple[str, ...],
    bundle: Bundle,
    site: Path,
    one_image: Path,
    trained: Path,
    tmp_path: Path,
) -> None:
    data = site if names == EVALUATE else one_image

    def refused(file: Path, **given: Any) -> str:
        error = bundle.cause_of_failed_run(names, data, tmp_path, ckpt_path=str(file), **given)
        assert isinstance(error, ConfigError)
        return str(error)

    missing = refused(tmp_path / "none.pt")
    assert "none.pt" in missing and "--ckpt_path" in missing
    (tmp_path / "text.pt").write_text("no model")
    assert "text.pt" in refused(tmp_path / "text.pt")
    assert "channels is [4, 8, 8]" in refused(trained, channels=[4, 8, 8])

    content = torch.load(trained, weights_only=True)
    first = next(iter(content["model"]))
    content["model"][first] = torch.zeros(7)
    torch.save(content, tmp_path / "other.pt")
    assert f"{first} is (7,)" in refused(tmp_path / "other.pt")


# --- photographs


@pytest.mark.parametrize("name", ["inference", "evaluate"])
def test_each_structure_keeps_one_part_and_the_cup_lies_in_the_disc(name: str) -> None:
    key = "postprocessing" if name == "inference" else "validate#postprocessing"
    chain = FUNDUS.config(name)[key]["transforms"]
    steps = [step for step in chain if step == "@nesting" or "Largest" in str(step)]
    values = {"largest_component": True, "structures": ["disc", "cup"], "steps": steps}
    parser = ConfigParser({**values, "nesting": FUNDUS.config("train")["nesting"]})
    masks = torch.zeros(2, 32, 32)
    # A disc, and an island.
    masks[0, 4:20, 4:20] = masks[0, 28:30, 28:30] = 1
    # A cup that leaves the disc, an island in the disc, and a patch beside it that is larger.
    masks[1, 8:16, 8:24] = masks[1, 5:7, 5:7] = masks[1, 22:32, 0:20] = 1
    case = {"pred": masks}
    for step in parser.get_parsed_content("steps"):
        case = step(case)
    disc, cup = case["pred"]
    assert disc.sum() == 16 * 16
    assert cup.sum() == 8 * 12
    assert not (cup > disc).any()


def test_of_a_stereo_pair_the_left_view_is_outlined_on_the_photographs_own_pixels(
    tmp_path: Path,
) -> None:
    [clinic] = [clinic for clinic in CLINICS if clinic.stereo]
    [name] = write_clinics(tmp_path / "sites", clinics=[clinic], size=64, cases=4)
    site = tmp_path / "sites" / name
    FUNDUS.run(TRAIN, site, tmp_path, max_epochs=1)
    model = str(tmp_path / "model.pt")
    FUNDUS.without_overrides().run(INFERENCE, site / "images", tmp_path, ckpt_path=model)
    for photograph in sorted((site / "images").iterdir()):
        with Image.open(tmp_path / "eval" / f"{photograph.stem}_pred.png") as picture:
            mask = np.asarray(picture)
        with Image.open(photograph) as image:
            assert mask.shape[::-1] == image.size
        assert set(np.unique(mask)) <= {0, 128, 255}
        assert not mask[:, mask.shape[1] // 2 :].any()
    table = json.loads((tmp_path / "eval" / "ratios.json").read_text())
    assert table["summary"] == {"segmented": 4}
