# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""A site's answer to one message of Flower."""

from __future__ import annotations

from collections.abc import Callable

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from monai_fairfl.errors import in_words
from monai_fairfl.messages import Reply
from monai_fairfl.transports.engines.site import Site
from monai_fairfl.transports.flower.wire import plain_content, reply_content, request_of

SiteOf = Callable[[Context], Site]
"""Returns the site that a node is."""


def answer(message: Message, context: Context, site_of: SiteOf) -> Message:
    """Return the answer to a request; whatever goes wrong is reported in it."""
    return Message(reply_content(_reply(message, context, site_of)), reply_to=message)


def say_name(message: Message, context: Context, site_of: SiteOf) -> Message:
    """Return the answer to the question who this site is."""
    return Message(plain_content({"site": site_of(context).name}), reply_to=message)


def client_app(site_of: SiteOf) -> ClientApp:
    """Return an app that answers as the site that ``site_of`` returns."""
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        return answer(message, context, site_of)

    @app.evaluate()
    def measure(message: Message, context: Context) -> Message:
        return answer(message, context, site_of)

    @app.query()
    def name(message: Message, context: Context) -> Message:
        return say_name(message, context, site_of)

    return app


def _reply(message: Message, context: Context, site_of: SiteOf) -> Reply:
    try:
        site = site_of(context)
    except Exception as error:
        return Reply("", None, 0, error=in_words(error))
    try:
        request, rounds = request_of(message.content, site.name)
    except Exception as error:
        return site.cannot_read(error)
    return site.answer(request, rounds)
