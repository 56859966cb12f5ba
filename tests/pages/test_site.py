# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The documentation builds as a site, without a warning, and asks no other host for anything."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from helpers.checkout import CHECKOUT

sys.path.append(str(CHECKOUT / "experiments"))

import results  # noqa: E402

LOADED = re.compile(r"""<(?:script|img|iframe|source)[^>]*\ssrc=["']?(?:https?:)?//[^"'>]+""")
STYLE = re.compile(r"""<link[^>]*\srel=["']?(?:stylesheet|preload|preconnect)["']?[^>]*https?://""")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site as `make site` builds it, without the tables of results, which are tested alone."""
    build = pytest.importorskip("mkdocs.commands.build")
    config = pytest.importorskip("mkdocs.config")
    pytest.importorskip("material")
    folder = tmp_path_factory.mktemp("site")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(results, "block", lambda name: f"Table of {name}.")
        # mkdocs.yml is strict: a warning is an error.
        build.build(config.load_config(str(CHECKOUT / "mkdocs.yml"), site_dir=str(folder)))
    return folder


def test_every_page_is_on_the_site(site: Path) -> None:
    for page in (CHECKOUT / "docs").rglob("*.md"):
        place = page.relative_to(CHECKOUT / "docs")
        if place.parts[0] == "examples":
            continue
        shown = site / place.with_suffix(".html")
        if place.name == "README.md":
            shown = site / place.parent / "index.html"
        assert shown.exists(), f"{page} is not on the site"


def test_a_table_of_results_is_where_its_page_names_it(site: Path) -> None:
    assert "Table of fedce_table2." in (site / "results" / "fedce.html").read_text()


def test_no_page_loads_anything_from_another_host(site: Path) -> None:
    pages = list(site.rglob("*.html"))
    assert len(pages) > 50
    for page in pages:
        text = page.read_text()
        assert not LOADED.search(text), page
        assert not STYLE.search(text), page
