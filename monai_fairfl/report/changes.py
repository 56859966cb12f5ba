# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""What the strategy of the report changed against FedAvg, hospital by hospital."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from monai_fairfl.report.columns import NO_VALUE
from monai_fairfl.report.contributions import contributor_of


def changes_of(report: Mapping[str, Any]) -> dict[str, Any] | None:
    """What the strategy of the report changed against FedAvg, hospital by hospital.

    Args:
        report: what :func:`~monai_fairfl.report.write_report` returned.

    Returns:
        ``"strategy"``, ``"reference"``, ``"rows"`` and ``"boundary"``, whether a surface distance
        was measured; ``None`` where no FedAvg run can be compared.
    """
    name = _beside_fedavg(report)
    if name is None:
        return None
    strategy = report["strategies"][name]
    fedavg = report["strategies"][strategy["fedavg"]]
    rows = []
    for site, result in strategy["sites"].items():
        difference = result["against_fedavg"]
        if difference is None:
            continue
        rows.append(
            {
                **difference,
                "site": site,
                "dice": result["score"]["value"],
                "reference": fedavg["sites"][site]["score"]["value"],
                "words": _change_words(difference, strategy["judged"]),
                "boundary": _boundary(result["boundary"]),
                "boundary_reference": _boundary(fedavg["sites"][site]["boundary"]),
            }
        )
    if not rows:
        return None
    boundary = any(result["boundary"] is not None for result in strategy["sites"].values())
    return {
        "strategy": name,
        "reference": strategy["fedavg"],
        "rows": rows,
        "boundary": boundary,
    }


def _beside_fedavg(report: Mapping[str, Any]) -> str | None:
    """The strategy to compare with FedAvg.

    It is that of the report, else the one that contributions are of, else any other of the group.
    """
    focus = report["focus"]
    if focus is None:
        return None
    candidates: list[str | None] = [focus, contributor_of(report, focus)]
    for group in report["compared"]:
        if focus in group:
            candidates.extend(group)
    for name in candidates:
        if name is not None and report["strategies"][name]["fedavg"] is not None:
            return name
    return None


def _change_words(difference: Mapping[str, Any], judged: bool) -> str:
    if not judged:
        return "not judged yet"
    if difference["within_noise"] is None:
        return "too few cases to tell"
    if difference["within_noise"]:
        return "no clear difference"
    return "better" if difference["value"] > 0 else "worse"


def _boundary(distance: Mapping[str, Any] | None) -> str:
    """The 95th percentile of the surface distance."""
    return NO_VALUE if distance is None else f"{distance['value']:.1f} mm"
