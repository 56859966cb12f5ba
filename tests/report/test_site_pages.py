# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""A site's page has its own numbers, and none of another site."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from monai_fairfl.report import write_report
from monai_fairfl.report.site_pages import SITE_REPORTS, file_names

pytest.importorskip("jinja2")

WriteRun = Callable[..., Path]
NUMBER = re.compile(r"\d\.\d{2,}")


def numbers_in(found: Any) -> Iterator[float]:
    """Every fraction in a part of the report."""
    if isinstance(found, dict):
        for item in found.values():
            yield from numbers_in(item)
    elif isinstance(found, list):
        for item in found:
            yield from numbers_in(item)
    elif isinstance(found, float):
        yield found


def numbers_of(report: dict[str, Any], site: str) -> set[str]:
    """Every fraction of one site, to two, three and four decimals as pages show them."""
    parts: list[Any] = [report["decision"]["hospitals"][site]]
    for strategy in report["strategies"].values():
        parts.append(strategy["sites"][site])
        parts += [points.get(site) for points in strategy["series"].values()]
        parts += [rule["shares"].get(site) for rule in strategy["credit"]]
    shown = set()
    for number in numbers_in(parts):
        shown |= {f"{abs(number):.{digits}f}" for digits in (2, 3, 4)}
    return shown


@pytest.fixture(scope="module")
def pages(
    comparison: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[dict[str, Any], Path]:
    out = tmp_path_factory.mktemp("sites")
    return write_report([comparison], out), out / SITE_REPORTS


def test_every_number_on_a_sites_page_is_its_own(pages: tuple[dict[str, Any], Path]) -> None:
    report, folder = pages
    checked = 0
    for site in report["sites"]:
        page = (folder / f"{site}.html").read_text().split("<body>")[1]
        mine = numbers_of(report, site)
        # The axes' ticks and the rules' thresholds are of no site.
        page = re.sub(r'<text class="tick[^>]*>[^<]*</text>', "", page)
        page = re.sub(r'<p class="note">.*?</p>', "", page, flags=re.DOTALL)
        page = re.sub(r'(points|[xyc]\w?\d?|viewBox)="[^"]*"', "", page)
        page = re.sub(r"from -\d\.\d\d to \d\.\d\d", "", page)
        found = set(NUMBER.findall(page)) - {"0.1.0"}
        assert found - {"0.95"} <= mine, (site, sorted(found - mine))
        checked += len(found)
    assert checked > 50


def test_the_axis_of_received_models_counts_finished_rounds(
    pages: tuple[dict[str, Any], Path],
) -> None:
    report, folder = pages
    page = (folder / f"{next(iter(report['sites']))}.html").read_text()
    assert "Validation Dice by rounds finished, " in page
    assert "Aggregation weight by round, " in page


def test_a_sites_page_names_no_other_site(pages: tuple[dict[str, Any], Path]) -> None:
    report, folder = pages
    assert len(report["sites"]) > 1
    for site in report["sites"]:
        page = (folder / f"{site}.html").read_text()
        assert f"<h1>{site} in the federation</h1>" in page
        for other in set(report["sites"]) - {site}:
            assert other not in page


def test_what_a_guard_says_of_others_stays_on_the_consortiums_page(write_run: WriteRun) -> None:
    copies = {"guard": "Copies", "action": "merged", "reason": "as the update of oak, 0.9876"}
    record = {"verdicts": {"elm": [copies]}, "guards": {"elm": "merged with oak, 0.9876"}}
    run = write_run("FedCE", {"elm": 0.81, "oak": 0.72}, rounds=[record])
    write_report([run])
    assert "0.9876" in (run / "report.html").read_text()
    page = (run / SITE_REPORTS / "elm.html").read_text()
    assert "Copies" in page
    assert "oak" not in page and "0.9876" not in page and "0.720" not in page


def test_pages_of_sites_that_are_in_the_report_no_more_are_deleted(write_run: WriteRun) -> None:
    run = write_run("FedCE", {"elm": 0.8, "oak": 0.7})
    folder = run / SITE_REPORTS
    folder.mkdir()
    (folder / "gone.html").write_text("of an earlier report")
    write_report([run])
    assert sorted(file.name for file in folder.iterdir()) == ["elm.html", "oak.html"]


def test_names_that_cannot_be_files_get_numbers_and_no_page_is_lost() -> None:
    names = ["site-2", "../oak", "a/b", "elm"]
    found = file_names({"sites": dict.fromkeys(names, {})})
    assert found == {
        "site-2": "site-2.html",
        "../oak": "site-2_.html",
        "a/b": "site-3.html",
        "elm": "elm.html",
    }
