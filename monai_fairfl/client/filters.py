# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Applies a site's own filters around its client to copies, and checks what they return.

A filter is a ``monai.fl.utils.filters.Filter``, or any function
``(ExchangeObject, extra) -> ExchangeObject``. A pre-filter sees weights as they came in, and may
decode or rename them. A post-weight filter sees what is about to leave, and may add noise to it.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from monai.fl.utils.constants import WeightType
from monai.fl.utils.exchange_object import ExchangeObject

from monai_fairfl.errors import ConfigError
from monai_fairfl.messages import Weights

Extra = dict[str, Any]
"""An engine's additional information, which each filter is given."""

Filters = Iterable[Callable[[ExchangeObject, Extra], ExchangeObject]] | None
"""A site's filters of one kind; ``None`` where it has none."""


def applied(
    filters: Filters, data: ExchangeObject, extra: Extra, client: str | None
) -> ExchangeObject:
    """``data`` after all ``filters``, in their order.

    Args:
        filters: of the site.
        data: given to the first filter.
        extra: of the engine.
        client: its name, for errors.

    Raises:
        ConfigError: when a filter does not return an ``ExchangeObject``.

    >>> applied([lambda data, extra: None], ExchangeObject(), {}, "alder")
    Traceback (most recent call last):
    ...
    monai_fairfl.errors.ConfigError: client 'alder': the filter '<lambda>' returned NoneType: ...
    """
    for site_filter in filters or ():
        data = site_filter(data, extra)
        if not isinstance(data, ExchangeObject):
            raise ConfigError(
                f"client {client!r}: the filter {_name(site_filter)!r} returned "
                f"{type(data).__name__}: end it with 'return data'"
            )
    return data


def received_weights(
    data: ExchangeObject, filters: Filters, extra: Extra, client: str | None
) -> dict[str, Any]:
    """The weights of ``data`` after the site's pre-filters, which cannot change the sender's own.

    Args:
        data: as the engine handed it over.
        filters: the site's pre-filters.
        extra: of the engine.
        client: its name, for errors.

    Raises:
        ValueError: when ``data`` is no ``ExchangeObject``, or holds no weights after the filters.
    """
    if not isinstance(data, ExchangeObject):
        raise ValueError(f"client {client!r}: {type(data).__name__} is no ExchangeObject")
    weights = applied(filters, copy.deepcopy(data), extra, client).weights
    if not isinstance(weights, Mapping):
        raise ValueError(f"client {client!r}: received {type(weights).__name__} and no weights")
    return dict(weights)


def applied_to_update(update: Weights, filters: Filters, client: str | None) -> Weights:
    """``update`` after the site's post-weight filters, with the same tensor names and shapes.

    Args:
        update: differences of the parameters that were sent.
        filters: the site's post-weight filters.
        client: its name, for errors.

    Raises:
        ConfigError: naming the filter after which a tensor is missing, new, of another shape, or
            no tensor. A training whose update is lost must not go unnoticed.

    >>> halve = lambda data, extra: ExchangeObject({"w": data.weights["w"].numpy() / 2})
    >>> applied_to_update({"w": torch.ones(2)}, [halve], "alder")
    {'w': tensor([0.5000, 0.5000])}
    """
    data: Any = ExchangeObject(dict(update), weight_type=WeightType.WEIGHT_DIFF, statistics={})
    expected = _shapes(update)
    for site_filter in filters or ():
        data = applied([site_filter], data, {}, client)
        found = _shapes(data.weights or {})
        changed = [name for name in {**expected, **found} if expected.get(name) != found.get(name)]
        if changed:
            name = changed[0]
            raise ConfigError(
                f"client {client!r}: the post-weight filter {_name(site_filter)!r} made "
                f"{found.get(name)} of the tensor {name!r}, which was {expected.get(name)}: return "
                "every tensor under its name and in its shape"
            )
    return {name: torch.as_tensor(change) for name, change in data.weights.items()}


def _shapes(weights: Mapping[str, Any]) -> dict[str, Any]:
    """Name -> shape of a tensor or array, or the class of anything else."""
    return {name: getattr(value, "shape", type(value)) for name, value in weights.items()}


def _name(site_filter: Any) -> str:
    """A function's own name, or the name of an object's class."""
    return getattr(site_filter, "__name__", type(site_filter).__name__)
