# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""What the ledger records: the opening of a run, and each round."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from monai_fairfl.errors import FairFLError, FederationError
from monai_fairfl.guards import Verdict
from monai_fairfl.protocol.model_spec import ModelSpec
from monai_fairfl.protocol.replies import Replies
from monai_fairfl.protocol.values import Weights
from monai_fairfl.run_folder.ledger import digest_of
from monai_fairfl.strategies.base import RoundResult, Strategy


def opening_record(
    run: str,
    strategy: Strategy,
    clients: Sequence[str],
    spec: ModelSpec,
    weights: Weights,
    settings: Mapping[str, Any],
) -> dict[str, Any]:
    """What a run began with; a resumed run must begin with the same.

    Args:
        run: the run's name.
        strategy: that was started.
        clients: of the run.
        spec: the model's tensors.
        weights: the initial model.
        settings: of the run, plain JSON, as ``RunSettings.opening`` gives them.
    """
    return {
        "kind": "start",
        "run": run,
        "strategy": type(strategy).__name__,
        "name": strategy.name,
        "clients": list(clients),
        **settings,
        "parameters": sum(weights[name].numel() for name in spec.parameters),
        "layers": list(dict.fromkeys(spec.layers.values())),
        "model": digest_of(weights),
    }


def check_same(
    run_dir: Path,
    recorded: Mapping[str, Any],
    now: Mapping[str, Any],
    error: type[FairFLError] = FederationError,
    hint: str = "",
) -> None:
    """That a run which is resumed was begun with the settings of now: a run is one experiment.

    Args:
        run_dir: of the run.
        recorded: settings that it was begun with.
        now: those of now; the run's name and the clients may differ.
        error: class of the error.
        hint: added to its message.

    Raises:
        FairFLError: when they differ; it names the setting and both values.
    """
    for key, value in now.items():
        if key not in ("run", "clients") and recorded.get(key) != value:
            raise error(
                f"{run_dir} was begun with {key} = {recorded.get(key)!r}, now it is {value!r}: "
                f"resume with the same settings, or choose another run_dir{hint}"
            )


def training_settings(config: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """What of a run's ``config.json`` decides how its sites train.

    Args:
        config: as :class:`~monai_fairfl.bundle.federation.BundleFederation` writes it; what is not in it is
            left out.

    Returns:
        ``"plain"`` values; ``"overrides"`` by key; ``"files"`` of the bundle that are used, name ->
        SHA-256; ``"sites"``, each site's own overrides; ``"data"``, each site's folder.

    >>> training_settings({"local_epochs": 4, "overrides": {"size": [64, 64]}})["overrides"]
    {'size': [64, 64]}
    """
    used = [Path(file).name for file in config.get("config") or ()]
    files = config.get("files") or {}
    sections = {
        section: dict(config.get(section) or {}) for section in ("overrides", "sites", "data")
    }
    plain = {key: config.get(key) for key in ("bundle", "config", "local_epochs", "amp")}
    return {
        "plain": plain,
        "files": {name: files[name] for name in used if name in files},
        **sections,
    }


def training_of(exchanges: Sequence[Replies]) -> Replies:
    """Of a round's exchanges the first that trained: its replies carry updates. Where none did, the
    first.
    """
    trained = (
        replies for replies in exchanges if all(reply.update is not None for reply in replies)
    )
    return next(trained, exchanges[0])


def trained_by(
    records: Sequence[Mapping[str, Any]], clients: Sequence[str], per_round: int | None
) -> bool:
    """Whether just these clients trained a run's model: nobody else came, nobody left, none was
    missing in a round.

    Args:
        records: of the run's ledger.
        clients: of whom it is asked.
        per_round: how many of them a round samples; ``None``: all.

    >>> rounds = [{"kind": "round", "clients": ["A", "B"], "missing": {}}]
    >>> run = [{"kind": "start", "clients": ["A", "B"]}, *rounds]
    >>> trained_by(run, ["A", "B"], None), trained_by(run, ["A"], None)
    (True, False)
    """
    size = min(len(clients), per_round or len(clients))
    return set(records[0]["clients"]) == set(clients) and all(
        len(record["clients"]) == size
        and set(record["clients"]) <= set(clients)
        and not record["missing"]
        for record in records
        if record["kind"] == "round"
    )


def round_record(
    number: int,
    clients: Sequence[str],
    result: RoundResult,
    exchanges: Sequence[Replies],
    verdicts: Mapping[str, Verdict],
) -> dict[str, Any]:
    """One round: who was asked and who answered, what each measured, the Gram matrix, weights and
    contributions.

    ``global_score`` is of the model received in this round, which is the result of the round
    before. Scores of the models of coalitions are none of a client's own: what a method makes of
    them is in ``details``.
    """
    local = training_of(exchanges)
    measured: dict[str, dict[str, Any]] = {}
    not_finite: dict[str, list[str]] = {}
    for replies in exchanges:
        asked = Counter(request.client for request in replies.requests.values())
        for reply in replies:
            # A client that was asked more than once measured several models, such as those of
            # coalitions.
            if asked[reply.client] == 1:
                measured.setdefault(reply.client, {}).update(reply.measurements)
            if reply.id in replies.not_finite:
                not_finite.setdefault(reply.client, []).extend(replies.not_finite[reply.id])
    trained = all(reply.update is not None for reply in local)
    return {
        "kind": "round",
        "round": number,
        "clients": list(clients),
        "missing": {
            client: reason for replies in exchanges for client, reason in replies.missing.items()
        },
        "guards": {
            client: f"{verdict.action}: {verdict.reason}" for client, verdict in verdicts.items()
        },
        "aggregation": result.aggregation,
        "contributions": result.contributions,
        "details": result.details,
        "notes": result.notes,
        "measurements": measured,
        "not_finite": not_finite,
        "samples": {reply.client: reply.num_samples for reply in local},
        "cases": {reply.client: reply.num_cases for reply in local},
        "steps": {reply.client: reply.num_steps for reply in local},
        "labelled": {reply.client: list(reply.labelled) for reply in local if reply.labelled},
        "gram": (
            {"clients": local.clients, "whole": local.geometry.gram.tolist()} if trained else None
        ),
        "model": digest_of(result.weights),
        "rewards": {client: digest_of(model) for client, model in (result.rewards or {}).items()},
    }
