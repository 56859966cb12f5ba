# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""A run's models of coalitions are rebuilt from its recorded updates, and valued."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
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
from monai_fairfl.protocol.values import Estimate, Weights
from monai_fairfl.run_folder.recorded_updates import RecordedRound, record_round, recorded_rounds
from monai_fairfl.strategies import FedCE
from monai_fairfl.valuation import FinishedRun, MaxSamples, Panel, Reconstruction
from monai_fairfl.valuation.reconstruction import MultiRound, OneRound


@pytest.fixture
def run(tmp_path: Path) -> LinearRun:
    """A finished run of two rounds, whose requests are not counted."""
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
            without = value(order[:position])
            with_player = value(order[: position + 1])
            gain[player] += (with_player - without) / len(orders)
    return gain


def score_after(factor: float, start: Sequence[float]) -> Callable[[tuple[str, ...]], float]:
    """Coalition -> the score of what it makes of ``start``."""
    return lambda coalition: mean_score(model_of(coalition, start, factor))


def after(rounds: int) -> np.ndarray:
    """The run's model after so many rounds, whose updates have the factors 1 and 2."""
    sum_of_factors = {0: 0.0, 1: 1.0, 2: 3.0}
    return model_of("ABC", START, sum_of_factors[rounds])


def floats(values: Mapping[str, float | Estimate]) -> dict[str, float]:
    return {client: float(value) for client, value in values.items()}


# --- models of coalitions


def test_a_rounds_model_of_a_coalition_is_its_members_mean_step_by_images(run: LinearRun) -> None:
    models = MultiRound(recorded_rounds(run.folder))
    nobody = models(0, frozenset())["w"].tolist()
    assert nobody == START
    two = models(0, frozenset("AB"))["w"].tolist()
    assert two == pytest.approx([1 + 0.4 / 3, -1 + 0.3 * 2 / 3])
    alone = models(1, frozenset("C"))["w"].tolist()
    assert alone == pytest.approx(model_of("C", after(1).tolist(), 2.0))
    everybody = models(1, frozenset("ABC"))["w"].tolist()
    assert everybody == pytest.approx(after(2))


@pytest.mark.parametrize("coalition", ["", "A", "BC", "ABC"])
def test_the_whole_runs_model_of_a_coalition_sums_its_rounds(
    run: LinearRun, coalition: str
) -> None:
    models = OneRound(recorded_rounds(run.folder))
    expected = model_of(coalition, START, 3.0)
    assert models(frozenset(coalition))["w"].tolist() == pytest.approx(expected)


def test_a_client_that_sat_a_round_out_adds_nothing_to_it(tmp_path: Path) -> None:
    run = LinearRun(tmp_path / "run")
    run.lose = lambda request: (request.client, request.round, request.task) == ("B", 0, "train")
    run.federate(run.folder)
    models = OneRound(recorded_rounds(run.folder))
    assert models(frozenset("B"))["w"].tolist() == pytest.approx(model_of("B", START, 2.0))
    expected = model_of("AB", START, 2.0) + model_of("A", [0, 0], 1.0)
    assert models(frozenset("AB"))["w"].tolist() == pytest.approx(expected)

    clients = [recorded.clients for recorded in recorded_rounds(run.folder)]
    assert clients == [["A", "C"], ["A", "B", "C"]]
    values = Reconstruction().value(run.finished()).values
    assert set(values) == {"A", "B", "C"}
    assert values["B"].n == 4


# --- values


def test_multi_round_values_are_those_of_the_definition_and_share_out_what_the_run_gained(
    run: LinearRun,
) -> None:
    found = Reconstruction("exact").value(run.finished())
    first = shapley(score_after(1.0, after(0).tolist()))
    second = shapley(score_after(2.0, after(1).tolist()))
    expected = {client: first[client] + second[client] for client in "ABC"}
    assert floats(found.values) == pytest.approx(expected)

    # FedAvg: the gains of the rounds telescope.
    gained = mean_score(after(2)) - mean_score(np.array(START))
    assert sum(floats(found.values).values()) == pytest.approx(gained)
    assert found.total == pytest.approx(gained)
    assert found.evaluations == 16
    assert run.models_measured == 16


def test_one_round_values_are_those_of_the_definition(run: LinearRun) -> None:
    found = Reconstruction("exact", form="one_round").value(run.finished())
    assert floats(found.values) == pytest.approx(shapley(score_after(3.0, START)))
    assert found.total == pytest.approx(mean_score(after(2)) - mean_score(np.array(START)))


def test_a_decay_weighs_the_rounds_by_what_they_gained(run: LinearRun) -> None:
    found = Reconstruction("exact", decay=0.5).value(run.finished())
    assert sum(floats(found.values).values()) == pytest.approx(1.5)


def test_any_methods_run_can_be_valued(tmp_path: Path) -> None:
    run = LinearRun(tmp_path / "run")
    run.federate(run.folder, strategy=FedCE("cos"))
    found = Reconstruction("exact").value(run.finished())
    assert found.total == pytest.approx(sum(floats(found.values).values()))


# --- measured models are measured once


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
    # The crash cut the last line of the cache short.
    cache = run.folder / "valuations" / "measured.jsonl"
    cache.write_bytes(cache.read_bytes()[:-9])
    run.lose = lambda request: False
    assert Reconstruction("permutation", stop=stop).value(run.finished()) == whole

    # Each model has one line; that of the cut line was measured twice.
    lines = [json.loads(line) for line in cache.read_text().splitlines()[1:]]
    assert len({(line["game"], *line["coalition"]) for line in lines}) == len(lines)
    assert run.models_measured == len(lines) + 1


def test_a_client_that_cannot_score_is_named_and_nothing_is_lost(run: LinearRun) -> None:
    # From the third model on.
    run.lose = lambda request: request.client == "B" and len(run.asked) >= 6
    message = "client 'B' did not measure 'score': timeout.*same clients"
    with pytest.raises(FederationError, match=message):
        Reconstruction("exact").value(run.finished())
    run.lose = lambda request: False
    run.asked.clear()
    Reconstruction("exact").value(run.finished())
    assert run.models_measured == 16 - 2


def without_c(run: LinearRun) -> FinishedRun:
    panel = Panel(run.transport("AB"), "AB", expected=Expected(ranges={}))
    return replace(run.finished(), clients=["A", "B"], panel=panel)


def test_models_are_scored_by_the_same_clients_also_after_one_left(run: LinearRun) -> None:
    """C dies in the middle.

    Its scores until then are not mixed with what the others score later, and stay stored.
    """
    run.lose = lambda request: request.client == "C" and run.models_asked >= 4
    with pytest.raises(FederationError, match="client 'C' did not measure"):
        Reconstruction("exact").value(run.finished())
    found = Reconstruction("exact").value(without_c(run))

    clean = LinearRun(run.folder.parent / "clean")
    clean.federate(clean.folder)
    assert found.values == Reconstruction("exact").value(without_c(clean)).values

    run.lose = lambda request: False
    run.asked.clear()
    Reconstruction("exact").value(run.finished())
    assert run.models_measured == 16 - 4


def test_a_run_that_has_gone_on_is_measured_again(run: LinearRun) -> None:
    Reconstruction("leave_one_out").value(run.finished())
    measured = run.folder / "valuations" / "measured.jsonl"
    measured.write_text(measured.read_text().replace('{"run": "', '{"run": "another'))
    run.asked.clear()
    Reconstruction("leave_one_out").value(run.finished())
    assert run.models_measured == 8


# --- rounds that are recorded by hand: statistics, labels, precision


def recorded(
    folder: Path, number: int, policy: str, start: Weights, spec: ModelSpec, **sent: dict[str, Any]
) -> RecordedRound:
    """A round that each client answered with these fields of a reply."""
    requests = []
    replies = []
    for id, client in enumerate(sent):
        requests.append(Request(client, "train", start, id=id))
        replies.append(Reply(client, id=id, **{"num_samples": 1, **sent[client]}))
    record_round(folder, number, start, Replies(replies, requests, spec), policy)
    labelled = {reply.client: reply.labelled for reply in replies}
    images = {reply.client: reply.num_samples for reply in replies}
    updates = folder / f"updates/round-{number:04d}"
    return RecordedRound(updates, number, images, policy, spec, labelled)


@pytest.mark.parametrize("policy", ["aggregation", "samples"])
def test_statistics_of_normalisation_layers_are_the_coalitions_own_of_the_round(
    tmp_path: Path, policy: str
) -> None:
    layers = {"w": "n", "mean": "n", "count": "n"}
    spec = ModelSpec(("w",), buffers=("mean", "count"), layers=layers)
    start = {"w": vector([0.0]), "mean": vector([0.0]), "count": torch.tensor(0)}

    def sent(images: int, mean: float) -> dict[str, Any]:
        buffers = {"mean": vector([mean]), "count": torch.tensor(images)}
        return {"update": {"w": vector([2.0])}, "num_samples": images, "buffers": buffers}

    rounds = []
    for number in (0, 1):
        replies = {"A": sent(1, 4.0), "B": sent(3, 8.0 + number)}
        rounds.append(recorded(tmp_path, number, policy, start, spec, **replies))

    def lists(weights: Weights) -> dict[str, Any]:
        return {name: value.tolist() for name, value in weights.items()}

    alone = MultiRound(rounds)(0, frozenset("B"))
    assert lists(alone) == {"w": [2.0], "mean": [8.0], "count": 3}
    assert MultiRound(rounds)(0, frozenset("AB"))["mean"].tolist() == [7.0]
    # The statistics of the whole run are those of its last round.
    whole_run = OneRound(rounds)(frozenset("B"))
    assert lists(whole_run) == {"w": [4.0], "mean": [9.0], "count": 3}


def test_a_class_is_averaged_over_the_members_that_label_it(tmp_path: Path) -> None:
    spec = ModelSpec(("head.weight",), layers={"head.weight": "head"}, output=("head", 0))
    start = {"head.weight": torch.zeros(2, 1)}
    of_a = {"update": {"head.weight": torch.tensor([[1.0], [1.0]])}}
    of_b = {"update": {"head.weight": torch.tensor([[5.0], [7.0]])}}
    rounds = []
    for number, labelled in enumerate([(True, False), (), (True, False)]):
        replies = {"A": of_a, "B": {**of_b, "labelled": labelled}}
        rounds.append(recorded(tmp_path, number, "samples", start, spec, **replies))

    both = frozenset("AB")
    models = MultiRound(rounds)
    assert models(0, both)["head.weight"].tolist() == [[3.0], [1.0]]
    assert models(1, both)["head.weight"].tolist() == [[3.0], [4.0]]
    assert OneRound(rounds)(both)["head.weight"].tolist() == [[9.0], [6.0]]


def test_a_whole_run_is_summed_in_double_precision_and_scored_in_the_models_own(
    tmp_path: Path,
) -> None:
    spec = ModelSpec(("w",), layers={"w": "fc"})
    start = {"w": torch.zeros(1)}
    rounds = []
    for number, step in enumerate((2.0**25, 1.0, -(2.0**25))):
        sent = {"update": {"w": torch.tensor([step])}}
        rounds.append(recorded(tmp_path, number, "samples", start, spec, A=sent))
    model = OneRound(rounds)(frozenset("A"))
    assert torch.equal(model["w"], torch.ones(1))


# --- what is refused


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
    with pytest.raises(
        ConfigError, match="needs the clients' updates.*--record_updates True.*Retraining"
    ):
        Reconstruction().check("ABC", recorded=False)
    many = [str(number) for number in range(21)]
    with pytest.raises(ConfigError, match="2.21 coalitions, too many"):
        Reconstruction().check(many, recorded=True)
    Reconstruction("gtg").check(many, recorded=True)
