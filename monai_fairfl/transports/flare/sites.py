# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The sites of a job: what answers their tasks.

It is an executor of NVFlare for hospitals that allow installed packages only, or a script of the
job for NVFlare's Client API, which runs in NVFlare's process or in one of its own.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import nvflare.client as client_api
from nvflare.apis.event_type import EventType
from nvflare.apis.executor import Executor
from nvflare.apis.fl_constant import FLContextKey
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable
from nvflare.apis.signal import Signal
from nvflare.app_common.abstract.fl_model import FLModel
from nvflare.app_common.utils.fl_model_utils import FLModelUtils

from monai_fairfl.transports.engines.site import Site
from monai_fairfl.transports.engines.wire import packed_reply
from monai_fairfl.transports.flare.policy import NEEDS
from monai_fairfl.transports.flare.wire import model_of, packed_of, register_tensors

SCRIPT_NAME = "fairfl_client.py"
SCRIPT = """# A site of an NVFlare job. All sites run the code of the installed package.
from monai_fairfl.transports.flare.sites import run_script

run_script(__file__)
"""
"""What a job with custom code brings to its sites."""

SETTINGS = "fairfl_site.json"
"""The job's settings for its sites, in the ``config`` folder of the client's app."""


class FairFLExecutor(Executor):
    """Answers a federation's tasks in the client's job process.

    Args:
        settings: of the job for its sites, see
            :class:`~monai_fairfl.transports.engines.site_settings.JobSiteSettings`.
        needs: what a site must allow; NVFlare shows it when its policy refuses this class.

    >>> executor = FairFLExecutor({"bundle": "prostate_mri_segmentation", "local_epochs": 2})
    >>> executor.settings["local_epochs"]
    2
    """

    _always_serialize_args = ("needs",)

    def __init__(self, settings: Mapping[str, Any] | None = None, needs: str = NEEDS):
        super().__init__()
        # NVFlare writes a job's configuration from attributes that are named as the arguments.
        self.settings = settings
        self.needs = needs
        self._site: Site | None = None

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        """Set the site up when the job starts, and close it when the job ends."""
        if event_type == EventType.START_RUN:
            register_tensors()
            workspace = Path(fl_ctx.get_prop(FLContextKey.WORKSPACE_OBJECT).get_root_dir())
            self._site = Site(fl_ctx.get_identity_name(), workspace, self.settings or {})
        if event_type == EventType.END_RUN and self._site is not None:
            self._site.close()

    def execute(
        self, task_name: str, shareable: Shareable, fl_ctx: FLContext, abort_signal: Signal
    ) -> Shareable:
        """Carry out one task."""
        assert self._site is not None, "NVFlare sends START_RUN before the first task"
        model = FLModelUtils.from_shareable(shareable)
        return FLModelUtils.to_shareable(answer_task(self._site, model))


def run_script(script: str) -> None:
    """Answer tasks until the job ends.

    Args:
        script: the path of the running script, ``WORKSPACE/JOB/APP/custom/NAME.py``.
    """
    # It counts in a process of its own; in NVFlare's, logs go where NVFlare's go.
    logging.basicConfig(level=logging.WARNING)
    logging.getLogger("monai_fairfl").setLevel(logging.INFO)

    app = Path(script).absolute().parents[1]
    settings = json.loads((app / "config" / SETTINGS).read_text())
    register_tensors()
    client_api.init()
    site = Site(client_api.get_site_name(), app.parents[1], settings)
    try:
        while client_api.is_running():
            model = client_api.receive()
            if model is None:
                break
            client_api.send(answer_task(site, model))
    finally:
        site.close()


def answer_task(site: Site, model: FLModel) -> FLModel:
    """Return the answer of ``site`` to a task; whatever goes wrong is reported in it."""
    return model_of(packed_reply(site.answer(lambda: packed_of(model))))
