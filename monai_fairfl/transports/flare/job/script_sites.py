# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The sites of a job that runs the user's own model and training script.

NVFlare's FedCE and FedAvg recipes take the same model and script.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from nvflare.apis.analytix import ANALYTIC_EVENT_TYPE
from nvflare.app_common.widgets.convert_to_fed_event import ConvertToFedEvent
from nvflare.client.config import TransferType
from nvflare.job_config.api import FedJob
from nvflare.job_config.script_runner import ScriptRunner
from torch import nn

from monai_fairfl.errors import ConfigError
from monai_fairfl.messages import ModelSpec, Weights
from monai_fairfl.strategies import Strategy
from monai_fairfl.transports.flare.job.user_model import initial_of
from monai_fairfl.transports.flare.server.early_stopping import parse_condition
from monai_fairfl.transports.flare.server.one_exchange import USE_A_BUNDLE, check_strategy

PER_SITE = (
    "train_script",
    "train_args",
    "launch_external_process",
    "command",
    "framework",
    "server_expected_format",
    "params_transfer_type",
    "launch_once",
    "launch_timeout",
    "shutdown_timeout",
)
"""Keys of a site's ``per_site_config``, as NVFlare's recipes have them."""

RUNNER_ARGUMENTS = {"train_script": "script", "train_args": "script_args"}
"""Arguments of a recipe that NVFlare's ``ScriptRunner`` calls otherwise."""


class ScriptSites:
    """The sites of a job that run ``train_script``.

    Args:
        train_script: path of the script.
        strategy: of the federation.
        min_clients: of the federation.
        train_args: arguments of the script.
        options: of NVFlare's ``ScriptRunner``, for every site.
        model: see :func:`~monai_fairfl.transports.flare.job.user_model.initial_of`.
        trainable_param_names: likewise.

    Raises:
        ConfigError: when the strategy cannot work with scripts.
    """

    federation: ClassVar[Mapping[str, Any]] = {"final": [], "evaluate": []}
    """Settings of the federation: a script measures nothing beside its training."""
    asked: ClassVar[Mapping[str, Any] | None] = None
    """Settings of a bundle, for the run's ``config.json``: there is no bundle."""

    def __init__(
        self,
        train_script: str,
        strategy: Strategy,
        min_clients: int,
        *,
        train_args: str,
        options: Mapping[str, Any],
        model: nn.Module | Mapping[str, Any] | None,
        trainable_param_names: Sequence[str] | None,
    ):
        check_strategy(strategy, min_clients)
        self.options = {"train_script": train_script, "train_args": train_args, **options}
        self.model = model
        self.trainable_param_names = trainable_param_names
        self.name = strategy.name

    def initial(self, file: str | None) -> tuple[Weights, ModelSpec]:
        """Return the user's model, or the values of ``file``."""
        return initial_of(self.model, self.trainable_param_names, file)

    def recipe(self, per_site: Mapping[str, Mapping[str, Any]]) -> None:
        """Return no recipe: nobody knows how a script prepares its images."""

    def check(self, per_site: Mapping[str, Mapping[str, Any]]) -> None:
        """Refuse settings of single sites that no script runner knows.

        Raises:
            ConfigError: naming the key and those there are.
        """
        for site, own in per_site.items():
            unknown = sorted(set(own) - set(PER_SITE))
            if unknown:
                raise ConfigError(
                    f"per_site_config of {site} sets {unknown[0]!r}, which no script's site knows; "
                    f"known are {', '.join(PER_SITE)}"
                )
            self._runner(own)

    def add_to(self, job: FedJob, per_site: Mapping[str, Mapping[str, Any]]) -> None:
        """Give every site its script, and send the curves that it draws to the server."""
        curves = ConvertToFedEvent(events_to_convert=[ANALYTIC_EVENT_TYPE])
        if not per_site:
            job.to_clients(self._runner({}))
            job.to_clients(curves, id="event_to_fed")
        for site, own in per_site.items():
            job.to(self._runner(own), site)
            job.to(curves, site, id="event_to_fed")

    def _runner(self, own: Mapping[str, Any]) -> ScriptRunner:
        """Return what runs the script at a site that sets ``own``."""
        settings = {"params_transfer_type": TransferType.DIFF, **self.options}
        for name, value in own.items():
            if value is not None:
                settings[name] = value
        arguments = {RUNNER_ARGUMENTS.get(name, name): value for name, value in settings.items()}
        return ScriptRunner(**arguments)


def check_federation(settings: Mapping[str, Any]) -> None:
    """Refuse what scripts cannot do for a :class:`~monai_fairfl.server.federation.Federation`.

    Raises:
        ConfigError: naming the setting.

    >>> check_federation({"local_norm": True})
    Traceback (most recent call last):
    ...
    monai_fairfl.errors.ConfigError: federation sets 'local_norm', ...
    """
    for name in ("final", "evaluate", "local_norm"):
        if settings.get(name):
            raise ConfigError(
                f"federation sets {name!r}, which scripts of NVFlare's Client API cannot do: "
                f"{USE_A_BUNDLE}"
            )
    if settings.get("buffers") == "local":
        raise ConfigError(
            "buffers 'local' keeps tensors at the sites, and a script waits for all of them: "
            f"{USE_A_BUNDLE}"
        )


def key_mode(key_metric: str, mode: str | None, stop_cond: str | None) -> str:
    """Return whether a high (``"max"``) or a low (``"min"``) key metric is good.

    That is ``mode`` where the user gives it. Else ``stop_cond`` decides where it is of the same
    metric, and otherwise a high one is good.

    Raises:
        ConfigError: when the two contradict each other, or the mode is unknown.

    >>> key_mode("val_loss", None, "val_loss <= 0.1"), key_mode("dice", None, None)
    ('min', 'max')
    """
    if mode not in (None, "min", "max"):
        raise ConfigError(f"key_metric_mode must be 'min' or 'max', got {mode!r}")
    implied = _mode_of_condition(key_metric, stop_cond) if stop_cond else None
    if mode and implied and mode != implied:
        raise ConfigError(
            f"key_metric_mode {mode!r} contradicts stop_cond {stop_cond!r}: leave one of them out"
        )
    return mode or implied or "max"


def _mode_of_condition(key_metric: str, stop_cond: str) -> str | None:
    """Return which key metric is good by a condition; ``None`` where it is of another metric."""
    name, _, compare = parse_condition(stop_cond, example=key_metric)
    if name != key_metric:
        return None
    if compare in (operator.lt, operator.le):
        return "min"
    if compare in (operator.gt, operator.ge):
        return "max"
    return None
