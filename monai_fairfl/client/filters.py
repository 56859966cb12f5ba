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

import numpy as np
import torch
from monai.fl.utils.constants import WeightType
from monai.fl.utils.exchange_object import ExchangeObject

from monai_fairfl.errors import ConfigError
from monai_fairfl.messages import Weights

NUMERIC = "biuf"
"""NumPy's kinds of numbers: booleans, signed and unsigned integers, floats."""

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
    incoming = copy.copy(data)
    incoming.weights = own_tensors(data.weights)
    weights = applied(filters, incoming, extra, client).weights
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
    for site_filter in filters or ():
        data = applied([site_filter], data, {}, client)
        data.weights = own_tensors(data.weights)
        found = data.weights if isinstance(data.weights, Mapping) else {}
        for name in sorted({*update, *found}, key=str):
            shapes: list[Any] = []
            for sent in (update.get(name), found.get(name)):
                if isinstance(sent, torch.Tensor):
                    shapes.append(tuple(sent.shape))
                else:
                    shapes.append(type(sent).__name__)
            if shapes[0] != shapes[1]:
                raise ConfigError(
                    f"client {client!r}: the post-weight filter {_name(site_filter)!r} made "
                    f"{shapes[1]} of the tensor {name!r}, which was {shapes[0]}: return every "
                    "tensor under its name and in its shape"
                )
    return dict(data.weights)


def own_tensors(weights: Any) -> Any:
    """``weights`` with tensors of their own memory; NumPy's arrays and numbers become tensors.

    All else, such as bytes of an encoding or a checkpoint's nested state, stays as it is. So does
    ``None``.

    >>> own_tensors({"w": np.zeros(2, dtype=np.float32), "key": b"secret"})
    {'w': tensor([0., 0.]), 'key': b'secret'}
    """
    if not isinstance(weights, Mapping):
        return weights
    copies: dict[str, Any] = {}
    for name, value in weights.items():
        if isinstance(value, torch.Tensor):
            value = value.detach().clone()
        elif isinstance(value, (np.ndarray, np.generic)) and value.dtype.kind in NUMERIC:
            value = torch.tensor(value)
        copies[name] = value
    return copies


def _name(site_filter: Any) -> str:
    """A function's own name, or the name of an object's class."""
    return getattr(site_filter, "__name__", type(site_filter).__name__)
