# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Sites that work at a time: how many, and that they train what they would train in turn."""

from __future__ import annotations

import importlib
import json
import logging
import os
import pickle
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.bundle_runs import command, federation
from helpers.checkout import CHECKOUT
from helpers.made_once import MadeOnce
from helpers.worker_clients import all_end, children_of

from monai_fairfl.bundle import dealing
from monai_fairfl.bundle import jobs as module
from monai_fairfl.bundle.federation import BundleFederation
from monai_fairfl.bundle.jobs import Jobs, number_of_cases
from monai_fairfl.bundle.run_config import config_of_runs
from monai_fairfl.bundle.runs import BundleRuns
from monai_fairfl.errors import ConfigError
from monai_fairfl.measurements.table import MEASUREMENTS
from monai_fairfl.protocol.measured import RANGES
from monai_fairfl.protocol.messages import Reply
from monai_fairfl.run_folder.ledger import read_ledger
from monai_fairfl.strategies import FedAvg, FedCE, Standalone
from monai_fairfl.strategies.base import Rounds
from monai_fairfl.transports.in_process import InProcess
from monai_fairfl.transports.workers import Work, WorkerPool, carry_out
from monai_fairfl.utils.saved_files import read_state_dict
from monai_fairfl.valuation import Reconstruction, Retraining

GIB = 1 << 30
SITES = ("alder", "cedar", "rowan")
TRANSPORT = BundleRuns.transport


@pytest.fixture
def pools(monkeypatch: pytest.MonkeyPatch) -> list[WorkerPool]:
    """The pools of worker processes that federations made, as they make them."""
    made: list[WorkerPool] = []

    class Noted(WorkerPool):
        def __init__(self, *given: Any):
            super().__init__(*given)
            made.append(self)

    monkeypatch.setattr(dealing, "WorkerPool", Noted)
    return made


# --- how many, and where


@pytest.mark.parametrize(
    ("cores", "memory", "sites", "threads", "expected"),
    [
        (16, 64, 6, 1, 6),
        (4, 64, 6, 1, 4),
        (16, 3, 6, 1, 3),
        (16, 64, 6, 4, 4),
        (1, 64, 6, 1, 1),
        (16, 0.2, 6, 1, 1),
        (2, 64, 6, 4, 1),
    ],
)
def test_auto_is_what_cores_and_memory_allow(
    cores: int,
    memory: float,
    sites: int,
    threads: int,
    expected: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "usable_cores", lambda: cores)
    monkeypatch.setattr(module, "free_memory", lambda: int(memory * GIB))
    for given in (None, "auto"):
        assert Jobs(given, ["cpu"]).workers(sites, threads) == expected


def test_a_number_that_is_given_counts_up_to_the_number_of_sites() -> None:
    assert [Jobs(number, ["cpu"]).workers(3, threads=1) for number in (1, 2, 50)] == [1, 2, 3]


def test_auto_is_one_worker_for_each_gpu() -> None:
    assert Jobs("auto", ["cuda"]).workers(6, 1) == 1
    assert Jobs("auto", ["cuda:0", "cuda:1", "cuda:0"]).workers(6, 1) == 2
    assert Jobs(3, ["cuda:0"]).workers(6, 1) == 3


@pytest.mark.parametrize("number", [0, -1, True, 1.5, "many", "2"])
def test_another_number_of_jobs_is_refused(number: Any) -> None:
    with pytest.raises(ConfigError, match="jobs must be a whole number of at least 1, or 'auto'"):
        Jobs(number, ["cpu"])


@pytest.mark.parametrize(
    ("devices", "words"), [("cuda:0", "must be a list"), (["gpu"], "'gpu' is not a device")]
)
def test_other_devices_are_refused(devices: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        Jobs(2, devices)


def test_workers_take_the_devices_in_turn_and_the_configuration_records_them(
    hospitals: Path, tmp_path: Path
) -> None:
    given = federation(hospitals, tmp_path, FedAvg(), devices=["cpu", "cpu:0"], jobs=2)
    given.read_settings()
    assert config_of_runs(given.runs)["device"] == ["cpu", "cpu:0"]

    class Pool(list):  # type: ignore[type-arg]
        """Two workers, of which nothing is asked."""

        def new_owner(self) -> int:
            return 0

    pool: Any = Pool([1, 2])
    transport: Any = given.runs.transport(tmp_path, given.names, pool)
    made = {name: pickle.loads(make).keywords["device"] for name, make in transport._makers.items()}
    devices = ["cpu", "cpu:0"]
    assert made == {name: devices[number] for name, number in transport._places.items()}
    assert sorted(transport._places.values()) == [0, 0, 0, 1, 1, 1]


def test_a_site_counts_by_the_cases_that_it_trains_and_validates_with(
    hospitals: Path, tmp_path: Path
) -> None:
    assert number_of_cases(str(hospitals / "alder")) == 4
    # NVIDIA FLARE's data lists are files: the site has its split.
    cases = []
    for image in sorted((hospitals / "alder").glob("Case??.nii.gz")):
        label = image.with_name(image.name.replace(".nii.gz", "_segmentation.nii.gz"))
        cases.append({"image": f"alder/{image.name}", "label": f"alder/{label.name}"})
    parts = {"training": cases[:2], "validation": cases[2:3], "testing": cases[3:]}
    shutil.copytree(hospitals / "alder", tmp_path / "alder")
    listed = tmp_path / "datalist" / "alder.json"
    listed.parent.mkdir()
    listed.write_text(json.dumps(parts))
    assert number_of_cases(str(listed)) == 3


def test_a_folder_of_no_known_layout_counts_by_its_files_and_an_empty_one_as_one(
    tmp_path: Path,
) -> None:
    assert number_of_cases(str(tmp_path)) == 1
    assert number_of_cases(str(tmp_path / "none")) == 1
    for name in ("a.dat", "b.dat", "c.dat"):
        (tmp_path / name).touch()
    assert number_of_cases(str(tmp_path)) == 3


# --- what is trained


def files_of(folder: Path) -> dict[str, bytes]:
    """What a comparison left that must not depend on the number of jobs."""
    found = {}
    for pattern in ("**/ledger.jsonl", "**/models/*.pt", "**/valuations/*.json", "datalists/*"):
        for file in folder.glob(pattern):
            found[str(file.relative_to(folder))] = file.read_bytes()
    return found


def compare(hospitals: Path, folder: Path, **settings: Any) -> BundleFederation:
    """A comparison of two methods at three hospitals, valued by retraining and rebuilding."""
    given: dict[str, Any] = {
        "strategies": [FedAvg(), FedCE()],
        "site_names": SITES,
        "record_updates": True,
        "valuations": [Retraining(), Reconstruction()],
        **settings,
    }
    return federation(hospitals, folder, **given)


@pytest.fixture(scope="module")
def one_after_the_other(made_once: MadeOnce, hospitals: Path) -> Path:
    """The comparison with one job."""

    def make(folder: Path) -> None:
        compare(hospitals, folder / "run", jobs=1).run()

    return made_once("one job", make) / "run"


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("jobs", [2, pytest.param(3, marks=pytest.mark.extended)])
def test_every_file_is_that_of_one_job_whatever_their_number(
    jobs: int,
    one_after_the_other: Path,
    hospitals: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    dealt_out = []

    def noted(works: Sequence[Work], *given: Any, **settings: Any) -> bool:
        dealt_out.append(([work.title for work in works], settings["together"]))
        return carry_out(works, *given, **settings)

    monkeypatch.setattr(dealing, "carry_out", noted)
    compare(hospitals, tmp_path / "run", jobs=jobs).run()
    # The whole coalition's model is that of the finished FedAvg.
    coalitions = [f"without-{site}" for site in reversed(SITES)]
    assert dealt_out == [(["FedAvg", "FedCE"], True), (coalitions, True)]
    expected = files_of(one_after_the_other)
    found = files_of(tmp_path / "run")
    # Two ledgers, and those of the coalitions that were retrained.
    ledgers = [name for name in expected if name.endswith("ledger.jsonl")]
    assert len(ledgers) == 5
    assert set(found) == set(expected)
    differing = [name for name in expected if found[name] != expected[name]]
    assert differing == []


def same_files(folder: Path, expected: Path) -> None:
    """Both comparisons left the same ledgers and models."""
    files = [file for file in files_of(expected) if "valuations" not in file]
    assert len(files) > 4
    for name in files:
        assert (folder / name).read_bytes() == (expected / name).read_bytes(), name


@pytest.mark.long
@pytest.mark.slow
def test_a_strategy_whose_process_is_killed_goes_on_in_another_one(
    one_after_the_other: Path,
    hospitals: Path,
    tmp_path: Path,
    pools: list[WorkerPool],
    caplog: pytest.LogCaptureFixture,
) -> None:
    run_dir = tmp_path / "run"
    given = compare(hospitals, run_dir, jobs=2, valuations=[])

    def kill_both() -> None:
        ledgers = [run_dir / name / "ledger.jsonl" for name in ("FedAvg", "FedCE")]
        while not all(ledger.exists() and ledger.stat().st_size for ledger in ledgers):
            time.sleep(0.01)
        [pool] = pools
        for worker in pool.running().values():
            worker.process.kill()

    thread = threading.Thread(target=kill_both)
    thread.start()
    with caplog.at_level(logging.WARNING):
        histories = given.run()
    thread.join()
    assert [history.finished for history in histories] == [True, True]
    for name in ("FedAvg", "FedCE"):
        assert f"{name}: its worker process was ended by the signal SIGKILL" in caplog.text
    same_files(run_dir, one_after_the_other)


@pytest.mark.long
@pytest.mark.slow
def test_a_strategy_that_another_process_does_not_know_runs_here_with_its_sites_dealt_out(
    one_after_the_other: Path, hospitals: Path, tmp_path: Path
) -> None:
    given = compare(hospitals, tmp_path / "run", jobs=2, valuations=[])
    # As it would be in a script's own class.
    given.strategies[0].lock = threading.Lock()  # type: ignore[attr-defined]
    given.run()
    same_files(tmp_path / "run", one_after_the_other)


class Killing(FedAvg):
    """Before round 1 the worker of one site stops, and is killed once the site was asked."""

    worker: int

    def round(self, clients: Sequence[str]) -> Rounds:
        self.rounds_begun = getattr(self, "rounds_begun", 0) + 1
        if self.rounds_begun == 2:
            os.kill(self.worker, signal.SIGSTOP)
            threading.Timer(3.0, os.kill, (self.worker, signal.SIGKILL)).start()
        return (yield from super().round(clients))


def losing_transport(
    self: BundleRuns, folder: Path, names: Sequence[str], pool: WorkerPool | None
) -> InProcess:
    """Sites in one process, of which the first one's answer to round 1 is lost."""
    transport: Any = TRANSPORT(self, folder, names, pool)
    exchange = transport.exchange

    def losing(requests: Any, arrived: Any, timeout: Any = None) -> None:
        def pass_on(reply: Reply) -> None:
            if (reply.client, reply.round) != ("alder", 1):
                arrived(reply)

        others = [r for r in requests if (r.client, r.round) != ("alder", 1)]
        exchange(others, pass_on, timeout)

    transport.exchange = losing
    return transport  # type: ignore[no-any-return]


@pytest.mark.long
@pytest.mark.slow
def test_a_site_whose_worker_is_killed_is_missing_and_then_goes_on_where_it_was(
    hospitals: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pools: list[WorkerPool]
) -> None:
    strategy = Killing()
    given = federation(
        hospitals, tmp_path / "killed" / "run", strategy, rounds=3, site_names=SITES, jobs=2
    )
    check = given._check

    def checked() -> None:
        check()
        [pool] = pools
        strategy.worker = pool.worker(0).process.pid

    monkeypatch.setattr(given, "_check", checked)
    [history] = given.run()
    missing = [record["missing"] for record in history.rounds]
    assert [list(of_round) for of_round in missing] == [[], ["alder"], []]
    assert "its worker process was ended by the signal SIGKILL" in missing[1]["alder"]

    lost = federation(hospitals, tmp_path / "lost" / "run", FedAvg(), rounds=3, site_names=SITES)
    monkeypatch.setattr(BundleRuns, "transport", losing_transport)
    lost.run()
    models = [tmp_path / name / "run" / "models" / "global.pt" for name in ("killed", "lost")]
    killed, expected = (read_state_dict(model) for model in models)
    assert all(torch.equal(killed[name], expected[name]) for name in expected)


@pytest.mark.long
@pytest.mark.slow
def test_the_error_of_a_site_is_recorded_as_with_one_job(hospitals: Path, tmp_path: Path) -> None:
    settings: dict[str, Any] = {
        "site_names": SITES,
        "sites": {"cedar": {"slices_per_volume": -3}},
        "rounds": 1,
    }
    ledgers = []
    for jobs in (1, 2):
        folder = tmp_path / str(jobs) / "run"
        federation(hospitals, folder, FedAvg(), jobs=jobs, **settings).run()
        ledgers.append((folder / "ledger.jsonl").read_bytes())
    assert ledgers[0] == ledgers[1]
    reason = read_ledger(tmp_path / "2" / "run" / "ledger.jsonl")[1]["missing"]["cedar"]
    assert reason.startswith("error: ") and "-3" in reason


OWN_MEASUREMENT = """
from monai_fairfl.measurements.entry import Entry
from monai_fairfl.measurements.table import MEASUREMENTS
from monai_fairfl.protocol.measured import RANGES, Range

def weights_seen(probe, weights, memory, context):
    return float(len(weights))

MEASUREMENTS["weights_seen"] = Entry("received", weights_seen)
RANGES["weights_seen"] = Range("tensors", 0.0, 1000.0)
"""


@pytest.mark.long
@pytest.mark.slow
def test_a_measurement_of_ones_own_is_known_in_worker_processes_too(
    hospitals: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own_measurement.py").write_text(OWN_MEASUREMENT)
    monkeypatch.syspath_prepend(str(tmp_path))
    for table in (MEASUREMENTS, RANGES):
        # So that the name is gone afterwards.
        monkeypatch.setitem(table, "weights_seen", None)  # type: ignore[call-overload]
    importlib.import_module("own_measurement")
    given = federation(
        hospitals,
        tmp_path / "run",
        FedAvg(),
        rounds=1,
        site_names=SITES,
        evaluate=["weights_seen"],
        jobs=2,
    )
    [history] = given.run()
    measured = history.rounds[0]["measurements"]
    assert sorted(measured) == list(SITES)
    assert all(found["weights_seen"] > 5 for found in measured.values())


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize(
    "number",
    [
        signal.SIGINT,
        pytest.param(signal.SIGTERM, marks=pytest.mark.extended),
        pytest.param(signal.SIGKILL, marks=pytest.mark.extended),
    ],
)
def test_a_run_that_is_stopped_leaves_no_process_and_goes_on_with_other_jobs(
    number: signal.Signals, hospitals: Path, tmp_path: Path
) -> None:
    names = str(list(SITES))
    # More rounds than a quick machine plays until the signal comes.
    arguments = ["--rounds", "8", "--jobs", "2", "--site_names", names]
    with (tmp_path / "log").open("w") as log:
        process = subprocess.Popen(
            [sys.executable, *command(hospitals, tmp_path / "stopped" / "run", *arguments)],
            env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(CHECKOUT)},
            cwd=tmp_path,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        ledger = tmp_path / "stopped" / "run" / "ledger.jsonl"
        deadline = time.monotonic() + 400
        while not ledger.exists() or ledger.read_bytes().count(b"\n") < 2:
            assert process.poll() is None and time.monotonic() < deadline, log.name
            time.sleep(0.02)
        workers = children_of(process.pid)
        time.sleep(random.uniform(0, 0.3))
        # As a terminal does, to all processes of its group.
        os.killpg(process.pid, number)
        status = process.wait(timeout=400)
    assert len(workers) >= 2
    assert all_end(workers)
    text = (tmp_path / "log").read_text()
    if number == signal.SIGKILL:
        assert status == -signal.SIGKILL
    else:
        assert status == 0, text
        assert "stopping after this round" in text
        assert "is missing" not in text and "does not count" not in text

    settings: dict[str, Any] = {"rounds": 8, "site_names": SITES}
    federation(
        hospitals, tmp_path / "stopped" / "run", FedAvg(), resume=True, jobs=3, **settings
    ).run()
    federation(hospitals, tmp_path / "whole" / "run", FedAvg(), jobs=1, **settings).run()
    assert ledger.read_bytes() == (tmp_path / "whole" / "run" / "ledger.jsonl").read_bytes()


def test_a_wrong_setting_ends_a_run_and_its_workers_before_anything_is_trained(
    hospitals: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pools: list[WorkerPool]
) -> None:
    given = federation(
        hospitals, tmp_path / "run", Standalone(), overrides={"learning_rat": 1.0}, jobs=2
    )
    workers = []
    check = given._check

    def noted() -> None:
        [pool] = pools
        workers.extend(pool.worker(number).process.pid for number in (0, 1))
        check()

    monkeypatch.setattr(given, "_check", noted)
    with pytest.raises(ConfigError, match="learning_rat"):
        given.run()
    assert len(workers) == 2 and all_end(workers, seconds=0)
    assert not (tmp_path / "run").exists()
