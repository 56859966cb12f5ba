# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""What a bundle's federation refuses, by name and value, before anything is trained."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np
import pytest
import torch
from helpers.bundle_runs import BUNDLE, OVERRIDES, federation
from helpers.foreign_bundles import write_foreign_bundle
from helpers.refusals import noted
from monai.bundle import ConfigParser

from monai_fairfl import BundleFederation
from monai_fairfl.bundle import SiteSettings, bundle_client, check_config, initial_model
from monai_fairfl.data import check_cases, site_datalist
from monai_fairfl.errors import ConfigError, DataError, FairFLError, FederationError
from monai_fairfl.strategies import FedAvg, FedCE, FedCI, FedGA
from monai_fairfl.valuation import Reconstruction, Retraining

# --- where the federation is made

OF_THE_CONSTRUCTOR: list[tuple[dict[str, Any], str]] = [
    *[({"jobs": number}, f"jobs.*{number}") for number in (0, True, 1.5, "many")],
    ({"devices": "cuda:0"}, "devices.*'cuda:0'"),
    # MONAI reads --share_cases false as a text.
    *[
        ({name: "false"}, f"{name}.*'false'")
        for name in ("amp", "any_folder", "report", "resume", "share_cases")
    ],
    ({"local_epochs": 0}, "local_epochs.*0"),
    ({"local_epochs": "3"}, "local_epochs.*'3'"),
    ({"overrides": ["size"]}, r"overrides.*\['size'\]"),
    ({"sites": "alder"}, "sites.*'alder'"),
    ({"sites": {"alder": 3}}, "sites.*'alder'.*3"),
    ({"valuations": "exact"}, "valuations.*'exact'"),
    ({"strategies": "FedAvgg"}, "'FedAvgg'"),
    ({"guards": ["TooLon"]}, "'TooLon'.*TooLong"),
    ({"guards": "TooLong"}, "guards.*'TooLong'"),
]


def test_settings_of_another_form_are_refused_where_the_federation_is_made(tmp_path: Path) -> None:
    for settings, words in OF_THE_CONSTRUCTOR:
        given: dict[str, Any] = {"strategies": FedAvg(), **settings}
        with pytest.raises(ConfigError, match=words):
            federation(tmp_path, tmp_path / "run", **given)


# --- where its settings, folders and the bundle's files are checked


class Thirsty(FedAvg):
    """Needs a measurement of another name."""

    requires = frozenset({"leave_one_out_eror"})


class AtMostTwo(FedCI):
    max_clients = 2


GROUPS: list[tuple[Any, str]] = [
    ({"a": ["elm"], "b": ["yew"]}, "'b'.*'yew'"),
    ({"a": ["elm"], "b": ["elm"]}, "'b'.*'elm'"),
    # A text would be a site for each of its letters.
    ({"a": "elm"}, "'a'.*'elm'"),
    ("elm", "groups.*'elm'"),
]

OF_THE_CHECK: list[tuple[dict[str, Any], str]] = [
    ({"retrys": 3}, "'retrys'.*'retries'"),
    *[({"groups": groups}, words) for groups, words in GROUPS],
    ({"site_names": ["lime"]}, "'lime'"),
    ({"site_names": []}, "site_names"),
    ({"site_names": ["alder", "elm", "alder"]}, "site_names.*'alder'"),
    ({"site_names": [3]}, "3"),
    ({"sites": {"ceder": {"channel": 1}}}, "'ceder'.*'cedar'"),
    ({"sites": {"cedar": {"learning_rate": "0,02"}}}, "'learning_rate'.*'0,02'"),
    ({"overrides": {"learning_rte": 0.1}}, "'learning_rte'.*'learning_rate'"),
    ({"overrides": {"network_def": torch.nn.Linear(1, 1)}}, "'network_def'.*Linear"),
    ({"overrides": {"field_of_view": 70}}, "field_of_view must .* 70"),
    ({"overrides": {"softmax": True}}, "two_channel"),
    ({"overrides": {"size": 32}, "check": check_cases}, "is 32"),
    ({"overrides": {"channels": 4}}, "network_def.*'channels': 4"),
    ({"config": ["configs/trian.json"]}, "trian.json"),
    ({"evaluate": ["global_scor"]}, "evaluate.*'global_scor'.*'global_score'"),
    ({"final": ["global_scor"]}, "final.*'global_scor'"),
    ({"strategies": [FedAvg(), FedAvg()]}, "different"),
    ({"strategies": FedCE(), "site_names": "elm"}, "FedCE takes 2 .* 1"),
    ({"strategies": Thirsty()}, "'leave_one_out_eror'.*'leave_one_out_error'"),
    ({"valuations": Reconstruction()}, "reconstruction-exact-mean.*record_updates"),
    ({"valuations": Retraining(judged_by="others"), "site_names": "elm"}, "single client"),
    # The second strategy is checked before the first one trains.
    ({"strategies": [FedAvg(), AtMostTwo()]}, "AtMostTwo.* 2 sites"),
    ({"strategies": [FedAvg(), FedGA()], "clients_per_round": 1, "min_clients": 1}, "FedGA.* 1"),
    ({"strategies": [FedAvg(), FedCE()], "buffers": "samples"}, "FedCE.*buffers"),
    ({"adapt_epochs": 1, "adapt_fuse": True}, "Standalone"),
    ({"trained_alone": "runs/alone"}, "runs/alone.*adapt_epochs"),
]


def test_faults_are_named_before_anything_is_trained(hospitals: Path, tmp_path: Path) -> None:
    for settings, words in OF_THE_CHECK:
        given: dict[str, Any] = {"strategies": FedAvg(), "site_names": None, **settings}
        with pytest.raises(FairFLError, match=words):
            federation(hospitals, tmp_path / "run", **given).check_settings()
    assert not (tmp_path / "run").exists()


def test_folders_that_hold_no_sites_are_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").touch()
    for name in ("nothing", "file", "empty"):
        with pytest.raises(ConfigError, match=f"{name} holds no site"):
            federation(tmp_path / name, tmp_path / "run", FedAvg()).check_settings()


def test_models_that_do_not_fit_the_first_one_are_named(tmp_path: Path) -> None:
    torch.save(torch.nn.Linear(2, 2), tmp_path / "whole.pt")  # a module, not its state_dict
    torch.save({"w": torch.zeros(2)}, tmp_path / "other.pt")
    for name in ("whole.pt", "other.pt"):
        with pytest.raises(FederationError, match=name):
            initial_model(BUNDLE, OVERRIDES, str(tmp_path / name))


def test_a_training_that_cannot_be_read_or_does_not_score_is_named(tmp_path: Path) -> None:
    bundle = write_foreign_bundle(tmp_path / "bundle", "dynunet")
    for name in ("elm", "oak"):
        (tmp_path / "sites" / name).mkdir(parents=True)

    def check() -> None:
        places = (str(bundle), str(tmp_path / "sites"))
        given = {"rounds": 1, "run_dir": str(tmp_path / "run"), "any_folder": True}
        BundleFederation(*places, FedCE(), **given).check_settings()  # type: ignore[arg-type]

    file = bundle / "configs" / "train.json"
    content = json.loads(file.read_text())
    del content["validate"]["evaluator"]
    for text, words in ((json.dumps(content), "FedCE.*evaluator"), ("{,", "train.json.*line 1")):
        file.write_text(text)
        with pytest.raises(ConfigError, match=words):
            check()
    with pytest.raises(ConfigError, match="train.json.*No such file"):
        initial_model(bundle / "configs")


# --- the keys of a configuration


def check_keys(**keys: Any) -> None:
    """Check a running configuration, as its ``initialize`` does."""

    class Workflow:
        parser = ConfigParser(keys)

        def initialize(self) -> None:
            check_config()

    Workflow().initialize()


def test_keys_that_do_not_exist_are_refused_with_those_that_were_meant() -> None:
    with pytest.raises(ConfigError, match="'ronds'.*'rounds'"):
        check_keys(ronds=5)
    # Without a configuration nothing is checked.
    check_keys(strategies="FedAvg", rounds=2, _mine=3)
    check_config()


# --- the settings of a site


def test_a_site_adds_overrides_and_replaces_files() -> None:
    everybody = SiteSettings(overrides={"size": [32, 32], "channel": 0}, amp=True)
    site = everybody.for_site({"config": ["configs/mine.json"], "channel": 1})
    assert (site.config, site.amp) == (["configs/mine.json"], True)
    assert site.overrides == {"size": [32, 32], "channel": 1}
    assert everybody.overrides == {"size": [32, 32], "channel": 0}


def test_the_client_of_a_site_takes_settings_that_there_are_and_no_code(tmp_path: Path) -> None:
    refusals: list[tuple[dict[str, Any], Any, str]] = [
        ({"local_epoch": 2}, ConfigError, "'local_epoch'.*'local_epochs'"),
        ({"device": "cpu' if __import__('os') else 'cpu"}, RuntimeError, "device"),
    ]
    for settings, error, words in refusals:
        with pytest.raises(error, match=words):
            bundle_client(BUNDLE, "elm", tmp_path, dataset_dir=tmp_path, **settings)


def test_a_part_of_a_split_whose_labels_are_all_empty_is_noted(
    hospitals: Path, tmp_path: Path
) -> None:
    root = Path(shutil.copytree(hospitals, tmp_path / "sites"))
    for case in site_datalist(root / "alder", seed=0)["testing"]:
        label = nib.load(case["label"])
        nib.save(nib.Nifti1Image(np.zeros(label.shape, np.uint8), label.affine), case["label"])
    with noted("alder", "testing", "empty"):
        federation(root, tmp_path / "run", FedAvg(), check=check_cases).check_settings()


def test_a_data_list_without_a_training_case_is_refused_before_the_first_round(
    hospitals: Path, tmp_path: Path
) -> None:
    file = tmp_path / "list.json"
    site_datalist(hospitals / "alder", file, seed=0)
    lists = json.loads(file.read_text())
    file.write_text(json.dumps({**lists, "training": []}))
    sites = {"alder": {"datalist_file": str(file)}}
    given = federation(hospitals, tmp_path / "run", FedAvg(), sites=sites)
    with pytest.raises(DataError, match="list.json.*alder"):
        given.run()
    assert not (tmp_path / "run" / "ledger.jsonl").exists()
