# Copyright (c) MONAI FairFL contributors
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#     http://www.apache.org/licenses/LICENSE-2.0
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS,
# WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
# See the License for the specific language governing permissions and
# limitations under the License.
"""Updates that hold NaN or infinity never reach a strategy."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch

from monai_fairfl.aggregation import Replies
from monai_fairfl.guards.base import Guard, Verdict

__all__ = ["NonFinite"]


class NonFinite(Guard):
    """Quarantines an update or buffer that is not finite, and names its first bad tensor.

    Costs nothing for the updates: an update is finite exactly if its squared norm, on the Gram matrix's diagonal
    and summed in float64, is. One such update averaged in would turn every hospital's model into NaN.
    """

    def check(self, replies: Replies) -> Mapping[int, Verdict]:
        squared_norms = np.diag(replies.geometry.gram)
        verdicts = {}
        for row, reply in enumerate(replies):
            tensors = dict(reply.buffers or {})
            if not np.isfinite(squared_norms[row]):
                tensors |= reply.update or {}
            bad = [name for name in sorted(tensors) if not torch.isfinite(tensors[name]).all()]
            if bad:
                verdicts[reply.id] = Verdict("quarantine", f"{bad[0]!r} is not finite ({len(bad)} tensors)")
        return verdicts
