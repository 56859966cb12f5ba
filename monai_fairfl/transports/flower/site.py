# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The ``ClientApp`` of a simulation, and that which an app's ``pyproject.toml`` names.

SuperNodes start a process for each message. So the site reads its files each time, and its state
lies on its disk.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from monai_fairfl.errors import ConfigError, in_words
from monai_fairfl.messages import Reply
from monai_fairfl.transports.engines.site import Site
from monai_fairfl.transports.flower.job import site_settings
from monai_fairfl.transports.flower.wire import reply_content, request_of

SiteOf = Callable[[Message, Context], Site]
"""Returns the site that a node is, or plays for a message."""


def client_app(site_of: SiteOf) -> ClientApp:
    """Return an app that answers as the site that ``site_of`` returns."""
    app = ClientApp()

    def answer(message: Message, context: Context) -> Message:
        return Message(reply_content(reply_to(message, context, site_of)), reply_to=message)

    app.train()(answer)
    app.evaluate()(answer)
    return app


def reply_to(message: Message, context: Context, site_of: SiteOf) -> Reply:
    """Return the reply to a request; whatever goes wrong is reported in it."""
    try:
        site = site_of(message, context)
    except Exception as error:
        return Reply("", None, 0, error=in_words(error))
    return site.answer(lambda name: request_of(message.content, name))


def site_of_node(message: Message, context: Context) -> Site:
    """Return the site that a SuperNode is, by the hospital's own ``--node-config``.

    Raises:
        ConfigError: when it does not say which site it is, or where its folder is.
    """
    logging.basicConfig(level=logging.WARNING)
    logging.getLogger("monai_fairfl").setLevel(logging.INFO)
    own = context.node_config
    for key in ("name", "folder"):
        if not isinstance(own.get(key), str):
            raise ConfigError(
                f"this SuperNode's node-config has no {key}: start flower-supernode with "
                f'--node-config \'name="SITE" folder="/the/site/s/own/folder"\''
            )
    folder = Path(str(own["folder"]))
    if not folder.is_absolute():
        raise ConfigError(f"folder of the node-config is {folder}: give an absolute path")
    return Site(str(own["name"]), folder, site_settings(context.run_config))


app = client_app(site_of_node)
