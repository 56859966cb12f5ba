# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The report in a terminal: the answer, a row for each hospital, and how many notes there are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from monai_fairfl.report.hospitals import dice_words
from monai_fairfl.report.scores import VERDICTS
from monai_fairfl.utils.tables import count_words, text_of_table


def as_text(report: Mapping[str, Any]) -> str:
    """The report of runs, or a comparison over seeds, in about a dozen lines.

    Args:
        report: what :func:`~monai_fairfl.report.write_report` or
            :func:`~monai_fairfl.report.write_comparison` returned.

    >>> from tempfile import TemporaryDirectory
    >>> from monai_fairfl.report import write_report
    >>> from monai_fairfl.run import Ledger
    >>> scores = {"elm": {"own": {"test_score": 0.8}}, "oak": {"own": {"test_score": 0.6}}}
    >>> with TemporaryDirectory() as folder:
    ...     ledger = Ledger(f"{folder}/ledger.jsonl")
    ...     ledger.append({"kind": "start", "strategy": "FedAvg", "clients": [*scores], "seed": 0})
    ...     ledger.append({"kind": "end", "scores": scores})
    ...     text = as_text(write_report([folder]))
    >>> print(*[line.strip() for line in text.splitlines() if line.strip()][-3:], sep="\\n")
    elm    0.800    not judged yet
    oak    0.600    not judged yet
    Mean of the hospitals: FedAvg 0.700.
    """
    shown = report["decision"]["shown"]
    rows = []
    for site, hospital in report["decision"]["hospitals"].items():
        scores = [report["strategies"][name]["sites"].get(site, {}).get("score") for name in shown]
        cells = [dice_words(score and score["value"]) for score in scores]
        rows.append([site, *cells, VERDICTS[hospital["verdict"]][0].lower()])
    means = []
    for name, found in report["strategies"].items():
        if found["performance"] is not None:
            means.append(f"{name} {found['performance']['mean']:.3f}")
    lines = [*report["first_look"], *report["headline"]]
    lines.append(text_of_table(["Dice", *shown, "Verdict"], rows))
    lines.append(f"Mean of the hospitals: {', '.join(means) or 'not known'}.")
    notes = len(report["warnings"]) + len(report.get("notes", ()))
    lines += [f"{count_words(notes, 'note')}: see the page."] if notes else []
    for name, why in report["failed"].items():
        lines.append(f"{name} failed and is not in this report: {why}")
    return "\n".join(lines)
