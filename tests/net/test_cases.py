# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Files and networks of others that once went wrong. Each says where it was met."""

from __future__ import annotations

import logging
import math
from pathlib import Path
from typing import Any

import nibabel
import numpy as np
import pydicom
import pytest
import torch
from helpers.net_programs import adapter, play
from torch import nn
from torch.nn.utils.parametrizations import spectral_norm, weight_norm

from monai_fairfl import read_spec
from monai_fairfl.errors import ConfigError
from monai_fairfl.workflow import find_images

AFFINE = np.array([[-1.5, 0, 0, 36], [0, -1.5, 0, 36], [0, 0, 3, -18], [0, 0, 0, 1.0]])
SHAPE = (48, 48, 12)


def patient(number: int, left: int = 16) -> tuple[np.ndarray, np.ndarray]:
    """A bright block in noise and its mask, another one for each number."""
    mask = np.zeros(SHAPE, np.uint8)
    mask[left : left + 14, 16:32, 3:9] = 1
    mask[left + number % 10, 16 + number // 10, 3] = 0
    noise = np.random.default_rng(number).normal(300, 40, SHAPE)
    return (noise + 200 * mask).astype(np.int16), mask


def save(array: np.ndarray, path: Path, affine: np.ndarray = AFFINE) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    nibabel.save(nibabel.Nifti1Image(array, affine), path)


def write_sites(root: Path) -> list[Path]:
    """Two sites of four patients; the paths of their images."""
    paths = []
    for number in range(8):
        image, mask = patient(number)
        path = root / ("ash", "oak")[number // 4] / f"Case{number % 4:02d}.nii.gz"
        save(image, path)
        save(mask, mask_of(path))
        paths.append(path)
    return paths


def mask_of(image: Path) -> Path:
    return image.with_name(image.name.replace(".nii", "_segmentation.nii"))


def test_dicom_without_preamble(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """pydicom issues 150 and 2231, GSTT-CSC/hazen issue 433, JuliaHealth/DICOM.jl issue 5.

    Scanners, treatment planning and archives export files without the 128 bytes and "DICM".
    """

    image, _ = patient(0)
    for name in ("P1", "P2"):
        play.write_series(tmp_path / "in" / name, image, [1, 0, 0, 0, 1, 0])
    # As archives do: no ending; and of P2 only the data set behind the preamble and its group.
    for path in sorted((tmp_path / "in").glob("*/*")):
        content = path.read_bytes()
        begin = 144 + int.from_bytes(content[140:144], "little") if path.parent.name == "P2" else 0
        path.with_suffix("").write_bytes(content[begin:])
        path.unlink()

    with caplog.at_level(logging.INFO):
        cases = list(find_images(tmp_path / "in", tmp_path / "volumes.json"))
    if not cases or pydicom.dcmread(path.with_suffix(""), force=True).PatientID != "P2":
        raise ValueError("both patients must be readable")
    assert len(cases) == 2 or "P2" in caplog.text or "passed over" in caplog.text


class WithExtraState(nn.Module):
    """A network that stores how often it ran."""

    def __init__(self, network: nn.Module):
        super().__init__()
        self.network = network

    def get_extra_state(self) -> Any:
        return {"steps": 0}

    def set_extra_state(self, state: Any) -> None:
        pass

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        return self.network(image)


@pytest.mark.parametrize("kind", ["weight_norm", "spectral_norm", "extra state"])
def test_network_with_other_state(kind: str) -> None:
    """flwrlabs/flower issue 4344: entries of a state dict that are no plain weight.

    Plain weights are read; what has no mean is refused, with its layer.
    """
    network: nn.Module = nn.Sequential(nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.Conv2d(8, 1, 1))
    if kind == "extra state":
        network = WithExtraState(network)
    else:
        norm = {"weight_norm": weight_norm, "spectral_norm": spectral_norm}[kind]
        network[0] = norm(network[0])
    image = torch.zeros(1, 1, 24, 24)
    if kind == "weight_norm":
        spec = read_spec(network, image)
        assert set(spec.tensors_of(network)) == set(network.state_dict())
        assert {layer for name, layer in spec.layers.items() if name.startswith("0.")} == {"0"}
    else:
        with pytest.raises(ConfigError, match=f"'(0)?'.*{kind}"):
            read_spec(network, image)


def test_organ_outside_the_field(tmp_path: Path) -> None:
    """Project-MONAI/MONAI issues 6576, 6751 and 876: a central crop that leaves out the label."""
    for number, path in enumerate(write_sites(tmp_path)):
        if path.parent.name == "oak":
            image, mask = patient(number, left=33)
            save(image, path)
            save(mask, mask_of(path))
    # The bundle trains on the central 70 %.
    last = SHAPE[0] // 2 + math.ceil(0.7 * SHAPE[0]) // 2
    if mask[last:].sum() < mask.sum() / 3:
        raise ValueError("a third of the organ must lie outside")
    _, lines = adapter.check_data(tmp_path)
    assert any("field" in line or "centre" in line for line in lines)
