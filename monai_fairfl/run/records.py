# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""What the ledger records: the opening of a run, each round, and the end."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from monai_fairfl import __version__
from monai_fairfl.guards import Guard
from monai_fairfl.messages import (
    NOT_FINITE,
    ModelSpec,
    Weights,
    add_note,
    is_of_own_model,
    to_json,
)
from monai_fairfl.replies import Replies, weights_of_model
from monai_fairfl.run.ledger import FORMAT, digest_of
from monai_fairfl.strategies.base import Strategy
from monai_fairfl.strategies.registry import configuration_of
from monai_fairfl.utils.arguments import non_default_arguments

if TYPE_CHECKING:
    from monai_fairfl.server.round import Round

DIGEST = re.compile(r"[0-9a-f]{64}")
"""A SHA-256, as a client states it of its update."""


def opening_record(
    run: str,
    strategy: Strategy,
    guards: Sequence[Guard],
    clients: Sequence[str],
    spec: ModelSpec,
    weights: Weights,
    settings: Mapping[str, Any],
) -> dict[str, Any]:
    """What a run began with; a resumed run must begin with the same.

    ``configuration`` and ``spec`` are what the numbers of every round follow from, together with
    the round's record: the strategy can be made again of them.

    Args:
        run: the run's name.
        strategy: that was started.
        guards: of the run, in order.
        clients: of the run.
        spec: the model's tensors.
        weights: the initial model.
        settings: of the run that cannot change when it is resumed, plain JSON.
    """
    limited = {}
    if strategy.exchanged.clip_reports is not None:
        limited["gains_when"] = dict(strategy.gains_when)
    return {
        "kind": "start",
        "format": FORMAT,
        "package": __version__,
        "run": run,
        "strategy": type(strategy).__name__,
        "name": strategy.name,
        "configuration": configuration_of(strategy),
        **limited,
        "guards": names_of_guards(guards),
        "clients": list(clients),
        **settings,
        "parameters": sum(weights[name].numel() for name in spec.parameters),
        "layers": list(dict.fromkeys(spec.layers.values())),
        "spec": to_json(spec),
        "shapes": {name: list(tensor.shape) for name, tensor in weights.items()},
        "model": digest_of(weights),
    }


def names_of_guards(guards: Sequence[Guard]) -> list[str]:
    """The class of each guard, with its arguments that are not the defaults.

    >>> from monai_fairfl.guards import NonFinite, TooLong
    >>> names_of_guards([NonFinite(), TooLong(8.0)])
    ['NonFinite', 'TooLong-times_8.0']
    """
    return ["-".join([type(one).__name__, *non_default_arguments(one)]) for one in guards]


def model_round(measurement: str, number: int, after_training: bool = False) -> int:
    """The round whose resulting model a measurement of round ``number`` is of.

    A client measures the model that it was sent, which is the result of the round before (-1: the
    initial model), or the one that it trained. A model that is sent after the clients trained, such
    as an average of their updates, is of the present round.

    Args:
        measurement: its name.
        number: of the round in which it was measured.
        after_training: whether the clients had trained in that round before they were asked.

    >>> model_round("global_score", 3), model_round("local_score", 3)
    (2, 3)
    """
    if is_of_own_model(measurement) or after_training:
        return number
    return number - 1


def training_of(exchanges: Sequence[Replies]) -> Replies:
    """The first exchange of a round that trained: its replies carry updates.

    Where none did, it is the first one.
    """
    trained = [one for one in exchanges if all(reply.update is not None for reply in one)]
    return (trained or exchanges)[0]


def _not_used(exchanges: Sequence[Replies]) -> dict[str, Any]:
    """The measurements that were dropped.

    Returns:
        ``"not_finite"``: client -> names of those that are no finite number; ``"dropped"``: client
        -> name -> why any other was dropped, of several replies the first reason.
    """
    not_finite: dict[str, list[str]] = {}
    dropped: dict[str, dict[str, str]] = {}
    for replies in exchanges:
        present = {reply.id for reply in replies}
        for id, of_reply in sorted(replies.dropped.items()):
            client = replies.requests[id].client
            for name, reason in of_reply.items():
                if reason != NOT_FINITE:
                    dropped.setdefault(client, {}).setdefault(name, reason)
                elif id in present:
                    not_finite.setdefault(client, []).append(name)
    return {"not_finite": not_finite, "dropped": dropped}


def round_record(played: Round, strategy: Strategy) -> dict[str, Any]:
    """One round: who was asked and answered, measurements, Gram matrix, weights, contributions.

    ``of_round`` names the round whose resulting model each measurement is of: ``global_score`` of
    the model received, which is the result of the round before. Scores of the models of coalitions
    are none of a client's own, so they are not among the ``measurements``. ``exchanges`` holds
    whatever the strategy was sent, for a replay: every request in its order, and what was measured
    for it.

    Args:
        played: the round.
        strategy: that played it.
    """
    result, exchanges = played.result, played.exchanges
    local = training_of(exchanges)
    measured, of_round = _measurements(exchanges, played.number)
    missing: dict[str, str] = {}
    for replies in exchanges:
        missing.update(replies.missing)

    judged = {}
    verdicts = {}
    for client, of_client in played.verdicts.items():
        judged[client] = "; ".join(f"{verdict.action}: {verdict.reason}" for verdict in of_client)
        verdicts[client] = [asdict(verdict) for verdict in of_client]

    # Every request of each exchange, as the strategy made them; None where it saw no reply.
    sent = []
    for replies in exchanges:
        by_id = {reply.id: reply.measurements for reply in replies}
        asked = [request for _, request in sorted(replies.requests.items())]
        sent.append(
            [{"client": r.client, "task": r.task, "measured": by_id.get(r.id)} for r in asked]
        )

    gram = None
    if all(reply.update is not None for reply in local):
        gram = {"clients": local.clients, **local.geometry.recorded()}
    rewards = result.rewards or {}
    precision = {reply.client: reply.precision for reply in local if reply.precision}
    notes = dict(result.notes)
    for client, note in played.notes.items():
        add_note(notes, client, note)
    return {
        "kind": "round",
        "round": played.number,
        "clients": list(played.clients),
        "known_clients": list(strategy.clients),
        "planned_rounds": strategy.rounds_planned,
        "missing": missing,
        "guards": judged,
        "verdicts": verdicts,
        "aggregation": result.aggregation,
        "contributions": result.contributions,
        "details": result.details,
        "notes": notes,
        "measurements": measured,
        "of_round": of_round,
        **_not_used(exchanges),
        "facts": played.facts,
        "samples": {reply.client: reply.num_samples for reply in local},
        "cases": {reply.client: reply.num_cases for reply in local},
        "steps": {reply.client: reply.num_steps for reply in local},
        "labelled": {reply.client: list(reply.labelled) for reply in local if reply.labelled},
        **({"precision": precision} if precision else {}),
        "digests": played.digests,
        "exchanges": sent,
        "gram": gram,
        "model": digest_of(result.weights),
        "rewards": {client: digest_of(model) for client, model in rewards.items()},
    }


def _measurements(
    exchanges: Sequence[Replies], number: int
) -> tuple[dict[str, dict[str, Any]], dict[str, int]]:
    """What each client measured of its own models, and the round whose model each is of.

    Args:
        exchanges: of the round.
        number: of the round.

    Returns:
        client -> measurement -> value, and measurement -> round.
    """
    # (client, measurement) -> in how many requests of the round that train nothing.
    times: Counter[tuple[str, str]] = Counter()
    for replies in exchanges:
        for request in replies.requests.values():
            if request.task == "measure":
                times.update((request.client, name) for name in request.measure)

    measured: dict[str, dict[str, Any]] = {}
    of_round: dict[str, int] = {}
    after_training = False
    for replies in exchanges:
        for reply in replies:
            only_measures = replies.requests[reply.id].task == "measure"
            own = measured.setdefault(reply.client, {})
            for name, value in reply.measurements.items():
                # What was asked for more than once is of several models, such as coalitions'.
                if only_measures and times[reply.client, name] > 1:
                    continue
                own[name] = value
                of_round[name] = model_round(name, number, after_training)
        after_training |= any(reply.update is not None for reply in replies)
    return measured, of_round


def factors_of_step(
    aggregation: Mapping[str, Any], details: Mapping[str, Mapping[str, Any]]
) -> dict[str, float]:
    """client -> factor of its update in a round's step; with weights by layer, their means.

    Args:
        aggregation: of the round's record.
        details: of the record. Under ``"scale"`` it has the factors of updates where the method
            has any.

    >>> factors_of_step({"A": 0.5, "B": 0.5}, {"scale": {"A": 3.0}})
    {'A': 1.5, 'B': 0.5}
    """
    scale = details.get("scale", {})
    weights = weights_of_model(aggregation)
    return {client: weight * scale.get(client, 1.0) for client, weight in weights.items()}


def stated_digests(replies: Replies) -> dict[str, str]:
    """client -> SHA-256 of its update, as it stated it; a text of another form does not count."""
    stated = {reply.client: str(reply.digest) for reply in replies if reply.update is not None}
    return {client: text for client, text in stated.items() if DIGEST.fullmatch(text)}


def end_record(
    end: Round, scores: Mapping[str, Mapping[str, Any]], best: Mapping[str, float], weights: Weights
) -> dict[str, Any]:
    """The end of a run.

    Args:
        end: its only exchange has the replies to the closing requests.
        scores: client -> model -> what the client measured of it.
        best: round and score of the best global model.
        weights: the last global model.
    """
    # Whatever closes a run is of the models after its last round.
    of_round = {}
    for models in scores.values():
        for measured in models.values():
            of_round.update(dict.fromkeys(measured, end.number - 1))
    return {
        "kind": "end",
        "scores": scores,
        "of_round": of_round,
        "missing": end.exchanges[0].missing,
        "notes": end.notes,
        **_not_used(end.exchanges),
        "facts": end.facts,
        "best": best,
        "model": digest_of(weights),
    }
