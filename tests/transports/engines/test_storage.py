# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Folders that outlive a job."""

from __future__ import annotations

from pathlib import Path

import pytest

from monai_fairfl.errors import ConfigError
from monai_fairfl.run_folder.ledger import Ledger
from monai_fairfl.transports.engines.storage import (
    HOME,
    folder_of_run,
    storage_folder,
)


def test_what_outlives_a_job_lies_where_the_operator_says_which_an_engine_must_not_move(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(HOME, str(tmp_path / "kept"))
    assert storage_folder("/srv/alder") == tmp_path / "kept" / "alder"
    monkeypatch.setenv(HOME, "kept")  # would be in the folder that the simulator empties
    with pytest.raises(ConfigError, match=r'MONAI_FAIRFL_HOME=kept is relative.*"\$PWD/kept"'):
        storage_folder("/srv/alder")


def test_a_job_submitted_again_goes_on_where_a_run_did_not_end_and_else_begins_anew(
    tmp_path: Path,
) -> None:
    first = folder_of_run(tmp_path, "fedce")
    first.mkdir()
    Ledger(first / "ledger.jsonl").append({"kind": "start"})

    assert folder_of_run(tmp_path, "fedce") == first
    assert folder_of_run(tmp_path, "fedce", resume=False) == tmp_path / "fedce-2"
    Ledger(first / "ledger.jsonl").append({"kind": "end"})
    assert folder_of_run(tmp_path, "fedce") == tmp_path / "fedce-2"
