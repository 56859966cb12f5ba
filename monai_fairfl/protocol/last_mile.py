# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""What server, sites and report agree on about the last mile, a training at each site at the end.

See :mod:`monai_fairfl.client.adapting`.
"""

from __future__ import annotations

from monai_fairfl.protocol.values import Estimate

ADAPTED = {"score": "adapted_score", "test_score": "adapted_test_score"}
"""The same measurement of the model after the last mile, whether or not the site takes it."""

GAIN = "adapted_gain"
"""Mean over a site's validation cases of the score after the last mile less that before."""

ADAPTED_EPOCHS = "adapted_epochs"
"""Epochs of the last mile until its best one; 0: none was better."""


def is_taken(gain: Estimate) -> bool:
    """Whether a site uses the model after the last mile: it gains more than its standard error.

    One validation case has no standard error, and no gain is taken by it.

    Args:
        gain: :data:`GAIN`, with its standard error.

    >>> is_taken(Estimate(0.03, 0.01, 5)), is_taken(Estimate(0.03, 0.04, 5))
    (True, False)
    >>> is_taken(Estimate(0.03, None, 1))
    False
    """
    return gain.stderr is not None and gain.value > gain.stderr
