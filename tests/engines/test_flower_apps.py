# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The two components of an app, on Flower's grid in this process: the server knows sites by their
keys, and the run is that of one process.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

pytest.importorskip("flwr")

import torch  # noqa: E402
from cryptography.hazmat.primitives.serialization import Encoding  # noqa: E402
from helpers.federations import (  # noqa: E402
    BUNDLE,
    SETTINGS,
    assert_same_run,
    in_one_process,
)
from helpers.flower_grid import App, Nodes, new_key, own_files  # noqa: E402

from monai_fairfl import find_bundle  # noqa: E402
from monai_fairfl.errors import ConfigError  # noqa: E402
from monai_fairfl.transports.flower import export_app  # noqa: E402

HOME = "MONAI_FAIRFL_HOME"

NETWORK = '''
import torch
from monai.networks.nets import DynUNet


class Bfloat16DynUNet(DynUNet):
    """A DynUNet in bfloat16, between images and predictions in float32."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.to(torch.bfloat16)

    def forward(self, x):
        return super().forward(x.to(torch.bfloat16)).float()
'''


def write_bfloat16_bundle(folder: Path) -> Path:
    """Copy the prostate bundle into a new folder, with such a network; returns the folder."""
    shutil.copytree(find_bundle("prostate_mri_segmentation"), folder)
    (folder / "scripts").mkdir()
    (folder / "scripts" / "__init__.py").touch()
    (folder / "scripts" / "bfloat16.py").write_text(NETWORK)
    file = folder / "configs" / "train.json"
    config = json.loads(file.read_text())
    config["network_def"]["_target_"] = "scripts.bfloat16.Bfloat16DynUNet"
    file.write_text(json.dumps(config, indent=4))
    return folder


def test_a_run_has_the_ledger_and_models_of_one_process_in_bfloat16_too(
    hospitals: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Flower's own records go through NumPy, which has no such type."""
    bundle = write_bfloat16_bundle(tmp_path / "bundle")
    expected = in_one_process(hospitals, tmp_path / "half", 2, bundle)
    keys = tmp_path / "server" / "keys"
    keys.mkdir(parents=True)
    monkeypatch.setenv(HOME, str(tmp_path / "server"))
    job = {"num_rounds": 2, "min_clients": 3, "overrides": SETTINGS, "device": "cpu"}
    app = App(
        export_app(tmp_path / "app", bundle=str(bundle), strategy="FedAvg", name="half", **job)
    )
    nodes = Nodes()
    # In another order than that of the names.
    for site in ("cedar", "alder", "birch"):
        public, written = new_key(Encoding.PEM, Encoding.OpenSSH)
        (keys / f"{site}.pub").write_bytes(written + b" admin@hospital\n")
        nodes.connect(
            app.site(own_files(tmp_path / site, hospitals / site, bundle=str(bundle))), public
        )
    stranger = nodes.connect(app.site({"name": "alder", "folder": str(tmp_path / "alder")}))

    app.serve(nodes)

    run = tmp_path / "server" / "runs" / "half"
    assert_same_run(run, expected)
    model = torch.load(run / "models" / "global.pt", weights_only=True)["model"]
    assert torch.bfloat16 in {tensor.dtype for tensor in model.values()}
    assert (run / "report.html").exists()
    [warning] = [line for line in caplog.messages if str(stranger) in line]
    assert str(keys) in warning


def test_a_server_without_a_key_for_each_site_begins_no_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = App(export_app(tmp_path / "app", bundle=BUNDLE, overrides=SETTINGS))
    keys = tmp_path / "server" / "keys"
    keys.mkdir(parents=True)

    def refused(*words: str) -> None:
        with pytest.raises(ConfigError) as error:
            app.serve(Nodes())
        assert all(word in str(error.value) for word in words)

    monkeypatch.setenv(HOME, "server")
    refused(HOME, "absolute")
    monkeypatch.setenv(HOME, str(tmp_path / "server"))
    refused(str(keys), "key")
    [key] = new_key(Encoding.OpenSSH)
    for site in ("alder", "birch"):
        (keys / f"{site}.pub").write_bytes(key)
    refused("alder", "birch", "same")
    (keys / "birch.pub").write_bytes(b"ssh-rsa nonsense")
    refused("birch.pub", "public key")
    assert not (tmp_path / "server" / "runs").exists()
