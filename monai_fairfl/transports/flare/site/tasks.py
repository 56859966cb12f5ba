# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""A site's answer to one NVFlare task."""

from __future__ import annotations

from nvflare.app_common.abstract.fl_model import FLModel

from monai_fairfl.transports.engines.site import Site
from monai_fairfl.transports.flare.wire import reply_model, request_of


def answer_task(site: Site, model: FLModel) -> FLModel:
    """Return the answer of ``site`` to a task; whatever goes wrong is reported in it."""
    try:
        request = request_of(model, site.name)
    except Exception as error:
        return reply_model(site.cannot_read(error))
    return reply_model(site.answer(request, rounds=model.total_rounds or 1))
