# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The ``ClientApp`` of a deployment: what an app's ``pyproject.toml`` names.

SuperNodes start a process for each message. So the site reads its files each time, and its state
lies on its disk.
"""

from __future__ import annotations

import logging
from pathlib import Path

from flwr.app import Context

from monai_fairfl.errors import ConfigError
from monai_fairfl.transports.engines.site import Site
from monai_fairfl.transports.flower.job.flower_job import site_settings
from monai_fairfl.transports.flower.site.answering import client_app

NAME = "name"
FOLDER = "folder"
"""Keys of a SuperNode's ``--node-config``."""


def site_of(context: Context) -> Site:
    """Return the site that a SuperNode is, by the hospital's own ``--node-config``.

    Raises:
        ConfigError: when it does not say which site it is, or where its folder is.
    """
    logging.basicConfig(level=logging.WARNING)
    logging.getLogger("monai_fairfl").setLevel(logging.INFO)
    own = context.node_config
    for key in (NAME, FOLDER):
        if not isinstance(own.get(key), str):
            raise ConfigError(
                f"this SuperNode's node-config has no {key}: start flower-supernode with "
                f'--node-config \'name="SITE" folder="/the/site/s/own/folder"\''
            )
    folder = Path(str(own[FOLDER]))
    if not folder.is_absolute():
        raise ConfigError(f"folder of the node-config is {folder}: give an absolute path")
    return Site(str(own[NAME]), folder, site_settings(context.run_config))


app = client_app(site_of)
