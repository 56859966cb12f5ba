# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Shows pages that lie outside ``docs`` on the site, and leads links to them there.

On a code host ``[security](../SECURITY.md)`` leads to a file of the project. The site has that file
as the page ``project/security.md``, and this hook changes the link. Links to source files, which
are no pages, become plain text.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from latex2mathml.converter import convert
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[2]
PAGES = {
    "README.md": "index.md",
    "SECURITY.md": "project/security.md",
    "CONTRIBUTING.md": "project/contributing.md",
    "CHANGELOG.md": "project/changelog.md",
    "experiments/README.md": "project/experiments.md",
    "bundles/prostate_mri_segmentation/docs/README.md": "project/prostate_bundle.md",
    "bundles/fundus_disc_cup_segmentation/docs/README.md": "project/fundus_bundle.md",
}
"""A page's file in the project -> its place on the site."""
FORMULA = re.compile(r"^```math\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s]+)\)")
FENCE = "```"


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that lie outside ``docs``."""
    for source, place in PAGES.items():
        content = (ROOT / source).read_text(encoding="utf-8")
        files.append(File.generated(config, place, content=content))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Change a page's links so that they lead to the site's pages, and formulas to MathML."""
    markdown = FORMULA.sub(_formula, markdown)
    source = _source(page.file.src_uri)
    parts = []
    for in_code, part in _parts(markdown):
        if not in_code:
            part = LINK.sub(lambda found: _link(found, source, page.file.src_uri, files), part)
        parts.append(part)
    return "".join(parts)


def _formula(found: re.Match[str]) -> str:
    """Return a formula as browsers show it without help from another host."""
    formula = convert(" ".join(found.group(1).split()), display="block")
    return f'<div style="overflow-x: auto">{formula}</div>\n'


def _parts(markdown: str) -> Iterator[tuple[bool, str]]:
    """Yield whether each part of a page is code, and the part; a link may go over two lines."""
    part = ""
    in_code = False
    for line in markdown.splitlines(keepends=True):
        if not line.lstrip().startswith(FENCE):
            part += line
            continue
        # The lines of the two fences belong to the code.
        if in_code:
            part += line
            yield True, part
            part = ""
        else:
            yield False, part
            part = line
        in_code = not in_code
    yield in_code, part


def _source(place: str) -> str:
    """Return the project's file of a page, by its place on the site."""
    for source, page in PAGES.items():
        if page == place:
            return source
    return f"docs/{place}"


def _link(found: re.Match[str], source: str, place: str, files: Files) -> str:
    """Return a link of the page ``source``, as it must be in its place on the site."""
    image, text, target = found.groups()
    path, mark, anchor = target.partition("#")
    if not path or "://" in path:
        return found.group()
    file = posixpath.normpath(str(PurePosixPath(source).parent / path))
    on_site = PAGES.get(file)
    if on_site is None and file.startswith("docs/") and _is_shown(file, files):
        on_site = file.removeprefix("docs/")
    if on_site is None:
        # A source file or a folder: the site has no page for it.
        return f"{text} (`{file}`)"
    relative = posixpath.relpath(on_site, str(PurePosixPath(place).parent))
    return f"{image}[{text}]({relative}{mark}{anchor})"


def _is_shown(file: str, files: Files) -> bool:
    """Return whether the site has a file of ``docs``, written or generated."""
    if file.startswith(("docs/examples", "docs/site")) or file.endswith(".py"):
        return False
    return files.get_file_from_path(file.removeprefix("docs/")) is not None
