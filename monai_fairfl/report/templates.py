# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The templates of the pages, which show names from outside as text."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import resources
from typing import Any


def filled(
    template: str, values: Mapping[str, Any], functions: Mapping[str, Callable[..., Any]] = {}
) -> str:
    """A template of this package with its values, all of them escaped.

    Args:
        template: name of its file.
        values: name -> value; one that the template uses and that is missing is an error.
        functions: name -> function that the template calls, in its macros too.

    Raises:
        ImportError: when jinja2 is not installed.
    """
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(_text_of),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals.update(functions)
    return environment.get_template(template).render(values)


def _text_of(template: str) -> str:
    """The text of a template of this package."""
    return resources.files(__package__).joinpath(template).read_text(encoding="utf-8")
