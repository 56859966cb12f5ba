# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Cross-evaluation: who judges what, what a judge could compute, and that training is as without.

Real federations of the eight sites of ``benchmarks/attacks.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import attacks
import numpy as np
import pytest
import torch
from attackers import ATTACKS
from attacks import SHAPES, SITES, Hospital
from helpers.attacked_federation import SEED, federation_of
from helpers.faulty_transports import Fault

from monai_fairfl.errors import ConfigError
from monai_fairfl.protocol.averages import uniform
from monai_fairfl.protocol.messages import Reply, Request, Train
from monai_fairfl.protocol.model_spec import ModelSpec
from monai_fairfl.protocol.replies import Replies
from monai_fairfl.protocol.values import Weights
from monai_fairfl.run_folder.ledger import digest_of, read_ledger
from monai_fairfl.server.cross_evaluation import (
    LEAST_SITES,
    groups_of,
    model_without,
    questions_of,
)
from monai_fairfl.server.federation import Federation
from monai_fairfl.server.observer import Observer
from monai_fairfl.strategies import (
    CGSV,
    FedAvg,
    FedCE,
    Median,
    Mixed,
    RoundResult,
    Rounds,
    ShapFed,
    Sparsified,
    Standalone,
    Strategy,
    compose,
)
from monai_fairfl.valuation.cross_evaluation import credit_from_server


class Notes:
    """Every request and reply of a run."""

    def __init__(self, fault: Fault | None = None):
        self.fault = fault
        self.all: list[tuple[Request, Reply]] = []

    def __call__(self, request: Request, reply: Reply) -> Reply | Sequence[Reply] | None:
        # A copy: the server may use the memory of an update again.
        self.all.append((request, replace(reply, update=dict(reply.update or {}))))
        return reply if self.fault is None else self.fault(request, reply)

    def of(self, task: str, number: int) -> list[tuple[Request, Reply]]:
        """Those of one task in one round; only judges measure before the end of a run."""
        found = []
        for request, reply in self.all:
            if request.task == task and request.round == number:
                found.append((request, reply))
        return found

    def updates(self, number: int) -> dict[str, dict[str, torch.Tensor]]:
        """client -> the update that it sent in one round."""
        trained = self.of("train", number)
        return {request.client: dict(reply.update or {}) for request, reply in trained}


def judged(
    folder: Path,
    strategy: Strategy | None = None,
    fault: Fault | None = None,
    sites: Sequence[str] = SITES,
    **settings: Any,
) -> tuple[Federation, Notes]:
    """A federation whose sites judge every round, and what its clients were asked and answered."""
    notes = Notes(fault)
    given = {"cross_evaluate_every": 1, "rounds": 2, "sites": sites, **settings}
    return federation_of(strategy or FedAvg(), folder / "run", fault=notes, **given), notes


@pytest.mark.parametrize("strategy", [FedAvg, FedCE, lambda: CGSV(gamma=None)])
def test_a_judge_scores_the_step_less_its_own_part_and_less_a_group(
    tmp_path: Path, strategy: Callable[[], Strategy]
) -> None:
    federation, notes = judged(tmp_path, strategy(), rounds=1)
    (record,) = federation.run().rounds
    start, _ = attacks.initial()
    updates = notes.updates(0)
    scales = record["details"].get("scale", dict.fromkeys(SITES, 1.0))
    entries = {site: list(found) for site, found in record["cross_evaluation"]["sites"].items()}
    for request, reply in notes.of("measure", 0):
        entry = entries[request.client].pop(0)
        assert entry["without"][0] == request.client
        for name in SHAPES:
            expected = start[name].double()
            for site in SITES:
                if site not in entry["without"]:
                    factor = record["aggregation"][site] * scales[site]
                    expected = expected + factor * updates[site][name].double()
            torch.testing.assert_close(
                request.weights[name].double(), expected, rtol=1e-5, atol=1e-6
            )
        assert entry["score"] == reply.measurements["score"]
    assert not any(entries.values())


@pytest.mark.parametrize("sites", [SITES[:5], SITES[:6], SITES])
def test_no_judge_can_compute_the_update_of_another_site(
    tmp_path: Path, sites: Sequence[str]
) -> None:
    federation, _ = judged(tmp_path, FedCE(), sites=sites, rounds=3)
    records = federation.run().rounds
    for record in records:
        weights = np.array([record["aggregation"][site] for site in sites])
        for judge, entries in record["cross_evaluation"]["sites"].items():
            # What it knows, as weighted sums of updates: its own, the next global model, and the
            # models that it was sent.
            known = [weights * [site == judge for site in sites], weights]
            for entry in entries:
                known.append(weights * [site not in entry["without"] for site in sites])
            rank = np.linalg.matrix_rank(np.array(known))
            for place, other in enumerate(sites):
                if other == judge:
                    continue
                alone = np.eye(len(sites))[place]
                assert np.linalg.matrix_rank(np.array([*known, alone])) == rank + 1


def test_every_site_judges_every_other_one_in_pairs_that_change(tmp_path: Path) -> None:
    federation, _ = judged(tmp_path, rounds=2)
    pairs = []
    for record in federation.run().rounds:
        found = record["cross_evaluation"]
        assert sorted(found["sites"]) == list(SITES)
        assert not found["missing"]
        assert not found["skipped"]
        for judge, entries in found["sites"].items():
            others = [site for entry in entries[1:] for site in entry["without"][1:]]
            assert sorted(others) == [site for site in SITES if site != judge]
        pairs.append([entry["without"] for entry in found["sites"]["A"]])
    assert pairs[0] != pairs[1]


def test_groups_have_two_sites_or_three() -> None:
    for count in range(2, 12):
        names = [f"site{number}" for number in range(count)]
        groups = groups_of(names, seed=count)
        assert sorted(site for group in groups for site in group) == sorted(names)
        assert {len(group) for group in groups} <= {2, 3}


def test_with_four_sites_nobody_is_asked() -> None:
    assert questions_of("ABCD", "ABCD", seed=0, number=0) == []
    assert len(questions_of("ABCDE", "ABCDE", seed=0, number=0)) == 3


def test_training_weights_and_contributions_are_as_without(tmp_path: Path) -> None:
    federation, _ = judged(tmp_path, FedCE())
    with_judges = federation.run().rounds
    without = federation_of(FedCE(), tmp_path / "plain", rounds=2).run().rounds
    for one, other in zip(with_judges, without, strict=True):
        for key in ("model", "aggregation", "contributions", "measurements"):
            assert one[key] == other[key]


def test_it_is_every_so_many_rounds(tmp_path: Path) -> None:
    federation, _ = judged(tmp_path, rounds=5, cross_evaluate_every=2)
    asked = [record["cross_evaluation"] is not None for record in federation.run().rounds]
    assert asked == [False, True, False, True, False]


@pytest.mark.slow
def test_a_resumed_run_has_the_same_ledger(tmp_path: Path) -> None:
    whole, _ = judged(tmp_path / "whole", rounds=3)
    whole.run()
    first, _ = judged(tmp_path / "parts", rounds=3)
    first.observer = _StopAfter(first, records=3)
    first.run()
    second, _ = judged(tmp_path / "parts", rounds=3)
    second.run(resume=True)
    ledgers = [tmp_path / part / "run" / "ledger.jsonl" for part in ("whole", "parts")]
    assert ledgers[0].read_bytes() == ledgers[1].read_bytes()


class _StopAfter(Observer):
    """Stops a run after so many records."""

    def __init__(self, federation: Federation, records: int):
        self.federation = federation
        self.left = records

    def record_added(self, record: Any) -> None:
        self.left -= 1
        if self.left == 0:
            self.federation.stop()


def test_a_judge_that_does_not_answer_is_recorded_and_the_round_goes_on(tmp_path: Path) -> None:
    def silent(request: Request, reply: Reply) -> Reply | None:
        return None if request.client == "B" and request.task == "measure" else reply

    federation, _ = judged(tmp_path, fault=silent)
    for record in federation.run().rounds:
        assert record["missing"] == {}
        assert record["cross_evaluation"]["missing"] == {"B": "timeout"}
        assert "B" not in record["cross_evaluation"]["sites"]
        assert len(record["cross_evaluation"]["sites"]) == 7


def test_a_score_that_no_dice_can_be_is_dropped_and_the_judge_is_missing(tmp_path: Path) -> None:
    def boasting(request: Request, reply: Reply) -> Reply:
        if request.client == "B" and request.task == "measure":
            return replace(reply, measurements={"score": 1e9})
        return reply

    federation, _ = judged(tmp_path, fault=boasting, rounds=1)
    (record,) = federation.run().rounds
    assert "B" not in record["cross_evaluation"]["sites"]
    reason = record["cross_evaluation"]["missing"]["B"]
    assert reason.startswith("no usable score: ")
    assert "1e+09" in reason


def test_sites_that_label_different_classes_do_not_judge_one_another(tmp_path: Path) -> None:
    def partly(request: Request, reply: Reply) -> Reply:
        if request.client == "C" and request.task == "train":
            return replace(reply, labelled=(True, False, True))
        return reply

    federation, _ = judged(tmp_path, fault=partly, rounds=1)
    (record,) = federation.run().rounds
    assert record["cross_evaluation"]["sites"] == {}
    assert record["cross_evaluation"]["skipped"].startswith("C does not label every class")


def test_the_server_leaves_out_one_site_at_a_time(tmp_path: Path) -> None:
    images = Hospital("Z", SEED)
    federation, notes = judged(
        tmp_path, rounds=1, cross_evaluators=["server"], sites=SITES[:3], server_score=images.score
    )
    (record,) = federation.run().rounds
    found = record["cross_evaluation"]
    assert found["sites"] == {}
    assert [entry["without"] for entry in found["server"]] == [[], ["A"], ["B"], ["C"]]
    start, _ = attacks.initial()
    updates = notes.updates(0)
    for entry in found["server"]:
        model = {}
        for name in SHAPES:
            model[name] = start[name].double()
            for site in SITES[:3]:
                if site not in entry["without"]:
                    model[name] = model[name] + updates[site][name].double() / 3
        assert entry["score"] == pytest.approx(images.score(model), abs=1e-7)


OWN_MODELS = {
    "ShapFed": lambda: ShapFed(output_layer="out", personalised=True),
    "Mixed": lambda: compose(FedAvg(), reward=Mixed()),
}
"""Strategies whose sites continue from models of their own, which the next round averages."""


@pytest.mark.parametrize("strategy", [*OWN_MODELS.values(), FedCE, lambda: CGSV(gamma=None)])
def test_the_server_scores_the_rounds_model_and_that_less_one_sites_step(
    tmp_path: Path, strategy: Callable[[], Strategy]
) -> None:
    images = Hospital("Z", SEED)
    scored: list[Weights] = []

    def score(weights: Weights) -> float:
        scored.append(weights)
        return images.score(weights)

    sites = SITES[:4]
    federation, notes = judged(
        tmp_path, strategy(), sites=sites, cross_evaluators=["server"], server_score=score, rounds=3
    )
    for record in federation.run().rounds:
        assert [entry["without"] for entry in record["cross_evaluation"]["server"]] == [
            [],
            *([site] for site in sites),
        ]
        of_all, *others = scored[: len(sites) + 1]
        del scored[: len(sites) + 1]
        assert digest_of(of_all) == record["model"]

        updates = notes.updates(record["round"])
        scales = record["details"].get("scale", dict.fromkeys(sites, 1.0))
        for site, model in zip(sites, others, strict=True):
            factor = record["aggregation"][site] * scales[site]
            for name in SHAPES:
                expected = of_all[name].double() - factor * updates[site][name].double()
                torch.testing.assert_close(model[name].double(), expected, rtol=1e-5, atol=1e-6)
    assert not scored


@pytest.mark.parametrize("at", [0, 2])
def test_a_score_of_the_servers_own_that_is_no_number_does_not_count(
    tmp_path: Path, at: int, caplog: pytest.LogCaptureFixture
) -> None:
    images = Hospital("Z", SEED)
    numbers = iter(range(100))

    def score(weights: Weights) -> float:
        return float("nan") if next(numbers) == at else images.score(weights)

    sites = SITES[:4]
    federation, _ = judged(
        tmp_path, FedAvg(), sites=sites, cross_evaluators=["server"], server_score=score, rounds=2
    )
    records = federation.run().rounds
    of_what = f"without {sites[at - 1]}" if at else "of all"
    assert f"round 1: server_score of the model {of_what} is nan" in caplog.text
    credits = credit_from_server(records)
    judged_rounds = [2 if at else 1] * len(sites)
    if at:
        judged_rounds[at - 1] = 1
    assert [credits[site].rounds for site in sites] == judged_rounds


def test_a_server_that_cannot_judge_a_model_does_not_end_the_run(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    images = Hospital("Z", SEED)
    numbers = iter(range(100))

    def score(weights: Weights) -> float:
        if next(numbers) == 1:
            raise OSError("an image cannot be read")
        return images.score(weights)

    sites = SITES[:3]
    federation, _ = judged(
        tmp_path, FedAvg(), sites=sites, cross_evaluators=["server"], server_score=score, rounds=1
    )
    [record] = federation.run().rounds
    scored = [entry["without"] for entry in record["cross_evaluation"]["server"]]
    assert scored == [[], [sites[1]], [sites[2]]]
    words = f"round 1: server_score of the model without {sites[0]} failed (OSError: an image"
    assert words in caplog.text


@pytest.mark.parametrize("strategy", OWN_MODELS.values(), ids=list(OWN_MODELS))
def test_sites_with_models_of_their_own_do_not_judge_one_another(
    tmp_path: Path, strategy: Callable[[], Strategy]
) -> None:
    message = rf"sites cannot judge {strategy().name}: .*cross_evaluators=\['server'\]"
    with pytest.raises(ConfigError, match=message):
        judged(tmp_path, strategy())
    assert not (tmp_path / "run" / "ledger.jsonl").exists()


def test_from_models_of_their_own_a_judge_could_compute_the_update_of_another(
    tmp_path: Path,
) -> None:
    """Why it is refused: C and D have as many images, so E could tell A and B apart."""
    sites = SITES[:5]
    images = dict(zip(sites, (10, 20, 30, 30, 15), strict=True))
    strategy = compose(FedAvg(), reward=Mixed())
    federation = federation_of(strategy, tmp_path / "run", sites=sites, rounds=2, samples=images)
    first, second = federation.run().rounds
    step, next_weights = (
        np.array([record["aggregation"][site] for site in sites]) for record in (first, second)
    )

    # What E would know after the first round, as weighted sums of its updates.
    alone = dict(zip(sites, np.eye(len(sites)), strict=True))
    known = [alone["E"], step]
    for questions in questions_of(sites, sites, SEED, number=0):
        for question in questions:
            if question.judge == "E":
                known.append(step * [site not in question.without for site in sites])
    assert np.linalg.matrix_rank([*known, alone["B"]]) == np.linalg.matrix_rank(known) + 1

    # The mean model from which the sites begin the second round is one more.
    start = np.zeros(len(sites))
    for site, weight in zip(sites, next_weights, strict=True):
        share = first["details"]["mixing"][site]
        start += weight * (share * step + (1 - share) * alone[site])
    known.append(start)
    assert np.linalg.matrix_rank([*known, alone["B"]]) == np.linalg.matrix_rank(known)


@pytest.mark.parametrize(
    "strategy",
    [
        lambda: compose(CGSV(gamma=None), reward=Mixed()),
        lambda: compose(ShapFed(output_layer="out", personalised=True), reward=Sparsified()),
    ],
)
def test_sites_judge_where_the_step_is_added_to_the_global_model(
    tmp_path: Path, strategy: Callable[[], Strategy]
) -> None:
    federation, _ = judged(tmp_path, strategy())
    for record in federation.run().rounds:
        assert record["rewards"] and not record["cross_evaluation"]["skipped"]
        assert sorted(record["cross_evaluation"]["sites"]) == list(SITES)


def test_a_strategy_of_ones_own_that_gives_sites_their_own_models_is_not_judged_by_them(
    tmp_path: Path,
) -> None:
    class Own(FedAvg):
        def round(self, clients: Sequence[str]) -> Rounds:
            local = yield [Train(client, self.start_of(client)) for client in clients]
            own = {reply.client: local.local(reply) for reply in local}
            shares = uniform(local.clients)
            return self.finish(local, shares, contributions=shares, rewards=own)

    federation, notes = judged(tmp_path, Own())
    for record in federation.run().rounds:
        found = record["cross_evaluation"]
        assert found["skipped"].startswith("the sites have models of their own")
        assert found["sites"] == {} and not notes.of("measure", record["round"])


def test_where_nothing_is_averaged_nobody_is_judged(tmp_path: Path) -> None:
    images = Hospital("Z", SEED)
    both = ["sites", "server"]
    federation, _ = judged(tmp_path, Standalone(), cross_evaluators=both, server_score=images.score)
    start, _ = attacks.initial()
    for record in federation.run().rounds:
        found = record["cross_evaluation"]
        assert found["skipped"].startswith("0 sites have weight")
        assert {entry["score"] for entry in found["server"]} == {images.score(start)}


def test_copies_are_judged_as_one_and_named(tmp_path: Path) -> None:
    federation = federation_of(
        FedAvg(), tmp_path / "run", ATTACKS["copy"], rounds=1, cross_evaluate_every=1
    )
    (record,) = federation.run().rounds
    found = record["cross_evaluation"]
    assert found["together"] == {"A": ["A", "H"]}
    assert "H" not in found["sites"]
    for entries in found["sites"].values():
        assert all("H" not in entry["without"] for entry in entries)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"sites": SITES[:4]}, f"from {LEAST_SITES} sites a round on, got 4"),
        ({"clients_per_round": 4}, f"from {LEAST_SITES} sites a round on, got 4"),
        ({"cross_evaluators": ["server"]}, "the server has no images"),
        ({"cross_evaluators": ["nobody"]}, "must be a list of 'sites', 'server' or both"),
        ({"cross_evaluate_every": 0}, "cross_evaluate_every must be a whole number of at least 1"),
        ({"server_score": float}, "nobody asks it to judge"),
    ],
)
def test_what_cannot_be_judged_is_refused_before_anything_is_trained(
    tmp_path: Path, settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        judged(tmp_path, **settings)[0].run()
    assert not (tmp_path / "run" / "ledger.jsonl").exists()


def test_the_permission_goes_with_every_request_of_a_judged_run(tmp_path: Path) -> None:
    federation, notes = judged(tmp_path, rounds=2, cross_evaluate_every=2)
    federation.run()
    for request, _ in notes.all:
        assert request.context["cross_evaluation"] == 1
    opening = read_ledger(tmp_path / "run" / "ledger.jsonl")[0]
    assert opening["cross_evaluate_every"] == 2


def test_a_robust_average_is_judged_by_the_weighted_step(tmp_path: Path) -> None:

    federation, _ = judged(tmp_path, compose(FedAvg(), average=Median()), rounds=1)
    (record,) = federation.run().rounds
    assert len(record["cross_evaluation"]["sites"]) == 8


def test_a_site_that_does_not_label_a_class_has_no_part_in_its_row() -> None:
    spec = ModelSpec(("body", "head.weight"), layers={"head.weight": "head"}, output=("head", 0))
    start = {"body": torch.zeros(1), "head.weight": torch.zeros(2, 1)}
    requests, replies = [], []
    for number, client in enumerate("ABC"):
        labelled = (True, client != "C")
        update = {"body": torch.ones(1), "head.weight": torch.tensor(labelled).float()[:, None]}
        requests.append(Request(client, "train", start, id=number))
        replies.append(Reply(client, update, 1, labelled=labelled, id=number))
    local = Replies(replies, requests, spec)
    strategy = FedAvg()
    strategy.start(start, "ABC", spec)
    weights = uniform("ABC")
    result = RoundResult(local.average(weights), weights, {})
    assert result.weights["head.weight"].flatten().tolist() == pytest.approx([1, 1])

    without_c = model_without(strategy, local, result, start, ("C",))
    assert without_c["body"].tolist() == pytest.approx([2 / 3])
    assert without_c["head.weight"].flatten().tolist() == pytest.approx([2 / 3, 1])
    # Of two sites that label the class, each has half of the row.
    without_a = model_without(strategy, local, result, start, ("A",))
    assert without_a["head.weight"].flatten().tolist() == pytest.approx([2 / 3, 1 / 2])
