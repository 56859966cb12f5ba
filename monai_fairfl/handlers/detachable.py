# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Lets every handler of this package be detached, which MONAI's handlers cannot be."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

from ignite.engine import RemovableEventHandle

Callbacks = dict[Any, Callable[..., None]]
"""Event of an engine -> what a handler does then."""


class Detachable(ABC):
    """An ignite handler: a subclass says in :meth:`callbacks` when it does what.

    >>> from ignite.engine import Engine, Events
    >>> class Hello(Detachable):
    ...     def callbacks(self):
    ...         return {Events.STARTED: lambda engine: print("hello")}
    >>> engine, hello = Engine(lambda engine, batch: None), Hello()
    >>> hello.attach(engine)
    >>> _ = engine.run([0])
    hello
    >>> hello.detach()
    >>> _ = engine.run([0])
    """

    _handles: list[RemovableEventHandle]

    @abstractmethod
    def callbacks(self) -> Callbacks:
        """What the handler does when."""

    def attach(self, engine: Any) -> None:
        """Act in every run of ``engine``."""
        callbacks = self.callbacks().items()
        self._handles = [engine.add_event_handler(event, act) for event, act in callbacks]

    def detach(self) -> None:
        """Act no longer; nothing happens before ``attach``."""
        for handle in getattr(self, "_handles", []):
            handle.remove()


def loss_scale_of(engine: Any) -> float:
    """The factor of mixed precision by which the gradients of ``engine`` are too large."""
    has_scale = engine.amp and engine.scaler is not None
    return float(engine.scaler.get_scale()) if has_scale else 1.0
