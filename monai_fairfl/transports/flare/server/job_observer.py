# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""What a job does with each record of its run: curves, early stopping, memory."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nvflare.apis.engine_spec import EngineSpec
from nvflare.fuel.utils.memory_utils import cleanup_memory

from monai_fairfl.transports.engines.job_run import JobRecorder
from monai_fairfl.transports.flare.server.curves import curve_points, show
from monai_fairfl.transports.flare.server.early_stopping import EarlyStop


class JobObserver(JobRecorder):
    """Watches the run of a job.

    Args:
        engine: of the job, whose receivers of metrics get the curves.
        early_stop: ends the run early.
        config_file: ``config.json`` of the run.
        config: what the job asked for, as far as the server knows it; ``None``: nothing is written.
        memory_gc_rounds: free memory after every so many rounds; 0: never.
    """

    def __init__(
        self,
        engine: EngineSpec,
        early_stop: EarlyStop,
        config_file: Path,
        config: Mapping[str, Any] | None = None,
        memory_gc_rounds: int = 0,
    ):
        super().__init__(config_file, config)
        self.engine = engine
        self.early_stop = early_stop
        self.memory_gc_rounds = memory_gc_rounds

    def record_replayed(self, record: Mapping[str, Any]) -> None:
        """Let early stopping see a record that an earlier job of this run has shown already."""
        self.early_stop.observe(record)

    def record_added(self, record: Mapping[str, Any]) -> None:
        """Show the record's curves, look whether the run should end, and free memory."""
        for point in curve_points(record):
            with self.engine.new_context() as fl_ctx:
                show(fl_ctx, point)
        self.early_stop.observe(record)
        if record["kind"] == "round" and self.memory_gc_rounds:
            rounds_done = record["round"] + 1
            if rounds_done % self.memory_gc_rounds == 0:
                cleanup_memory()
