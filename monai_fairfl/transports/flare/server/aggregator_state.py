# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""What an aggregator remembers between rounds, as a file of the job's run directory."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from nvflare.apis.fl_context import FLContext

from monai_fairfl.errors import ConfigError
from monai_fairfl.guards import Guard, Verdict
from monai_fairfl.messages import add_note, to_json
from monai_fairfl.strategies import RoundResult, Strategy
from monai_fairfl.utils.files import write_atomically

STATE = "fairfl_aggregator.json"
"""At the server: the strategy's states, and each round's weights. Clients do not receive it."""

KEPT = 2
"""States that are kept: a server that stopped before its model was saved repeats its last round."""


class AggregatorState:
    """The state of strategy and guards, and the record of every round.

    A server that is started again takes them up; a user reads them. The states are those after the
    last :data:`KEPT` rounds.

    Args:
        strategy: whose state it is.
        guards: whose state it is, too.
        fl_ctx: of the job; ``None`` outside a job, where nothing is written.
    """

    def __init__(self, strategy: Strategy, guards: Sequence[Guard], fl_ctx: FLContext | None):
        self.strategy = strategy
        self.guards = guards
        self.rounds: list[dict[str, Any]] = []
        self.states: list[dict[str, Any]] = []
        self.file = _state_file(fl_ctx)

    def write(
        self,
        number: int | None,
        result: RoundResult,
        missing: Mapping[str, str],
        verdicts: Mapping[str, Sequence[Verdict]],
        notes: Mapping[str, str],
        facts: Mapping[str, Mapping[str, int]],
    ) -> None:
        """Add the record of round ``number`` and write everything.

        Args:
            number: of the round, where NVFlare gives one.
            result: of the round.
            missing: client -> why its result did not count.
            verdicts: client -> verdicts of the guards.
            notes: client -> what the server replaced in its result.
            facts: client -> fact -> number, of those that became known in this round.
        """
        details: dict[str, list[dict[str, Any]]] = {}
        for client, of_client in verdicts.items():
            details[client] = [asdict(verdict) for verdict in of_client]
        all_notes = dict(result.notes)
        for client, note in notes.items():
            add_note(all_notes, client, note)
        self.rounds.append(
            {
                "round": number,
                "aggregation": to_json(result.aggregation),
                "contributions": to_json(result.contributions),
                "missing": dict(missing),
                "verdicts": details,
                "notes": all_notes,
                "facts": {client: dict(found) for client, found in facts.items()},
            }
        )
        if self.file is None:
            return
        state = {
            "round": number,
            "state": self.strategy.state_dict(),
            "clients": list(self.strategy.clients),
            "guards": self._states_of_guards(),
        }
        self.states = [*self.states, copy.deepcopy(state)][-KEPT:]
        content = {"strategy": self.strategy.name, "states": self.states, "rounds": self.rounds}
        write_atomically(self.file, json.dumps(content, indent=1).encode())

    def resume(self, number: int | None) -> None:
        """Take up what an earlier server wrote, unless round ``number`` is the first.

        Raises:
            ConfigError: when another strategy wrote it, or it has no state after the round before.
        """
        if not number or self.file is None or not self.file.exists():
            return
        content = json.loads(self.file.read_text())
        if content["strategy"] != self.strategy.name:
            raise ConfigError(
                f"{self.file} was written by {content['strategy']}, now it is "
                f"{self.strategy.name}: delete it"
            )
        self.states = [state for state in content["states"] if state["round"] == number - 1]
        if not self.states:
            known = " and ".join(f"round {state['round']}" for state in content["states"])
            raise ConfigError(
                f"{self.file} has the state after {known}, and round {number} needs the one "
                f"after round {number - 1}: let NVFlare go on with the round after one of these, "
                "or delete the file, and the strategy begins without a memory"
            )
        # A copy: the strategy goes on with its own.
        [before] = copy.deepcopy(self.states)
        self.strategy.load_state_dict(before["state"])
        # As recorded, and not those that are connected now.
        self.strategy.clients = before["clients"]
        states = before["guards"]
        for name, guard in self._named_guards().items():
            # Other guards than before begin without a memory.
            if name in states:
                guard.load_state_dict(states[name])
        self.rounds = []
        for record in content["rounds"]:
            if record["round"] is None or record["round"] < number:
                self.rounds.append(record)

    def _states_of_guards(self) -> dict[str, dict[str, Any]]:
        """Name -> state of each guard that looks back."""
        states = {}
        for name, guard in self._named_guards().items():
            if guard.state:
                states[name] = guard.state_dict()
        return states

    def _named_guards(self) -> dict[str, Guard]:
        """The guards by class and place, so that two of one class differ."""
        named = {}
        for place, guard in enumerate(self.guards):
            named[f"{place} {type(guard).__name__}"] = guard
        return named


def _state_file(fl_ctx: FLContext | None) -> Path | None:
    engine = fl_ctx.get_engine() if fl_ctx is not None else None
    if fl_ctx is None or engine is None:
        return None
    return Path(engine.get_workspace().get_run_dir(fl_ctx.get_job_id())) / STATE
