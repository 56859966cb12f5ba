# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Who contributed what: of the ledger's numbers, over rounds, seeds and valuations."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.driving import vector
from helpers.fixed_sites import federate
from helpers.given_strategy import Given
from helpers.reports import hospital, points_of, run_of
from helpers.scripted_run import contributions_of, report_of, train, valued
from sklearn.metrics.pairwise import cosine_similarity

from monai_fairfl import ModelSpec, read_ledger
from monai_fairfl.report import write_report
from monai_fairfl.strategies import FedAvg

IMAGES = {"ash": 40, "elm": 10, "oak": 30, "yew": 20}
SCORES = dict.fromkeys(IMAGES, (0.8, 0.01, 9))
ABOUT: dict[str, Any] = {site: {"images": count} for site, count in IMAGES.items()}


def test_a_hospital_that_left_has_no_number_of_the_method_and_no_share_of_it(
    tmp_path: Path,
) -> None:
    about = {**ABOUT, "oak": {**ABOUT["oak"], "away": [2, 3]}}
    report = report_of(tmp_path, {"FedCE": SCORES}, 4, about=about)
    by_round = contributions_of(tmp_path / "FedCE")
    assert hospital(report, "oak")["contribution"] is None
    credit = run_of(report, "FedCE")["credit"]
    assert credit["Images"] == pytest.approx({site: n / 100 for site, n in IMAGES.items()})
    assert credit["Weight"]["oak"] == pytest.approx(sum(n.get("oak", 0) for n in by_round) / 4)
    assert "oak" not in credit["FedCE's own"]


def test_a_hospital_has_the_number_of_the_last_round_that_drew_it(tmp_path: Path) -> None:
    drawn = {"clients_per_round": 3, "min_clients": 2}
    report = report_of(tmp_path, {"FedCE": SCORES}, 5, about=ABOUT, **drawn)
    by_round = contributions_of(tmp_path / "FedCE")
    assert any(site not in by_round[-1] for site in IMAGES)
    for site in IMAGES:
        last = max(number for number, found in enumerate(by_round) if site in found)
        found = hospital(report, site)["contribution"]
        assert found["value"] == pytest.approx(by_round[last][site])


def test_a_valuation_answers_for_fedavg_unless_the_run_went_on(tmp_path: Path) -> None:
    sites = {site: SCORES[site] for site in ("ash", "elm", "oak")}
    run = train(tmp_path / "run", FedAvg(), sites, 2, about=ABOUT)
    valued(run, "old", model="of an earlier end")
    valued(run, "new", model=read_ledger(run / "ledger.jsonl")[-1]["model"])
    report = write_report([run])
    assert [found["name"] for found in run_of(report, "FedAvg")["valuations"]] == ["new"]
    # What FedAvg has of its own is its weights.
    assert hospital(report)["contribution"] is None
    values = {site: hospital(report, site)["worth"] for site in sites}
    assert values["ash"] is None
    assert (values["elm"]["value"], values["oak"]["value"]) == (-0.1, 0.3)
    assert "-0.1000" in (run / "report.html").read_text()


def test_weights_per_layer_are_averaged_plainly(tmp_path: Path) -> None:
    layered = {"conv": {"elm": 0.1, "oak": 0.9}, "fc": {"elm": 0.3, "oak": 0.7}}
    spec = ModelSpec(("a", "b"), layers={"a": "conv", "b": "fc"})
    update = {"a": vector([1.0]), "b": vector([1.0])}
    federate(Given(layered, {}), tmp_path, [{"elm": update, "oak": update}], spec=spec)
    found = write_report([tmp_path / "run"])["strategies"].popitem()[1]
    assert found["series"]["weight"]["elm"][0]["value"] == pytest.approx(0.2)


def test_cosines_are_those_of_the_updates(tmp_path: Path) -> None:
    """Standalone's updates start from different models, and have none."""
    updates = {"ash": [1.0, 0.0, 0.1], "elm": [0.0, 2.0, -0.1], "oak": [3.0, 0.2, 0.0]}
    about = {site: {"updates": update} for site, update in updates.items()}
    scores = dict.fromkeys(updates, (0.8, 0.01, 9))
    report = report_of(tmp_path, {"Standalone": scores, "FedAvg": scores}, 2, about=about)
    found = run_of(report, "FedAvg")["similarity"]
    expected = cosine_similarity([updates[site] for site in found["sites"]])
    assert np.array(found["cosines"]) == pytest.approx(expected)
    assert run_of(report, "Standalone")["similarity"] is None


def test_a_free_rider_score_stands_out_over_three_rounds(tmp_path: Path) -> None:
    """Yew's model fits its own data far better than the one that it received."""
    about: dict[str, Any] = {}
    for number, site in enumerate(("elm", "oak", "yew")):
        measured = {"global_score": 0.5, "local_score": 0.9 if site == "yew" else 0.51}
        about[site] = {"measured": measured, "updates": np.eye(3)[number].tolist()}
    given = {"about": about, "evaluate": ("global_score", "local_score")}
    report = report_of(tmp_path, {"FedAvg": dict.fromkeys(about, 0.8)}, 3, **given)
    points = points_of(report, "FedAvg", "free_rider_score", "yew")
    assert [value for _, value in points] == pytest.approx([0.4 / np.sqrt(3)] * 3)
    assert run_of(report, "FedAvg")["flagged"] == {"yew": 2}
    assert "flagged in round 2" in (tmp_path / "report.html").read_text()
