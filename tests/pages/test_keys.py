# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""``federate.json`` of both bundles and ``docs/keys.md`` are what the table of settings makes."""

from __future__ import annotations

import sys

from helpers.checkout import CHECKOUT

from monai_fairfl.bundle.settings import GROUPS, Settings, rows_of
from monai_fairfl.utils.settings import meanings

sys.path.insert(0, str(CHECKOUT / "docs" / "site"))
import keys_page  # noqa: E402

AGAIN = "make settings writes it anew"


def test_the_files_of_the_bundles_and_the_page_are_those_of_the_table() -> None:
    for file in keys_page.FILES:
        assert file.read_text() == keys_page.federate_text(file), AGAIN
    assert keys_page.PAGE.read_text() == keys_page.page(), AGAIN


def test_every_key_has_a_group_and_a_meaning() -> None:
    texts = meanings(Settings)
    for name, row in rows_of("lead").items():
        assert row.metadata["group"] in GROUPS and texts[name], name
