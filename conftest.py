# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""What tests and examples of docstrings share: one torch thread, tiny synthetic hospitals, real
images where somebody provides them; and what is left out where an optional engine is not installed.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import pytest
from helpers import warm_python
from helpers.checkout import CHECKOUT
from helpers.made_once import MadeOnce
from hypothesis import HealthCheck, settings

pytest_plugins = ["helpers.made_once"]

# Files of a job, which import each other and start it.
collect_ignore = ["docs/examples/flare/own_script"]
collect_ignore_glob: list[str] = []
if find_spec("flwr") is None:
    collect_ignore_glob += ["monai_fairfl/transports/flower/*", "tests/helpers/flower_*"]

settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")  # a busy machine is no failure


@pytest.fixture(autouse=True)
def _no_handler_of_an_engine_stays() -> Iterator[None]:
    """The logs that an engine's code opens in a test would write into the next test's output."""
    root = logging.getLogger()
    before = set(root.handlers)
    yield
    for handler in set(root.handlers) - before:
        if type(handler) is logging.StreamHandler:
            root.removeHandler(handler)


@pytest.fixture(scope="session", autouse=True)
def _one_search_for_names() -> None:
    """Where a test of this run may read a configuration: see ``helpers/one_search.py``."""
    if "monai.bundle" in sys.modules:
        import helpers.one_search  # noqa: F401


@pytest.fixture(scope="session", autouse=True)
def _no_wait_for_the_disk() -> Iterator[None]:
    """A file is not forced onto the disk: that guards against a machine without power, and costs a
    fifth of the tests' time. What a process wrote before it is killed is there all the same.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: None)
        yield


@pytest.fixture(scope="session", autouse=True)
def _one_thread_and_no_seeds_for_absent_devices() -> Iterator[None]:
    """More threads change bits, and are slower on a small machine. PyTorch stores each seed, with
    the stack of its call, for devices that may yet be found.
    """
    # Imported here, since the process that only deals out the tests reads this file, too.
    import torch

    torch.set_num_threads(1)
    with pytest.MonkeyPatch.context() as patch:
        for devices in (torch.cuda, torch.xpu, torch.mtia):
            if not devices.is_available():
                patch.setattr(devices, "manual_seed_all", lambda seed: None, raising=False)
        yield


@pytest.fixture(scope="session", autouse=True)
def _warm_commands_first() -> None:
    """A process has one fork server: one that worker processes begin knows less than commands
    need."""
    if "PYTEST_XDIST_WORKER" in os.environ:
        warm_python.fork_server()


@pytest.fixture(scope="session")
def hospitals(made_once: MadeOnce) -> Path:
    """Six synthetic hospitals of four small cases, ``SITE/CaseNN.nii.gz``; read only."""
    from monai_fairfl.data import write_sites

    return made_once("hospitals", partial(write_sites, seed=0, size=(48, 48, 8), cases=4))


@pytest.fixture(scope="session")
def realdata() -> Path:
    """The folder ``realdata``: named by MONAI_FAIRFL_REALDATA, else beside the checkout or in a
    folder beside it.
    """
    named = os.environ.get("MONAI_FAIRFL_REALDATA")
    found = (
        [Path(named)]
        if named
        else [*CHECKOUT.parent.glob("realdata"), *sorted(CHECKOUT.parent.glob("*/realdata"))]
    )
    for folder in found:
        if any(folder.glob("prostate/*/*.nii*")):
            return folder
    pytest.skip(
        "no real images: set MONAI_FAIRFL_REALDATA to a folder with prostate/SITE/CaseNN.nii.gz "
        "and CaseNN_segmentation.nii.gz, or put it beside the checkout under the name realdata"
    )
