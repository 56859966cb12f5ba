# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Finished runs are valued: by models rebuilt of recorded updates, by retraining, by the others."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.driving import vector
from helpers.linear_run import SCORES, START, LinearRun, mean_score, model_of

from monai_fairfl import Estimate, Federation, InProcess, ModelSpec, Reply, Request, read_ledger
from monai_fairfl.errors import ConfigError, FederationError
from monai_fairfl.messages import UNDECLARED, Expected, Measurement, Range
from monai_fairfl.strategies import FedAvg, FedCE, Standalone
from monai_fairfl.valuation import (
    FinishedRun,
    Game,
    Panel,
    Reconstruction,
    Retraining,
    RunValuation,
    Utility,
    Valuation,
    gtg_shapley,
    permutation_shapley,
    sum_over_rounds,
)


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


def numbers(found: Valuation) -> dict[str, float]:
    return {client: float(value) for client, value in found.values.items()}


# ---- what a model is worth


MEASURED: dict[str, Measurement] = {
    "A": {"mean": Estimate(0.9, 0.01, 30), "disc": Estimate(0.95, 0.01, 30), "cup": 0.85},
    "B": {"mean": Estimate(0.5, None, 10), "disc": Estimate(0.60, None, 10), "cup": 0.40},
}


def test_a_utility_is_one_number_of_what_the_sites_measured() -> None:
    for name, value in {"mean": 0.7, "pooled": 0.8, "worst": 0.5, "cup": 0.625}.items():
        assert Utility(name)(MEASURED) == pytest.approx(value)
        with pytest.raises(ConfigError, match=name):
            Utility(name)({})
    # A class is scored by the sites that label it; a loss counts negatively.
    assert Utility("cup")({**MEASURED, "C": {"mean": 0.8, "disc": 0.8}}) == pytest.approx(0.625)
    assert Utility("negative_loss")({"A": 0.5, "B": 0.1}) == pytest.approx(-0.3)
    assert Utility("mean").measurement == "score"
    assert Utility("cup", "test").measurement == "test_score"
    assert Utility("negative_loss").measurement == "global_loss"
    with pytest.raises(ConfigError, match=r"'rim'.*\['cup', 'disc'\]"):
        Utility("rim")(MEASURED)
    for wrong in (("mean", "all"), ("negative_loss", "test")):
        with pytest.raises(ConfigError, match="all|training"):
            Utility(*wrong)


def test_a_panel_asks_for_one_measurement_and_names_a_client_that_fails_with_its_reason(
    tmp_path: Path,
) -> None:
    linear = LinearRun(tmp_path)
    panel = linear.finished().panel
    measured = panel.measure({"w": vector([1.0, 2.0])}, "score")
    means = {client: float(value["mean"]) for client, value in measured.items()}  # type: ignore[index]
    assert means == {"A": 1.0, "B": 4.0, "C": 3.0}
    asked = [(request.client, request.task, request.measure) for request in linear.asked]
    assert asked == [(client, "measure", ("score",)) for client in "ABC"]
    linear.lose = lambda request: request.client == "B"
    with pytest.raises(FederationError, match="'B'.*'score'.*timeout"):
        panel.measure({"w": vector([1.0, 2.0])}, "score")
    with pytest.raises(FederationError, match="'A'.*'score'.*1000"):
        linear_panel(linear).measure({"w": vector([1e6, 2.0])}, "score")
    with pytest.raises(ConfigError, match="one client"):
        Panel(InProcess({}), [])


def linear_panel(run: LinearRun) -> Panel:
    """A panel that takes a score in its range only."""
    return Panel(run.transport("A"), "A", expected=Expected(ranges={"score": Range("", -1, 1000)}))


def test_an_answer_that_comes_late_is_not_taken_for_one_about_the_next_model() -> None:
    class Slow:
        """The first answer comes when the second one does."""

        clients = ["A"]
        answers: list[Reply] = []

        def ask(self, requests, timeout=None):  # type: ignore[no-untyped-def]
            (asked,) = requests
            self.answers.append(asked.reply(measurements={"score": float(asked.weights["w"])}))
            yield from self.answers if len(self.answers) > 1 else []

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
        return request.reply(measurements={"score": {"mean": Estimate(0.5, None, self.cases)}})


def test_the_cases_behind_a_score_count_as_they_were_first_reported(
    caplog: pytest.LogCaptureFixture,
) -> None:
    panel = Panel(InProcess({"A": Growing, "B": Growing}), "AB")
    for _ in range(3):
        found: Any = panel.measure({}, "score")
        assert [found[client]["mean"].n for client in "AB"] == [10, 10]
    assert "client A" in caplog.text


# ---- models rebuilt of what a run recorded


def models_asked(run: LinearRun) -> set[tuple[float, ...]]:
    """The models that were scored for a valuation."""
    asked = [request for request in run.asked if request.run == "valuation"]
    return {tuple(np.round(request.weights["w"].tolist(), 9)) for request in asked}


def expected_models(starts: Mapping[float, Sequence[float]]) -> set[tuple[float, ...]]:
    """Of all coalitions: factor of the updates, and the model that they are added to."""
    found = set()
    for factor, start in starts.items():
        found.add(tuple(np.round(start, 9)))
        for coalition in ("A", "B", "C", "AB", "AC", "BC", "ABC"):
            found.add(tuple(np.round(model_of(coalition, start, factor), 9)))
    return found


def test_multi_round_values_are_those_of_the_definition_and_share_out_what_the_run_gained(
    run: LinearRun,
) -> None:
    found = Reconstruction("exact").value(run.finished())
    first = shapley(score_after(1.0, after(0).tolist()))
    second = shapley(score_after(2.0, after(1).tolist()))
    expected = {client: first[client] + second[client] for client in "ABC"}
    assert numbers(found) == pytest.approx(expected)
    assert models_asked(run) == expected_models({1.0: START, 2.0: after(1).tolist()})

    # FedAvg: the gains of the rounds telescope.
    gained = mean_score(after(2)) - mean_score(np.array(START))
    assert sum(numbers(found).values()) == pytest.approx(gained)
    assert found.total == pytest.approx(gained)
    assert found.evaluations == run.models_measured == 16


def test_one_round_values_are_those_of_the_definition(run: LinearRun) -> None:
    found = Reconstruction("exact", form="one_round").value(run.finished())
    assert numbers(found) == pytest.approx(shapley(score_after(3.0, START)))
    assert found.total == pytest.approx(mean_score(after(2)) - mean_score(np.array(START)))
    assert models_asked(run) == expected_models({3.0: START})


def test_a_client_that_sat_a_round_out_adds_nothing_to_it(tmp_path: Path) -> None:
    run = LinearRun(tmp_path / "run")
    run.lose = lambda request: (request.client, request.round, request.task) == ("B", 0, "train")
    run.federate(run.folder)
    run.asked.clear()
    found = Reconstruction("exact", form="one_round").value(run.finished())
    without_first = model_of("B", START, 2.0)
    both = model_of("AB", START, 2.0) + model_of("A", [0, 0], 1.0)
    for model in (without_first, both):
        assert tuple(np.round(model, 9)) in models_asked(run)
    assert set(found.values) == {"A", "B", "C"}
    assert Reconstruction().value(run.finished()).values["B"].n == 4


# ---- measured models are measured once


def test_a_second_valuation_measures_nothing_and_finds_the_same_bits(run: LinearRun) -> None:
    first = Reconstruction("exact").value(run.finished())
    run.asked.clear()
    assert Reconstruction("exact").value(run.finished()) == first
    for utility in ("worst", "pooled", "rim"):
        Reconstruction("gtg", utility).value(run.finished())
    assert run.models_measured == 0
    # Another measurement, and another way to evaluate.
    Reconstruction("leave_one_out", "negative_loss").value(run.finished())
    assert run.models_measured == 8
    changed = replace(run.finished(), evaluation="second")
    Reconstruction("leave_one_out").value(changed)
    assert run.models_measured == 16


def test_an_interrupted_valuation_goes_on_where_it_stopped_to_the_same_bits(
    run: LinearRun, tmp_path: Path
) -> None:
    other = LinearRun(tmp_path / "other")
    other.federate(other.folder)
    whole = Reconstruction("permutation", samples=3).value(other.finished())

    def interrupt(request: Request) -> bool:
        if run.models_measured == 3:
            raise KeyboardInterrupt
        return False

    run.lose = interrupt
    with pytest.raises(KeyboardInterrupt):
        Reconstruction("permutation", samples=3).value(run.finished())
    # The crash cut the last line of the cache short.
    cache = run.folder / "valuations" / "measured.jsonl"
    cache.write_bytes(cache.read_bytes()[:-9])
    run.lose = lambda request: False
    assert Reconstruction("permutation", samples=3).value(run.finished()) == whole

    # Each model has one line; that of the cut line was measured twice.
    lines = [json.loads(line) for line in cache.read_text().splitlines()[1:]]
    assert len({(line["game"], *line["coalition"]) for line in lines}) == len(lines)
    assert run.models_measured == len(lines) + 1


def test_a_damaged_line_of_what_was_measured_is_named(run: LinearRun) -> None:
    Reconstruction("leave_one_out").value(run.finished())
    file = run.folder / "valuations" / "measured.jsonl"
    file.write_bytes(file.read_bytes() + b"{\n")
    with pytest.raises(ConfigError, match="measured.jsonl.*10"):
        Reconstruction("leave_one_out").value(run.finished())


def without_c(run: LinearRun) -> FinishedRun:
    panel = Panel(run.transport("AB"), "AB", expected=Expected(ranges={"score": UNDECLARED}))
    return replace(run.finished(), clients=["A", "B"], panel=panel)


def test_models_are_scored_by_the_same_clients_also_after_one_left(run: LinearRun) -> None:
    """C dies in the middle.

    Its scores until then are not mixed with what the others score later, and stay stored.
    """
    run.lose = lambda request: request.client == "C" and run.models_asked >= 4
    with pytest.raises(FederationError, match="'C'"):
        Reconstruction("exact").value(run.finished())
    found = Reconstruction("exact").value(without_c(run))

    clean = LinearRun(run.folder.parent / "clean")
    clean.federate(clean.folder)
    assert found.values == Reconstruction("exact").value(without_c(clean)).values

    run.lose = lambda request: False
    run.asked.clear()
    Reconstruction("exact").value(run.finished())
    assert run.models_measured == 16 - 4


def test_a_valuation_that_goes_on_counts_cases_as_it_began(tmp_path: Path) -> None:
    linear = LinearRun(tmp_path / "run")
    linear.federate(linear.folder)
    client = Growing()

    def run() -> FinishedRun:
        # Each time a new process: the client goes on with its claims, the panel begins.
        panel = Panel(InProcess({name: lambda: client for name in "ABC"}), "ABC")
        return replace(linear.finished(), panel=panel)

    Reconstruction("leave_one_out", "pooled").value(run())
    Reconstruction("exact", "pooled").value(run())
    lines = (linear.folder / "valuations" / "measured.jsonl").read_text().splitlines()[1:]
    counted = {
        json.dumps([one["mean"]["n"] for one in json.loads(line)["measured"].values()])
        for line in lines
    }
    assert len(counted) == 1


# ---- statistics, labels and precision of the models


def scored_models(
    folder: Path,
    start: Mapping[str, torch.Tensor],
    spec: ModelSpec,
    sent: Sequence[Mapping[str, Mapping[str, Any]]],
) -> dict[str, list[dict[str, Any]]]:
    """form -> the models that its valuation scores, as lists.

    ``sent``: of each round, client -> fields of its reply.
    """
    models: list[dict[str, Any]] = []

    class Fixed:
        def answer(self, request: Request) -> Reply:
            if request.task == "train":
                fields = {"num_samples": 1, **sent[request.round][request.client]}
                return request.reply(**fields)
            models.append({name: tensor.tolist() for name, tensor in request.weights.items()})
            return request.reply(measurements={name: 0.5 for name in request.measure})

    names = sorted(sent[0])
    transport = InProcess({name: Fixed for name in names})
    settings: dict[str, Any] = {"guards": (), "final": (), "evaluate": ()}
    Federation(
        FedAvg(),
        transport,
        len(sent),
        lambda: (dict(start), spec),
        run_dir=folder,
        min_clients=1,
        record_updates=True,
        **settings,
    ).run()

    def train(*_: object) -> Any:
        raise AssertionError("nothing is trained")

    found = {}
    for form in ("multi_round", "one_round"):
        models.clear()
        run = FinishedRun(folder, names, Panel(transport, names), train, folder / "retrained")
        Reconstruction("exact", form=form).value(run)
        found[form] = list(models)
    return found


def test_statistics_of_normalisation_layers_are_the_coalitions_own_of_the_round(
    tmp_path: Path,
) -> None:
    layers = dict.fromkeys(("w", "count", "mean"), "n")
    spec = ModelSpec(("w",), buffers=("count", "mean"), layers=layers)
    start = {"w": vector([0.0]), "mean": vector([0.0]), "count": torch.tensor(0)}

    def fields(images: int, mean: float) -> dict[str, Any]:
        buffers = {"mean": vector([mean]), "count": torch.tensor(images)}
        return {"update": {"w": vector([2.0])}, "num_samples": images, "buffers": buffers}

    sent = [{"A": fields(1, 4.0), "B": fields(3, 8.0 + number)} for number in (0, 1)]
    models = scored_models(tmp_path, start, spec, sent)
    assert {"w": [2.0], "mean": [8.0], "count": 3} in models["multi_round"]
    assert {"w": [2.0], "mean": [7.0], "count": 3} in models["multi_round"]
    # The statistics of the whole run are those of its last round.
    assert {"w": [4.0], "mean": [9.0], "count": 3} in models["one_round"]


def test_a_class_is_averaged_over_the_members_that_label_it(tmp_path: Path) -> None:
    spec = ModelSpec(("head.weight",), layers={"head.weight": "head"}, output=("head", 0))
    start = {"head.weight": torch.zeros(2, 1)}
    of_a = {"update": {"head.weight": torch.tensor([[1.0], [1.0]])}}
    of_b = {"update": {"head.weight": torch.tensor([[5.0], [7.0]])}}
    sent = [{"A": of_a, "B": {**of_b, "labelled": labels}} for labels in ((True, False), ())]
    models = scored_models(tmp_path, start, spec, sent)
    assert {"head.weight": [[3.0], [1.0]]} in models["multi_round"]
    # The second round began at the first one's average.
    assert {"head.weight": [[6.0], [5.0]]} in models["multi_round"]
    assert {"head.weight": [[6.0], [5.0]]} in models["one_round"]


def test_a_whole_run_is_summed_in_double_precision_and_scored_in_the_models_own(
    tmp_path: Path,
) -> None:
    spec = ModelSpec(("w",), layers={"w": "fc"})
    sent = [{"A": {"update": {"w": torch.tensor([s])}}} for s in (2.0**25, 1.0, -(2.0**25))]
    models = scored_models(tmp_path, {"w": torch.zeros(1)}, spec, sent)
    assert models["one_round"] == [{"w": [0.0]}, {"w": [1.0]}]


# ---- models that coalitions train themselves


def utility(coalition: str) -> float:
    """Both rounds' steps, 1 + 2 times, scored by all three."""
    return mean_score(model_of(coalition, START, 3.0))


def trained(run: LinearRun) -> list[str]:
    return sorted({f"{r.run} {r.round}" for r in run.asked if r.task == "train"})


def test_retrained_values_are_of_each_coalitions_own_training(tmp_path: Path) -> None:
    found = Retraining().value(LinearRun(tmp_path).finished())
    drops = {c: utility("ABC") - utility("ABC".replace(c, "")) for c in "ABC"}
    assert numbers(found) == pytest.approx(drops)
    folder = tmp_path / "retrained" / "FedAvg"
    assert {"all", "without-A", "without-B", "without-C"} < {p.name for p in folder.iterdir()}
    assert read_ledger(folder / "without-B" / "ledger.jsonl")[0]["clients"] == ["A", "C"]

    exact = Retraining("exact", strategy=FedAvg("uniform")).value(LinearRun(tmp_path).finished())
    assert exact.total == pytest.approx(sum(numbers(exact).values())) and exact.evaluations == 8
    assert (tmp_path / "retrained" / "FedAvg-uniform" / "without-A").is_dir()


def test_a_kill_between_and_within_coalitions_trains_nothing_twice(tmp_path: Path) -> None:
    whole = Retraining().value(LinearRun(tmp_path / "whole").finished())
    run = LinearRun(tmp_path / "killed")

    def kill(request: Request) -> bool:
        if (request.run, request.round) == ("without-B", 1):
            raise KeyboardInterrupt
        return False

    run.lose = kill
    with pytest.raises(KeyboardInterrupt):
        Retraining().value(run.finished())
    assert trained(run) == ["all 0", "all 1", "without-A 0", "without-A 1", "without-B 0"]
    run.lose = lambda request: False
    run.asked.clear()
    assert Retraining().value(run.finished()) == whole
    assert (
        trained(run) == ["without-B 1", "without-C 0", "without-C 1"] and run.models_measured == 2
    )
    run.asked.clear()
    assert Retraining().value(run.finished()) == whole
    assert not run.asked


def test_a_coalition_that_was_trained_and_not_yet_scored_is_not_trained_again(
    tmp_path: Path,
) -> None:
    run = LinearRun(tmp_path)
    run.lose = lambda request: request.run == "valuation"
    with pytest.raises(FederationError, match="'A'"):
        Retraining().value(run.finished())
    run.lose = lambda request: False
    run.asked.clear()
    Retraining().value(run.finished())
    assert not any(line.startswith("all") for line in trained(run))


# ---- nothing that a client reports of itself counts for itself


MODELS = {"": 0, "A": 1, "B": 2, "AB": 3, "C": 4, "AC": 5, "BC": 6, "ABC": 7}
"""Coalition -> the only number of its model."""


TWO = {
    "A": {"": 0.2, "A": 0.6, "B": 0.4, "AB": 0.9},
    "B": {"": 0.1, "A": 0.3, "B": 0.5, "AB": 0.6},
}
"""Client -> its Dice of each coalition's model."""


WORTH = {
    "A": {"A": 0.5, "B": 0.1, "C": 0.2},
    "B": {"A": 0.1, "B": 0.4, "C": 0.0},
    "C": {"A": 0.2, "B": 0.05, "C": 0.7},
}
"""Client -> what every other client adds to its Dice."""


class Judge:
    """A client with a Dice for each coalition's model."""

    def __init__(self, dice: Mapping[str, float]):
        self.dice = {MODELS[coalition]: value for coalition, value in dice.items()}

    def answer(self, request: Request) -> Reply:
        return request.reply(measurements={"score": self.dice[int(request.weights["w"])]})


def finished(folder: Path, tables: Mapping[str, Mapping[str, float]]) -> FinishedRun:
    def train(coalition: frozenset[str], strategy: object, folder: Path) -> dict[str, torch.Tensor]:
        return {"w": torch.tensor(float(MODELS["".join(sorted(coalition))]))}

    makers = {name: partial(Judge, dice) for name, dice in tables.items()}
    panel = Panel(InProcess(makers), list(tables))
    return FinishedRun(folder, list(tables), panel, train, folder / "retrained")


def test_a_shapley_value_is_that_of_what_the_others_report(tmp_path: Path) -> None:
    """By hand: B's Dice gives A ((0.3 - 0.1) + (0.6 - 0.5)) / 2."""
    found = Retraining("exact", judged_by="others").value(finished(tmp_path / "a", TWO))
    assert numbers(found) == pytest.approx({"A": 0.15, "B": 0.25})
    assert found.total == pytest.approx(0.4) and found.evaluations == 4
    # Whatever A reports of the model that it made, its own value stays.
    tables = {**TWO, "A": {**TWO["A"], "A": 1.0, "AB": 0.0}}
    found = Retraining("exact", judged_by="others").value(finished(tmp_path / "b", tables))
    assert numbers(found)["A"] == pytest.approx(0.15)


def test_every_method_leaves_out_what_a_client_says_of_itself(tmp_path: Path) -> None:
    """A client is worth to each judge what it adds there, so that all methods agree."""
    tables = {}
    for judge, worth in WORTH.items():
        tables[judge] = {name: sum(worth[member] for member in name) for name in MODELS}
    for method in ("leave_one_out", "permutation"):
        valuation = Retraining(method, judged_by="others")
        found = valuation.value(finished(tmp_path / method, tables))
        assert numbers(found) == pytest.approx({"A": 0.15, "B": 0.075, "C": 0.1})
        assert found.total == pytest.approx(0.325)


def test_no_model_is_scored_for_the_others_that_all_clients_have_scored(run: LinearRun) -> None:
    by_all = Reconstruction("leave_one_out").value(run.finished())
    asked = len(run.asked)
    found = Reconstruction("leave_one_out", judged_by="others").value(run.finished())
    assert len(run.asked) == asked and found.evaluations == by_all.evaluations
    expected = dict.fromkeys("ABC", 0.0)
    start = np.array(START)
    for factor in (1.0, 2.0):
        whole = model_of("ABC", start.tolist(), factor)
        for client in "ABC":
            others = [name for name in "ABC" if name != client]
            lost = whole - model_of(others, start.tolist(), factor)
            expected[client] += float(np.mean([lost @ SCORES[judge] for judge in others]))
        start = whole
    assert numbers(found) == pytest.approx(expected, abs=1e-6)


# ---- what is refused


def test_arguments_that_do_not_fit_are_refused() -> None:
    kinds: dict[str, dict[str, Any]] = {
        "shapley": {"method": "shapley"},
        "two_round": {"form": "two_round"},
        "gtg.*multi_round": {"form": "one_round", "method": "gtg"},
        "samples.*exact|exact.*samples": {"samples": 3},
        "exact.*tolerance": {"tolerance": 0.1},
        "samples": {"method": "permutation", "samples": 0},
        "training": {"data": "training"},
        "judged_by": {"judged_by": "me"},
    }
    for words, arguments in kinds.items():
        with pytest.raises(ConfigError, match=words):
            Reconstruction(**arguments)
    with pytest.raises(ConfigError, match="gtg"):
        Retraining("gtg")


def test_what_would_fail_after_the_training_is_refused_before() -> None:
    many = [str(number) for number in range(21)]
    checks: list[tuple[str, RunValuation, Sequence[str], bool]] = [
        ("record_updates", Reconstruction(), "ABC", False),
        ("21", Reconstruction(), many, True),
        ("FedCE.*2", Retraining("exact", strategy=FedCE()), "ABC", False),
        ("Standalone", Retraining(strategy=Standalone()), "ABC", False),
        ("A", Retraining(judged_by="others"), "A", False),
    ]
    for words, valuation, clients, recorded in checks:
        with pytest.raises(ConfigError, match=words):
            valuation.check(clients, recorded=recorded)
    Reconstruction("gtg").check(many, recorded=True)
    Retraining("leave_one_out", strategy=FedCE()).check("ABC", recorded=False)


# ---- when sampling ends


def noisy_game(seed: int = 0) -> Game:
    """Eight players with random utilities."""
    noise = np.random.default_rng(seed).random(2**8)
    return Game("abcdefgh", lambda s: float(noise[sum(1 << ord(name) - 97 for name in s)]))


def test_sampling_ends_at_a_small_standard_error_or_after_two_hundred_permutations() -> None:
    additive = Retraining("permutation").play([Game("abcdefgh", lambda s: float(len(s)))])
    assert additive.values["a"].n == 30  # the rule's least
    assert Retraining("permutation").play([noisy_game()]).values["a"].n == 200


def test_every_round_is_sampled_with_a_seed_of_its_own() -> None:
    found = Retraining("permutation", samples=2, seed=5).play([noisy_game(), noisy_game()])
    alone = [permutation_shapley(noisy_game(), 2, seed=seed) for seed in (5, 6)]
    assert found == sum_over_rounds(alone) and alone[0].values != alone[1].values
    gtg = Reconstruction("gtg", seed=5).play([noisy_game(2)])
    assert gtg == gtg_shapley([noisy_game(2)], seed=5) != gtg_shapley([noisy_game(2)])
