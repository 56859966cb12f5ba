# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The pages: offline, with the numbers of ``report.json``, and with names from outside as text."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import numpy as np
import pytest
from helpers.reports import Page, points_of
from helpers.scripted_run import call_sites, report_of, train

from monai_fairfl.guards import Copies
from monai_fairfl.report import as_text, write_report
from monai_fairfl.strategies import FedAvg, FedCE

from .conftest import EVIL


@pytest.fixture(scope="module")
def page(consortium: Path) -> Page:
    return Page(consortium / "report.html")


def test_no_page_loads_or_runs_anything_and_names_are_text_on_each(consortium: Path) -> None:
    pages = sorted(consortium.rglob("*.html"))
    assert len(pages) == 10
    for file in pages:
        page = Page(file)
        policies = []
        for tag, attributes in page.tags:
            assert tag not in ("script", "link", "img", "iframe", "object")
            assert not {"src", "srcset"} & set(attributes)
            # A hospital's page lies beside the report.
            link = attributes.get("href") or "."
            assert re.fullmatch(r"\.|site_reports/[\w%.-]+\.html", link)
            assert (file.parent / unquote(link)).exists()
            assert not [name for name in attributes if name.startswith("on")]
            if "http-equiv" in attributes:
                policies.append(attributes["content"] or "")
        [policy] = policies
        assert policy.startswith("default-src 'none'")
        assert page.html.count("<style") == 1 and len(page.html) < 120_000
    text = Page(consortium / "evil" / "report.html").text
    assert all(name in text for name in EVIL.values())


def test_the_page_shows_the_numbers_of_the_report(page: Page, report: dict[str, Any]) -> None:
    for site, row in report["decision"]["hospitals"].items():
        found = {name: run["sites"][site] for name, run in report["strategies"].items()}
        order = ("Standalone", "FedAvg", "FedCE")
        assert " / ".join(f"{found[name]['score']['value']:.3f}" for name in order) in page.text
        gain = found["FedCE"]["gain"]
        value, low, high = (f"{gain[name]:+.3f}" for name in ("value", "low", "high"))
        assert f"{value}, {low} to {high}" in page.text
        assert f"{row['contribution']['value']:.4f}" in page.text
        credit = report["strategies"]["FedCE"]["credit"]
        images, weight = (f"{100 * credit[rule][site]:.0f} %" for rule in ("Images", "Weight"))
        assert f"{images} → {weight}" in page.text
        assert site in page.text and all(sentence in page.text for sentence in row["advice"])
    assert report["headline"]
    for found in report["strategies"].values():
        assert f"{found['performance']['mean']:.3f}" in page.text
        assert all(head in page.text for head in found["ledger_heads"].values())


def test_headings_tables_and_drawings_can_be_read_aloud(page: Page) -> None:
    levels = [int(tag[1]) for tag, _ in page.tags if re.fullmatch("h[1-6]", tag)]
    assert levels[0] == 1 and levels.count(1) == 1
    assert all(after <= before + 1 for before, after in zip(levels, levels[1:]))
    names = [tag for tag, _ in page.tags]
    assert names.count("caption") == names.count("table") > 3
    assert all("scope" in attributes for tag, attributes in page.tags if tag == "th")
    assert len(page.drawings()) > 4
    for svg in page.drawings().values():
        assert svg.attrib["role"] == "img" and svg.findtext("desc")


def test_a_drawing_is_of_the_numbers(page: Page, report: dict[str, Any]) -> None:
    drawings = page.drawings()
    [title] = [name for name in drawings if re.match("Validation Dice.*FedAvg", name)]
    dice, heights = [], []
    for number, site in enumerate(report["sites"]):
        [line] = [
            group for group in drawings[title].iter("g") if group.get("id") == f"line {number}"
        ]
        places = re.findall(r"[ML] [\d.]+ ([\d.]+)", line[0].attrib["d"])
        heights += [float(place) for place in places]
        dice += [value for _, value in points_of(report, "FedAvg", "dice", site)]
    # Higher on the page is more Dice, and equal steps are equal differences.
    slope = np.polyfit(heights, dice, 1)
    assert slope[0] < 0 and np.polyval(slope, heights) == pytest.approx(dice, abs=2e-3)
    assert f"{dice[0]:.3f}" in (drawings[title].findtext("desc") or "")
    assert not [name for name in drawings if re.match("Contribution.*FedAvg", name)]


def test_no_interval_of_a_dice_leaves_0_to_1(tmp_path: Path) -> None:
    report_of(tmp_path, {"FedAvg": {"elm": (0.9, 0.2, 3), "oak": (0.1, 0.2, 3)}})
    drawing = Page(tmp_path / "report.html").drawings()["Test Dice"]
    groups = {group.get("id"): group for group in drawing.iter("g")}
    dots = [float(use.attrib["x"]) for use in groups["line2d_15"].iter() if "x" in use.attrib]
    paths = [path.attrib["d"] for path in groups["LineCollection_1"]]
    ends = [float(place) for place in re.findall(r"[ML] ([\d.]+)", " ".join(paths))]
    dice = np.polyval(np.polyfit(dots, [0.9, 0.1], 1), [min(ends), max(ends)])
    assert dice == pytest.approx([0, 1], abs=1e-3)


# ---- a hospital's own page

NUMBER = re.compile(r"\d\.\d{2,}")


def shown(found: Any) -> set[str]:
    """Every fraction in a part of the report, as a page may show it."""
    if isinstance(found, dict):
        return set().union(*[shown(item) for item in found.values()])
    if isinstance(found, list):
        return set().union(*[shown(item) for item in found])
    if isinstance(found, float):
        return {f"{abs(found):.{digits}f}" for digits in (2, 3, 4)}
    return set()


def test_a_hospitals_page_has_its_own_numbers_and_no_other_hospital(
    consortium: Path, report: dict[str, Any]
) -> None:
    for site in report["sites"]:
        page = Page(consortium / "site_reports" / f"{site}.html")
        parts = [report["decision"]["hospitals"][site]]
        for found in report["strategies"].values():
            parts.append(found["sites"][site])
            parts += [points.get(site) for points in found["series"].values()]
        # Drawings are of the series.
        html = re.sub("<svg.*?</svg>|<footer>.*", "", page.html.split("<body>")[1], flags=re.DOTALL)
        found = set(NUMBER.findall(html))
        assert len(found) > 5 and found <= shown(parts), site
        assert (
            site in page.text
            and report["strategies"]["FedCE"]["ledger_heads"]["FedCE"] in page.text
        )
        assert not [other for other in set(report["sites"]) - {site} if other in page.html]


def test_what_a_guard_says_of_others_stays_on_the_consortiums_page(tmp_path: Path) -> None:
    about = {site: {"updates": [1.0, 2.0, -3.0]} for site in ("elm", "oak")}
    scores = dict.fromkeys(("ash", "box", "elm", "oak"), 0.81)
    report_of(tmp_path, {"FedAvg": scores}, about=about, guards=[Copies()], size=1000)
    assert "elm, oak are nearly the same" in Page(tmp_path / "report.html").text
    page = Page(tmp_path / "site_reports" / "elm.html")
    assert "Copies" in page.text and "oak" not in page.text


def test_pages_of_hospitals_that_left_are_deleted_and_odd_names_leave_no_folder(
    tmp_path: Path,
) -> None:
    run = train(tmp_path / "run", FedCE(), {"elm": 0.8, "oak": 0.7, "yew": 0.6})
    call_sites(run, {"oak": "../oak"})
    folder = run / "site_reports"
    folder.mkdir()
    (folder / "gone.html").write_text("of an earlier report")
    write_report([run])
    assert len(list(folder.iterdir())) == 3 and not (folder / "gone.html").exists()
    assert not (run / "oak.html").exists()


# ---- the terminal


def test_the_terminal_shows_the_mean_of_every_run_and_names_are_no_markup(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    names = [f"Strategy{letter}" for letter in "ABCDEFGH"]
    for name in names:
        run = train(tmp_path / name, FedAvg(), {"elm": 0.8125, "oak": 0.75})
        call_sites(run, {"elm": "[red]elm", "FedAvg": name})
    text = as_text(write_report([tmp_path]))
    assert max(map(len, text.splitlines()[-3:])) <= 80 and "…" not in text
    assert text.count("0.781") == 8 and "[red]elm" in text
    assert all(name in text for name in names)
