# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""A job's settings below those of the site: what a job may set, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest
from helpers.federations import BUNDLE
from hypothesis import given
from hypothesis import strategies as st

from monai_fairfl.errors import ConfigError
from monai_fairfl.transports.engines.site_settings import SITE_FILE, JobSiteSettings


def test_the_sites_own_settings_win_and_the_overrides_of_both_count() -> None:
    job = {"bundle": BUNDLE, "device": "cuda:7", "overrides": {"size": [64, 64], "batch_size": 8}}
    own = {"device": "cpu", "dataset_dir": "/data", "overrides": {"batch_size": 2}}

    found = JobSiteSettings.merged(job, own)

    assert (found.bundle, found.device, found.dataset_dir) == (BUNDLE, "cpu", "/data")
    assert found.overrides == {"size": [64, 64], "batch_size": 2}


def test_only_the_site_itself_names_the_model_that_it_trained_alone() -> None:
    assert JobSiteSettings.merged({}, {}).of_client()["alone"] == ""
    own = {"alone": "/models/alone.pt"}
    assert JobSiteSettings.merged({}, own).of_client()["alone"] == "/models/alone.pt"
    with pytest.raises(ConfigError, match="only a site itself knows its files"):
        JobSiteSettings.merged(own, {})
    with pytest.raises(ConfigError, match="alone to 3, and it must be the path of a model file"):
        JobSiteSettings.merged({}, {"alone": 3})


@pytest.mark.parametrize(
    "overrides",
    [
        {"size": "$__import__('os').system('true')"},
        {"size": ["@network", 3]},
        {"network": {"_target_": "os.system", "command": "true"}},
        {"train#handlers#0#_target_": "subprocess.run"},
        {"imports": ["import os"]},
        {"size": {"deep": ["%other.json#key"]}},
        {"size": "  $1"},
    ],
)
def test_a_job_must_not_bring_code_into_a_sites_configuration(overrides: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="must not bring code"):
        JobSiteSettings.merged({"overrides": overrides}, {})
    # The site itself may.
    assert JobSiteSettings.merged({}, {"overrides": overrides}).overrides == overrides


CODE = "__import__('os').getcwd()"


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"device": f"cpu' if {CODE} else 'cpu"}, "a device of torch"),
        ({"device": "gpu"}, "a device of torch"),
        ({"device": 0}, "a device of torch"),
        ({"amp": f"$not {CODE}"}, "true or false"),
        ({"amp": 1}, "true or false"),
        ({"local_epochs": f"$len({CODE})"}, "a whole number from 1"),
        ({"local_epochs": 0}, "a whole number from 1"),
        ({"local_epochs": True}, "a whole number from 1"),
        ({"threads": 1.5}, "a whole number from 1"),
        ({"groups": {f"${CODE}": ["elm"]}}, "names -> lists of sites"),
        ({"groups": ["elm"]}, "names -> lists of sites"),
        # The site "el" would be in this group, too.
        ({"groups": {"scanner A": "elm"}}, "names -> lists of sites"),
        ({"overrides": "size=3"}, "keys of the bundle"),
        ({"config": 3}, "files of the bundle"),
        ({"check": "false"}, "true or false"),
        ({"bundle": 3}, "the name of a bundle"),
        ({"sites_root": 3}, "the path of a folder"),
    ],
)
def test_a_setting_is_of_its_type_so_that_it_brings_no_code_into_a_configuration(
    settings: dict[str, Any], says: str
) -> None:
    name = next(iter(settings))
    with pytest.raises(ConfigError, match=f"the job sets {name} to .* it must be {says}"):
        JobSiteSettings.merged(settings, {})
    with pytest.raises(ConfigError, match=f"{SITE_FILE} sets {name} to .* it must be {says}"):
        JobSiteSettings.merged({}, settings)


def test_no_override_of_a_job_replaces_what_the_site_sets_at_whatever_depth() -> None:
    own = {
        "dataset_dir": "/data",
        "device": "cpu",
        "overrides": {"batch_size": 2, "cache_rate": 0.0},
    }
    deep = {
        "datalist#dataset_dir": "/other",
        "train::dataloader::batch_size": 64,
        "train#trainer#device": "cuda:7",
    }
    job = {
        "overrides": {
            "dataset_dir": "/other",
            "device": "cuda:7",
            "batch_size": 64,
            **deep,
            "size": [64, 64],
        }
    }

    assert JobSiteSettings.merged(job, own).overrides == {
        "size": [64, 64],
        "batch_size": 2,
        "cache_rate": 0.0,
    }


@pytest.mark.parametrize(
    "overrides",
    [
        {"datalist_file": "/other/list.json"},
        {"ckpt_dir": "../../other"},
        {
            "train#dataset#data": [
                {"image": "/other/Case00.nii.gz", "label": "/other/Case00_segmentation.nii.gz"}
            ]
        },
    ],
)
def test_a_site_whose_settings_name_its_data_is_not_sent_to_other_files(
    overrides: dict[str, Any],
) -> None:
    named = "name the file or folder '.*other.*', and the site's own dataset_dir"
    with pytest.raises(ConfigError, match=named):
        JobSiteSettings.merged({"overrides": overrides}, {"dataset_dir": "/data"})
    # A trial, all on one machine.
    assert JobSiteSettings.merged({"overrides": overrides}, {}).overrides == overrides
    # The site itself may.
    own = {"dataset_dir": "/data", "overrides": overrides}
    assert JobSiteSettings.merged({}, own).overrides == overrides


plain = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text("abc $@%", max_size=5),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(st.text("abc", min_size=1), inner, max_size=3),
)


@pytest.mark.slow
@given(st.dictionaries(st.text("abc#", min_size=1), plain, max_size=3))
def test_what_passes_holds_no_text_that_monai_would_evaluate(overrides: dict[str, Any]) -> None:
    def texts(value: Any) -> list[str]:
        if isinstance(value, str):
            return [value]
        parts: Any = ()
        if isinstance(value, dict):
            parts = value.values()
        elif isinstance(value, list):
            parts = value
        found = []
        for part in parts:
            found += texts(part)
        return found

    evaluated = any(text.lstrip().startswith(("$", "@", "%")) for text in texts(overrides))
    try:
        JobSiteSettings.merged({"overrides": overrides}, {})
    except ConfigError:
        assert evaluated
    else:
        assert not evaluated


@pytest.mark.parametrize("file", ["/etc/train.json", "../other/train.json", "configs/../../x.json"])
def test_a_jobs_configuration_is_a_file_of_the_bundle(file: str) -> None:
    with pytest.raises(ConfigError, match="must be a file of the bundle"):
        JobSiteSettings.merged({"config": [file]}, {})
    with pytest.raises(ConfigError, match=f"config '{file}' must be a file of the bundle"):
        JobSiteSettings.merged({"config": file}, {})


def test_a_job_may_give_one_file_of_a_configuration_without_a_list() -> None:
    settings = JobSiteSettings.merged({"config": "configs/train.json"}, {})
    assert settings.config == ["configs/train.json"]


@pytest.mark.parametrize("source", [({"bundel": "x"}, {}), ({}, {"bundel": "x"})])
def test_an_unknown_setting_is_refused(source: tuple[dict[str, Any], dict[str, Any]]) -> None:
    with pytest.raises(ConfigError, match="'bundel', which no site knows"):
        JobSiteSettings.merged(*source)


def test_a_job_names_no_folder_of_a_hospital_as_its_bundle() -> None:
    job = {"bundle": "/kit/earlier-job/app/config"}
    hospital = {"dataset_dir": "/data"}
    with pytest.raises(ConfigError, match=r"names the bundle '/kit/.*none of the package.*local"):
        JobSiteSettings.merged(job, hospital)

    # The hospital's own choice counts, and a bundle of the package needs none.
    own = {**hospital, "bundle": "/data/bundle"}
    assert JobSiteSettings.merged(job, own).bundle == "/data/bundle"
    assert JobSiteSettings.merged({"bundle": BUNDLE}, hospital).bundle == BUNDLE
    # In a trial on one machine, the lead knows the folders.
    assert JobSiteSettings.merged({**job, "sites_root": "/sites"}, {}).bundle == job["bundle"]
