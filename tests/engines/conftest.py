# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""What the tests of engines compare with."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from helpers.federations import in_process
from helpers.made_once import MadeOnce


@pytest.fixture(scope="session")
def one_process(hospitals: Path, made_once: MadeOnce) -> Callable[..., Path]:
    """Maker of the same federation's run in one process, read only: ``one_process("FedCE")``.

    It takes the arguments of :func:`helpers.federations.in_process`; each run is made once.
    """

    def made(method: str, **settings: Any) -> Path:
        words = [f"{key}={value}" for key, value in sorted(settings.items())]
        name = "-".join(["in-one-process", method, *words])
        folder = made_once(name, lambda folder: in_process(method, hospitals, folder, **settings))
        (run,) = folder.iterdir()
        return run

    return made
