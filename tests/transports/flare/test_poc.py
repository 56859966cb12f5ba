# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Real NVFlare server and client processes with mTLS on loopback: conformance, crashes, command
line, policies.

One system for all tests of this file, which run in their order.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("nvflare")

from helpers.federations import (  # noqa: E402
    BUNDLE,
    CLIENTS,
    EXTENDED,
    LAST_MILE,
    SETTINGS,
    assert_same_run,
    methods,
    recipe,
)
from helpers.flare_poc import BIN, Poc, poc, wait_for  # noqa: E402
from nvflare.recipe.poc_env import PocEnv  # noqa: E402
from nvflare.recipe.prod_env import ProdEnv  # noqa: E402

from monai_fairfl.bundle.shipped import copy_bundle  # noqa: E402
from monai_fairfl.run_folder.ledger import read_ledger  # noqa: E402
from monai_fairfl.transports.flare.job.fairfl_recipe import FairFLRecipe  # noqa: E402

TRAINER, CONNECTED = "custom/fairfl_client.py", "trainer session established: launch={} "

pytestmark = [pytest.mark.slow, pytest.mark.nvflare, pytest.mark.poc]


@pytest.fixture(scope="module")
def system(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Poc]:
    """A running system: a server and three clients, as ``nvflare poc`` provisions them."""
    with poc(tmp_path_factory.mktemp("poc"), CLIENTS) as running:
        running.start()
        running.wait_until_ready()
        yield running


def run(system: Poc, job: FairFLRecipe) -> Any:
    return job.execute(ProdEnv(startup_kit_location=system.admin, login_timeout=30))


def runs(system: Poc) -> Path:
    return system.kits / "server" / "fairfl"


def rounds(system: Poc, name: str) -> list[Any]:
    ledger = runs(system) / name / "ledger.jsonl"
    return [r for r in read_ledger(ledger) if r["kind"] == "round"] if ledger.exists() else []


@pytest.mark.parametrize("method", methods({*EXTENDED, "CGSV"}))
def test_processes_with_mtls_do_what_one_process_does(
    method: str, system: Poc, hospitals: Path, one_process: Callable[..., Path]
) -> None:
    expected = one_process(method, **LAST_MILE)

    on_disk = method == "FedCE"
    job = recipe(method, hospitals, federation=LAST_MILE, enable_tensor_disk_offload=on_disk)
    started = run(system, job)
    result = started.get_result(timeout=300)

    assert started.get_status() == "FINISHED:COMPLETED", system.log("server")[-3000:]
    assert_same_run(expected, runs(system) / method)
    assert list(Path(result).rglob("fairfl/models/global.pt")), "a download brings the model"
    if on_disk:
        assert "the update of alder waits on disk" in system.log("server")


@pytest.mark.extended
def test_nvflares_own_command_line_runs_an_exported_job(
    system: Poc, hospitals: Path, tmp_path: Path
) -> None:
    for site in CLIENTS:  # each hospital says where its images are
        (system.kits / site / "local" / "fairfl.json").write_text(
            json.dumps({"dataset_dir": str(hospitals / site)})
        )
    job, program = tmp_path / "job", [sys.executable, "-m", "monai_fairfl"]
    settings = [
        "--overrides",
        str(SETTINGS),
        "--min-clients",
        "3",
        "--num-rounds",
        "2",
        "--local-epochs",
        "1",
        "--name",
        "exported",
    ]
    words = [
        *program,
        "export-flare",
        "--bundle",
        BUNDLE,
        "--strategy",
        "FedCE",
        "--out",
        str(job),
        *settings,
    ]
    subprocess.run(words, check=True, env=system.environment)

    admin = ("--startup-kit", system.admin)
    number = _job_id(
        system.nvflare("--format", "json", "job", "submit", "-j", str(job), *admin).stdout
    )
    system.nvflare("job", "wait", number, "--timeout", "300", *admin)
    assert "exported" in system.nvflare("job", "list", *admin).stdout
    system.nvflare("job", "download", number, "-o", str(tmp_path / "downloaded"), *admin)

    model = next((tmp_path / "downloaded").rglob("fairfl/models/global.pt"))
    assert_same_run(runs(system) / "exported", model.parents[1])
    bundle = copy_bundle(BUNDLE, tmp_path / "bundle")
    words = [
        "--config_file",
        str(bundle / "configs" / "inference.json"),
        "--bundle_root",
        str(bundle),
    ]
    words += [
        "--ckpt_path",
        str(model),
        "--size",
        str(SETTINGS["size"]),
        "--channels",
        str(SETTINGS["channels"]),
    ]
    words += ["--dataset_dir", str(hospitals / "alder"), "--output_dir", str(tmp_path / "masks")]
    done = subprocess.run(
        [sys.executable, "-m", "monai.bundle", "run", *words],
        env=system.environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0 and list((tmp_path / "masks").rglob("*.nii.gz")), done.stderr[
        -2000:
    ]


@pytest.mark.extended
def test_a_client_that_is_killed_in_mid_round_is_back_in_the_next(
    system: Poc, hospitals: Path
) -> None:
    own_process = {"launch_external_process": True, "launch_once": False, "local_epochs": 100}
    started = run(
        system,
        recipe("FedCE", hospitals, 4, name="killed", min_clients=2, timeout=120, **own_process),
    )
    wait_for("cedar's first training", lambda: CONNECTED.format(1) in system.log("cedar"), 180)
    first = {process.pid for process in system.processes("cedar", TRAINER)}
    wait_for("cedar's second training", lambda: CONNECTED.format(2) in system.log("cedar"), 180)
    trainers = [
        process for process in system.processes("cedar", TRAINER) if process.pid not in first
    ]
    assert first and trainers
    for process in trainers:
        process.send_signal(signal.SIGKILL)
    started.get_result(timeout=600)

    assert started.get_status() == "FINISHED:COMPLETED", system.log("server")[-3000:]
    found = rounds(system, "killed")
    away = [record["round"] for record in found if "cedar" in record["missing"]]
    assert len(found) == 4 and len(away) == 1 and away[0] < 3
    assert all(
        set(record["measurements"]) == set(CLIENTS)
        for record in found
        if record["round"] not in away
    )
    assert "goes on from its state after round" in system.log("cedar")


@pytest.mark.extended
def test_a_client_that_hangs_is_missing_after_the_timeout_and_back_when_it_goes_on(
    system: Poc, hospitals: Path
) -> None:
    started = run(system, recipe("FedCE", hospitals, 40, name="hanging", min_clients=2, timeout=30))
    wait_for("the first round", lambda: len(rounds(system, "hanging")) >= 1, 180)
    hung = [
        process
        for process in system.processes("cedar")
        if "client.worker_process" in " ".join(process.cmdline())
    ]
    assert hung
    for process in hung:
        process.suspend()
    wait_for(
        "a round without cedar", lambda: "cedar" in rounds(system, "hanging")[-1]["missing"], 90
    )
    for process in hung:
        process.resume()
    wait_for("cedar's return", lambda: not rounds(system, "hanging")[-1]["missing"], 120)
    away = [record for record in rounds(system, "hanging") if record["missing"]]

    assert all(record["missing"] == {"cedar": "timeout"} for record in away)
    assert all(set(record["aggregation"]) == {"alder", "birch"} for record in away)
    started.abort()  # and a job that is aborted keeps what was done, and ends its processes
    wait_for("the end", lambda: str(started.get_status()).startswith("FINISHED"), 120)
    assert started.get_status() != "FINISHED:COMPLETED"
    assert read_ledger(runs(system) / "hanging" / "ledger.jsonl")[-1]["kind"] == "round"
    wait_for(
        "the end of the job's processes",
        lambda: not any(process.is_running() for process in hung),
        120,
    )


def test_a_server_that_is_killed_resumes_to_the_same_bits(
    system: Poc, hospitals: Path, one_process: Callable[..., Path]
) -> None:
    job = {"rounds": 4, "local_epochs": 2, "name": "crashed"}
    expected = one_process("FedCE", **job)

    run(system, recipe("FedCE", hospitals, **job))
    wait_for("the second round", lambda: len(rounds(system, "crashed")) >= 2, 180)
    system.kill("server")
    assert len(rounds(system, "crashed")) < 4
    system.kill(*CLIENTS)
    system.start()
    system.wait_until_ready()
    started = run(system, recipe("FedCE", hospitals, **job))
    started.get_result(timeout=300)

    assert started.get_status() == "FINISHED:COMPLETED", system.log("server")[-3000:]
    assert "goes on from its state after round" in system.log("alder")
    assert_same_run(expected, runs(system) / "crashed")


@pytest.mark.extended
def test_a_job_without_code_needs_the_entry_in_the_allow_list(
    system: Poc, hospitals: Path, tmp_path: Path
) -> None:
    def attempt() -> Any:
        started = run(system, recipe("FedAvg", hospitals, name="installed", custom_code=False))
        started.get_result(timeout=300)
        return started

    refused = attempt()
    assert refused.get_status() != "FINISHED:COMPLETED"
    assert "'monai-fairfl flare-policy --kit KIT' adds it" in system.log("server")

    system.kill()
    for name in ("server", *CLIENTS):
        words = [
            str(BIN / "python"),
            "-m",
            "monai_fairfl",
            "flare-policy",
            "--kit",
            str(system.kits / name),
        ]
        assert subprocess.run([*words, "--check"], env=system.environment).returncode == 2
        subprocess.run(words, check=True, env=system.environment)
        assert subprocess.run([*words, "--check"], env=system.environment).returncode == 0
    system.start()
    system.wait_until_ready()
    passed = attempt()

    assert passed.get_status() == "FINISHED:COMPLETED", system.log("server")[-3000:]
    assert len(rounds(system, "installed")) == 2


def _job_id(text: str) -> str:
    found: dict[str, Any] = json.loads(text[text.index("{") :])
    return str(found.get("job_id") or found["data"]["job_id"])


@pytest.mark.extended
def test_nvflares_poc_environment_starts_and_stops_everything(
    hospitals: Path,
    one_process: Callable[..., Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with poc(tmp_path, CLIENTS) as prepared:  # for its project file, with a free port
        for name in ("HOME", "PATH", "PYTHONPATH", "NVFLARE_POC_WORKSPACE", "OMP_NUM_THREADS"):
            monkeypatch.setenv(name, prepared.environment[name])
        environment = PocEnv(
            num_clients=3,
            project_conf_path=str(tmp_path / "project.yml"),
            extra={"login_timeout": 60},
        )
        try:
            started = recipe("FedAvg", hospitals).execute(environment)
            result = started.get_result(
                timeout=300, clean_up=False
            )  # by default NVFlare deletes it here
            assert started.get_status() == "FINISHED:COMPLETED"
            assert_same_run(
                one_process("FedAvg"),
                next(Path(result).rglob("fairfl")),
            )
        finally:
            environment.stop(clean_up=True)
