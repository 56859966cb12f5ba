# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""A real SuperLink and SuperNodes with TLS and keys on loopback, set up by the commands of the page
``docs/flower_production.md``: conformance, identity, crashes.

One system for all tests of this file, which run in their order.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("flwr")

from helpers.bfloat16_bundle import write_bfloat16_bundle  # noqa: E402
from helpers.federations import (  # noqa: E402
    BUNDLE,
    CLIENTS,
    LAST_MILE,
    METHODS,
    SETTINGS,
    assert_same_run,
    in_process,
    strategy,
)
from helpers.flare_poc import wait_for  # noqa: E402
from helpers.flower_system import (  # noqa: E402
    FlowerSystem,
    flower_system,
    page_block,
    page_command,
)

from monai_fairfl.audit import check_receipts, read_receipts  # noqa: E402
from monai_fairfl.run_folder.ledger import read_ledger  # noqa: E402
from monai_fairfl.transports.flower import export_app  # noqa: E402
from monai_fairfl.utils.saved_files import read_state_dict  # noqa: E402

pytestmark = [pytest.mark.flower, pytest.mark.slow, pytest.mark.long]
# FedCE is run by the page's own commands.
OTHER_METHODS = [method for method in METHODS if method != "FedCE"]


@pytest.fixture(scope="module")
def cold_system(
    hospitals: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[FlowerSystem]:
    """A running system: a server and three sites, each of which names its own images."""
    with flower_system(tmp_path_factory.mktemp("flower"), CLIENTS) as running:
        shown = json.loads(page_block("json").text)
        for site in CLIENTS:
            own = own_settings(running, site)
            own.parent.mkdir()
            here = {"dataset_dir": str(hospitals / site), "device": "cpu"}
            own.write_text(json.dumps({**shown, **here, "overrides": {"num_workers": 0}}))
        running.start_server()
        running.register()
        running.start()
        running.wait_until_ready()
        yield running


@pytest.fixture(scope="module")
def system(cold_system: FlowerSystem) -> FlowerSystem:
    """The same system; its app processes come from a warm interpreter, to save minutes."""
    cold_system.warm.start()
    return cold_system


def own_settings(system: FlowerSystem, site: str) -> Path:
    """The file of a site's own settings."""
    return system.folder / site / "local" / "fairfl.json"


def export(system: FlowerSystem, method: str, **given: Any) -> Path:
    """An app of one of the methods; its run has the method's name, or the given one."""
    name = given.get("name", method)
    known = {"bundle": BUNDLE, "num_rounds": 2, "min_clients": len(CLIENTS), "name": name}
    app = system.folder / f"app-{name}"
    shutil.rmtree(app, ignore_errors=True)
    arguments = {**known, "overrides": SETTINGS, **given}
    return export_app(app, strategy=strategy(method), **arguments)


def rounds(system: FlowerSystem, name: str) -> list[Any]:
    ledger = system.runs / name / "ledger.jsonl"
    return [r for r in read_ledger(ledger) if r["kind"] == "round"] if ledger.exists() else []


def test_the_pages_commands_give_the_ledger_and_the_models_of_one_process(
    cold_system: FlowerSystem, one_process: Callable[..., Path]
) -> None:
    system = cold_system
    expected = one_process("FedCE", name="fedce")
    for name in ("ca.crt", "ca.key", "server.pem", "server.key"):
        assert (system.certificates / name).exists()
    for secret in (system.certificates / "server.key", system.folder / "alder" / "key"):
        assert secret.stat().st_mode & 0o77 == 0

    program = [sys.executable, "-m", "monai_fairfl"]
    words = [*program, *page_command("monai-fairfl", "export-flower")[1:]]
    words += ["--num-rounds", "2", "--local-epochs", "1", "--overrides", str(SETTINGS)]
    done = subprocess.run(
        words, cwd=system.folder, env=system.environment, capture_output=True, text=True
    )
    assert "apps/fedce: written; submit it with: flwr run apps/fedce" in done.stdout, done.stderr
    system.flwr(*page_command("flwr", "run")[1:])  # with --stream it returns at the end of the run
    listed = system.flwr(*page_command("flwr", "list")[1:], "--format", "json").stdout

    assert '"finished:completed"' in listed, listed
    assert_same_run(expected, system.runs / "fedce")
    run = system.runs / "fedce"
    assert {path.name for path in run.iterdir()} >= {"models", "report.html", "checkpoints"}
    receipts = read_receipts(system.folder / "alder" / "fairfl" / "alder" / "state/receipts.jsonl")
    assert check_receipts(run, receipts).problems == ()


@pytest.mark.parametrize("method", OTHER_METHODS)
def test_processes_with_tls_and_keys_do_what_one_process_does(
    method: str, system: FlowerSystem, one_process: Callable[..., Path]
) -> None:
    expected = one_process(method, **LAST_MILE)

    run = system.submit(export(system, method, **LAST_MILE))

    assert system.wait_for_end(run) == "finished:completed", system.log("server")[-3000:]
    assert_same_run(expected, system.runs / method)
    assert (system.runs / method / "report.html").exists()


def test_a_network_in_bfloat16_gives_the_bits_of_one_process(
    system: FlowerSystem, hospitals: Path, tmp_path: Path
) -> None:
    """Flower's own records go through NumPy, which has no such type."""
    bundle = write_bfloat16_bundle(tmp_path / "bundle")
    given = {"name": "bfloat16", "local_epochs": 1}
    expected = in_process("FedAvg", hospitals, tmp_path, bundle=bundle, **given)

    # A bundle that is none of the package is the site's own choice.
    usual = {site: own_settings(system, site).read_text() for site in CLIENTS}
    for site, text in usual.items():
        chosen = {**json.loads(text), "bundle": str(bundle)}
        own_settings(system, site).write_text(json.dumps(chosen))
    run = system.submit(export(system, "FedAvg", bundle=str(bundle), **given))
    ended = system.wait_for_end(run)
    for site, text in usual.items():
        own_settings(system, site).write_text(text)

    assert ended == "finished:completed", system.log("server")[-3000:]
    assert_same_run(expected, system.runs / "bfloat16")
    model = read_state_dict(system.runs / "bfloat16" / "models" / "global.pt")
    assert torch.bfloat16 in {tensor.dtype for tensor in model.values()}


def test_a_node_is_the_site_of_its_key_whatever_it_says(system: FlowerSystem) -> None:
    """Fault 55: cedar's node says that it is birch."""
    system.stop("cedar")
    system.start("cedar", name="birch")
    system.wait_until_ready()
    run = system.submit(export(system, "FedAvg", name="impostor", num_rounds=1, min_clients=2))

    assert system.wait_for_end(run) == "finished:completed"
    [found] = rounds(system, "impostor")
    assert set(found["aggregation"]) == {"alder", "birch"}
    assert "knows this site's key as 'cedar', and its own node-config says 'birch'" in str(
        found["missing"]["cedar"]
    )
    system.stop("cedar")
    system.start("cedar")
    system.wait_until_ready()


def test_a_node_with_a_key_that_nobody_registered_takes_no_part(system: FlowerSystem) -> None:
    stranger = system.make_key("mallory")
    system.stop("cedar")
    system.start("cedar", key=stranger)
    wait_for("the refusal", lambda: _ended(system, "cedar"), 180)
    assert "Failed to activate SuperNode" in system.log("cedar")

    run = system.submit(export(system, "FedAvg", name="wrong-key", num_rounds=1, min_clients=2))
    assert system.wait_for_end(run) == "finished:completed"
    [found] = rounds(system, "wrong-key")
    assert set(found["aggregation"]) == {"alder", "birch"} and not found["missing"]


def test_a_node_trusts_no_server_of_another_authority(system: FlowerSystem) -> None:
    """Fault 53: the site refuses the server's certificate, and sends nothing."""
    other = system.folder / "other"
    system.make_certificates(other)
    system.stop("cedar")
    known = len(system.log("cedar"))
    system.start("cedar", authority=other / "ca.crt")
    wait_for("the refusal", lambda: "verify failed" in system.log("cedar")[known:], 180)
    system.stop("cedar")
    system.start("cedar")
    system.wait_until_ready()


def test_a_site_that_is_killed_in_mid_round_is_missing_and_back_when_it_is_started_again(
    system: FlowerSystem,
) -> None:
    given = {"name": "killed", "num_rounds": 4, "min_clients": 2, "timeout": 240.0}
    run = system.submit(export(system, "FedCE", **given))
    wait_for("the first round", lambda: len(rounds(system, "killed")) >= 1, 300)
    wait_for("cedar's next training", lambda: len(system.processes("cedar")) > 2, 120)
    system.kill("cedar")
    wait_for("a round without cedar", lambda: "cedar" in _missing(system, "killed"), 400)
    system.start("cedar")

    assert system.wait_for_end(run, 900) == "finished:completed", system.log("server")[-3000:]
    found = rounds(system, "killed")
    away = [record["round"] for record in found if "cedar" not in record["aggregation"]]
    assert len(found) == 4 and away and 0 not in away
    assert 3 not in away, "it is back for the last round"


def test_a_server_that_is_killed_resumes_to_the_same_bits(
    system: FlowerSystem, one_process: Callable[..., Path]
) -> None:
    expected = one_process("FedCE", rounds=4, local_epochs=2, name="crashed")
    app = export(system, "FedCE", num_rounds=4, local_epochs=2, name="crashed")

    system.submit(app)
    wait_for("the second round", lambda: len(rounds(system, "crashed")) >= 2, 400)
    system.kill("server")
    assert len(rounds(system, "crashed")) < 4
    system.start_server()
    run = system.submit(app)

    assert system.wait_for_end(run, 900) == "finished:completed", system.log("server")[-3000:]
    assert_same_run(expected, system.runs / "crashed")


def test_a_site_that_hangs_is_missing_and_the_others_go_on(system: FlowerSystem) -> None:
    """By the timeout, or before it where Flower misses the node's heartbeat."""
    given = {"name": "hanging", "num_rounds": 2, "min_clients": 2, "timeout": 150.0}
    run = system.submit(export(system, "FedAvg", **given))
    wait_for("the first round", lambda: len(rounds(system, "hanging")) >= 1, 300)
    hung = system.processes("cedar")
    for process in hung:
        process.suspend()
    wait_for("a round without cedar", lambda: "cedar" in _missing(system, "hanging"), 300)
    for process in hung:
        if process.is_running():
            process.resume()

    assert system.wait_for_end(run, 600) == "finished:completed"
    first, second = rounds(system, "hanging")
    assert set(first["aggregation"]) == set(CLIENTS)
    assert set(second["aggregation"]) == {"alder", "birch"}


def _missing(system: FlowerSystem, name: str) -> dict[str, str]:
    """The sites that some round of a run missed, with the reason."""
    found: dict[str, str] = {}
    for record in rounds(system, name):
        found |= record["missing"]
        for site in CLIENTS:
            if site not in record["clients"]:
                found[site] = "not connected"
    return found


def _ended(system: FlowerSystem, name: str) -> bool:
    """Whether a site's process has ended by itself."""
    return system.started[name].poll() is not None
