# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The table of a study: what all its cells found, in one CSV.

A row is one cell and one site; the first row of a cell, without a site, has what concerns all of
them. A column is a path into the result, in which ``*`` stands for the site: ``test/dice/*`` is
``result["test"]["dice"][site]``. A list, such as a value of each round or case, is written
``[0.25 0.5 null]``. Numbers have the digits that JSON would give them. An empty field was not
measured. Tables above 300 kB are gzipped; ``zcat`` and pandas read both.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any

from monai_fairfl.utils.files import write_atomically

# Python's own limit for a field is 128 kB.
csv.field_size_limit(2**30)
MOST_BYTES = 300_000
SITE = "*"
WITH_SITES = ("samples", "touched", "testing")
"""Keys of a result whose keys are its sites."""


def read(stem: Path) -> Mapping[str, Mapping[str, Any]]:
    """Read a table: name of a cell -> its result. Without a file it is empty.

    Args:
        stem: path of the table without ``.csv`` or ``.csv.gz``.
    """
    file = _file(stem)
    if file is None:
        return {}
    status = file.stat()
    return _read(file, status.st_mtime_ns, status.st_size)


@lru_cache(maxsize=64)
def _read(file: Path, changed: int, size: int) -> Mapping[str, Mapping[str, Any]]:
    """Read a file; as long as it does not change, once."""
    content = file.read_bytes()
    if file.suffix == ".gz":
        content = gzip.decompress(content)
    found: dict[str, dict[str, Any]] = {}
    for row in csv.DictReader(io.StringIO(content.decode(), newline="")):
        result = found.setdefault(row.pop("cell"), {})
        site = row.pop("site")
        for column, text in row.items():
            if text:
                path = [site if part == SITE else part for part in column.split("/")]
                _put(result, path, value_of(text))
    return found


def _put(result: dict[str, Any], path: list[str], value: Any) -> None:
    for part in path[:-1]:
        result = result.setdefault(part, {})
    result[path[-1]] = value


def _file(stem: Path) -> Path | None:
    for ending in (".csv.gz", ".csv"):
        file = stem.with_name(stem.name + ending)
        if file.exists():
            return file
    return None


def add(stem: Path, found: Mapping[str, Mapping[str, Any]], order: Iterable[str]) -> None:
    """Add results to a table, in the place of those that it has of the same cells.

    Several processes may do so at a time. A crash leaves the old table or the new one.

    Args:
        stem: path of the table without its ending.
        found: name of a cell -> its result.
        order: the names of all cells, in the order of their rows.
    """
    with alone(stem.parent):
        together = {**read(stem), **found}
        _write(stem, {name: together[name] for name in order if name in together})


def remove(stem: Path, cells: Iterable[str]) -> None:
    """Remove cells from a table."""
    with alone(stem.parent):
        left = dict(read(stem))
        for name in cells:
            left.pop(name, None)
        _write(stem, left)


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Wait until no other process writes in this folder."""
    import fcntl  # here, not at the top: Windows has none, and reads tables without

    folder.mkdir(parents=True, exist_ok=True)
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _write(stem: Path, results: Mapping[str, Mapping[str, Any]]) -> None:
    rows: dict[tuple[str, str], dict[str, str]] = {}
    columns: dict[str, None] = {}
    for name, result in results.items():
        sites = {site for key in WITH_SITES for site in result.get(key) or ()}
        rows[name, ""] = {}
        for path, value in _leaves(result):
            site = next((part for part in path if part in sites), "")
            column = "/".join(SITE if part == site else part for part in path)
            columns[column] = None
            rows.setdefault((name, site), {})[column] = text_of(value)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["cell", "site", *columns])
    for (name, site), row in rows.items():
        writer.writerow([name, site, *(row.get(column, "") for column in columns)])
    content = text.getvalue().encode()
    plain = stem.with_name(f"{stem.name}.csv")
    packed = stem.with_name(f"{stem.name}.csv.gz")
    if len(content) > MOST_BYTES:
        # The same table gives the same bytes: no time is in them.
        write_atomically(packed, gzip.compress(content, mtime=0))
        plain.unlink(missing_ok=True)
    else:
        write_atomically(plain, content)
        packed.unlink(missing_ok=True)


def _leaves(value: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield every value that is no mapping, or an empty one, with its path."""
    if not isinstance(value, Mapping) or not value:
        yield path, value
        return
    for key, inner in value.items():
        if "/" in key or key == SITE:
            raise ValueError(f"{key!r} cannot be part of a column's name")
        yield from _leaves(inner, (*path, key))


def text_of(value: Any) -> str:
    """Write a value for a field of a table.

    >>> text_of([0.25, None, 1]), text_of("FedCE"), text_of("1e9"), text_of("")
    ('[0.25 null 1]', 'FedCE', '"1e9"', '""')
    """
    as_json = json.dumps(value)
    text = as_json
    if isinstance(value, str):
        text = value
    elif isinstance(value, list) and value:
        text = f"[{' '.join(text_of(each) for each in value)}]"
    # Compared with types: 1 is not 1.0.
    if text and json.dumps(value_of(text)) == as_json:
        return text
    return as_json


def value_of(text: str) -> Any:
    """Read a field.

    >>> value_of("[0.25 null 1]"), value_of("[a.png b.png]"), value_of('"1e9"'), value_of("FedCE")
    ([0.25, None, 1], ['a.png', 'b.png'], '1e9', 'FedCE')
    """
    listed = text.startswith("[")
    for each in (text, text.replace(" ", ",")) if listed else (text,):
        try:
            return json.loads(each)
        except json.JSONDecodeError:
            continue
    if listed:
        return [value_of(each) for each in text[1:-1].split(" ")]
    return text
