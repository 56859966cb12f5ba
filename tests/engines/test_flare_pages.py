# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The pages of NVIDIA FLARE: their commands, jobs and files do what they say."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("nvflare")

import torch  # noqa: E402
from helpers.checkout import CHECKOUT  # noqa: E402
from helpers.federations import CLIENTS, assert_same_run  # noqa: E402
from helpers.flare_job import CLIENTS as SCRIPTS  # noqa: E402
from helpers.flare_job import reply_to, workspace_of  # noqa: E402
from helpers.page_blocks import blocks_in  # noqa: E402
from nvflare.apis.fl_context import FLContext  # noqa: E402
from nvflare.app_common.abstract.fl_model import FLModel  # noqa: E402
from nvflare.app_common.utils.fl_model_utils import FLModelUtils  # noqa: E402
from nvflare.fuel.sec.authz import Authorizer, AuthzContext, Person  # noqa: E402
from nvflare.private.fed.app.fl_conf import create_privacy_manager  # noqa: E402

from monai_fairfl import read_ledger  # noqa: E402

PRODUCTION, SIMULATOR = "docs/flare_production.md", "docs/flare_simulator.md"


def names_in_first_column(page: str, head: str) -> list[str]:
    """All words in backticks in the first column of the table whose first line begins so."""
    table = (CHECKOUT / page).read_text().split(head)[1].split("\n\n")[0]
    names: list[str] = []
    for row in table.splitlines()[2:]:
        names += re.findall(r"`([^`]+)`", row.split("|")[1])
    return names


def commands(page: str) -> list[list[str]]:
    """The words of every command of a page, without comments."""
    lines = "".join(blocks_in(page, "bash")).replace("\\\n", " ").splitlines()
    return [shlex.split(line, comments=True) for line in lines if line]


def run(folder: Path, *words: object, timeout: float = 400) -> None:
    """Run an interpreter in a folder, which is its home, too."""
    environment = {**os.environ, "HOME": str(folder), "PYTHONPATH": str(CHECKOUT)}
    environment["OMP_NUM_THREADS"] = "1"
    done = subprocess.run(
        [sys.executable, "-W", "ignore", *map(str, words)],
        cwd=folder,
        env=environment,
        timeout=timeout,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    assert done.returncode == 0, done.stdout.decode()[-3000:]


# ---- flare_simulator.md ----


@pytest.mark.engines
def test_the_simulator_page_is_enough(
    hospitals: Path, one_process: Callable[..., Path], tmp_path: Path
) -> None:
    (tmp_path / "hospitals").symlink_to(hospitals)
    left = tmp_path / "flare" / "FedCE" / "server" / "of an earlier run"
    left.mkdir(parents=True)
    [words] = [words for words in commands(SIMULATOR) if words[0] == "python"]
    run(tmp_path, CHECKOUT / words[1], *words[2:], "--sites", *CLIENTS)

    assert not left.exists(), "the page says that the simulator empties its workspace"
    job = tmp_path / "flare" / "FedCE"
    for name in names_in_first_column(SIMULATOR, "| in `flare/FedCE/`"):
        assert (job / name).exists(), name
    found = job / "server" / "fairfl" / "FedCE"
    assert_same_run(one_process("FedCE"), found)


# ---- flare_migrating.md ----


@pytest.fixture
def jobs(tmp_path: Path) -> Path:
    """The files that the page names."""
    return shutil.copytree(CHECKOUT / "docs/examples/flare/own_script", tmp_path / "jobs")


def received(jobs: Path, name: str, client: str) -> list[float]:
    """The weight that a script received in each round."""
    lines = (jobs / f"{name}-received-{client}.txt").read_text().splitlines()
    return [float(line.partition(" ")[0]) for line in lines]


@pytest.mark.engines
def test_the_migrating_pages_jobs_give_the_same_model(jobs: Path) -> None:
    run(jobs, "job.py", "theirs")
    run(jobs, "keep.py", "ours")
    theirs, ours = (jobs / name / "discs/server/simulate_job" for name in ("theirs", "ours"))
    for file in ("FL_global_model.pt", "best_FL_global_model.pt"):
        expected, found = (
            torch.load(folder / "app_server" / file, weights_only=False)["model"]
            for folder in (theirs, ours)
        )
        assert set(found) == set(expected)
        for name, value in found.items():
            torch.testing.assert_close(value, expected[name].to(value.dtype), atol=1e-5, rtol=0)

    records = read_ledger(ours / "fairfl" / "ledger.jsonl")
    assert [record["kind"] for record in records] == ["start", "round", "round", "round", "end"]
    assert (ours / "fairfl" / "report.html").exists()
    for client in SCRIPTS:
        weights = [0.0, *[record["aggregation"][client] for record in records[1:-2]]]
        assert received(jobs, "ours", client) == pytest.approx(weights)
        assert received(jobs, "ours", client) == pytest.approx(
            received(jobs, "theirs", client), abs=1e-5
        )


# ---- flare_production.md ----

_, AUTHORIZATION, PRIVACY = (json.loads(block) for block in blocks_in(PRODUCTION, "json"))


@pytest.fixture(scope="module")
def kits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the page's command writes."""
    folder = tmp_path_factory.mktemp("provision")
    project = CHECKOUT / "docs" / "examples" / "flare" / "project.yml"
    shutil.copy(project, folder)
    [words] = [words for words in commands(PRODUCTION) if words[:2] == ["nvflare", "provision"]]
    run(folder, "-m", "nvflare.cli", *words[1:], "--force")
    return folder / "workspace" / "prostate_federation" / "prod_00"


def test_the_production_pages_kits_demand_mutual_tls_and_hold_what_it_says(kits: Path) -> None:
    for site in CLIENTS:
        for name in names_in_first_column(PRODUCTION, "| in the kit of `alder`"):
            assert (kits / site / name).exists(), (site, name)
        client = json.loads((kits / site / "startup" / "fed_client.json").read_text())
        assert client["client"]["connection_security"] == "mtls"
    server = json.loads((kits / "fl.example.org" / "startup" / "fed_server.json").read_text())
    assert server["servers"][0]["connection_security"] == "mtls"
    keys = list(kits.rglob("*.key"))
    assert len(keys) == 5 and all(key.stat().st_mode & 0o77 == 0 for key in keys)
    assert len({key.read_text() for key in keys}) == 5


def test_the_production_pages_authorization_refuses_custom_code(kits: Path) -> None:
    default = (kits / "birch" / "local" / "authorization.json.default").read_text()

    def may(policy: dict[str, Any], right: str) -> bool:
        authorizer = Authorizer(site_org="birch_hospital")
        assert authorizer.load_policy(policy) == ""
        lead = Person("lead@example.org", "consortium", "project_admin")
        return bool(authorizer.authorize(AuthzContext(right=right, user=lead, submitter=lead))[0])

    assert may(json.loads(default), "byoc") and not may(AUTHORIZATION, "byoc")
    for right in ("submit_job", "manage_job", "download_job", "view", "operate"):
        assert may(AUTHORIZATION, right)


def test_the_production_pages_filter_changes_the_update_and_nothing_else(kits: Path) -> None:
    (kits / "cedar" / "local" / "privacy.json").write_text(json.dumps(PRIVACY))
    manager = create_privacy_manager(workspace_of(kits / "cedar", "cedar"), names_only=False)
    (filter,) = manager.get_scope(None).task_result_filters["out"]
    asked = {"id": 1, "run": "r", "round": 0, "format": 1, "package": "0"}
    task = FLModel("FULL", {"body.1.mean": torch.ones(2)}, meta={"fairfl": asked})
    change = torch.linspace(-0.08, 0.08, 101)
    sent = reply_to(task, {"w": change})
    sent.meta["NUM_STEPS_CURRENT_ROUND"] = 4

    found = filter.process(FLModelUtils.to_shareable(sent), FLContext())
    got = FLModelUtils.from_shareable(found)

    # gamma is a limit for each of the four steps.
    filtered = torch.as_tensor(got.params["w"])
    assert float(filtered.abs().max()) == pytest.approx(0.01 * 4)
    assert 9 <= int((filtered == 0).sum()) <= 11
    assert got.meta["fairfl"] == sent.meta["fairfl"]
    assert torch.equal(got.meta["fairfl_buffers"]["body.1.mean"], torch.ones(2))
