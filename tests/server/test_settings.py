# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The settings of a run: declared once, with what follows from changing them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import FrozenInstanceError, fields, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.driving import SPEC, LeastSquares

from monai_fairfl.errors import ConfigError, FederationError
from monai_fairfl.protocol.averages import normalise
from monai_fairfl.protocol.measured import RANGES, Range
from monai_fairfl.protocol.messages import Reply, Request, Train
from monai_fairfl.run_folder.ledger import read_ledger
from monai_fairfl.server.federation import Federation
from monai_fairfl.server.settings import RunSettings
from monai_fairfl.strategies import FedAvg, Rounds
from monai_fairfl.transports.in_process import InProcess

OTHER: dict[str, Any] = {
    "rounds": 3,
    "min_clients": 1,
    "retries": 0,
    "timeout": 60.0,
    "evaluate": (),
    "final": (),
    "score_global": False,
    "buffers": "samples",
    "keep": 2,
    "seed": 7,
    "threads": 2,
    "clients_per_round": 2,
    "local_norm": True,
    "record_updates": True,
    "groups": {"first": ["A"]},
    "ranges": {"global_loss": [-1, 1]},
    "samples": {"A": 7},
    "most_samples": 10,
    "adapt_epochs": 4,
    "adapt_rate": 0.01,
    "adapt_fuse": True,
    "unasked": True,
}


def federation(folder: Path, **settings: Any) -> Federation:
    clients = InProcess({name: lambda: LeastSquares([1.0, 0.0]) for name in "ABCDE"})
    initial = lambda: ({"w": torch.zeros(2, dtype=torch.float64)}, SPEC)  # noqa: E731
    return Federation(
        FedAvg(), clients, initial=initial, run_dir=folder, **{"rounds": 2, **settings}
    )


@pytest.mark.parametrize("name", [entry.name for entry in fields(RunSettings)])
def test_a_resumed_run_may_change_just_the_settings_that_the_ledger_does_not_record(
    name: str, tmp_path: Path
) -> None:
    federation(tmp_path / "run").run()
    recorded = RunSettings(2).opening()
    assert {key: read_ledger(tmp_path / "run/ledger.jsonl")[0][key] for key in recorded} == recorded

    needed = {"adapt_epochs": 4} if name == "adapt_fuse" else {}
    changed = federation(tmp_path / "run", **{name: OTHER[name], **needed})
    if name in recorded:
        with pytest.raises(FederationError, match=f"was begun with {name} = "):
            changed.run(resume=True)
    else:
        assert changed.run(resume=True).finished


def test_what_a_comparison_shares_is_recorded() -> None:
    settings = RunSettings(2)
    assert set(settings.compared()) < set(settings.opening())


def test_an_unknown_keyword_is_an_error_that_names_the_one_that_was_meant(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="Federation has no setting 'min_client'; did you mean"):
        federation(tmp_path, min_client=3)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"retries": -1}, "retries must be a whole number of at least 0, got -1"),
        ({"keep": 1}, "keep must be a whole number of at least 2, got 1"),
        ({"timeout": 0}, "timeout must be a number of seconds above 0"),
        ({"evaluate": "global_score"}, "evaluate must be a list of measurements"),
        ({"ranges": {"score": [1, 0]}}, "'score' must have two finite numbers.*got \\[1, 0\\]"),
        ({"ranges": {"score": 1}}, "'score' must have two finite numbers"),
        ({"ranges": {"score": [0, float("inf")]}}, "'score' must have two finite numbers"),
        ({"samples": {"A": 0}}, "samples of 'A' must be a whole number from 1"),
        ({"samples": {"A": True}}, "samples of 'A' must be a whole number from 1"),
        ({"samples": {"A": 11}, "most_samples": 10}, "which is 10, got 11"),
        ({"most_samples": 0}, "most_samples must be a whole number of at least 1, got 0"),
        ({"adapt_fuse": True}, "adapt_epochs switches on: give adapt_epochs, such as 10"),
        ({"score_global": "false"}, "score_global must be True or False, got 'false'"),
    ],
)
def test_a_setting_out_of_range_is_refused_by_name(given: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        RunSettings(2, **given)


def test_settings_are_plain_values_that_do_not_change() -> None:
    settings = RunSettings(2, groups={"first": ("A",)}, evaluate=["global_score"])
    assert settings.groups == {"first": ["A"]} and settings.evaluate == ("global_score",)
    assert RunSettings(**settings.keywords()) == settings
    with pytest.raises(FrozenInstanceError):
        settings.seed = 1  # type: ignore[misc]


class Flatness(FedAvg):
    """Asks for a measurement that the package does not know."""

    ranges = {"flatness": Range("degrees", 0, 90), "score": Range("percent", 0, 100)}

    def round(self, clients: Sequence[str]) -> Rounds:
        local = yield [Train(client, self.start_of(client), ("flatness",)) for client in clients]
        known = self.known(local, "flatness")
        return self.finish(local, normalise(known), contributions=known)


def test_a_strategy_declares_ranges_and_the_run_has_the_last_word() -> None:
    given = RunSettings(2, ranges={"score": [-1, 1], "mine": [0, 5]})
    ranges = given.expected(Flatness.ranges).ranges
    assert str(ranges["flatness"]) == "0 to 90 (degrees)"
    assert str(ranges["score"]) == "-1 to 1 (percent)" and str(ranges["mine"]) == "0 to 5 (mine)"
    assert ranges["global_score"] == RANGES["global_score"]


def test_a_value_outside_of_the_strategys_range_is_dropped_and_recorded(tmp_path: Path) -> None:
    class Tilted(LeastSquares):
        """Its flatness is 45, and that of B impossible."""

        def answer(self, request: Request) -> Reply:
            reply = super().answer(request)
            degrees = {"A": 45.0, "B": 450.0, "C": 45.0}[request.client]
            return replace(reply, measurements={**reply.measurements, "flatness": degrees})

    clients = InProcess({name: lambda: Tilted([1.0, 0.0]) for name in "ABC"})
    initial = lambda: ({"w": torch.zeros(2, dtype=torch.float64)}, SPEC)  # noqa: E731
    run = Federation(Flatness(), clients, 1, initial, run_dir=tmp_path / "run")
    history = run.run()
    (record,) = history.rounds
    assert record["aggregation"] == {"A": 0.5, "C": 0.5}
    assert record["dropped"] == {
        "B": {"flatness": "450, outside of 0 to 90 (degrees): the setting ranges allows others"}
    }
    # The closing requests do not ask for it.
    unasked = {"flatness": "the request did not ask for it"}
    assert history.records[-1]["dropped"] == dict.fromkeys("ABC", unasked)
