# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""What a method would have computed of a run's recorded replies, without a site or by its rules.

Nothing is trained, so the question has limits. The updates and measurements stay those of the run
as it was: of the models that its sites really received. So the answer is exact for "which weights
and contributions follow from what was recorded". It is no answer to "how would the training have
gone on": from the second round on, other weights would have made other models.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from monai_fairfl.audit.ledger_rounds import LedgerRequest, LedgerRound, NotInLedgerError
from monai_fairfl.audit.replaying import LedgerRun, play
from monai_fairfl.errors import ConfigError, did_you_mean
from monai_fairfl.messages import Request, to_json
from monai_fairfl.replies import weights_of_model
from monai_fairfl.run_folder.ledger import number_in
from monai_fairfl.strategies.base import Strategy

OF_THE_CLIENT = frozenset({"previous_weight", "ditto_lambda"})
"""Context that changes no update: it is of a measurement, or of a model that stays at the site."""

MEANING = (
    "the weights and contributions that follow from the updates and measurements in this ledger; "
    "the models that other weights would have made from the second round on are not in it"
)
"""What an answer means, for every reader."""


@dataclass(frozen=True)
class WhatIf:
    """An answer.

    Args:
        question: the strategy that was asked, and the site that was left out.
        first_round_is_exact: whether the answer is exact for the first round: nothing before it
            depends on the weights.
        why_not: the reason where it would not.
        rounds: of each round its number, and under ``"recorded"`` and ``"what_if"`` the
            ``"aggregation"`` and the ``"contributions"``.
        sites: site -> ``"weight"`` (mean over the rounds in which it has one) and
            ``"contribution"`` (of its last round), each ``"recorded"`` and ``"what_if"``.

    >>> elm = {"weight": {"recorded": 0.6, "what_if": 0.75}}
    >>> found = WhatIf({"strategy": "FedAvg", "without": "oak"}, True, "", [], {"elm": elm})
    >>> found.sites["elm"]["weight"]["what_if"]
    0.75
    """

    question: Mapping[str, str]
    first_round_is_exact: bool
    why_not: str
    rounds: Sequence[Mapping[str, Any]]
    sites: Mapping[str, Mapping[str, Mapping[str, float | None]]]


def what_if(
    run_dir: str | Path,
    without: str | None = None,
    strategy: Strategy | None = None,
    allow_import: bool = False,
) -> WhatIf:
    """Play the rounds of a ledger without a site, by another strategy, or both.

    Args:
        run_dir: of the run.
        without: a site whose replies are left out of every round.
        strategy: new; ``None``: the run's own.
        allow_import: whether the run's own strategy may be imported from outside this package.

    Raises:
        ConfigError: when neither a site nor a strategy is given, or the site is not of the run.
        NotInLedgerError: when the answer would not be exact; the text names the method and what
            stands in the way.
        FederationError: when the chain is broken, or a method fails on what is recorded.

    >>> import torch
    >>> from tempfile import TemporaryDirectory
    >>> from monai_fairfl import Federation, InProcess, ModelSpec, Reply
    >>> from monai_fairfl.strategies import CGSV, FedAvg
    >>> images = {"elm": 30, "fir": 10, "oak": 10}
    >>> class Hospital:
    ...     def answer(self, asked):
    ...         echo = {"id": asked.id, "run": asked.run, "round": asked.round}
    ...         update = {"w": torch.ones(1)} if asked.task == "train" else None
    ...         return Reply(asked.client, update, images[asked.client], **echo)
    >>> initial = lambda: ({"w": torch.zeros(1)}, ModelSpec(("w",)))
    >>> hospitals = InProcess(dict.fromkeys(images, Hospital))
    >>> with TemporaryDirectory() as folder:
    ...     history = Federation(FedAvg(), hospitals, 1, initial, run_dir=folder).run()
    ...     without_oak = what_if(folder, without="oak")
    ...     by_cgsv = what_if(folder, strategy=CGSV())  # it compares updates, which are alike here
    >>> without_oak.rounds[0]["what_if"]["aggregation"], without_oak.first_round_is_exact
    ({'elm': 0.75, 'fir': 0.25}, True)
    >>> by_cgsv.sites["elm"]["contribution"]
    {'recorded': 0.6, 'what_if': 0.3333333333333333}
    """
    run = LedgerRun(run_dir)
    if without is None and strategy is None:
        raise ConfigError(
            "name a site (without=..., --without) or a strategy (strategy=..., --strategy) to ask "
            "about"
        )
    if without is not None:
        _check_site(run, without)
    own = run.strategy(allow_import)
    asked = run.strategy(allow_import) if strategy is None else run.started(strategy)
    name = run.opening["name"] if strategy is None else type(strategy).__name__

    rounds = []
    for recorded in run.rounds:
        own_requests = _requests_of(own, recorded)
        remaining = recorded
        if without is not None:
            remaining = recorded.without(without)
        _check_count(asked, remaining, name)
        answers = _Answers(own, asked, own_requests, remaining, without)
        result = play(asked, remaining, answers.answer)
        rounds.append(
            {
                "round": recorded.number,
                "recorded": {
                    "aggregation": recorded.record["aggregation"],
                    "contributions": recorded.record["contributions"],
                },
                "what_if": {
                    "aggregation": to_json(result.aggregation),
                    "contributions": to_json(result.contributions),
                },
            }
        )
    why_not = _why_first_round_is_not_exact(run, without)
    question = {"strategy": name}
    if without is not None:
        question["without"] = without
    return WhatIf(question, not why_not, why_not, rounds, _by_site(rounds))


def _requests_of(own: Strategy, recorded: LedgerRound) -> list[Sequence[Request]]:
    """What the run's own strategy asked in each exchange of a round."""
    asked: list[Sequence[Request]] = []

    def answer(number: int, requests: Sequence[Request]) -> Sequence[LedgerRequest]:
        asked.append(requests)
        return recorded.exchanges[number]

    play(own, recorded, answer)
    return asked


class _Answers:
    """Answers another strategy, or the same without a site, where the ledger has the answer.

    Args:
        own: the run's own strategy.
        asked: the strategy that asks.
        own_requests: what the own strategy asked in each exchange of this round.
        remaining: the round, without the site that is left out.
        without: that site.
    """

    def __init__(
        self,
        own: Strategy,
        asked: Strategy,
        own_requests: Sequence[Sequence[Request]],
        remaining: LedgerRound,
        without: str | None,
    ):
        self.own = own
        self.asked = asked
        self.own_requests = own_requests
        self.remaining = remaining
        self.without = without

    def answer(self, number: int, requests: Sequence[Request]) -> Sequence[LedgerRequest]:
        """What the ledger has of the requests of exchange ``number``, in their order."""
        place = self._exchange_of(number, requests)
        entries = self.remaining.exchanges[place]
        own_requests = [own for own in self.own_requests[place] if own.client != self.without]
        if [request.client for request in requests] != [entry.client for entry in entries]:
            raise NotInLedgerError(
                f"it asks {[request.client for request in requests]} in exchange {number}, and the "
                f"ledger has answers of {[entry.client for entry in entries]}"
            )
        for request, own_request in zip(requests, own_requests, strict=True):
            self._check_measurements(request, own_request, place)
            self._check_context(request, own_request)
        return entries

    def _exchange_of(self, number: int, requests: Sequence[Request]) -> int:
        """The ledger's exchange that holds the answers to exchange ``number`` of the asker."""
        training = self.remaining.training
        if training is not None and all(request.task == "train" for request in requests):
            return training
        if training is None or number < training:
            if number < len(self.remaining.exchanges):
                return number
        elif self._asks_about_the_same_models() and number < len(self.remaining.exchanges):
            return number
        if self.without is not None and type(self.own) is type(self.asked):
            raise NotInLedgerError(
                "after training it asks the sites about models that the update of "
                f"{self.without} is in, and nobody measured those without it"
            )
        raise NotInLedgerError(
            f"in exchange {number} it asks the sites about models of its own, which nobody measured"
        )

    def _asks_about_the_same_models(self) -> bool:
        """Whether what is asked after training is of the models that the run's method made."""
        kind = type(self.asked)
        is_shipped = kind.__module__.startswith("monai_fairfl.strategies.")
        return self.without is None and kind is type(self.own) and is_shipped

    def _check_measurements(self, request: Request, own: Request, place: int) -> None:
        """Refuse a measurement that the run did not ask for."""
        measured = {*own.measure}
        if place == 0:
            measured.update(self.remaining.evaluated)
        for name in request.measure:
            if name not in measured:
                raise NotInLedgerError(
                    f"it needs {name!r}, and this run did not measure it (measured: "
                    f"{', '.join(sorted(measured)) or 'nothing'})"
                )

    def _check_context(self, request: Request, own: Request) -> None:
        """Refuse another training, or another way of measuring, than the run's."""
        wanted = _deciding({**self.asked.parts.training, **request.context})
        given = _deciding({**self.own.parts.training, **own.context})
        if wanted != given:
            raise NotInLedgerError(
                f"its sites would {request.task} with {wanted or 'no context'}, and those of this "
                f"run did with {given or 'no context'}"
            )


def _deciding(context: Mapping[str, float]) -> dict[str, float]:
    """The entries of a context that change what a site sends; 0 for a reset is as good as none."""
    found = {}
    for name, value in context.items():
        is_off = name == "reset_optimizer" and not value
        if name not in OF_THE_CLIENT and not is_off:
            found[name] = value
    return found


def _check_site(run: LedgerRun, site: str) -> None:
    known: set[str] = set()
    for recorded in run.rounds:
        known.update(recorded.clients)
    if site not in known:
        raise ConfigError(f"{site!r} took part in no round{did_you_mean(site, known)}")


def _check_count(asked: Strategy, remaining: LedgerRound, name: str) -> None:
    if len(remaining.samples) < asked.min_clients:
        raise NotInLedgerError(
            f"{name} needs at least {asked.min_clients} sites, and in round {remaining.number} "
            f"{len(remaining.samples)} remain"
        )


def _why_first_round_is_not_exact(run: LedgerRun, without: str | None) -> str:
    """Why even the first round could have been another one; empty where it could not.

    Another strategy changes nothing before its first weights. A site that is not there does, where
    sites are drawn or compared.
    """
    if not run.rounds:
        return "there is no round"
    if without is None:
        return ""
    first = run.rounds[0].record
    if run.opening["clients_per_round"] is not None:
        return "each round drew some of the sites, and would have drawn others"
    acted = []
    for client, verdicts in first["verdicts"].items():
        if any(verdict["action"] != "flag" for verdict in verdicts):
            acted.append(client)
    if acted:
        return f"a guard acted on {', '.join(acted)}, which it compares with all sites"
    return ""


def _by_site(
    rounds: Sequence[Mapping[str, Any]],
) -> dict[str, dict[str, dict[str, float | None]]]:
    """Each site's mean weight and last contribution, recorded and what-if."""
    weights: dict[str, dict[str, list[float]]] = {}
    contributions: dict[str, dict[str, float | None]] = {}
    for entry in rounds:
        for which in ("recorded", "what_if"):
            for site, weight in weights_of_model(entry[which]["aggregation"]).items():
                weights.setdefault(site, {}).setdefault(which, []).append(weight)
            for site, value in entry[which]["contributions"].items():
                contributions.setdefault(site, {})[which] = number_in(value)

    found: dict[str, dict[str, dict[str, float | None]]] = {}
    for site in sorted({*weights, *contributions}):
        weight_of_site: dict[str, float | None] = {}
        contribution_of_site: dict[str, float | None] = {}
        for which in ("recorded", "what_if"):
            values = weights.get(site, {}).get(which)
            weight_of_site[which] = sum(values) / len(values) if values else None
            contribution_of_site[which] = contributions.get(site, {}).get(which)
        found[site] = {"weight": weight_of_site, "contribution": contribution_of_site}
    return found
