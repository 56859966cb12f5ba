# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The runs of a bundle's federation, as a worker process is sent them."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest
from helpers.bundle_runs import federation

from monai_fairfl.bundle.runs import BundleRuns
from monai_fairfl.data import check_cases
from monai_fairfl.run_folder.ledger import digest_of
from monai_fairfl.run_folder.records import names_of_guards
from monai_fairfl.strategies import FedAvg, FedCE
from monai_fairfl.transports.workers import Turn
from monai_fairfl.valuation import Retraining


@pytest.fixture
def runs(hospitals: Path, tmp_path: Path) -> BundleRuns:
    """The runs of a comparison with a check, groups and valuations that no process can be sent."""
    given = federation(
        hospitals,
        tmp_path / "run",
        [FedAvg(), FedCE()],
        rounds=2,
        check=lambda site: check_cases(site),
        groups=lambda names: {"first": [names[0]]},
        valuations=[Retraining()],
        devices=["cpu", "cpu:0"],
        jobs=2,
    )
    given.read_settings()
    return given.runs


def test_runs_that_are_sent_to_a_worker_train_the_same(runs: BundleRuns) -> None:
    sent = pickle.loads(pickle.dumps(runs))
    assert sent.sites == runs.sites
    assert sent.recipe() == runs.recipe()
    assert names_of_guards(sent.guards) == names_of_guards(runs.guards)
    assert sent.settings.groups == {"first": ["alder"]}
    (weights, spec), (expected, expected_spec) = sent.first_model(), runs.first_model()
    assert digest_of(weights) == digest_of(expected) and spec == expected_spec


def test_a_run_has_the_processes_and_devices_of_its_turn(runs: BundleRuns) -> None:
    of_turn = runs.for_turn(Turn(1, ["cpu:0"]))
    assert (of_turn.jobs.number, of_turn.jobs.devices) == (1, ["cpu:0"])
    assert (runs.jobs.number, runs.jobs.devices) == (2, ["cpu", "cpu:0"])


def test_a_run_whose_process_ended_goes_on_with_what_that_left(runs: BundleRuns) -> None:
    assert not runs.resume and not runs.for_turn(Turn(1, ["cpu"])).resume
    assert runs.for_turn(Turn(1, ["cpu"], again=True)).resume
