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
from monai_fairfl.messages import to_json
from monai_fairfl.run.ledger import read_ledger
from monai_fairfl.utils.files import write_atomically
from monai_fairfl.utils.tables import text_of_table
from monai_fairfl.valuation import FinishedRun, RunValuation, Valuation
from monai_fairfl.valuation.finished import UTILITIES

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
    except (OSError, ValueError, KeyError):
        return ()
    classes = tuple(name for name in channels.values() if name.lower() != "background")
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
    if valuation.needs_updates and not records[-2]["aggregation"]:
        logger.info("%s: %s averages nothing that can be rebuilt", valuation.name, strategy)
        return None

    found = valuation.value(run)
    intervals, shares = valuation.intervals(run), found.shares()
    result = {
        "name": valuation.name,
        "strategy": strategy,
        "model": records[-1]["model"],
        "utility": valuation.utility,
        "data": valuation.data,
        "judged_by": valuation.judged_by,
        **found.to_json(),
        "intervals": intervals,
    }
    text = json.dumps(to_json(result), indent=1, allow_nan=False)
    write_atomically(run.run_dir / "valuations" / f"{valuation.name}.json", text.encode())

    # The best first.
    rows = []
    for client, value in sorted(found.values.items(), key=lambda item: -item[1].value):
        error = "?" if value.stderr is None else f"{value.stderr:.4f}"
        share = f"{shares[client]:.1%}" if client in shares else "-"
        interval = "{:.4f} to {:.4f}".format(*intervals[client]) if client in intervals else "-"
        rows.append([client, f"{value.value:.4f}", error, share, interval])
    titles = ["client", "value", "sampling error", "share", "95 % interval over the hospitals"]
    table = text_of_table(titles, rows)
    models = f"total {found.total:.4f} from {found.evaluations} models"
    shown = f"Valuation {valuation.name} of {strategy}: {models}\n{table}"
    print(shown)
    if run.show is not None:
        run.show(shown)
    return found
