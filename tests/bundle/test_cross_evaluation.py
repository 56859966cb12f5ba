# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Real hospitals of a bundle judge one another, and the server judges them on images of its own."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from helpers.bundle_runs import federation

from monai_fairfl.data import check_cases
from monai_fairfl.errors import DataError
from monai_fairfl.report import write_report
from monai_fairfl.run_folder.ledger import read_ledger
from monai_fairfl.strategies import FedAvg, FedCE


@pytest.fixture(scope="module")
def judged(hospitals: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of five hospitals, judged by each other, and by the server on the images of a sixth."""
    root = tmp_path_factory.mktemp("judged")
    names = sorted(folder.name for folder in hospitals.iterdir())
    for site in names[:5]:
        shutil.copytree(hospitals / site, root / "sites" / site)
    shutil.copytree(hospitals / names[5], root / "server_images")
    federation(
        root / "sites",
        root / "run",
        FedCE("sum"),
        cross_evaluate_every=1,
        cross_evaluators=["sites", "server"],
        server_data=str(root / "server_images"),
    ).run()
    return root


@pytest.mark.slow
def test_the_ledger_has_what_every_judge_measured(judged: Path) -> None:
    opening, *rounds, _ = read_ledger(judged / "run" / "ledger.jsonl")
    sites = opening["clients"]
    for record in rounds:
        found = record["cross_evaluation"]
        assert found["missing"] == {}
        assert sorted(found["sites"]) == sites
        for entries in found["sites"].values():
            assert [len(entry["without"]) for entry in entries] == [1, 3, 3]
        assert [entry["without"] for entry in found["server"]] == [[], *([site] for site in sites)]
        scores = [entry["score"] for entries in found["sites"].values() for entry in entries]
        scores += [entry["score"] for entry in found["server"]]
        assert all(0 <= score <= 1 for score in scores)
        assert len(set(scores)) > 1


@pytest.mark.slow
def test_the_report_shows_credit_under_several_rules(judged: Path, tmp_path: Path) -> None:
    write_report([judged / "run"], tmp_path)
    (found,) = json.loads((tmp_path / "report.json").read_text())["strategies"].values()
    rules = {rule["name"]: rule for rule in found["credit"]}
    assert list(rules) == [
        "Images",
        "Weight",
        "FedCE-sum's own",
        "Judged by the other sites",
        "Judged by the server",
    ]
    for rule in rules.values():
        if rule["shares"]:
            assert sum(rule["shares"].values()) == pytest.approx(1)
    for credit in rules["Judged by the server"]["judged"].values():
        assert credit["least"] <= credit["value"] <= credit["most"]
    page = (tmp_path / "report.html").read_text()
    assert "Credit under several rules" in page
    assert "Judged by the other sites" in page


@pytest.mark.slow
def test_the_servers_images_are_checked_before_anything_is_trained(
    judged: Path, tmp_path: Path
) -> None:
    (tmp_path / "empty").mkdir()
    settings = {"cross_evaluate_every": 1, "cross_evaluators": ["server"]}
    run = federation(
        judged / "sites",
        tmp_path / "run",
        FedAvg(),
        server_data=str(tmp_path / "empty"),
        **settings,
    )
    run.check = check_cases
    with pytest.raises(DataError, match="site 'server'"):
        run.run()
    assert not (tmp_path / "run").exists()
