# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""One round: what it asks of whom, and all that it has brought so far."""

from __future__ import annotations

import math
import random
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from monai_fairfl.errors import ConfigError, FederationError
from monai_fairfl.guards import Verdict
from monai_fairfl.messages import (
    Reply,
    Request,
    Weights,
    add_note,
    is_finite_or_unchanged,
    is_of_own_model,
    unsent_statistics,
)
from monai_fairfl.replies import Replies
from monai_fairfl.run.records import stated_digests
from monai_fairfl.server.facts import ByClient, Facts
from monai_fairfl.server.guarding import Verdicts
from monai_fairfl.server.settings import RunSettings
from monai_fairfl.strategies.base import RoundResult
from monai_fairfl.utils.random_state import seed_of


class TooFewClients(Exception):
    """An exchange that too few clients answered; the text names the missing ones, and why."""


class NotFinite(FederationError):
    """A round's model is not finite; the text names it, the tensor and the client."""


def drawn_clients(clients: Sequence[str], settings: RunSettings, number: int) -> list[str]:
    """The clients of round ``number``, sorted; drawn by the run's seed where not all take part."""
    everybody = sorted(clients)
    size = settings.clients_per_round
    if size is None or size >= len(everybody):
        return everybody
    generator = random.Random(seed_of(settings.seed, "sampling", number))
    return sorted(generator.sample(everybody, size))


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
        exchanges: the replies of each exchange, in order, as the strategy saw them.
        verdicts: client -> verdicts of the guards.
        digests: client -> SHA-256 of the update that arrived, as the client stated it; also of
            those that no strategy saw.
        notes: client -> what the server found or replaced in its replies.
        facts: client -> fact -> number, of those that became known in this round.
        result: of the strategy.

    >>> stamp = {"run": "first", "run_id": "", "ledger_head": ""}
    >>> round_ = Round(0, ["elm"], RunSettings(1), stamp)
    >>> [asked] = round_.stamped([Request("elm", "train", {})], ["global_score"])
    >>> asked.run, asked.measure, asked.id, round_.next_id
    ('first', ('global_score',), 0, 1)
    """

    number: int
    clients: Sequence[str]
    settings: RunSettings
    stamp: Mapping[str, str]
    withheld: Collection[str] = ()
    next_id: int = 0
    exchanges: list[Replies] = field(default_factory=list)
    verdicts: dict[str, list[Verdict]] = field(default_factory=dict)
    digests: dict[str, str] = field(default_factory=dict)
    notes: dict[str, str] = field(default_factory=dict)
    facts: ByClient = field(default_factory=dict)
    result: RoundResult = field(init=False)

    def stamped(
        self,
        requests: Sequence[Request],
        evaluate: Sequence[str] = (),
        training: Mapping[str, float] = {},
    ) -> list[Request]:
        """The requests of one exchange with what the federation adds to them.

        Args:
            requests: in the order of their ids.
            evaluate: measurements of the model that a client receives, for the first exchange, and
                of what it trains, for the first exchange in which it does.
            training: context of every training request, of the strategy's parts.

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
                for key, value in training.items():
                    if context.setdefault(key, value) != value:
                        raise ConfigError(
                            f"training has {key} {value:g}, and the strategy itself sends "
                            f"{context[key]:g}: leave {key} out of training"
                        )
            if self.settings.local_norm:
                context["local_norm"] = 1.0

            trains_first = trains and request.client not in have_trained
            due = []
            for name in evaluate:
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

    def noted(self, replies: Replies, facts: Facts) -> dict[str, str]:
        """client -> note on what just came; known facts replace what differs in it."""
        self.digests.update(stated_digests(replies))
        notes = facts.fix(replies)
        for reply in replies:
            unsent = unsent_statistics(replies.requests[reply.id], reply, replies.spec)
            if unsent:
                text = f"its reply lacks running statistics, such as {unsent[0]!r}: the average "
                add_note(notes, reply.client, text + "does without them; send Reply.buffers")
        for client, note in notes.items():
            add_note(self.notes, client, note)
        return notes

    def judged(self, replies: Replies, verdicts: Verdicts) -> Replies:
        """Add what the guards let pass.

        Raises:
            TooFewClients: where fewer than ``min_clients`` are left.
        """
        for client, of_client in verdicts.items():
            self.verdicts.setdefault(client, []).extend(of_client)
        present, least = len(replies.clients), self.settings.min_clients
        if present < least:
            asked = {request.client for request in replies.requests.values()}
            missing = [f"{client} ({why})" for client, why in sorted(replies.missing.items())]
            raise TooFewClients(
                f"{present} of {len(asked)} clients answered, min_clients is {least}; missing: "
                f"{', '.join(missing)}"
            )
        self.exchanges.append(replies)
        return replies


def require_finite(result: RoundResult, previous: Weights, local: Replies) -> None:
    """Refuse a round whose global model or rewards are not finite.

    Every update may be finite, and their average not: a sum or a scale overflows, above all in half
    precision. A constant buffer, such as a mask of -inf, may stay what it was.

    Args:
        result: of the strategy.
        previous: the global model before the round.
        local: the replies that trained.

    Raises:
        NotFinite: naming the model, the tensor and the client that most likely caused it.

    >>> import torch
    >>> bad = RoundResult({"w": torch.tensor([float("inf")])}, {}, {})
    >>> require_finite(bad, {"w": torch.zeros(1)}, Replies([], [], None))
    Traceback (most recent call last):
    ...
    monai_fairfl.server.round.NotFinite: the new global model is not finite in 'w'; ...
    """
    models = {"the new global model": result.weights}
    for client, model in (result.rewards or {}).items():
        models[f"the new model of {client}"] = model

    # Rewards share tensors with each other and with the global model.
    seen: set[int] = set()
    for title, model in models.items():
        for name, tensor in model.items():
            if id(tensor) in seen:
                continue
            seen.add(id(tensor))
            if not is_finite_or_unchanged(tensor, previous.get(name)):
                largest = {reply.client: _largest(reply, name) for reply in local}
                suspect = max(largest, key=lambda client: largest[client], default=None)
                raise NotFinite(
                    f"{title} is not finite in {name!r}; the largest entry there is of client "
                    f"{suspect!r}: look at that site's training"
                )


def _largest(reply: Reply, name: str) -> float:
    """The largest entry of one tensor of a client's update or buffers."""
    sent = {**(reply.buffers or {}), **(reply.update or {})}.get(name)
    if sent is None or not sent.numel():
        return 0.0
    entry = float(sent.double().abs().max())
    return math.inf if math.isnan(entry) else entry
