# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The documentation builds as a site, without a warning, and asks no other host for anything."""

from __future__ import annotations

import re
from pathlib import Path

from helpers.checkout import CHECKOUT

LOADED = re.compile(r"""<(?:script|img|iframe|source)[^>]*\ssrc=["']?(?:https?:)?//[^"'>]+""")
STYLE = re.compile(r"""<link[^>]*\srel=["']?(?:stylesheet|preload|preconnect)["']?[^>]*https?://""")


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
