# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""``federate.json`` of both bundles and ``docs/keys.md`` are what the table of settings makes."""

from __future__ import annotations

import keys_page

AGAIN = "make settings writes it anew"


def test_the_files_of_the_bundles_and_the_page_are_those_of_the_table() -> None:
    for file in keys_page.FILES:
        assert file.read_text() == keys_page.federate_text(file), AGAIN
    assert keys_page.PAGE.read_text() == keys_page.page(), AGAIN


def test_every_key_is_on_the_page_with_a_meaning() -> None:
    page = keys_page.PAGE.read_text()
    for name in keys_page.rows_of("lead"):
        [row] = [line for line in page.splitlines() if line.startswith(f"| `{name}` |")]
        assert len(row.split(" | ")[2]) > 10, row
