# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The hospitals of ``make demo``: what one sees in their images, and their split."""

from __future__ import annotations

import runpy
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from monai_fairfl.data import (
    DEMO_SITES,
    SITES,
    Site,
    make_case,
    site_datalist,
    site_folders,
    write_demo,
    write_sites,
)
from monai_fairfl.errors import DataError

CHECKOUT = Path(__file__).parents[2]
SMALL = (16, 16, 4)
SIZE = (48, 48, 8)
ALIKE = ("ash", "beech", "maple")
Sign = Callable[[np.ndarray, np.ndarray], float]  # of an image and its mask


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("demo")
    write_demo(root, seed=0, size=SMALL, workers=2)
    return root


def contents(root: Path) -> dict[str, bytes]:
    files = [path for path in sorted(root.rglob("*")) if path.is_file()]
    return {str(path.relative_to(root)): path.read_bytes() for path in files}


def test_every_hospital_tests_eight_cases_and_the_unusual_one_trains_two(written: Path) -> None:
    folders = site_folders(written)
    assert sorted(folders) == [*ALIKE, "willow"]
    for name, folder in folders.items():
        split = site_datalist(folder)
        images = {part: {case["image"] for case in cases} for part, cases in split.items()}
        assert len(images["training"]) == (2 if name == "willow" else 8)
        assert len(images["validation"]) == 2
        assert len(images["testing"]) == 8
        every = {str(path) for path in (written / name).glob("Case??.nii.gz")}
        assert images["training"] | images["validation"] | images["testing"] == every
        assert sum(len(part) for part in images.values()) == len(every)  # no case is in two parts


@pytest.mark.slow
def test_the_same_seed_gives_the_same_bytes(written: Path, tmp_path: Path) -> None:
    write_demo(tmp_path / "same", seed=0, size=SMALL)
    write_demo(tmp_path / "other", seed=1, size=SMALL, workers=2)
    assert contents(tmp_path / "same") == contents(written)
    image = "willow/Case00.nii.gz"
    assert contents(tmp_path / "other")[image] != contents(written)[image]


def brightness_behind_over_before(image: np.ndarray, mask: np.ndarray) -> float:
    """Mean brightness of the sixth of the depth behind the gland, over that before the gland."""
    columns, rows, _ = np.nonzero(mask)
    across = slice(columns.min(), columns.max() + 1)
    depth = image.shape[1] // 6
    front, back = rows.min(), rows.max()
    before = image[across, max(front - depth, 0) : front]
    behind = image[across, back + 1 : back + 1 + depth]
    return float(behind.mean() / before.mean())


def width_of_gland(image: np.ndarray, mask: np.ndarray) -> float:
    """Share of the image's width over which the gland reaches."""
    columns = np.nonzero(mask)[0]
    return float((columns.max() + 1 - columns.min()) / image.shape[0])


@pytest.mark.slow
@pytest.mark.parametrize("seen", [brightness_behind_over_before, width_of_gland])
def test_the_unusual_hospital_is_seen_in_its_images(seen: Sign) -> None:
    mean = {}
    for site in DEMO_SITES:
        values = []
        for number in range(6):
            image, mask, _ = make_case(site, number, seed=0, size=SIZE)
            values.append(seen(image.astype(float), mask))
        mean[site.name] = np.mean(values)
    alike = [mean[name] for name in ALIKE]
    assert max(alike) < 1.3 * min(alike)
    assert mean["willow"] > 1.4 * max(alike)


def test_no_image_of_the_demonstration_is_clipped() -> None:
    for site in DEMO_SITES:
        for number in range(4):
            assert make_case(site, number, size=SIZE)[0].max() < 32767, (site.name, number)


def test_the_hospitals_of_the_studies_are_others() -> None:
    def shift(site: Site) -> tuple[float, ...]:
        return (site.scale, site.gamma, site.bias, site.noise, site.coil, site.fov, site.blur)

    assert not {site.name for site in SITES} & {site.name for site in DEMO_SITES}
    assert not {shift(site) for site in SITES} & {shift(site) for site in DEMO_SITES}


def test_they_are_not_mixed_with_the_six_hospitals(tmp_path: Path) -> None:
    write_sites(tmp_path, sites=SITES[:1], cases=1)  # as demo-data --hospitals six writes them
    with pytest.raises(DataError, match="another size. Delete"):
        write_demo(tmp_path)
    assert not (tmp_path / "datalist").exists()


@pytest.mark.slow
def test_the_picture_of_the_hospitals_is_drawn_as_it_was_committed(tmp_path: Path) -> None:
    matplotlib = pytest.importorskip("matplotlib")
    script = runpy.run_path(str(CHECKOUT / "docs" / "images" / "demo.py"))
    with matplotlib.rc_context({"font.size": 20, "savefig.bbox": "tight", "axes.titlesize": 3}):
        script["draw_hospitals"](tmp_path / "drawn.png")
    pictures = []
    for file in (tmp_path / "drawn.png", script["FOLDER"] / "demo_hospitals.png"):
        with Image.open(file) as picture:
            pictures.append(np.asarray(picture.convert("L"), float))
    drawn, committed = pictures
    assert drawn.shape == committed.shape
    # Of 255 grey levels: letters may be drawn in another way, images may not.
    assert np.abs(drawn - committed).mean() < 5
