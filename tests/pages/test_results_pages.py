# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The pages of results: every number of their sentences stands in a table that the files give."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest
import results
from helpers.checkout import CHECKOUT

DOCS = CHECKOUT / "docs"
FIRST = DOCS / "results.md"
PAGES = [FIRST, *sorted((DOCS / "results").glob("*.md"))]
BUNDLES = sorted((CHECKOUT / "bundles").glob("*/docs/README.md"))
NUMBER = re.compile(r"\d+\.\d+")
NO_RESULT = re.compile(r"`[^`]*`|arXiv \S+|FLARE \d\S*|NVFlare \d\S*")
"""Settings, which stand in code; papers; versions."""
LINK = re.compile(r"\]\(([^)#\s]+\.md)")
MARKER = re.compile(r"<!-- result (\w+) -->")


@cache
def numbers_of_tables(page: Path) -> set[str]:
    """The numbers with a decimal point in the tables that the site has of a page."""
    text = page.read_text()
    texts = [text]
    for name in MARKER.findall(text):
        if "table" in results.makers()[name]:
            texts.append(results.block(name))
    rows = re.findall(r"^\|.*$", "\n".join(texts), re.MULTILINE)
    return set(NUMBER.findall(" ".join(rows)))


def without_a_table(page: Path) -> list[str]:
    """Numbers that are in no table of the page, nor of a page that the item or row links.

    The first page has no table of its own: its rows are items, too.
    """
    text = page.read_text()
    if page != FIRST:
        text = "\n".join(line for line in text.splitlines() if not line.startswith("|"))
    found = []
    for item in re.split(r"\n\s*\n|\n- |\n\| ", text):
        known = set() if page == FIRST else numbers_of_tables(page)
        for link in LINK.findall(item):
            known = known | numbers_of_tables((page.parent / link).resolve())
        for number in NUMBER.findall(NO_RESULT.sub("", item)):
            if number not in known:
                found.append(f"{page.name}: {number} in {item!r}")
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_number_of_a_sentence_stands_in_a_table_of_its_page_or_of_a_linked_one(
    page: Path,
) -> None:
    assert without_a_table(page) == []


@pytest.mark.parametrize("page", BUNDLES, ids=lambda page: page.parts[-3])
def test_a_bundles_results_are_those_of_the_pages_that_it_links(page: Path) -> None:
    section = page.read_text().partition("### Results\n")[2].partition("\n### ")[0]
    linked = [(page.parent / link).resolve() for link in LINK.findall(section)]
    linked = [each for each in linked if each.is_relative_to(DOCS)]
    known = set[str]().union(*(numbers_of_tables(each) for each in linked))
    numbers = NUMBER.findall(section)
    assert len(numbers) > 5 and set(numbers) <= known


def test_the_first_page_leads_to_every_other() -> None:
    for page in PAGES[1:]:
        assert f"](results/{page.name})" in FIRST.read_text()
