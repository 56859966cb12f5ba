# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The numbers of ``docs/faq.md`` stand on the pages that it leads to."""

from __future__ import annotations

import re

import pytest
from helpers.checkout import CHECKOUT

DOCS = CHECKOUT / "docs"
PAGE = (DOCS / "faq.md").read_text()


def answers() -> dict[str, str]:
    """Question -> its answer, in one line."""
    found = {}
    for part in PAGE.split("\n### ")[1:]:
        question, _, answer = part.partition("\n")
        found[question] = " ".join(answer.partition("\n## ")[0].split())
    return found


def quoted(question: str) -> list[str]:
    """The numbers with two digits or more that an answer quotes."""
    return re.findall(r"\d[\d.,]*\d", re.sub(r"\]\([^)]*\)", "", answers()[question]))


@pytest.mark.parametrize("question", [each for each in answers() if quoted(each)])
def test_every_number_of_an_answer_is_on_a_page_that_it_leads_to(question: str) -> None:
    pages = ""
    for link in re.findall(r"\]\(([^)#]+\.md)", answers()[question]):
        pages += (DOCS / link).read_text()
    for number in quoted(question):
        assert re.search(rf"(?<![\d.]){re.escape(number)}(?![\d])", pages), number
