# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Statistics of a site's images and labels: ours are those of ``MonaiAlgoStats``."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from helpers.contract_bundles import ContractBundle, on_every_bundle
from monai.bundle import ConfigWorkflow
from monai.fl.client import MonaiAlgo, MonaiAlgoStats
from monai.fl.utils.constants import ExtraItems, FlStatistics
from monai.fl.utils.exchange_object import ExchangeObject

from monai_fairfl.client.algo import FairMonaiAlgo

HISTOGRAM = {FlStatistics.HIST_BINS: 10, FlStatistics.HIST_RANGE: [0, 500]}

Maker = Callable[..., Any]


@pytest.mark.long
@pytest.mark.slow
@on_every_bundle
def test_the_statistics_of_the_data_are_those_of_monai_algo_stats(
    built: Maker, tmp_path: Path, bundle: Path, contract_bundle: ContractBundle
) -> None:
    ours = built(FairMonaiAlgo)
    workflow = ConfigWorkflow(
        [str(bundle / file) for file in contract_bundle.files],
        logging_file=False,
        workflow_type="train",
        **ours.train_kwargs,
    )
    stock = MonaiAlgoStats(str(bundle), workflow=workflow)
    app = tmp_path / "stock"
    app.mkdir()
    stock.initialize({ExtraItems.APP_ROOT: str(app)})

    expected = stock.get_data_stats(dict(HISTOGRAM)).statistics
    found = ours.get_data_stats(dict(HISTOGRAM)).statistics
    assert set(found) == {"train", "eval", FlStatistics.TOTAL_DATA}
    assert found["train"][FlStatistics.DATA_COUNT] == 2
    # They are nested, with arrays.
    assert repr(found) == repr(expected)

    # Each case's numbers stay at the site: the stock client writes them into the app's folder.
    by_case = "train_data_stats_by_case.yaml"
    assert (app / by_case).exists()
    assert (tmp_path / "state" / by_case).exists()

    with pytest.raises(ValueError, match="HIST_RANGE"):
        ours.get_data_stats({FlStatistics.HIST_BINS: 10})

    ours.post_statistics_filters = [lambda data, extra: ExchangeObject(statistics={"train": None})]
    assert ours.get_data_stats(dict(HISTOGRAM)).statistics == {"train": None}


def test_stock_statistics_of_the_data_are_an_attribute_error(built: Maker) -> None:
    with pytest.raises(AttributeError, match="'workflow'"):
        built(MonaiAlgo).get_data_stats(dict(HISTOGRAM))
