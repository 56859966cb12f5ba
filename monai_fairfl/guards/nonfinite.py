# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Updates that hold NaN or infinity never reach a strategy."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from monai_fairfl.guards.base import Guard, Verdict
from monai_fairfl.messages import is_finite_or_unchanged
from monai_fairfl.replies import Replies


class NonFinite(Guard):
    """Quarantines an update or buffer that is not finite, and names its first bad tensor.

    One such update in the average would turn every hospital's model into NaN. Values of a buffer
    that the client was sent count as good, such as the -inf of an attention mask.

    The check of the updates costs nothing: an update is finite exactly if its squared norm is,
    which was summed in float64 and stands on the Gram matrix's diagonal.

    >>> import torch
    >>> from monai_fairfl import ModelSpec, Replies, Reply, Request
    >>> start, updates = {"w": torch.ones(2)}, torch.tensor([[1.0, 0], [0, 1.0], [0, torch.nan]])
    >>> asked = [Request(site, "train", start, id=number) for number, site in enumerate("ABC")]
    >>> sent = [Reply(to.client, {"w": updates[to.id]}, 10, id=to.id) for to in asked]
    >>> verdicts = NonFinite().check(Replies(sent, asked, ModelSpec(("w",))))
    >>> list(verdicts), verdicts[2].reason
    ([2], "'w' is not finite")
    """

    def check(self, replies: Replies) -> Mapping[int, Verdict]:
        squared_norms = np.diag(replies.geometry.gram)
        verdicts = {}
        for row, reply in enumerate(replies):
            sent = replies.start(reply)
            buffers = reply.buffers or {}
            bad = [n for n in buffers if not is_finite_or_unchanged(buffers[n], sent.get(n))]
            if reply.update and not np.isfinite(squared_norms[row]):
                bad += [name for name, one in reply.update.items() if not one.isfinite().all()]
            if bad:
                reason = f"{min(bad)!r} is not finite"
                verdicts[reply.id] = Verdict("quarantine", reason, {"tensors": len(bad)})
        return verdicts
