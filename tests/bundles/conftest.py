# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""What tests of several bundles share."""

from __future__ import annotations

import pytest
import torch
from helpers.shipped_bundles import BUNDLES, Bundle


def _short_name(bundle: Bundle) -> str:
    return bundle.name.partition("_")[0]


@pytest.fixture(scope="module", params=BUNDLES, ids=_short_name)
def bundle(request: pytest.FixtureRequest) -> Bundle:
    """Each of the shipped bundles."""
    torch.set_num_threads(1)
    shipped: Bundle = request.param
    return shipped
