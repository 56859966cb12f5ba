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
from monai_fairfl.transports.flower.wire import read_request, reply_content


def client_app(site_of: Callable[[Message, Context], Site]) -> ClientApp:
    """Return an app that answers as the site that a node is, or plays for a message.

    Args:
        site_of: returns that site; what it raises is reported in the reply.
    """
    app = ClientApp()

    def answer(message: Message, context: Context) -> Message:
        try:
            site = site_of(message, context)
            reply = site.answer(lambda: read_request(message.content))
        except Exception as error:
            reply = Reply("", None, 0, error=in_words(error))
        return Message(reply_content(reply), reply_to=message)

    app.train()(answer)
    app.evaluate()(answer)
    return app


def site_of_node(message: Message, context: Context) -> Site:
    """Return the site that a SuperNode is, by the hospital's own ``--node-config``.

    Raises:
        ConfigError: when it does not say which site it is, or where its folder is.
    """
    logging.basicConfig(level=logging.WARNING)
    logging.getLogger("monai_fairfl").setLevel(logging.INFO)
    name, folder = context.node_config.get("name"), context.node_config.get("folder")
    if not (isinstance(name, str) and isinstance(folder, str) and Path(folder).is_absolute()):
        raise ConfigError(
            f"this SuperNode's node-config has name {name!r} and folder {folder!r}: start "
            'flower-supernode with --node-config \'name="SITE" folder="/an/absolute/path"\''
        )
    return Site(name, folder, site_settings(context.run_config))


app = client_app(site_of_node)
