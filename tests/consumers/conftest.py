# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""MONAI Label and MONAI Deploy, each in an environment of its own."""

from __future__ import annotations

import pytest
from helpers.consumer_environments import DEPLOY, LABEL, Environment, require
from helpers.made_once import MadeOnce

# They run in those environments.
collect_ignore_glob = ["programs/*"]


@pytest.fixture(scope="session")
def monai_label(made_once: MadeOnce) -> Environment:
    return require("MONAI_Label", LABEL, made_once)


@pytest.fixture(scope="session")
def monai_deploy(made_once: MadeOnce) -> Environment:
    return require("MONAI_Deploy", DEPLOY, made_once)
