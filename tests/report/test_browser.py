# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The report as a browser shows it: on a desk, on a phone and on paper.

They need Chromium, by its name or in ``MONAI_FAIRFL_BROWSER``, and skip where there is none.
"""

from __future__ import annotations

import html
import json
import os
import re
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from monai_fairfl.report import write_report
from monai_fairfl.report.site_pages import SITE_REPORTS
from monai_fairfl.report.verdicts import VERDICTS

pytest.importorskip("jinja2")

WriteRun = Callable[..., Path]
NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
PHONE = 390
MEASURE = """
<!DOCTYPE html><title>waiting</title>
<iframe id="page" style="width:%(width)dpx;height:3000px"></iframe>
<script>
const frame = document.getElementById("page");
frame.onload = () => {
  const page = frame.contentDocument;
  const all = (selector, of) => [...(of || page).querySelectorAll(selector)];
  const wide = all("main *").filter((element) =>
    !element.closest(".scroll") && !element.closest("svg") && !element.closest("thead")
    && element.getBoundingClientRect().right > %(width)d + 1);
  const rows = all("table.hospitals")[0].querySelectorAll("tbody tr");
  const found = {
    requests: frame.contentWindow.performance.getEntriesByType("resource").length,
    width: page.documentElement.scrollWidth,
    scrolled: all(".scroll").filter((element) => element.scrollWidth > element.clientWidth + 1)
      .map((element) => element.getAttribute("aria-label")),
    wide: wide.map((element) => element.outerHTML.slice(0, 80)),
    rows: [...rows].map((row) => ({
      site: row.querySelector("th").textContent,
      verdicts: all(".verdict", row).map((verdict) => verdict.textContent),
      height: row.getBoundingClientRect().height,
    })),
    first: all("table.hospitals")[0].getBoundingClientRect().bottom,
    lead: page.querySelector(".lead").textContent,
    unnamed: all("figure svg[role=img]").filter((svg) => !svg.getAttribute("aria-label")).length,
    ran: frame.contentWindow.ran || null,
  };
  document.body.textContent = "FOUND" + JSON.stringify(found) + "END";
};
frame.srcdoc = %(page)s;
</script>
"""


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., str]:
    """Runs a headless browser with further arguments, and returns what it prints."""
    candidates = (os.environ.get("MONAI_FAIRFL_BROWSER", ""), *NAMES)
    paths = [shutil.which(name) for name in candidates if name]
    program = next((path for path in paths if path), None)
    if program is None:
        pytest.skip("no browser: install Chromium, or name one in MONAI_FAIRFL_BROWSER")
    profile = tmp_path_factory.mktemp("profile")

    def run(*arguments: str) -> str:
        usual = ("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run")
        command = [program, *usual, f"--user-data-dir={profile}", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


@pytest.fixture(scope="module")
def report(
    comparison: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[dict[str, Any], Path]:
    """The report of three strategies at four hospitals."""
    out = tmp_path_factory.mktemp("report")
    return write_report([comparison], out), out


def measured(browser: Callable[..., str], file: Path, width: int, folder: Path) -> dict[str, Any]:
    """What a page is like in a window of this width."""
    page = json.dumps(file.read_text()).replace("</", "<\\/")
    frame = folder / f"frame-{width}.html"
    frame.write_text(MEASURE % {"width": width, "page": page})
    dom = browser("--virtual-time-budget=5000", "--dump-dom", frame.as_uri())
    [text] = re.findall("FOUND(.*)END", html.unescape(dom), re.DOTALL)
    found: dict[str, Any] = json.loads(text)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("width", [PHONE, 1280])
def test_each_hospital_is_a_row_with_one_verdict_and_they_add_up(
    width: int, browser: Callable[..., str], report: tuple[dict[str, Any], Path], tmp_path: Path
) -> None:
    numbers, out = report
    found = measured(browser, out / "report.html", width, tmp_path)
    assert [row["site"] for row in found["rows"]] == list(numbers["sites"])
    titles = []
    for row in found["rows"]:
        [title] = row["verdicts"]
        titles.append(title)
        assert row["height"] > 20
    counts = {}
    for verdict in VERDICTS.values():
        if verdict.title in titles:
            counts[verdict.counted] = titles.count(verdict.title)
    words = ", ".join(f"{count} {counted}" for counted, count in counts.items())
    assert found["lead"] == f"{numbers['focus']}, 4 hospitals: {words}."
    assert sum(counts.values()) == 4

    assert found["requests"] == 0
    assert found["unnamed"] == 0
    # Nothing but tables that scroll is wider than the window.
    assert found["width"] <= width and found["wide"] == []
    if width > PHONE:
        assert found["first"] < 800
    # No table scrolls sideways.
    assert found["scrolled"] == []


@pytest.mark.slow
def test_on_paper_it_has_two_pages_and_a_sites_page_has_one(
    browser: Callable[..., str], report: tuple[dict[str, Any], Path], tmp_path: Path
) -> None:
    _, out = report
    for file, most in ((out / "report.html", 2), (out / SITE_REPORTS / "elm.html", 1)):
        paper = tmp_path / "paper.pdf"
        browser("--no-pdf-header-footer", f"--print-to-pdf={paper}", file.as_uri())
        pages = re.findall(rb"/Type\s*/Page\b", paper.read_bytes())
        assert 1 <= len(pages) <= most


@pytest.fixture
def listener() -> Iterator[tuple[str, list[str]]]:
    """A web server on this machine: its address, and the paths that were asked of it."""
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:  # noqa: N802
            asked.append(self.path)
            self.send_response(200)
            self.end_headers()

        def log_message(self, *arguments: Any) -> None:
            """Print nothing."""

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", asked
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.slow
def test_no_name_runs_and_no_request_leaves_the_file(
    browser: Callable[..., str],
    listener: tuple[str, list[str]],
    write_run: WriteRun,
    tmp_path: Path,
) -> None:
    address, asked = listener
    names = [
        f"<img src={address}/image>",
        f'"><script>window.ran = 1; fetch("{address}/script")</script>',
        f"</title></desc></svg><link rel=stylesheet href={address}/style>",
        f"</style><style>@import '{address}/import';",
    ]
    record = {
        "contributions": dict.fromkeys(names, 0.25),
        "aggregation": dict.fromkeys(names, 0.25),
        "samples": dict.fromkeys(names, 5),
        "notes": dict.fromkeys(names, names[0]),
        "measurements": {name: {"global_score": 0.5} for name in names},
        "gram": {"clients": names, "whole": [[1.0 + (i == j) for i in range(4)] for j in range(4)]},
    }
    scores = dict.fromkeys(names, 0.5)
    run = write_run("FedCE", scores, rounds=[record] * 2, name=names[1], clients=names)
    write_report([run, write_run("Standalone", scores, clients=names)], tmp_path / "out")
    pages = sorted((tmp_path / "out").rglob("*.html"))
    assert len(pages) == 1 + len(names)
    found = measured(browser, tmp_path / "out" / "report.html", PHONE, tmp_path)
    assert found["ran"] is None and found["requests"] == 0
    assert sorted(row["site"] for row in found["rows"]) == sorted(names)
    assert found["width"] <= PHONE
    assert asked == []

    # The server would have noticed.
    bait = tmp_path / "bait.html"
    bait.write_text(f"<img src={address}/bait>")
    browser("--dump-dom", bait.as_uri())
    assert asked == ["/bait"]
