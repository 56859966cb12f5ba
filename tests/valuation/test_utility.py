# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from helpers.driving import vector
from helpers.linear_federation import LinearRun

from monai_fairfl.errors import ConfigError, FederationError
from monai_fairfl.protocol.messages import Reply, Request
from monai_fairfl.protocol.values import Estimate, Measurement, value_of
from monai_fairfl.server.facts import Facts
from monai_fairfl.transports.in_process import InProcess
from monai_fairfl.valuation import Panel, Utility
from monai_fairfl.valuation.finished import Evaluator
from monai_fairfl.valuation.utility import Key, MeasuredModels

MEASURED: dict[str, Measurement] = {
    "A": {"mean": Estimate(0.9, 0.01, 30), "disc": Estimate(0.95, 0.01, 30), "cup": 0.85},
    "B": {"mean": Estimate(0.5, None, 10), "disc": Estimate(0.60, None, 10), "cup": 0.40},
}


@pytest.mark.parametrize(
    ("name", "value"), [("mean", 0.7), ("pooled", 0.8), ("worst", 0.5), ("cup", 0.625)]
)
def test_a_utility_is_one_number_of_what_the_sites_measured(name: str, value: float) -> None:
    assert Utility(name)(MEASURED) == pytest.approx(value)


def test_a_class_is_scored_by_the_sites_that_label_it() -> None:
    assert Utility("cup")({**MEASURED, "C": {"mean": 0.8, "disc": 0.8}}) == pytest.approx(0.625)


def test_a_loss_counts_negatively() -> None:
    assert Utility("negative_loss")({"A": 0.5, "B": 0.1}) == pytest.approx(-0.3)


@pytest.mark.parametrize(
    ("utility", "measurement"),
    [
        (Utility("mean"), "score"),
        (Utility("cup", "test"), "test_score"),
        (Utility("negative_loss"), "global_loss"),
    ],
)
def test_a_utility_knows_its_measurement(utility: Utility, measurement: str) -> None:
    assert utility.measurement == measurement


def test_a_class_that_is_not_scored_is_refused_with_those_that_are() -> None:
    with pytest.raises(
        ConfigError, match=r"'rim' is neither.*'worst'.*which are \['cup', 'disc'\]"
    ):
        Utility("rim")(MEASURED)
    with pytest.raises(ConfigError, match="'validation' or 'test', got 'all'"):
        Utility("mean", "all")
    with pytest.raises(ConfigError, match="training data"):
        Utility("negative_loss", "test")


@pytest.mark.parametrize("name", ["mean", "pooled", "worst", "negative_loss", "cup"])
def test_nothing_measured_has_no_utility(name: str) -> None:
    with pytest.raises(ConfigError, match=f"utility '{name}' is a number .*nobody measured any"):
        Utility(name)({})


def test_a_panel_of_nobody_is_refused() -> None:
    with pytest.raises(ConfigError, match="a panel needs at least one client, got none: name"):
        Panel(InProcess({}), [])


def test_a_panel_asks_all_clients_for_the_one_measurement_and_nothing_else(tmp_path: Path) -> None:
    run = LinearRun(tmp_path)
    panel = run.finished().panel
    measured = panel.measure({"w": vector([1.0, 2.0])}, "score")
    means = {client: value_of(value) for client, value in measured.items()}
    assert means == {"A": 1.0, "B": 4.0, "C": 3.0}
    assert [(r.client, r.task, r.measure) for r in run.asked] == [
        (c, "measure", ("score",)) for c in "ABC"
    ]


@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        ({"error": "no GPU"}, "error: no GPU"),
        ({"measurements": {"score": float("nan")}}, "no finite value"),
        ({"measurements": {"score": 85.0}}, "it is 85, outside of 0 to 1"),
    ],
)
def test_a_client_that_fails_is_named_with_its_reason(
    reply: dict[str, object], reason: str
) -> None:
    class Failing:
        def answer(self, request: Request) -> Reply:
            echo = {"id": request.id, "run": request.run, "round": request.round}
            return Reply(request.client, None, 0, **echo, **reply)  # type: ignore[arg-type]

    with pytest.raises(FederationError, match=f"client 'B' did not measure 'score': .*{reason}"):
        Panel(InProcess({"B": Failing}), ["B"]).measure({}, "score")


def test_an_answer_that_comes_late_is_not_taken_for_one_about_the_next_model() -> None:
    class Slow:
        """The first answer comes when the second one does."""

        clients = ["A"]
        answers: list[Reply] = []

        def exchange(self, requests, arrived, timeout=None) -> None:  # type: ignore[no-untyped-def]
            (asked,) = requests
            score = {"score": float(asked.weights["w"])}
            self.answers.append(
                Reply("A", None, 0, score, id=asked.id, run=asked.run, round=asked.round)
            )
            for reply in self.answers if len(self.answers) > 1 else []:
                arrived(reply)

        def close(self) -> None:
            pass

    panel = Panel(Slow(), ["A"])
    with pytest.raises(FederationError, match="timeout"):
        panel.measure({"w": vector([0.25])}, "score")
    assert panel.measure({"w": vector([0.5])}, "score") == {"A": 0.5}


class Growing:
    """A client that claims more cases each time that it is asked."""

    def __init__(self) -> None:
        self.cases = 0

    def answer(self, request: Request) -> Reply:
        self.cases += 10
        score = Estimate(0.5, None, self.cases)
        echo = {"id": request.id, "run": request.run, "round": request.round}
        return Reply(request.client, None, 0, {"score": {"mean": score}}, **echo)  # type: ignore[arg-type]


def cases_of(measured: Mapping[str, Any]) -> dict[str, int]:
    return {client: value["mean"].n for client, value in measured.items()}


def test_the_cases_behind_a_score_count_as_they_were_first_reported(
    caplog: pytest.LogCaptureFixture,
) -> None:
    panel = Panel(InProcess({"A": Growing, "B": Growing}), "AB")
    for _ in range(3):
        assert cases_of(panel.measure({}, "score")) == {"A": 10, "B": 10}
    assert "client A: n of score: mean 30 reported, 10 counts" in caplog.text


def test_the_cases_that_a_run_recorded_count_in_its_valuation() -> None:
    facts = Facts(records=[{"facts": {"A": {"n of score: mean": 7}}}])
    panel = Panel(InProcess({"A": Growing, "B": Growing}), "AB", facts=facts)
    assert cases_of(panel.measure({}, "score")) == {"A": 7, "B": 10}


def test_a_valuation_that_goes_on_counts_cases_as_it_began(tmp_path: Path) -> None:
    client = Growing()
    utility = Utility("pooled")

    def evaluate(coalition: str) -> None:
        # Each time a new process: the client goes on with its claims, the panel begins.
        measured = MeasuredModels(tmp_path / "measured.jsonl", "run")
        panel = Panel(InProcess({"A": lambda: client}), "A")
        Evaluator("valuation", panel, utility, measured)("game", frozenset(coalition), dict)

    for coalition in ("A", "B"):
        evaluate(coalition)
    stored = MeasuredModels(tmp_path / "measured.jsonl", "run")
    assert [cases_of(stored[key]) for key in stored] == [{"A": 10}, {"A": 10}]


def test_what_was_measured_is_read_back_and_a_line_cut_short_is_not(tmp_path: Path) -> None:
    path, key = tmp_path / "measured.jsonl", Key(
        "round 0", frozenset("AB"), "score", frozenset(MEASURED)
    )
    models = MeasuredModels(path, "run")
    assert key not in models
    models.add(key, MEASURED)
    assert models[key] == MEASURED
    again = MeasuredModels(path, "run")
    assert key in again and again[key] == MEASURED
    other = Key("round 1", frozenset(), "score", frozenset("A"))
    again.add(other, {"A": 0.1})
    path.write_bytes(path.read_bytes()[:-1])
    cut = MeasuredModels(path, "run")
    assert key in cut and other not in cut and key._replace(clients=frozenset("A")) not in cut
    path.write_bytes(path.read_bytes() + b"{\n")
    with pytest.raises(ConfigError, match="measured.jsonl, line 3 is damaged: delete it"):
        MeasuredModels(path, "run")
    assert key not in MeasuredModels(path, "another run")
