# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The package's rooms: what their faces promise is there, and who may use whom is checked."""

from __future__ import annotations

import ast
import builtins
import doctest
import importlib
import inspect
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from types import FunctionType, ModuleType

import pytest

import monai_fairfl
from monai_fairfl import strategies

CHECKOUT = Path(__file__).parents[1]
PACKAGE = CHECKOUT / "monai_fairfl"
FACES = sorted(PACKAGE.rglob("__init__.pyi"))
ENGINES = {"flare": "nvflare", "flower": "flwr"}


def dotted(face: Path) -> str:
    """The package of a face."""
    return ".".join(face.parent.relative_to(CHECKOUT).parts)


def names_of(face: Path) -> list[str]:
    """The names that a face promises."""
    names = []
    for node in ast.parse(face.read_text()).body:
        if isinstance(node, ast.ImportFrom):
            names += [alias.name for alias in node.names]
    return names


def rooms() -> Iterator[tuple[ModuleType, list[str]]]:
    """Each room whose engine is installed, and the names that its face promises."""
    for face in FACES:
        needed = ENGINES.get(face.parent.name)
        if needed is None or find_spec(needed) is not None:
            yield importlib.import_module(dotted(face)), names_of(face)


def test_a_face_has_every_name_that_it_promises() -> None:
    for package, names in rooms():
        for name in names:
            assert getattr(package, name) is not None


def test_no_name_of_a_face_is_that_of_a_module_in_its_place() -> None:
    # Importing the module would put it into the place of the name.
    for face in FACES:
        modules = {path.stem for path in face.parent.iterdir()}
        assert not modules & set(names_of(face)), face


def needed_names(example: str) -> set[str]:
    """The names that the code of a docstring's example uses and does not make itself."""
    code = "".join(part.source for part in doctest.DocTestParser().get_examples(example))
    used, made = set(), set(dir(builtins))
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Name):
            (used if isinstance(node.ctx, ast.Load) else made).add(node.id)
        elif isinstance(node, ast.alias):
            made.add((node.asname or node.name).partition(".")[0])
        elif isinstance(node, ast.arg):
            made.add(node.arg)
        elif isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            made.add(node.name)
        elif isinstance(node, ast.ExceptHandler) and node.name is not None:
            made.add(node.name)
    return used - made


def test_an_example_makes_the_error_that_it_catches_and_not_the_other_names() -> None:
    example = """
    >>> try:
    ...     first(1)
    ... except Wrong as error:
    ...     print(error)
    ... except ValueError:
    ...     pass
    """
    assert needed_names(example) == {"first", "Wrong"}


def test_an_example_of_a_face_needs_only_its_names() -> None:
    """``from ROOM import *`` is enough to try it."""
    for package, names in rooms():
        for name in names:
            found = getattr(package, name)
            if inspect.isclass(found) or inspect.isfunction(found):
                assert needed_names(found.__doc__ or "") <= set(names), name


WITHOUT_EXAMPLE = {
    "write_dicom_seg": "needs highdicom, an extra",
    "FlowerTransport": "needs the grid of a run of Flower",
    "simulate_job": "begins a simulation of Flower, which takes seconds",
}
"""Name of a face that cannot have an example -> why."""


def has_example(found: type | FunctionType) -> bool:
    """Whether the docstring of a name has an example, or that of one of its public methods."""
    texts = [found.__doc__]
    if inspect.isclass(found):
        for name, part in vars(found).items():
            # A default of a dataclass is no method; a number's own text has examples.
            if not name.startswith("_") and hasattr(part, "__get__"):
                texts.append(part.__doc__)
    return any(">>>" in text for text in texts if text)


def test_every_name_of_a_face_has_an_example() -> None:
    for package, names in rooms():
        for name in names:
            found = getattr(package, name)
            if inspect.isclass(found) or inspect.isfunction(found):
                assert has_example(found) != (name in WITHOUT_EXAMPLE), f"{name}: an example (>>>)"


@pytest.mark.parametrize("package", ["monai_fairfl", "monai_fairfl.bundle"])
def test_help_names_what_a_package_that_lists_nothing_by_dir_offers(package: str) -> None:
    module = importlib.import_module(package)
    assert set(module.__all__) <= set(re.findall(r"``(\w+)``", module.__doc__ or ""))


def test_help_names_the_modules_of_the_top() -> None:
    modules = {file.stem for file in PACKAGE.glob("[a-z]*.py")}
    [sentence] = re.findall(r"The single modules[^.]*\.", monai_fairfl.__doc__ or "")
    assert set(re.findall(r"``(\w+)``", sentence)) == modules


def test_the_package_offers_some_twenty_names() -> None:
    assert set(monai_fairfl.__all__) == set(names_of(PACKAGE / "__init__.pyi"))
    assert 15 <= len(monai_fairfl.__all__) <= 30


def test_every_strategy_of_the_room_is_in_its_face() -> None:
    room = PACKAGE / "strategies"
    names = names_of(room / "__init__.pyi")
    for file in sorted(room.glob("[a-z]*.py")):
        module = importlib.import_module(f"monai_fairfl.strategies.{file.stem}")
        for name, kind in vars(module).items():
            own = inspect.isclass(kind) and kind.__module__ == module.__name__
            if own and issubclass(kind, strategies.Strategy):
                assert name in names, f"add {name} to {room / '__init__.pyi'}"


def test_the_contract_fails_when_a_strategy_uses_the_server(tmp_path: Path) -> None:
    copy = tmp_path / "monai_fairfl"
    shutil.copytree(PACKAGE, copy, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(CHECKOUT / "pyproject.toml", tmp_path)
    command = [
        sys.executable,
        "-c",
        "from importlinter.cli import lint_imports_command as run; run()",
    ]

    def lint() -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*command, "--no-cache"], cwd=tmp_path, capture_output=True, text=True
        )

    assert lint().returncode == 0, lint().stdout
    strategy = copy / "strategies" / "fedavg.py"
    line = "from monai_fairfl.server.federation import Federation\n"
    strategy.write_text(
        strategy.read_text().replace("from monai_fairfl.", line + "from monai_fairfl.", 1)
    )
    broken = lint()
    assert broken.returncode == 1
    assert "monai_fairfl.strategies is not allowed to import monai_fairfl.server" in broken.stdout
