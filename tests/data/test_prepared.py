# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""A process prepares the same image once, and never takes one image for another."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import nibabel
import numpy as np
import pytest
import torch
from monai.bundle import ConfigParser
from monai.data import CacheDataset, MetaTensor, PILReader
from monai.transforms import (
    Compose,
    EnsureChannelFirstd,
    Flipd,
    Invertd,
    Lambdad,
    LoadImaged,
    MapTransform,
    RandFlipd,
    SaveImaged,
    ScaleIntensityd,
    Spacingd,
)
from PIL import Image

from monai_fairfl.bundle.settings import SiteSettings
from monai_fairfl.bundle.sites import BundleSites
from monai_fairfl.data import RememberingCompose, UntrackedCompose, prepared
from monai_fairfl.data.prepared import PreparedItems, description_of, remember_prepared
from monai_fairfl.server.settings import RunSettings

BUNDLES = Path(__file__).parents[2] / "bundles"
FACTOR = 3


@pytest.fixture(autouse=True)
def remembers(monkeypatch: pytest.MonkeyPatch) -> None:
    """This process remembers, and files that were just written count as settled."""
    monkeypatch.setattr(prepared, "_memory", None)
    monkeypatch.setattr(prepared, "SECONDS_UNTIL_SETTLED", -1.0)
    remember_prepared()


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The volumes that were read."""
    files: list[str] = []
    load = nibabel.load

    def counted(file: Any, *arguments: Any, **named: Any) -> Any:
        files.append(Path(file).name)
        return load(file, *arguments, **named)

    monkeypatch.setattr(nibabel, "load", counted)
    return files


@pytest.fixture
def volume(tmp_path: Path) -> Path:
    file = tmp_path / "case.nii.gz"
    write(file, np.random.default_rng(0).random((6, 5, 4)))
    return file


def write(file: Path, values: np.ndarray) -> None:
    nibabel.save(
        nibabel.Nifti1Image(values.astype(np.float32), np.diag([1.0, 2.0, 3.0, 1.0])), file
    )


def chain(*more: Any, kind: Callable[..., Any] = RememberingCompose) -> Any:
    """Transforms as each run makes them."""
    load = LoadImaged("image", reader="NibabelReader")
    return kind([load, EnsureChannelFirstd("image"), ScaleIntensityd("image"), *more])


def test_another_run_gets_the_same_image_without_reading_it(volume: Path, reads: Any) -> None:
    item = {"image": str(volume), "fold": 2}
    first = chain()(item)["image"]
    second = chain()(item)["image"]
    expected = chain(kind=Compose)(item)["image"]
    assert reads == ["case.nii.gz"] * 2
    assert first is not second and second.meta["filename_or_obj"] == str(volume)
    for found in (first, second):
        assert isinstance(found, MetaTensor) and torch.equal(found, expected)
        assert torch.equal(found.affine, expected.affine)
        assert found.is_contiguous() == expected.is_contiguous()


def test_random_transforms_draw_every_time(volume: Path, reads: Any) -> None:
    for kind in (RememberingCompose, UntrackedCompose):
        for _ in range(2):
            item = {"image": str(volume)}
            flip = RandFlipd("image", prob=0.5, spatial_axis=0)
            ours, monais = chain(flip, kind=kind), chain(flip, kind=Compose)
            dataset = CacheDataset([item] * 3, ours, progress=False)
            ours.set_random_state(4)
            found = [torch.as_tensor(dataset[index]["image"]) for index in range(3)]
            monais.set_random_state(4)
            expected = [torch.as_tensor(monais(item)["image"]) for _ in range(3)]
            assert all(torch.equal(one, other) for one, other in zip(found, expected))
    # Once for ours, the others for MONAI's.
    assert len(reads) == 1 + 4 * 3


def test_nobody_changes_what_another_gets(volume: Path) -> None:
    expected = chain(kind=Compose)({"image": str(volume)})["image"]
    for _ in range(3):
        found = chain()({"image": str(volume)})["image"]
        assert torch.equal(found, expected)
        found.fill_(7)
        found.meta["filename_or_obj"] = "another"


def test_a_changed_file_is_another_image_also_with_the_size_and_time_of_before(
    volume: Path,
) -> None:
    before = os.stat(volume)
    first = chain()({"image": str(volume)})["image"]
    values = np.asarray(nibabel.load(volume).dataobj)
    write(volume, values[::-1])
    with open(volume, "ab") as file:
        file.truncate(before.st_size)
    os.utime(volume, ns=(before.st_atime_ns, before.st_mtime_ns))
    after = os.stat(volume)
    if after.st_size != before.st_size:
        pytest.skip("the volumes are packed to different sizes")
    second = chain()({"image": str(volume)})["image"]
    assert after.st_mtime_ns == before.st_mtime_ns
    assert torch.equal(second, first.flip(1))


def test_a_file_that_was_just_written_is_not_remembered(
    volume: Path, reads: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prepared, "SECONDS_UNTIL_SETTLED", 3600.0)
    for _ in range(2):
        chain()({"image": str(volume)})
    assert len(reads) == 2


def test_other_arguments_and_other_values_are_other_images(volume: Path, tmp_path: Path) -> None:
    item = {"image": str(volume)}
    transforms = chain().transforms
    described = {
        description_of(item, transforms),
        description_of({**item, "fold": 1}, transforms),
        description_of({**item, "fold": [1]}, transforms),
        description_of({**item, "fold": (1,)}, transforms),
        description_of({**item, "values": {"disc": [1, 2]}}, transforms),
        description_of({**item, "values": {"disc": [2, 2]}}, transforms),
        description_of({**item, "values": {"cup": [1, 2]}}, transforms),
        description_of(item, chain(Flipd("image", 0)).transforms),
        description_of(item, chain(Flipd("image", 1)).transforms),
        description_of(item, chain(Lambdad("image", lambda image: image * 2)).transforms),
        description_of(item, chain(Lambdad("image", lambda image: image * 3)).transforms),
        description_of(item, chain(Lambdad("image", float)).transforms),
    }
    with_threads = torch.get_num_threads()
    try:
        torch.set_num_threads(with_threads + 1)
        described.add(description_of(item, transforms))
    finally:
        torch.set_num_threads(with_threads)
    assert None not in described and len(described) == 13
    assert description_of(dict(item), chain().transforms) in described


class Elsewhere(MapTransform):
    """A transform of another package: nobody knows what it reads."""

    def __call__(self, data: Any) -> dict:
        return {**data, "image": data["image"] * FACTOR}


def test_what_cannot_be_described_is_never_remembered(volume: Path, tmp_path: Path) -> None:
    item = {"image": str(volume)}
    factor = float(FACTOR)
    outside = [
        Elsewhere("image"),
        Lambdad("image", lambda image: image * FACTOR),
        Lambdad("image", lambda image: image * factor),
        Lambdad("image", lambda image, factor=factor: image * factor),
        Lambdad("image", lambda image: image * len(os.listdir("/"))),
        Lambdad("image", lambda image: image * float(open("/etc/hostname").read())),
        Lambdad("image", lambda image: torch.stack([row for row in image])),
        *(Lambdad("image", function) for function in (eval, exec, input, print, vars, id, open)),
        Lambdad("image", __import__),
        Lambdad("image", partial(print, "image")),
        SaveImaged("image", tmp_path),
    ]
    for transform in outside:
        assert description_of(item, chain(transform).transforms) is None, transform
    series = tmp_path / "series"
    series.mkdir()
    header = tmp_path / "case.hdr"
    header.touch()
    unknown = (str(series), str(header), [str(volume), series], {"path": series}, torch.ones(1))
    for value in unknown:
        assert description_of({**item, "more": value}, chain().transforms) is None, value


def test_a_transform_of_another_package_acts_every_time(
    volume: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    item = {"image": str(volume)}
    first = chain(Elsewhere("image"))(item)["image"]
    monkeypatch.setitem(globals(), "FACTOR", 6)
    assert torch.equal(chain(Elsewhere("image"))(item)["image"], 2 * first)


def test_a_function_of_pythons_own_acts_every_time(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(prepared, "_memory", PreparedItems())
    prepare = RememberingCompose([Lambdad("case", print, overwrite=False)])
    for _ in range(2):
        prepare({"case": "Case01"})
    assert capsys.readouterr().out == "Case01\n" * 2


def test_what_does_not_fit_is_prepared_every_time(
    volume: Path, reads: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prepared, "_memory", PreparedItems(limit=100))
    for _ in range(2):
        chain()({"image": str(volume)})
    assert len(reads) == 2
    monkeypatch.setattr(prepared, "_memory", PreparedItems())
    monkeypatch.setattr(prepared, "free_memory", lambda: 1000)
    for _ in range(2):
        chain()({"image": str(volume)})
    assert len(reads) == 4


def test_a_remembered_image_can_be_inverted(volume: Path) -> None:
    item = {"image": str(volume)}
    inverted = []
    for _ in range(2):
        transforms = chain(Spacingd("image", pixdim=(1.0, 1.0, 1.0)), Flipd("image", 0))
        found = transforms(item)
        back = Invertd("image", transforms, nearest_interp=False)(found)
        inverted.append(back["image"])
    assert found["image"].shape != inverted[0].shape == (1, 6, 5, 4)
    assert torch.equal(*inverted)


def test_photographs_are_remembered_with_the_bundles_own_readers(tmp_path: Path) -> None:
    file = tmp_path / "eye.png"
    Image.new("RGB", (6, 4), (9, 8, 7)).save(file)
    reader = PILReader(converter=eval("lambda image: image.convert('RGB')", {"monai": 1}))
    assert description_of({"image": str(file)}, [LoadImaged("image", reader=reader)])


@pytest.mark.slow
def test_the_runs_of_a_comparison_read_a_site_once(
    hospitals: Path, tmp_path: Path, reads: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prepared, "_memory", None)
    bundle = BUNDLES / "prostate_mri_segmentation"
    sites = BundleSites(
        bundle,
        hospitals,
        ["birch"],
        {},
        SiteSettings(overrides={"size": [32, 32]}),
        RunSettings(rounds=1),
        tmp_path / "datalists",
    )
    prepared_by_run = []
    for run in ("first", "second"):
        client = sites.client_maker("birch", tmp_path / run, "cpu")()
        client.initialize({})
        cached = [*client.trainer.data_loader.dataset._cache]
        cached += client.train_workflow.evaluator.data_loader.dataset._cache
        prepared_by_run.append([item["image"] for item in cached])
        number = len(reads)
        client.finalize()
    assert number == len(set(reads)) > 4
    for one, other in zip(*prepared_by_run, strict=True):
        assert torch.equal(one, other)


def test_a_process_that_was_not_asked_to_remembers_nothing(
    volume: Path, reads: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prepared, "_memory", None)
    for _ in range(2):
        chain()({"image": str(volume)})
    assert len(reads) == 2


@pytest.mark.parametrize("name", ["prostate_mri_segmentation", "fundus_disc_cup_segmentation"])
def test_all_that_the_bundles_prepare_can_be_described(name: str, volume: Path) -> None:
    parser = ConfigParser()
    parser.read_config(str(BUNDLES / name / "configs" / "train.json"))
    parser.update({"bundle_root": str(BUNDLES / name), "dataset_dir": str(volume.parent)})
    for section in ("train#preprocessing", "validate#preprocessing"):
        compose = parser.get_parsed_content(section)
        transforms = compose.transforms[: compose.first_random()]
        assert len(transforms) > 5
        # As the data list of photographs has them.
        values = {"disc": [64, 255], "cup": [192, 255]}
        assert description_of({"image": str(volume), "values": values}, transforms)
