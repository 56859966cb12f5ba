# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Guards in NVFlare's own FedAvg: their verdicts, their memory, and what they compare with."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from helpers.updates import honest, model_at, statistics_of, tensors_of

from monai_fairfl.errors import ConfigError
from monai_fairfl.guards import DEFAULT, Guard, Replayed, TooLong
from monai_fairfl.strategies import FedAvg

pytest.importorskip(
    "nvflare", reason="nvflare is not installed: pip install 'monai_fairfl[nvflare]'"
)
from nvflare.app_common.abstract.fl_model import FLModel, ParamsType  # noqa: E402
from nvflare.app_common.app_event_type import AppEventType  # noqa: E402
from nvflare.app_common.utils.fl_model_utils import FLModelUtils  # noqa: E402

from monai_fairfl.transports.flare import FairFLAggregator  # noqa: E402
from monai_fairfl.transports.flare.server.aggregator_state import STATE  # noqa: E402

pytestmark = pytest.mark.nvflare
NAMES = "ABCDE"


def job_of(folder: Path) -> Any:
    workspace = SimpleNamespace(get_run_dir=lambda job: str(folder / job))
    names = [SimpleNamespace(name=client) for client in NAMES]
    engine = SimpleNamespace(get_workspace=lambda: workspace, get_clients=lambda: names)
    return SimpleNamespace(
        get_engine=lambda: engine, get_job_id=lambda: "job", get_prop=lambda name: None
    )


def aggregator_in(folder: Path, **arguments: Any) -> FairFLAggregator:
    aggregator = FairFLAggregator(FedAvg(), **arguments)
    aggregator.fl_ctx = job_of(folder)
    return aggregator


def one_round(
    aggregator: FairFLAggregator,
    number: int,
    updates: dict[str, np.ndarray],
    sent: np.ndarray | None = None,
    statistics: dict[str, dict[str, torch.Tensor]] | None = None,
) -> FLModel:
    """A round of differences; with ``sent`` the server knows the model, as in a job."""
    aggregator.reset_stats()
    if sent is not None:
        task = FLModelUtils.to_shareable(
            FLModel(ParamsType.FULL, model_at(sent), current_round=number)
        )
        aggregator.handle_event(
            AppEventType.BEFORE_TRAIN_TASK, SimpleNamespace(get_prop=lambda name: task)
        )
    for client, update in updates.items():
        of_client = (statistics or {}).get(client, statistics_of())
        before = statistics_of(batches=0)
        changes = {name: of_client[name] - before[name] for name in before}
        meta = {"client_name": client, "NUM_STEPS_CURRENT_ROUND": 10}
        params = {**tensors_of(update), **changes}
        aggregator.accept_model(FLModel(ParamsType.DIFF, params, current_round=number, meta=meta))
    return aggregator.aggregate_model()


def rounds_of(folder: Path) -> list[dict[str, Any]]:
    return json.loads((folder / "job" / STATE).read_text())["rounds"]


def test_copies_share_one_weight(tmp_path: Path) -> None:
    updates = honest(NAMES)
    one_round(aggregator_in(tmp_path), 0, {**updates, "E": updates["A"]})
    [record] = rounds_of(tmp_path)
    assert record["aggregation"] == pytest.approx(
        {"A": 0.125, "B": 0.25, "C": 0.25, "D": 0.25, "E": 0.125}
    )
    assert record["missing"] == {}
    assert [verdict["guard"] for verdict in record["verdicts"]["E"]] == ["Copies"]


def second_round(aggregator: FairFLAggregator, known: bool) -> None:
    """The second round, in which C repeats the step of the first."""
    step = sum(honest(NAMES, seed=1).values()) / 5
    sent = np.zeros_like(step) + step if known else None
    one_round(aggregator, 1, {**honest(NAMES, seed=2), "C": step}, sent)


def first_round(aggregator: FairFLAggregator, known: bool) -> None:
    updates = honest(NAMES, seed=1)
    sent = np.zeros_like(updates["A"]) if known else None
    one_round(aggregator, 0, updates, sent)


@pytest.mark.parametrize("restarted", [False, True])
def test_a_repeated_step_is_found_also_by_a_server_that_was_started_again(
    tmp_path: Path, restarted: bool
) -> None:
    aggregator = aggregator_in(tmp_path, guards=["Replayed"])
    first_round(aggregator, known=True)
    if restarted:
        aggregator = aggregator_in(tmp_path, guards=["Replayed"])
    second_round(aggregator, known=True)
    assert "the last global step" in rounds_of(tmp_path)[1]["missing"]["C"]


def test_where_the_sent_model_is_not_known_no_step_is_compared_and_the_log_says_so_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    aggregator = aggregator_in(tmp_path, guards=["Replayed"])
    first_round(aggregator, known=False)
    second_round(aggregator, known=False)
    assert [record["verdicts"] for record in rounds_of(tmp_path)] == [{}, {}]
    assert caplog.text.count("Without it Replayed can judge nothing") == 1


def test_where_the_sent_model_is_known_the_log_is_silent(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first_round(aggregator_in(tmp_path), known=True)
    assert "can judge nothing" not in caplog.text


def test_the_default_guards_of_others_remember_nothing_of_it(tmp_path: Path) -> None:
    first_round(aggregator_in(tmp_path / "one"), known=True)
    [replayed] = [guard for guard in DEFAULT if isinstance(guard, Replayed)]
    assert replayed.state_dict() == {"sent": {}, "steps": {}, "updates": {}}
    other = aggregator_in(tmp_path / "other")
    second_round(other, known=True)
    [verdict] = rounds_of(tmp_path / "other")[0]["verdicts"]["C"]
    assert verdict["guard"] == "Noise"


@pytest.mark.parametrize("known", [True, False])
def test_a_variance_that_falls_is_honest(tmp_path: Path, known: bool) -> None:
    falls = dict.fromkeys(NAMES, statistics_of(variance=0.25))
    sent = np.zeros_like(honest("A")["A"]) if known else None
    one_round(aggregator_in(tmp_path), 0, honest(NAMES), sent, falls)
    assert rounds_of(tmp_path)[0]["verdicts"] == {}


def test_a_negative_variance_is_found_where_the_sent_model_is_known(tmp_path: Path) -> None:
    sent = np.zeros_like(honest("A")["A"])
    found = one_round(
        aggregator_in(tmp_path), 0, honest(NAMES), sent, {"B": statistics_of(variance=-3.0)}
    )
    assert "negative variance" in rounds_of(tmp_path)[0]["missing"]["B"]
    assert found.params["norm.running_var"].tolist() == [0.0] * 4


def test_other_guards_may_be_named(tmp_path: Path) -> None:
    updates = honest(NAMES)
    updates["C"] = updates["C"] * 7
    wider = aggregator_in(
        tmp_path / "wider", guards=[{"_target_": "monai_fairfl.guards.TooLong", "times": 8}]
    )
    one_round(wider, 0, updates)
    assert rounds_of(tmp_path / "wider")[0]["verdicts"] == {}
    one_round(aggregator_in(tmp_path / "usual", guards=[TooLong()]), 0, updates)
    assert sorted(rounds_of(tmp_path / "usual")[0]["verdicts"]) == ["C"]
    # NVFlare writes the job from this attribute.
    assert wider.guards == [{"_target_": "monai_fairfl.guards.TooLong", "times": 8}]


class OwnGuard(Guard):
    """A guard that is not of the package."""

    def check(self, replies: Any) -> dict[int, Any]:
        return {}


@pytest.mark.parametrize(
    ("guards", "reason"),
    [
        (["ToLong"], "did you mean 'TooLong'"),
        ([OwnGuard()], "is not of this package"),
        ("TooLong", "guards must be a list"),
        ([{"_target_": "monai_fairfl.guards.TooLong", "time": 8}], "cannot be made"),
    ],
)
def test_unknown_guards_are_refused(guards: Any, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        FairFLAggregator(FedAvg(), guards=guards)
