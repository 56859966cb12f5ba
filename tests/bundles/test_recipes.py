# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""A model brings what its training had otherwise: whoever uses it needs no further file."""

from __future__ import annotations

import csv
import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np
import pytest
import torch
from helpers.changed_recipes import with_recipe
from helpers.shipped_bundles import BUNDLES, INFERENCE, PROSTATE, TRAIN, Bundle
from PIL import Image

from monai_fairfl.bundle.adaptation import adapt_model
from monai_fairfl.bundle.federation import BundleFederation
from monai_fairfl.cli import main
from monai_fairfl.errors import ConfigError
from monai_fairfl.model_files.recipe import read_recipe
from monai_fairfl.strategies import FedAvg
from monai_fairfl.workflow.carried import evaluation_overlay, inference_overlay
from monai_fairfl.workflow.export import export_model

pytestmark = pytest.mark.slow

OWN = "a file of the user"
OWN_OVERLAYS: dict[str, dict[str, Any]] = {
    PROSTATE.name: {
        "neighbours": 2,
        "part": "largest",
        "network_def#act_name": "relu",
        "validate#inferer#mode": "gaussian",
    },
    BUNDLES[1].name: {
        "network_def#act": "RELU",
        "validate#inferer#margin": 3.0,
        "validate#inferer#passes": 2,
    },
}
"""What a user's overlay changes: inputs and size of the network, or its layers and looks."""


@dataclass(frozen=True)
class Run:
    """A federation of one round of a recipe, whose masks are neither empty nor full."""

    bundle: Bundle
    sites: Path
    folder: Path
    recipe: str

    @property
    def model(self) -> Path:
        return self.folder / "models" / "global.pt"

    @property
    def site(self) -> Path:
        return self.sites / self.bundle.whole_sites(self.sites)[0]

    def scores(self) -> dict[str, float]:
        """Case -> Dice of its test by the federation itself, at its end."""
        (table,) = (self.folder / "sites" / self.site.name).rglob("*-test_score-*.csv")
        return {row["case"]: float(row["dice"]) for row in rows(table)}

    def images(self, folder: Path) -> Path:
        """A folder with the images of the test cases."""
        for case in self.scores():
            folder.mkdir(exist_ok=True)
            shutil.copy(self.site / self.bundle.images / Path(case).name, folder)
        return folder


def rows(table: Path) -> list[dict[str, str]]:
    with table.open() as file:
        return list(csv.DictReader(file))


PAIRS = [(bundle, recipe) for bundle in BUNDLES for recipe in ("", *bundle.recipes, OWN)]


@pytest.fixture(scope="module", params=PAIRS, ids=lambda pair: f"{pair[0].name[:8]}-{pair[1]}")
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Run:
    bundle, recipe = request.param
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("recipe")
    bundle.write(folder / "sites")
    config = ["configs/train.json"]
    if recipe in bundle.recipes:
        config.append(f"configs/{recipe}.json")
    if recipe == OWN:
        overlay = folder / "own.json"
        overlay.write_text(json.dumps(OWN_OVERLAYS[bundle.name]))
        config.append(str(overlay))
    BundleFederation(
        str(bundle.root),
        str(folder / "sites"),
        FedAvg(),
        rounds=1,
        local_epochs=30,
        run_dir=str(folder / "run"),
        config=config,
        overrides={
            **bundle.small,
            "learning_rate": 0.01,
            "augmentation": [],
            **bundle.recipes.get(recipe, {}),
        },
        report=False,
    ).run()
    return Run(bundle, folder / "sites", folder / "run", recipe)


def masks(run: Run, model: Path, out: Path) -> dict[str, np.ndarray]:
    """Name of each mask -> its voxels, by ``monai-fairfl infer`` and nothing else."""
    images = run.images(out.parent / "images")
    assert main(["infer", str(model), str(images), "--out", str(out), "--no-pictures"]) == 0
    return masks_in(run, out)


def masks_in(run: Run, out: Path) -> dict[str, np.ndarray]:
    found = {}
    for file in sorted(out.glob(run.bundle.masks)):
        if file.suffix == ".png":
            with Image.open(file) as picture:
                found[file.name] = np.asarray(picture)
        else:
            found[file.name] = np.asarray(nib.Nifti1Image.from_filename(str(file)).dataobj)
    return found


def assert_same(one: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> None:
    assert list(one) == list(other)
    for name in one:
        np.testing.assert_array_equal(one[name], other[name])


def test_inference_and_evaluation_score_as_the_federation_did(run: Run, tmp_path: Path) -> None:
    expected = run.scores()
    out = tmp_path / "scores"
    assert main(["evaluate", str(run.folder), str(run.sites), "--out", str(out)]) == 0
    found = {}
    for row in rows(out / run.site.name / "val_mean_dice_raw.csv"):
        found[Path(row["filename"]).name] = float(row["mean"])
    named = {Path(case).name: dice for case, dice in expected.items()}
    assert found == pytest.approx(named, abs=1e-6)

    segmented = masks(run, run.folder, tmp_path / "masks")
    assert len(segmented) == len(expected)
    for mask in segmented.values():
        assert 0 < (mask > 0).mean() < 1
    if run.bundle is PROSTATE:
        for case, dice in expected.items():
            label = run.site / case.replace(".nii", "_segmentation.nii")
            truth = np.asarray(nib.Nifti1Image.from_filename(str(label)).dataobj) > 0
            mask = segmented[case.replace(".nii", "_pred.nii")] > 0
            both = 2 * (mask & truth).sum() / (mask.sum() + truth.sum())
            assert both == pytest.approx(dice, abs=1e-3)


def test_exports_give_the_same_voxels(run: Run, tmp_path: Path) -> None:
    expected = masks(run, run.folder, tmp_path / "masks")
    export_model(run.model, tmp_path / "model.ts", run.bundle.root)
    scripted = masks(run, tmp_path / "model.ts", tmp_path / "scripted")
    assert_same(expected, scripted)

    # As MONAI Label and MONAI Deploy load it: the exported configuration alone.
    export_model(run.model, tmp_path / "exported", run.bundle.root)
    bundle = CopiedBundle(**vars(run.bundle))
    object.__setattr__(bundle, "copy", tmp_path / "exported")
    model = tmp_path / "exported" / "models" / "model.pt"
    bundle.without_overrides().run(
        INFERENCE, tmp_path / "images", tmp_path / "again", ckpt_path=str(model)
    )
    assert_same(expected, masks_in(run, tmp_path / "again" / "eval"))


class CopiedBundle(Bundle):
    """A bundle in another folder."""

    copy: Path

    @property
    def root(self) -> Path:
        return self.copy

    def without_overrides(self) -> Bundle:
        return self


def test_the_model_is_adapted_as_it_was_trained(run: Run, tmp_path: Path) -> None:
    if run.recipe not in ("light", "volumes"):
        pytest.skip("as every model")
    datalist = run.folder / "datalists" / f"{run.site.name}.json"
    found = adapt_model(
        run.model, run.bundle.root, run.site, tmp_path, datalist_file=datalist, epochs=1
    )
    before: Any = found.before["test_score"]
    mean = before["mean"].value if isinstance(before, dict) else before.value
    scores = run.scores().values()
    assert mean == pytest.approx(sum(scores) / len(scores), abs=1e-6)


def test_dicom_series_are_segmented_with_what_the_model_brings(run: Run, tmp_path: Path) -> None:
    if run.bundle is not PROSTATE or run.recipe == "":
        pytest.skip("photographs are no DICOM series here")
    pytest.importorskip("highdicom")
    from helpers.dicom_series import write_series

    expected = masks(run, run.folder, tmp_path / "masks")
    series = tmp_path / "series"
    for case in run.scores():
        image = nib.Nifti1Image.from_filename(str(run.site / case))
        voxels = np.asarray(image.dataobj, dtype=np.float32)
        stored = np.round(voxels * (30000 / voxels.max())).astype(np.int16)
        columns, rows_, slices = (float(side) for side in image.header.get_zooms()[:3])
        folder = series / case.partition(".")[0]
        write_series(folder, stored.transpose(2, 1, 0), spacing=(rows_, columns), step=slices)
    out = tmp_path / "dicom"
    assert main(["infer", str(run.folder), str(series), "--out", str(out)]) == 0
    found = masks_in(run, out)
    assert list(found) == list(expected)
    for name, mask in found.items():
        # Its grey levels are rounded.
        assert (mask != expected[name]).mean() < 0.01


# --- what is refused


@pytest.fixture(scope="module")
def brings(bundle: Bundle, site: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file of a model that brings a network and an inferer of its own."""
    folder = tmp_path_factory.mktemp("brings")
    bundle.run(TRAIN, site, folder, max_epochs=1, **OWN_OVERLAYS[bundle.name])
    return folder / "model.pt"


def test_without_what_the_model_brings_a_configuration_is_refused(
    bundle: Bundle, one_image: Path, brings: Path, tmp_path: Path
) -> None:
    error = bundle.without_overrides().cause_of_failed_run(
        INFERENCE, one_image, tmp_path, ckpt_path=str(brings)
    )
    assert "model.pt was trained with another " in str(error)
    assert "monai-fairfl infer, evaluate and export-model use what a model brings" in str(error)


@pytest.mark.parametrize(
    ("content", "named"),
    [
        ({"_target_": "os.system", "command": "true"}, "the _target_ 'os.system'"),
        ({"_target_": "SliceInferer", "roi_size": "$print('here')"}, "\"$print('here')\""),
        ({"_target_": "SliceInferer", "roi_size": "@size"}, "'@size'"),
        ({"_target_": "SliceInferer", "_mode_": "debug"}, "the _mode_ 'debug'"),
        ({"_target_": "UNet", "_requires_": ["x"]}, "the key '_requires_'"),
        ([{"_target_": "LoadImaged", "reader": "os.system"}], "the reader 'os.system'"),
        ([{"_target_": "LoadImaged", "reader": ["PILReader"]}], "the reader ['PILReader']"),
        ([{"_target_": "SaveImaged", "output_dir": "/"}], "the _target_ 'SaveImaged'"),
        ({"_target_": "SimpleInferer", "a": {"b": ["%/etc/passwd"]}}, "'%/etc/passwd'"),
        ({"_target_": ["os.system"]}, "the _target_ ['os.system']"),
    ],
)
def test_a_part_that_would_do_more_than_compute_is_refused(
    content: Any, named: str, brings: Path, tmp_path: Path
) -> None:
    parts = {"validate#inferer": {"content": content, "values": []}}
    sent = with_recipe(brings, tmp_path / "sent.pt", parts=parts)
    with pytest.raises(ConfigError) as refused:
        read_recipe(sent)
    text = f"sent.pt holds a recipe whose validate#inferer has {named}, which no model may bring"
    assert text in str(refused.value)


def test_a_model_replaces_only_what_the_bundle_lets_models_bring(
    bundle: Bundle, brings: Path, tmp_path: Path
) -> None:
    recipe = read_recipe(brings)
    assert recipe is not None
    parts = {**recipe.parts, "output_dir": {"content": "/elsewhere", "values": []}}
    values = {**recipe.values, "recipe#sections": ["output_dir"]}
    sent = read_recipe(with_recipe(brings, tmp_path / "sent.pt", parts=parts, values=values))
    assert sent is not None and "output_dir" in sent.parts
    assert inference_overlay(sent, bundle.root) == inference_overlay(recipe, bundle.root)
    assert evaluation_overlay(sent, bundle.root) == evaluation_overlay(recipe, bundle.root)

    parts = {"network_def": {"content": {"_target_": "UNet"}, "values": ["cases#folder"]}}
    sent_file = with_recipe(brings, tmp_path / "other.pt", parts=parts)
    with pytest.raises(ConfigError, match="network_def has 'cases#folder', which no model may"):
        read_recipe(sent_file)


def test_a_value_by_hand_that_a_part_was_made_of_is_refused(
    bundle: Bundle, one_image: Path, brings: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    # The line that the command prints, with another size.
    assert main(["infer", str(brings), str(one_image), "--out", str(out)]) == 0
    merged = json.loads((out / "recipe.json").read_text())
    given = {"ckpt_path": str(brings), "size": [48, 48], "own_values": ["size"], **merged}
    error = bundle.without_overrides().cause_of_failed_run(INFERENCE, one_image, tmp_path, **given)
    assert "size is [48, 48] here, and model.pt brings its own validate#inferer" in str(error)
