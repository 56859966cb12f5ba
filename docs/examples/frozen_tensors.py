# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""FrozenTensors: a guard of one's own, in one file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from monai_fairfl.guards import Guard, Verdict
from monai_fairfl.replies import Replies


class FrozenTensors(Guard):
    """Quarantines a client that changed a tensor which nobody may change.

    Args:
        names: of buffers or frozen parameters.

    >>> FrozenTensors(["encoder.weight"]).names
    ['encoder.weight']
    """

    def __init__(self, names: Sequence[str]):
        self.names = list(names)

    def check(self, replies: Replies) -> Mapping[int, Verdict]:
        verdicts = {}
        for reply in replies:
            sent = replies.start(reply)
            for name in self.names:
                returned = (reply.buffers or {}).get(name)
                if returned is None or torch.equal(returned, sent[name]):
                    continue
                entries = int((returned != sent[name]).sum())
                reason = f"it changed {entries} entries of {name!r}, which is frozen"
                verdicts[reply.id] = Verdict("quarantine", reason, {"changed": float(entries)})
        return verdicts
