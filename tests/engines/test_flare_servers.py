# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""A server and clients of NVIDIA FLARE with mTLS on loopback: policy, crashes, certificates.

One system for all tests of this file, which run in their order.
"""

from __future__ import annotations

import os
import random
import shutil
import subprocess
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("nvflare")

from helpers.checkout import BIN, wait_for  # noqa: E402
from helpers.federations import CLIENTS, LAST_MILE, assert_same_run, recipe  # noqa: E402
from helpers.flare_poc import Poc, poc  # noqa: E402
from nvflare.recipe.prod_env import ProdEnv  # noqa: E402

from monai_fairfl import read_ledger  # noqa: E402

pytestmark = pytest.mark.engines

DONE = "FINISHED:COMPLETED"
KILLS = int(os.environ.get("MONAI_FAIRFL_TEST_KILLS", "2"))
"""How many jobs are killed; ten take half an hour."""


@pytest.fixture(scope="module")
def system(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Poc]:
    """A running system: a server and three clients, as ``nvflare poc`` provisions them."""
    with poc(tmp_path_factory.mktemp("poc"), CLIENTS) as running:
        running.start()
        running.wait_until_ready()
        yield running


def submitted(system: Poc, job: Any) -> Any:
    """A job on its way."""
    return job.execute(ProdEnv(startup_kit_location=system.admin, login_timeout=30))


def run_of(system: Poc, name: str) -> Path:
    return system.kits / "server" / "fairfl" / name


def rounds(system: Poc, name: str) -> list[Any]:
    ledger = run_of(system, name) / "ledger.jsonl"
    if not ledger.exists():
        return []
    return [record for record in read_ledger(ledger) if record["kind"] == "round"]


def ended(run: Path) -> bool:
    ledger = run / "ledger.jsonl"
    return ledger.exists() and read_ledger(ledger)[-1]["kind"] == "end"


def last_round(files: Iterable[Path]) -> int:
    """The number, from 1, of the last round that has a file; 0: none has."""
    return max([int(file.stem[-4:]) + 1 for file in files], default=0)


def test_a_job_without_code_runs_where_every_kit_allows_it(
    system: Poc, hospitals: Path, one_process: Callable[..., Path]
) -> None:
    settings = {"name": "FedCE", **LAST_MILE}

    def finished() -> Any:
        started = submitted(system, recipe("FedCE", hospitals, custom_code=False, **settings))
        return started, started.get_result(timeout=300)

    refused, _ = finished()
    assert refused.get_status() != DONE
    assert "--flare-policy" in system.log("server")

    system.kill()
    for name in ("server", *CLIENTS):
        kit = str(system.kits / name)
        words = [
            str(BIN / "python"),
            "-m",
            "monai_fairfl",
            "doctor",
            kit,
            "--flare-policy",
            "--add",
        ]
        subprocess.run(words, check=True, env=system.environment)
    system.start()
    system.wait_until_ready()
    started, result = finished()

    assert started.get_status() == DONE, system.log("server")[-3000:]
    assert_same_run(one_process("FedCE", **LAST_MILE), run_of(system, "FedCE"))
    assert list(Path(result).rglob("fairfl/models/global.pt")), "a download brings the model"


@pytest.mark.parametrize("number", range(KILLS))
def test_a_job_that_is_killed_at_a_random_moment_resumes_to_the_same_bits(
    number: int, system: Poc, hospitals: Path, one_process: Callable[..., Path]
) -> None:
    """``kill -9`` of the server, of a site, of the process of a site's job alone, or of all.

    It comes once so many rounds are on the server's disk or on that of a site.
    """
    who = ("server", "job", "site", "all")[number % 4]
    moment = random.Random(number)
    wanted = moment.randrange(4)
    job = {"rounds": 4, "local_epochs": 10, "name": f"crashed-{who}"}
    run = run_of(system, job["name"])
    states = system.kits / "cedar" / "fairfl" / "cedar" / "state"
    written = [(run / "checkpoints", "round-*"), (states, f"{run.name}-round-*.pt")]
    folder, files = moment.choice(written)

    jobs = [submitted(system, recipe("FedCE", hospitals, timeout=60, **job))]
    wait_for(f"{wanted} of {folder}", lambda: last_round(folder.glob(files)) >= wanted, 300)
    done = len(rounds(system, run.name))
    if who == "job":
        for process in system.processes("cedar", "client.worker_process"):
            process.kill()
    else:
        killed = {"server": ["server"], "site": ["cedar"], "all": ["server", *CLIENTS]}[who]
        system.kill(*killed)
        system.start(*killed)
        system.wait_until_ready()
    if who in ("job", "site"):
        # It ends by itself, when the site was missed twice.
        jobs[0].get_result(timeout=300)
    while not ended(run):
        assert len(jobs) < 3, system.log("server")[-3000:]
        jobs.append(submitted(system, recipe("FedCE", hospitals, timeout=60, **job)))
        jobs[-1].get_result(timeout=300)

    print(f"{who} killed after {wanted} in {folder}, {done} done: {len(jobs)} jobs")
    assert_same_run(one_process("FedCE", **job), run)
    shutil.rmtree(run)
