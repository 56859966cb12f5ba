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
from collections.abc import Callable
from pathlib import Path

import pytest

from .conftest import EVIL

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
MEASURE = """
<!DOCTYPE html><title>waiting</title>
<body><script>
const pages = %s, found = {};
for (const [width, text] of Object.entries(pages)) {
  const frame = document.createElement("iframe");
  frame.style = `width:${width}px;height:3000px`;
  frame.srcdoc = text;
  frame.onload = () => {
    const page = frame.contentDocument;
    const table = page.querySelector("table");
    const rows = [...table.querySelectorAll("tbody tr")];
    found[width] = {
      requests: frame.contentWindow.performance.getEntriesByType("resource").length,
      width: page.documentElement.scrollWidth,
      rows: rows.map((row) => row.querySelector("th").textContent),
      heights: rows.map((row) => row.getBoundingClientRect().height),
      first: table.getBoundingClientRect().bottom,
      ran: frame.contentWindow.ran || null,
    };
    if (Object.keys(found).length == Object.keys(pages).length)
      document.body.textContent = "FOUND" + JSON.stringify(found) + "END";
  };
  document.body.append(frame);
}
</script>
"""


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., str]:
    """Runs a headless browser with further arguments, and returns what it prints."""
    candidates = (os.environ.get("MONAI_FAIRFL_BROWSER", ""), *NAMES)
    program = next((found for name in candidates if name and (found := shutil.which(name))), None)
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


def test_each_hospital_is_a_row_nothing_is_wider_than_the_window_and_no_name_runs(
    browser: Callable[..., str], consortium: Path, tmp_path: Path
) -> None:
    pages = {1280: consortium / "report.html", 390: consortium / "evil" / "report.html"}
    texts = json.dumps({width: file.read_text() for width, file in pages.items()})
    (tmp_path / "frames.html").write_text(MEASURE % texts.replace("</", "<\\/"))
    address = (tmp_path / "frames.html").as_uri()
    dom = browser("--virtual-time-budget=5000", "--dump-dom", address)
    [text] = re.findall("FOUND(.*)END", html.unescape(dom), re.DOTALL)
    for width, found in json.loads(text).items():
        assert sorted(found["rows"]) == sorted(EVIL if width == "1280" else EVIL.values())
        assert min(found["heights"]) > 20
        assert found["width"] <= int(width)
        assert found["requests"] == 0 and found["ran"] is None
        # On a desk the rows are on the first screen.
        assert found["first"] < 800 or width == "390"


def test_on_paper_it_has_two_pages_and_a_hospitals_page_has_one(
    browser: Callable[..., str], consortium: Path, tmp_path: Path
) -> None:
    for name, most in (("report.html", 2), ("site_reports/elm.html", 1)):
        paper = tmp_path / "paper.pdf"
        browser("--no-pdf-header-footer", f"--print-to-pdf={paper}", (consortium / name).as_uri())
        pages = re.findall(rb"/Type\s*/Page\b", paper.read_bytes())
        assert 1 <= len(pages) <= most
