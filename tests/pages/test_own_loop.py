# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The page ``docs/own_loop.md`` and its script: what they show is run, and is what one process
does.
"""

from __future__ import annotations

import re
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import own_loop
import pytest
from helpers import warm_python
from helpers.federations import assert_same_run
from monai.fl.client import MonaiAlgo
from monai.fl.utils.constants import WeightType

from monai_fairfl import Federation, InProcess, Transport, bundle_client, read_ledger
from monai_fairfl.bundle import initial_model
from monai_fairfl.messages import to_json
from monai_fairfl.run import digest_of
from monai_fairfl.strategies import FedCE

PAGE = Path(__file__).parents[2] / "docs" / "own_loop.md"
SITES = ("alder", "birch")
"""Two of the page's three, which train in less time."""
TEXT = PAGE.read_text().replace(', "cedar"]', "]")
BLOCKS = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)


@pytest.fixture(scope="module")
def places(hospitals: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that holds what the page's commands find."""
    folder = tmp_path_factory.mktemp("page")
    for site in SITES:
        shutil.copytree(hospitals / site, folder / "hospitals" / site)
    return folder


@pytest.fixture(scope="module")
def in_one_process(places: Path, tmp_path_factory: pytest.TempPathFactory) -> Federation:
    """The run that all is compared with."""
    folder, images = tmp_path_factory.mktemp("here"), places / "hospitals"
    make = partial(bundle_client, own_loop.BUNDLE, rounds=2, overrides=own_loop.SMALL)
    clients = {
        site: partial(make, site, folder / site, dataset_dir=images / site) for site in SITES
    }
    initial = partial(initial_model, own_loop.BUNDLE, own_loop.SMALL)
    federation = Federation(FedCE(), InProcess(clients), 2, initial, run_dir=folder / "own")
    federation.run()
    return federation


@pytest.fixture(scope="module")
def page(places: Path) -> dict[str, Any]:
    """Everything that the page's Python blocks made, in their order."""
    found: dict[str, Any] = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(places)
        for block in BLOCKS:
            exec(compile(block, str(PAGE), "exec"), found)
    return found


def test_a_process_for_each_hospital_gives_the_same_ledger_and_models(
    places: Path, in_one_process: Federation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The page's processes do not import MONAI again, each for itself.
    monkeypatch.setattr(own_loop, "get_context", lambda method: warm_python.fork_server())
    history = own_loop.run(places / "hospitals", tmp_path / "own", SITES)

    assert history.finished
    assert_same_run(in_one_process.run_dir, tmp_path / "own")


def test_a_round_by_hand_is_the_first_round_of_the_federation(
    page: dict[str, Any], in_one_process: Federation
) -> None:
    opening, first = read_ledger(in_one_process.run_dir / "ledger.jsonl")[:2]
    assert digest_of(page["weights"]) == opening["model"]
    assert page["result"].aggregation == first["aggregation"]
    assert to_json(page["result"].contributions) == first["contributions"]


def test_the_mended_client_alone_trains_and_evaluates(page: dict[str, Any], places: Path) -> None:
    assert isinstance(page["algo"], MonaiAlgo)
    update = page["update"]
    assert update.weight_type == WeightType.WEIGHT_DIFF
    assert set(update.weights) == set(page["weights"])
    assert any(
        tensor.abs().max() > 0 for tensor in update.weights.values() if tensor.is_floating_point()
    )
    assert update.statistics["num_executed_iterations"] > 0
    assert 0 <= page["metrics"]["val_mean_dice"] <= 1
    assert list((places / "private" / "eval").iterdir()), "nothing is written into the bundle"


def test_the_table_names_the_whole_protocol() -> None:
    members = {name for name in vars(Transport) if not name.startswith("_")}
    assert {
        match.partition("(")[0] for match in re.findall(r"^\| `([^`]+)` \|", TEXT, re.M)
    } == members
