# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The result of one finished run, small enough to be committed."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from monai_fairfl.errors import FederationError
from monai_fairfl.messages import CANDIDATES, Estimate, chosen, gain_name
from monai_fairfl.model_files import state_of_file
from monai_fairfl.run.ledger import number_in, read_ledger
from monai_fairfl.utils.spreadsheets import read_csv_text
from monai_fairfl.valuation.free_riders import FORMS, free_rider_history

Record = Mapping[str, Any]
BY_LAYER = ("cka", "feature_cosine")
LAST = 10  # rounds over which values by layer are averaged


def summary(run_dir: Path, keep: Sequence[str]) -> dict[str, Any]:
    """Collect test scores of every case, the course of every round, and closing measurements.

    Args:
        run_dir: a finished run.
        keep: measurements of every round, ``"free_riders"`` for the scores of FedCE's detection,
            details of the last round's record. Of one value per layer the result has the mean of
            the last ten rounds.

    Raises:
        FederationError: a site failed in a round, or when the models were tested.
    """
    records = read_ledger(run_dir / "ledger.jsonl")
    _require_all_sites(run_dir, records)
    start = records[0]
    end = records[-1]
    rounds = [record for record in records if record["kind"] == "round"]
    clients = start["clients"]
    found: dict[str, Any] = {
        "name": start["name"],
        "samples": rounds[-1]["samples"],
        **_tests(run_dir, clients, len(rounds)),
        "closing": {site: _numbers(end["scores"][site]) for site in clients},
        **_last_mile(run_dir, end, clients, len(rounds)),
        "best": end["best"],
        "contributions": _series(rounds, clients, "contributions"),
        "aggregation": _aggregation(rounds, clients),
        "guards": guards_of(start, rounds),
        "model": end["model"],
    }
    for name in keep:
        found[name] = _by_name(name, records, rounds, clients)
    if (run_dir / "models" / f"{clients[0]}.pt").exists():
        found["distance"] = _distances(run_dir / "models", clients)
    valuations = sorted((run_dir / "valuations").glob("*.json"))
    if valuations:
        found["valuations"] = {path.stem: json.loads(path.read_text()) for path in valuations}
    return found


def _require_all_sites(run_dir: Path, records: Sequence[Record]) -> None:
    """Refuse a run that went on without a site: its numbers would stand for those of all sites."""
    for record in records:
        for site, reason in record.get("missing", {}).items():
            when = "at the end"
            if record["kind"] == "round":
                when = f"in round {record['round']}"
            raise FederationError(
                f"{run_dir} went on without {site} {when}: {reason}. Mend the cause, delete this "
                "folder, and train again"
            )


def guards_of(start: Record, rounds: Sequence[Record]) -> dict[str, Any]:
    """Count the rounds in which a guard touched a client, whatever it then did.

    Args:
        start: the ledger's first record.
        rounds: the records of the rounds.

    Returns:
        ``names`` of the run's guards; ``client_rounds``: how many clients took part, summed over
        the rounds; ``touched``: site -> rounds with a verdict on it, of the sites that have any.
    """
    touched: Counter[str] = Counter()
    client_rounds = 0
    for record in rounds:
        client_rounds += len(record["clients"])
        touched.update(record["guards"].keys())
    of_sites = dict(sorted(touched.items()))
    return {"names": start["guards"], "client_rounds": client_rounds, "touched": of_sites}


def _by_name(
    name: str, records: Sequence[Record], rounds: Sequence[Record], clients: Sequence[str]
) -> Any:
    """Collect one of the quantities that a study names under ``keep``."""
    if name == "free_riders":
        return _free_riders(records)
    last = rounds[-1]
    if name in last["details"]:
        return last["details"][name]
    measured = any(name in last["measurements"].get(site, {}) for site in clients)
    if name in BY_LAYER and measured:
        return {site: _means_by_layer(rounds[-LAST:], site, name) for site in clients}
    return _series(rounds, clients, "measurements", name)


def _free_riders(records: Sequence[Record]) -> dict[str, dict[str, Any]]:
    """Collect the scores of FedCE's detection, and who was flagged, for each form of the score."""
    found = {}
    for form in FORMS:
        history = free_rider_history(records, form)
        found[form] = {"scores": history.scores, "flagged": history.flagged}
    return found


def _aggregation(
    rounds: Sequence[Record], clients: Sequence[str]
) -> dict[str, list[float | None]] | None:
    """Collect the weights of every round; ``None`` for a method with weights by layer."""
    last = rounds[-1]["aggregation"]
    if any(isinstance(weight, Mapping) for weight in last.values()):
        return None
    return _series(rounds, clients, "aggregation")


def _numbers(closing: Record) -> dict[str, dict[str, float | None]]:
    """Reduce closing measurements to numbers: model -> measurement -> number."""
    numbers: dict[str, dict[str, float | None]] = {}
    for model, found in closing.items():
        numbers[model] = {name: number_in(value) for name, value in found.items()}
    return numbers


def _series(
    rounds: Sequence[Record], clients: Sequence[str], key: str, measurement: str = ""
) -> dict[str, list[float | None]] | None:
    """Collect a value per round for every site; ``None`` where no site has any."""
    series: dict[str, list[float | None]] = {site: [] for site in clients}
    known = False
    for record in rounds:
        for site, values in series.items():
            value = record[key].get(site)
            if measurement:
                value = (value or {}).get(measurement)
            values.append(number_in(value))
            known = known or values[-1] is not None
    return series if known else None


def _means_by_layer(rounds: Sequence[Record], site: str, name: str) -> dict[str, float]:
    """Average a site's value of every layer over these rounds."""
    values = [record["measurements"][site][name] for record in rounds]
    means = {}
    for layer in values[0]:
        if layer != "mean":
            means[layer] = sum(value[layer] for value in values) / len(values)
    return means


def _distances(models: Path, clients: Sequence[str]) -> dict[str, float]:
    """Compute the Euclidean distance of every site's own model from the global one.

    BatchNorm statistics are left out.
    """
    whole = state_of_file(models / "global.pt")
    names = [name for name in whole if "running" not in name and "num_batches" not in name]
    distances = {}
    for client in clients:
        own = state_of_file(models / f"{client}.pt")
        squares = sum((own[name] - whole[name]).double().square().sum() for name in names)
        distances[client] = float(squares) ** 0.5
    return distances


def _tests(run_dir: Path, clients: Sequence[str], rounds: int) -> dict[str, Any]:
    """Collect ``test`` and, where a site's own model is not the global one, ``test_global``.

    ``"cases"``: site -> names, or ``"all"`` -> names where all sites are tested with the same;
    every other key, such as ``"dice"``: site -> the score of each case in this order, ``None``
    where the structure is not labelled.
    """
    found: dict[str, dict[str, dict[str, list[Any]]]] = {}
    for site in clients:
        files = _files_of_tests(run_dir / "sites" / site / "state", rounds)
        for model, path in zip(("test", "test_global"), files):
            rows = read_csv_text(path.read_bytes().decode())
            of_model = found.setdefault(model, {"cases": {}})
            of_model["cases"][site] = [row["case"] for row in rows]
            columns = list(rows[0])[1:]  # the first is "case"
            for column in columns:
                scores = [_score(row[column]) for row in rows]
                of_model.setdefault(column, {})[site] = scores
    for of_model in found.values():
        names = list(of_model["cases"].values())
        if all(name == names[0] for name in names):
            of_model["cases"] = {"all": names[0]}
    return found


def _last_mile(run_dir: Path, end: Record, clients: Sequence[str], rounds: int) -> dict[str, Any]:
    """Collect ``last_mile`` and ``test_used``; nothing where there was no last mile.

    ``last_mile``: site -> the candidate that it takes, and each one's gain with its standard error.
    A site that measured no gain takes none.
    ``test_used``: site -> the score of each test case with the model that the site uses, in the
    order of ``test``.
    """
    decisions = {}
    used = {}
    for site in clients:
        gains = {}
        for name in CANDIDATES:
            gain = end["scores"][site].get(name, {}).get(gain_name(name))
            if gain is not None:
                gains[name] = Estimate(gain["value"], gain["stderr"], gain["n"])
        taken = chosen(gains)
        decisions[site] = {
            "taken": taken,
            "gains": {name: [gain.value, gain.stderr] for name, gain in gains.items()},
        }
        state = run_dir / "sites" / site / "state"
        file = _files_of_tests(state, rounds)[0]
        if taken is not None:
            [file] = state.glob(f"*-{taken}_test_score-{rounds}-*.csv")
        used[site] = [_score(row["dice"]) for row in read_csv_text(file.read_text())]
    if not any(decision["gains"] for decision in decisions.values()):
        return {}
    return {"last_mile": decisions, "test_used": {"dice": used}}


def _files_of_tests(state: Path, rounds: int) -> list[Path]:
    """List the files of a site's scores after the last round: its own model first."""
    personal = list(state.glob(f"*-personal_test_score-{rounds}-*.csv"))
    received = sorted(state.glob(f"*-test_score-{rounds}-*.csv"), key=_number_of_request)
    return personal + received


def _number_of_request(file: Path) -> int:
    return int(file.stem.rpartition("-")[2])


def _score(text: str) -> float | None:
    return round(float(text), 4) if text else None
