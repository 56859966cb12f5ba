# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""What a server takes of a reply: its form, its counts, and measurements in their range."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from helpers.fixed_sites import federate, vectors

from monai_fairfl import Estimate, Measure, ModelSpec, Reply, Request, Strategy
from monai_fairfl.messages import MEASUREMENTS
from monai_fairfl.replies import uniform
from monai_fairfl.strategies import FedAvg, Rounds

SPEC = ModelSpec(("b", "w"), {}, ("count", "mean"), {"b": "fc", "w": "fc"}, ("fc", 0))
UPDATE = {"w": torch.ones(2, 3), "b": torch.ones(2)}
BUFFERS = {"mean": torch.zeros(2), "count": torch.tensor(1)}

HOSTILE: dict[str, tuple[dict[str, Any], str]] = {
    "id": ({"id": 10_000}, "10000"),
    "an id of many lines": ({"id": "9\n" * 2000}, "9 9"),
    "run": ({"run": "old"}, "old"),
    "error": ({"error": "disk full"}, "disk full"),
    "no update": ({"update": None}, "update"),
    "a parameter less": ({"update": {"w": torch.ones(2, 3)}}, "'b'"),
    "another shape": ({"update": {**UPDATE, "w": torch.ones(3, 2)}}, "'w'.*3, 2.*2, 3"),
    "whole numbers": ({"update": {**UPDATE, "b": torch.ones(2).long()}}, "'b'.*int64"),
    "without data": (
        {"buffers": {**BUFFERS, "mean": torch.ones(2, device="meta")}},
        "'mean'.*data",
    ),
    "no images": ({"num_samples": 0}, "num_samples"),
    "a very long lie": ({"num_samples": 10**5000}, "num_samples"),
    "steps": ({"num_steps": -1}, "num_steps"),
    "labels of other classes": ({"labelled": (True, False, True)}, "labelled"),
}
"""Name of a site -> what it sends in place of a field, and a word of the reason."""


def changed(fields: dict[str, Any], request: Request, reply: Reply) -> Reply:
    return reply if reply.update is None else replace(reply, **fields)


def test_a_malformed_reply_is_refused_with_the_reason_and_the_others_go_on(tmp_path: Path) -> None:
    names = [*HOSTILE, "honest", "without buffers"]
    faults = {name: partial(changed, fields) for name, (fields, _) in HOSTILE.items()}
    start = {"w": torch.zeros(2, 3), "b": torch.zeros(2), **BUFFERS}
    given = {name: {"buffers": BUFFERS} for name in names}
    given["without buffers"] = {}
    strategy = FedAvg()
    updates = [dict.fromkeys(names, UPDATE)]
    played = federate(
        strategy, tmp_path, updates, start=start, spec=SPEC, fields=given, faults=faults
    )
    [record] = played.rounds
    assert set(record["missing"]) == set(HOSTILE)
    for name, (_, words) in HOSTILE.items():
        reason = record["missing"][name]
        assert len(reason) < 2000 and reason.isprintable()
        assert re.search(words, reason)
    assert record["aggregation"] == {"honest": 0.5, "without buffers": 0.5}
    assert strategy.weights["w"].tolist() == [[1.0] * 3] * 2


# ---- measurements


class Asking(Strategy):
    """Asks everybody for some measurements, and averages plainly."""

    def __init__(self, names: Sequence[str] = ("score",)):
        self.names = tuple(names)

    def round(self, clients: Sequence[str]) -> Rounds:
        local = yield self.train(clients)
        yield [Measure(client, self.weights, self.names) for client in clients]
        return self.finish(local, uniform(local), uniform(local))


def taken(
    folder: Path,
    sent: dict[str, dict[Any, Any]],
    names: Sequence[str] = ("score",),
) -> tuple[dict[str, set[str]], dict[str, set[str]], dict[str, dict[str, str]]]:
    """client -> names of what was taken, was no number, and was dropped (with the reason).

    Args:
        folder: of the run.
        sent: client -> whatever it answers to the request to measure.
        names: that are asked for.
    """

    def measuring(of_client: dict[Any, Any], request: Request, reply: Reply) -> Reply:
        if reply.update is not None or request.context.get("ended"):
            return reply
        # The classes that a measuring reply names count for nothing.
        return replace(reply, measurements=of_client, labelled=5)  # type: ignore[arg-type]

    faults = {client: partial(measuring, found) for client, found in sent.items()}
    updates = [vectors(dict.fromkeys([*sent, "zoe"], [1.0]))]
    [record] = federate(Asking(names), folder, updates, faults=faults).rounds
    json.dumps(record, allow_nan=False)
    usable = {client: set(found) for client, found in record["measurements"].items()}
    not_finite = {client: set(found) for client, found in record["not_finite"].items()}
    return usable, not_finite, {client: dict(r) for client, r in record["dropped"].items()}


def test_every_measurement_is_taken_at_its_limits_and_dropped_beyond(tmp_path: Path) -> None:
    inside: dict[str, Any] = {}
    beyond: dict[str, Any] = {}
    for number, (name, entry) in enumerate(MEASUREMENTS.items()):
        allowed = entry.range
        width = min(allowed.most - allowed.least, 100.0)
        inside[name] = (allowed.least, allowed.most, allowed.most + 1e-7 * width)[number % 3]
        out = allowed.least - 1e-5 * width if number % 2 else allowed.most + 1e-5 * width
        beyond[name] = (out, Estimate(out), {"mean": allowed.most, "gland": out})[number % 3]
    usable, _, dropped = taken(tmp_path, {"A": inside, "B": beyond}, tuple(MEASUREMENTS))
    assert usable["A"] == set(inside) and "A" not in dropped
    assert usable["B"] == set() and set(dropped["B"]) == set(beyond)


MALFORMED: dict[str, Any] = {
    "infinite": Estimate(math.inf),
    "one of a mapping": {"mean": 0.5, "cup": math.nan},
    "text": "0.5",
    "none": None,
    "without a mean": {"gland": 0.5},
    "too large": 10**400,
    "of a mapping": Estimate({"mean": 0.5}),  # type: ignore[arg-type]
    "error below 0": Estimate(0.5, -0.1, 3),
    "of half a case": Estimate(0.5, None, 2.5),  # type: ignore[arg-type]
}
FINE: dict[str, Any] = {
    "with cases": Estimate(1, 0.1, 3),
    "mapping": {"mean": Estimate(0.5), "gland": 1},
}


def test_what_is_no_number_estimate_or_mapping_with_a_mean_is_not_used(tmp_path: Path) -> None:
    sent = {name: {"score": value} for name, value in {**MALFORMED, **FINE}.items()}
    usable, not_finite, dropped = taken(tmp_path, sent)
    assert set(not_finite) == set(MALFORMED) and not dropped
    for name in sent:
        assert usable[name] == (set() if name in MALFORMED else {"score"}), name


def test_names_and_numbers_of_values_are_bounded(tmp_path: Path) -> None:
    many = {str(number): 0.5 for number in range(20_000)}
    refused: dict[str, dict[Any, Any]] = {
        "odd name": {"score": 0.5, "a\nb\x1b[31m\ud800": 0.5},
        "odd part": {"score": {"mean": 0.5, "a\nb": 0.5}},
        "bomb": {"score": {"mean": 0.5, **many}},
        "many": {"score": 0.5, **many},
    }
    sent = {
        **refused,
        "unasked": {"score": 0.5, "accuracy": 0.9},
        "endless": {"score": Estimate(0.5, 0.1, 10**400)},
    }
    usable, _, dropped = taken(tmp_path, sent)
    assert not any(usable[name] for name in (*refused, "endless"))
    assert usable["unasked"] == {"score"} and set(dropped["unasked"]) == {"accuracy"}
