# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Valuations of finished runs: the checks before, the files and the table after."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from monai_fairfl.errors import ConfigError
from monai_fairfl.protocol.averages import normalise
from monai_fairfl.protocol.values import Estimate, to_json
from monai_fairfl.run_folder.ledger import read_ledger
from monai_fairfl.utils.files import write_atomically
from monai_fairfl.valuation import Fidelity, FinishedRun, RunValuation, Valuation, fidelity
from monai_fairfl.valuation.utility import UTILITIES

logger = logging.getLogger(__name__)


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
        raise ConfigError(
            f"valuations must be different ones, in more than seed or stop, got {names}"
        )
    known = (*UTILITIES, *_classes(bundle_root))
    for valuation in valuations:
        utility = valuation.utility
        valuation.check(clients, recorded=bool(settings.get("record_updates")))
        if utility.name not in known:
            raise ConfigError(
                f"valuation {valuation.name}: utility must be one of {known}, got {utility.name!r}"
            )
        if utility.data == "test" and not (bundle_root / "configs" / "evaluate.json").exists():
            raise ConfigError(
                f"valuation {valuation.name}: the bundle has no evaluate.json, so no test images"
            )
        if settings.get("local_norm") or settings.get("buffers") == "local":
            raise ConfigError(
                f"valuation {valuation.name}: with local_norm or buffers 'local' a coalition has no whole model that "
                "other sites could score; leave these out, or leave out the valuation"
            )


def _classes(bundle_root: Path) -> tuple[str, ...]:
    """Classes with a score of their own: of a single one the mean is all there is."""
    try:
        metadata = json.loads((bundle_root / "configs" / "metadata.json").read_text())
        channels = metadata["network_data_format"]["outputs"]["pred"]["channel_def"].values()
        scored = [str(name) for name in channels if str(name).lower() != "background"]
        return tuple(scored) if len(scored) > 1 else ()
    except (OSError, ValueError, KeyError):
        return ()


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
    strategy, last, model = records[0]["name"], records[-2], records[-1]["model"]
    if valuation.needs_updates and not last["aggregation"]:
        logger.info(
            "%s: %s averages nothing; no model of a coalition can be rebuilt",
            valuation.name,
            strategy,
        )
        return None
    found = valuation.value(run)
    own = own_contributions(last)
    why = _incomparable(own, found)
    agrees = fidelity(own, found) if own is not None and not why else None
    result = {
        "name": valuation.name,
        "strategy": strategy,
        "model": model,
        "utility": valuation.utility.name,
        "data": valuation.utility.data,
        **found.to_json(),
        "own": None if own is None else to_json(own),
        "fidelity": None if agrees is None else _fidelity_json(agrees),
    }
    text = json.dumps(to_json(result), indent=1, allow_nan=False)
    write_atomically(run.run_dir / "valuations" / f"{valuation.name}.json", text.encode())
    print(_table(valuation.name, strategy, found, own, agrees))
    if why:
        print(f"  {strategy}'s own shares are not compared: {why}")
    return found


def own_contributions(record: Mapping[str, Any]) -> dict[str, Estimate] | None:
    """The method's own contributions after a round as shares: negative ones count as 0, all sum to
    1.

    Args:
        record: of the ledger; of the last round, as FedCE's Table 3 compares them.

    Returns:
        client -> share, with its standard error where the method has one; ``None`` when it scored
        nobody above 0.

    >>> own_contributions({"contributions": {"A": 3.0, "B": {"value": 1.0, "stderr": 0.4, "n": 9}, "C": -1.0}})["B"]
    Estimate(value=0.25, stderr=0.1, n=9)
    """
    given = {
        c: v if isinstance(v, Mapping) else {"value": v} for c, v in record["contributions"].items()
    }
    if not given or any(value["value"] is None for value in given.values()):
        return None
    scores = {client: Estimate(**value) for client, value in given.items()}
    total = sum(max(score.value, 0.0) for score in scores.values())
    if total == 0:
        return None
    shares = normalise({client: score.value for client, score in scores.items()})
    return {
        client: Estimate(
            shares[client], score.stderr / total if score.stderr is not None else None, score.n
        )
        for client, score in scores.items()
    }


def _incomparable(own: Mapping[str, Estimate] | None, found: Valuation) -> str:
    """Why a method's own shares cannot be compared with these; empty when they can."""
    if own is None:
        return "it credits nobody in the last round"
    if not (shares := found.shares()):
        return "no client is worth more than nothing"
    if differ := sorted(set(own) ^ set(shares)):
        return f"{', '.join(differ)} is not in both; a method's shares are of the last round"
    return "" if len(own) > 1 else "there is one client"


def _fidelity_json(agrees: Fidelity) -> dict[str, Any]:
    named = {name: getattr(agrees, name) for name in ("pearson", "spearman", "euclidean", "cosine")}
    return {name: interval._asdict() for name, interval in named.items()} | {
        "p_value": agrees.p_value
    }


def _table(
    name: str,
    strategy: str,
    found: Valuation,
    own: Mapping[str, Estimate] | None,
    agrees: Fidelity | None,
) -> str:
    width = max(len("client"), *(len(client) for client in found.values))
    lines = [
        f"Valuation {name} of {strategy}",
        f"  {'client':<{width}}  {'value':>9}  {'+-':>7}  {'share':>6}  {'method':>6}",
    ]
    shares = found.shares()
    for client, value in sorted(found.values.items(), key=lambda item: -item[1].value):
        share = f"{100 * shares[client]:5.1f}%" if shares else "-"
        error = "?" if value.stderr is None else f"{value.stderr:.4f}"
        theirs = f"{100 * own[client].value:5.1f}%" if own is not None and client in own else "-"
        lines.append(
            f"  {client:<{width}}  {value.value:9.4f}  {error:>7}  {share:>6}  {theirs:>6}"
        )
    lines.append(
        "  +- is the standard error of sampling coalitions; what another seed of the training would change is not in it"
    )
    stability = "unknown" if found.rank_stability is None else f"{found.rank_stability:.2f}"
    lines.append(
        f"  total {found.total:.4f} from {found.evaluations} models; rank stability {stability}"
    )
    if agrees is not None:
        lines.append(
            f"  {strategy}'s own shares agree: Pearson {agrees.pearson.words(1)}, "
            f"Spearman {agrees.spearman.words(1)}, Euclid {agrees.euclidean.words(3)}, "
            f"cosine {agrees.cosine.words(3)}"
        )
    return "\n".join(lines)
