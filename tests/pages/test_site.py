# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The documentation builds as a site, without a warning, and asks no other host for anything."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import results
from helpers.checkout import CHECKOUT

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


def test_the_site_has_every_page_and_table_and_loads_nothing_from_another_host(site: Path) -> None:
    for page in (CHECKOUT / "docs").rglob("*.md"):
        place = page.relative_to(CHECKOUT / "docs")
        if place.parts[0] != "examples":
            place = place.with_name("index.md") if place.name == "README.md" else place
            assert (site / place.with_suffix(".html")).exists(), f"{page} is not on the site"
    assert "Table of fedce_table2." in (site / "results" / "fedce.html").read_text()

    pages = list(site.rglob("*.html"))
    assert len(pages) > 50
    for page in pages:
        text = page.read_text()
        assert not LOADED.search(text) and not STYLE.search(text), page
