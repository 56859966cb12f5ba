# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""One federation over every transport: the ledger and the models of one process, to the bit."""

from __future__ import annotations

import json
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from helpers import warm_python
from helpers.federations import (
    BUNDLE,
    CLIENTS,
    LAST_MILE,
    ROUNDS,
    SETTINGS,
    assert_same_run,
    recipe,
    strategy,
)

from monai_fairfl import read_ledger
from monai_fairfl.audit import check_receipts, read_receipts

OneProcess = Callable[..., Path]

TWO: dict[str, Any] = {"site_names": CLIENTS[:2], "min_clients": 2, "final": ["score"]}

RAY = {"RAY_memory_monitor_refresh_ms": "0", "RAY_worker_niceness": "0"}
"""Ray must not end workers of a machine that other programs use, nor let them wait."""


def test_the_messages_of_nvflare_of_a_model_for_each_client(
    hospitals: Path, one_process: OneProcess, tmp_path: Path
) -> None:
    pytest.importorskip("nvflare")
    from helpers.flare_job import Executed, exported, played, site_settings_of

    given = {name: TWO[name] for name in ("min_clients", "final")}
    app = exported(recipe("ShapFed", hospitals, custom_code=False, **given), tmp_path)
    sites = {}
    for name in TWO["site_names"]:
        sites[name] = Executed(name, tmp_path / name, site_settings_of(app))
    job = played(app, tmp_path / "server", sites)

    assert_same_run(one_process("ShapFed", **TWO), job.kept)
    for name in sites:
        own = tmp_path / name / "fairfl" / name / "state" / "receipts.jsonl"
        assert_receipts_prove(job.kept, own)
    # What a download brings.
    results = {path.name for path in (tmp_path / "server" / "job" / "fairfl").iterdir()}
    assert {"ledger.jsonl", "models", "report.html"} <= results
    assert "checkpoints" not in results


SIMULATORS = {
    "flare": ("nvflare", "kept/server", "kept/{0}/{0}", "NVIDIA FLARE", ()),
    "flower": ("flwr", "server", "sites/{0}/fairfl/{0}", "Flower", ("--jobs", "2")),
}
"""Engine -> module, folder of the runs, folder of a site, name in the run, options."""


@pytest.mark.engines
@pytest.mark.parametrize("engine", SIMULATORS)
def test_a_simulator_by_its_command(
    engine: str, hospitals: Path, one_process: OneProcess, tmp_path: Path
) -> None:
    module, runs, of_site, name, options = SIMULATORS[engine]
    if find_spec(module) is None:
        pytest.skip(f"{module} is not installed")
    settings = {**LAST_MILE, "name": "FedCE", "site_names": CLIENTS}
    (tmp_path / "run.json").write_text(json.dumps(settings))
    words = ["-W", "ignore", "-m", "monai_fairfl", "train", str(hospitals), "--json", *options]
    words += ["--engine", engine, "--out", str(tmp_path), "--settings", str(tmp_path / "run.json")]
    words += ["--bundle", BUNDLE, "--strategy", json.dumps(strategy("FedCE"))]
    words += ["--rounds", str(ROUNDS), "--local-epochs", "1", "--overrides", str(SETTINGS)]

    done = warm_python.run(words, tmp_path, timeout=900, **RAY)

    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
    run = tmp_path / runs / "FedCE"
    assert json.loads(done.stdout) == {"run": str(run), "report": str(run / "report.html")}
    assert_same_run(one_process("FedCE", **LAST_MILE), run)
    config = json.loads((run / "settings.json").read_text())
    assert (config["engine"], config["rounds"], config["local_epochs"]) == (name, ROUNDS, 1)
    for site in CLIENTS:
        assert_receipts_prove(run, tmp_path / of_site.format(site) / "state" / "receipts.jsonl")


def assert_receipts_prove(run: Path, file: Path) -> None:
    """What a site stored in ``file`` covers every record of the server's ledger."""
    proof = check_receipts(run, read_receipts(file))
    assert (proof.covered, proof.problems) == (len(read_ledger(run / "ledger.jsonl")), ())
