# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""``monai-fairfl adopt`` and then ``train``: a bundle of others federates, by every kind of method,
and no file of it is made by hand.
"""

from __future__ import annotations

import json
import shlex
import shutil
from pathlib import Path

import pytest
from helpers.foreign_bundles import SIDES, write_foreign_bundle, write_nested_balls
from helpers.page_blocks import blocks_of_page

from monai_fairfl.cli import main
from monai_fairfl.data.layouts import PARTS
from monai_fairfl.run_folder.ledger import read_ledger

METHODS = ["FedAvg", "FedCE", "CGSV", "FedLWR", "ShapFed", "FedISM"]
SITES = ["A", "B", "C"]


def adopt_and_train(bundle: Path, data: Path, run: Path, methods: list[str]) -> None:
    """Run both commands."""
    assert main(["adopt", str(bundle), "--data", str(data)]) == 0
    words = ["train", str(data), "--bundle", str(bundle), "--out", str(run), "--strategies"]
    words += [*methods, "--rounds", "2", "--local-epochs", "1", "--jobs", "1"]
    assert main(words) == 0


def check_runs(run: Path, methods: list[str], classes: int = 1) -> None:
    """All runs went to their end, and each site has scores of validation and of test cases."""
    report = json.loads((run / "report.json").read_text())
    assert [found["strategy"] for found in report["strategies"].values()] == methods
    names = {"mean"}
    if classes > 1:
        names |= {f"ball {number}" for number in range(1, classes + 1)}
    for method in methods:
        end = read_ledger(run / method / "ledger.jsonl")[-1]
        assert end["kind"] == "end" and not end["missing"], method
        for site in SITES:
            for measured in ("score", "test_score"):
                scores = end["scores"][site]["own"][measured]
                assert set(scores) == names, method
                assert all(0 <= score["value"] <= 1 for score in scores.values()), method


@pytest.mark.long
@pytest.mark.slow
def test_the_pages_commands_train_every_kind_of_method(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    bundle = write_foreign_bundle(tmp_path / "my_bundle", "segresnet_ds")
    write_nested_balls(tmp_path / "hospitals", SITES, side=16, longer=8)
    [block] = [block for block in blocks_of_page("docs/adopt.md") if block.runs]
    commands = block.text.replace("\\\n", " ").strip().splitlines()
    for command in commands:
        assert main(shlex.split(command)[1:]) == 0
    run = tmp_path / "runs" / "first"
    check_runs(run, METHODS)

    # Each site split all its cases, and stored its images in a folder of its own.
    for site in SITES:
        datalist = json.loads((run / "datalists" / f"{site}.json").read_text())
        assert [len(datalist[part]) for part in PARTS] == [3, 2, 1]
        assert list((run / "FedAvg" / "sites" / site / "cache").glob("*.pt"))
    assert not (bundle / "cache").exists()


@pytest.mark.extended
@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "classes"),
    [("segresnet", 3), ("dynunet", 1), ("basic_unet_plus_plus", 1), ("swin_unetr", 1)],
)
def test_networks_of_every_kind_are_trained(name: str, classes: int, tmp_path: Path) -> None:
    bundle = write_foreign_bundle(tmp_path / "bundle", name, classes)
    # Fed-LWR compares four images or more, here windows: a volume has two.
    data = write_nested_balls(tmp_path / "data", SITES, SIDES.get(name, 16), classes, longer=8)
    adopt_and_train(bundle, data, tmp_path / "run", METHODS)
    check_runs(tmp_path / "run", METHODS, classes)


@pytest.mark.slow
def test_one_hospital_is_refused_before_anything_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bundle = write_foreign_bundle(tmp_path / "bundle", "dynunet")
    data = write_nested_balls(tmp_path / "data", ["A"], side=8, cases=1)
    assert main(["adopt", str(bundle), "--data", str(data)]) == 2
    assert "holds one site, A" in capsys.readouterr().err
    assert not (bundle / "configs" / "federate.json").exists()


@pytest.mark.slow
def test_what_was_changed_and_what_was_not_is_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bundle = write_foreign_bundle(tmp_path / "bundle", "dynunet")
    assert main(["adopt", str(bundle)]) == 0
    printed = capsys.readouterr().out
    for topic in ("Images", "Split", "Cache", "Workers", "Handlers", "Learning rate", "Score"):
        assert f"\n- {topic}: " in printed, topic
    assert "\nNot changed\n- Split: without --data" in printed
    assert printed.rstrip().endswith("tries two rounds of one step.")


@pytest.mark.long
@pytest.mark.slow
def test_a_bundle_that_cannot_train_is_found_by_one_step(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bundle = write_foreign_bundle(tmp_path / "bundle", "dynunet")
    # A loss of one output, for a network that gives two.
    file = bundle / "configs" / "train.json"
    file.write_text(file.read_text().replace(json.dumps(LOSS), '"@outputs_loss"'))
    data = write_nested_balls(tmp_path / "data", SITES, side=24, cases=3)
    assert main(["adopt", str(bundle), "--data", str(data)]) == 2
    error = capsys.readouterr().err
    assert "two rounds of one step failed" in error
    log = Path(error.split("The log is ")[1].split(";")[0])
    assert log.is_file()
    shutil.rmtree(log.parent)


LOSS = "$lambda pred, label: sum(@outputs_loss(one, label) for one in pred.unbind(1))"
