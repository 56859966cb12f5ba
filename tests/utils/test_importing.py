# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Dotted paths: what they name, and which error says why they name nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from monai_fairfl.bundle.preflight import check_targets
from monai_fairfl.errors import ConfigError
from monai_fairfl.strategies import FedAvg, FedCE
from monai_fairfl.strategies.resolver import find
from monai_fairfl.utils.importing import load_by_path


@pytest.fixture
def own_modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder on PYTHONPATH with modules of a user; the working directory is another one."""
    files = {
        "own_methods.py": "from monai_fairfl.strategies import FedAvg\n"
        "class Fairer(FedAvg):\n    pass\n",
        "own_package/__init__.py": "",
        "own_package/inner.py": "class Outer:\n    class Inner:\n        pass\n",
        "own_misspelt.py": "def broken(:\n",
        "own_dependent.py": "import a_package_that_is_not_there\n",
        "own_script.py": "import sys\nsys.exit('usage: ...')\n",
    }
    for name, text in files.items():
        (tmp_path / "modules" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "modules" / name).write_text(text)
    monkeypatch.syspath_prepend(tmp_path / "modules")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "modules"))
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path


def test_a_path_names_what_is_in_a_module_or_in_a_class_of_it(own_modules: Path) -> None:
    assert issubclass(load_by_path("own_methods.Fairer", "strategy"), FedAvg)
    assert load_by_path("own_package.inner.Outer.Inner", "part").__qualname__ == "Outer.Inner"


@pytest.mark.parametrize(
    ("path", "says"),
    [
        (
            "own_metods.Fairer",
            "no module 'own_metods'; did you mean 'own_methods'.*"
            "own_metods.py on PYTHONPATH.*modules",
        ),
        ("nosuch.Thing", "there is no module 'nosuch'; put the folder that holds nosuch.py on"),
        ("own_methods.Fair", "own_methods has no 'Fair'; did you mean 'Fairer'"),
        ("own_package.iner.Outer", "own_package has no 'iner'; did you mean 'inner'"),
        ("own_misspelt.Fairer", "its module own_misspelt fails: SyntaxError"),
        ("own_dependent.Fairer", "its module own_dependent fails: .*a_package_that_is_not_there"),
        ("own_script.Fairer", "its module own_script fails: SystemExit: usage"),
        ("own_methods", "is no dotted path: write MODULE.NAME"),
        ("own_methods..Fairer", "is no dotted path"),
        (3, "strategy 3 is no dotted path"),
    ],
)
def test_a_path_that_names_nothing_is_answered_with_the_reason(
    own_modules: Path, path: object, says: str
) -> None:
    with pytest.raises(ConfigError, match=f"(?s)strategy {path!r}.*{says}|{says}"):
        load_by_path(path, "strategy")


def test_a_module_in_the_working_directory_is_no_mystery(own_modules: Path) -> None:
    (own_modules / "here" / "own_local.py").touch()
    with pytest.raises(
        ConfigError, match="own_local lies in this folder.*write PYTHONPATH=. before the command"
    ):
        load_by_path("own_local.Fairer", "strategy")


@pytest.mark.parametrize(
    ("path", "says"),
    [
        (
            "json.dumps",
            "'json.dumps' is no class that inherits from monai_fairfl.strategies.Strategy",
        ),
        ("own_package.inner.Outer", "is no class that inherits"),
        ("monai_fairfl.strategies.Strategy", "its class does not define round"),
    ],
)
def test_what_is_no_strategy_is_refused(own_modules: Path, path: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        find(path)


@pytest.mark.parametrize("target", ["FedCE", "monai_fairfl.FedCE", "monai_fairfl.strategy.FedCE"])
def test_a_shipped_strategy_under_another_path_is_answered_with_the_right_one(target: str) -> None:
    with pytest.raises(ConfigError, match="did you mean 'monai_fairfl.strategies.FedCE'"):
        check_targets({"_target_": target})
    check_targets({"_target_": "monai_fairfl.strategies.FedCE"})
    assert find("monai_fairfl.strategies.FedCE") is FedCE
