# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""One round: what it asks of whom, what it believes of the answers, and what it has brought."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from monai_fairfl.errors import ConfigError, FederationError
from monai_fairfl.guards import Guard, Verdict
from monai_fairfl.messages import (
    Estimate,
    Measurement,
    Request,
    add_note,
    all_finite,
    is_of_own_model,
)
from monai_fairfl.replies import Replies
from monai_fairfl.server.settings import RunSettings
from monai_fairfl.strategies.base import RoundResult
from monai_fairfl.utils.tensors import seed_of

COUNTS = {"num_samples": "samples", "num_cases": "cases"}
"""Field of a reply -> name of the fact, as the ledger has it. A count of 0 says nothing."""

DRAWN_DIFFERENCE = 0.2
"""Of the images that count: epochs may differ by less where a sampler draws how many they have."""

COUNTED_BY_MODEL = frozenset({"test_hd95"})
"""Measurements whose number of cases is no fact: MONAI's distance of an empty mask is none, so that
it depends on the model."""

ByClient = dict[str, dict[str, int]]
"""client -> fact -> number."""


Verdicts = Mapping[str, Sequence[Verdict]]
"""client -> the guards' verdicts on it, in the order of the guards."""


logger = logging.getLogger(__name__)


class TooFewClients(Exception):
    """An exchange that too few clients answered; the text names the missing ones, and why."""


class NotFinite(FederationError):
    """A round's model is not finite; the text names it and the tensor."""


@dataclass
class Round:
    """One try at a round, or at the end of a run, and what it has brought so far.

    Args:
        number: of the round, from 0; at the end, of the rounds that are done.
        clients: that are asked.
        settings: of the run.
        stamp: ``run``, ``run_id`` and ``ledger_head`` of every request.
        withheld: names of the tensors that are not sent: they stay each client's own.
        next_id: of the next request. Ids go on over the tries at a round, so that a late reply to
            a previous one answers no request: it may be of another model.
        evaluate: measurements that the federation adds to the strategy's.
        training: context of every training request, of the strategy's parts.
        exchanges: the replies of each exchange, in order, as the strategy saw them.
        verdicts: client -> verdicts of the guards.
        digests: client -> SHA-256 of the update that arrived, as the client stated it; also of
            those that no strategy saw.
        notes: client -> what the server found or replaced in its replies.
        facts: client -> fact -> number, of those that became known in this round.
        result: of the strategy.

    >>> stamp = {"run": "first", "run_id": "", "ledger_head": ""}
    >>> round_ = Round(0, ["elm"], RunSettings(1), stamp, evaluate=["global_score"])
    >>> [asked] = round_.stamped([Request("elm", "train", {})])
    >>> asked.run, asked.measure, asked.id, round_.next_id
    ('first', ('global_score',), 0, 1)
    """

    number: int
    clients: Sequence[str]
    settings: RunSettings
    stamp: Mapping[str, str]
    withheld: Collection[str] = ()
    next_id: int = 0
    evaluate: Sequence[str] = ()
    training: Mapping[str, float] = field(default_factory=dict)
    exchanges: list[Replies] = field(default_factory=list)
    verdicts: dict[str, list[Verdict]] = field(default_factory=dict)
    digests: dict[str, str] = field(default_factory=dict)
    notes: dict[str, str] = field(default_factory=dict)
    facts: ByClient = field(default_factory=dict)
    result: RoundResult = field(init=False)

    def stamped(self, requests: Sequence[Request]) -> list[Request]:
        """The requests of one exchange with what the federation adds to them.

        ``evaluate`` has measurements of the model that a client receives, for the first exchange,
        and of what it trains, for the first exchange in which it does.

        Args:
            requests: in the order of their ids.

        Raises:
            ConfigError: when the strategy itself sends another number than ``training``: the run's
                name would say what no client does.
        """
        earlier = [one for replies in self.exchanges for one in replies.requests.values()]
        have_trained = {one.client for one in earlier if one.task == "train"}
        asked = []
        for request in requests:
            trains = request.task == "train"
            context = dict(request.context)
            if trains:
                for key, value in self.training.items():
                    if context.setdefault(key, value) != value:
                        raise ConfigError(
                            f"training has {key} {value:g}, and the strategy itself sends "
                            f"{context[key]:g}: leave {key} out of training"
                        )
            if self.settings.local_norm:
                context["local_norm"] = 1.0

            trains_first = trains and request.client not in have_trained
            due = []
            for name in self.evaluate:
                needs_training = name == "train_loss" or is_of_own_model(name)
                is_due = trains_first if needs_training else not earlier
                if is_due:
                    due.append(name)
            weights = request.weights
            if self.withheld:
                weights = {name: weights[name] for name in weights if name not in self.withheld}
            asked.append(
                replace(
                    request,
                    weights=weights,
                    # Each name once: a strategy may ask for what the run asks for.
                    measure=tuple(dict.fromkeys([*due, *request.measure])),
                    context=context,
                    id=self.next_id,
                    round=self.number,
                    seed=seed_of(self.settings.seed, request.client, self.number),
                    **self.stamp,
                )
            )
            self.next_id += 1
        return asked


def require_finite(result: RoundResult) -> None:
    """Refuse a round whose global model or rewards are not finite.

    Every update may be finite, and their average not: a sum or a scale overflows, above all in half
    precision.

    Args:
        result: of the strategy.

    Raises:
        NotFinite: naming the model and the tensor.

    >>> import torch
    >>> bad = RoundResult({"w": torch.tensor([float("inf")])}, {}, {})
    >>> require_finite(bad)
    Traceback (most recent call last):
    ...
    monai_fairfl.server.round.NotFinite: the new model 'global' is not finite in 'w': ...
    """
    models = {"global": result.weights, **(result.rewards or {})}
    for title, model in models.items():
        for name, tensor in model.items():
            if not all_finite(tensor):
                raise NotFinite(
                    f"the new model {title!r} is not finite in {name!r}: look at the training"
                )


# ---- what a client says of itself


class Facts:
    """The sizes of the clients' data sets, which do not change in a run.

    Weights follow from images, pooled scores from cases. Nobody but the site can count them. So
    each number counts as the site first reported it, or as the run's settings declare it; a later
    one that differs changes nothing, and is noted. Images of an epoch are noted only from a
    difference of :data:`DRAWN_DIFFERENCE` on: a sampler may draw their number.

    A fact is ``"samples"``, ``"cases"``, or ``"n of MEASUREMENT"`` and ``"n of MEASUREMENT: PART"``
    for the observations behind an :class:`~monai_fairfl.messages.Estimate`, but for the
    measurements of :data:`COUNTED_BY_MODEL`.

    Args:
        declared: client -> images of one local epoch, from the run's settings.
        records: of the run's ledger, where it goes on.

    >>> Facts({"A": 50}, [{"round": 0, "facts": {"B": {"samples": 30}}}]).known
    {'A': {'samples': 50}, 'B': {'samples': 30}}
    """

    def __init__(self, declared: Mapping[str, int] = {}, records: Iterable[Mapping[str, Any]] = ()):
        self.known: ByClient = {client: {"samples": n} for client, n in declared.items()}
        for record in records:
            for client, found in (record.get("facts") or {}).items():
                self.known.setdefault(client, {}).update(found)
        # What no record has yet.
        self.learned: ByClient = {}

    def fix(self, replies: Replies) -> dict[str, str]:
        """Put the known numbers in the place of those that differ, and remember new ones.

        Args:
            replies: of one exchange, changed in place. They are sorted, so that of several answers
                of one client the same one counts first, whichever arrived first.

        Returns:
            client -> note that names each number which was replaced and differs by more than an
            epoch's draw.
        """
        notes: dict[str, str] = {}
        for position, reply in enumerate(replies):
            client = reply.client
            texts: list[str] = []
            changed: dict[str, Any] = {"measurements": {}}
            for name, value in reply.measurements.items():
                changed["measurements"][name] = self.fixed(client, name, value, texts)
            if reply.update is not None:
                for field, fact in COUNTS.items():
                    reported = getattr(reply, field)
                    if reported:
                        changed[field] = self._counted(client, fact, reported, texts)
            replies[position] = replace(reply, **changed)
            for text in texts:
                add_note(notes, client, text)
        return notes

    def fixed(self, client: str, name: str, value: Measurement, texts: list[str]) -> Measurement:
        """A measurement with the known numbers of observations; new ones become known.

        Args:
            client: that sent it.
            name: of the measurement, and of its part where it is one.
            value: that was sent.
            texts: gets a text for each number that was replaced.
        """
        if name in COUNTED_BY_MODEL:
            return value
        if isinstance(value, Mapping):
            return {
                part: self.fixed(client, f"{name}: {part}", number, texts)  # type: ignore[misc]
                for part, number in value.items()
            }
        if isinstance(value, Estimate):
            return replace(value, n=self._counted(client, f"n of {name}", value.n, texts))
        return value

    def _counted(self, client: str, fact: str, reported: int, texts: list[str]) -> int:
        """The number that counts, which is the reported one where none is known."""
        facts = self.known.setdefault(client, {})
        if fact not in facts:
            facts[fact] = reported
            self.learned.setdefault(client, {})[fact] = reported
        known = facts[fact]
        drawn = DRAWN_DIFFERENCE * known if fact == "samples" else 0
        if known != reported and abs(reported - known) >= drawn:
            texts.append(
                f"{fact} {reported} reported, {known} counts, as it was first reported or is set: "
                "where the site's data changed, begin a new run"
            )
        return known


# ---- the guards


def guarded(
    replies: Replies, guards: Sequence[Guard], each_alone: bool = False
) -> tuple[Replies, Verdicts]:
    """``replies`` as the guards let them pass, and client -> verdicts.

    Only updates are guarded: replies that measured pass.

    Args:
        replies: of one exchange.
        guards: in order.
        each_alone: judge each update as if there were no others, for a strategy that shares
            nothing.
    """
    passed = only_trained(replies)
    clients = {reply.id: reply.client for reply in passed}
    found: list[tuple[str, Verdict]] = []
    for guard in guards:
        # Each guard sees the replies as the previous guards let them pass.
        if not passed:
            break
        factors, quarantined, groups = {}, {}, set()
        for id, verdict in _verdicts_of(guard, passed, each_alone).items():
            found.append((clients[id], verdict))
            if verdict.action == "clip":
                factors[id] = verdict.factor
            if verdict.action == "quarantine":
                quarantined[id] = f"quarantined: {verdict.reason}"
            if verdict.action == "share":
                groups.add(verdict.group)
        passed = passed.after(factors, sorted(groups)).without(quarantined)

    # A client whose copies were quarantined shares with nobody.
    sharing = {client for group in passed.groups for client in group}
    counted: dict[str, list[Verdict]] = {}
    for client, one in found:
        if one.action != "share" or client in sharing:
            counted.setdefault(client, []).append(one)
            logger.warning("client %s: %s by %s: %s", client, one.action, one.guard, one.reason)
    measured = [reply for reply in replies if reply.update is None]
    if measured:
        passed = passed.rebuilt([*passed, *measured], passed.missing)
    return passed, counted


def only_trained(replies: Replies) -> Replies:
    """Those of ``replies`` that carry an update."""
    trained = [reply for reply in replies if reply.update is not None]
    if len(trained) == len(replies):
        return replies
    return replies.rebuilt(trained, replies.missing)


def _verdicts_of(guard: Guard, replies: Replies, each_alone: bool) -> dict[int, Verdict]:
    """Id of a reply -> the guard's verdict, with its name.

    Of clients whose updates are nearly the same, each is judged beside the others, and without its
    copies: these must not make it look usual.
    """
    # The clients that the guard sees, and those whose verdict counts.
    looks: list[tuple[set[str], set[str]]] = [({client}, {client}) for client in replies.clients]
    if not each_alone:
        firsts = set(replies.clients) - {client for group in replies.groups for client in group[1:]}
        looks = [(firsts, firsts)]
        for group in replies.groups:
            looks += [(firsts - set(group) | {client}, {client}) for client in group[1:]]

    clients = {reply.id: reply.client for reply in replies}
    found: dict[int, Verdict] = {}
    for seen, judged in looks:
        unseen = {id: "" for id, client in clients.items() if client not in seen}
        for id, verdict in guard.check(replies.without(unseen)).items():
            if clients[id] in judged:
                found[id] = replace(verdict, guard=type(guard).__name__)
    return {id: found[id] for id in sorted(found)}
