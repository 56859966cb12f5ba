# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""A site by NVFlare's Client API: what the script of a job runs.

The script runs in NVFlare's process or in one of its own.
"""

from __future__ import annotations

import json
import logging
from pathlib import Path

import nvflare.client as flare

from monai_fairfl.transports.engines.site import Site
from monai_fairfl.transports.flare.site.tasks import answer_task
from monai_fairfl.transports.flare.wire import register_tensors

SCRIPT_NAME = "fairfl_client.py"
SCRIPT = """# A site of an NVFlare job. All sites run the code of the installed package.
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
    # It counts in a process of its own; in NVFlare's, logs go where NVFlare's go.
    logging.basicConfig(level=logging.WARNING)
    logging.getLogger("monai_fairfl").setLevel(logging.INFO)

    app = Path(script).absolute().parents[1]
    workspace = app.parents[1]
    settings = json.loads((app / "config" / SETTINGS).read_text())
    register_tensors()
    flare.init()
    site = Site(flare.get_site_name(), workspace, settings)
    try:
        while flare.is_running():
            model = flare.receive()
            if model is None:
                break
            flare.send(answer_task(site, model))
    finally:
        site.close()
