# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Checks valuations before a run, values the finished run, and writes the file and the table."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from monai_fairfl.errors import ConfigError
from monai_fairfl.messages import Estimate, to_json
from monai_fairfl.run.ledger import read_ledger
from monai_fairfl.utils.files import write_atomically
from monai_fairfl.utils.tables import text_of_table
from monai_fairfl.valuation import FinishedRun, RunValuation, Valuation, fidelity
from monai_fairfl.valuation.finished import UTILITIES

logger = logging.getLogger(__name__)

DIGITS = {"pearson": 1, "spearman": 1, "euclidean": 3, "cosine": 3}
"""Measures of agreement -> decimals that are shown; correlations are times 100."""


def check_valuations(
    valuations: Sequence[RunValuation],
    bundle_root: Path,
    clients: Sequence[str],
    settings: Mapping[str, Any],
) -> None:
    """Refuse before the training what would fail after it.

    Args:
        valuations: to run in the end.
        bundle_root: the bundle, for its classes and its evaluation.
        clients: the sites.
        settings: of the federation.

    Raises:
        ConfigError: naming the valuation and what to change.
    """
    names = [valuation.name for valuation in valuations]
    if len(set(names)) < len(names):
        raise ConfigError(f"valuations must differ in more than seed or sampling, got {names}")
    known_utilities = (*UTILITIES, *_classes(bundle_root))
    has_test_images = (bundle_root / "configs" / "evaluate.json").exists()
    for valuation in valuations:
        valuation.check(clients, recorded=bool(settings.get("record_updates")))
        problem = ""
        if valuation.utility not in known_utilities:
            problem = f"utility must be one of {known_utilities}, got {valuation.utility!r}"
        if valuation.data == "test" and not has_test_images:
            problem = "the bundle has no evaluate.json, so no test images"
        if settings.get("local_norm") or settings.get("buffers") == "local":
            problem = "with local_norm or buffers 'local' no coalition has a whole model"
        if problem:
            raise ConfigError(f"valuation {valuation.name}: {problem}")


def _classes(bundle_root: Path) -> tuple[str, ...]:
    """Classes with a score of their own; none where there is one class, whose score is the mean."""
    try:
        metadata = json.loads((bundle_root / "configs" / "metadata.json").read_text())
        channels = metadata["network_data_format"]["outputs"]["pred"]["channel_def"]
        names = [str(name) for name in channels.values()]
    except (OSError, ValueError, KeyError):
        return ()
    classes = tuple(name for name in names if name.lower() != "background")
    return classes if len(classes) > 1 else ()


def value_run(valuation: RunValuation, run: FinishedRun) -> Valuation | None:
    """Value one run, write ``run_dir/valuations/<name>.json`` and print the table.

    Args:
        valuation: what to do.
        run: a finished run.

    Returns:
        What was found; ``None`` for a run that averages nothing, and so has nothing to rebuild
        (Standalone).
    """
    records = read_ledger(run.run_dir / "ledger.jsonl")
    strategy = records[0]["name"]
    last_round = records[-2]
    if valuation.needs_updates and not last_round["aggregation"]:
        logger.info("%s: %s averages nothing that can be rebuilt", valuation.name, strategy)
        return None

    found = valuation.value(run)
    intervals = valuation.intervals(run)
    scores = _own_scores(last_round)
    own = _as_shares(scores)
    agreement: dict[str, Any] | None = None
    words = "are not compared: they are not of these clients, or nobody is worth more than nothing"
    if len(own) > 1 and set(own) == set(found.shares()):
        # Of the scores, whose draws may be negative as they may: the shares have lost their sign.
        agrees = fidelity(scores, found)
        measured = {name: getattr(agrees, name) for name in DIGITS}
        shown = [f"{name} {value.words(DIGITS[name])}" for name, value in measured.items()]
        words = f"beside these: {', '.join(shown)}"
        agreement = {name: value._asdict() for name, value in measured.items()}
        agreement["p_value"] = agrees.p_value
    result = {
        "name": valuation.name,
        "strategy": strategy,
        "model": records[-1]["model"],
        "utility": valuation.utility,
        "data": valuation.data,
        "judged_by": valuation.judged_by,
        **found.to_json(),
        "intervals": intervals,
        "own": to_json(own) or None,
        "fidelity": agreement,
    }
    text = json.dumps(to_json(result), indent=1, allow_nan=False)
    write_atomically(run.run_dir / "valuations" / f"{valuation.name}.json", text.encode())

    stability = "unknown" if found.rank_stability is None else f"{found.rank_stability:.2f}"
    table = (
        f"Valuation {valuation.name} of {strategy}\n{_table(found, own, intervals)}\n"
        "  +- is the standard error of sampling coalitions; what another seed of the training "
        f"would change is not in it\n  total {found.total:.4f} from {found.evaluations} models; "
        f"rank stability {stability}\n  {strategy}'s own shares {words}"
    )
    print(table)
    if run.show is not None:
        run.show(table)
    return found


def _own_scores(record: Mapping[str, Any]) -> Valuation:
    """The method's own contributions after a round, signed; none when one is not finite."""
    scores = {}
    for client, given in record["contributions"].items():
        fields = given if isinstance(given, Mapping) else {"value": given}
        scores[client] = Estimate(**fields)
    # The ledger has ``null`` for what is not finite.
    if any(score.value is None for score in scores.values()):
        scores = {}
    return Valuation("own", scores, 0, sum(score.value for score in scores.values()))


def _as_shares(scores: Valuation) -> dict[str, Estimate]:
    """The shares of positive scores with their standard errors; empty where there is none.

    >>> scores = {"A": Estimate(3.0), "B": Estimate(1.0, 0.4, 9), "C": Estimate(-1.0)}
    >>> _as_shares(Valuation("own", scores, 0, 3.0))["B"]
    Estimate(value=0.25, stderr=0.1, n=9)
    """
    total = sum(max(score.value, 0.0) for score in scores.values.values())
    found = {}
    for client, share in scores.shares().items():
        score = scores.values[client]
        stderr = None if score.stderr is None else score.stderr / total
        found[client] = Estimate(share, stderr, score.n)
    return found


def _table(
    found: Valuation,
    own: Mapping[str, Estimate],
    intervals: Mapping[str, tuple[float, float]],
) -> str:
    """The clients' values, the best first, beside the method's own shares."""
    shares = found.shares()
    rows = []
    for client, value in sorted(found.values.items(), key=lambda item: -item[1].value):
        error = "?" if value.stderr is None else f"{value.stderr:.4f}"
        share = f"{shares[client]:.1%}" if client in shares else "-"
        of_method = f"{own[client].value:.1%}" if client in own else "-"
        interval = "{:.4f} to {:.4f}".format(*intervals[client]) if client in intervals else "-"
        rows.append([client, f"{value.value:.4f}", error, share, of_method, interval])
    titles = ["client", "value", "+-", "share", "method", "95 % interval over the hospitals"]
    return text_of_table(titles, rows)
