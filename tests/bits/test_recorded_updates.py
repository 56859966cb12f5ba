# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The updates of every round, kept for valuations: whole, of this run, and read as safetensors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers import tiny_networks
from helpers.crashes import crash_before_checkpoint
from helpers.driving import vector
from helpers.least_squares_federation import TARGETS, changing, global_weights
from helpers.least_squares_federation import federation as any_federation
from safetensors.torch import load_file

from monai_fairfl import Federation, Request
from monai_fairfl.errors import ConfigError, FederationError
from monai_fairfl.run_folder import recorded_rounds
from monai_fairfl.strategies import FedAvg, FedISM, Strategy


def federation(
    folder: Path, transport: Any = None, strategy: Strategy | None = None, **settings: Any
) -> Federation:
    given = {"rounds": 3, "record_updates": True, **settings}
    return any_federation(folder, strategy or FedAvg(), transport, **given)


def updates(folder: Path) -> list[dict[str, list[float]]]:
    """Of each round: client -> what it sent."""
    found = []
    for recorded in recorded_rounds(folder / "run"):
        sent = {}
        for reply in recorded.replies():
            assert reply.update is not None
            sent[reply.client] = reply.update["w"].tolist()
        found.append(sent)
    return found


def test_every_rounds_updates_average_to_the_next_rounds_start(tmp_path: Path) -> None:
    federation(tmp_path).run()
    rounds = recorded_rounds(tmp_path / "run")
    assert [recorded.number for recorded in rounds] == [0, 1, 2]
    later = [*(recorded.start()["w"] for recorded in rounds[1:]), global_weights(tmp_path)]
    for recorded, sent, after in zip(rounds, updates(tmp_path), later, strict=True):
        assert recorded.clients == list(sent) == list(TARGETS)
        mean = np.mean(list(sent.values()), axis=0)
        np.testing.assert_allclose(recorded.start()["w"] + mean, after, atol=1e-12)

    folder = tmp_path / "run" / "updates"
    files = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    names = ["start.safetensors", "manifest.json", *(f"clients/{c}.safetensors" for c in TARGETS)]
    assert files == {f"round-000{number}/{name}" for number in range(3) for name in names}
    assert set(load_file(folder / "round-0000/clients/A.safetensors")) == {"w"}


def test_the_exchange_that_trained_is_recorded_whatever_was_measured_before_it(
    tmp_path: Path,
) -> None:
    """FedISM without SALT measures the received model first."""
    history = federation(tmp_path, strategy=FedISM(salt=False)).run()
    for sent, record in zip(updates(tmp_path), history.rounds, strict=True):
        rows = np.array(list(sent.values()))
        assert record["samples"] == dict.fromkeys("ABC", 10)
        assert record["cases"] == dict.fromkeys("ABC", 2)
        assert record["gram"]["clients"] == list(sent) == ["A", "B", "C"]
        np.testing.assert_allclose(rows @ rows.T, record["gram"]["whole"])


def test_what_was_not_recorded_is_refused_by_its_round(tmp_path: Path) -> None:
    federation(tmp_path, record_updates=False, rounds=2).run()
    assert not (tmp_path / "run" / "updates").exists()
    for _ in range(2):
        with pytest.raises(ConfigError, match="round 0 .*not recorded"):
            recorded_rounds(tmp_path / "run")
        federation(tmp_path).run(resume=True)  # recorded from its middle on
    empty = federation(tmp_path / "empty")
    empty.stop()
    empty.run()
    with pytest.raises(ConfigError, match="no finished round"):
        recorded_rounds(tmp_path / "empty" / "run")


def test_a_round_that_is_played_again_replaces_its_own(tmp_path: Path) -> None:
    federation(tmp_path / "whole").run()
    crash_before_checkpoint(federation(tmp_path / "parts"), 1)
    last_try = tmp_path / "parts/run/updates/round-0001"
    (last_try / "clients" / "B.safetensors").write_bytes(b"half")
    federation(tmp_path / "parts").run(resume=True)
    assert updates(tmp_path / "parts") == updates(tmp_path / "whole")


def test_an_update_that_a_guard_kept_out_is_not_in_it(tmp_path: Path) -> None:
    def trained_by_b(request: Request) -> bool:
        return (request.client, request.round, request.task) == ("B", 1, "train")

    poison = changing(trained_by_b, update={"w": vector([torch.nan, 0.0])})
    federation(tmp_path, poison).run()
    assert [list(sent) for sent in updates(tmp_path)] == [["A", "B", "C"], ["A", "C"],
                                                          ["A", "B", "C"]]  # fmt: skip


def test_which_classes_a_client_labels_is_recorded(tmp_path: Path) -> None:
    labelled = {"elm": (True, False, True)}
    settings = {"record_updates": True, "rounds": 1}
    tiny_networks.federation(FedAvg(), tmp_path, labelled=labelled, **settings).run()
    (only,) = recorded_rounds(tmp_path / "run")
    found = {reply.client: tuple(reply.labelled) for reply in only.replies() if reply.labelled}
    assert found == labelled


# --- damage


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    federation(tmp_path).run()
    folder = tmp_path / "run" / "updates" / "round-0001"
    manifest = (folder / "manifest.json").read_text()
    for damage in ("{", "{}"):
        (folder / "manifest.json").write_text(damage)
        with pytest.raises(FederationError, match="round-0001 is damaged"):
            recorded_rounds(tmp_path / "run")
    (folder / "manifest.json").write_text(manifest)
    (folder / "clients" / "A.safetensors").write_bytes(b"")
    with pytest.raises(FederationError, match=r"round-0001 .*A\.safetensors"):
        recorded_rounds(tmp_path / "run")[1].replies()


@pytest.mark.parametrize("name", ["clients/A.safetensors", "manifest.json"])
def test_what_cannot_be_read_at_present_is_not_called_damaged(tmp_path: Path, name: str) -> None:
    federation(tmp_path).run()
    file = tmp_path / "run" / "updates" / "round-0001" / name
    # A folder in its place: the system refuses to read it, whoever asks.
    file.unlink()
    file.mkdir()
    with pytest.raises(FederationError, match="round-0001 cannot be read"):
        recorded_rounds(tmp_path / "run")[1].replies()


def test_what_does_not_fit_the_ledger_is_refused(tmp_path: Path) -> None:
    federation(tmp_path).run()
    updates_of = tmp_path / "run" / "updates"
    manifest = updates_of / "round-0001" / "manifest.json"
    written = json.loads(manifest.read_text())
    for key, value in (("samples", {**written["samples"], "B": 1}), ("labelled", {"B": [True]})):
        manifest.write_text(json.dumps({**written, key: value}))
        with pytest.raises(FederationError, match=f"round-0001 has {key}"):
            recorded_rounds(tmp_path / "run")
    manifest.write_text(json.dumps(written))
    (updates_of / "round-0001").rename(updates_of / "other")
    (updates_of / "round-0002").rename(updates_of / "round-0001")
    (updates_of / "other").rename(updates_of / "round-0002")
    with pytest.raises(FederationError, match="round-0001 did not begin"):
        recorded_rounds(tmp_path / "run")
