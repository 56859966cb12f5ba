# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The only module that touches private attributes of ignite's and MONAI's engines.

Ignite lets a caller add a handler and remove one that the caller has. It lets nobody list the
handlers of an engine, switch some off for a while, put one in front of the others, or discard a run
that was interrupted. MONAI lets nobody read an engine's postprocessing. A federated client needs
all of that. Each function here says which private attribute it uses, and why.
"""

from __future__ import annotations

import inspect
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import chain
from typing import Any

from ignite.engine import Engine
from ignite.metrics import Metric

from monai_fairfl.errors import TransportAborted

Handler = Callable[..., Any]

# MONAI registers closures when it builds an engine, and keeps no reference to them. Only their
# qualified names tell what they are.
MONAI_OUTPUT_STEPS = ("Workflow._register_decollate", "Workflow._register_postprocessing")


def handlers_of(engine: Engine) -> list[Handler]:
    """All handlers of ``engine``; one that acts at several events comes several times.

    Reads ``Engine._event_handlers``: ignite only answers whether it has a given handler.

    >>> from ignite.engine import Events
    >>> engine = Engine(lambda engine, batch: None)
    >>> begin = lambda: None
    >>> _ = engine.add_event_handler(Events.STARTED, begin)
    >>> handlers_of(engine) == [begin]
    True
    """
    return [entry[0] for entry in chain.from_iterable(engine._event_handlers.values())]


def handler_owner(handler: Handler) -> Any:
    """The object whose method ``handler`` is; a handler that is no method is its own owner.

    Looks through ``functools.wraps``, with which ignite wraps the handlers of filtered events such
    as ``Events.EPOCH_COMPLETED(every=2)``.

    >>> handler_owner([1, 2].append)
    [1, 2]
    """
    if hasattr(handler, "__self__"):
        return handler.__self__
    wrapped = getattr(handler, "__wrapped__", handler)
    return getattr(wrapped, "__self__", wrapped)


def is_monai_output_step(handler: Handler) -> bool:
    """Whether ``handler`` is the step with which MONAI decollates or postprocesses the output."""
    return getattr(handler, "__qualname__", "").startswith(MONAI_OUTPUT_STEPS)


def is_monai_best_metric(handler: Handler) -> bool:
    """Whether ``handler`` is the step with which MONAI remembers the best value of the metric."""
    return getattr(handler, "__qualname__", "").startswith("Workflow._register_metrics")


def metric_named(engine: Engine, name: str | None) -> Metric | None:
    """The metric that was attached to ``engine`` under ``name``; ``None`` where there is none.

    Reads ``Engine._event_handlers``: ignite hands the name to the metric's ``completed`` as its
    last argument, and stores it nowhere else.

    >>> from ignite.metrics import Accuracy
    >>> engine, accuracy = Engine(lambda engine, batch: None), Accuracy()
    >>> accuracy.attach(engine, "accuracy")
    >>> metric_named(engine, "accuracy") is accuracy
    True
    """
    for handler, arguments, _ in chain.from_iterable(engine._event_handlers.values()):
        owner = handler_owner(handler)
        if isinstance(owner, Metric) and arguments and arguments[-1] == name:
            return owner
    return None


def postprocessing_of(engine: Engine) -> Any:
    """The transform that ``engine`` applies to its output; ``None`` where it has none.

    Reads ``posttrans`` in the closure that MONAI's ``Workflow._register_postprocessing`` registers
    as a handler: the engine stores the transform nowhere else.
    """
    for handler in handlers_of(engine):
        if is_monai_output_step(handler):
            variables = inspect.getclosurevars(handler).nonlocals
            if "posttrans" in variables:
                return variables["posttrans"]
    return None


def remove_handlers(engine: Engine, unwanted: Callable[[Handler], bool]) -> None:
    """Remove the handlers that are ``unwanted``, for good.

    Replaces ``Engine._event_handlers``: ``Engine.remove_event_handler`` needs the very handler that
    was registered and its event, and ignite lists neither.
    """
    engine._event_handlers = _selected(engine, lambda handler: not unwanted(handler))


@contextmanager
def only_handlers(engine: Engine, wanted: Callable[[Handler], bool]) -> Iterator[None]:
    """Inside, ``engine`` has only the handlers that are ``wanted``.

    Replaces ``Engine._event_handlers`` for that time: ignite cannot switch a handler off, and one
    that is removed and added again comes last.
    """
    all_handlers = engine._event_handlers
    engine._event_handlers = _selected(engine, wanted)
    try:
        yield
    finally:
        engine._event_handlers = all_handlers


def put_last_handler_first(engine: Engine, event: Any) -> None:
    """Let the handler that was added last for ``event`` act before all others.

    Reorders the list in ``Engine._event_handlers``: ignite's handlers have no priorities and act in
    the order in which they were added.
    """
    entries = engine._event_handlers[event]
    entries.insert(0, entries.pop())


def forget_unfinished_run(engine: Engine) -> bool:
    """Let the next run of ``engine`` be a whole one; returns whether a run was unfinished.

    Empties ``Engine._internal_run_generator``. After an interruption ignite would go on with the
    steps that are left of that run; after an exception it would do nothing at all. It has no public
    way to discard a run.
    """
    is_unfinished = engine._internal_run_generator is not None
    engine._internal_run_generator = None
    return is_unfinished


def require_whole_run(engine: Engine) -> None:
    """Refuse a run of ``engine`` that ``abort`` interrupted: it covers only some of the cases.

    Raises:
        TransportAborted: when the run was interrupted; the next run is a whole one.
    """
    if forget_unfinished_run(engine):
        raise TransportAborted("aborted: nothing of this round is stored; start the run again")


def _selected(engine: Engine, wanted: Callable[[Handler], bool]) -> dict[Any, list[Any]]:
    """The entries of ``Engine._event_handlers`` whose handler is ``wanted``.

    An event without handlers is left out: while ``EXCEPTION_RAISED`` is a key, ignite takes
    exceptions for handled.
    """
    selected: dict[Any, list[Any]] = defaultdict(list)
    for event, entries in engine._event_handlers.items():
        for entry in entries:
            if wanted(entry[0]):
                selected[event].append(entry)
    return selected
