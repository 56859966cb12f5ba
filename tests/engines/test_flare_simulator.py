# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""NVFlare's simulator where it loses the process of a client, or where a run does not end."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("nvflare")

from helpers import warm_python  # noqa: E402
from helpers.federations import BUNDLE, CLIENTS, SETTINGS, assert_same_run, recipe  # noqa: E402
from nvflare.recipe.sim_env import SimEnv  # noqa: E402

pytestmark = pytest.mark.engines

KILLED = """
import os, threading, time
words = open('/proc/self/cmdline').read().split(chr(0))
if 'nvflare.private.fed.app.simulator.simulator_worker' in words and 'cedar' in words:
    if not os.path.exists(ONCE):
        open(ONCE, 'w').close()
        def end():
            while not os.path.exists(LEDGER):
                time.sleep(0.05)
            os._exit(9)
        threading.Thread(target=end, daemon=True).start()
"""
"""What ends the process that NVFlare starts for cedar, once, after the first round."""


def test_a_simulator_that_lost_a_client_ends_and_begins_again_to_the_same_bits(
    hospitals: Path,
    one_process: Callable[..., Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    once = tmp_path / "once"
    place = tmp_path / "there"
    ledger = place / "FedCE" / "server" / "fairfl" / "FedCE" / "ledger.jsonl"
    killed = KILLED.replace("ONCE", repr(str(once))).replace("LEDGER", repr(str(ledger)))
    (tmp_path / "sitecustomize.py").write_text(killed)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    environment = SimEnv(clients=CLIENTS, workspace_root=str(place))
    with pytest.raises(RuntimeError, match="Simulation failed"):
        recipe("FedCE", hospitals).execute(environment)
    assert once.exists()
    assert "lost the process" in (place / "FedCE" / "server" / "error_log.txt").read_text()
    recipe("FedCE", hospitals).execute(environment)
    assert_same_run(one_process("FedCE"), place / "FedCE" / "server" / "fairfl" / "FedCE")


def test_a_run_that_does_not_end_is_not_taken_for_an_older_one(
    hospitals: Path, one_process: Callable[..., Path], tmp_path: Path
) -> None:
    for site in CLIENTS:
        shutil.copytree(hospitals / site, tmp_path / "sites" / site)
    (tmp_path / "sites" / "cedar" / "Case00.nii.gz").write_bytes(b"damaged")
    (tmp_path / "name.json").write_text('{"name": "FedCE"}')
    shutil.copytree(one_process("FedCE"), tmp_path / "kept" / "server" / "FedCE")
    words = ["-W", "ignore", "-m", "monai_fairfl", "train", str(tmp_path / "sites"), "--json"]
    words += ["--engine", "flare", "--settings", str(tmp_path / "name.json"), "--bundle", BUNDLE]
    words += ["--out", str(tmp_path), "--rounds", "1", "--overrides", str(SETTINGS)]
    done = warm_python.run(words, tmp_path, timeout=600)
    assert done.returncode == 2
    assert "run" not in json.loads(done.stdout)
