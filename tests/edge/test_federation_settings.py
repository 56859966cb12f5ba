# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Settings, strategies and names that no run can begin with are refused by name and value."""

from __future__ import annotations

import math
from dataclasses import FrozenInstanceError
from pathlib import Path
from typing import Any

import pytest
from helpers.driving import LeastSquares
from helpers.least_squares_federation import clients, federation, nobody, watching

from monai_fairfl import InProcess, Request, Train, compose
from monai_fairfl.errors import ConfigError
from monai_fairfl.server import RunSettings
from monai_fairfl.strategies import FedAvg, FedCE, FedCI


@pytest.mark.parametrize(
    ("name", "value", "word"),
    [
        ("rounds", 0, "0"),
        ("rounds", "two", "'two'"),
        ("buffers", "mean", "'mean'"),
        ("threads", 0, "0"),
        ("min_clients", True, "True"),
        ("min_clients", 0, "0"),
        ("clients_per_round", 0, "2"),
        ("clients_per_round", 1, "2"),
        ("clients_per_round", 2.5, "2.5"),
        ("retries", -1, "-1"),
        ("keep", 1, "2"),
        # MONAI reads --local_norm false as a text, and any text would switch it on.
        ("local_norm", "false", "'false'"),
        ("record_updates", "false", "'false'"),
        ("score_global", "false", "'false'"),
        ("unasked", 1, "1"),
        ("seed", "3", "'3'"),
        ("seed", 2**63, "9223372036854775808"),
        ("seed", -(2**63), "-9223372036854775808"),
        ("timeout", 0, "0"),
        ("timeout", math.inf, "inf"),
        ("timeout", "60", "'60'"),
        ("adapt_epochs", -1, "-1"),
        ("adapt_rate", "1e-3", "'1e-3'"),
        ("adapt_rate", 1.5, "1.5"),
        ("adapt_fuse", True, "adapt_epochs"),
        ("evaluate", "global_score", "'global_score'"),
        ("final", None, "None"),
        ("final", [1], r"\[1\]"),
        ("groups", ["A"], "mapping"),
        ("groups", {"small": "AB"}, "'AB'"),
        ("samples", 3, "3"),
        ("samples", {"A": 0}, "0"),
        ("samples", {"A": True}, "True"),
        ("samples", {"A": 1_000_001}, "1000001"),
        ("most_samples", 0, "0"),
        ("ranges", {"score": [1, 0]}, "'score'"),
        ("ranges", {"score": 1}, "'score'"),
        ("ranges", {"score": [0, math.inf]}, "'score'"),
        ("min_client", 3, "min_clients"),
    ],
)
def test_a_bad_setting_is_refused_by_name_and_value(
    tmp_path: Path, name: str, value: Any, word: str
) -> None:
    with pytest.raises(ConfigError, match=rf"\b{name}\b.*{word}"):
        federation(tmp_path, **{name: value})


@pytest.mark.parametrize(
    "settings",
    [
        {"rounds": 1, "min_clients": 1, "clients_per_round": 1, "retries": 0, "keep": 2},
        {"seed": 2**63 - 1, "threads": 1, "timeout": 1e-3, "samples": {"A": 1_000_000}},
        {"adapt_epochs": 1, "adapt_fuse": True, "adapt_rate": 1e-9, "most_samples": 1},
        {"clients_per_round": 2, "ranges": {"score": [0, 1e-9]}},
    ],
)
def test_the_ends_of_the_ranges_are_taken(settings: dict[str, Any], tmp_path: Path) -> None:
    made = federation(tmp_path, FedAvg(), **settings)
    for name, value in settings.items():
        assert getattr(made.settings, name) == value


def test_settings_are_plain_values_that_do_not_change() -> None:
    settings = RunSettings(2, groups={"first": ("A",)}, evaluate=["global_score"])
    assert settings.groups == {"first": ["A"]} and settings.evaluate == ("global_score",)
    assert RunSettings(**settings.keywords()) == settings
    with pytest.raises(FrozenInstanceError):
        settings.seed = 1  # type: ignore[misc]
    assert set(settings.compared()) < set(settings.opening())


def test_something_else_than_a_strategy_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="str"):
        federation(tmp_path, "FedAvg")  # type: ignore[arg-type]


def test_a_declared_name_that_is_no_client_is_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    federation(tmp_path, FedAvg(), samples={"b": 80}, rounds=1).run()
    assert [message for message in caplog.messages if "samples" in message and " b" in message]


def test_a_method_that_compares_clients_draws_more_than_one_for_a_round(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"clients_per_round": 1, "min_clients": 1}
    with pytest.raises(ConfigError, match="FedCE.*2.*clients_per_round.*1"):
        federation(tmp_path, FedCE(), nobody(), **settings).run()
    assert not (tmp_path / "run" / "ledger.jsonl").exists()
    assert federation(tmp_path, FedAvg(), **settings).run().finished


@pytest.mark.parametrize(("count", "refused"), [(10, False), (11, True)])
def test_a_method_that_scores_every_coalition_takes_ten_clients(
    count: int, refused: bool, tmp_path: Path
) -> None:
    makers = {f"C{number}": lambda: LeastSquares([0.0, 1.0]) for number in range(count)}
    run = federation(tmp_path, FedCI(), InProcess(makers), rounds=1, final=())
    if refused:
        with pytest.raises(ConfigError, match="FedCI.*10.*11"):
            run.run()
        assert not (tmp_path / "run" / "ledger.jsonl").exists()
    else:
        run.stop()
        assert run.run().rounds == []


class Pulled(FedAvg):
    """FedAvg whose own requests choose FedProx."""

    def round(self, clients: Any) -> Any:
        local = yield [Train(client, self.weights, (), {"prox_mu": 0.2}) for client in clients]
        equal = {client: 1 / len(clients) for client in clients}
        return self.finish(local, equal, equal)


def test_a_training_that_the_strategy_would_overrule_is_refused_before_anybody_trains(
    tmp_path: Path,
) -> None:
    composed = compose(Pulled(), training={"prox_mu": 0.1})
    with pytest.raises(ConfigError, match="prox_mu.*0.1.*0.2"):
        federation(tmp_path, composed, transport=nobody()).run()
    seen: list[Request] = []
    same = compose(Pulled(), training={"prox_mu": 0.2, "local_epochs": 2})
    federation(tmp_path / "same", same, transport=watching(seen.append)).run()
    assert seen[0].context == {"prox_mu": 0.2, "local_epochs": 2}


# --- names

HOSTILE = {
    "a path upwards": "../../x",
    "a folder": "a/b",
    "an absolute path": "/etc/passwd",
    "a path of Windows": "..\\x",
    "NUL": "elm\0",
    "a line break": "elm\noak",
    "65 letters": "z" * 65,
    "ten thousand characters": "x" * 10_000,
    "Cyrillic letters that look Latin": "\u0435lm",
    "a hidden file": ".elm",
    "an option": "-rf",
    "text from right to left": "elm\u202emle",
    "markup": "<script>alert(1)</script>",
    "nothing": "",
    "the global model's": "global",
    "the best model's": "best",
    # What Windows does not keep:
    "a dot at the end": "HK.",
    "a space at the end": "HK ",
    "a device": "con",
    "a device with an ending": "Aux.2",
    "a port": "LPT1",
    "a device and a space": "nul .nii",
}


@pytest.mark.parametrize("name", HOSTILE.values(), ids=HOSTILE)
def test_a_clients_name_that_is_no_plain_one_is_refused_and_nothing_is_written_outside(
    name: str, tmp_path: Path
) -> None:
    two = {client: lambda: LeastSquares([0.0, 1.0]) for client in ("A", name)}
    with pytest.raises(ConfigError, match="cannot be") as error:
        federation(tmp_path / "here", FedAvg(), InProcess(two)).run()
    assert len(str(error.value)) < 500
    written = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert all(path.is_relative_to(tmp_path / "here") for path in written)
    assert not (tmp_path / "here" / "run" / "ledger.jsonl").exists()


def test_honest_names_are_taken(tmp_path: Path) -> None:
    names = ("RUNMC-3T", "site 4", "St.Mary_2", "Conway", "COM", "com10", "icon", "z" * 64)
    makers = {client: lambda: LeastSquares([0.0, 1.0]) for client in names}
    run = federation(tmp_path, FedAvg(), InProcess(makers), rounds=1).run()
    assert set(run.rounds[0]["aggregation"]) == set(names)


@pytest.mark.parametrize("name", ["lr=0.01", ".hidden", "x" * 129, "-x"])
def test_a_folder_whose_name_cannot_be_the_runs_is_refused_at_once(
    tmp_path: Path, name: str
) -> None:
    with pytest.raises(ConfigError, match="run_dir"):
        federation(tmp_path, FedAvg(), name=name)


@pytest.mark.parametrize(
    "name", ["fundus_disc_cup_segmentation-ShapFed-personalised-2", "y" * 128, "only-Site 4"]
)
def test_a_long_name_of_a_run_is_as_good_as_a_short_one(tmp_path: Path, name: str) -> None:
    made = federation(tmp_path, FedAvg(), InProcess(clients()), name=name, rounds=1)
    assert made.run().finished
