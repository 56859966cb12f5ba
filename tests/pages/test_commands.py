# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The trainings that the pages show have the rounds and sizes of the measured ones."""

from __future__ import annotations

import ast
import json
import re
import shlex
from argparse import ArgumentParser
from collections.abc import Iterator
from typing import Any

import pytest
from helpers.checkout import CHECKOUT
from helpers.page_blocks import PAGES, blocks_of_page

from monai_fairfl import find_bundle

BUNDLES = {
    "prostate_mri_segmentation": "shipped_prostate",
    "fundus_disc_cup_segmentation": "shipped_fundus",
}
"""Bundle -> the study of its own recipe."""


def study_of(bundle: str) -> dict[str, Any]:
    file = CHECKOUT / "experiments" / "studies" / f"{BUNDLES[bundle]}.json"
    study: dict[str, Any] = json.loads(file.read_text())
    return study


def commands_of(page: str) -> Iterator[list[str]]:
    """The commands of a page, as the words that a shell makes of them."""
    for block in blocks_of_page(page):
        if block.language not in ("", "bash"):
            continue
        begun = ""
        for line in block.text.replace("\\\n", " ").splitlines():
            begun += (
                re.sub(r"(^|\s)#\s.*", "", line) + "\n"
            )  # a comment; --strategy#_target_ is none
            try:
                words = shlex.split(begun)
            except ValueError:  # a quotation goes on in the next line
                continue
            begun = ""
            if words:
                yield words


def trains(command: list[str]) -> bool:
    """Whether a command trains a federation of a bundle of this project, and is no first look."""
    whole = " ".join(command)
    if "--quick" in command or "own_bundle" in whole:
        return False
    if "--engine" in command:
        return "..." not in command
    by_monai = "federate.json" in whole and "monai.bundle" in whole
    return by_monai or command[:2] == ["monai-fairfl", "train"]


def read(command: list[str]) -> tuple[int | None, int | None, dict[str, Any]]:
    """Rounds, local epochs and overrides that a command gives."""
    parser = ArgumentParser()
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--local_epochs", "--local-epochs", type=int)
    parser.add_argument("--overrides", default="{}")
    found = parser.parse_known_args(command)[0]
    return found.rounds, found.local_epochs, ast.literal_eval(found.overrides.replace("$fold", "0"))


@pytest.mark.parametrize("bundle", BUNDLES)
def test_a_bundle_trains_as_it_was_measured_where_nothing_is_given(bundle: str) -> None:
    study = study_of(bundle)
    configs = find_bundle(bundle) / "configs"
    federate = json.loads((configs / "federate.json").read_text())
    full_run = federate["full_run"]
    for given in (federate, full_run):
        assert (given["rounds"], given["local_epochs"]) == (study["rounds"], study["local_epochs"])
    # The study trains what the bundle does.
    assert not federate["overrides"] and "overrides" not in study
    assert "config" not in study["arguments"]
    train = json.loads((configs / "train.json").read_text())
    assert full_run["overrides"]
    assert {key: train[key] for key in full_run["overrides"]} == full_run["overrides"]

    look = json.loads((configs / "quick.json").read_text())
    assert look["rounds"] * look["local_epochs"] < study["rounds"] * study["local_epochs"]


def test_a_training_of_a_page_has_the_epochs_and_sizes_of_the_measured_one() -> None:
    seen = set()
    for page in PAGES:
        for command in filter(trains, commands_of(page)):
            seen.add(page)
            whole = " ".join([*command, page])
            studies = [study_of(name) for name in BUNDLES if name in whole or not of_one(whole)]
            rounds, local_epochs, overrides = read(command)
            if rounds is not None and rounds < min(study["rounds"] for study in studies):
                continue  # a demonstration
            measured = [(study["rounds"], study["local_epochs"]) for study in studies]
            given = [(rounds or most, local_epochs or each) for most, each in measured]
            smaller = {"size", "working_size", "channels"} & set(overrides)
            assert set(given) & set(measured) and not smaller, f"{page}: {' '.join(command)}"
    assert {"README.md", "CONTRIBUTING.md", "docs/settings.md", "docs/valuation.md"} <= seen


def of_one(text: str) -> bool:
    """Whether a text names a bundle."""
    return any(name in text for name in BUNDLES)
