# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The pages of results: every number of their sentences stands in a table, and they stay short."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from helpers.checkout import CHECKOUT

DOCS = CHECKOUT / "docs"
FIRST = DOCS / "results.md"
PAGES = [FIRST, *sorted((DOCS / "results").glob("*.md"))]
BLOCK = re.compile(r"<!-- begin (\w+) -->.*?<!-- end \1 -->", re.DOTALL)
NUMBER = re.compile(r"\d+\.\d+")
NO_RESULT = re.compile(r"`[^`]*`|arXiv \S+|FLARE \d\S*")
"""Settings, which stand in code; papers; versions."""
LINK = re.compile(r"\]\(([^)#\s]+\.md)")


def prose_of(page: Path) -> str:
    """The sentences: without tables, figures and what code makes."""
    lines = BLOCK.sub("", page.read_text()).splitlines()
    return "\n".join(line for line in lines if not line.startswith("|"))


def numbers_of_tables(page: Path) -> set[str]:
    """The numbers with a decimal point in tables, and in what else code makes."""
    made = [found.group() for found in BLOCK.finditer(page.read_text())]
    rows = [line for line in page.read_text().splitlines() if line.startswith("|")]
    return set(NUMBER.findall("\n".join(made + rows)))


def without_a_table(page: Path) -> list[str]:
    """Numbers of sentences that are in no table of the page, nor of a page that the item links."""
    found = []
    for item in re.split(r"\n\s*\n|\n- ", prose_of(page)):
        known = numbers_of_tables(page)
        for link in LINK.findall(item):
            known |= numbers_of_tables((page.parent / link).resolve())
        for number in NUMBER.findall(NO_RESULT.sub("", item)):
            if number not in known:
                found.append(f"{page.name}: {number} in {item!r}")
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_number_of_a_sentence_stands_in_a_table_of_its_page_or_of_a_linked_one(
    page: Path,
) -> None:
    assert without_a_table(page) == []


def test_a_number_that_no_table_has_is_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    table = "<!-- begin t -->\n| 0.789 |\n<!-- end t -->"
    page.write_text(f"# Page\n\n- BIDMC has 0.789.\n- HK has 0.843.\n\n{table}\n")
    assert [each.partition(" in ")[0] for each in without_a_table(page)] == ["page.md: 0.843"]


def test_the_first_screen_is_short_and_leads_to_every_page() -> None:
    words = prose_of(FIRST).split()
    assert len(words) <= 900
    decisions = BLOCK.search(FIRST.read_text())
    assert decisions is not None and decisions.group(1) == "what_to_use"
    rows = [line for line in decisions.group().splitlines() if line.startswith("| ")]
    assert 1 <= len(rows) - 2 <= 10
    for page in PAGES[1:]:
        by_hand = BLOCK.sub("", FIRST.read_text())
        assert f"](results/{page.name})" in by_hand, f"no link to {page.name}"


@pytest.mark.parametrize("page", PAGES[1:], ids=lambda page: page.name)
def test_every_page_begins_with_what_was_seen_in_at_most_ten_items(page: Path) -> None:
    _, heading, rest = page.read_text().partition("## What was seen\n")
    if heading:
        section = rest.partition("\n## ")[0]
        assert 1 <= section.count("\n- ") <= 10


def test_every_link_of_the_pages_leads_to_a_page_and_its_heading() -> None:
    for page in PAGES:
        for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
            path, _, anchor = target.partition("#")
            if path.startswith("http"):
                continue
            file = page
            if path:
                file = (page.parent / path).resolve()
            assert file.exists(), f"{page.name}: {target}"
            if anchor and file.suffix == ".md":
                assert anchor in anchors_of(file), f"{page.name}: {target}"


def anchors_of(page: Path) -> set[str]:
    """The anchors that code hosts give to headings."""
    anchors = set()
    for line in page.read_text().splitlines():
        if line.startswith("#"):
            heading = line.lstrip("#").strip().lower()
            anchors.add(re.sub(r"[^\w\- ]", "", heading).replace(" ", "-"))
    return anchors
