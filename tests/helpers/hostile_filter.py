# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""How a hospital attacks with what is its own: a filter on everything that leaves its client.

NVIDIA FLARE lets every site filter what it sends, by a class that the site's own
``local/privacy.json`` names. The site's administrator installs it; no job mentions it, and no job
can prevent it. So neither the package nor the job is changed. The same filter acts on the replies
of a client in one process, see :class:`Filtered`.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Mapping
from pathlib import Path

import torch
from nvflare.apis.dxo import from_shareable
from nvflare.apis.filter import Filter
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable
from nvflare.app_common.utils.fl_model_utils import FLModelUtils
from safetensors.torch import load_file, save_file

from monai_fairfl.client.algo import FairMonaiAlgo
from monai_fairfl.protocol.messages import Reply, Request
from monai_fairfl.transports.flare.wire import META, Arriving, reply_model, reply_of

FALSE_REPORT = 1e9
SECONDS_TO_WAIT = 120.0


class Hostile(Filter):
    """Changes what a site sends.

    Args:
        attack: ``"report"``: every measurement is 1e9; ``"nan"``: one value of the update is NaN;
            ``"share"``: nothing is changed, and the update is left in ``folder`` for an accomplice;
            ``"copy"``: the update is the one that the accomplice left.
        folder: of two identities of one hospital. A site does not see another's update. Whoever
            wants to count twice registers twice, and one of its two clients sends on what the
            other one trained.
    """

    def __init__(self, attack: str, folder: str = ""):
        super().__init__()
        self.attack = attack
        self.folder = folder

    def process(self, shareable: Shareable, fl_ctx: FLContext) -> Shareable:
        """Change one reply."""
        sent = from_shareable(shareable)
        plain = sent.meta[META]
        if self.attack == "report":
            plain["measurements"] = dict.fromkeys(plain["measurements"], FALSE_REPORT)
        if sent.data:
            sent.data = self._changed(dict(Arriving(sent.data)), plain["round"])
        return sent.update_shareable(shareable)

    def _changed(self, update: Mapping[str, torch.Tensor], number: int) -> dict[str, torch.Tensor]:
        """The update that leaves in round ``number``."""
        changed = dict(update)
        left = Path(self.folder) / f"round-{number}.safetensors"
        if self.attack == "nan":
            name = min(changed)
            changed[name] = changed[name].clone()
            changed[name].view(-1)[0] = math.nan
        if self.attack == "share":
            unfinished = left.with_suffix(".unfinished")
            save_file(changed, unfinished)
            os.replace(unfinished, left)
        if self.attack == "copy":
            changed = load_file(_awaited(left))
        return changed


def _awaited(file: Path) -> Path:
    """The file, once the accomplice has left it."""
    end = time.monotonic() + SECONDS_TO_WAIT
    while not file.exists():
        assert time.monotonic() < end, f"no {file.name} after {SECONDS_TO_WAIT:g} s"
        time.sleep(0.1)
    return file


class Filtered:
    """A client of this process whose replies pass a filter, as NVFlare's clients' replies do."""

    def __init__(self, client: FairMonaiAlgo, own: Filter):
        self.client = client
        self.own = own

    def answer(self, request: Request) -> Reply:
        """Answer, and let the filter change the answer."""
        model = reply_model(self.client.answer(request))
        sent = self.own.process(FLModelUtils.to_shareable(model), FLContext())
        return reply_of(FLModelUtils.from_shareable(sent), request)

    def finalize(self) -> None:
        """Release the client."""
        self.client.finalize()
