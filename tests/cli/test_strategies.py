# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""``monai-fairfl strategies``: the list of the shipped strategies, and one strategy in full."""

from __future__ import annotations

import inspect
import json
import re
from pathlib import Path
from typing import Any

import pytest
from helpers.command_line import run_json
from monai.bundle import ConfigParser

from monai_fairfl.cli import main
from monai_fairfl.strategies import FedISM, Strategy
from monai_fairfl.strategies.resolver import shipped

SHIPPED = shipped()
WITH_VARIANTS = {
    name: kind for name, kind in SHIPPED.items() if "variant" in inspect.signature(kind).parameters
}


@pytest.fixture(autouse=True)
def _columns(monkeypatch: pytest.MonkeyPatch) -> None:
    """The width of the terminal."""
    monkeypatch.setenv("COLUMNS", "100")


def listed(capsys: pytest.CaptureFixture[str], *names: str) -> dict[str, Any]:
    """Entries of the list by name: of all shipped strategies, or of the named ones."""
    entries: dict[str, Any] = run_json(capsys, "strategies", *names)["strategies"]
    return entries


@pytest.mark.parametrize("name", sorted(SHIPPED))
def test_every_strategy_states_what_it_costs_and_appears_in_the_list(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    entry = listed(capsys)[name]
    for key in ("paper", "client_does", "client_sends", "trusts", "cost", "phases", "min_clients"):
        hint = f"give the class {name} a {key!r}, as monai_fairfl/strategies/fedce.py does"
        assert entry[key], hint
    hint = f"begin the docstring of {name} with one sentence, which ends with a period"
    assert entry["summary"].endswith("."), hint

    assert main(["strategies"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 100
    assert [line for line in lines if line.split()[:1] == [name]]


def test_methods_with_several_readings_have_variants() -> None:
    assert {"AFL", "CFFL", "CGSV", "FedCE", "FedISM", "FedLWR", "ShapFed"} <= set(WITH_VARIANTS)


@pytest.mark.parametrize("kind", WITH_VARIANTS.values(), ids=WITH_VARIANTS)
def test_a_strategy_with_variants_has_the_letter_of_its_paper_and_refuses_an_unknown_one(
    kind: type[Strategy],
) -> None:
    paper = kind(variant="paper")  # type: ignore[call-arg]
    assert paper.variant == "paper"  # type: ignore[attr-defined]

    allowed = rf"{kind.__name__}: variant must be one of .*'paper'.*, got 'papr'"
    with pytest.raises(ValueError, match=allowed) as refused:
        kind(variant="papr")  # type: ignore[call-arg]
    choices = str(refused.value).partition("must be one of")[2].partition(", got")[0]
    quotes_of_two_choices = 4
    hint = f"{kind.__name__}: a variant with one value is no argument"
    assert choices.count("'") >= quotes_of_two_choices, hint


def test_the_list_shows_what_the_sites_must_measure(capsys: pytest.CaptureFixture[str]) -> None:
    found = listed(capsys)
    assert found["FedCE"]["requires"] == ["leave_one_out_error"]
    assert found["FedCE"]["min_clients"] == 2
    # Only an instance of Fed-LWR has these.
    assert found["FedLWR"]["requires"] == ["cka"]
    assert found["FedLWR"]["phases"] == 2
    assert found["Ditto"]["personal"]
    assert not found["FedAvg"]["personal"]

    main(["strategies"])
    shown = capsys.readouterr().out
    # Nothing is cut off.
    assert "leave_one_out_error" in shown
    assert "2 phases: training" in shown


def test_one_strategy_is_shown_with_arguments_and_the_config_that_makes_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["strategies", "FedISM"]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("FedISM(q=2.0, beta=0.5,")
    assert "q: power" in shown
    assert ":math:" not in shown
    assert ">>>" not in shown
    assert "estimates nobody's contribution" in shown

    (text,) = re.findall(r'"strategy": (\{.*\})', shown)
    config = json.loads(text)
    made = ConfigParser({"strategy": config}).get_parsed_content("strategy")
    assert isinstance(made, FedISM)

    entry = listed(capsys, "FedISM")["FedISM"]
    assert entry["config"] == config
    assert entry["arguments"]["rho"] == 0.05


def test_an_unknown_strategy_is_answered_with_the_known_ones(
    capsys: pytest.CaptureFixture[str],
) -> None:
    error = run_json(capsys, "strategies", "FedX", code=2)["error"]
    assert "known are AFL, CFFL" in error
    error = run_json(capsys, "strategies", "fedce", code=2)["error"]
    assert error.startswith("unknown strategy 'fedce': did you mean 'FedCE'?")


def test_a_users_own_strategy_is_shown_by_its_dotted_path(
    capsys: pytest.CaptureFixture[str],
) -> None:
    name = "inverse_loss.InverseLoss"
    entry = listed(capsys, name)[name]
    assert entry["config"] == {"_target_": name}
    assert entry["arguments"]["epsilon"] == 0.001
    assert entry["requires"] == ["train_loss"]

    assert main(["strategies", name]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("InverseLoss(epsilon=0.001")
    assert f"--strategy {name}" in shown


def test_a_users_own_strategy_is_shown_whatever_its_arguments_are(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "shown_methods.py").write_text(
        "from inverse_loss import InverseLoss\n"
        "class Needy(InverseLoss):\n"
        "    def __init__(self, share, kind=dict, **more):\n"
        "        pass\n"
        "class Broken(InverseLoss):\n"
        "    def __init__(self):\n"
        "        raise KeyError('no table')\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    entry = listed(capsys, "shown_methods.Needy")["shown_methods.Needy"]
    assert entry["needed_arguments"] == ["share"]
    assert entry["arguments"] == {"kind": "<class 'dict'>"}
    # The description is not that of the class that it inherits from.
    assert entry["description"] == ""
    assert main(["strategies", "shown_methods.Needy"]) == 0
    assert capsys.readouterr().out.startswith("Needy(share, kind=")

    error = run_json(capsys, "strategies", "shown_methods.Broken", code=2)["error"]
    assert "cannot be made with its defaults: KeyError: 'no table'" in error
