# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The templates of the pages, which show names from outside as text."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any


def filled(template: str, values: Mapping[str, Any]) -> str:
    """A template of this package with its values, all of them escaped.

    Args:
        template: name of its file.
        values: name -> value or function; one that the template uses and that is missing is an
            error.

    Raises:
        ImportError: when jinja2 is not installed.
    """
    return str(_environment().get_template(template).render(values))


@cache
def _environment() -> Any:
    """What compiles the templates, each once."""
    import jinja2

    return jinja2.Environment(
        loader=jinja2.PackageLoader(__package__, ""),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
