# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""What a request's context may hold: one list, with the meaning of each key."""

from __future__ import annotations

import pytest

from monai_fairfl.protocol.messages import CONTEXT_KEYS, Train


def test_every_context_key_has_its_meaning_in_a_sentence() -> None:
    for key, meaning in CONTEXT_KEYS.items():
        assert key.isidentifier() and meaning.endswith(".") and len(meaning.split()) > 4


def test_an_unknown_context_key_is_an_error_that_names_those_there_are() -> None:
    with pytest.raises(ValueError, match="request to 'A': unknown context key 'radius'.*'sam_rho'"):
        Train("A", {}, context={"radius": 0.1})
