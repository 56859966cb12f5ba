# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""JSON from somebody else: read within limits of size and depth.

A text of a few bytes can be nested so deeply that a walk through it ends with a
``RecursionError``.
"""

from __future__ import annotations

import ast
import json
from contextlib import suppress
from typing import Any

MOST_BYTES = 100_000_000
"""Of a JSON file: a data list of half a million cases."""

MOST_DEPTH = 50
"""Objects and lists inside each other; the deepest of our own files has 10."""


def written_value(text: str) -> Any:
    """The plain value that somebody wrote, as JSON or as Python has it; else the text itself.

    >>> written_value('{"stereo": false}') == written_value("{'stereo': False}")
    True
    >>> written_value("auto")
    'auto'
    """
    for read in (json.loads, ast.literal_eval):
        with suppress(Exception):  # whatever a text leads to
            return read(text)
    return text


def object_of_json(text: bytes | str) -> dict[str, Any]:
    """The JSON object in a text.

    Raises:
        ValueError: when it is no JSON, no object, too large or nested too deeply.

    >>> object_of_json('{"a": 1}')
    {'a': 1}
    >>> object_of_json("[1]")
    Traceback (most recent call last):
    ...
    ValueError: it holds no JSON object but a list
    >>> object_of_json("[" * 100_000)
    Traceback (most recent call last):
    ...
    ValueError: it is nested deeper than 50 levels
    """
    if len(text) > MOST_BYTES:
        raise ValueError(f"it has {len(text)} bytes, at most {MOST_BYTES} are read")
    too_deep = ValueError(f"it is nested deeper than {MOST_DEPTH} levels")
    try:
        found = json.loads(text)
    except RecursionError:
        raise too_deep from None
    if not isinstance(found, dict):
        raise ValueError(f"it holds no JSON object but a {type(found).__name__}")
    level: list[Any] = [found]
    for _ in range(MOST_DEPTH + 1):
        containers = [item for item in level if isinstance(item, (dict, list))]
        level = []
        for item in containers:
            level += item.values() if isinstance(item, dict) else item
    if level:
        raise too_deep
    return found
