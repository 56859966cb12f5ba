# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Curves of a run for NVFlare's receivers of metrics, while the run goes on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from nvflare.apis.analytix import ANALYTIC_EVENT_TYPE, AnalyticsDataType
from nvflare.apis.fl_constant import EventScope, FedEventHeader, FLContextKey, ReservedKey
from nvflare.apis.fl_context import FLContext
from nvflare.apis.utils.analytix_utils import create_analytic_dxo

from monai_fairfl.run.ledger import number_in


class CurvePoint(NamedTuple):
    """One point of a curve.

    Args:
        site: that the curve is of; the empty string: a curve of no site.
        tag: the curve's name.
        value: at the point.
        step: the round.
    """

    site: str
    tag: str
    value: float
    step: int


def curve_points(record: Mapping[str, Any]) -> Iterator[CurvePoint]:
    """Yield everything in a ledger's record that belongs to a curve.

    A tag is the name of a measurement, ``aggregation_weight`` or ``contribution``. At the end of a
    run it is ``final_`` and a measurement's name, of the model that the site would use.
    ``MEASUREMENT/mean`` is of no site.

    >>> record = {"kind": "round", "round": 1, "aggregation": {"elm": 0.4}, "contributions": {}}
    >>> score = {"value": 0.5, "stderr": None, "n": 2}
    >>> record["measurements"] = {"elm": {"global_score": {"mean": score, "gland": 0.5}}}
    >>> for point in curve_points(record):
    ...     print(tuple(point))
    ('elm', 'global_score', 0.5, 1)
    ('', 'global_score/mean', 0.5, 1)
    ('elm', 'aggregation_weight', 0.4, 1)
    """
    if record["kind"] == "round":
        step = record["round"]
        yield from _points_of_measurements(record["measurements"], "", step)
        yield from _points_of_clients(record["aggregation"], "aggregation_weight", step)
        yield from _points_of_clients(record["contributions"], "contribution", step)
    elif record["kind"] == "end":
        own = {site: scores.get("own", {}) for site, scores in record["scores"].items()}
        yield from _points_of_measurements(own, "final_", 0)


def numbers_of(measurements: Mapping[str, Mapping[str, Any]], name: str) -> dict[str, float]:
    """Return site -> its number of that name, without sites that have none.

    Args:
        measurements: site -> name -> measurement, as the ledger records them.
        name: of a measurement.
    """
    numbers = {}
    for site, values in measurements.items():
        number = number_in(values.get(name))
        if number is not None:
            numbers[site] = number
    return numbers


def show(fl_ctx: FLContext, point: CurvePoint) -> None:
    """Hand one point of a curve to NVFlare's receivers.

    A site's point goes to them as if the site had sent it, another one as the server's own.
    MLflow's receiver has curves of sites only; TensorBoard's and Weights & Biases' have the means,
    too.
    """
    dxo = create_analytic_dxo(
        point.tag, point.value, AnalyticsDataType.SCALAR, global_step=point.step
    )
    data = dxo.to_shareable()
    if point.site:
        event, scope = f"fed.{ANALYTIC_EVENT_TYPE}", EventScope.FEDERATION
        data.set_peer_props({ReservedKey.IDENTITY_NAME: point.site})
        # An event that came in is not sent to any site.
        data.set_header(FedEventHeader.DIRECTION, "in")
    else:
        event, scope = ANALYTIC_EVENT_TYPE, EventScope.LOCAL
    fl_ctx.set_prop(FLContextKey.EVENT_SCOPE, scope, private=True, sticky=False)
    fl_ctx.set_prop(FLContextKey.EVENT_DATA, data, private=True, sticky=False)
    # A component's own fire_event is always local, so the engine fires it.
    fl_ctx.get_engine().fire_event(event, fl_ctx)


def _points_of_measurements(
    measurements: Mapping[str, Mapping[str, Any]], prefix: str, step: int
) -> Iterator[CurvePoint]:
    """Yield every site's number of each measurement, then the measurement's mean over sites."""
    names: set[str] = set()
    for values in measurements.values():
        names.update(values)
    for name in sorted(names):
        numbers = numbers_of(measurements, name)
        for site, number in numbers.items():
            yield CurvePoint(site, f"{prefix}{name}", number, step)
        if numbers:
            mean = sum(numbers.values()) / len(numbers)
            yield CurvePoint("", f"{prefix}{name}/mean", mean, step)


def _points_of_clients(values: Mapping[str, Any], tag: str, step: int) -> Iterator[CurvePoint]:
    """Yield the clients' values; weights by layer, which are no numbers, make no curve."""
    for site, value in values.items():
        number = number_in(value)
        if number is not None:
            yield CurvePoint(site, tag, number, step)
