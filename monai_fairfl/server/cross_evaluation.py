# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Cross-evaluation: what each site's update is worth on the images of others.

No report of a site counts for the site itself. After a round every site scores the model of all
others together, and then the same model without two or three of them. How much it loses is what
these were worth to the judge. Which sites are left out together changes from judge to judge and
from round to round, so that :mod:`monai_fairfl.valuation.cross_evaluation` can tell them apart.

What a judge may infer bounds what it is sent: never a model from which it could compute the update
of one other site. It knows its own update and the next global model, so leaving out one other
site, alone or together with the judge's own, would tell. Nor does any site judge where sites
continue from models of their own, whose mean is the next global model: that is a further sum of the
same updates, with other weights, and two sums over one group may tell. See ``SECURITY.md``.

The server judges too where it has images of its own. It has all updates, so it leaves out one site
at a time.
"""

from __future__ import annotations

import logging
import math
import random
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from monai_fairfl.errors import in_words
from monai_fairfl.protocol.averages import Aggregation, is_by_layer
from monai_fairfl.protocol.messages import Measure, Request
from monai_fairfl.protocol.replies import Replies
from monai_fairfl.protocol.values import Weights, value_of
from monai_fairfl.strategies.base import RoundResult, Strategy
from monai_fairfl.utils.random_state import seed_of

logger = logging.getLogger(__name__)

LEAST_SITES = 5
"""Four others make two groups of two. With fewer, one site's update could be computed."""

ServerScore = Callable[[Weights], float]
"""Mean Dice of a model on images of the server's own."""


@dataclass(frozen=True)
class Question:
    """A model to score.

    Args:
        judge: who scores it.
        without: clients whose updates are not in it; the judge's own never is.
    """

    judge: str
    without: tuple[str, ...]


@dataclass
class CrossEvaluation:
    """What was measured after one round, as the ledger has it.

    Args:
        sites: judge -> its scores, each with the clients that the model was ``"without"``.
        server: the same of the server.
        together: client -> the clients that share its weight, since their updates are the same.
        missing: judge -> why it has no scores.
        skipped: why the sites judged nothing; empty where they did.
    """

    sites: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    server: list[dict[str, Any]] = field(default_factory=list)
    together: dict[str, list[str]] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)
    skipped: str = ""


def groups_of(clients: Sequence[str], seed: int) -> list[tuple[str, ...]]:
    """Deal clients out into groups of two; the last one has three where their number is odd.

    Args:
        clients: at least two.
        seed: of the order in which they are dealt out.

    >>> groups_of(["A", "B", "C", "D", "E"], seed=1)
    [('C', 'D'), ('A', 'B', 'E')]
    """
    order = sorted(clients)
    random.Random(seed).shuffle(order)
    groups = []
    while order:
        size = 3 if len(order) == 3 else 2
        groups.append(tuple(sorted(order[:size])))
        order = order[size:]
    return groups


def questions_of(
    judges: Sequence[str], weighted: Sequence[str], seed: int, number: int
) -> list[list[Question]]:
    """What every judge is asked, in exchanges: the k-th model of each judge goes out together.

    Args:
        judges: clients that trained in this round.
        weighted: those of them whose updates are part of the model.
        seed: of the run.
        number: of the round.

    Returns:
        Nothing where a judge has fewer than four others.
    """
    exchanges: list[list[Question]] = []
    for judge in sorted(judges):
        others = [client for client in weighted if client != judge]
        if len(others) < LEAST_SITES - 1:
            continue
        own = (judge,)
        to_score = [Question(judge, own)]
        for group in groups_of(others, seed_of(seed, f"cross-evaluation/{judge}", number)):
            to_score.append(Question(judge, own + group))
        for place, question in enumerate(to_score):
            if place == len(exchanges):
                exchanges.append([])
            exchanges[place].append(question)
    return exchanges


def start_of_step(strategy: Strategy, local: Replies, result: RoundResult) -> Weights:
    r"""The model w that the steps of a round were added to.

    Mostly this is the global model, which all clients started from. Where they started from models
    :math:`w_i` of their own, it is the mean of all of these with the round's weights,
    :math:`w = \sum_i \rho_i w_i`, unless the strategy adds the steps to the global model
    nevertheless, as CGSV does.

    Args:
        strategy: with the global model before the round.
        local: the replies that were averaged.
        result: of the round.
    """
    if result.start is not None:
        return result.start
    if not result.aggregation:
        # Nothing was averaged, as in Standalone.
        return strategy.weights
    return local.mean_start(result.aggregation)


def model_without(
    strategy: Strategy,
    local: Replies,
    result: RoundResult,
    start: Weights,
    without: Sequence[str],
) -> Weights:
    r"""The round's model less some clients' parts of the step.

    .. math:: w + \sum_{i \notin L} \rho_i s_i \Delta_i

    The start w does not depend on L, also where it is the mean of models of the clients' own: what
    these brought in earlier rounds is not judged again.

    With the round's own weights :math:`\rho` and scales s, and none made larger in the place of
    those left out, what a group is worth is nearly the sum of what its sites are. And a judge that
    has the next global model learns the sums over the groups that it is asked about, and no other
    combination. Buffers are those of the round's model.

    Args:
        strategy: whose policy the buffers have.
        local: the replies that were averaged.
        result: of the round.
        start: w, see :func:`start_of_step`.
        without: L.
    """
    # Left out by their scales, while all weights stay: where some sites do not label a class, the
    # weights of its labellers follow from them.
    scales = dict(result.details.get("scale") or dict.fromkeys(local.clients, 1.0))
    scales.update(dict.fromkeys(without, 0.0))
    moved = local.average(result.aggregation, strategy.buffers, start, scales)
    model = dict(result.weights)
    for name in local.matrix.columns:
        model[name] = moved[name]
    return model


class CrossEvaluator:
    """Asks the judges after a round.

    Args:
        strategy: of the run.
        seed: of the run.
        by_sites: whether the sites judge.
        server_score: scores a model on the server's images; ``None``: the server has none.
    """

    def __init__(
        self, strategy: Strategy, seed: int, by_sites: bool, server_score: ServerScore | None
    ):
        self.strategy = strategy
        self.seed = seed
        self.by_sites = by_sites
        self.server_score = server_score

    def of_round(
        self, number: int, local: Replies, result: RoundResult, together: Mapping[str, list[str]]
    ) -> Generator[list[Request], Replies, CrossEvaluation]:
        """Evaluate one round; like a strategy's, it yields requests and is sent the replies.

        Args:
            number: of the round.
            local: the replies that were averaged.
            result: of the round.
            together: client -> the clients that share its weight.
        """
        found = CrossEvaluation(together=dict(together))
        start = start_of_step(self.strategy, local, result)
        if self.by_sites:
            yield from self._ask_sites(number, local, result, start, found)
        if self.server_score is not None:
            for without in [(), *((client,) for client in local.clients)]:
                model = model_without(self.strategy, local, result, start, without)
                score = _usable_score(self.server_score, model, without, number)
                if score is not None:
                    found.server.append({"without": list(without), "score": score})
        return found

    def _ask_sites(
        self,
        number: int,
        local: Replies,
        result: RoundResult,
        start: Weights,
        found: CrossEvaluation,
    ) -> Generator[list[Request], Replies, None]:
        weighted, found.skipped = _weighted_clients(local, result.aggregation)
        if not found.skipped and result.start is None and (result.rewards or self.strategy.rewards):
            found.skipped = "the sites have models of their own: one's update could be computed"
        if found.skipped:
            return
        for questions in questions_of(local.clients, weighted, self.seed, number):
            requests = []
            for question in questions:
                model = model_without(self.strategy, local, result, start, question.without)
                requests.append(Measure(question.judge, model, ("score",)))
            replies = yield requests

            found.missing.update(replies.missing)
            without_of = {question.judge: question.without for question in questions}
            for reply in replies:
                if "score" not in reply.measurements:
                    why = replies.dropped.get(reply.id, {}).get("score", "it sent none")
                    found.missing[reply.client] = f"no usable score: {why}"
                    continue
                score = value_of(reply.measurements["score"])
                entry = {"without": list(without_of[reply.client]), "score": score}
                found.sites.setdefault(reply.client, []).append(entry)


def _usable_score(
    server_score: ServerScore, model: Weights, without: Sequence[str], number: int
) -> float | None:
    """The server's score of a model; ``None``, with a warning, where it gives none that counts.

    Like a site that does not answer, a server that cannot judge does not end the round.
    """
    try:
        score = float(server_score(model))
    except Exception as error:  # whatever it raises, such as of an image that cannot be read
        problem = f"failed ({in_words(error)})"
    else:
        if math.isfinite(score):
            return score
        problem = f"is {score}"
    of_what = "of all" if not without else f"without {without[0]}"
    logger.warning(
        "round %d: server_score of the model %s %s: this score does not count",
        number + 1,
        of_what,
        problem,
    )
    return None


def _weighted_clients(local: Replies, aggregation: Aggregation) -> tuple[list[str], str]:
    """The clients whose updates are in the model; and why no site may judge the round, if so.

    What leaves a site's part of the model alone in a difference of two models would tell it to the
    judge: a partner in a group without weight, or without the same labels.
    """
    layers: list[Mapping[str, float]] = [aggregation]  # type: ignore[list-item]
    if is_by_layer(aggregation):
        layers = list(aggregation.values())
    weighted = []
    for reply in local:
        has_weight = [weights.get(reply.client, 0.0) > 0 for weights in layers]
        if all(has_weight):
            weighted.append(reply.client)
        elif any(has_weight):
            return [], f"{reply.client} has weight in some layers only: its part could be computed"
        if not all(reply.labelled):
            return [], f"{reply.client} does not label every class: others' rows could be computed"
    if len(weighted) < LEAST_SITES:
        return [], f"{len(weighted)} sites have weight, and {LEAST_SITES} are needed"
    return weighted, ""
