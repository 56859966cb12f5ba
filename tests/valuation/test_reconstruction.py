# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.driving import vector
from helpers.linear_federation import START, LinearRun, mean_score, model_of

from monai_fairfl.errors import ConfigError, FederationError
from monai_fairfl.protocol.measured import Expected
from monai_fairfl.protocol.messages import Reply, Request
from monai_fairfl.protocol.model_spec import ModelSpec
from monai_fairfl.protocol.replies import Replies
from monai_fairfl.protocol.values import Weights
from monai_fairfl.run_folder.recording import RecordedRound, record_round, recorded_rounds
from monai_fairfl.strategies import FedCE
from monai_fairfl.valuation import MaxSamples, Panel, Reconstruction
from monai_fairfl.valuation.reconstruction import MultiRound, OneRound


@pytest.fixture
def run(tmp_path: Path) -> LinearRun:
    made = LinearRun(tmp_path / "run")
    made.federate(made.folder)
    made.asked.clear()
    return made


def shapley(value: Callable[[tuple[str, ...]], float], players: str = "ABC") -> dict[str, float]:
    """By its definition over all orders."""
    orders = list(permutations(players))
    gain = dict.fromkeys(players, 0.0)
    for order in orders:
        for position, player in enumerate(order):
            gain[player] += (value(order[: position + 1]) - value(order[:position])) / len(orders)
    return gain


def after(rounds: int) -> np.ndarray:
    return model_of("ABC", START, {0: 0.0, 1: 1.0, 2: 3.0}[rounds])  # factors 1 + 2


def test_a_rounds_model_of_a_coalition_is_its_members_mean_step_by_images(run: LinearRun) -> None:
    models = MultiRound(recorded_rounds(run.folder))
    assert models(0, frozenset())["w"].tolist() == START
    assert models(0, frozenset("AB"))["w"].tolist() == pytest.approx(
        [1 + 0.4 / 3, -1 + 0.3 * 2 / 3]
    )
    assert models(1, frozenset("C"))["w"].tolist() == pytest.approx(
        model_of("C", after(1).tolist(), 2.0)
    )
    assert models(1, frozenset("ABC"))["w"].tolist() == pytest.approx(after(2))


def test_the_whole_runs_model_of_a_coalition_sums_its_rounds(run: LinearRun) -> None:
    models = OneRound(recorded_rounds(run.folder))
    for coalition in ("", "A", "BC", "ABC"):
        assert models(frozenset(coalition))["w"].tolist() == pytest.approx(
            model_of(coalition, START, 3.0)
        )


def test_a_client_that_sat_a_round_out_adds_nothing_to_it(tmp_path: Path) -> None:
    run = LinearRun(tmp_path / "run")
    run.lose = lambda request: (request.client, request.round, request.task) == ("B", 0, "train")
    run.federate(run.folder)
    models = OneRound(recorded_rounds(run.folder))
    assert models(frozenset("B"))["w"].tolist() == pytest.approx(model_of("B", START, 2.0))
    expected = model_of("AB", START, 2.0) + model_of("A", [0, 0], 1.0)
    assert models(frozenset("AB"))["w"].tolist() == pytest.approx(expected)
    first, second = (found.clients for found in recorded_rounds(run.folder))
    assert (first, second) == (["A", "C"], ["A", "B", "C"])
    values = Reconstruction().value(run.finished())
    assert set(values.values) == {"A", "B", "C"} and values.values["B"].n == 4


def test_multi_round_values_are_those_of_the_definition_and_share_out_what_the_run_gained(
    run: LinearRun,
) -> None:
    found = Reconstruction("exact").value(run.finished())
    rounds = [
        shapley(lambda s: mean_score(model_of(s, after(0).tolist(), 1.0))),
        shapley(lambda s: mean_score(model_of(s, after(1).tolist(), 2.0))),
    ]
    assert {c: float(v) for c, v in found.values.items()} == pytest.approx(
        {c: rounds[0][c] + rounds[1][c] for c in "ABC"}
    )
    # FedAvg: the gains of the rounds telescope.
    gained = mean_score(after(2)) - mean_score(np.array(START))
    assert (
        sum(float(v) for v in found.values.values())
        == pytest.approx(gained)
        == pytest.approx(found.total)
    )
    assert found.evaluations == 16 == run.models_measured


def test_one_round_values_are_those_of_the_definition(run: LinearRun) -> None:
    found = Reconstruction("exact", form="one_round").value(run.finished())
    expected = shapley(lambda s: mean_score(model_of(s, START, 3.0)))
    assert {c: float(v) for c, v in found.values.items()} == pytest.approx(expected)
    assert found.total == pytest.approx(mean_score(after(2)) - mean_score(np.array(START)))


def test_a_decay_weighs_the_rounds_by_what_they_gained(run: LinearRun) -> None:
    found = Reconstruction("exact", decay=0.5).value(run.finished())
    assert sum(float(v) for v in found.values.values()) == pytest.approx(1.5)


@pytest.mark.parametrize("method", ["exact", "leave_one_out", "gtg", "permutation"])
def test_a_second_valuation_measures_nothing_and_finds_the_same_bits(
    run: LinearRun, method: str
) -> None:
    stop = MaxSamples(5) if method == "permutation" else None
    first = Reconstruction(method, stop=stop).value(run.finished())
    assert run.models_measured > 0
    run.asked.clear()
    assert Reconstruction(method, stop=stop).value(run.finished()) == first
    assert run.models_measured == 0


def test_other_utilities_and_methods_reuse_what_was_measured(run: LinearRun) -> None:
    Reconstruction("exact").value(run.finished())
    run.asked.clear()
    for utility in ("worst", "pooled", "rim"):
        Reconstruction("gtg", utility).value(run.finished())
    assert run.models_measured == 0
    Reconstruction("leave_one_out", "negative_loss").value(run.finished())
    assert run.models_measured == 8


def test_an_interrupted_valuation_goes_on_where_it_stopped_to_the_same_bits(
    run: LinearRun, tmp_path: Path
) -> None:
    stop = MaxSamples(3)
    other = LinearRun(tmp_path / "other")
    other.federate(other.folder)
    whole = Reconstruction("permutation", stop=stop).value(other.finished())

    def interrupt(request: Request) -> bool:
        if run.models_measured == 3:
            raise KeyboardInterrupt
        return False

    run.lose = interrupt
    with pytest.raises(KeyboardInterrupt):
        Reconstruction("permutation", stop=stop).value(run.finished())
    cache = run.folder / "valuations" / "measured.jsonl"
    cache.write_bytes(cache.read_bytes()[:-9])  # the crash cut its last line short
    run.lose = lambda request: False
    assert Reconstruction("permutation", stop=stop).value(run.finished()) == whole
    lines = [json.loads(line) for line in cache.read_text().splitlines()[1:]]
    assert (
        run.models_measured
        == len(lines) + 1
        == len({(row["game"], *row["coalition"]) for row in lines}) + 1
    )


def test_a_client_that_cannot_score_is_named_and_nothing_is_lost(run: LinearRun) -> None:
    # From the third model on.
    run.lose = lambda request: request.client == "B" and len(run.asked) >= 6
    with pytest.raises(
        FederationError, match="client 'B' did not measure 'score': timeout.*same clients"
    ):
        Reconstruction("exact").value(run.finished())
    run.lose = lambda request: False
    run.asked.clear()
    Reconstruction("exact").value(run.finished())
    assert run.models_measured == 16 - 2


def test_models_are_scored_by_the_same_clients_also_after_one_left(run: LinearRun) -> None:
    """C dies in the middle.

    What it scored until then is not mixed with what the others score later, and stays stored.
    """
    run.lose = lambda request: request.client == "C" and run.models_asked >= 4
    with pytest.raises(FederationError, match="client 'C' did not measure"):
        Reconstruction("exact").value(run.finished())
    free = Expected(ranges={})
    panel = Panel(run.transport("AB"), "AB", expected=free)
    two = replace(run.finished(), clients=["A", "B"], panel=panel)
    found = Reconstruction("exact").value(two)
    clean = LinearRun(run.folder.parent / "clean")
    clean.federate(clean.folder)
    panel = Panel(clean.transport("AB"), "AB", expected=free)
    fresh = replace(clean.finished(), clients=["A", "B"], panel=panel)
    assert found.values == Reconstruction("exact").value(fresh).values
    run.lose = lambda request: False
    before = len(run.asked)
    Reconstruction("exact").value(run.finished())
    assert (len(run.asked) - before) // 3 == 16 - 4


def test_a_run_that_has_gone_on_is_measured_anew(run: LinearRun) -> None:
    Reconstruction("leave_one_out").value(run.finished())
    measured = run.folder / "valuations" / "measured.jsonl"
    measured.write_text(measured.read_text().replace('{"run": "', '{"run": "another'))
    run.asked.clear()
    Reconstruction("leave_one_out").value(run.finished())
    assert run.models_measured == 8


def recorded(
    folder: Path, number: int, policy: str, start: Weights, spec: ModelSpec, **sent: dict[str, Any]
) -> RecordedRound:
    """A round that each client answered with these fields of a reply."""
    requests = [Request(client, "train", start, id=i) for i, client in enumerate(sent)]
    replies = [Reply(r.client, id=r.id, **{"num_samples": 1, **sent[r.client]}) for r in requests]
    record_round(folder, number, start, Replies(replies, requests, spec), policy)
    labelled = {reply.client: reply.labelled for reply in replies}
    images = {reply.client: reply.num_samples for reply in replies}
    return RecordedRound(
        folder / f"updates/round-{number:04d}", number, images, policy, spec, labelled
    )


@pytest.mark.parametrize("policy", ["aggregation", "samples"])
def test_statistics_of_normalisation_layers_are_the_coalitions_own_of_the_round(
    tmp_path: Path, policy: str
) -> None:
    spec = ModelSpec(
        ("w",), buffers=("mean", "count"), layers={"w": "n", "mean": "n", "count": "n"}
    )
    start = {"w": vector([0.0]), "mean": vector([0.0]), "count": torch.tensor(0)}

    def sent(images: int, mean: float) -> dict[str, Any]:
        buffers = {"mean": vector([mean]), "count": torch.tensor(images)}
        return {"update": {"w": vector([2.0])}, "num_samples": images, "buffers": buffers}

    rounds = [
        recorded(tmp_path, t, policy, start, spec, A=sent(1, 4.0), B=sent(3, 8.0 + t))
        for t in (0, 1)
    ]
    alone = MultiRound(rounds)(0, frozenset("B"))
    assert {k: v.tolist() for k, v in alone.items()} == {"w": [2.0], "mean": [8.0], "count": 3}
    assert MultiRound(rounds)(0, frozenset("AB"))["mean"].tolist() == [7.0]
    whole_run = OneRound(rounds)(frozenset("B"))  # the statistics are those of the last round
    assert {k: v.tolist() for k, v in whole_run.items()} == {"w": [4.0], "mean": [9.0], "count": 3}


def test_a_class_is_averaged_over_the_members_that_label_it(tmp_path: Path) -> None:
    spec = ModelSpec(("head.weight",), layers={"head.weight": "head"}, output=("head", 0))
    start = {"head.weight": torch.zeros(2, 1)}
    first = {"update": {"head.weight": torch.tensor([[1.0], [1.0]])}}
    second = {"update": {"head.weight": torch.tensor([[5.0], [7.0]])}}
    rounds = []
    for t, labelled in enumerate([(True, False), (), (True, False)]):
        replies = {"A": first, "B": {**second, "labelled": labelled}}
        rounds.append(recorded(tmp_path, t, "samples", start, spec, **replies))
    both = frozenset("AB")
    assert [MultiRound(rounds)(t, both)["head.weight"].tolist() for t in (0, 1)] == [
        [[3.0], [1.0]],
        [[3.0], [4.0]],
    ]
    assert OneRound(rounds)(both)["head.weight"].tolist() == [[9.0], [6.0]]


def test_a_whole_run_is_summed_in_double_precision_and_scored_in_the_models_own(
    tmp_path: Path,
) -> None:
    spec, start = ModelSpec(("w",), layers={"w": "fc"}), {"w": torch.zeros(1)}
    steps = [{"w": torch.tensor([step])} for step in (2.0**25, 1.0, -(2.0**25))]
    model = OneRound(
        [
            recorded(tmp_path, t, "samples", start, spec, A={"update": s})
            for t, s in enumerate(steps)
        ]
    )
    assert torch.equal(model(frozenset("A"))["w"], torch.ones(1))


def test_any_methods_run_can_be_valued(tmp_path: Path) -> None:
    run = LinearRun(tmp_path / "run")
    run.federate(run.folder, strategy=FedCE("cos"))
    found = Reconstruction("exact").value(run.finished())
    assert found.total == pytest.approx(sum(float(v) for v in found.values.values()))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"method": "shapley"}, "method must be one of.*'shapley'"),
        ({"form": "two_round"}, "'two_round'"),
        ({"form": "one_round", "method": "gtg"}, "gtg needs form 'multi_round'"),
        ({"form": "one_round", "decay": 0.5}, "decay needs form 'multi_round'"),
        ({"decay": 1.5}, "at most 1"),
        ({"decay": 0.5, "method": "gtg"}, "not with gtg"),
        ({"stop": MaxSamples(3)}, "'exact' has no stopping rule"),
        ({"data": "training"}, "'training'"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Reconstruction(**arguments)  # type: ignore[arg-type]


def test_what_would_fail_after_the_training_is_refused_before() -> None:
    with pytest.raises(ConfigError, match="needs the clients' updates: add --record_updates True"):
        Reconstruction().check("ABC", recorded=False)
    with pytest.raises(ConfigError, match="2.21 coalitions, too many"):
        Reconstruction().check([str(i) for i in range(21)], recorded=True)
    Reconstruction("gtg").check([str(i) for i in range(21)], recorded=True)
