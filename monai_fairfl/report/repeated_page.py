# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The page of a comparison over seeds: one HTML file that works offline, with its plots."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from monai_fairfl.errors import ConfigError
from monai_fairfl.report.repeated_tables import (
    metric_words,
    pairs_table,
    remarks_of,
    sites_table,
    strategies_table,
)
from monai_fairfl.report.templates import filled

TEMPLATE = "comparison.html.jinja"


def render_comparison(comparison: Mapping[str, Any]) -> str:
    """The comparison as one HTML file.

    Style, plotly.js and data are inside, and the file's own policy forbids loading more.

    Args:
        comparison: what :func:`~monai_fairfl.report.repeated.write_comparison` returns.

    Raises:
        ConfigError: when jinja2 or plotly is not installed.
    """
    try:
        import jinja2  # noqa: F401
        from plotly.offline import get_plotlyjs

        from monai_fairfl.report.figures import bars, intervals
    except ImportError as error:
        raise ConfigError(
            f"comparison.html needs {error.name}; all other files are written without it: "
            'pip install "monai_fairfl[report]"'
        ) from error

    sections = []
    for metric, found in comparison["metrics"].items():
        differences = {}
        for pair in found["pairs"]:
            differences[f"{pair['strategy']} less {pair['reference']}"] = pair["difference"]
        by_site = {each["strategy"]: each["by_site"] for each in found["strategies"]}
        words = metric_words(metric)
        sections.append(
            {
                "title": words,
                "tables": [
                    strategies_table(metric, found),
                    pairs_table(metric, found),
                    sites_table(metric, found),
                ],
                "figures": [
                    intervals(differences, x=f"Difference of {words}"),
                    bars(by_site, list(found["cases"]), y=words),
                ],
            }
        )

    values = {
        "plan": comparison["plan"],
        "sections": sections,
        "remarks": remarks_of(comparison),
        "plotlyjs": get_plotlyjs(),
    }
    return filled(TEMPLATE, values)
