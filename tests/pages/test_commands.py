# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The commands that the pages show train as the numbers beside them were trained."""

from __future__ import annotations

import ast
import json
import re
import shlex
from argparse import ArgumentParser
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
from helpers.checkout import CHECKOUT
from helpers.page_blocks import PAGES

from monai_fairfl.bundle.configuration import train_config
from monai_fairfl.bundle.first_look import first_look, recipe
from monai_fairfl.bundle.shipped import find_bundle
from monai_fairfl.cli import EXAMPLES
from monai_fairfl.run_folder.full_run import FullRun

STUDIES = {
    "prostate_mri_segmentation": CHECKOUT / "experiments" / "studies" / "shipped_prostate.json",
    "fundus_disc_cup_segmentation": CHECKOUT / "experiments" / "studies" / "shipped_fundus.json",
}
"""Bundle -> the study of its own recipe."""


class Training(NamedTuple):
    """A command that trains a federation of a bundle of this project.

    What it does not give is that of the bundle.
    """

    where: str
    bundles: list[str]
    rounds: int | None
    local_epochs: int | None
    overrides: dict[str, Any]


def commands(text: str) -> Iterator[list[str]]:
    """The commands of a text, whole, as the words that a shell makes of them."""
    begun = ""
    for line in text.replace("\\\n", " ").splitlines():
        begun += re.sub(r"(^|\s)#\s.*", "", line) + "\n"  # a comment; --strategy#_target_ is none
        try:
            words = shlex.split(begun)
        except ValueError:  # a quotation goes on in the next line
            continue
        begun = ""
        if words:
            yield words


def commands_of_page(page: str) -> Iterator[list[str]]:
    """The commands in the code blocks of a page."""
    text = (CHECKOUT / page).read_text()
    for language, block in re.findall(r"^```(\w*)\n(.*?)^```$", text, re.DOTALL | re.MULTILINE):
        if language in ("", "bash"):
            yield from commands(block)


def bundles_of(command: list[str], page: str) -> list[str]:
    """The bundles that a command may be of: the one that it or its page is of, else every one."""
    whole = " ".join([*command, page])
    return [name for name in STUDIES if name in whole] or list(STUDIES)


def training(command: list[str], page: str) -> Training | None:
    """What a command trains; ``None`` where it trains no federation of a bundle of this project."""
    whole = " ".join(command)
    trains = "federate.json" in whole and "monai.bundle" in whole and "own_bundle" not in whole
    trains |= bool({"simulate-flare", "export-flare"} & set(command)) and "..." not in command
    # A first look is one on purpose.
    trains |= command[:2] == ["monai-fairfl", "train"]
    if not trains or "--quick" in command:
        return None
    parser = ArgumentParser()
    parser.add_argument("--rounds", "--num-rounds", type=int)
    parser.add_argument("--local_epochs", "--local-epochs", type=int)
    parser.add_argument("--overrides", default="{}")
    found = parser.parse_known_args(command)[0]
    overrides = ast.literal_eval(found.overrides.replace("$fold", "0"))
    bundles = bundles_of(command, page)
    return Training(f"{page}: {whole}", bundles, found.rounds, found.local_epochs, overrides)


def trainings() -> list[Training]:
    found = [training(command, page) for page in PAGES for command in commands_of_page(page)]
    examples = EXAMPLES.replace("'", "")
    found += [training(command, "monai-fairfl --help") for command in commands(examples)]
    return [shown for shown in found if shown is not None]


def test_every_page_with_a_training_is_read() -> None:
    pages = {shown.where.partition(":")[0] for shown in trainings()}
    assert {"README.md", "CONTRIBUTING.md", "docs/settings.md", "docs/valuation.md"} <= pages
    assert {"docs/flare_production.md", "docs/methods/composition.md"} <= pages
    assert "monai-fairfl --help" in pages
    assert {f"bundles/{name}/docs/README.md" for name in STUDIES} <= pages


@pytest.mark.parametrize("name", STUDIES)
def test_a_bundle_trains_as_it_was_measured_where_nothing_is_given(name: str) -> None:
    study = json.loads(STUDIES[name].read_text())
    bundle = find_bundle(name)
    found = recipe(bundle)
    assert (found.rounds, found.local_epochs) == (study["rounds"], study["local_epochs"])
    # The study trains what the bundle does.
    assert not found.overrides and "overrides" not in study
    assert "config" not in study["arguments"]

    federate = json.loads((bundle / "configs" / "federate.json").read_text())
    full_run = FullRun.read(federate["full_run"])
    assert full_run is not None
    assert (full_run.rounds, full_run.local_epochs) == (study["rounds"], study["local_epochs"])
    of_all = {**train_config(bundle, {}).config}
    overrides = federate["full_run"]["overrides"]
    assert overrides
    assert {key: of_all[key] for key in overrides} == overrides


@pytest.mark.parametrize("name", STUDIES)
def test_a_first_look_is_no_full_run(name: str) -> None:
    look, measured = first_look(find_bundle(name)), recipe(find_bundle(name))
    assert look.rounds * look.local_epochs < measured.rounds * measured.local_epochs
    # It overrides what the training configuration has.
    train_config(find_bundle(name), look.overrides)


@pytest.mark.parametrize("shown", trainings(), ids=lambda shown: shown.where[:60])
def test_a_training_of_a_page_has_the_epochs_and_sizes_of_the_measured_one(shown: Training) -> None:
    recipes = [json.loads(STUDIES[name].read_text()) for name in shown.bundles]
    if shown.rounds is not None and shown.rounds < min(recipe["rounds"] for recipe in recipes):
        return  # a demonstration
    fitting = []
    for study in recipes:
        rounds = shown.rounds or study["rounds"]
        local_epochs = shown.local_epochs or study["local_epochs"]
        smaller = {"size", "working_size", "channels"} & set(shown.overrides)
        given = (rounds, local_epochs)
        fitting.append(given == (study["rounds"], study["local_epochs"]) and not smaller)
    assert any(fitting), f"{shown.where}\ntrains otherwise than measured"
