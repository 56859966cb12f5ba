# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""A comparison in which a method fails: what can be known is found before, and later the other
methods run.
"""

from __future__ import annotations

import json
import logging
import os
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from helpers import warm_python
from helpers.checkout import CHECKOUT, TINY
from helpers.driving import SPEC, vector
from helpers.linear_federation import START, in_place_of_training

from monai_fairfl.bundle import federation as federate
from monai_fairfl.bundle.configuration import train_config
from monai_fairfl.bundle.federation import BundleFederation
from monai_fairfl.bundle.preflight import check_images, check_strategies
from monai_fairfl.data import CLINICS, write_clinics
from monai_fairfl.errors import ConfigError, FederationError
from monai_fairfl.guards import DEFAULT, NonFinite, TooLong
from monai_fairfl.protocol.model_spec import ModelSpec
from monai_fairfl.run_folder.ledger import read_ledger
from monai_fairfl.server.federation import History
from monai_fairfl.strategies import CGSV, FedAvg, FedCE, FedCI, FedGA, FedLWR, Standalone, Strategy
from monai_fairfl.strategies.base import Rounds
from monai_fairfl.utils.files import locked
from monai_fairfl.valuation import Reconstruction

PROSTATE = CHECKOUT / "bundles" / "prostate_mri_segmentation"
FUNDUS = CHECKOUT / "bundles" / "fundus_disc_cup_segmentation"


class Failing(FedAvg):
    """FedAvg whose rounds from ``first`` on raise ``error``."""

    def __init__(self, error: BaseException | None = None, first: int = 1):
        super().__init__()
        self._error, self._first, self._done = error, first, 0

    def round(self, clients: Sequence[str]) -> Rounds:
        result = yield from super().round(clients)
        if self._error is not None and self._done >= self._first:
            raise self._error
        self._done += 1
        return result


@pytest.fixture
def sites(hospitals: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    in_place_of_training(monkeypatch)
    return hospitals


def federation(
    sites: Path, run_dir: Path, strategies: Sequence[Strategy], **settings: Any
) -> BundleFederation:
    settings = {"rounds": 2, "site_names": ["alder", "cedar", "rowan"], **settings}
    return BundleFederation(
        str(PROSTATE), str(sites), list(strategies), run_dir=str(run_dir), **settings
    )


def run(
    sites: Path, run_dir: Path, strategies: Sequence[Strategy], **settings: Any
) -> list[History]:
    return federation(sites, run_dir, strategies, **settings).run()


def finished(run_dir: Path) -> dict[str, bool]:
    report = json.loads((run_dir / "report.json").read_text())
    return {name: found["finished"] for name, found in report["strategies"].items()}


@pytest.mark.parametrize(
    ("error", "reason", "traceback"),
    [
        (FederationError("no client measured it"), "no client measured it", False),
        (ZeroDivisionError("of my own"), "ZeroDivisionError: of my own", True),
    ],
    ids=["of the method", "of its code"],
)
def test_the_other_strategies_run_after_one_has_failed_and_the_report_names_it(
    error: Exception,
    reason: str,
    traceback: bool,
    sites: Path,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
) -> None:
    strategies = [Standalone(), Failing(error), FedAvg()]
    with pytest.raises(
        FederationError, match=f"1 of 3 strategies failed .Failing: {reason}.*tries again: Failing"
    ):
        run(sites, tmp_path / "run", strategies)
    assert finished(tmp_path / "run") == {"Standalone": True, "FedAvg": True}
    words = f"Failing failed and is not in this report: {reason}"
    assert (
        words in capsys.readouterr().out and words in (tmp_path / "run" / "report.html").read_text()
    )
    assert json.loads((tmp_path / "run" / "report.json").read_text())["failed"] == {
        "Failing": reason
    }
    logged = next(
        record for record in caplog.records if record.message.startswith("Failing failed")
    )
    assert logged.levelno == logging.ERROR and (logged.exc_info is not None) == traceback


def test_resume_tries_again_what_failed_from_where_it_stopped(sites: Path, tmp_path: Path) -> None:
    with pytest.raises(FederationError, match="1 of 2 strategies failed"):
        run(sites, tmp_path / "run", [Failing(FederationError("for now")), FedAvg()])
    ledger = (tmp_path / "run" / "Failing" / "ledger.jsonl").read_bytes()
    histories = run(sites, tmp_path / "run", [Failing(), FedAvg()], resume=True)
    assert [history.finished for history in histories] == [True, True]
    assert (tmp_path / "run" / "Failing" / "ledger.jsonl").read_bytes().startswith(ledger)
    assert finished(tmp_path / "run") == {"Failing": True, "FedAvg": True}
    assert json.loads((tmp_path / "run" / "report.json").read_text())["failed"] == {}


@pytest.mark.parametrize(
    "error", [KeyboardInterrupt(), SystemExit(1), OSError(28, "No space left on device")]
)
def test_what_concerns_all_strategies_ends_the_comparison(
    error: BaseException, sites: Path, tmp_path: Path
) -> None:
    with pytest.raises(type(error)):
        run(sites, tmp_path / "run", [Failing(error), FedAvg()])
    assert not (tmp_path / "run" / "FedAvg").exists()


def test_a_folder_in_use_by_another_run_ends_the_comparison(sites: Path, tmp_path: Path) -> None:
    with (
        locked(tmp_path / "run" / "Standalone"),
        pytest.raises(FederationError, match="^.*Standalone is in use by"),
    ):
        run(sites, tmp_path / "run", [Standalone(), FedAvg()])
    assert not (tmp_path / "run" / "FedAvg").exists()


def test_a_strategy_that_fails_after_ctrl_c_does_not_begin_the_next(
    sites: Path, tmp_path: Path
) -> None:
    class Interrupted(Failing):
        def round(self, clients: Sequence[str]) -> Rounds:
            signal.raise_signal(signal.SIGINT)
            result = yield from super().round(clients)
            return result

    with pytest.raises(FederationError, match="1 of 2 strategies failed"):
        run(sites, tmp_path / "run", [Interrupted(FederationError("too few"), first=0), FedAvg()])
    assert not (tmp_path / "run" / "FedAvg").exists()


def test_the_error_of_a_single_strategy_is_its_own(sites: Path, tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError, match="of my own"):
        run(sites, tmp_path / "run", [Failing(ZeroDivisionError("of my own"))])


def test_what_finished_is_valued_where_another_strategy_failed(sites: Path, tmp_path: Path) -> None:
    settings = {"record_updates": True, "valuations": [Reconstruction()]}
    with pytest.raises(FederationError, match="1 of 2 strategies failed"):
        run(sites, tmp_path / "run", [Failing(FederationError("for now")), FedAvg()], **settings)
    report = json.loads((tmp_path / "run" / "report.json").read_text())
    assert len(report["strategies"]["FedAvg"]["valuations"]) == 1
    assert not (tmp_path / "run" / "Failing" / "valuations").exists()


@pytest.mark.slow
def test_the_command_ends_with_an_error_code_and_the_name_of_what_failed(
    hospitals: Path, tmp_path: Path
) -> None:
    (tmp_path / "my_methods.py").write_text(
        "from monai_fairfl.errors import FederationError\n"
        "from monai_fairfl.strategies import FedAvg\n"
        "class Failing(FedAvg):\n"
        "    def round(self, clients):\n"
        "        yield from super().round(clients)\n"
        "        raise FederationError('nobody measured it')\n"
    )
    targets = ["my_methods.Failing", "monai_fairfl.strategies.FedAvg"]
    arguments = [
        *("-W", "ignore", "-m", "monai.bundle", "run"),
        *(
            "--config_file",
            str(PROSTATE / "configs" / "federate.json"),
            "--bundle_root",
            str(PROSTATE),
        ),
        *(
            "--sites_root",
            str(hospitals),
            "--site_names",
            "['alder', 'cedar']",
            "--run_dir",
            str(tmp_path / "run"),
        ),
        *(
            "--overrides",
            json.dumps({k: v for k, v in TINY.items() if k != "decay_epochs"}),
            "--device",
            "cpu",
        ),
        *(
            "--rounds",
            "1",
            "--strategies",
            json.dumps([{"_target_": target} for target in targets]),
        ),
    ]
    search_path = f"{CHECKOUT}{os.pathsep}{tmp_path}"
    done = warm_python.run(arguments, tmp_path, PYTHONPATH=search_path)
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert "1 of 2 strategies failed (Failing: nobody measured it)" in done.stderr.splitlines()[-1]
    assert "Failing failed and is not in this report: nobody measured it" in done.stdout
    assert finished(tmp_path / "run") == {"FedAvg": True}


# ---- what is found before anything is trained
# ------------------------------------------------------------------


@pytest.fixture(scope="module")
def clinics(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two clinics of three photographs each: one trains, one validates."""
    root = tmp_path_factory.mktemp("clinics")
    write_clinics(root, clinics=CLINICS[:2], size=64, cases=3)
    return root


@pytest.mark.parametrize(
    ("variant", "data", "advises_paper"),
    [
        ("recommended", "validation", True),
        ("released", "validation", True),
        ("paper", "training", False),
    ],
)
def test_too_few_images_for_cka_are_found_before_any_strategy_is_trained(
    variant: str, data: str, advises_paper: bool, clinics: Path, tmp_path: Path
) -> None:
    small = {"size": [32, 32], "channels": [4, 8], "working_size": 64}
    strategies = [FedAvg(), FedLWR(variant=variant)]
    given = BundleFederation(
        str(FUNDUS),
        str(clinics),
        strategies,
        rounds=1,
        run_dir=str(tmp_path / "run"),
        overrides=small,
        report=False,
    )
    with pytest.raises(ConfigError) as refused:
        given.run()
    words = str(refused.value)
    first, second = sorted(site.name for site in clinics.iterdir() if site.is_dir())
    assert words.startswith(strategies[1].name)
    assert (
        f"at least 4 different {data} images of a site, and {first} has 1, {second} has 1: "
        f"add {data} cases" in words
    )
    assert ("variant='paper'" in words) == advises_paper and "similarity='cosine'" in words
    assert not (tmp_path / "run").exists()


def counted(images: Mapping[str, int], asked: list[str]) -> Any:
    def count(data: str) -> Mapping[str, int]:
        asked.append(data)
        return images

    return count


def test_a_site_with_too_few_images_is_a_warning_where_enough_others_can_measure(
    caplog: pytest.LogCaptureFixture,
) -> None:
    asked: list[str] = []
    check_images(
        [FedAvg(), FedLWR(), FedLWR(clip=(0.1, 0.9))],
        counted({"elm": 2, "fir": 4, "oak": 9}, asked),
    )
    assert asked == ["validation"], "the images are counted once"
    assert (
        "elm has 2: such a site measures nothing, and counts as the mean of the others"
        in caplog.text
    )
    assert "fir" not in caplog.text and "oak" not in caplog.text
    with pytest.raises(
        ConfigError, match="FedLWR needs at least 4 different validation images of a site, and elm"
    ):
        check_images([FedLWR()], counted({"elm": 2, "fir": 3, "oak": 9}, asked))


def test_images_are_counted_only_for_a_strategy_that_needs_some() -> None:
    asked: list[str] = []
    check_images(
        [FedAvg(), FedCE(), FedLWR(similarity="cosine")], counted({"elm": 1, "oak": 1}, asked)
    )
    assert not asked


def test_more_sites_than_a_method_can_take_are_refused() -> None:
    train, many = train_config(PROSTATE, {}), [f"site {number}" for number in range(11)]
    with pytest.raises(ConfigError, match="FedCI can take at most 10 sites in a round, found 11"):
        check_strategies([FedAvg(), FedCI()], many, train)
    with pytest.raises(ConfigError, match="CGSV-contribution_index can take at most 10"):
        check_strategies([CGSV(reward="contribution_index")], many, train)
    check_strategies([FedCI(), CGSV()], many, train, per_round=10)
    check_strategies([FedGA(), CGSV()], many, train)


def test_a_model_that_a_method_cannot_train_is_refused_before_another_is_trained(
    sites: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = ModelSpec(("w",), buffers=("mean",), layers={**SPEC.layers, "mean": "fc"})
    monkeypatch.setattr(
        federate, "initial_model", lambda *_: ({"w": vector(START), "mean": vector([0.0])}, spec)
    )
    with pytest.raises(ConfigError, match="FedCE .*use buffers 'aggregation' or 'local'"):
        run(sites, tmp_path / "run", [FedAvg(), FedCE()], buffers="samples")
    assert not (tmp_path / "run").exists()


def test_the_runs_of_a_comparison_share_their_guards(sites: Path, tmp_path: Path) -> None:
    folder = tmp_path / "compared"
    run(sites, folder, [FedAvg(), Standalone()], guards=["NonFinite"])
    for name in ("FedAvg", "Standalone"):
        assert read_ledger(folder / name / "ledger.jsonl")[0]["guards"] == ["NonFinite"]
    config = json.loads((folder / "config.json").read_text())
    assert config["federation"]["guards"] == [{"_target_": "monai_fairfl.guards.NonFinite"}]

    for others in (None, [], [TooLong()]):
        with pytest.raises(
            FederationError, match=r"begun with guards = \['NonFinite'\], now it is"
        ):
            run(sites, folder, [FedAvg(), CGSV()], guards=others, resume=True)
    run(sites, folder, [FedAvg(), CGSV()], guards=[NonFinite()], resume=True)
    assert read_ledger(folder / "CGSV" / "ledger.jsonl")[0]["guards"] == ["NonFinite"]


def test_a_run_without_named_guards_has_the_default_ones(sites: Path, tmp_path: Path) -> None:
    run(sites, tmp_path / "run", [FedAvg()])
    opening = read_ledger(tmp_path / "run" / "ledger.jsonl")[0]
    assert opening["guards"] == [type(guard).__name__ for guard in DEFAULT]
    assert "guards" not in json.loads((tmp_path / "run" / "config.json").read_text())["federation"]
