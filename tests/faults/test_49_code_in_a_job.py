# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Fault 49: a job that brings code, orders for MONAI, data or endless work to a site."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from helpers.client_requests import tiny_model
from helpers.federations import BUNDLE, SETTINGS

from monai_fairfl.errors import ConfigError
from monai_fairfl.protocol.messages import Request
from monai_fairfl.transports.engines.site import Site
from monai_fairfl.transports.engines.site_settings import (
    MOST_OF_A_JOB,
    SITE_FILE,
    JobSiteSettings,
)


@pytest.mark.parametrize(
    "overrides",
    [
        {"train#trainer#_mode_": "debug"},
        {"network_def": {"_mode_": "debug"}},
        {"train::handlers::0::_disabled_": True},
        {"train#trainer#_requires_": ["@imports"]},
        {"+train": {"_desc_": "x"}},
        {"train#_a_key_of_a_later_monai_": 1},
        {"~_mode_": None},
    ],
)
def test_a_key_that_monai_reserves_is_refused(overrides: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="must not bring code"):
        JobSiteSettings.merged({"overrides": overrides}, {})
    # The site itself may.
    assert JobSiteSettings.merged({}, {"overrides": overrides}).overrides == overrides


def test_underscores_within_a_name_are_no_order() -> None:
    overrides = {"batch_size": 2, "train#dataloader#num_workers": 0, "cache_rate_": 0.5}
    assert JobSiteSettings.merged({"overrides": overrides}, {}).overrides == overrides


@pytest.mark.parametrize(
    "job",
    [
        {"dataset_dir": "/other"},
        {"overrides": {"dataset_dir": "/other"}},
        {"overrides": {"datalist#dataset_dir": "other"}},
        {"overrides": {"datalist": {"dataset_dir": "other"}}},
    ],
)
def test_a_job_does_not_name_a_sites_images(job: dict[str, Any]) -> None:
    for own in ({}, {"sites_root": "/data"}):
        with pytest.raises(ConfigError, match="the job sets dataset_dir, and only a site itself"):
            JobSiteSettings.merged(job, own)
    # What a site says wins, as ever.
    assert (
        JobSiteSettings.merged({"dataset_dir": "/other"}, {"dataset_dir": "/d"}).dataset_dir == "/d"
    )


@pytest.mark.parametrize("name", MOST_OF_A_JOB)
def test_a_jobs_numbers_have_bounds_and_a_sites_own_have_none(name: str) -> None:
    most = MOST_OF_A_JOB[name]
    assert getattr(JobSiteSettings.merged({name: most}, {}), name) == most
    with pytest.raises(ConfigError, match=f"the job sets {name} to {most + 1}.* at most {most}"):
        JobSiteSettings.merged({name: most + 1}, {})
    own = JobSiteSettings.merged({name: most + 1}, {name: most + 2})
    assert getattr(own, name) == most + 2


@pytest.mark.parametrize(
    "job",
    [
        {"overrides": {"train#trainer#_mode_": "debug"}},
        {"dataset_dir": "/other"},
        {"local_epochs": 10**6},
        {"threads": 10**4},
    ],
)
def test_a_site_answers_such_a_job_with_the_reason_and_runs_nothing(
    job: dict[str, Any], tmp_path: Path
) -> None:
    (tmp_path / SITE_FILE).parent.mkdir()
    (tmp_path / SITE_FILE).write_text(json.dumps({"bundle": BUNDLE}))
    site = Site("elm", tmp_path, {"overrides": SETTINGS, **job})
    weights, _ = tiny_model()
    request = Request("elm", "train", weights, run="r", round=0, seed=3)
    reply = site.answer(request, 2)
    assert reply.error is not None and reply.error.startswith("ConfigError: the job")
    assert not (tmp_path / "fairfl").exists()
