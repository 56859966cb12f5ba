# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The initial model of a job that trains the user's own network."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pydoc import locate
from typing import Any

from torch import nn

from monai_fairfl.errors import ConfigError
from monai_fairfl.messages import ModelSpec, Weights, read_spec
from monai_fairfl.utils.saved_files import read_state_dict


def initial_of(
    model: nn.Module | Mapping[str, Any] | None,
    names: Sequence[str] | None = None,
    file: str | None = None,
) -> tuple[Weights, ModelSpec]:
    """Return the values to begin with, and what each tensor is.

    Args:
        model: an instance, whose values are taken as they are, or
            ``{"class_path": ..., "args": {...}}``, which is built here, under the caller's seed.
        names: of the parameters; all other tensors are buffers. ``None``: those that require a
            gradient.
        file: a ``state_dict`` whose values replace the built ones, bare or under the key ``model``
            as NVFlare writes.

    Raises:
        ConfigError: when the model cannot be built, lacks a name, or the file does not fit.

    >>> batch_norm = {"class_path": "torch.nn.BatchNorm1d", "args": {"num_features": 2}}
    >>> weights, spec = initial_of(batch_norm, ["weight"])
    >>> spec.parameters, spec.buffers
    (('weight',), ('bias', 'num_batches_tracked', 'running_mean', 'running_var'))
    """
    network = model if isinstance(model, nn.Module) else _build(model)
    if file is not None:
        try:
            network.load_state_dict(read_state_dict(file))
        except (ConfigError, RuntimeError) as error:
            raise ConfigError(
                f"initial_ckpt {file} cannot be used: {error}. It is read where the recipe is "
                "made, not at the server"
            ) from error
    spec = _with_parameters(read_spec(network), names)
    return spec.tensors_of(network), spec


def _build(model: Mapping[str, Any] | None) -> nn.Module:
    """Build a network from its class path and arguments."""
    path = None
    if isinstance(model, Mapping):
        path = model.get("class_path") or model.get("path")
    if model is None or not path:
        raise ConfigError(
            'model must be an nn.Module or {"class_path": "module.Class", "args": {...}}, got '
            f"{model!r}"
        )
    kind = locate(str(path))
    if kind is None:
        raise ConfigError(
            f"model class {path!r} cannot be imported here: put the folder of its module on "
            "PYTHONPATH"
        )
    network = kind(**(model.get("args") or {}))  # type: ignore[operator]
    if not isinstance(network, nn.Module):
        raise ConfigError(
            f"model class {path!r} makes a {type(network).__name__}, not an nn.Module"
        )
    return network


def _with_parameters(spec: ModelSpec, names: Sequence[str] | None) -> ModelSpec:
    """Return ``spec`` with ``names`` as its parameters; ``None``: with its own."""
    known = {*spec.parameters, *spec.buffers}
    if names is None:
        chosen = set(spec.parameters)
    else:
        chosen = {spec.aliases.get(name, name) for name in names}
    unknown = sorted(chosen - known)
    if unknown or not chosen:
        raise ConfigError(
            f"trainable_param_names {unknown[:3]} must be tensors of the model, such as "
            f"{sorted(known)[:3]}"
        )
    if names is None:
        return spec
    return replace(spec, parameters=tuple(sorted(chosen)), buffers=tuple(sorted(known - chosen)))
