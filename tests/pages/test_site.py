# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The documentation builds as a site, without a warning, and asks no other host for anything."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from helpers.checkout import CHECKOUT
from helpers.made_once import MadeOnce

pytest.importorskip("mkdocs")
pytest.importorskip("material")

LOADED = re.compile(r"""<(?:script|img|iframe|source)[^>]*\ssrc=["']?(?:https?:)?//[^"'>]+""")
STYLE = re.compile(r"""<link[^>]*\srel=["']?(?:stylesheet|preload|preconnect)["']?[^>]*https?://""")


@pytest.fixture(scope="session")
def site(made_once: MadeOnce) -> Path:
    """The site, built as `make site` builds it."""

    def build(folder: Path) -> None:
        words = [sys.executable, "-m", "mkdocs", "build", "--site-dir", str(folder)]
        environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
        found = subprocess.run(words, cwd=CHECKOUT, env=environment, capture_output=True, text=True)
        # mkdocs.yml is strict: a warning is an error. Not with --quiet, which does not count them.
        assert found.returncode == 0, found.stderr

    return made_once("site", build)


def test_every_page_is_on_the_site(site: Path) -> None:
    for page in (CHECKOUT / "docs").rglob("*.md"):
        place = page.relative_to(CHECKOUT / "docs")
        if place.parts[0] == "examples":
            continue
        shown = site / place.with_suffix(".html")
        if place.name == "README.md":
            shown = site / place.parent / "index.html"
        assert shown.exists(), f"{page} is not on the site"


def test_no_page_loads_anything_from_another_host(site: Path) -> None:
    pages = list(site.rglob("*.html"))
    assert len(pages) > 50
    for page in pages:
        text = page.read_text()
        assert not LOADED.search(text), page
        assert not STYLE.search(text), page
