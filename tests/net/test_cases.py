# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Files and networks of others that once went wrong. Each says where it was met."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pydicom
import pytest
import torch
from helpers.net_programs import play
from torch import nn
from torch.nn.utils.parametrizations import spectral_norm, weight_norm

from monai_fairfl import read_spec
from monai_fairfl.errors import ConfigError
from monai_fairfl.workflow import find_images


def test_dicom_without_preamble(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """pydicom issues 150 and 2231, GSTT-CSC/hazen issue 433, JuliaHealth/DICOM.jl issue 5.

    Scanners, treatment planning and archives export files without the 128 bytes and "DICM".
    """
    image = np.random.default_rng(0).normal(300, 40, (48, 48, 12)).astype(np.int16)
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
