# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Faults 50 and 62: nothing is unpacked, and no noise is added for privacy; no option claims it."""

from __future__ import annotations

import argparse
import ast
import inspect
import re
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import pytest
from helpers.checkout import CHECKOUT

from monai_fairfl.cli.program import _parser
from monai_fairfl.server.settings import RunSettings
from monai_fairfl.strategies.resolver import shipped

UNPACKING = re.compile(r"upload|unpack|unzip|extract|archive|tarball", re.IGNORECASE)
PRIVACY = re.compile(r"differential|privacy|dp_|epsilon_dp|noise_multiplier", re.IGNORECASE)
CLAIMS = re.compile(r"differential(ly)? priva|upload\w* (a |of )?bundle", re.IGNORECASE)
DENIES = re.compile(r"\b(no|not|nor|without|nothing|none|never)\b", re.IGNORECASE)


def options_of(parser: argparse.ArgumentParser) -> Iterator[str]:
    """The options and arguments of a program and of all its commands."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, command in action.choices.items():
                yield name
                yield from options_of(command)
        else:
            yield from action.option_strings or [action.dest]


def names_of_settings() -> set[str]:
    """Every name by which a user sets something."""
    names = set(options_of(_parser()))
    names.update(entry.name for entry in fields(RunSettings))
    for strategy in shipped().values():
        names.update(inspect.signature(strategy).parameters)
    for file in (CHECKOUT / "bundles").glob("*/configs/*.json"):
        names.update(re.findall(r'"(\w+)":', file.read_text()))
    return names


@pytest.mark.parametrize("offered", [UNPACKING, PRIVACY], ids=["50", "62"])
def test_no_option_key_or_argument_offers_it(offered: re.Pattern[str]) -> None:
    names = names_of_settings()
    assert {"--strategy", "rounds", "gamma", "local_epochs"} <= names
    assert sorted(name for name in names if offered.search(name)) == []


@pytest.mark.slow
def test_no_module_unpacks_an_archive() -> None:
    unpackers = {"extract", "extractall", "unpack_archive"}
    calls = set()
    for file in (CHECKOUT / "monai_fairfl").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Attribute):
                calls.add(node.attr)
    assert "write_atomically" not in calls and "replace" in calls
    assert not calls & unpackers


def pages() -> list[Path]:
    return [*CHECKOUT.glob("*.md"), *(CHECKOUT / "docs").rglob("*.md")]


@pytest.mark.parametrize("page", pages(), ids=lambda page: page.relative_to(CHECKOUT).as_posix())
def test_a_page_that_mentions_it_denies_it(page: Path) -> None:
    for sentence in re.split(r"(?<=[.!?|])\s", page.read_text()):
        if CLAIMS.search(sentence):
            assert DENIES.search(sentence), sentence
