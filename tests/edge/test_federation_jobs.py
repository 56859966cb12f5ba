# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""A job that brings code, orders for MONAI, data or endless work to a site: it runs nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("nvflare")

from nvflare.apis.event_type import EventType  # noqa: E402
from nvflare.apis.fl_constant import FLContextKey, ReservedKey  # noqa: E402
from nvflare.apis.fl_context import FLContext  # noqa: E402
from nvflare.apis.signal import Signal  # noqa: E402
from nvflare.apis.workspace import Workspace  # noqa: E402
from nvflare.app_common.abstract.fl_model import FLModel  # noqa: E402
from nvflare.app_common.utils.fl_model_utils import FLModelUtils  # noqa: E402

from monai_fairfl.transports.flare import FairFLExecutor  # noqa: E402

BUNDLE = "prostate_mri_segmentation"
MESSAGE: dict[str, Any] = {
    **{"task": "train", "measure": [], "context": {}, "id": 0, "run": "r", "run_id": "r"},
    **{"round": 0, "seed": 3, "ledger_head": "", "format": 1, "package": "0"},
    **{"site": "elm", "rounds": 2},
}
"""A request as the server writes it into a task."""


def error_of(job: dict[str, Any], own: dict[str, Any], folder: Path) -> str:
    """Why a site with its own settings cannot do a task of a job."""
    for name in ("local", "startup"):
        (folder / name).mkdir(exist_ok=True)
    (folder / "local" / "fairfl.json").write_text(json.dumps({"bundle": BUNDLE, **own}))
    context = FLContext()
    context.put(ReservedKey.IDENTITY_NAME, "elm", private=False, sticky=False)
    workspace = Workspace(str(folder), "elm")
    context.put(FLContextKey.WORKSPACE_OBJECT, workspace, private=True, sticky=False)
    executor = FairFLExecutor(job)
    executor.handle_event(EventType.START_RUN, context)
    task = FLModel(params={"w": torch.zeros(1)}, current_round=0, meta={"fairfl": MESSAGE})
    sent = FLModelUtils.to_shareable(task)
    answer = FLModelUtils.from_shareable(executor.execute("train", sent, context, Signal()))
    assert not answer.params
    return str(answer.meta["fairfl"]["error"])


HOSTILE: dict[str, tuple[dict[str, Any], str]] = {
    "an expression": ({"overrides": {"size": "$__import__('os').getcwd()"}}, "expression"),
    "a class": ({"overrides": {"network_def": {"_target_": "os.system"}}}, "expression"),
    "a mode": ({"overrides": {"train#trainer#_mode_": "debug"}}, "code"),
    "switched off": ({"overrides": {"train::handlers::0::_disabled_": True}}, "code"),
    "imports": ({"overrides": {"train#trainer#_requires_": ["@imports"]}}, "code"),
    "a key of a later MONAI": ({"overrides": {"train#_a_key_of_a_later_monai_": 1}}, "code"),
    "other images": ({"dataset_dir": "/other"}, "dataset_dir"),
    "within": ({"overrides": {"datalist": {"dataset_dir": "other"}}}, "dataset_dir"),
    "endless work": ({"local_epochs": 1001}, "local_epochs"),
    "every thread": ({"threads": 65}, "threads"),
    "deep": ({"overrides": {"size": json.loads('{"a":' * 30 + "1" + "}" * 30)}}, "nested deeper"),
    "many keys": ({"overrides": {str(key): 1 for key in range(20_000)}}, "more than 10000"),
}


def test_a_site_answers_a_hostile_job_with_the_reason_and_runs_nothing(tmp_path: Path) -> None:
    for job, word in HOSTILE.values():
        reason = error_of(job, {}, tmp_path)
        assert reason.startswith("ConfigError: the job") and word in reason and len(reason) < 1000
    assert not (tmp_path / "fairfl").exists()
