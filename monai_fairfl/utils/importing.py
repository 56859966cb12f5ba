# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""What a dotted path names, and in plain words why it cannot be imported."""

from __future__ import annotations

import inspect
import os
import pkgutil
import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

from monai_fairfl.errors import ConfigError, closest, did_you_mean, in_words


def load_by_path(path: object, what: str) -> Any:
    """The class or function at a dotted path, ``module.Name`` or ``package.module.Name``.

    Args:
        path: the dotted path.
        what: the kind of thing that it is for, such as ``"strategy"``; errors name it.

    Returns:
        What the path names. Whether that is of the wanted kind is for the caller to check.

    Raises:
        ConfigError: when it is no dotted path, its module is not found or fails, or has no such
            name. The text names which, where it was looked for, and what has a similar name.

    >>> load_by_path("monai_fairfl.strategies.FedCE", "strategy").__name__
    'FedCE'
    >>> load_by_path("monai_fairfl.strategies.FedSee", "strategy")
    Traceback (most recent call last):
        ...
    monai_fairfl.errors.ConfigError: unknown strategy 'monai_fairfl.strategies.FedSee': ...
    """
    names = path.split(".") if isinstance(path, str) else []
    if len(names) < 2 or not all(name.isidentifier() for name in names):
        raise ConfigError(
            f"{what} {path!r} is no dotted path: write MODULE.NAME, such as 'my_methods.MyMethod'"
        )

    # Modules come first: as many of the names as there are modules.
    module = _imported(names[0], str(path), what)
    rest = names[1:]
    while rest and hasattr(module, "__path__") and find_spec(f"{module.__name__}.{rest[0]}"):
        module = _imported(f"{module.__name__}.{rest.pop(0)}", str(path), what)

    # What is left of the path are attributes: a class, or something in one.
    found: Any = module
    for name in rest:
        if not hasattr(found, name):
            raise ConfigError(
                f"unknown {what} {path!r}: {found.__name__} has no {name!r}"
                f"{did_you_mean(name, _public_names(found))}"
            )
        found = getattr(found, name)
    return found


def _imported(name: str, path: str, what: str) -> ModuleType:
    """The module ``name`` of ``path``."""
    if name not in sys.modules and find_spec(name) is None:
        raise ConfigError(f"unknown {what} {path!r}: {_why_missing(name)}")
    try:
        return import_module(name)
    except (Exception, SystemExit) as error:  # whatever the module does when it is imported
        raise ConfigError(
            f"{what} {path!r} cannot be imported, its module {name} fails: {in_words(error)}"
        ) from error


def _why_missing(module: str) -> str:
    """Where a module was looked for, and how it is found."""
    search_path = os.environ.get("PYTHONPATH", "")
    here = Path.cwd()
    if (here / f"{module}.py").is_file() or (here / module / "__init__.py").is_file():
        return (
            f"{module} lies in this folder, which is not on PYTHONPATH; write PYTHONPATH=. "
            "before the command"
        )
    folders = [str(here), *filter(None, search_path.split(os.pathsep))]
    # Any of them may be unrelated: without a similar name, none is named.
    meant = closest(module, [found.name for found in pkgutil.iter_modules(folders)])
    hint = "" if meant is None else f"; did you mean {meant!r}?"
    return (
        f"there is no module {module!r}{hint}; put the folder that holds {module}.py on "
        f"PYTHONPATH, which is {search_path or 'not set'}"
    )


def _public_names(owner: Any) -> list[str]:
    """Names that a package, module or class offers.

    These are its modules, then ``__all__``; without that, its own classes and functions.
    """
    names = [found.name for found in pkgutil.iter_modules(getattr(owner, "__path__", []))]
    if hasattr(owner, "__all__"):
        return [*names, *owner.__all__]
    home = getattr(owner, "__module__", owner.__name__)
    for name, value in vars(owner).items():
        usable = inspect.isclass(value) or inspect.isfunction(value)
        if usable and not name.startswith("_") and value.__module__ == home:
            names.append(name)
    return names
