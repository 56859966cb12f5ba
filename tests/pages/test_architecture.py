# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The rooms of ``docs/architecture.md`` and the round that it shows are those of the code."""

from __future__ import annotations

import ast
import inspect
import re
import textwrap

from helpers.checkout import CHECKOUT

from monai_fairfl.strategies import FedAvg

PACKAGE = CHECKOUT / "monai_fairfl"
PAGE = (CHECKOUT / "docs" / "architecture.md").read_text()


def test_every_room_is_on_the_page_and_every_room_of_the_page_is_there() -> None:
    named = set()
    section = PAGE.partition("\n## The rooms\n")[2].partition("\n## ")[0]
    for cell in re.findall(r"^\| (`.+?) \|", section, re.MULTILINE):
        named |= {name.rstrip("/") for name in re.findall(r"`([\w./]+)`", cell)}
    for name in named:
        assert (PACKAGE / name).exists(), f"{name} is on the page, and not in the package"
    rooms = {path.name for path in PACKAGE.iterdir() if (path / "__init__.py").exists()}
    missing = rooms - {name.partition("/")[0] for name in named}
    assert not missing, f"describe {missing} in the page's table of rooms"


def test_the_round_that_the_page_shows_is_fedavgs() -> None:
    [block] = re.findall(r"```python\n(def round.*?)```", PAGE, re.DOTALL)
    shown = ast.parse(block).body[0]
    own = ast.parse(textwrap.dedent(inspect.getsource(FedAvg.round))).body[0]
    assert isinstance(shown, ast.FunctionDef) and isinstance(own, ast.FunctionDef)
    # The page leaves out types and comments.
    assert [argument.arg for argument in shown.args.args] == [
        argument.arg for argument in own.args.args
    ]
    assert [ast.dump(line) for line in shown.body] == [ast.dump(line) for line in own.body]
