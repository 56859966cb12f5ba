# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""What an aggregator of NVFlare's own FedAvg workflow remembers between rounds: a file of the job's
run directory.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nvflare.apis.fl_context import FLContext

from monai_fairfl.errors import ConfigError
from monai_fairfl.protocol.values import to_json
from monai_fairfl.strategies import RoundResult, Strategy
from monai_fairfl.utils.files import write_atomically

STATE = "fairfl_aggregator.json"
"""At the server: what the strategy remembers, and each round's weights. Clients do not receive it.
"""


class AggregatorState:
    """The strategy's state and the record of every round, for a server that is started again, and
    for you.

    Args:
        strategy: whose state it is.
        fl_ctx: of the job; ``None`` outside a job, where nothing is kept.
    """

    def __init__(self, strategy: Strategy, fl_ctx: FLContext | None):
        self.strategy, self.rounds = strategy, list[dict[str, Any]]()
        self.file: Path | None = None
        if fl_ctx is not None and (engine := fl_ctx.get_engine()) is not None:
            self.file = Path(engine.get_workspace().get_run_dir(fl_ctx.get_job_id())) / STATE

    def keep(self, number: int | None, result: RoundResult, missing: Mapping[str, str]) -> None:
        """Write what round ``number`` brought."""
        self.rounds.append(
            {
                "round": number,
                "aggregation": to_json(result.aggregation),
                "contributions": to_json(result.contributions),
                "missing": dict(missing),
                "notes": dict(result.notes),
            }
        )
        if self.file is not None:
            kept = {
                "strategy": self.strategy.name,
                "state": self.strategy.state_dict(),
                "rounds": self.rounds,
            }
            write_atomically(self.file, json.dumps(kept, indent=1).encode())

    def resume(self, number: int | None) -> None:
        """Take up what an earlier server left, unless round ``number`` is the first.

        Raises:
            ConfigError: when another strategy left it.
        """
        if self.file is None or not number or not self.file.exists():
            return
        kept = json.loads(self.file.read_text())
        if kept["strategy"] != self.strategy.name:
            raise ConfigError(
                f"{self.file} was written by {kept['strategy']}, now it is {self.strategy.name}: delete it"
            )
        self.strategy.load_state_dict(kept["state"])
        self.rounds = [
            record
            for record in kept["rounds"]
            if record["round"] is None or record["round"] < number
        ]
