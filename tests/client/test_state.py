# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The state of a client between rounds: whose files they are, and that they stay in its folder."""

from __future__ import annotations

import csv
import errno
import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.small_trainers import conv_net, image_batches, trainer_of
from monai.handlers import LrScheduleHandler
from torch import nn

from monai_fairfl.client.state import ClientState, Past
from monai_fairfl.client.trainer_state import load_state, state_of
from monai_fairfl.errors import ConfigError, FederationError
from monai_fairfl.utils.spreadsheets import read_csv_text


@pytest.mark.parametrize(
    "run", ["", "../other", "a/b", "/tmp/a", ".hidden", "-a", "lr=0.01", "a*", "a\n", "a" * 129]
)
def test_a_run_whose_name_is_no_file_name_is_refused_wherever_it_is_used(
    run: str, tmp_path: Path
) -> None:
    states = ClientState(tmp_path / "private")
    for use in (
        lambda: states.save(run, 0, {}),
        lambda: states.save_cases(run, "score-0-0", {"Case00": {"dice": 0.5}}),
        lambda: states.path(run, "own.pt"),
        lambda: Past(states, run, 0),
    ):
        with pytest.raises(
            ConfigError, match="run name .* cannot be used: give it 1 to 128 letters"
        ):
            use()
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


@pytest.mark.parametrize("run", ["r", "fedce-2", "FedCE 3T.v1", "a" * 128])
def test_states_are_found_again_by_run_and_round(run: str, tmp_path: Path) -> None:
    states = ClientState(tmp_path)
    for number in range(4):
        states.save(run, number, {"round": number})
    assert states.before(run, 3) == [2, 1] and states.before(f"other{run}"[:128], 3) == []
    assert states.load(run, 2) == {"round": 2}


def test_runs_whose_names_begin_alike_do_not_meet(tmp_path: Path) -> None:
    states = ClientState(tmp_path, keep=2)
    for run in ("fedavg", "fedavg-round-2"):
        for number in range(4):
            states.save(run, number, {"run": run})
    for run in ("fedavg", "fedavg-round-2"):
        assert states.before(run, 9) == [3, 2] and Past(states, run, 9).state == {"run": run}


def test_states_of_an_earlier_run_of_the_same_name_are_deleted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    states = ClientState(tmp_path)
    assert not states.begin("r", "aa") and not states.begin("other", "zz")
    for number in range(3):
        states.save("r", number, {})
        states.save("other", number, {})
    # The same run, and a request without a run.
    for known in ("aa", ""):
        assert not ClientState(tmp_path).begin("r", known)
    assert states.before("r", 9) == [2, 1, 0] and not caplog.records

    assert ClientState(tmp_path).begin("r", "bb")
    assert states.before("r", 9) == [] and states.before("other", 9) == [2, 1, 0]
    assert "of an earlier run of that name: they are deleted, and this site" in caplog.text
    states.save("r", 1, {})
    assert not states.begin("r", "bb") and states.has("r", 1)


@pytest.mark.parametrize("share", [0.0, 0.01, 0.5, 0.99])
def test_a_damaged_state_names_its_file_and_what_to_do(share: float, tmp_path: Path) -> None:
    states = ClientState(tmp_path)
    for number in range(2):
        states.save("r", number, {"local": {"w": torch.ones(1000)}, "round": number})
    file = states.path("r", "round-0001.pt")
    file.write_bytes(file.read_bytes()[: int(share * file.stat().st_size)])
    with pytest.raises(
        FederationError, match="round 1 in .*r-round-0001.pt is damaged .*: delete the file"
    ):
        _ = Past(states, "r", 2).state
    file.unlink()
    assert Past(states, "r", 2).state["round"] == 0  # type: ignore[index]


def test_a_state_of_which_a_bit_was_changed_is_damaged(tmp_path: Path) -> None:
    """PyTorch itself would read a changed weight without a word."""
    states = ClientState(tmp_path)
    weights = torch.arange(20.0)
    states.save("r", 1, {"local": {"w": weights}})
    file = states.path("r", "round-0001.pt")
    whole = file.read_bytes()
    in_weights = whole.index(weights.numpy().tobytes()) + 41
    in_entry_name = whole.rindex(b"data.pkl")
    in_number_of_disks = whole.rindex(b"PK\x06\x07") + 16
    for place in (in_weights, in_entry_name, in_number_of_disks):
        content = bytearray(whole)
        content[place] ^= 0x80
        file.write_bytes(content)
        with pytest.raises(FederationError, match="round-0001.pt is damaged .*: delete the file"):
            states.load("r", 1)


def test_a_state_that_the_system_does_not_let_be_read_is_not_called_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Raised in place of a refusal, which an administrator's account would not get."""

    def refuse(path: Path, **arguments: Any) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    states = ClientState(tmp_path)
    states.save("r", 1, {"round": 1})
    monkeypatch.setattr(torch, "load", refuse)
    with pytest.raises(
        FederationError, match=r"r-round-0001.pt cannot be read \(Permission"
    ) as why:
        states.load("r", 1)
    assert "damaged" not in str(why.value) and "delete" not in str(why.value)


@pytest.mark.slow
def test_a_schedule_that_gives_numpys_numbers_is_read_again(tmp_path: Path) -> None:
    network = conv_net()
    optimizer = torch.optim.Adam(network.parameters(), 0.01)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda epoch: np.cos(epoch / 10))
    handlers = [LrScheduleHandler(schedule, print_lr=False)]
    trainer = trainer_of(
        network, image_batches(1), nn.BCEWithLogitsLoss(), optimizer, train_handlers=handlers
    )
    trainer.run()
    states = ClientState(tmp_path)
    states.save("r", 0, state_of(trainer))
    load_state(trainer, states.load("r", 0))
    assert optimizer.param_groups[0]["lr"] == 0.01 * np.cos(0.1) == schedule.get_last_lr()[0]


def test_a_cases_name_may_hold_commas_and_quotes(tmp_path: Path) -> None:
    names = ["Case00.nii.gz", "Smith, John.nii.gz", 'a "b".nii.gz']
    ClientState(tmp_path).save_cases(
        "r", "score-0-0", {name: {"dice": 0.5, "cup": 0.25} for name in names}
    )
    with open(tmp_path / "r-score-0-0.csv", newline="") as file:
        rows = list(csv.reader(file))
    assert rows == [["case", "dice", "cup"], *([name, "0.500000", "0.250000"] for name in names)]


def test_a_cases_name_is_run_by_no_spreadsheet_and_read_back_as_it_was(tmp_path: Path) -> None:
    names = [
        "=HYPERLINK(1)",
        "+1.nii",
        "-1.nii",
        "@a.nii",
        "\t=a.nii",
        "\r=a.nii",
        "'=a.nii",
        "a.nii",
    ]
    ClientState(tmp_path).save_cases("r", "score-0-0", {name: {"dice": 0.5} for name in names})
    text = (tmp_path / "r-score-0-0.csv").read_bytes().decode()
    shown = [row[0] for row in csv.reader(io.StringIO(text, newline=""))]
    assert not [name for name in shown if name[:1] in tuple("=+-@\t\r")]
    assert [row["case"] for row in read_csv_text(text)] == names
