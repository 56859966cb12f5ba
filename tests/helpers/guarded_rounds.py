# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Rounds of given updates in a federation with guards, and what its ledger says of them."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from helpers.fixed_sites import Played, federate
from helpers.updates import SPEC, START, statistics_of, tensors_of

from monai_fairfl import Strategy
from monai_fairfl.guards import Guard
from monai_fairfl.strategies import FedAvg

Updates = Mapping[str, np.ndarray]


def guarded_rounds(
    guards: Guard | Sequence[Guard],
    *rounds: Updates,
    strategy: Strategy | None = None,
    buffers: Mapping[str, Mapping[str, torch.Tensor]] | None = None,
    samples: Mapping[str, int] | None = None,
    start: Mapping[str, torch.Tensor] = START,
) -> Played:
    """Federate sites with these updates, client -> flat vector, of a model with statistics.

    Args:
        guards: of the federation.
        rounds: client -> flat update, for each round.
        strategy: FedAvg with equal weights where it is not given.
        buffers: client -> its statistics; usual ones where a client is not named.
        samples: client -> images.
        start: the first model.
    """
    names = {name for of_round in rounds for name in of_round}
    fields: dict[str, dict[str, Any]] = {}
    for name in names:
        sent = dict((buffers or {}).get(name, statistics_of()))
        fields[name] = {"buffers": sent, "num_samples": (samples or {}).get(name, 100)}
    several = [guards] if isinstance(guards, Guard) else list(guards)
    given = []
    for of_round in rounds:
        given.append({name: tensors_of(np.asarray(one, float)) for name, one in of_round.items()})
    with tempfile.TemporaryDirectory() as folder:
        return federate(
            strategy or FedAvg("uniform"),
            Path(folder),
            given,
            start=start,
            spec=SPEC,
            fields=fields,
            guards=several,
        )


def verdicts(played: Played) -> dict[str, list[tuple[str, str]]]:
    """client -> guard and action of each verdict in the last round."""
    found = {}
    for client, of_client in played.rounds[-1]["verdicts"].items():
        found[client] = [(one["guard"], one["action"]) for one in of_client]
    return found


def verdict(played: Played, client: str) -> Mapping[str, Any]:
    """The only verdict on a client in the last round."""
    [found] = played.rounds[-1]["verdicts"][client]
    of_client: Mapping[str, Any] = found
    return of_client


def lengths(played: Played) -> dict[str, float]:
    """client -> length of the update that the strategy saw."""
    gram = played.rounds[-1]["gram"]
    return dict(zip(gram["clients"], np.sqrt(np.diag(np.array(gram["whole"]))), strict=True))
