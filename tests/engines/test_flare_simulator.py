# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""NVFlare's simulator where it loses the process of a client."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("nvflare")

from helpers.federations import CLIENTS, assert_same_run, recipe  # noqa: E402
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
