# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Fault 52: names of metrics and classes that are markup are text in the report."""

from __future__ import annotations

import csv
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
from helpers.odd_federation import CLIENTS, federation

from monai_fairfl.protocol.messages import Reply, Request
from monai_fairfl.protocol.values import Estimate
from monai_fairfl.report.write import write_report
from monai_fairfl.strategies import FedAvg, FedCE

pytest.importorskip("jinja2")

NAMES = (
    "<script>alert(1)</script>",
    "</script><script>alert(2)</script>",
    "<img src=x onerror=alert(3)>",
    '"onmouseover="alert(4)',
    '=HYPERLINK("http://x")',
)


class Reader(HTMLParser):
    """The tags of a page, with their attributes."""

    def __init__(self, page: str):
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [name for name, _ in attrs]


def markup(request: Request, reply: Reply) -> Reply:
    """Every score has classes with such names, and there are measurements with such names."""
    measured = dict(reply.measurements)
    for name, value in measured.items():
        if name.endswith("score"):
            assert isinstance(value, dict)
            measured[name] = {**value, **dict.fromkeys(NAMES, Estimate(0.5, 0.1, 5))}
    if reply.update is not None:
        measured.update(dict.fromkeys(NAMES, 0.5))
    return replace(reply, measurements=measured)


@pytest.fixture
def runs(tmp_path: Path) -> list[Path]:
    """Two runs in which everybody sends such names, and a server that takes any name."""
    faults = dict.fromkeys(CLIENTS, markup)
    for strategy in (FedAvg(), FedCE()):
        folder = tmp_path / strategy.name
        federation(strategy, folder, faults=faults, unasked=True).run()
    return [tmp_path / "FedAvg", tmp_path / "FedCE"]


def test_the_page_has_no_tag_and_no_script_of_theirs(runs: list[Path], tmp_path: Path) -> None:
    honest = [tmp_path / "honest" / name for name in ("FedAvg", "FedCE")]
    for strategy, folder in zip((FedAvg(), FedCE()), honest, strict=True):
        federation(strategy, folder).run()
    for folders, out in ((runs, "theirs"), (honest, "ours")):
        write_report(folders, tmp_path / out)
    pages = sorted((tmp_path / "theirs").rglob("*.html"))
    assert len(pages) == 1 + len(CLIENTS)
    assert NAMES[0] in (runs[0] / "ledger.jsonl").read_text()
    for page in pages:
        theirs = Reader(page.read_text())
        ours = Reader((tmp_path / "ours" / page.relative_to(tmp_path / "theirs")).read_text())
        assert set(theirs.tags) == set(ours.tags) and not {"img", "script"} & set(theirs.tags)
        assert not [name for name in theirs.attributes if name.startswith("on")]


def test_no_cell_of_a_table_is_a_formula(runs: list[Path], tmp_path: Path) -> None:
    write_report(runs, tmp_path / "out")
    cells = []
    for file in (tmp_path / "out").glob("*.csv"):
        for row in csv.reader(file.read_text().splitlines()):
            cells += row
    assert any("HYPERLINK" in cell for cell in cells)
    assert not [cell for cell in cells if cell.startswith("=")]
