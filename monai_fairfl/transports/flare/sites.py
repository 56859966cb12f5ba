# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The sites of a job: the executor that answers their tasks, of the installed package."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nvflare.apis.event_type import EventType
from nvflare.apis.executor import Executor
from nvflare.apis.fl_constant import FLContextKey
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable
from nvflare.apis.signal import Signal
from nvflare.app_common.utils.fl_model_utils import FLModelUtils

from monai_fairfl.transports.engines.site import Site
from monai_fairfl.transports.engines.wire import packed_reply
from monai_fairfl.transports.flare.policy import NEEDS
from monai_fairfl.transports.flare.wire import model_of, packed_of, register_tensors


class FairFLExecutor(Executor):
    """Answers a federation's tasks in the client's job process.

    Args:
        settings: of the job for its sites, see
            :class:`~monai_fairfl.transports.engines.site.JobSiteSettings`.
        needs: what a site must allow; NVFlare shows it when its policy refuses this class.

    >>> executor = FairFLExecutor({"bundle": "prostate_mri_segmentation", "local_epochs": 2})
    >>> executor.settings["local_epochs"]
    2
    """

    _always_serialize_args = ("needs",)

    def __init__(self, settings: Mapping[str, Any], needs: str = NEEDS):
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
            self._site = Site(fl_ctx.get_identity_name(), workspace, self.settings)
        if event_type == EventType.END_RUN and self._site is not None:
            self._site.close()

    def execute(
        self, task_name: str, shareable: Shareable, fl_ctx: FLContext, abort_signal: Signal
    ) -> Shareable:
        """Carry out one task."""
        assert self._site is not None, "NVFlare sends START_RUN before the first task"
        model = FLModelUtils.from_shareable(shareable)
        # Whatever goes wrong is reported in the answer.
        reply = self._site.answer(lambda: packed_of(model))
        return FLModelUtils.to_shareable(model_of(packed_reply(reply)))
