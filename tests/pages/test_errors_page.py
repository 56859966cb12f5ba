# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""What ``docs/errors.md`` quotes is what the package raises."""

from __future__ import annotations

import ast
import re

import pytest
from helpers.checkout import CHECKOUT

from monai_fairfl import errors
from monai_fairfl.utils.named_classes import is_subclass

PACKAGE = CHECKOUT / "monai_fairfl"
PAGE = (CHECKOUT / "docs" / "errors.md").read_text()
ANYTHING = "..."
"""What stands for a name, a number or a list in a message of the page."""

CLASSES = re.findall(r"^\| `(\w+)` \|", PAGE, re.MULTILINE)


def messages() -> list[str]:
    """The messages of the page: the first cells of the tables with causes."""
    found = []
    for table in PAGE.split("| message | cause | fix |\n")[1:]:
        for row in table.split("\n\n")[0].splitlines()[1:]:
            [message] = re.findall(r"^\| `([^`]+)` \| [^|]+ \| [^|]+ \|$", row)
            found.append(message)
    return found


def texts_of(tree: ast.AST) -> set[str]:
    """The texts of a module, docstrings left out; what an f-string computes is ``ANYTHING``."""
    texts = set()
    documenting = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            if id(node) not in documenting:
                texts.add(node.value)
        elif isinstance(node, ast.JoinedStr):
            text = ""
            for part in node.values:
                text += str(part.value) if isinstance(part, ast.Constant) else ANYTHING
            texts.add(text)
    return texts


@pytest.fixture(scope="module")
def texts() -> set[str]:
    """All texts of the package's code, in one line each."""
    found: set[str] = set()
    for file in PACKAGE.rglob("*.py"):
        found |= texts_of(ast.parse(file.read_text()))
    return {" ".join(text.split()) for text in found}


def test_there_are_as_many_different_messages_as_the_page_says() -> None:
    [said] = re.findall(r"the (\d+)\s+most\s+frequent\s+messages", PAGE)
    assert len(messages()) == len(set(messages())) == int(said)


def test_every_class_is_on_the_page_and_every_class_of_the_page_is_one() -> None:
    raised = set()
    for name, kind in vars(errors).items():
        if is_subclass(kind, errors.FairFLError):
            raised.add(name)
    assert set(CLASSES) == raised


def test_the_page_says_of_which_other_class_an_error_is() -> None:
    for name in CLASSES:
        [meaning] = re.findall(rf"^\| `{name}` \| ([^|]*) \|", PAGE, re.MULTILINE)
        for other in re.findall(r"\ba `(\w+)`", meaning):
            kinds = {kind.__name__ for kind in getattr(errors, name).__mro__}
            assert other in kinds, f"{name} is no {other}"


@pytest.mark.slow
@pytest.mark.parametrize("message", messages())
def test_the_fixed_words_of_a_message_are_in_one_text_of_the_code(
    message: str, texts: set[str]
) -> None:
    fixed = [re.escape(words.strip()) for words in message.split(ANYTHING)]
    pattern = re.compile(".*".join(fixed))
    assert any(pattern.search(text) for text in texts), f"nothing raises {message!r}"
