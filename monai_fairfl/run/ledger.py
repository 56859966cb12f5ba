# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The append-only record of every round: JSON lines, each with the SHA-256 of the line before."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch

from monai_fairfl.errors import ConfigError, FederationError
from monai_fairfl.messages import Weights, is_plain_estimate, to_json
from monai_fairfl.utils.files import write_atomically

FORMAT = 1
"""Number of the format of all that a run leaves: ledger, checkpoints, ``settings.json``."""

logger = logging.getLogger(__name__)


class Ledger:
    """Appends records to a file and chains them.

    It has no times or paths, so equal runs have equal ledgers.

    Args:
        path: the ``.jsonl`` file; made when absent, else continued. A last line cut short by a
            crash is dropped.

    Raises:
        FederationError: when the chain of an existing file is broken.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     ledger = Ledger(f"{folder}/ledger.jsonl")
    ...     ledger.append({"kind": "start", "clients": ["elm", "oak"]})
    ...     ledger.append({"kind": "round", "round": 0})
    >>> ledger.records[1]["previous"] == ledger.heads[0]
    True
    """

    def __init__(self, path: str | Path):
        self.path = Path(path)
        self.records: list[dict[str, Any]] = []
        self.heads: list[str] = []
        if self.path.exists():
            self.records, self.heads = read_ledger_and_heads(self.path)
            self.truncate(len(self.records))

    @property
    def head(self) -> str:
        """SHA-256 of the last record's line; empty where there is no record."""
        return self.heads[-1] if self.heads else ""

    def append(self, record: Mapping[str, Any]) -> None:
        """Write one record, flushed to disk before returning."""
        entry = to_json({**record, "previous": self.head})
        text = json.dumps(entry, sort_keys=True, allow_nan=False, separators=(",", ":"))
        line = f"{text}\n".encode()
        write_atomically(self.path, line, append=True)
        self.records.append(json.loads(line))
        self.heads.append(hashlib.sha256(line).hexdigest())

    def truncate(self, count: int) -> None:
        """Drop all records but the first ``count``: a run resumes from an earlier checkpoint."""
        lines = self.path.read_bytes().splitlines(keepends=True)[:count]
        write_atomically(self.path, b"".join(lines))
        del self.records[count:], self.heads[count:]


def read_ledger(path: str | Path) -> list[dict[str, Any]]:
    """Verify the chain of a ledger, and return its records.

    Args:
        path: of the file, such as ``runs/fedce/ledger.jsonl``.

    Returns:
        The opening, the rounds and, if the run has ended, the end. A last line that a crash cut
        short does not count.

    Raises:
        ConfigError: if there is no such file.
        FederationError: if a line was changed, removed or added; it names the first line that does
            not follow the line before it. Or if the ledger has another format; it names the
            version that wrote it.

    >>> from pathlib import Path
    >>> from tempfile import TemporaryDirectory
    >>> from monai_fairfl.run import Ledger
    >>> with TemporaryDirectory() as folder:
    ...     file = Path(folder, "ledger.jsonl")
    ...     Ledger(file).append({"kind": "round", "samples": {"elm": 8}})
    ...     Ledger(file).append({"kind": "end"})
    ...     _ = file.write_text(file.read_text().replace('"elm":8', '"elm":9'))
    ...     read_ledger(file)
    Traceback (most recent call last):
        ...
    monai_fairfl.errors.FederationError: ledger ...: line 2 does not follow line 1; ...
    """
    records, _ = read_ledger_and_heads(path)
    return records


def read_ledger_and_heads(path: str | Path) -> tuple[list[dict[str, Any]], list[str]]:
    """The records of a ledger, and the head that it had after each of them, of one reading.

    Raises:
        ConfigError: there is no such file.
        FederationError: as :func:`read_ledger`.
    """
    path = Path(path)
    if not path.is_file():
        raise ConfigError(f"{path} is no ledger: give the file ledger.jsonl in the folder of a run")
    lines = path.read_bytes().splitlines(keepends=True)
    if lines and not lines[-1].endswith(b"\n"):
        logger.warning("ledger %s: the last line was cut short and is dropped", path)
        lines.pop()
    records = []
    heads = []
    head = ""
    for number, line in enumerate(lines, 1):
        try:
            record = json.loads(line)
            record.get("previous")
        except (ValueError, AttributeError) as error:
            raise FederationError(
                f"ledger {path}, line {number} is no JSON object ({error}): restore it from a copy"
            ) from error
        if record.get("previous") != head:
            raise FederationError(
                f"ledger {path}: line {number} does not follow line {number - 1}; one of them was "
                "edited, removed or added. Restore the file from a copy"
            )
        written = record.get("format", FORMAT)
        if number == 1 and written != FORMAT:
            # The records of another format may mean something else.
            raise FederationError(
                f"ledger {path} was written by monai_fairfl {record.get('package', 'unknown')} "
                f"(format {written!r}), and this version reads format {FORMAT}: use that version"
            )
        records.append(record)
        head = hashlib.sha256(line).hexdigest()
        heads.append(head)
    return records, heads


def runs_in(folder: Path) -> list[Path]:
    """The folder itself where it is that of a run, else the runs directly in it, sorted.

    >>> runs_in(Path("no/such/folder"))
    []
    """
    if (folder / "ledger.jsonl").exists():
        return [folder]
    return [file.parent for file in sorted(folder.glob("*/ledger.jsonl"))]


def count_rounds(records: Iterable[Mapping[str, Any]]) -> int:
    """The number of rounds that a ledger records.

    >>> count_rounds([{"kind": "start"}, {"kind": "round"}, {"kind": "round"}])
    2
    """
    return sum(record["kind"] == "round" for record in records)


def number_in(value: Any) -> float | None:
    """The one number of a measurement or contribution in a ledger: its value, or its ``"mean"``.

    It is ``None`` where there is none: the value was not finite, or is a mapping without a mean,
    such as one value per layer.

    >>> number_in({"mean": {"value": 0.5, "stderr": None, "n": 2}, "gland": 0.5})
    0.5
    >>> number_in({"layer": 0.5}) is None
    True
    """
    if is_plain_estimate(value):
        return number_in(value["value"])
    if isinstance(value, Mapping):
        return number_in(value.get("mean"))
    return float(value) if isinstance(value, (int, float)) else None


def digest_of(weights: Weights) -> str:
    """SHA-256 of a model: names, types, shapes and bytes, in the order of names.

    >>> import torch
    >>> single = {"w": torch.zeros(2, dtype=torch.float32)}
    >>> double = {"w": torch.zeros(2, dtype=torch.float64)}
    >>> digest_of(single) == digest_of(double)
    False
    """
    sha = hashlib.sha256()
    for name in sorted(weights):
        tensor = weights[name]
        sha.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        content = tensor.detach().cpu().contiguous()
        # A tensor of one value, or of none, may have any stride.
        sha.update(content.as_strided((content.numel(),), (1,)).view(torch.uint8).numpy().data)
    return sha.hexdigest()
