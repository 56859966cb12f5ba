# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""What a run logs of its progress."""

from __future__ import annotations

import logging

import pytest

from monai_fairfl.server.progress import Progress
from monai_fairfl.strategies.base import RoundResult


def test_a_slow_first_round_does_not_count_in_the_time_left(
    caplog: pytest.LogCaptureFixture,
) -> None:
    progress = Progress(rounds=10, done=0, title="FedAvg")
    with caplog.at_level(logging.INFO, "monai_fairfl"), progress:
        for number, seconds in enumerate((60.0, 10.0, 10.0)):
            progress.round_done(number, seconds, {}, RoundResult({}, {}, {}))
    assert "FedAvg round 3/10, 10.0 s, 0:01:10 left" in caplog.text
