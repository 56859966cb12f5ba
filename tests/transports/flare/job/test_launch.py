# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Runs that the simulator makes, and those that it does not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from monai_fairfl.data.synthetic import write_sites
from monai_fairfl.errors import FederationError
from monai_fairfl.run_folder.ledger import Ledger

pytest.importorskip(
    "nvflare", reason="nvflare is not installed: pip install 'monai_fairfl[nvflare]'"
)

from monai_fairfl.transports.flare.job import launch as jobs

pytestmark = pytest.mark.nvflare


def test_a_simulated_job_that_never_began_is_not_taken_for_an_older_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    older = tmp_path / "kept" / "server" / "prostate_mri_segmentation-FedAvg"
    older.mkdir(parents=True)
    Ledger(older / "ledger.jsonl").append({"kind": "end"})
    write_sites(tmp_path / "sites", seed=0, size=(16, 16, 4), cases=1)
    monkeypatch.setattr(jobs.FairFLRecipe, "execute", lambda recipe, environment: None)
    for strategy in ("FedCE", "FedAvg"):
        with pytest.raises(FederationError, match="the run did not end"):
            jobs.simulate_job(
                tmp_path, tmp_path / "sites", bundle="prostate_mri_segmentation", strategy=strategy
            )


def test_a_simulated_job_gives_the_folder_of_its_own_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = tmp_path / "kept" / "server" / "prostate_mri_segmentation-FedAvg-2"

    def execute(recipe: Any, environment: Any) -> None:
        for folder in (own, own.parent / "another"):
            folder.mkdir()
            Ledger(folder / "ledger.jsonl").append({"kind": "end"})

    (own.parent / "prostate_mri_segmentation-FedAvg").mkdir(parents=True)
    Ledger(own.parent / "prostate_mri_segmentation-FedAvg" / "ledger.jsonl").append({"kind": "end"})
    write_sites(tmp_path / "sites", seed=0, size=(16, 16, 4), cases=1)
    monkeypatch.setattr(jobs.FairFLRecipe, "execute", execute)
    arguments = {"bundle": "prostate_mri_segmentation", "strategy": "FedAvg"}
    assert jobs.simulate_job(tmp_path, tmp_path / "sites", **arguments) == own
