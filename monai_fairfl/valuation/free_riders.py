# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Finds free riders: clients whose data add nothing to what they receive, by angles and errors.

After FedCE (Jiang et al., CVPR 2023). The score finds a site whose update agrees with the step
while its own model scores otherwise than the received one. It does not find zeros, noise, copies or
replays, nor a site that reports the scores it likes. Guards look for the former
(:mod:`monai_fairfl.guards`), and what they found is the evidence beside the score. No statistic
verifies the latter.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from monai_fairfl.replies import cosine
from monai_fairfl.run.ledger import number_in
from monai_fairfl.run.records import factors_of_step

FORMS = ("product", "dissimilarity")

EVIDENCE = ("Empty", "Noise", "Replayed", "Copies")
"""Guards whose verdict says of an update that not every site that sent it has trained it."""


@dataclass(frozen=True)
class FreeRiders:
    """What :func:`free_rider_history` found.

    Args:
        rounds: numbers of the rounds that had all the measurements.
        scores: client -> raw score in each of these rounds, ``None`` where it had none.
        flagged: client -> number of the round in which its score was first flagged.
        evidence: client -> guard of :data:`EVIDENCE` -> rounds in which it gave a verdict, from the
            length of the update and its likeness to others and to earlier ones. It needs no score.

    >>> verdicts = {"B": [{"guard": "Copies"}]}
    >>> record = {"kind": "round", "round": 4, "aggregation": {}, "gram": None}
    >>> found = free_rider_history([{**record, "verdicts": verdicts}])
    >>> found.evidence, found.flagged
    ({'B': {'Copies': [4]}}, {})
    """

    rounds: list[int]
    scores: dict[str, list[float | None]]
    flagged: dict[str, int]
    evidence: dict[str, dict[str, list[int]]] = field(default_factory=dict)


def global_cosines(
    gram: ArrayLike, aggregation: Mapping[str, float], clients: Sequence[str]
) -> dict[str, float]:
    r"""client -> cosine between its update and the global one, :math:`\sum_j \rho_j \Delta_j`.

    It is 0 for a zero update.

    Args:
        gram: inner products of the updates, shape (N, N).
        aggregation: client -> weight :math:`\rho`, times the factor of its update where a method
            has one (CGSV's unit length); a client that is absent counts as 0.
        clients: in the order of the rows.

    >>> import numpy as np
    >>> cosines = global_cosines(np.eye(2), {"A": 0.5, "B": 0.5}, ["A", "B"])
    >>> {client: round(value, 4) for client, value in cosines.items()}
    {'A': 0.7071, 'B': 0.7071}
    """
    matrix = np.asarray(gram, dtype=np.float64)
    # Both updates as weighted sums of all updates, which is what the Gram matrix knows.
    step = np.array([aggregation.get(client, 0.0) for client in clients])
    return {client: cosine(matrix, own, step) for client, own in zip(clients, np.eye(len(clients)))}


def free_rider_scores(
    cosines: Mapping[str, float],
    error_global: Mapping[str, float],
    error_local: Mapping[str, float],
    form: str = "product",
) -> dict[str, float]:
    r"""How much a client looks like a free rider: high is suspicious.

    A client without images of its own worth training on (one image repeated, say) fits these
    perfectly, while the global model does not: its two errors differ widely. The paper gives no
    formula. ``"product"``, to the letter of its text:
    :math:`\cos(\Delta_i, G) \, |e_i^{glob} - e_i^{loc}|`. ``"dissimilarity"``:
    :math:`(1 - \cos(\Delta_i, G)) \, |e_i^{glob} - e_i^{loc}|`, as its appendix shows that a free
    rider's cosine is *low*; it separates better.

    Args:
        cosines: client -> cosine between its update and the global one, see :func:`global_cosines`.
        error_global: client -> 1 - Dice of the received global model on its validation data, in [0,
            1].
        error_local: client -> 1 - Dice of its own trained model on the same data, in [0, 1].
        form: ``"product"`` or ``"dissimilarity"``.

    Returns:
        client -> score; up to 1 and 2; a product is negative where the cosine is.

    Raises:
        KeyError: when the form is unknown, or a client lacks an error.

    >>> error_global, error_local = {"A": 0.15, "B": 0.60}, {"A": 0.10, "B": 0.05}
    >>> scores = free_rider_scores({"A": 0.7, "B": 0.3}, error_global, error_local)
    >>> {client: round(score, 4) for client, score in scores.items()}
    {'A': 0.035, 'B': 0.165}
    """
    scores = {}
    for client, value in cosines.items():
        angle = {"product": value, "dissimilarity": 1 - value}[form]
        scores[client] = angle * abs(error_global[client] - error_local[client])
    return scores


def flag_free_riders(
    scores_by_round: Sequence[Mapping[str, float]], factor: float = 5.0, rounds: int = 3
) -> dict[str, int]:
    """The clients whose score stands out in several rounds running.

    The threshold was fixed beforehand and is no result of tuning: a score above 5 times the median
    of the others', in 3 consecutive rounds; 5 is the distance to the next client that FedCE's
    example shows. The median is of absolute values, or negative products would make everybody else
    suspicious. Where it is 0 nobody stands out: in early rounds most models may score 0 both
    globally and locally. Honest clients whose images are unlike the others' score high too, in our
    experiments with most of the flags: a flag is a reason to ask, not a proof.

    Args:
        scores_by_round: client -> score, one mapping per round; a round without a client neither
            adds to its run of high scores nor ends it.
        factor: times the median of the others.
        rounds: consecutive rounds, at least 1.

    Returns:
        client -> index of the round in which it was first flagged; empty when nobody was.

    >>> flag_free_riders([{"A": 0.03, "B": 0.01, "C": 0.15}] * 3)
    {'C': 2}
    """
    running: dict[str, int] = {}
    flagged: dict[str, int] = {}
    for number, scores in enumerate(scores_by_round):
        for client, score in scores.items():
            others = [abs(value) for other, value in scores.items() if other != client]
            threshold = factor * median(others) if others else 0.0
            is_high = score > threshold > 0
            running[client] = running.get(client, 0) + 1 if is_high else 0
            if is_high and running[client] >= rounds:
                flagged.setdefault(client, number)
    return flagged


def free_rider_history(
    records: Iterable[Mapping[str, Any]],
    form: str = "product",
    factor: float = 5.0,
    rounds: int = 3,
) -> FreeRiders:
    """Scores and flags of a whole run, from its ledger.

    Args:
        records: of :func:`~monai_fairfl.run.ledger.read_ledger`. Rounds need the Gram
            matrix, weights of an average, and ``global_score`` and ``local_score`` of at least two
            clients (``Federation(evaluate=("global_score", "local_score"))``); others are skipped.
            With weights per layer, their mean over layers stands for the direction of the global
            update.
        form: as in :func:`free_rider_scores`.
        factor: as in :func:`flag_free_riders`.
        rounds: as in :func:`flag_free_riders`, counted over the rounds that are not skipped.

    Raises:
        KeyError: when the form is unknown.

    >>> record = {
    ...     "kind": "round",
    ...     "round": 4,
    ...     "gram": {"clients": ["A", "B"], "whole": [[1, 0], [0, 1]]},
    ...     "aggregation": {"A": 0.5, "B": 0.5},
    ...     "measurements": {
    ...         "A": {"global_score": 0.8, "local_score": 0.9},
    ...         "B": {"global_score": 0.1, "local_score": 0.95},
    ...     },
    ...     "details": {},
    ...     "verdicts": {},
    ... }
    >>> found = free_rider_history([record], rounds=1)
    >>> found.rounds, found.flagged, round(found.scores["B"][0], 3)
    ([4], {'B': 4}, 0.601)
    """
    # Only rounds in which at least two clients have a score.
    numbers: list[int] = []
    scores_by_round: list[dict[str, float]] = []
    evidence: dict[str, dict[str, list[int]]] = {}
    for record in records:
        if record.get("kind") != "round":
            continue
        for client, verdicts in sorted(record["verdicts"].items()):
            for guard in (verdict["guard"] for verdict in verdicts):
                if guard in EVIDENCE:
                    evidence.setdefault(client, {}).setdefault(guard, []).append(record["round"])
        scores = _record_scores(record, form)
        if len(scores) > 1:
            numbers.append(record["round"])
            scores_by_round.append(scores)

    clients = sorted({client for scores in scores_by_round for client in scores})
    histories = {client: [scores.get(client) for scores in scores_by_round] for client in clients}
    flagged = flag_free_riders(scores_by_round, factor, rounds)
    return FreeRiders(
        rounds=numbers,
        scores=histories,
        flagged={client: numbers[index] for client, index in flagged.items()},
        evidence=evidence,
    )


def _record_scores(record: Mapping[str, Any], form: str) -> dict[str, float]:
    """client -> score of one round; empty where the record lacks what is needed."""
    gram = record["gram"]
    if not record["aggregation"] or not gram:
        return {}
    if any(value is None for row in gram["whole"] for value in row):
        return {}  # an inner product was not finite
    # Direction of the global update, as weights of the clients' updates.
    step = factors_of_step(record["aggregation"], record["details"])
    cosines = global_cosines(gram["whole"], step, gram["clients"])

    errors = {}
    for name in ("global_score", "local_score"):
        sent = {client: number_in(of.get(name)) for client, of in record["measurements"].items()}
        errors[name] = {client: 1 - one for client, one in sent.items() if one is not None}
    error_global, error_local = errors["global_score"], errors["local_score"]
    known = error_global.keys() & error_local.keys()
    cosines = {client: value for client, value in cosines.items() if client in known}
    return free_rider_scores(cosines, error_global, error_local, form)
