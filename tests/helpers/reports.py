# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Reads what a report wrote: its numbers, its tables and its pages."""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

Report = Mapping[str, Any]
Row = dict[str, Any]


def hospital(report: Report, site: str = "elm") -> Row:
    """The row of a hospital in ``report.json`` or ``comparison.json``."""
    row: Row = report["decision"]["hospitals"][site]
    return row


def verdicts(report: Report) -> dict[str, str]:
    """Hospital -> its verdict."""
    return {site: row["verdict"] for site, row in report["decision"]["hospitals"].items()}


def run_of(report: Report, name: str) -> Row:
    """What ``report.json`` has of a run."""
    found: Row = report["strategies"][name]
    return found


def site_of(report: Report, name: str, site: str = "elm") -> Row:
    """What ``report.json`` has of a hospital in a run."""
    found: Row = run_of(report, name)["sites"][site]
    return found


def gain_of(report: Report, name: str, site: str = "elm") -> Any:
    """What a hospital gained over training alone; ``None`` where that is not known."""
    return site_of(report, name, site)["gain"]


def points_of(report: Report, name: str, quantity: str, site: str = "elm") -> list[Any]:
    """(round, value) of a quantity by round."""
    points = run_of(report, name)["series"][quantity][site]
    return [(point["round"], point["value"]) for point in points]


def warned(report: Report, *words: str) -> bool:
    """Whether a warning has all of these words."""
    return any(all(word in line for word in words) for line in report["warnings"])


def rows_of(file: Path) -> list[dict[str, str]]:
    """The rows of a CSV file."""
    with file.open(newline="") as opened:
        return list(csv.DictReader(opened))


class Page(HTMLParser):
    """A page as a browser reads it.

    Args:
        file: of the page.
    """

    def __init__(self, file: Path):
        super().__init__()
        self.html = file.read_text()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self._open = ""
        self.feed(self.html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._open = tag

    def handle_data(self, data: str) -> None:
        if self._open != "style":
            self.text += data

    def drawings(self) -> dict[str, ElementTree.Element]:
        """Title -> drawing."""
        found = {}
        for text in re.findall(r"<svg[ >].*?</svg>", self.html, re.DOTALL):
            svg = ElementTree.fromstring(text)
            if svg.findtext("title"):
                found[svg.findtext("title") or ""] = svg
        return found
