# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The statistics of a site's images are what numpy finds in the files, on every kind of image."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np
import pytest
from helpers.contract_bundles import CONTRACT_BUNDLES
from helpers.made_once import MadeOnce
from helpers.own_bundle import OWN_BUNDLE, write_noisy_balls
from monai.auto3dseg import SegSummarizer
from monai.auto3dseg.analyzer import ImageHistogramSumm
from monai.data import MetaTensor
from PIL import Image

from monai_fairfl.bundle.data_statistics import SiteData
from monai_fairfl.bundle.settings import SiteSettings
from monai_fairfl.data import site_datalist
from monai_fairfl.data.layouts.base import all_cases
from monai_fairfl.errors import ConfigError, DataError

PROSTATE, FUNDUS, *_ = CONTRACT_BUNDLES
BINS = 8


def moments_of(values: Any) -> dict[str, Any]:
    """As a site reports them."""
    return {
        "cases": len(values),
        "mean": pytest.approx(np.mean(values), rel=1e-5),
        "stdev": pytest.approx(np.std(values), rel=1e-4, abs=1e-5),
    }


def boxed(image: np.ndarray) -> np.ndarray:
    """The smallest box around what is above zero."""
    found = []
    for places in np.nonzero(image > 0):
        found.append(slice(places.min(), places.max() + 1))
    return image[tuple(found)]


@pytest.mark.long
@pytest.mark.slow
def test_of_volumes_they_are_numpys_over_the_files(made_once: MadeOnce) -> None:
    site = PROSTATE.images(made_once)
    data = SiteData(PROSTATE.root, "alder", site)
    found = data.statistics(BINS, (0.0, 400.0), 3)

    files = sorted(path for path in site.glob("*.nii.gz") if "segmentation" not in path.name)
    volumes = [nib.load(file).get_fdata() for file in files]
    labels = []
    for file in files:
        labels.append(nib.load(str(file).replace(".nii", "_segmentation.nii")).get_fdata())
    # Those that train, validate and test.
    assert found["cases"] == len(files) == 4
    spacings = np.array([nib.load(file).header.get_zooms() for file in files])
    for axis in range(3):
        sizes = [volume.shape[axis] for volume in volumes]
        assert found["size"][axis] == moments_of(sizes)
        assert found["spacing"][axis] == moments_of(spacings[:, axis])
        assert found["extent"][axis] == moments_of(sizes * spacings[:, axis])

    boxes = [boxed(volume) for volume in volumes]
    [intensity] = found["intensity"]
    assert intensity["mean"] == moments_of([box.mean() for box in boxes])
    assert intensity["stdev"] == moments_of([box.std() for box in boxes])
    high = [np.percentile(box, 99.5) for box in boxes]
    assert intensity["percentile_99_5"] == moments_of(high)
    assert "min" not in intensity and "max" not in intensity
    inside = [volume[label > 0].mean() for volume, label in zip(volumes, labels)]
    assert found["labelled"][0]["mean"] == moments_of(inside)
    assert found["labels"] == {"1": moments_of([(label == 1).mean() for label in labels])}

    counts = sum(np.histogram(volume, BINS, (0.0, 400.0))[0] for volume in volumes)
    for shown, expected in zip(found["histogram"][0]["counts"], counts):
        assert shown in (None, expected)
    assert found["histogram"][0]["counts"][0] is not None


@pytest.mark.long
@pytest.mark.slow
def test_of_photographs_they_are_of_each_colour_and_have_no_spacing(made_once: MadeOnce) -> None:
    site = FUNDUS.images(made_once)
    data = SiteData(FUNDUS.root, "acacia", site)
    found = data.statistics(BINS, (0.0, 256.0), 3)

    files = sorted((site / "images").iterdir())
    photographs = [np.asarray(Image.open(file).convert("RGB")) for file in files]
    masks = []
    for file in sorted((site / "masks").iterdir()):
        masks.append(np.asarray(Image.open(file).convert("L")))
    assert found["cases"] == len(files) == len(masks) == 4
    # MONAI's own list of transforms gives photographs voxels of 1 mm.
    assert found["spacing"] is None and found["extent"] is None
    assert found["size"] == [moments_of([64] * 4)] * 2
    for channel in range(3):
        boxes = [boxed(photograph[..., channel].astype(float)) for photograph in photographs]
        assert found["intensity"][channel]["mean"] == moments_of([box.mean() for box in boxes])
        counts = sum(
            np.histogram(photograph[..., channel], BINS, (0, 256))[0] for photograph in photographs
        )
        assert found["histogram"][channel]["counts"][0] == counts[0]
    # The disc includes the cup: 0, 128 and 255 in the masks.
    assert set(np.unique(masks)) == {0, 128, 255}
    assert list(found["labels"]) == ["disc", "cup"]
    assert found["labels"]["disc"] == moments_of([(mask > 0).mean() for mask in masks])
    assert found["labels"]["cup"] == moments_of([(mask == 255).mean() for mask in masks])


@pytest.mark.long
@pytest.mark.slow
def test_each_mask_has_the_structures_that_a_list_by_hand_gives_it(
    made_once: MadeOnce, tmp_path: Path
) -> None:
    site = FUNDUS.images(made_once)
    datalist = site_datalist(site, structures=("disc", "cup"))
    [first, *others] = all_cases(datalist)
    both = first["values"]
    # Nobody drew the cup of the first, and the others have the inner structure first.
    first["values"] = {"disc": both["disc"]}
    for case in others:
        case["values"] = {"cup": both["cup"], "disc": both["disc"]}
    file = tmp_path / "by_hand.json"
    file.write_text(json.dumps(datalist))
    settings = SiteSettings(overrides={"datalist_file": str(file)})
    found = SiteData(FUNDUS.root, "acacia", site, settings).statistics(BINS, (0.0, 256.0), 3)

    shares = {}
    for case in (first, *others):
        mask = np.asarray(Image.open(case["label"]).convert("L"))
        shares[case["label"]] = {"disc": (mask > 0).mean(), "cup": (mask == 255).mean()}
    discs = [share["disc"] for share in shares.values()]
    cups = [shares[case["label"]]["cup"] for case in others]
    assert found["labels"]["disc"] == moments_of(discs)
    # How many have a cup is withheld: only one lacks it.
    assert found["labels"]["cup"] == {**moments_of(cups), "cases": None}


@pytest.mark.long
@pytest.mark.slow
def test_of_a_bundle_that_knows_nothing_of_this_package(tmp_path: Path) -> None:
    write_noisy_balls(tmp_path, ["north"], side=16, centres=(6, 10), squared_radius=16)
    data = SiteData(OWN_BUNDLE, "north", tmp_path / "north")
    low, high = data.usual_limits(3)
    assert (low, high) == (-1.0, 2.0)
    found = data.statistics(BINS, (low, high), 3)
    labels = [
        nib.load(file).get_fdata() for file in sorted((tmp_path / "north/labelsTr").iterdir())
    ]
    assert found["cases"] == 3
    assert found["labels"] == {"1": moments_of([label.mean() for label in labels])}


def test_monais_summary_mixes_labels_where_a_case_lacks_one() -> None:
    # The reason that ours are made of the numbers of cases.
    summarizer = SegSummarizer("image", "label", do_ccp=False)
    cases = []
    for numbers in ([0, 1, 2, 2], [0, 0, 0, 2]):
        label = MetaTensor(np.array(numbers).reshape(1, 2, 2))
        image = MetaTensor(np.ones((1, 1, 2, 2), np.float32))
        for tensor in (label, image):
            tensor.meta["filename_or_obj"] = "a.nii"
        cases.append(summarizer({"image": image, "label": label}))
    summary = summarizer.summarize(cases)["label_stats"]["label"]
    # Label 1 is in the first case alone, a quarter of it. Label 2 is half of it, and a quarter of
    # the second.
    assert summary[1]["foreground_percentage"]["mean"] == pytest.approx(0.25)
    assert summary[2]["foreground_percentage"]["mean"] == pytest.approx(0.5)


def test_monais_summary_overwrites_the_first_cases_histogram() -> None:
    # The reason that it is mended here, and that a second summary counts twice.
    cases = []
    for counts in ([1, 2], [3, 4], [5, 6]):
        cases.append({"image_histogram": [{"counts": counts, "bin_edges": [0, 1, 2]}]})
    [total] = ImageHistogramSumm()(cases)["histogram"]
    assert total["counts"] == [9, 12]
    assert cases[0]["image_histogram"][0]["counts"] == [9, 12]
    [again] = ImageHistogramSumm()(cases)["histogram"]
    assert again["counts"] == [17, 22]


@pytest.mark.long
@pytest.mark.slow
def test_a_case_without_labels_has_no_intensity_of_labels(
    made_once: MadeOnce, tmp_path: Path
) -> None:
    site = tmp_path / "site"
    shutil.copytree(PROSTATE.images(made_once), site)
    empty, *others = sorted(site.glob("*_segmentation.nii.gz"))
    volume = nib.load(empty)
    nib.save(nib.Nifti1Image(np.zeros(volume.shape, np.uint8), volume.affine), empty)
    found = SiteData(PROSTATE.root, "alder", site).statistics(BINS, (0.0, 400.0), 3)

    means = []
    for file in others:
        image = nib.load(str(file).replace("_segmentation", "")).get_fdata()
        means.append(image[nib.load(file).get_fdata() > 0].mean())
    # How many have labels is withheld: only one lacks them.
    assert found["labelled"][0]["mean"] == {**moments_of(means), "cases": None}
    assert found["labels"]["1"]["cases"] is None


@pytest.mark.slow
def test_nothing_is_written_beside_the_images_or_where_the_command_runs(
    made_once: MadeOnce, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = tmp_path / "site"
    shutil.copytree(PROSTATE.images(made_once), site)
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    before = sorted(site.rglob("*"))
    SiteData(PROSTATE.root, "alder", site).statistics(BINS, (0.0, 400.0), 3)
    assert sorted(site.rglob("*")) == before
    assert not list(here.iterdir())


@pytest.mark.slow
def test_a_broken_image_is_an_error_and_not_one_case_less(
    made_once: MadeOnce, tmp_path: Path
) -> None:
    site = tmp_path / "site"
    shutil.copytree(PROSTATE.images(made_once), site)
    label = sorted(site.glob("*_segmentation.nii.gz"))[0]
    volume = nib.load(label)
    nib.save(nib.Nifti1Image(volume.get_fdata()[:20], volume.affine), label)
    with pytest.raises(DataError, match="site 'alder': MONAI's statistics failed"):
        SiteData(PROSTATE.root, "alder", site).statistics(BINS, (0.0, 400.0), 3)


def test_a_bundle_without_labels_is_refused(tmp_path: Path) -> None:
    root = tmp_path / "bundle"
    shutil.copytree(OWN_BUNDLE, root)
    config = root / "configs" / "train.json"
    config.write_text(config.read_text().replace("'label': l}", "'mask': l}"))
    write_noisy_balls(tmp_path, ["north"], side=16, centres=(6, 10), squared_radius=16)
    with pytest.raises(ConfigError, match="a case of its lists has no 'label'"):
        SiteData(root, "north", tmp_path / "north").statistics(BINS, (0.0, 1.0), 3)
