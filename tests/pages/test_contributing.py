# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""CONTRIBUTING.md's way to ship a strategy and a measurement: its steps are enough.

What it asks for is there for every shipped strategy.
"""

from __future__ import annotations

import re
import shlex
import shutil
import textwrap
from pathlib import Path
from typing import Any

import pytest
from helpers import warm_python
from helpers.checkout import CHECKOUT
from helpers.driving import CLIENTS, play, reported
from helpers.shipped_strategies import SHIPPED
from prediction_entropy import prediction_entropy

from monai_fairfl import Strategy, Train
from monai_fairfl.messages import MEASUREMENTS, Entry, Range

GUIDE = (CHECKOUT / "CONTRIBUTING.md").read_text()
OVERVIEW = CHECKOUT / "docs" / "methods" / "README.md"


def letters(name: str) -> str:
    """A method's name, however it is written: ``Fed-LWR``, ``FedLWR``."""
    return re.sub(r"[^a-z]", "", name.lower())


@pytest.mark.parametrize("name", SHIPPED)
def test_every_shipped_strategy_is_on_the_pages(name: str) -> None:
    overview = re.findall(r"^\| \[([\w-]+)\]\((\w+\.md)\) \|", OVERVIEW.read_text(), re.MULTILINE)
    pages = {letters(method): OVERVIEW.parent / page for method, page in overview}
    assert letters(name) in pages, f"add a row for {name} to {OVERVIEW}"
    assert pages[letters(name)].is_file()


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the tests of a strategy need of the project, in a folder of its own."""
    copy = tmp_path_factory.mktemp("contributed")
    for folder in ("monai_fairfl", "tests", "docs"):
        leave_out = shutil.ignore_patterns("__pycache__", "images")
        shutil.copytree(CHECKOUT / folder, copy / folder, ignore=leave_out)
    for name in ("README.md", "CONTRIBUTING.md", "conftest.py", "pyproject.toml"):
        shutil.copy(CHECKOUT / name, copy / name)
    (copy / "bundles").symlink_to(CHECKOUT / "bundles")
    return copy


def edit(file: Path, old: str, new: str) -> None:
    """Put ``new`` in the place of ``old``, which is there once."""
    text = file.read_text()
    assert text.count(old) == 1
    file.write_text(text.replace(old, new))


def test_the_steps_of_a_strategy_are_enough(checkout: Path) -> None:
    # Steps 1 and 2: the class, and its name.
    package = checkout / "monai_fairfl" / "strategies"
    shutil.copy(checkout / "docs" / "examples" / "inverse_loss.py", package / "inverse_loss.py")
    line = "from .leave_one_out import LeaveOneOut as LeaveOneOut\n"
    named = "from .inverse_loss import InverseLoss as InverseLoss\n"
    edit(package / "__init__.pyi", line, named + line)

    # Step 3: the test.
    test = (checkout / "docs" / "examples" / "test_inverse_loss.py").read_text()
    test = test.replace("inverse_loss import", "monai_fairfl.strategies.inverse_loss import")
    test = test.replace('"inverse_loss.', '"monai_fairfl.strategies.inverse_loss.')
    (checkout / "tests" / "numbers" / "test_inverse_loss.py").write_text(test)

    # Steps 4 to 6: the pages.
    ditto = "| [Ditto](ditto.md) |"
    row = (
        "| [InverseLoss](inverse_loss.md) | training loss | 1 number | 1 | no | unusable labels |\n"
    )
    edit(checkout / "docs" / "methods" / "README.md", ditto, row + ditto)
    (checkout / "docs" / "methods" / "inverse_loss.md").write_text("# InverseLoss\n")

    row = "| `InverseLoss` | yes | yes | no: it needs `train_loss` |\n"
    edit(checkout / "docs" / "ledger.md", "| `Ditto` | yes |", row + "| `Ditto` | yes |")

    # Its two tests and doctest, the pages, the command's list, and the promises of all strategies.
    [shown] = re.findall(r"^\.venv/bin/python (-m pytest -q .*?)\n```", GUIDE, re.DOTALL | re.M)
    words = [*shlex.split(shown.replace("\\\n", " ")), "-p", "no:cacheprovider"]
    done = warm_python.run([*words, "--basetemp", "tmp"], checkout, PYTHONPATH=str(checkout))
    passed = re.search(r"^(\d+) passed", done.stdout, re.MULTILINE)
    assert passed is not None and int(passed[1]) >= 6, done.stdout[-3000:]


def test_a_measurement_is_added_without_the_package_as_the_guide_shows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    [block] = re.findall(r"```python\n(from monai_fairfl.messages import .*?)```", GUIDE, re.S)
    name = "prediction_entropy"
    assert name not in MEASUREMENTS

    # Within the package, its row has the path of the file that the steps name.
    [rows] = re.findall(r"```python\n(\"prediction_entropy\": Entry.*?)```", GUIDE, re.DOTALL)
    row = eval(f"{{{rows}}}", {"Entry": Entry, "Range": Range})[name]
    assert row.function == f"monai_fairfl.measurements.{name}.{prediction_entropy.__name__}"

    # After the test, the table is as it was.
    monkeypatch.setitem(MEASUREMENTS, name, None)
    exec(block, {name: prediction_entropy})
    assert MEASUREMENTS[name].function is prediction_entropy


def test_a_strategy_asks_for_a_measurement_as_the_guide_shows() -> None:
    [block] = re.findall(r"```python\n(requires = .*?)```", GUIDE, re.DOTALL)
    # The guide stops where the strategy has its numbers; here it puts them into a result.
    end = "    return self.finish(local, entropies, contributions=entropies)\n"
    body = textwrap.indent(block + end, "    ")
    names: dict[str, Any] = {"Strategy": Strategy, "Train": Train}
    exec(f"class Undecided(Strategy):\n{body}", names)

    strategy = names["Undecided"]()
    assert strategy.requires == {"prediction_entropy"}
    measured = reported("prediction_entropy", [0.5, 0.25, 0.25])
    updates = dict(zip(CLIENTS, ([1.0], [2.0], [4.0]), strict=True))
    [result] = play(strategy, [updates], [measured], start=[10.0])
    assert result.contributions == {"1": 0.5, "2": 0.25, "3": 0.25}
