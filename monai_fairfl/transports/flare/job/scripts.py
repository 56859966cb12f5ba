# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""A job of the user's own model and training script, as NVFlare's FedCE and FedAvg recipes take
them.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pydoc import locate
from typing import Any, ClassVar

from nvflare.apis.analytix import ANALYTIC_EVENT_TYPE
from nvflare.app_common.utils.math_utils import parse_compare_criteria
from nvflare.app_common.widgets.convert_to_fed_event import ConvertToFedEvent
from nvflare.client.config import TransferType
from nvflare.job_config.api import FedJob
from nvflare.job_config.script_runner import ScriptRunner
from torch import nn

from monai_fairfl.errors import ConfigError
from monai_fairfl.protocol.model_spec import ModelSpec, read_spec
from monai_fairfl.protocol.values import Weights
from monai_fairfl.strategies import FedCE, Strategy
from monai_fairfl.transports.flare.server.one_exchange import PACKAGE, check_strategy
from monai_fairfl.utils.files import read_state_dict

PER_SITE = (
    *(
        "train_script",
        "train_args",
        "launch_external_process",
        "command",
        "framework",
        "server_expected_format",
    ),
    *("params_transfer_type", "launch_once", "launch_timeout", "shutdown_timeout"),
)


class ScriptSites:
    """The sites of a job run ``train_script``; what NVFlare's recipes say of them.

    Args:
        train_script: path of the script.
        train_args: its arguments.
        options: of NVFlare's ``ScriptRunner``, for every site.
        model: see :func:`initial_of`.
        trainable_param_names: likewise.
        strategy: of the federation.
        min_clients: of the federation.

    Raises:
        ConfigError: when the strategy cannot work with scripts.
    """

    federation: ClassVar[Mapping[str, Any]] = {"final": [], "evaluate": []}
    asked: ClassVar[Mapping[str, Any] | None] = None

    def __init__(
        self,
        train_script: str,
        train_args: str,
        options: Mapping[str, Any],
        model: nn.Module | Mapping[str, Any] | None,
        trainable_param_names: Sequence[str] | None,
        strategy: Strategy,
        min_clients: int,
    ):
        check_strategy(strategy, min_clients)
        self.train_script, self.train_args, self.options = train_script, train_args, options
        self.model, self.trainable_param_names, self.name = (
            model,
            trainable_param_names,
            strategy.name,
        )

    def initial(self, file: str | None) -> tuple[Weights, ModelSpec]:
        """The user's model, or the values of ``file``."""
        return initial_of(self.model, self.trainable_param_names, file)

    def recipe(self, per_site: Mapping[str, Mapping[str, Any]]) -> None:
        """Nothing is known of how a script prepares images: its models carry no recipe."""

    def check(self, config: Mapping[str, Mapping[str, Any]]) -> None:
        """Refuse settings of single sites that no script runner knows.

        Raises:
            ConfigError: naming the key and those there are.
        """
        for site, own in config.items():
            unknown = sorted(set(own) - set(PER_SITE))
            if unknown:
                raise ConfigError(
                    f"per_site_config of {site} sets {unknown[0]!r}, which no script's site knows; known are "
                    f"{', '.join(PER_SITE)}"
                )
            self._runner(own)

    def add(self, job: FedJob, per_site: Mapping[str, Mapping[str, Any]]) -> None:
        """Give every site its script, and let the curves that it draws reach the server."""
        curves = ConvertToFedEvent(events_to_convert=[ANALYTIC_EVENT_TYPE])
        if not per_site:
            job.to_clients(self._runner({}))
            job.to_clients(curves, id="event_to_fed")
        for site, own in per_site.items():
            job.to(self._runner(own), site)
            job.to(curves, site, id="event_to_fed")

    def _runner(self, own: Mapping[str, Any]) -> ScriptRunner:
        given = {"script": self.train_script, "script_args": self.train_args, **self.options}
        names = {"train_script": "script", "train_args": "script_args"}
        return ScriptRunner(
            **{
                "params_transfer_type": TransferType.DIFF,
                **given,
                **{names.get(key, key): value for key, value in own.items() if value is not None},
            }
        )


def fedce_of(mode: str) -> Strategy:
    """The strategy that weighs as NVFlare's FedCE does.

    >>> fedce_of("plus").name
    'FedCE-sum-revised'
    """
    modes = {"plus": "sum", "times": "multi"}
    if mode not in modes:
        raise ConfigError(f"fedce_mode must be 'plus' or 'times', got {mode!r}")
    return FedCE(modes[mode], variant="revised")


def check_federation(arguments: Mapping[str, Any]) -> None:
    """Refuse what scripts cannot do for a :class:`~monai_fairfl.server.federation.Federation`.

    Raises:
        ConfigError: naming the argument.

    >>> check_federation({"local_norm": True})
    Traceback (most recent call last):
    ...
    monai_fairfl.errors.ConfigError: federation sets 'local_norm', ...
    """
    for name in ("final", "evaluate", "local_norm"):
        if arguments.get(name):
            raise ConfigError(
                f"federation sets {name!r}, which scripts of NVFlare's Client API cannot do: {PACKAGE}"
            )
    if arguments.get("buffers") == "local":
        raise ConfigError(
            f"buffers 'local' keeps tensors at the sites, and a script waits for all of them: {PACKAGE}"
        )


def key_mode(key_metric: str, mode: str | None, stop_cond: str | None) -> str:
    """Whether a high or a low key metric is good: as said, else as ``stop_cond`` says of the same
    metric, else high.

    Raises:
        ConfigError: when the two contradict each other, or the mode is unknown.

    >>> key_mode("val_loss", None, "val_loss <= 0.1"), key_mode("dice", None, None)
    ('min', 'max')
    """
    if mode not in (None, "min", "max"):
        raise ConfigError(f"key_metric_mode must be 'min' or 'max', got {mode!r}")
    implied = None
    if stop_cond:
        try:
            name, _, compare = parse_compare_criteria(stop_cond)
        except ValueError as error:
            raise ConfigError(
                f"stop_cond {stop_cond!r} must be such as '{key_metric} >= 0.8': {error}"
            ) from error
        low, high = (operator.lt, operator.le), (operator.gt, operator.ge)
        implied = "min" if compare in low else "max" if compare in high else None
        implied = implied if name == key_metric else None
    if mode and implied and mode != implied:
        raise ConfigError(
            f"key_metric_mode {mode!r} contradicts stop_cond {stop_cond!r}: leave one of them out"
        )
    return mode or implied or "max"


def initial_of(
    model: nn.Module | Mapping[str, Any] | None,
    names: Sequence[str] | None = None,
    file: str | None = None,
) -> tuple[Weights, ModelSpec]:
    """The values to begin from and what each tensor is.

    Args:
        model: an instance, whose values are taken as they are, or
            ``{"class_path": ..., "args": {...}}``, which is built here, under the caller's seed.
        names: of the parameters; all other tensors are buffers. ``None``: those that require a
            gradient.
        file: a ``state_dict`` whose values replace the built ones, bare or under the key ``model``
            as NVFlare writes.

    Raises:
        ConfigError: when the model cannot be built, lacks a name, or the file does not fit.

    >>> weights, spec = initial_of({"class_path": "torch.nn.BatchNorm1d", "args": {"num_features": 2}}, ["weight"])
    >>> spec.parameters, spec.buffers
    (('weight',), ('bias', 'num_batches_tracked', 'running_mean', 'running_var'))
    """
    network = model if isinstance(model, nn.Module) else _built(model)
    if file is not None:
        try:
            network.load_state_dict(read_state_dict(file))
        except (ConfigError, RuntimeError) as error:
            raise ConfigError(
                f"initial_ckpt {file} cannot be used: {error}. It is read where the recipe is made, not at the server"
            ) from error
    spec = _with_parameters(read_spec(network), names)
    state = {name: tensor.detach().cpu().clone() for name, tensor in network.state_dict().items()}
    parameters, buffers = spec.split(state)
    return {**parameters, **buffers}, spec


def _built(model: Mapping[str, Any] | None) -> nn.Module:
    if not isinstance(model, Mapping) or not (path := model.get("class_path") or model.get("path")):
        raise ConfigError(
            'model must be an nn.Module or {"class_path": "module.Class", "args": {...}}, got '
            f"{model!r}"
        )
    kind = locate(str(path))
    if kind is None:
        raise ConfigError(
            f"model class {path!r} cannot be imported here: put the folder of its module on PYTHONPATH"
        )
    network = kind(**(model.get("args") or {}))  # type: ignore[operator]
    if not isinstance(network, nn.Module):
        raise ConfigError(
            f"model class {path!r} makes a {type(network).__name__}, not an nn.Module"
        )
    return network


def _with_parameters(spec: ModelSpec, names: Sequence[str] | None) -> ModelSpec:
    """``spec``, but the parameters are ``names``."""
    chosen = None if names is None else {spec.aliases.get(name, name) for name in names}
    known = {*spec.parameters, *spec.buffers}
    unknown = sorted((chosen or set()) - known)
    if unknown or (chosen is None and not spec.parameters) or (chosen is not None and not chosen):
        raise ConfigError(
            f"trainable_param_names {unknown[:3] or []} must be tensors of the model, such as {sorted(known)[:3]}"
        )
    if chosen is None:
        return spec
    return replace(spec, parameters=tuple(sorted(chosen)), buffers=tuple(sorted(known - chosen)))
