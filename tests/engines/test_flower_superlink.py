# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""A real SuperLink and SuperNodes with TLS and keys on loopback, set up by the commands of
``docs/flower_production.md``: the run of one process, crashes, identity, attacks.

One system for all tests of this file; each leaves it with all sites connected, but the last.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr")

from helpers.checkout import wait_for  # noqa: E402
from helpers.federations import (  # noqa: E402
    CLIENTS,
    SETTINGS,
    assert_same_run,
    in_one_process,
)
from helpers.flower_system import FlowerSystem  # noqa: E402
from helpers.page_blocks import blocks_in  # noqa: E402

from monai_fairfl import read_ledger  # noqa: E402
from monai_fairfl.audit import check_receipts, read_receipts  # noqa: E402
from monai_fairfl.strategies import FedCE  # noqa: E402

pytestmark = pytest.mark.engines


@pytest.fixture(scope="module")
def system(hospitals: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[FlowerSystem]:
    """A running system: a server and three sites, each of which names its own images."""
    running = FlowerSystem(tmp_path_factory.mktemp("flower"), CLIENTS)
    try:
        for site in CLIENTS:
            write_own_settings(running, hospitals, site)
        running.start_server()
        running.register()
        for site in CLIENTS:
            running.start(site)
        yield running
    finally:
        running.kill()


def write_own_settings(system: FlowerSystem, hospitals: Path, site: str) -> None:
    """The page's file of a site's own settings, with the test's images."""
    [shown] = blocks_in("docs/flower_production.md", "json")
    here = {"dataset_dir": str(hospitals / site), "device": "cpu"}
    own = {**json.loads(shown), **here, "overrides": {"num_workers": 0}}
    file = system.folder / "sites" / site / "local" / "fairfl.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(own))


def export(system: FlowerSystem, rounds: int, *options: str) -> None:
    """The page's command, of a tiny training."""
    small = ["--rounds", str(rounds), "--local-epochs", "1", "--overrides"]
    system.run("monai-fairfl", "export", more=[*small, json.dumps(SETTINGS), *options])


def rounds_of(system: FlowerSystem, name: str) -> list[dict[str, Any]]:
    file = system.runs / name / "ledger.jsonl"
    records = read_ledger(file) if file.exists() else []
    return [record for record in records if record["kind"] == "round"]


def test_the_pages_commands_give_the_run_of_one_process_also_after_a_kill_of_the_server(
    system: FlowerSystem, hospitals: Path, tmp_path: Path
) -> None:
    for secret in (system.authority.with_name("server.key"), system.folder / "alder"):
        assert secret.stat().st_mode & 0o77 == 0
    export(system, 2)
    # With --stream the command would only return at the end of the run.
    system.run("flwr", "run", **{"--stream": "--format=json"})
    wait_for("the first round", lambda: len(rounds_of(system, "fedce")) >= 1)
    system.kill("server")
    assert len(rounds_of(system, "fedce")) == 1
    system.start_server()
    system.run("flwr", "run")

    assert "finished:completed" in system.run("flwr", "list", more=["--format", "json"])
    run = system.runs / "fedce"
    own = {"strategies": FedCE(), "local_epochs": 1}
    assert_same_run(run, in_one_process(hospitals, tmp_path / "fedce", 2, **own))
    assert {file.name for file in run.iterdir()} >= {"models", "report.html", "checkpoints"}
    for site in CLIENTS:
        own_files = system.folder / "sites" / site / "fairfl" / site
        proof = check_receipts(run, read_receipts(own_files / "state" / "receipts.jsonl"))
        assert (proof.covered, proof.problems) == (len(read_ledger(run / "ledger.jsonl")), ())


def test_a_node_without_a_known_key_or_the_right_authority_does_not_connect(
    system: FlowerSystem,
) -> None:
    system.stop("cedar")
    system.make_key("mallory")
    system.start("cedar", key="mallory", until="Failed to activate SuperNode")
    system.kill("cedar")
    other = system.folder / "other"
    system.make_certificates(other)
    system.start("cedar", authority=other / "ca.crt", until="verify failed")
    system.kill("cedar")
    system.start("cedar")


def test_an_impostor_and_a_killed_site_are_missing_with_the_reason(system: FlowerSystem) -> None:
    # Node and key are cedar's; it says that it is birch.
    system.stop("cedar")
    system.start("cedar", name="birch")
    export(
        system,
        3,
        *("--strategy", "FedAvg", "--name", "trouble", "--out", "apps/trouble"),
        *("--min-clients", "2", "--timeout", "300"),
    )
    system.run("flwr", "run", **{"apps/fedce": "apps/trouble", "--stream": "--format=json"})

    wait_for("the impostor's round", lambda: bool(rounds_of(system, "trouble")))
    system.kill("cedar")
    trouble = system.runs / "trouble" / "report.html"
    wait_for("the end of the run", trouble.exists, 900)

    found = rounds_of(system, "trouble")
    assert len(found) == 3 and "birch" in found[0]["missing"]["cedar"]
    for record in found:
        assert set(record["aggregation"]) == {"alder", "birch"}
    last = found[-1]
    assert "cedar" not in last["clients"] or last["missing"]["cedar"]
