# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""What a run tells while it goes on: curves for NVFlare's receivers of metrics, and when it is
enough.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from nvflare.apis.analytix import ANALYTIC_EVENT_TYPE, AnalyticsDataType
from nvflare.apis.fl_constant import EventScope, FedEventHeader, FLContextKey, ReservedKey
from nvflare.apis.fl_context import FLContext
from nvflare.apis.utils.analytix_utils import create_analytic_dxo
from nvflare.app_common.utils.math_utils import parse_compare_criteria

from monai_fairfl.errors import ConfigError
from monai_fairfl.run_folder.ledger import number_in

Scalar = tuple[str, str, float, int]


def scalars_of(record: Mapping[str, Any]) -> Iterator[Scalar]:
    """(site, tag, value, round) of everything in a ledger's record that makes a curve.

    A tag is the name of a measurement, ``aggregation_weight`` or ``contribution``; at the end of a
    run ``final_`` and a measurement's name, of the model that the site would use.
    ``MEASUREMENT/mean`` is of no site, whose name is empty.

    >>> list(scalars_of({"kind": "round", "round": 1, "aggregation": {"elm": 0.4}, "contributions": {},
    ...                  "measurements": {"elm": {"global_score": {"mean": {"value": 0.5}, "gland": 0.5}}}}))
    [('elm', 'global_score', 0.5, 1), ('', 'global_score/mean', 0.5, 1), ('elm', 'aggregation_weight', 0.4, 1)]
    """
    if record["kind"] == "round":
        step = record["round"]
        yield from _by_measurement(record["measurements"], "", step)
        for tag, values in (
            ("aggregation_weight", "aggregation"),
            ("contribution", "contributions"),
        ):
            for site, value in record[values].items():
                if (number := number_in(value)) is not None:
                    yield site, tag, number, step
    if record["kind"] == "end":
        own = {site: scores.get("own", {}) for site, scores in record["scores"].items()}
        yield from _by_measurement(own, "final_", 0)


def show(fl_ctx: FLContext, scalar: Scalar) -> None:
    """Hand one point of a curve to NVFlare's receivers: to a site's, as if the site had sent it, or
    to the server's.

    MLflow's receiver has curves of sites only; TensorBoard's and Weights & Biases' have the means,
    too.
    """
    site, tag, value, step = scalar
    data = create_analytic_dxo(
        tag, value, AnalyticsDataType.SCALAR, global_step=step
    ).to_shareable()
    event, scope = ANALYTIC_EVENT_TYPE, EventScope.LOCAL
    if site:
        event, scope = f"fed.{ANALYTIC_EVENT_TYPE}", EventScope.FEDERATION
        data.set_peer_props({ReservedKey.IDENTITY_NAME: site})
        data.set_header(FedEventHeader.DIRECTION, "in")  # it goes to nobody
    fl_ctx.set_prop(FLContextKey.EVENT_SCOPE, scope, private=True, sticky=False)
    fl_ctx.set_prop(FLContextKey.EVENT_DATA, data, private=True, sticky=False)
    fl_ctx.get_engine().fire_event(event, fl_ctx)  # a component's own fire_event is always local


class EarlyStop:
    """Ends a run when a measurement's mean over the sites is good enough, or no longer gets better.

    Rounds that a site missed do not count: a mean over the others is one over other patients.

    Args:
        condition: such as ``"global_score >= 0.8"``; ``None``: never.
        patience: rounds without a better mean; ``None``: as many as there are.
        conclude: ends the run.

    Raises:
        ConfigError: when the condition cannot be read, or there is patience without a condition.
    """

    def __init__(self, condition: str | None, patience: int | None, conclude: Callable[[], None]):
        if patience is not None and not condition:
            raise ConfigError(
                f"patience {patience} needs stop_cond, which names the measurement to watch"
            )
        self.name, self.target = "", 0.0
        self.reached: Callable[[float, float], bool] | None = None
        try:
            if condition:
                self.name, self.target, self.reached = parse_compare_criteria(condition)
        except ValueError as error:
            raise ConfigError(
                f"stop_cond {condition!r} must be such as 'global_score >= 0.8': {error}"
            ) from error
        self.patience, self.conclude = patience, conclude
        self.sign = -1.0 if condition and "<" in condition else 1.0
        self.best, self.since = -float("inf"), 0
        self.everybody: Sequence[str] = ()

    def told(self, record: Mapping[str, Any]) -> None:
        """Look at one record of the ledger."""
        if record["kind"] == "start" and not record["clients_per_round"]:
            self.everybody = record["clients"]
        if self.reached is None or record["kind"] != "round":
            return
        known = _known(record["measurements"], self.name)
        if not known or not {*self.everybody, *record["clients"]} <= known.keys():
            return
        value = sum(known.values()) / len(known)
        better = self.sign * value > self.best
        self.best, self.since = (self.sign * value, 0) if better else (self.best, self.since + 1)
        if self.reached(value, self.target) or (
            self.patience is not None and self.since >= self.patience
        ):
            self.conclude()


def _by_measurement(
    found: Mapping[str, Mapping[str, Any]], prefix: str, step: int
) -> Iterator[Scalar]:
    for name in sorted({name for values in found.values() for name in values}):
        known = _known(found, name)
        for site, number in known.items():
            yield site, f"{prefix}{name}", number, step
        if known:
            yield "", f"{prefix}{name}/mean", sum(known.values()) / len(known), step


def _known(found: Mapping[str, Mapping[str, Any]], name: str) -> dict[str, float]:
    """site -> its number of that name."""
    numbers = {site: number_in(values.get(name)) for site, values in found.items()}
    return {site: number for site, number in numbers.items() if number is not None}
