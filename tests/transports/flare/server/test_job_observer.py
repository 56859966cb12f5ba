# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""What a job does with the records of its run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip(
    "nvflare", reason="nvflare is not installed: pip install 'monai_fairfl[nvflare]'"
)
from monai_fairfl.transports.flare.server import job_observer  # noqa: E402
from monai_fairfl.transports.flare.server.early_stopping import EarlyStop  # noqa: E402
from monai_fairfl.transports.flare.server.job_observer import JobObserver  # noqa: E402

pytestmark = pytest.mark.nvflare


def observer(folder: Path, **given: Any) -> JobObserver:
    """An observer of a job without receivers of metrics."""
    return JobObserver(None, EarlyStop(None), folder / "config.json", **given)


def test_memory_is_freed_after_every_so_many_rounds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    freed: list[int] = []
    monkeypatch.setattr(job_observer, "cleanup_memory", lambda: freed.append(number))
    watching = observer(tmp_path, memory_gc_rounds=2)
    for number in range(5):
        record = {"kind": "round", "round": number}
        watching.record_added(
            {**record, "measurements": {}, "aggregation": {}, "contributions": {}}
        )
    watching.record_added({"kind": "end", "scores": {}})
    assert freed == [1, 3]


def test_the_configuration_is_written_where_a_job_has_one(tmp_path: Path) -> None:
    observer(tmp_path).run_started()
    assert not list(tmp_path.iterdir())
    observer(tmp_path, config={"rounds": 3}).run_started()
    assert json.loads((tmp_path / "config.json").read_text()) == {"rounds": 3}
