# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The unit tests that go to the model zoo with a bundle pass in a folder laid out as the zoo's."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest
from helpers import warm_python
from helpers.checkout import CHECKOUT
from helpers.shipped_bundles import Bundle

UNIT_TESTS = CHECKOUT / "tests" / "zoo" / "unit_tests"


def run_as_in_the_zoo(bundle: Bundle, ending: str, zoo: Path) -> str:
    """Run the unit test of a bundle where the zoo would, and return its last lines."""
    name = f"test_{bundle.name}{ending}.py"
    ignored = shutil.ignore_patterns("*.pt", "datalist.json", "eval", "__pycache__")
    shutil.copytree(bundle.root, zoo / "models" / bundle.name, ignore=ignored)
    (zoo / "ci" / "unit_tests").mkdir(parents=True)
    shutil.copy(UNIT_TESTS / name, zoo / "ci" / "unit_tests")

    # torchrun lies beside this Python.
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    words = ["-W", "ignore", "-m", "unittest", f"ci/unit_tests/{name}"]
    done = warm_python.run(words, zoo, timeout=600, PATH=path)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-3000:]
    return done.stderr[-200:]


@pytest.mark.slow
@pytest.mark.long
def test_the_unit_test_of_a_bundle_passes(bundle: Bundle, tmp_path: Path) -> None:
    assert "Ran 1 test" in run_as_in_the_zoo(bundle, "", tmp_path)


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.extended
def test_its_unit_test_of_several_processes_passes(bundle: Bundle, tmp_path: Path) -> None:
    assert "Ran 1 test" in run_as_in_the_zoo(bundle, "_dist", tmp_path)
