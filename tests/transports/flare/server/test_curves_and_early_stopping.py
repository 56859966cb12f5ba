# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""What a run shows while it goes on, and when it ends early."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("nvflare")


from monai_fairfl.errors import ConfigError  # noqa: E402
from monai_fairfl.transports.flare.server.curves import curve_points  # noqa: E402
from monai_fairfl.transports.flare.server.early_stopping import EarlyStop  # noqa: E402
from monai_fairfl.transports.flare.server.script_messages import (  # noqa: E402
    settings_for_scripts,
)

pytestmark = pytest.mark.nvflare


def record(number: int, **scores: float) -> dict[str, Any]:
    """A round's record in the ledger, with each site's score."""
    measurements = {}
    for site, score in scores.items():
        mean = {"value": score, "stderr": None, "n": 1}
        measurements[site] = {"global_score": {"mean": mean}}
    return {
        "kind": "round",
        "round": number,
        "clients": list(scores),
        "measurements": measurements,
        "aggregation": {},
        "contributions": {},
    }


def test_curves_are_shown_by_site_and_in_the_mean_at_every_round() -> None:
    found = set(curve_points(record(4, elm=0.2, oak=0.6)))

    expected = {
        ("elm", "global_score", 0.2, 4),
        ("oak", "global_score", 0.6, 4),
        ("", "global_score/mean", 0.4, 4),
    }
    assert found == expected


def test_weights_by_layer_make_no_curve() -> None:
    assert not list(curve_points({**record(0), "aggregation": {"layer": {"elm": 0.5}}}))


@pytest.mark.parametrize(
    ("condition", "patience", "scores", "rounds"),
    [
        ("global_score >= 0.5", None, [0.1, 0.4, 0.5, 0.9], 3),
        ("global_score > 0.95", 2, [0.1, 0.4, 0.3, 0.2, 0.9], 4),
        ("global_score < 0.1", 2, [0.9, 0.5, 0.6, 0.7], 4),
        ("other > 0", None, [0.9, 0.9], None),
        (None, None, [0.9, 0.9], None),
    ],
)
def test_a_run_ends_when_it_is_good_enough_or_no_longer_gets_better(
    condition: str | None, patience: int | None, scores: list[float], rounds: int | None
) -> None:
    ended: list[int] = []
    stop = EarlyStop(condition, patience, lambda: ended.append(done))
    for done, score in enumerate(scores, 1):
        stop.observe(record(done - 1, elm=score, oak=score))

    assert (ended[0] if ended else None) == rounds


def test_a_run_does_not_end_because_the_weakest_hospital_was_away() -> None:
    ended: list[int] = []
    stop = EarlyStop("global_score >= 0.8", 2, lambda: ended.append(1))
    stop.observe({"kind": "start", "clients": ["elm", "oak"], "clients_per_round": None})
    stop.observe(record(0, elm=0.85, oak=0.4))
    for number in range(1, 4):
        stop.observe(record(number, elm=0.85))
    assert not ended
    stop.observe(record(4, elm=0.85, oak=0.8))
    assert ended


def test_a_measurement_that_nobody_sends_is_named_once(caplog: pytest.LogCaptureFixture) -> None:
    stop = EarlyStop("global_scor >= 0.8")
    for number in range(3):
        stop.observe(record(number, elm=0.9, oak=0.9))
    [message] = caplog.messages
    assert "no site sent 'global_scor' in round 0" in message
    assert message.endswith("sites sent: global_score")


HONEST = {"elm": 0.4, "oak": 0.5, "yew": 0.3}


@pytest.mark.parametrize("huge", [0.81, 1.0, 1e5, 1e6])
@pytest.mark.parametrize("name", ["dice", "global_score"])
def test_one_site_does_not_end_the_run_of_scripts(name: str, huge: float) -> None:
    """The scripts' metrics have no range: their median counts, also for the key metric."""
    ended: list[int] = []
    stop = EarlyStop(f"{name} >= 0.8", None, lambda: ended.append(1))
    stop.observe(opening(**settings_for_scripts({})["ranges"]))
    stop.observe(named(name, record(0, **HONEST, ash=huge)))
    assert not ended
    stop.observe(named(name, record(1, elm=0.8, oak=0.8, yew=0.9, ash=0.1)))
    assert ended


def test_the_median_of_two_sites_is_their_mean() -> None:
    ended: list[int] = []
    stop = EarlyStop("dice >= 0.8", None, lambda: ended.append(1))
    stop.observe(named("dice", record(0, elm=0.9, oak=0.6)))
    assert not ended
    stop.observe(named("dice", record(0, elm=0.9, oak=0.7)))
    assert ended


@pytest.mark.parametrize(
    ("name", "ranges"),
    [
        ("global_score", {}),
        ("dice", {"dice": [0, 1]}),
        ("global_score", {"global_score": [0, 1]}),
    ],
)
def test_where_a_range_is_known_the_mean_over_sites_counts(
    name: str, ranges: dict[str, list[float]]
) -> None:
    ended: list[int] = []
    stop = EarlyStop(f"{name} >= 0.5", None, lambda: ended.append(1))
    stop.observe(opening(**ranges))
    # The median is 0.45.
    stop.observe(named(name, record(0, elm=0.4, oak=0.5, yew=0.4, ash=0.7)))
    assert ended


def opening(**ranges: list[float]) -> dict[str, Any]:
    """A run's first record in the ledger."""
    sites = [*HONEST, "ash"]
    return {"kind": "start", "clients": sites, "clients_per_round": None, "ranges": ranges}


def named(name: str, of_round: dict[str, Any]) -> dict[str, Any]:
    """A round's record whose scores have another name."""
    scores = of_round["measurements"]
    measured = {site: {name: values["global_score"]} for site, values in scores.items()}
    return {**of_round, "measurements": measured}


@pytest.mark.parametrize(
    ("condition", "patience"), [("score>0.5", None), ("score ~ 1", None), (None, 3)]
)
def test_a_condition_that_cannot_be_read_is_refused(
    condition: str | None, patience: int | None
) -> None:
    with pytest.raises(ConfigError, match="stop_cond"):
        EarlyStop(condition, patience, lambda: None)
