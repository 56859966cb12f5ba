# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Pictures of cases: drawn at the hospital, and on its own page only."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np
import pytest
import torch
from helpers.reports import rows_of
from helpers.scripted_run import train, with_cases
from monai.data import DataLoader, Dataset
from monai.engines import SupervisedEvaluator
from monai.transforms import Compose, EnsureChannelFirstd, LoadImaged
from PIL import Image

from monai_fairfl.metrics import CasePictures
from monai_fairfl.report import write_report
from monai_fairfl.strategies import FedAvg

DOWN = {"elm": 1, "oak": 3, "yew": 0}
"""Case -> by so many voxels the prediction lies too low along the first axis."""


class Down(torch.nn.Module):
    """Predicts the image itself, moved down."""

    def forward(self, image: torch.Tensor) -> Any:
        down = int(image.max()) - 1
        return torch.roll((image > 0).float(), down, dims=2)


def evaluator_of(folder: Path, affine: np.ndarray[Any, Any]) -> SupervisedEvaluator:
    cases = []
    for name, down in DOWN.items():
        label = np.zeros((20, 24, 5), np.uint8)
        label[5:13, 4:16, 1:4] = 1
        for kind, array in (("image", label * (down + 1)), ("label", label)):
            file = folder / f"{name}_{kind}.nii.gz"
            nib.save(nib.Nifti1Image(array, affine), file)
        cases.append({kind: folder / f"{name}_{kind}.nii.gz" for kind in ("image", "label")})
    keys = ("image", "label")
    data = Dataset(cases, Compose([LoadImaged(keys), EnsureChannelFirstd(keys)]))
    return SupervisedEvaluator(
        torch.device("cpu"), DataLoader(data, batch_size=1), Down(), decollate=True
    )


@pytest.mark.parametrize("diagonal", [(2, 0.5, 3), (-2, 0.5, -3)])
def test_errors_and_sizes_are_those_of_the_voxels_whatever_the_orientation(
    diagonal: tuple[float, ...], tmp_path: Path
) -> None:
    evaluator = evaluator_of(tmp_path, np.diag((*diagonal, 1)))
    pictures = CasePictures(tmp_path / "cases.png", tmp_path / "sizes.csv")
    pictures.attach(evaluator)
    evaluator.run()
    rows = rows_of(tmp_path / "sizes.csv")
    assert {row["case"].split("_")[0]: float(row["dice"]) for row in rows} == pytest.approx(
        {name: (8 - down) / 8 for name, down in DOWN.items()}
    )
    ml = 8 * 12 * 3 * 2 * 0.5 * 3 / 1000
    assert all(float(row["reference"]) == pytest.approx(ml, abs=0.005) for row in rows)
    image = np.asarray(Image.open(tmp_path / "cases.png")).astype(int)
    red, blue = image[..., 0] - image[..., 2] > 60, image[..., 2] - image[..., 0] > 60
    best, median, worst = (slice(start, start + 320) for start in (0, 330, 660))
    # As many voxels are missed as there are too many; the best case has none of either.
    for panel, errors in ((best, 0), (median, 1), (worst, 3)):
        assert (blue[:, panel].sum() > 0) == (errors > 0)
    assert blue[:, worst].sum() > blue[:, median].sum()
    assert red[:, worst].sum() > red[:, median].sum()


def test_a_case_that_cannot_be_drawn_costs_no_score(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    evaluator = evaluator_of(tmp_path, np.eye(4))
    CasePictures(tmp_path / "cases.png", tmp_path / "sizes.csv").attach(evaluator)
    evaluator.add_event_handler("EPOCH_COMPLETED", (tmp_path / "elm_image.nii.gz").unlink)
    evaluator.run()
    assert len(rows_of(tmp_path / "sizes.csv")) == 3
    assert "elm_image" in caplog.text


def test_the_picture_is_on_the_hospitals_own_page_and_on_no_other(tmp_path: Path) -> None:
    run = train(tmp_path / "run", FedAvg(), {"elm": (0.8, 0.1, 2), "oak": (0.7, 0.1, 2)})
    table = with_cases(run, "elm", {"a": 0.7, "b": 0.9})
    place = table.stem.removeprefix(f"{run.name}-test_score-")
    sizes = "case,dice,reference,prediction,unit\na,0.7,20,25,ml\nb,0.9,30,31,ml\n"
    table.with_name(f"{run.name}-sizes-{place}.csv").write_text(sizes)
    Image.new("RGB", (8, 8)).save(table.with_name(f"{run.name}-cases-{place}.png"))
    write_report([run])
    with_images = [f.name for f in run.rglob("*.html") if "data:image/png" in f.read_text()]
    assert with_images == ["elm.html"]
