# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.driving import SPEC, LeastSquares, crash_before_checkpoint
from safetensors.torch import load_file

from monai_fairfl.errors import ConfigError, FederationError
from monai_fairfl.protocol.messages import Reply, Request
from monai_fairfl.protocol.model_spec import ModelSpec
from monai_fairfl.protocol.replies import Replies
from monai_fairfl.run_folder.ledger import Ledger, digest_of
from monai_fairfl.run_folder.recorded_updates import check_recorded, record_round, recorded_rounds
from monai_fairfl.server.federation import Federation
from monai_fairfl.strategies import FedAvg, FedISM, Strategy
from monai_fairfl.transports.in_process import InProcess

TARGETS = {"A": [1.0, 0.0], "B": [0.0, 1.0], "C": [2.0, 2.0]}


def initial() -> tuple[dict[str, torch.Tensor], Any]:
    return {"w": torch.zeros(2, dtype=torch.float64)}, SPEC


def federation(
    run_dir: Path, answer: Any = None, strategy: Strategy | None = None, **settings: Any
) -> Federation:
    class Client(LeastSquares):
        def answer(self, request: Request) -> Reply:
            reply = super().answer(request)
            return reply if answer is None else answer(request, reply)

    clients = {name: (lambda t=target: Client(t)) for name, target in TARGETS.items()}
    settings = {"rounds": 3, "record_updates": True, **settings}
    return Federation(
        strategy or FedAvg(), InProcess(clients), initial=initial, run_dir=run_dir, **settings
    )


def test_every_rounds_updates_are_recorded_and_average_to_the_next_rounds_start(
    tmp_path: Path,
) -> None:
    federation(tmp_path).run()
    rounds = recorded_rounds(tmp_path)
    assert [r.number for r in rounds] == [0, 1, 2] and all(
        r.clients == ["A", "B", "C"] for r in rounds
    )
    for recorded, after in zip(
        rounds, [*(r.start() for r in rounds[1:]), torch.load(tmp_path / "models/global.pt")]
    ):
        mean = sum(reply.update["w"] for reply in recorded.replies()) / 3  # type: ignore[index, misc]
        assert torch.allclose(recorded.start()["w"] + mean, after["w"], atol=1e-12)


def test_nothing_is_recorded_unasked(tmp_path: Path) -> None:
    federation(tmp_path, record_updates=False).run()
    assert not (tmp_path / "updates").exists()
    with pytest.raises(ConfigError, match="round 0 of .* was not recorded.*--record_updates True"):
        recorded_rounds(tmp_path)


def test_a_run_that_was_recorded_from_its_middle_on_is_refused(tmp_path: Path) -> None:
    federation(tmp_path, rounds=2, record_updates=False).run()
    federation(tmp_path).run(resume=True)
    with pytest.raises(ConfigError, match="round 0 of .* was not recorded.*leave out"):
        check_recorded(tmp_path)
    federation(tmp_path / "whole").run()
    check_recorded(tmp_path / "whole")


@pytest.mark.slow
def test_recorded_updates_survive_a_crash_and_a_repeated_round_replaces_its_own(
    tmp_path: Path,
) -> None:
    federation(tmp_path / "whole" / "run").run()
    crash_before_checkpoint(federation(tmp_path / "parts" / "run"), 1)
    last_try = tmp_path / "parts" / "run" / "updates" / "round-0001"
    (last_try / "clients" / "B.safetensors").write_bytes(b"half")
    federation(tmp_path / "parts" / "run").run(resume=True)
    for one, other in zip(
        recorded_rounds(tmp_path / "whole/run"),
        recorded_rounds(tmp_path / "parts/run"),
        strict=True,
    ):
        for a, b in zip(one.replies(), other.replies(), strict=True):
            assert a.client == b.client and torch.equal(a.update["w"], b.update["w"])  # type: ignore[index]


def test_a_client_whose_update_was_quarantined_is_not_in_the_record(tmp_path: Path) -> None:
    def poison(request: Request, reply: Reply) -> Reply:
        if (request.client, request.round, request.task) == ("B", 1, "train"):
            reply.update["w"][0] = torch.nan  # type: ignore[index]
        return reply

    federation(tmp_path, poison).run()
    assert [r.clients for r in recorded_rounds(tmp_path)] == [
        ["A", "B", "C"],
        ["A", "C"],
        ["A", "B", "C"],
    ]


def test_a_damaged_record_and_one_of_another_run_are_named(tmp_path: Path) -> None:
    federation(tmp_path).run()
    folder = tmp_path / "updates" / "round-0002"
    (folder / "clients" / "A.safetensors").write_bytes(b"")
    with pytest.raises(
        FederationError, match="round-0002 is damaged .*A.safetensors was changed or cut short"
    ):
        recorded_rounds(tmp_path)[2].replies()
    for name in ("updates/round-0001", "updates/round-0002"):
        (tmp_path / name).rename(tmp_path / f"old{name[-1]}")
    (tmp_path / "old1").rename(tmp_path / "updates" / "round-0002")
    (tmp_path / "old2").rename(tmp_path / "updates" / "round-0001")
    with pytest.raises(FederationError, match="round-0001 did not begin with the model"):
        recorded_rounds(tmp_path)


@pytest.mark.parametrize("name", ["clients/A.safetensors", "manifest.json"])
def test_a_record_that_cannot_be_read_at_present_is_not_called_damaged(
    tmp_path: Path, name: str
) -> None:
    federation(tmp_path).run()
    file = tmp_path / "updates" / "round-0001" / name
    # A folder in its place: the system refuses to read it, whoever asks.
    file.unlink()
    file.mkdir()
    with pytest.raises(FederationError, match="round-0001 cannot be read .*Is a directory.*: mend"):
        recorded_rounds(tmp_path)[1].replies()


def test_a_damaged_manifest_is_named(tmp_path: Path) -> None:
    federation(tmp_path).run()
    for damage in ("{", "{}"):
        (tmp_path / "updates" / "round-0001" / "manifest.json").write_text(damage)
        with pytest.raises(FederationError, match="round-0001 is damaged .*restore it from a copy"):
            recorded_rounds(tmp_path)


def test_a_run_without_a_finished_round_has_nothing_to_value(tmp_path: Path) -> None:
    Ledger(tmp_path / "ledger.jsonl").append({"kind": "start", "model": ""})
    with pytest.raises(ConfigError, match="no finished round"):
        recorded_rounds(tmp_path)


def test_which_classes_a_client_labels_is_recorded(tmp_path: Path) -> None:
    spec = ModelSpec(("head.weight",), layers={"head.weight": "head"}, output=("head", 0))
    start = {"head.weight": torch.zeros(2, 1)}
    requests = [Request(client, "train", start, id=i) for i, client in enumerate("AB")]
    labelled_by = {"A": (), "B": (True, False)}
    sent = [
        Reply(
            r.client, {"head.weight": torch.ones(2, 1)}, 1, labelled=labelled_by[r.client], id=r.id
        )
        for r in requests
    ]
    record_round(tmp_path, 0, start, Replies(sent, requests, spec), "aggregation")
    ledger = Ledger(tmp_path / "ledger.jsonl")
    told_ledger = {"samples": {"A": 1, "B": 1}, "labelled": {"B": [True, False]}}
    for kind in ("start", "round"):
        ledger.append({"kind": kind, "model": digest_of(start), **told_ledger})
    (found,) = recorded_rounds(tmp_path)
    assert {reply.client: reply.labelled for reply in found.replies()} == labelled_by


def test_a_manifest_that_differs_from_the_ledger_is_refused(tmp_path: Path) -> None:
    federation(tmp_path).run()
    manifest = tmp_path / "updates" / "round-0001" / "manifest.json"
    written = json.loads(manifest.read_text())
    for samples in ({**written["samples"], "B": 1}, {"A": 10, "C": 10}):
        manifest.write_text(json.dumps({**written, "samples": samples}))
        with pytest.raises(
            FederationError, match="round-0001 has samples .*'s ledger {'A': 10, 'B': 10, 'C': 10}"
        ):
            recorded_rounds(tmp_path)


def test_only_tensors_and_json_are_on_disk(tmp_path: Path) -> None:
    federation(tmp_path, rounds=1).run()
    files = {
        p.relative_to(tmp_path / "updates").as_posix()
        for p in (tmp_path / "updates").rglob("*")
        if p.is_file()
    }
    assert files == {f"round-0000/{n}" for n in ("start.safetensors", "manifest.json")} | {
        f"round-0000/clients/{c}.safetensors" for c in TARGETS
    }
    assert set(load_file(tmp_path / "updates/round-0000/clients/A.safetensors")) == {"w"}


def test_the_exchange_that_trained_is_recorded_whatever_was_measured_before_it(
    tmp_path: Path,
) -> None:
    """FedISM without SALT measures the received model first."""
    history = federation(tmp_path, strategy=FedISM(salt=False)).run()
    for record in history.rounds:
        assert record["samples"] == dict.fromkeys("ABC", 10) and record["cases"] == dict.fromkeys(
            "ABC", 2
        )
        assert record["gram"]["clients"] == ["A", "B", "C"] and set(record["measurements"]["A"]) > {
            "sharpness"
        }
    for recorded, record in zip(recorded_rounds(tmp_path), history.rounds, strict=True):
        updates = torch.stack([reply.update["w"] for reply in recorded.replies()])  # type: ignore[index]
        assert recorded.samples == dict.fromkeys("ABC", 10)
        assert torch.allclose(
            updates @ updates.T, torch.tensor(record["gram"]["whole"], dtype=torch.float64)
        )
