# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
r"""Reads LaTeX tables as LaTeX does: letter by letter, by the category of each (TeXbook, ch. 7-8).

It knows the few commands that a plain table may have. Anything else, and whatever LaTeX would stop
at or read as a command of its own, is an error.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

TOKEN = re.compile(
    r"\\(?P<word>[A-Za-z]+)[ \n]*|\\(?P<symbol>.)|%[^\n]*\n?|(?P<letter>.)", re.DOTALL
)
"""A command of letters takes the spaces after it; a comment goes to the end of its line."""

LETTERS = {"textbackslash": "\\", "textasciicircum": "^", "textasciitilde": "~"}
LETTERS |= {"textless": "<", "textgreater": ">"}
SYMBOLS = "{}$&#%_"
MATHS = {"pm": "±"}


class LatexError(Exception):
    """LaTeX would stop here, or read something else than text."""


@dataclass
class Table:
    """A table that was read: the text of its caption, its columns, and the texts of its cells."""

    caption: str = ""
    columns: str = ""
    rows: list[list[str]] = field(default_factory=list)


class _Reader:
    """The state of reading: environments, groups, mathematics, and the cells of a row."""

    def __init__(self, environments: Sequence[str] = ()) -> None:
        self.tables: list[Table] = []
        self.environments = list(environments)
        self.groups = 0
        self.in_maths = False
        self.cells = [""]

    @property
    def is_in_row(self) -> bool:
        """Whether something of a row was read."""
        return bool("".join(self.cells).strip())

    def end_row(self) -> None:
        """Take in the row that was read."""
        if self.groups or self.in_maths or self.environments != ["table", "tabular"]:
            raise LatexError(f"a row ends within a group, mathematics or {self.environments}")
        table = self.tables[-1]
        if len(self.cells) != len(table.columns):
            raise LatexError(f"{len(self.cells)} cells in {len(table.columns)} columns")
        table.rows.append([cell.strip() for cell in self.cells])
        self.cells = [""]


def tables_in(text: str) -> list[Table]:
    """The tables of a LaTeX text.

    Raises:
        LatexError: where LaTeX would stop, or read a command where a text is meant.

    >>> text = r"\\begin{table}\\caption{A \\& B}\\begin{tabular}{lr}\\hline a\\_1 & 2 \\\\ \\hline"
    >>> tables_in(text + r"\\end{tabular}\\end{table}")
    [Table(caption='A & B', columns='lr', rows=[['a_1', '2']])]
    """
    reader = _Reader()
    _read(reader, text)
    if reader.environments:
        raise LatexError(f"{reader.environments} has no end")
    return reader.tables


def _read(reader: _Reader, text: str) -> None:
    position = 0
    while position < len(text):
        found = TOKEN.match(text, position)
        assert found is not None
        position = found.end()
        word, symbol, letter = found["word"], found["symbol"], found["letter"]
        if word is not None:
            position = _command(reader, word, text, position)
        elif symbol == "\\":
            reader.end_row()
            # LaTeX looks for * and [LENGTH], past all spaces.
            if re.match(r"\s*[*\[]", text[position:]):
                raise LatexError("a row's end takes what follows for its argument")
        elif symbol is not None:
            if symbol not in SYMBOLS:
                raise LatexError(f"unknown command \\{symbol}")
            reader.cells[-1] += symbol
        elif letter is not None:
            _letter(reader, letter)
    if reader.groups or reader.in_maths:
        raise LatexError("a group or mathematics has no end")


def _command(reader: _Reader, word: str, text: str, position: int) -> int:
    """A command of letters; returns where its argument ends."""
    if word in MATHS and reader.in_maths:
        reader.cells[-1] += MATHS[word]
    elif word in LETTERS and not reader.in_maths:
        reader.cells[-1] += LETTERS[word]
    elif word == "centering" or (word == "hline" and not reader.is_in_row):
        pass
    elif word == "caption" and reader.environments == ["table"]:
        end = _end_of_group(text, position)
        inner = _Reader(["caption"])
        _read(inner, text[position + 1 : end])
        [reader.tables[-1].caption] = inner.cells
        return end + 1
    elif word == "begin":
        name, position = _plain_argument(text, position)
        if (name, reader.environments) == ("table", []):
            reader.tables.append(Table())
        elif (name, reader.environments) == ("tabular", ["table"]):
            reader.tables[-1].columns, position = _plain_argument(text, position)
        else:
            raise LatexError(f"\\begin{{{name}}} in {reader.environments}")
        reader.environments.append(name)
        reader.cells = [""]
    elif word == "end" and not reader.is_in_row:
        name, position = _plain_argument(text, position)
        if reader.environments.pop() != name:
            raise LatexError(f"\\end{{{name}}} in the wrong place")
    else:
        raise LatexError(f"\\{word} is unknown, or in the wrong place")
    return position


def _letter(reader: _Reader, letter: str) -> None:
    """A letter that is no command of its own."""
    if letter == "{":
        reader.groups += 1
    elif letter == "}":
        if not reader.groups:
            raise LatexError("a group ends that has not begun")
        reader.groups -= 1
    elif letter == "$":
        reader.in_maths = not reader.in_maths
    elif letter == "&":
        if reader.groups or reader.in_maths or reader.environments != ["table", "tabular"]:
            raise LatexError("& outside of a row")
        reader.cells.append("")
    elif letter in "#^_~":
        raise LatexError(f"{letter} is no text")
    elif letter not in "\n\t" and (ord(letter) < 32 or letter == "\x7f"):
        raise LatexError(f"{letter!r} is an invalid character")
    else:
        reader.cells[-1] += letter


def _plain_argument(text: str, position: int) -> tuple[str, int]:
    """An argument of letters, and where it ends."""
    found = re.compile(r"\{([a-z]+)\}").match(text, position)
    if found is None:
        raise LatexError(f"no argument at {text[position : position + 20]!r}")
    return found[1], found.end()


def _end_of_group(text: str, position: int) -> int:
    """Where the group ends that begins at ``position``."""
    depth = 0
    while position < len(text):
        found = TOKEN.match(text, position)
        assert found is not None
        if found["letter"] == "{":
            depth += 1
        elif found["letter"] == "}":
            depth -= 1
            if depth == 0:
                return position
        position = found.end()
    raise LatexError("a group has no end")
