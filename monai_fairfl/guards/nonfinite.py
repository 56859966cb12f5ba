# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Updates that hold NaN or infinity never reach a strategy."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch

from monai_fairfl.guards.base import Guard, Verdict
from monai_fairfl.protocol.replies import Replies


class NonFinite(Guard):
    """Quarantines an update or buffer that is not finite, and names its first bad tensor.

    Values of a buffer that the client was sent count as good, as the -inf of an attention mask.

    Costs nothing for the updates: an update is finite exactly if its squared norm, on the Gram
    matrix's diagonal and summed in float64, is. One such update averaged in would turn every
    hospital's model into NaN.
    """

    def check(self, replies: Replies) -> Mapping[int, Verdict]:
        squared_norms = np.diag(replies.geometry.gram)
        verdicts = {}
        for row, reply in enumerate(replies):
            sent, buffers = replies.start(reply), reply.buffers or {}
            bad = [name for name, buffer in buffers.items() if not _is_good(buffer, sent.get(name))]
            if not np.isfinite(squared_norms[row]):
                bad += [
                    name
                    for name, change in (reply.update or {}).items()
                    if not torch.isfinite(change).all()
                ]
            bad.sort()
            if bad:
                verdicts[reply.id] = Verdict(
                    "quarantine", f"{bad[0]!r} is not finite ({len(bad)} tensors)"
                )
        return verdicts


def _is_good(buffer: torch.Tensor, sent: torch.Tensor | None) -> bool:
    good = torch.isfinite(buffer)
    if sent is not None and not good.all():
        good |= (buffer == sent) | (torch.isnan(buffer) & torch.isnan(sent))
    return bool(good.all())
