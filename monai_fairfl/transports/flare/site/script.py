# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""A site by NVFlare's Client API: what the job's script runs, in NVFlare's process or in one of its
own.
"""

from __future__ import annotations

import json
import logging
from pathlib import Path

import nvflare.client as flare

from monai_fairfl.transports.flare.site.answering import Site
from monai_fairfl.transports.flare.wire import register_tensors

SCRIPT_NAME = "fairfl_client.py"
SCRIPT = """# A site of an NVFlare job: everything is in the package, so that all sites run the same code.
from monai_fairfl.transports.flare.site.script import main

main(__file__)
"""
"""What a job with custom code brings to its sites."""

SETTINGS = "fairfl_site.json"
"""The job's settings for its sites, in the ``config`` folder of the client's app."""


def main(script: str) -> None:
    """Answer tasks until the job ends.

    Args:
        script: the path of the running script, ``WORKSPACE/JOB/APP/custom/NAME.py``.
    """
    logging.basicConfig(
        level=logging.WARNING
    )  # in a process of its own; in NVFlare's, logs go where NVFlare's go
    logging.getLogger("monai_fairfl").setLevel(logging.INFO)
    app = Path(script).absolute().parents[1]
    register_tensors()
    flare.init()
    site = Site(
        flare.get_site_name(), app.parents[1], json.loads((app / "config" / SETTINGS).read_text())
    )
    try:
        while flare.is_running():
            model = flare.receive()
            if model is None:
                break
            flare.send(site.answer(model))
    finally:
        site.close()
