# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Tells whether a part of a site's data list is empty: nothing is measured on it then."""

from __future__ import annotations

import logging
from weakref import WeakSet

from monai.engines import SupervisedEvaluator

from monai_fairfl.measurements.forward import has_no_batch
from monai_fairfl.measurements.probe import Probe

logger = logging.getLogger(__name__)

_named_in_log: WeakSet[SupervisedEvaluator] = WeakSet()
"""Evaluators without cases that the log has named. One line for each is enough."""


def has_no_case(probe: Probe, part: str) -> bool:
    """Whether the probe's evaluator has no case. One line of the log then says so, and the fix.

    Args:
        probe: on a part of the site's data list.
        part: of the data list, ``"validation"`` or ``"testing"``.

    >>> import torch
    >>> evaluator = SupervisedEvaluator("cpu", [], torch.nn.Identity())
    >>> has_no_case(Probe(evaluator), "testing")
    True
    """
    if not has_no_batch(probe.engine):
        return False
    if probe.engine not in _named_in_log:
        _named_in_log.add(probe.engine)
        logger.warning(
            "this site's data list has no case under %r, so nothing is measured on that part: add "
            "cases to %r in the file of its data list (datalist_file), if its score is to count",
            part,
            part,
        )
    return True
