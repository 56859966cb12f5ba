# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The statement of a withdrawal: what a hospital files, as JSON and as plain text."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from monai_fairfl.errors import ConfigError
from monai_fairfl.run_folder.withdrawn import statement_file
from monai_fairfl.utils.files import write_atomically

FORMAT = 1


@dataclass(frozen=True)
class Statement:
    """What was done when a site withdrew from a run.

    Args:
        site: that withdrew.
        run: its folder.
        package: version that deleted the files.
        begun: when the withdrawal began, UTC, ISO 8601.
        ended: when it was complete; empty where it was interrupted, or is only planned.
        ledger: ``"head"`` (SHA-256 of its last line) and ``"records"``. The withdrawal changes
            neither.
        rounds: of each round that the site's update came in: ``"round"``, ``"weight"`` and
            ``"contribution"``; ``None`` where the method has none.
        deleted: ``"path"``, ``"sha256"`` and ``"bytes"`` of each file.
        rewritten: ``"path"`` and ``"why"`` of each file that holds less than before.
        remains: ``"what"`` and ``"why"`` of all that still depends on the site.
        computable_rounds: rounds whose update follows from the models and the recorded updates of
            others that are left.
        what_if: the recorded weights and contributions of the others beside those without the site;
            or ``"refused"``, the reason why there are none; empty where they were not asked for.
        retrain: the command that trains the run without the site, or what to do where none is
            recorded.
        name: of the run, as its ledger has it; a folder may be called otherwise. Empty in older
            statements.
    """

    site: str
    run: str
    package: str
    begun: str
    ended: str
    ledger: Mapping[str, Any]
    rounds: Sequence[Mapping[str, Any]]
    deleted: Sequence[Mapping[str, Any]]
    rewritten: Sequence[Mapping[str, str]]
    remains: Sequence[Mapping[str, str]]
    computable_rounds: Sequence[int]
    what_if: Mapping[str, Any]
    retrain: str
    name: str = ""
    format: int = FORMAT

    def write(self, run_dir: Path) -> None:
        """Write ``withdrawn/SITE.md``, then ``withdrawn/SITE.json``."""
        file = statement_file(run_dir, self.site)
        write_atomically(file.with_suffix(".md"), self.as_text().encode())
        text = json.dumps(asdict(self), indent=1, sort_keys=True, allow_nan=False)
        write_atomically(file, f"{text}\n".encode())

    def as_text(self) -> str:
        """The statement as Markdown, which is plain text."""
        lines = [
            f"# {self.site} withdrew from {self.name or self.run}",
            "",
            f"- Begun: {self.begun}",
            f"- Complete: {self.ended or 'no; run the same command again'}",
            f"- monai_fairfl {self.package}",
            f"- Ledger: {self.ledger['records']} records, head {self.ledger['head']}",
            "",
            "## What was deleted",
            "",
            *self._deleted_lines(),
            "",
            "## What remains, and why",
            "",
        ]
        lines += [f"- {entry['what']}: {entry['why']}" for entry in self.remains]
        lines += ["", "## In which rounds the site took part", "", *self._round_lines()]
        lines += ["", "## What the others' numbers would be without it", "", *self._what_if_lines()]
        lines += ["", "## How to train without it", "", f"    {self.retrain}", ""]
        return "\n".join(lines)

    def _deleted_lines(self) -> list[str]:
        if not self.deleted and not self.rewritten:
            return ["Nothing: the folder of the run held no file of this site alone."]
        lines = ["| file | bytes | SHA-256 |", "| --- | --- | --- |"]
        for entry in self.deleted:
            lines.append(f"| {entry['path']} | {entry['bytes']} | {entry['sha256']} |")
        if self.rewritten:
            lines += ["", "These files were written again, with less in them:", ""]
            lines += [f"- {entry['path']}: {entry['why']}" for entry in self.rewritten]
        return lines

    def _round_lines(self) -> list[str]:
        if not self.rounds:
            return ["In none: no update of it came in."]
        lines = ["| round | weight | contribution |", "| --- | --- | --- |"]
        for entry in self.rounds:
            weight, contribution = _number(entry["weight"]), _number(entry["contribution"])
            lines.append(f"| {entry['round']} | {weight} | {contribution} |")
        return lines

    def _what_if_lines(self) -> list[str]:
        if not self.what_if:
            return [
                "They are not in this statement, which has the numbers of this site only. Who has "
                f"the ledger computes them: monai-fairfl what-if RUN --without {self.site}"
            ]
        if "refused" in self.what_if:
            return [f"The ledger cannot answer that exactly: {self.what_if['refused']}"]
        lines = [
            "| site | weight | without | contribution | without |",
            "| --- | --- | --- | --- | --- |",
        ]
        for site, numbers in self.what_if["sites"].items():
            cells = [site]
            for name in ("weight", "contribution"):
                cells += [_number(numbers[name][which]) for which in ("recorded", "what_if")]
            lines.append(f"| {' | '.join(cells)} |")
        lines += ["", f"These are {self.what_if['meaning']}."]
        if not self.what_if["first_round_is_exact"]:
            reason = self.what_if["why_not"]
            lines.append(f"The first round, too, might have been another one: {reason}.")
        return lines


def read_statement(run_dir: str | Path, site: str) -> Statement | None:
    """The statement of a site's withdrawal; ``None`` where it did not withdraw.

    Raises:
        ConfigError: when the file is damaged.

    >>> from tempfile import TemporaryDirectory
    >>> from monai_fairfl.audit import withdraw
    >>> from monai_fairfl.run_folder.ledger import Ledger
    >>> with TemporaryDirectory() as folder:
    ...     ledger = Ledger(folder + "/ledger.jsonl")
    ...     ledger.append({"kind": "start", "run": "cgsv", "clients": ["elm", "oak"]})
    ...     ledger.append({"kind": "end"})
    ...     done = withdraw(folder, "oak")
    ...     read_statement(folder, "oak") == done[0], read_statement(folder, "elm")
    (True, None)
    """
    file = statement_file(run_dir, site)
    if not file.exists():
        return None
    try:
        return Statement(**json.loads(file.read_text(encoding="utf-8")))
    except (ValueError, TypeError) as error:
        raise ConfigError(
            f"{file} is no statement of a withdrawal ({error}): restore it from a copy, or delete "
            "it and withdraw again"
        ) from error


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.4f}"
