# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Puts the tables and figures of the experiments into the pages that name them.

A page has a line ``<!-- result NAME -->`` where ``experiments/results.py`` makes ``NAME``.
"""

from __future__ import annotations

import posixpath
import re
import sys
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

sys.path.insert(0, str(Path(__file__).parents[2] / "experiments"))

import results  # noqa: E402

# All are imported here: MkDocs takes back what a hook adds to the path.
MAKERS = results.makers()
MARKER = re.compile(r"<!-- result (\w+) -->")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the figures, which are drawn from the tables of the studies."""
    for name, makers in MAKERS.items():
        if "figure" in makers:
            files.append(File.generated(config, place(name), content=results.picture(name)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Put a table and a figure in the place of each line that names them."""

    def made(found: re.Match[str]) -> str:
        return block(found.group(1), posixpath.dirname(page.file.src_uri))

    return MARKER.sub(made, markdown)


def block(name: str, folder: str) -> str:
    """Make what a page shows.

    Args:
        name: of a result.
        folder: of the page on the site.
    """
    parts: list[Any] = []
    if "table" in MAKERS[name]:
        parts.append(results.block(name))
    if "figure" in MAKERS[name]:
        way = posixpath.relpath(place(name), folder or ".")
        parts.append(f"![{results.title(name)}]({way})")
    return "\n\n".join(parts)


def place(name: str) -> str:
    """Return a figure's place on the site."""
    return f"images/results/{name}.svg"
