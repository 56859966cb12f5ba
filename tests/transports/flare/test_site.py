# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""A site's settings and refusals, policies of kits, jobs, curves, early stopping, folders: all
without an engine.
"""

from __future__ import annotations

import json
import re
import shutil
import sys
from argparse import Namespace
from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np
import pytest
import torch
from helpers.client_requests import tiny_model
from helpers.driving import SPEC, LeastSquares, vector
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("nvflare")

from helpers.federations import BUNDLE, SETTINGS  # noqa: E402
from nvflare.apis.workspace import Workspace  # noqa: E402
from nvflare.app_common.default_component_policy import DEFAULT_CLASS_ALLOW_LIST  # noqa: E402
from nvflare.private.fed.server.server_json_config import ServerJsonConfigurator  # noqa: E402

from monai_fairfl.cli import main  # noqa: E402
from monai_fairfl.data.synthetic import write_sites  # noqa: E402
from monai_fairfl.errors import ConfigError  # noqa: E402
from monai_fairfl.protocol.messages import Request  # noqa: E402
from monai_fairfl.report import as_text, write_report  # noqa: E402
from monai_fairfl.run_folder.ledger import Ledger  # noqa: E402
from monai_fairfl.server.federation import Federation  # noqa: E402
from monai_fairfl.strategies import FedAvg, Proportional, ShapFed, compose  # noqa: E402
from monai_fairfl.transports.flare import FairFLRecipe
from monai_fairfl.transports.flare.job import launch as jobs  # noqa: E402
from monai_fairfl.transports.flare.policy import ENTRY, allow, allowed  # noqa: E402
from monai_fairfl.transports.flare.server.curves import curve_points  # noqa: E402
from monai_fairfl.transports.flare.server.early_stopping import EarlyStop  # noqa: E402
from monai_fairfl.transports.flare.site.answering import Site  # noqa: E402
from monai_fairfl.transports.flare.site.job_settings import SITE_FILE, JobSiteSettings  # noqa: E402
from monai_fairfl.transports.flare.wire import reply_of, request_model  # noqa: E402
from monai_fairfl.transports.flare.workspace import folder_of_run  # noqa: E402
from monai_fairfl.transports.flare.workspace import HOME, storage_folder  # noqa: E402
from monai_fairfl.transports.in_process import InProcess  # noqa: E402

pytestmark = pytest.mark.nvflare


# ---- settings ---------------------------------------------------------------------------------------------------


def test_the_sites_own_settings_win_and_the_overrides_of_both_count() -> None:
    job = {"bundle": BUNDLE, "device": "cuda:7", "overrides": {"size": [64, 64], "batch_size": 8}}
    own = {"device": "cpu", "dataset_dir": "/data", "overrides": {"batch_size": 2}}

    found = JobSiteSettings.merged(job, own)

    assert (found.bundle, found.device, found.dataset_dir) == (BUNDLE, "cpu", "/data")
    assert found.overrides == {"size": [64, 64], "batch_size": 2}


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
    assert (
        JobSiteSettings.merged({}, {"overrides": overrides}).overrides == overrides
    )  # the site itself may


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
        ({"groups": {f"${CODE}": ["elm"]}}, "names -> sites"),
        ({"groups": ["elm"]}, "names -> sites"),
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
def test_a_site_that_says_where_its_data_is_is_not_sent_to_other_files(
    overrides: dict[str, Any],
) -> None:
    with pytest.raises(
        ConfigError, match="name the file or folder '.*other.*', and the site's own dataset_dir"
    ):
        JobSiteSettings.merged({"overrides": overrides}, {"dataset_dir": "/data"})
    assert (
        JobSiteSettings.merged({"overrides": overrides}, {}).overrides == overrides
    )  # a trial, all on one machine
    own = {"dataset_dir": "/data", "overrides": overrides}
    assert JobSiteSettings.merged({}, own).overrides == overrides  # the site itself may


plain = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text("abc $@%", max_size=5),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(st.text("abc", min_size=1), inner, max_size=3),
)


@given(st.dictionaries(st.text("abc#", min_size=1), plain, max_size=3))
def test_what_passes_holds_no_text_that_monai_would_evaluate(overrides: dict[str, Any]) -> None:
    def texts(value: Any) -> list[str]:
        if isinstance(value, str):
            return [value]
        parts = (
            value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
        )
        return [text for part in parts for text in texts(part)]

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


@pytest.mark.parametrize("source", [({"bundel": "x"}, {}), ({}, {"bundel": "x"})])
def test_an_unknown_setting_is_refused(source: tuple[dict[str, Any], dict[str, Any]]) -> None:
    with pytest.raises(ConfigError, match="'bundel', which no site knows"):
        JobSiteSettings.merged(*source)


# ---- a site -----------------------------------------------------------------------------------------------------


def ask(site: Site, **given: Any) -> Any:
    weights, _ = tiny_model()
    request = Request(
        site.name, "train", weights, (), {}, **{"run": "r", "round": 0, "seed": 3, **given}
    )
    return reply_of(site.answer(request_model(request, 2)), request)


def test_a_site_trains_its_own_data_and_keeps_its_state_in_its_workspace(
    hospitals: Path, tmp_path: Path
) -> None:
    (tmp_path / "local").mkdir()
    (tmp_path / SITE_FILE).write_text(json.dumps({"dataset_dir": str(hospitals / "elm")}))
    site = Site("elm", tmp_path, {"bundle": BUNDLE, "overrides": SETTINGS, "device": "cpu"})

    reply = ask(site)

    assert reply.error is None and reply.client == "elm" and reply.num_cases == 2
    assert (tmp_path / "fairfl" / "elm" / "state" / "r-round-0000.pt").exists()
    site.close()


@pytest.mark.parametrize("name", ["tracking", "init_id", "no_such_key"])
def test_a_job_sets_only_what_the_sites_configuration_has(
    name: str, hospitals: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "local").mkdir()
    (tmp_path / SITE_FILE).write_text(
        json.dumps({"dataset_dir": str(hospitals / "elm"), "bundle": BUNDLE})
    )
    mlflow = Path("mlflow.json")  # MONAI would read it, and run what is in it
    mlflow.write_text(
        json.dumps({"handlers_id": {}, "configs": {"x": f"$open('{tmp_path}/ran', 'w')"}})
    )
    site = Site("elm", tmp_path, {"overrides": {**SETTINGS, name: str(mlflow)}, "device": "cpu"})

    reply = ask(site)

    assert (
        f"override '{name}' names nothing" in str(reply.error) and not (tmp_path / "ran").exists()
    )


def test_a_site_that_is_not_told_where_its_images_are_says_where_to_write_it(
    tmp_path: Path,
) -> None:
    reply = ask(Site("elm", tmp_path, {"bundle": BUNDLE}))

    assert 'Write {"dataset_dir": "/path"} into' in str(reply.error) and SITE_FILE in str(
        reply.error
    )


def test_what_outlives_a_job_lies_where_the_operator_says_which_nvflare_must_not_move(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(HOME, str(tmp_path / "kept"))
    assert storage_folder("/srv/alder") == tmp_path / "kept" / "alder"
    monkeypatch.setenv(HOME, "kept")  # would be in the folder that the simulator empties
    with pytest.raises(ConfigError, match=r'MONAI_FAIRFL_HOME=kept is relative.*"\$PWD/kept"'):
        storage_folder("/srv/alder")


def test_a_site_without_the_bundle_says_what_to_do(tmp_path: Path) -> None:
    reply = ask(Site("elm", tmp_path, {"bundle": "/nowhere/bundle"}))

    assert "'/nowhere/bundle' is neither a folder" in str(reply.error) and SITE_FILE in str(
        reply.error
    )


def test_a_site_checks_its_files_before_the_first_round(hospitals: Path, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "Case00.nii.gz").write_bytes(b"no image")
    site = Site(
        "elm",
        tmp_path,
        {"bundle": BUNDLE, "dataset_dir": str(tmp_path / "data"), "overrides": SETTINGS},
    )

    assert "Case00" in str(ask(site).error)


def site_without_labels(hospitals: Path, folder: Path) -> Site:
    shutil.copytree(hospitals / "elm", folder / "elm")
    for file in (folder / "elm").glob("*segmentation*"):
        image = nib.load(file)
        nib.save(nib.Nifti1Image(np.zeros(image.shape, np.uint8), image.affine), file)  # type: ignore[attr-defined]
    return Site(
        "elm", folder, {"bundle": BUNDLE, "dataset_dir": str(folder / "elm"), "overrides": SETTINGS}
    )


@pytest.mark.parametrize("rounds", [(0, 0, 1), (5,)])
def test_a_site_whose_files_fail_the_check_never_takes_part_unchecked(
    rounds: tuple[int, ...], hospitals: Path, tmp_path: Path
) -> None:
    site = site_without_labels(hospitals, tmp_path)

    assert all("labels are empty" in str(ask(site, round=number).error) for number in rounds)


def test_files_are_checked_once_and_not_again_when_a_process_goes_on_from_the_sites_state(
    hospitals: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checks: list[str] = []
    monkeypatch.setattr(Site, "_check", lambda site: checks.append(site.name))
    job = {
        "bundle": BUNDLE,
        "dataset_dir": str(hospitals / "elm"),
        "overrides": SETTINGS,
        "device": "cpu",
    }
    first = Site("elm", tmp_path, job)

    assert [ask(first, round=number).error for number in (0, 0, 1)] == [None] * 3 and checks == [
        "elm"
    ]
    assert ask(Site("elm", tmp_path, job), round=2).error is None and checks == ["elm"]
    assert ask(Site("elm", tmp_path, job), run="another", round=2).error is None and checks == [
        "elm",
        "elm",
    ]


def test_a_task_of_another_workflow_is_answered_with_the_reason(tmp_path: Path) -> None:
    from nvflare.app_common.abstract.fl_model import FLModel

    answer = Site("elm", tmp_path, {}).answer(FLModel(params={"w": torch.ones(1)}))

    assert "another workflow" in answer.meta["fairfl"]["error"]


# ---- policies ---------------------------------------------------------------------------------------------------


def kit(folder: Path, **policy: Any) -> Path:
    (folder / "local").mkdir(parents=True)
    (folder / "local" / "resources.json.default").write_text(
        json.dumps({"format_version": 2, "other": 1, **policy})
    )
    return folder


def test_the_entry_is_added_to_the_sites_list_once_and_the_rest_stays(tmp_path: Path) -> None:
    site = kit(tmp_path, class_allow_list=["nvflare.a.B"])

    assert not allowed(site)
    allow(site)
    file = allow(site)

    assert allowed(site)
    expected = {"format_version": 2, "other": 1, "class_allow_list": ["nvflare.a.B", ENTRY]}
    assert json.loads(file.read_text()) == expected


@pytest.mark.parametrize(
    ("content", "told"),
    [("{", "is no JSON"), ("[]", "must be an object"), ('{"class_allow_list": "x"}', "is a list")],
)
def test_a_broken_policy_is_named_and_kept(tmp_path: Path, content: str, told: str) -> None:
    file = kit(tmp_path) / "local" / "resources.json"
    file.write_text(content)

    with pytest.raises(ConfigError, match=f"resources.json.*{told}"):
        allow(tmp_path)

    assert file.read_text() == content


def test_without_a_list_nvflares_own_is_kept(tmp_path: Path) -> None:
    file = allow(kit(tmp_path))

    assert json.loads(file.read_text())["class_allow_list"] == [*DEFAULT_CLASS_ALLOW_LIST, ENTRY]


def test_nvflare_takes_the_entry_for_this_packages_classes_and_no_others(tmp_path: Path) -> None:
    from nvflare.app_common.widgets.component_path_authorizer import ComponentPathAuthorizer

    listed = ComponentPathAuthorizer._normalize_allow_list([ENTRY])
    matches = ComponentPathAuthorizer._path_matches_prefix

    assert matches("monai_fairfl.transports.flare.server.controller.FairFLController", listed[0])
    assert not matches("monai_fairfl_evil.X", listed[0])


def test_the_command_tells_checks_and_adds(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    site = str(kit(tmp_path / "alder"))

    assert main(["flare-policy", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"class_allow_list": ENTRY}
    assert main(["flare-policy", "--check"]) == 2 and "give --kit" in capsys.readouterr().err
    assert main(["flare-policy", "--kit", site, "--check"]) == 2
    assert main(["flare-policy", "--kit", site]) == 0
    assert main(["flare-policy", "--kit", site, "--check"]) == 0
    assert main(["flare-policy", "--kit", str(tmp_path / "none")]) == 2
    assert "is no startup kit" in capsys.readouterr().err


# ---- the job ----------------------------------------------------------------------------------------------------


def exported(folder: Path, **given: Any) -> tuple[dict[str, Any], dict[str, Any], Path]:
    known: dict[str, Any] = {
        "bundle": BUNDLE,
        "min_clients": 2,
        "overrides": SETTINGS,
        "name": "job",
    }
    FairFLRecipe(**{**known, **given}).export(str(folder))
    config = folder / "job" / "app" / "config"
    server, client = (
        json.loads((config / f"config_fed_{end}.json").read_text()) for end in ("server", "client")
    )
    return server, client, folder / "job"


def test_a_job_without_custom_code_brings_no_code(tmp_path: Path) -> None:
    server, client, job = exported(tmp_path, custom_code=False)

    assert not list(job.rglob("custom")) and not list(job.rglob("*.py"))
    paths = [server["workflows"][0]["path"], client["executors"][0]["executor"]["path"]]
    assert all(path.startswith(ENTRY) for path in paths)
    assert sorted(file.name for file in (job / "app" / "config" / "initial").iterdir()) == [
        "job.json",
        "model.safetensors",
        "recipe.json",
        "spec.json",
    ]


def as_the_server_reads_it(job: Path, folder: Path) -> ServerJsonConfigurator:
    """The job's classes, built by NVFlare as its server does, apart from who may."""
    for name in ("startup", "local"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    given = Namespace(job_id="job", workspace=str(folder), set=[])
    config = job / "app" / "config" / "config_fed_server.json"
    read = ServerJsonConfigurator(Workspace(str(folder)), str(config), given, str(job / "app"))
    read.configure()
    return read


OWN = {"_target_": "inverse_loss.InverseLoss", "epsilon": 0.5}


@pytest.mark.parametrize("custom_code", [True, False])
def test_a_strategy_of_ones_own_travels_with_a_job_that_may_bring_code(
    custom_code: bool, tmp_path: Path
) -> None:
    _, _, job = exported(tmp_path, strategy=OWN, custom_code=custom_code)

    brought = {file.name for file in job.rglob("*.py")}
    assert ("inverse_loss.py" in brought) == custom_code
    assert custom_code or not list(job.rglob("custom"))
    strategy = as_the_server_reads_it(job, tmp_path / "server").workflows[0].controller.strategy
    assert type(strategy).__name__ == "InverseLoss" and strategy.epsilon == 0.5


@pytest.mark.parametrize("custom_code", [True, False])
def test_a_server_that_cannot_import_the_strategy_says_what_it_needs(
    custom_code: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, _, job = exported(tmp_path, strategy=OWN, custom_code=custom_code)
    monkeypatch.setitem(sys.modules, "inverse_loss", None)  # as where it is not installed

    with pytest.raises(
        Exception, match="(?s)inverse_loss.InverseLoss .* must be importable at the server"
    ) as refused:
        as_the_server_reads_it(job, tmp_path / "server")

    assert "Can't load class inverse_loss.InverseLoss" in str(refused.value)
    assert (
        "flare-policy --kit KIT --also inverse_loss.InverseLoss" in str(refused.value)
    ) != custom_code


def test_an_argument_that_a_job_would_lose_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "forgetful.py").write_text(
        "from inverse_loss import InverseLoss\n"
        "class Forgetful(InverseLoss):\n"
        "    def __init__(self, percent: float = 1.0):\n"
        "        super().__init__(percent / 100)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(
        ConfigError,
        match="forgetful.Forgetful does not store its argument 'percent': write self.perce",
    ):
        exported(tmp_path, strategy={"_target_": "forgetful.Forgetful", "percent": 5.0})


def test_the_commands_take_a_strategy_by_its_dotted_path(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["export-flare", "--bundle", BUNDLE, "--overrides", str(SETTINGS)]
    assert (
        main([*words, "--strategy", "inverse_loss.InverseLoss", "--out", str(tmp_path / "job")])
        == 0
    )
    assert "brings the code of inverse_loss.InverseLoss" in capsys.readouterr().out
    without_code = ["--no-custom-code", "--out", str(tmp_path / "without_code")]
    assert main([*words, "--strategy", json.dumps(OWN), *without_code]) == 0
    assert "does not bring inverse_loss.InverseLoss" in capsys.readouterr().out


@pytest.mark.parametrize("command", ["export-flare", "simulate-flare"])
def test_the_commands_say_why_a_dotted_path_cannot_be_imported(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [command, "--bundle", BUNDLE, "--strategy", "inverse_los.InverseLoss"]
    if command == "export-flare":
        words += ["--out", str(tmp_path / "job")]
    else:
        write_sites(tmp_path / "sites", seed=0, size=(16, 16, 4), cases=1)
        words += ["--sites-root", str(tmp_path / "sites"), "--workspace", str(tmp_path / "job")]
    assert main(words) == 2
    assert "there is no module 'inverse_los'" in capsys.readouterr().err
    assert not (tmp_path / "job").exists()


def test_the_policy_command_allows_classes_of_ones_own_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    site = kit(tmp_path, class_allow_list=["nvflare.a.B", ENTRY])
    words = ["flare-policy", "--kit", str(site), "--also", "inverse_loss.InverseLoss"]
    assert main([*words, "--check"]) == 2
    assert "--also inverse_loss.InverseLoss adds it" in capsys.readouterr().out
    assert main(words) == main([*words, "--check"]) == 0
    listed = json.loads((site / "local" / "resources.json").read_text())["class_allow_list"]
    assert listed == ["nvflare.a.B", ENTRY, "inverse_loss.InverseLoss"]


def test_arguments_reach_the_job_and_the_policys_refusal_says_what_to_add(tmp_path: Path) -> None:
    strategy = compose(ShapFed(mu=0.5), Proportional(2.0), training={"prox_mu": 0.01})
    server, _, _ = exported(
        tmp_path, strategy=strategy, num_rounds=7, timeout=90, patience=3, stop_cond="score > 0.9"
    )

    arguments = server["workflows"][0]["args"]
    assert (arguments["num_rounds"], arguments["timeout"], arguments["patience"]) == (7, 90, 3)
    assert (
        arguments["strategy"]["path"].endswith("ShapFed")
        and arguments["strategy"]["args"]["mu"] == 0.5
    )
    assert arguments["weighting"]["args"] == {"power": 2.0} and arguments["training"] == {
        "prox_mu": 0.01
    }
    assert "flare-policy --kit" in arguments["needs"]


def test_a_job_carries_what_its_report_must_know_of_the_bundle(tmp_path: Path) -> None:
    _, _, job = exported(tmp_path, local_epochs=3)

    asked = json.loads((job / "app" / "config" / "initial" / "job.json").read_text())
    assert (asked["bundle"], asked["local_epochs"], asked["overrides"]) == (BUNDLE, 3, SETTINGS)
    assert asked["full_run"]["local_epochs"] == 4 and "train.json" in asked["files"]


def test_the_same_seed_gives_the_same_job(tmp_path: Path) -> None:
    one, two, other = (
        exported(tmp_path / str(i), seed=seed)[2] for i, seed in enumerate((4, 4, 5))
    )

    model = "app/config/initial/model.safetensors"
    assert (one / model).read_bytes() == (two / model).read_bytes() != (other / model).read_bytes()


def test_the_command_writes_a_job_and_replaces_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [
        "export-flare",
        "--bundle",
        BUNDLE,
        "--overrides",
        str(SETTINGS),
        "--num-rounds",
        "3",
        "--no-custom-code",
    ]

    assert main([*words, "--strategy", "CGSV", "--out", str(tmp_path / "job"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"job": str(tmp_path / "job"), "allow": ENTRY}
    assert json.loads((tmp_path / "job" / "meta.json").read_text())["min_clients"] == 2
    job = {path: path.read_bytes() for path in (tmp_path / "job").rglob("*") if path.is_file()}
    assert main([*words, "--strategy", "FedAvg", "--out", str(tmp_path / "job")]) == 2
    assert (
        f"{tmp_path / 'job'} is there already and not an empty folder; name a new one"
        in capsys.readouterr().err
    )
    assert {
        path: path.read_bytes() for path in (tmp_path / "job").rglob("*") if path.is_file()
    } == job
    (tmp_path / "empty").mkdir()
    assert (
        main([*words, "--out", str(tmp_path / "empty")]) == 0
        and (tmp_path / "empty" / "meta.json").exists()
    )
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "image.nii.gz").touch()
    assert main([*words, "--out", str(tmp_path / "data")]) == 2
    assert [path.name for path in (tmp_path / "data").iterdir()] == ["image.nii.gz"]
    assert main([*words, "--strategy", "FedSee", "--out", str(tmp_path / "other")]) == 2
    assert "unknown strategy 'FedSee'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flag", "text", "says"),
    [
        (
            "--strategy",
            '{"_target_": "monai_fairfl.strategies.FedCE", "mode": sum}',
            "Expecting value",
        ),
        ("--strategy", '{"name": "FedCE"}', "without _target_"),
        ("--overrides", '{"size": [64}', "delimiter"),
        ("--overrides", "[64, 64]", "expected a mapping"),
    ],
)
def test_a_mistake_in_a_mapping_is_answered_with_what_was_given_and_an_example(
    flag: str, text: str, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as left:
        main(["export-flare", "--bundle", BUNDLE, flag, text, "--out", str(tmp_path / "job")])

    error = capsys.readouterr().err.splitlines()[-1]
    assert left.value.code == 2 and f"argument {flag}: got {text!r}" in error and says in error
    example = {
        "--strategy": '{"_target_": "monai_fairfl.strategies.ShapFed"',
        "--overrides": "{'size': [64, 64]}",
    }
    assert "expected" in error and example[flag] in error
    assert not (tmp_path / "job").exists()


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (
            ["--strategy", '{"_target_": "monai_fairfl.strategies.FedCE", "mode": "plus"}'],
            "cannot be made.*mode",
        ),
        (
            ["--strategy", '{"_target_": "monai_fairfl.strategies.CGSV", "gama": 1}'],
            "cannot be made.*gama",
        ),
        (["--strategy", '{"_target_": 3}'], "strategy 3 is no dotted path"),
        (
            ["--config", "configs/trian.json"],
            "trian.json does not exist: config is relative to the bundle.*/train.json",
        ),
        (["--initial", "/dev/null"], "/dev/null is no state_dict of torch.save .EOFError"),
        (["--name", "prostate run"], "name 'prostate run'"),
        (["--timeout", "-5"], "timeout is a number of seconds"),
    ],
)
def test_a_mistake_in_a_job_is_told_in_one_line_and_before_it_is_written(
    given: list[str], says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [
        "export-flare",
        "--bundle",
        BUNDLE,
        "--overrides",
        str(SETTINGS),
        "--out",
        str(tmp_path / "job"),
    ]
    assert main([*words, *given]) == 2
    assert re.search(says, capsys.readouterr().err) and not (tmp_path / "job").exists()


@pytest.mark.parametrize("name", ["buffer", "min_clients", "run_dir"])
def test_what_is_no_setting_of_a_federation_is_refused_where_the_job_is_made(name: str) -> None:
    with pytest.raises(ConfigError, match=f"federation sets '{name}'; what may stand there is"):
        FairFLRecipe(
            bundle=BUNDLE,
            strategy="FedAvg",
            min_clients=2,
            overrides=SETTINGS,
            federation={name: 3},
        )


def test_settings_of_sites_and_run_are_arguments_of_the_recipe(tmp_path: Path) -> None:
    server, _, job = exported(
        tmp_path, buffers="samples", threads=2, groups={"old": ["elm"]}, local_epochs=3
    )

    of_run = server["workflows"][0]["args"]["federation"]
    assert (of_run["buffers"], of_run["threads"]) == ("samples", 2)
    of_sites = json.loads((job / "app" / "config" / "fairfl_site.json").read_text())
    assert (of_sites["local_epochs"], of_sites["threads"]) == (3, 2)
    assert of_run["groups"] == of_sites["groups"] == {"old": ["elm"]}
    assert "buffers" not in of_sites and "local_epochs" not in of_run


@pytest.mark.parametrize(
    ("argument", "says"),
    [
        ({"bufers": "local"}, "no argument 'bufers'; did you mean 'buffers'"),
        ({"aggregator": 1}, "no argument 'aggregator'"),
        ({"rounds": 3}, "no argument 'rounds'"),
        ({"keep": 0}, "keep must be a whole number"),
        ({"clients_per_round": 1}, "clients_per_round must be a whole number of at least 2"),
    ],
)
def test_an_argument_that_is_none_or_out_of_range_is_refused_where_the_job_is_made(
    argument: dict[str, Any], says: str
) -> None:
    with pytest.raises(ConfigError, match=says):
        FairFLRecipe(bundle=BUNDLE, strategy="FedAvg", min_clients=2, **argument)


def test_a_strategy_is_given_by_name_or_by_configuration(tmp_path: Path) -> None:
    words = ["export-flare", "--bundle", BUNDLE, "--overrides", str(SETTINGS), "--out"]
    configuration = '{"_target_": "monai_fairfl.strategies.ShapFed", "personalised": true}'
    for arguments, name in ((["--strategy", configuration], "ShapFed-personalised"), ([], "FedCE")):
        assert main([*words, str(tmp_path / name), *arguments]) == 0
        assert json.loads((tmp_path / name / "meta.json").read_text())["name"] == f"{BUNDLE}-{name}"


def test_the_simulators_command_tells_the_servers_report_and_leaves_it_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    clients = InProcess({name: lambda: LeastSquares([1.0]) for name in ("elm", "oak")})
    Federation(FedAvg(), clients, 1, lambda: ({"w": vector([0.0])}, SPEC), run_dir=run).run()
    expected, page = as_text(write_report([run], run)), run / "report.html"
    monkeypatch.setattr(jobs, "simulate_job", lambda *arguments, **settings: run)
    words = [
        "simulate-flare",
        "--bundle",
        BUNDLE,
        "--sites-root",
        "hospitals",
        "--workspace",
        "flare",
    ]
    written = page.stat().st_mtime_ns

    assert main(words) == 0
    assert capsys.readouterr().out == f"{expected}\nReport: {page}\n"
    assert main([*words, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"run": str(run), "report": str(page)}
    assert page.stat().st_mtime_ns == written
    page.unlink()  # without plotly there is none
    assert main([*words, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"run": str(run), "report": None}


def test_homomorphic_encryption_is_refused_by_the_strategys_name() -> None:
    from nvflare.apis.filter import Filter

    # NVFlare's own cannot be imported without tenseal; the recipe goes by the module's name
    members = {
        "__module__": "nvflare.app_opt.he.model_encryptor",
        "process": lambda self, shareable, context: shareable,
    }
    encryptor = type("HEModelEncryptor", (Filter,), members)()
    recipe = FairFLRecipe(bundle=BUNDLE, strategy="CGSV", min_clients=2, overrides=SETTINGS)

    for add in (recipe.add_client_output_filter, recipe.add_client_input_filter):
        with pytest.raises(ConfigError, match="CGSV cannot work under HEModelEncryptor"):
            add(encryptor)


def test_too_few_clients_are_refused_before_anything_is_written() -> None:
    with pytest.raises(ConfigError, match="CGSV needs at least"):
        FairFLRecipe(bundle=BUNDLE, strategy="CGSV", min_clients=1, overrides=SETTINGS)


# ---- curves, early stopping, folders
# ----------------------------------------------------------------------------


def record(number: int, **scores: float) -> dict[str, Any]:
    measured = {
        site: {"global_score": {"mean": {"value": score, "stderr": None, "n": 1}}}
        for site, score in scores.items()
    }
    found = {"measurements": measured, "aggregation": {}, "contributions": {}}
    return {"kind": "round", "round": number, "clients": list(scores), **found}


def test_curves_are_told_by_site_and_in_the_mean_at_every_round() -> None:
    found = set(curve_points(record(4, elm=0.2, oak=0.6)))

    expected = {
        ("elm", "global_score", 0.2, 4),
        ("oak", "global_score", 0.6, 4),
        ("", "global_score/mean", 0.4, 4),
    }
    assert found == expected


def test_weights_by_layer_make_no_curve() -> None:
    assert not list(curve_points({**record(0), "aggregation": {"layer": {"elm": 0.5}}}))


@pytest.mark.parametrize(
    ("condition", "patience", "scores", "rounds"),
    [
        ("global_score >= 0.5", None, [0.1, 0.4, 0.5, 0.9], 3),
        ("global_score > 0.95", 2, [0.1, 0.4, 0.3, 0.2, 0.9], 4),
        ("global_score < 0.1", 2, [0.9, 0.5, 0.6, 0.7], 4),
        ("other > 0", None, [0.9, 0.9], None),
        (None, None, [0.9, 0.9], None),
    ],
)
def test_a_run_ends_when_it_is_good_enough_or_no_longer_gets_better(
    condition: str | None, patience: int | None, scores: list[float], rounds: int | None
) -> None:
    ended: list[int] = []
    stop = EarlyStop(condition, patience, lambda: ended.append(done))
    for done, score in enumerate(scores, 1):
        stop.observe(record(done - 1, elm=score, oak=score))

    assert (ended[0] if ended else None) == rounds


def test_a_run_does_not_end_because_the_weakest_hospital_was_away() -> None:
    ended: list[int] = []
    stop = EarlyStop("global_score >= 0.8", 2, lambda: ended.append(1))
    stop.observe({"kind": "start", "clients": ["elm", "oak"], "clients_per_round": None})
    stop.observe(record(0, elm=0.85, oak=0.4))
    for number in range(1, 4):
        stop.observe(record(number, elm=0.85))
    assert not ended
    stop.observe(record(4, elm=0.85, oak=0.8))
    assert ended


@pytest.mark.parametrize(
    ("condition", "patience"), [("score>0.5", None), ("score ~ 1", None), (None, 3)]
)
def test_a_condition_that_cannot_be_read_is_refused(
    condition: str | None, patience: int | None
) -> None:
    with pytest.raises(ConfigError, match="stop_cond"):
        EarlyStop(condition, patience, lambda: None)


def test_a_job_submitted_again_goes_on_where_a_run_did_not_end_and_else_begins_anew(
    tmp_path: Path,
) -> None:
    first = folder_of_run(tmp_path, "fedce")
    first.mkdir()
    Ledger(first / "ledger.jsonl").append({"kind": "start"})

    assert folder_of_run(tmp_path, "fedce") == first
    assert folder_of_run(tmp_path, "fedce", resume=False) == tmp_path / "fedce-2"
    Ledger(first / "ledger.jsonl").append({"kind": "end"})
    assert folder_of_run(tmp_path, "fedce") == tmp_path / "fedce-2"


def test_composed_strategies_keep_their_name(tmp_path: Path) -> None:
    assert (
        compose(FedAvg(), training={"prox_mu": 0.01}).name
        in FairFLRecipe(
            bundle=BUNDLE,
            strategy=compose(FedAvg(), training={"prox_mu": 0.01}),
            min_clients=2,
            overrides=SETTINGS,
        ).name
    )
