# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The package's rooms: what their faces promise is there, and who may use whom is checked."""

from __future__ import annotations

import ast
import importlib
import inspect
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from types import FunctionType, ModuleType

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


WITHOUT_EXAMPLE = {
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


def test_every_strategy_of_the_room_is_in_its_face() -> None:
    room = PACKAGE / "strategies"
    names = names_of(room / "__init__.pyi")
    for file in sorted(room.glob("[a-z]*.py")):
        module = importlib.import_module(f"monai_fairfl.strategies.{file.stem}")
        for name, kind in vars(module).items():
            own = inspect.isclass(kind) and kind.__module__ == module.__name__
            if own and issubclass(kind, strategies.Strategy):
                assert name in names, f"add {name} to {room / '__init__.pyi'}"
