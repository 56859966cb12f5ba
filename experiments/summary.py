# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""What one finished run says, small enough to be committed."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from monai_fairfl.run_folder.ledger import number_in, read_ledger
from monai_fairfl.utils.files import read_state_dict
from monai_fairfl.utils.spreadsheets import read_csv_text
from monai_fairfl.valuation.free_riders import FORMS, free_rider_history

__all__ = ["summary"]

Record = Mapping[str, Any]
BY_LAYER = ("cka", "feature_cosine")


def summary(run_dir: Path, keep: Sequence[str]) -> dict[str, Any]:
    """Test scores of every case, the course of every round, and the closing measurements of one
    run.

    Args:
        run_dir: a finished run.
        keep: measurements of every round, ``"free_riders"`` for the scores of FedCE's detection,
            details of the last round's record. Of one value per layer the mean of the last ten
            rounds is kept.
    """
    records = read_ledger(run_dir / "ledger.jsonl")
    rounds = [record for record in records if record["kind"] == "round"]
    clients, end = records[0]["clients"], records[-1]
    last = rounds[-1]["aggregation"]
    by_layer = any(isinstance(weight, Mapping) for weight in last.values())
    found: dict[str, Any] = {
        "name": records[0]["name"],
        "samples": rounds[-1]["samples"],
        **_tests(run_dir, clients, len(rounds)),
        "closing": {site: _numbers(end["scores"][site]) for site in clients},
        "best": end["best"],
        "contributions": _series(
            rounds, clients, lambda record, site: number_in(record["contributions"].get(site))
        ),
        "aggregation": (
            None
            if by_layer
            else _series(rounds, clients, lambda r, site: r["aggregation"].get(site))
        ),
        "model": end["model"],
    }
    for name in keep:
        if name == "free_riders":
            histories = {form: free_rider_history(records, form) for form in FORMS}
            found[name] = {
                form: {"scores": h.scores, "flagged": h.flagged} for form, h in histories.items()
            }
        elif name in rounds[-1]["details"]:
            found[name] = rounds[-1]["details"][name]
        elif name in BY_LAYER and any(
            name in rounds[-1]["measurements"].get(site, {}) for site in clients
        ):
            found[name] = {site: _by_layer(rounds[-10:], site, name) for site in clients}
        else:
            found[name] = _series(rounds, clients, partial(_measured, name=name))
    if (run_dir / "models" / f"{clients[0]}.pt").exists():
        found["distance"] = _distances(run_dir / "models", clients)
    valuations = sorted((run_dir / "valuations").glob("*.json"))
    if valuations:
        found["valuations"] = {path.stem: json.loads(path.read_text()) for path in valuations}
    return found


def _measured(record: Record, site: str, name: str) -> float | None:
    return number_in(record["measurements"].get(site, {}).get(name))


def _numbers(closing: Record) -> dict[str, dict[str, float | None]]:
    return {
        model: {name: number_in(value) for name, value in found.items()}
        for model, found in closing.items()
    }


def _series(
    rounds: Sequence[Record], clients: Sequence[str], value: Any
) -> dict[str, list[float | None]] | None:
    """site -> a value per round; ``None`` where no site has any."""
    series = {site: [value(record, site) for record in rounds] for site in clients}
    return (
        series
        if any(number is not None for numbers in series.values() for number in numbers)
        else None
    )


def _by_layer(rounds: Sequence[Record], site: str, name: str) -> dict[str, float]:
    values = [record["measurements"][site][name] for record in rounds]
    return {
        layer: sum(v[layer] for v in values) / len(values) for layer in values[0] if layer != "mean"
    }


def _distances(models: Path, clients: Sequence[str]) -> dict[str, float]:
    """site -> Euclidean distance of its own model from the global one, BatchNorm statistics left
    out.
    """
    whole = read_state_dict(models / "global.pt")
    names = [name for name in whole if "running" not in name and "num_batches" not in name]
    own = {client: read_state_dict(models / f"{client}.pt") for client in clients}
    return {
        c: float(sum((state[n] - whole[n]).double().square().sum() for n in names)) ** 0.5
        for c, state in own.items()
    }


def _tests(run_dir: Path, clients: Sequence[str], rounds: int) -> dict[str, Any]:
    """``test`` and, where a site's own model is not the global one, ``test_global``.

    ``"cases"``: site -> names, or ``"all"`` -> names where all sites are tested with the same;
    every other key, such as ``"dice"``: site -> the score of each case in this order, ``None``
    where the structure is not labelled.
    """
    found: dict[str, dict[str, dict[str, list[Any]]]] = {}
    for site in clients:
        state = run_dir / "sites" / site / "state"
        files = sorted(
            state.glob(f"*-test_score-{rounds}-*.csv"),
            key=lambda file: int(file.stem.rpartition("-")[2]),
        )
        own = [*state.glob(f"*-personal_test_score-{rounds}-*.csv"), *files]
        for model, path in zip(("test", "test_global"), own):
            rows = read_csv_text(path.read_bytes().decode())
            of_model = found.setdefault(model, {"cases": {}})
            of_model["cases"][site] = [row["case"] for row in rows]
            for column in list(rows[0])[1:]:
                values = [round(float(row[column]), 4) if row[column] else None for row in rows]
                of_model.setdefault(column, {})[site] = values
    for of_model in found.values():
        names = list(of_model["cases"].values())
        if all(name == names[0] for name in names):
            of_model["cases"] = {"all": names[0]}
    return found
