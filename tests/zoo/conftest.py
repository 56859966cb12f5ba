# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""What tests for the model zoo share: the bundles, and one generated site of each."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers.made_once import MadeOnce
from helpers.shipped_bundles import BUNDLES, Bundle

# They are written for the zoo's own runner; test_unit_tests.py runs them as it does.
collect_ignore_glob = ["unit_tests/*"]


@pytest.fixture(scope="module", params=BUNDLES, ids=lambda bundle: bundle.name.partition("_")[0])
def bundle(request: pytest.FixtureRequest) -> Bundle:
    """Each of the shipped bundles."""
    shipped: Bundle = request.param
    return shipped


@pytest.fixture(scope="module")
def site(bundle: Bundle, made_once: MadeOnce) -> Path:
    """The folder of a site whose four cases carry all labels; read only."""
    sites = made_once(f"sites_of_{bundle.name}", bundle.write)
    return sites / bundle.whole_sites(sites)[0]
