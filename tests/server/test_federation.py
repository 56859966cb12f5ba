# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import fcntl
import math
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.driving import SPEC, LeastSquares, crash_before_checkpoint, vector

from monai_fairfl.errors import ConfigError, FederationError
from monai_fairfl.protocol.messages import Measure, Reply, Request, Train
from monai_fairfl.protocol.values import Estimate
from monai_fairfl.run_folder.ledger import read_ledger
from monai_fairfl.server.federation import Federation
from monai_fairfl.server.observer import Observer
from monai_fairfl.strategies import FedAvg, FedCE, FedCI, LeaveOneOut, Rounds, Standalone, Strategy
from monai_fairfl.transports.in_process import InProcess
from monai_fairfl.utils.random_state import seed_of

TARGETS = {"A": [1.0, 0.0], "B": [0.0, 1.0], "C": [2.0, 2.0]}


def initial() -> tuple[dict[str, torch.Tensor], Any]:
    return {"w": torch.randn(2, dtype=torch.float64)}, SPEC


def transport() -> InProcess:
    return InProcess({name: (lambda t=target: LeastSquares(t)) for name, target in TARGETS.items()})


def federation(
    folder: Path, strategy: Strategy | None = None, carrier: Any = None, **settings: Any
) -> Federation:
    settings = {"rounds": 4, **settings}
    return Federation(
        strategy or FedCE("sum"),
        carrier or transport(),
        initial=initial,
        run_dir=folder / "run",
        **settings,
    )


class Listening(Observer):
    """Passes the records that are added and those that are replayed to functions."""

    def __init__(
        self,
        added: Callable[[Any], Any] = lambda record: None,
        replayed: Callable[[Any], Any] = lambda record: None,
    ):
        self.added, self.replayed = added, replayed

    def record_added(self, record: Any) -> None:
        self.added(record)

    def record_replayed(self, record: Any) -> None:
        self.replayed(record)


class Faulty(InProcess):
    """Loses or changes replies: ``fault(request, reply)`` returns what arrives, or ``None``."""

    def __init__(self, fault: Callable[[Request, Reply], Reply | Sequence[Reply] | None]):
        super().__init__(transport()._makers)
        self.fault, self.stop_after = fault, None

    def exchange(self, requests: Any, arrived: Any, timeout: Any = None) -> None:
        by_id = {request.id: request for request in requests}

        def pass_on(reply: Reply) -> None:
            result = self.fault(by_id[reply.id], reply)
            for each in [result] if isinstance(result, Reply) else result or ():
                arrived(each)

        super().exchange(requests, pass_on, timeout)


def files_of(folder: Path) -> tuple[bytes, dict[str, torch.Tensor]]:
    return (folder / "run" / "ledger.jsonl").read_bytes(), torch.load(
        folder / "run" / "models" / "global.pt"
    )


def test_a_late_reply_to_an_attempt_that_was_undone_is_ignored(tmp_path: Path) -> None:
    late: list[Reply] = []
    everybody = len(TARGETS)

    def lose_the_first_attempt(request: Request, reply: Reply) -> Sequence[Reply]:
        if len(late) < everybody:
            # Accepted, it would give the first client nearly all of the weight.
            samples = reply.num_samples if late else 10_000
            late.append(replace(reply, num_samples=samples))
            return []
        return [*late, reply]

    carrier = Faulty(lose_the_first_attempt)
    done = federation(tmp_path, FedAvg(), carrier, rounds=1, retries=1, final=()).run()
    plain = federation(tmp_path / "plain", FedAvg(), transport(), rounds=1, final=()).run()
    assert done.rounds[0]["aggregation"] == plain.rounds[0]["aggregation"]


@pytest.mark.parametrize("strategy", [FedAvg, FedCE, Standalone])
def test_a_run_leaves_ledger_models_and_scores(tmp_path: Path, strategy: type[Strategy]) -> None:
    history = federation(tmp_path, strategy()).run()
    assert history.finished and [r["round"] for r in history.rounds] == [0, 1, 2, 3]
    assert [r["kind"] for r in read_ledger(tmp_path / "run" / "ledger.jsonl")] == [
        "start",
        *["round"] * 4,
        "end",
    ]
    scores = history.records[-1]["scores"]
    assert set(scores) == set(TARGETS)
    personal = strategy is Standalone
    assert all(set(s) == ({"own", "global"} if personal else {"own"}) for s in scores.values())
    assert (tmp_path / "run" / "models" / "A.pt").exists() == personal


@pytest.mark.parametrize("strategy", [FedCI, LeaveOneOut])
def test_scores_of_coalitions_models_are_not_recorded_as_a_clients_own(
    tmp_path: Path, strategy: type[Strategy]
) -> None:
    rounds = federation(tmp_path, strategy(), evaluate=("global_score",)).run().rounds
    assert all(
        set(measured) == {"global_score"} for r in rounds for measured in r["measurements"].values()
    )
    assert all(r["details"] for r in rounds)


def test_same_seed_same_bits_other_seed_other_bits(tmp_path: Path) -> None:
    for name, seed in (("one", 0), ("two", 0), ("three", 1)):
        federation(tmp_path / name, seed=seed).run()
    one, two, three = (files_of(tmp_path / name)[0] for name in ("one", "two", "three"))
    assert one == two != three


def test_the_order_in_which_replies_arrive_changes_no_bit(tmp_path: Path) -> None:
    class Reversed(InProcess):
        def exchange(self, requests: Any, arrived: Any, timeout: Any = None) -> None:
            super().exchange(list(reversed(requests)), arrived, timeout)

    federation(tmp_path / "plain").run()
    federation(tmp_path / "reversed", carrier=Reversed(transport()._makers)).run()
    assert files_of(tmp_path / "plain")[0] == files_of(tmp_path / "reversed")[0]


@pytest.mark.parametrize("strategy", [FedAvg, FedCE, Standalone])
@pytest.mark.parametrize("stop_in", [0, 2])
def test_stopping_and_resuming_gives_the_same_bits(
    tmp_path: Path, strategy: type[Strategy], stop_in: int
) -> None:
    federation(tmp_path / "whole", strategy()).run()
    first = federation(tmp_path / "parts", strategy())

    def stop(request: Request, reply: Reply) -> Reply:
        if request.round == stop_in:
            first.stop()
        return reply

    first.transport = Faulty(stop)
    assert not first.run().finished
    assert federation(tmp_path / "parts", strategy()).run(resume=True).finished
    whole, parts = files_of(tmp_path / "whole"), files_of(tmp_path / "parts")
    assert whole[0] == parts[0] and torch.equal(whole[1]["w"], parts[1]["w"])


def test_a_crash_between_ledger_and_checkpoint_resumes_to_the_same_bits(tmp_path: Path) -> None:
    federation(tmp_path / "whole").run()
    crash_before_checkpoint(federation(tmp_path / "parts"), 2)
    federation(tmp_path / "parts").run(resume=True)
    assert files_of(tmp_path / "whole")[0] == files_of(tmp_path / "parts")[0]


def test_a_damaged_newest_checkpoint_resumes_from_the_one_before_to_the_same_bits(
    tmp_path: Path,
) -> None:
    federation(tmp_path / "whole").run()
    stopped = federation(tmp_path / "parts")
    stopped.transport = Faulty(
        lambda request, reply: (stopped.stop() if request.round == 2 else None, reply)[1]
    )
    stopped.run()
    (tmp_path / "parts/run/checkpoints/round-0002/model.safetensors").write_bytes(b"")
    federation(tmp_path / "parts").run(resume=True)
    assert files_of(tmp_path / "whole")[0] == files_of(tmp_path / "parts")[0]


def test_resuming_a_finished_run_changes_nothing(tmp_path: Path) -> None:
    federation(tmp_path).run()
    before = files_of(tmp_path)[0]
    assert federation(tmp_path).run(resume=True).finished
    assert files_of(tmp_path)[0] == before


def nobody(request: Request, reply: Reply) -> Reply:
    raise AssertionError(f"{request.client} was asked")


def test_resuming_a_finished_run_keeps_its_end_and_asks_nobody(tmp_path: Path) -> None:
    ended = federation(tmp_path).run()
    assert federation(tmp_path, carrier=Faulty(nobody)).run(resume=True).records == ended.records


def test_a_closing_score_that_is_not_finite_is_on_record(tmp_path: Path) -> None:
    def spoil(request: Request, reply: Reply) -> Reply:
        closing = request.client == "B" and "score" in request.measure
        return replace(reply, measurements={"score": math.nan}) if closing else reply

    end = federation(tmp_path, FedAvg(), Faulty(spoil)).run().records[-1]
    assert (
        end["not_finite"] == {"B": ["score"]}
        and end["scores"]["B"] == {"own": {}}
        and end["missing"] == {}
    )


def test_a_finished_run_tells_of_clients_that_were_not_part_of_it(
    tmp_path: Path, caplog: Any
) -> None:
    two = InProcess(
        {name: lambda t=target: LeastSquares(t) for name, target in list(TARGETS.items())[:2]}
    )
    federation(tmp_path, FedAvg(), two).run()
    assert (
        not federation(tmp_path, FedAvg(), two).run(resume=True).rounds[4:] and not caplog.messages
    )
    federation(tmp_path, FedAvg()).run(resume=True)
    (message,) = caplog.messages
    assert f"is finished, without {', '.join(list(TARGETS)[2:])}: name more rounds" in message
    federation(tmp_path, FedAvg(), rounds=5).run(resume=True)
    assert len(caplog.messages) == 1


def test_resuming_a_concluded_run_keeps_its_end_and_asks_nobody_unless_more_rounds_are_wanted(
    tmp_path: Path,
) -> None:
    concluded = federation(
        tmp_path,
        observer=Listening(lambda r: concluded.conclude() if r.get("round") == 1 else None),
    )
    ended = concluded.run()
    assert federation(tmp_path, carrier=Faulty(nobody)).run(resume=True).records == ended.records
    assert len(federation(tmp_path, rounds=5).run(resume=True).rounds) == 5


def test_a_finished_run_that_is_resumed_with_other_settings_keeps_its_end(tmp_path: Path) -> None:
    federation(tmp_path).run()
    before = files_of(tmp_path)[0]
    with pytest.raises(FederationError, match="begun with seed"):
        federation(tmp_path, seed=7, rounds=9).run(resume=True)
    assert files_of(tmp_path)[0] == before


def test_a_finished_run_goes_on_for_more_rounds(tmp_path: Path) -> None:
    federation(tmp_path / "parts", rounds=2).run()
    federation(tmp_path / "parts", rounds=4).run(resume=True)
    federation(tmp_path / "whole", rounds=4).run()
    assert files_of(tmp_path / "parts")[0] == files_of(tmp_path / "whole")[0]


def test_a_used_folder_is_refused_and_so_are_other_settings_on_resume(tmp_path: Path) -> None:
    federation(tmp_path).run()
    with pytest.raises(FederationError, match="already holds a run: resume it"):
        federation(tmp_path).run()
    with pytest.raises(FederationError, match="begun with seed = 0, now it is 7"):
        federation(tmp_path, seed=7, rounds=9).run(resume=True)
    with pytest.raises(FederationError, match="begun with .* = 'FedCE.*now it is 'FedAvg'"):
        federation(tmp_path, FedAvg(), rounds=9).run(resume=True)


def test_a_client_that_is_lost_is_named_and_the_others_go_on(tmp_path: Path) -> None:
    lost = Faulty(
        lambda request, reply: None if (request.client, request.round) == ("B", 1) else reply
    )
    history = federation(tmp_path, carrier=lost).run()
    assert history.rounds[1]["missing"] == {"B": "timeout"}
    assert set(history.rounds[1]["aggregation"]) == {"A", "C"} and set(
        history.rounds[2]["aggregation"]
    ) == set("ABC")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"error": "disk full"}, "error: disk full"),
        ({"update": {"v": vector([1.0, 2.0])}}, "refused: update has other tensors"),
        ({"round": 7}, "refused: answers request"),
        ({"num_samples": -1}, "refused: num_samples"),
        ({"update": {"w": vector([math.nan, 0.0])}}, "quarantined: 'w' is not finite"),
    ],
)
def test_a_bad_reply_is_left_out_with_its_reason(
    tmp_path: Path, change: dict[str, Any], reason: str
) -> None:
    bad = Faulty(
        lambda q, r: replace(r, **change) if (q.client, q.round, q.task) == ("B", 1, "train") else r
    )
    history = federation(tmp_path, carrier=bad).run()
    assert history.rounds[1]["missing"]["B"].startswith(reason)
    assert all(math.isfinite(w) for r in history.rounds for w in r["aggregation"].values())


def test_one_nan_update_does_not_poison_later_rounds(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    poison = Faulty(
        lambda q, r: (
            replace(r, update={"w": vector([math.nan] * 2)})
            if (q.client, q.round) == ("B", 1)
            else r
        )
    )
    history = federation(tmp_path, carrier=poison).run()
    assert history.rounds[1]["guards"]["B"].startswith("quarantine")
    assert "client B: quarantine by NonFinite: 'w' is not finite" in caplog.text
    assert len(set(history.rounds[3]["aggregation"].values())) == 3  # not uniform for ever
    assert torch.isfinite(files_of(tmp_path)[1]["w"]).all()


def test_a_second_or_foreign_answer_does_not_count(tmp_path: Path) -> None:
    federation(tmp_path / "plain").run()
    twice = Faulty(
        lambda q, r: [
            r,
            replace(r, num_samples=999),
            replace(r, client="B" if q.client == "A" else "A"),
        ]
    )
    federation(tmp_path / "twice", carrier=twice).run()
    assert files_of(tmp_path / "plain")[0] == files_of(tmp_path / "twice")[0]


def test_below_min_clients_the_round_is_tried_again_and_nothing_of_the_first_try_remains(
    tmp_path: Path,
) -> None:
    federation(tmp_path / "plain").run()
    tries: list[int] = []

    def lose_first_try(request: Request, reply: Reply) -> Reply | None:
        if request.round == 1:
            tries.append(request.id)
            if len(tries) <= 3 and request.client != "A":
                return None
        return reply

    federation(tmp_path / "retried", carrier=Faulty(lose_first_try)).run()
    assert files_of(tmp_path / "plain")[0] == files_of(tmp_path / "retried")[0] and len(tries) == 6


def test_below_min_clients_for_good_the_run_stops_and_can_be_resumed(tmp_path: Path) -> None:
    gone = Faulty(
        lambda request, reply: None if request.round == 2 and request.client != "A" else reply
    )
    with pytest.raises(
        FederationError, match=r"round 2: 1 of 3 clients answered.*2 rounds are done.*--resume True"
    ):
        federation(tmp_path / "parts", carrier=gone).run()
    federation(tmp_path / "parts").run(resume=True)
    federation(tmp_path / "whole").run()
    assert files_of(tmp_path / "parts")[0] == files_of(tmp_path / "whole")[0]


def test_a_reason_that_all_clients_share_is_reported_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    reason = "ValueError: this client cannot do 'beauty'"
    refusing = Faulty(lambda request, reply: replace(reply, error=reason))
    with pytest.raises(FederationError, match=r"missing: A, B, C \(error: ValueError") as error:
        federation(tmp_path, carrier=refusing, retries=0).run()
    assert str(error.value).count(reason) == 1

    assert caplog.text.count(reason) == 1
    assert f"client A does not count in this exchange: error: {reason}" in caplog.text
    for client in ("B", "C"):
        same = f"client {client} does not count in this exchange, for the same reason as A"
        assert caplog.text.count(same) == 1


def test_an_end_that_too_few_answer_is_tried_again_and_changes_no_bit(tmp_path: Path) -> None:
    federation(tmp_path / "plain").run()
    asked: list[str] = []

    def lose_first_try(request: Request, reply: Reply) -> Reply | None:
        asked.extend([request.client] * (request.round == 4))
        return None if 0 < len(asked) <= 3 else reply

    federation(tmp_path / "retried", carrier=Faulty(lose_first_try)).run()
    assert files_of(tmp_path / "plain")[0] == files_of(tmp_path / "retried")[0] and len(asked) == 6


def test_an_end_that_too_few_answer_for_good_stops_the_run_and_can_be_resumed(
    tmp_path: Path,
) -> None:
    gone = Faulty(
        lambda request, reply: None if request.round == 4 and request.client != "A" else reply
    )
    with pytest.raises(
        FederationError, match=r"the end: 1 of 3 clients answered.*4 rounds are done.*--resume True"
    ):
        federation(tmp_path / "parts", carrier=gone).run()
    assert read_ledger(tmp_path / "parts/run/ledger.jsonl")[-1]["kind"] == "round"
    federation(tmp_path / "parts").run(resume=True)
    federation(tmp_path / "whole").run()
    assert files_of(tmp_path / "parts")[0] == files_of(tmp_path / "whole")[0]


def test_a_second_run_in_the_same_folder_is_refused_while_the_first_goes_on(tmp_path: Path) -> None:
    second: list[str] = []

    def start_another(record: Any) -> None:
        if record.get("round") == 1:
            with pytest.raises(
                FederationError, match="run is in use by another run: wait until"
            ) as refused:
                federation(tmp_path / "two").run(resume=True)
            second.append(str(refused.value))

    federation(tmp_path / "two", observer=Listening(start_another)).run()
    federation(tmp_path / "one").run()
    assert len(second) == 1 and files_of(tmp_path / "one")[0] == files_of(tmp_path / "two")[0]


def test_a_folder_is_free_again_when_its_run_was_killed(tmp_path: Path) -> None:
    imports = (
        "import os, signal; from pathlib import Path; from monai_fairfl.utils.files import locked\n"
    )
    code = (
        imports
        + f"with locked(Path({str(tmp_path / 'run')!r})): os.kill(os.getpid(), signal.SIGKILL)"
    )
    path = os.pathsep.join(sys.path)
    killed = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code], env={**os.environ, "PYTHONPATH": path}
    )
    assert killed.returncode == -9 and (tmp_path / "run" / ".lock").exists()
    assert federation(tmp_path).run().finished


def test_a_file_system_without_locks_holds_no_run_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def unsupported(file: Any, how: int) -> None:
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(fcntl, "flock", unsupported)
    assert federation(tmp_path).run().finished
    assert "start no second one in it" in caplog.text


def test_one_client_is_too_few_for_fedce_and_enough_for_fedavg(tmp_path: Path) -> None:
    alone = InProcess({"A": lambda: LeastSquares([1.0, 0.0])})
    with pytest.raises(FederationError, match=r"FedCE-sum needs at least 2 clients, got 1 \['A'\]"):
        federation(tmp_path / "ce", carrier=alone, min_clients=1).run()
    assert federation(tmp_path / "avg", FedAvg(), alone, min_clients=1).run().finished


def test_clients_are_sampled_by_seed_and_round(tmp_path: Path) -> None:
    history = federation(tmp_path, FedAvg(), clients_per_round=2, rounds=12).run()
    drawn = [tuple(r["clients"]) for r in history.rounds]
    assert all(len(clients) == 2 for clients in drawn) and len(set(drawn)) == 3
    again = federation(tmp_path / "again", FedAvg(), clients_per_round=2, rounds=12).run()
    assert drawn == [tuple(r["clients"]) for r in again.rounds]


class TwoPhases(Strategy):
    """Trains, then measures the average at those who trained."""

    state = ("finished",)

    def __init__(self) -> None:
        self.finished = 0

    def round(self, clients: Sequence[str]) -> Rounds:
        local = yield [Train(client, self.start_of(client)) for client in clients]
        anchor = local.average()
        scores = yield [
            Measure(reply.client, anchor, ("score",)) for reply in local for _ in range(2)
        ]
        assert len(scores) == 2 * len(scores.clients)
        self.finished += 1
        return self.finish(local, self.measured_shares(scores), {})

    def measured_shares(self, scores: Any) -> dict[str, float]:
        values = self.measured(scores, "score")
        return {client: value / sum(values.values()) for client, value in values.items()}


def test_a_strategy_may_use_several_phases_and_ask_one_client_twice(tmp_path: Path) -> None:
    asked: list[tuple[int, str, int]] = []
    history = federation(
        tmp_path, TwoPhases(), Faulty(lambda q, r: (asked.append((q.round, q.client, q.id)), r)[1])
    ).run()
    assert history.finished and len(asked) == len(set(asked))
    assert sorted(id for number, _, id in asked if number == 0) == list(range(9))


def test_min_clients_holds_in_every_phase_and_the_strategy_is_unchanged(tmp_path: Path) -> None:
    strategy = TwoPhases()
    lost = Faulty(
        lambda q, r: None if q.round == 1 and q.task == "measure" and q.client != "C" else r
    )
    with pytest.raises(FederationError, match="round 1"):
        federation(tmp_path, strategy, lost).run()
    assert strategy.finished == 1


def test_requests_are_stamped_and_the_first_exchange_measures_the_received_model(
    tmp_path: Path,
) -> None:
    seen: list[Request] = []
    federation(tmp_path, carrier=Faulty(lambda q, r: (seen.append(q), r)[1])).run()
    training = [q for q in seen if q.task == "train"]
    assert all("global_score" in q.measure and q.run == "run" for q in training)
    assert (
        len({(q.client, q.seed) for q in training}) == 12
        and len({q.ledger_head for q in training}) == 4
    )
    closing = [q for q in seen if q.task == "measure"]
    assert [q.measure for q in closing] == [("score",)] * 3 and {q.round for q in closing} == {4}


def test_the_best_model_by_validation_is_kept(tmp_path: Path) -> None:
    alone = federation(tmp_path / "alone", Standalone()).run()
    assert (
        alone.records[-1]["best"]["round"] == 3
    )  # only the closing measurement is of the global model
    history = federation(tmp_path, FedAvg(), rounds=6).run()
    mean = [
        sum(m["global_score"] for m in record["measurements"].values()) / 3
        for record in history.rounds[1:]
    ] + [sum(s["own"]["score"] for s in history.records[-1]["scores"].values()) / 3]
    best = history.records[-1]["best"]
    assert best["round"] == max(range(6), key=lambda r: mean[r]) and best["score"] == pytest.approx(
        max(mean)
    )
    assert (tmp_path / "run" / "models" / "best.pt").exists()


def test_the_best_model_is_not_chosen_by_which_clients_were_drawn(tmp_path: Path) -> None:
    history = federation(tmp_path, FedAvg(), rounds=6, clients_per_round=2).run()
    everybody = [s["own"]["score"] for s in history.records[-1]["scores"].values()]
    assert history.records[-1]["best"] == {"round": 5, "score": pytest.approx(sum(everybody) / 3)}


def test_every_record_is_told_once_it_is_written(tmp_path: Path) -> None:
    ledger, recorded, lengths = tmp_path / "run" / "ledger.jsonl", [], []

    def listen(record: Any) -> None:
        recorded.append(record)
        lengths.append(len(read_ledger(ledger)))

    history = federation(tmp_path, observer=Listening(listen)).run()
    assert recorded == history.records == read_ledger(ledger)
    assert lengths == [1, 2, 3, 4, 5, 6]


def test_after_a_resume_only_what_is_new_is_told(tmp_path: Path) -> None:
    stopped = federation(
        tmp_path, observer=Listening(lambda r: stopped.stop() if r.get("round") == 1 else None)
    )
    stopped.run()
    recorded: list[Any] = []
    federation(tmp_path, observer=Listening(recorded.append)).run(resume=True)
    assert [(record["kind"], record.get("round")) for record in recorded] == [
        ("round", 2),
        ("round", 3),
        ("end", None),
    ]


def test_a_resumed_run_replays_the_records_it_keeps_before_it_asks_anybody(tmp_path: Path) -> None:
    crash_before_checkpoint(federation(tmp_path), 2)  # round 2 is in the ledger, but not done
    heard: list[Any] = []
    note = lambda record: heard.append((record["kind"], record.get("round")))  # noqa: E731
    asked = Faulty(lambda request, reply: (heard.append("asked"), reply)[1])
    federation(tmp_path, carrier=asked, observer=Listening(replayed=note)).run(resume=True)
    assert heard[:4] == [("start", None), ("round", 0), ("round", 1), "asked"] and set(
        heard[3:]
    ) == {"asked"}


def test_what_is_replayed_may_conclude_the_run_before_its_next_round(tmp_path: Path) -> None:
    stopped = federation(
        tmp_path / "parts",
        observer=Listening(lambda r: stopped.stop() if r.get("round") == 1 else None),
    )
    stopped.run()
    resumed = federation(
        tmp_path / "parts", observer=Listening(replayed=lambda record: resumed.conclude())
    )
    assert resumed.run(resume=True).finished
    federation(tmp_path / "planned", rounds=2).run()
    assert files_of(tmp_path / "parts")[0] == files_of(tmp_path / "planned")[0]


def test_a_concluded_run_ends_with_the_present_round_as_if_no_more_were_planned(
    tmp_path: Path,
) -> None:
    concluded = federation(
        tmp_path / "concluded",
        observer=Listening(lambda r: concluded.conclude() if r.get("round") == 1 else None),
    )
    history = concluded.run()
    assert history.finished and [r["kind"] for r in history.records] == [
        "start",
        "round",
        "round",
        "end",
    ]
    assert all(set(scores["own"]) == {"score"} for scores in history.records[-1]["scores"].values())
    assert set(history.records[-1]["scores"]) == set(TARGETS)
    federation(tmp_path / "planned", rounds=2).run()
    assert files_of(tmp_path / "concluded")[0] == files_of(tmp_path / "planned")[0]


def test_without_final_measurements_nobody_is_asked_after_the_last_round(tmp_path: Path) -> None:
    asked: list[Request] = []
    history = federation(
        tmp_path, final=(), carrier=Faulty(lambda q, r: (asked.append(q), r)[1])
    ).run()
    assert len(asked) == 12 and {(q.task, q.round) for q in asked} == {
        ("train", number) for number in range(4)
    }
    end = history.records[-1]
    assert history.finished and (end["kind"], end["scores"], end["missing"]) == ("end", {}, {})
    assert (tmp_path / "run" / "models" / "global.pt").exists()


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"rounds": 0}, "rounds must be a whole number of at least 1, got 0"),
        ({"rounds": "two"}, "'two'"),
        ({"buffers": "mean"}, "'mean'"),
        ({"threads": 0}, "threads"),
        ({"min_clients": True}, "min_clients"),
        ({"clients_per_round": 0}, "clients_per_round must be a whole number of at least 2, got 0"),
        (
            {"clients_per_round": 0, "min_clients": 1},
            "clients_per_round must be a whole number of at least 1, got 0",
        ),
        (
            {"clients_per_round": 2, "min_clients": 3},
            "clients_per_round must be a whole number of at least 3, got 2",
        ),
        ({"clients_per_round": 2.5}, "2.5"),
    ],
)
def test_bad_settings_are_refused_by_name(
    tmp_path: Path, settings: dict[str, Any], says: str
) -> None:
    with pytest.raises(ConfigError, match=says):
        federation(tmp_path, **settings)


@pytest.mark.parametrize("name", ["lr=0.01", ".hidden", "x" * 129, "-x"])
def test_a_folder_whose_name_cannot_be_the_runs_is_refused_at_once_with_the_rule(
    tmp_path: Path, name: str
) -> None:
    with pytest.raises(
        ConfigError, match=r"the run's name, the last part of run_dir, .*1 to 128 letters"
    ):
        Federation(FedAvg(), transport(), 1, initial, run_dir=tmp_path / name)


@pytest.mark.parametrize(
    "name", ["fundus_disc_cup_segmentation-ShapFed-personalised-2", "y" * 128, "only-Site 4"]
)
def test_a_long_name_of_a_run_is_as_good_as_a_short_one(tmp_path: Path, name: str) -> None:
    assert Federation(FedAvg(), transport(), 1, initial, run_dir=tmp_path / name).run().finished


@pytest.mark.parametrize("name", ["z" * 65, "-x", "a/b"])
def test_clients_names_stay_short_and_plain(tmp_path: Path, name: str) -> None:
    clients = InProcess({each: lambda: LeastSquares([0.0, 1.0]) for each in ("A", name)})
    with pytest.raises(ConfigError, match="client name .*1 to 64 letters"):
        federation(tmp_path, FedAvg(), clients).run()


@pytest.mark.parametrize(
    "odd",
    [
        {"gland": 0.5},
        Estimate({"a": 0.5}, None, 1),  # type: ignore[arg-type]
        Estimate(0.5, np.float32(0.1), 3),  # type: ignore[arg-type]
        10**400,
    ],
)
def test_one_clients_odd_measurement_is_listed_and_the_federation_goes_on(
    tmp_path: Path, odd: Any
) -> None:
    carrier = Faulty(
        lambda q, r: (
            replace(r, measurements=dict.fromkeys(r.measurements, odd)) if q.client == "C" else r
        )
    )
    history = federation(tmp_path, FedAvg(), carrier).run()
    assert history.finished and all(
        record["not_finite"] == {"C": ["global_score"]} for record in history.rounds
    )


def test_something_else_than_a_strategy_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="got str"):
        federation(tmp_path, "FedAvg")  # type: ignore[arg-type]


def test_the_global_random_state_is_left_alone(tmp_path: Path) -> None:
    before = torch.random.get_rng_state()
    federation(tmp_path).run()
    assert torch.equal(before, torch.random.get_rng_state())


def test_seeds_differ_by_client_round_and_run() -> None:
    seeds = {seed_of(s, c, r) for s in range(3) for c in "ABC" for r in range(5)}
    assert len(seeds) == 45 and all(0 <= seed < 2**31 for seed in seeds)


def test_a_reply_of_an_earlier_exchange_changes_nothing_of_a_later_one(tmp_path: Path) -> None:
    class Slow(InProcess):
        """B misses the first round; its answer comes in the second, or never."""

        def __init__(self, comes: bool):
            super().__init__(transport()._makers)
            self.comes, self.late = comes, []  # type: ignore[var-annotated]

        def exchange(self, requests, arrived, timeout=None):  # type: ignore[no-untyped-def]
            def sorted_out(reply: Reply) -> None:
                if (reply.client, reply.round) == ("B", 0):
                    self.late += (
                        [(arrived, replace(reply, update={"w": vector([99.0, 99.0])}))]
                        if self.comes
                        else []
                    )
                else:
                    arrived(reply)

            super().exchange(requests, sorted_out, timeout)
            if (
                requests[0].round == 1
            ):  # after all answers of this exchange, before the server looks at them
                for hand_over, reply in self.late:
                    hand_over(reply)

    lost = federation(tmp_path / "lost", FedAvg(), Slow(False), evaluate=()).run()
    late = federation(tmp_path / "late", FedAvg(), Slow(True), evaluate=()).run()
    assert late.rounds == lost.rounds and late.rounds[0]["missing"] == {"B": "timeout"}


def test_the_best_model_is_compared_over_the_clients_that_the_run_began_with(
    tmp_path: Path,
) -> None:
    worse = {
        "A": 0.9,
        "B": 0.8,
        "C": 0.1,
    }  # C is the hard one, and every round is worse than the one before

    def with_labels(request: Request, reply: Reply) -> Reply:
        score = worse[request.client] - 0.05 * request.round
        return replace(reply, measurements={name: score for name in request.measure})

    def best(folder: str, fault: Callable[[Request, Reply], Reply | None]) -> dict[str, Any]:
        carrier = Faulty(lambda q, r: fault(q, with_labels(q, r)))
        return dict(federation(tmp_path / folder, FedAvg(), carrier).run().records[-1]["best"])

    everybody = {"round": -1 + 1, "score": pytest.approx(0.55)}
    assert best("all", lambda q, r: r) == everybody
    assert (
        best("end", lambda q, r: None if (q.client, q.task) == ("C", "measure") else r) == everybody
    )
    silent = best(
        "nan",
        lambda q, r: replace(r, measurements={"global_score": math.nan}) if q.client == "C" else r,
    )
    assert silent == {}
    federation(tmp_path / "gone", FedAvg(), Faulty(with_labels), rounds=2).run()
    carrier = Faulty(with_labels)
    del carrier._makers["C"]
    assert (
        federation(tmp_path / "gone", FedAvg(), carrier).run(resume=True).records[-1]["best"]
        == everybody
    )


def test_who_scores_only_its_own_model_at_the_end_is_named_and_stands_for_nobody_elses(
    tmp_path: Path,
) -> None:
    def no_global(request: Request, reply: Reply) -> Reply | None:
        return (
            None
            if request.client == "C" and request.task == "measure" and not request.context
            else reply
        )

    history = federation(tmp_path, Standalone(), Faulty(no_global)).run()
    end = history.records[-1]
    assert end["best"] == {} and end["missing"] == {"C": "timeout"} and "own" in end["scores"]["C"]


def test_a_stop_is_asked_of_one_run_and_not_of_the_next(tmp_path: Path) -> None:
    stopped = federation(tmp_path)
    stopped.stop()
    assert stopped.run().rounds == []
    assert len(stopped.run(resume=True).rounds) == 4


@pytest.mark.parametrize("name", ["global", "best"])
def test_a_client_has_no_name_of_the_federations_models(tmp_path: Path, name: str) -> None:
    carrier = InProcess({client: (lambda: LeastSquares([0.0, 1.0])) for client in ("A", name)})
    with pytest.raises(ConfigError, match=f"cannot be called '{name}'.*rename"):
        federation(tmp_path, carrier=carrier).run()
