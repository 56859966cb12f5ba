# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The federation as a bundle config: the real command on real NIfTI files, kill and resume, and
what bad input says.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np
import pytest
import torch
from helpers import warm_python
from helpers.bundle_runs import BUNDLE, OVERRIDES, command, federation, infer, run
from helpers.checkout import CHECKOUT
from helpers.driving import SPEC, vector
from helpers.linear_federation import START, LinearClient

from monai_fairfl.bundle import runs as bundle_runs
from monai_fairfl.bundle.configuration import train_config
from monai_fairfl.bundle.federation import BundleFederation
from monai_fairfl.bundle.initial import initial_model
from monai_fairfl.bundle.preflight import check_groups, check_strategies, site_names
from monai_fairfl.bundle.runs import BundleRuns
from monai_fairfl.bundle.shipped import copy_bundle
from monai_fairfl.errors import ConfigError, DataError, FederationError
from monai_fairfl.model_files.recipe import read_recipe
from monai_fairfl.protocol.messages import Reply, Request
from monai_fairfl.run_folder.ledger import read_ledger
from monai_fairfl.server.federation import History
from monai_fairfl.strategies import CGSV, FedAvg, FedCE, FedCI, Standalone
from monai_fairfl.transports.in_process import InProcess
from monai_fairfl.utils.devices import has_bfloat16
from monai_fairfl.utils.files import locked
from monai_fairfl.utils.saved_files import read_state_dict
from monai_fairfl.valuation import Retraining


@pytest.fixture(scope="module")
def three(hospitals: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("three")
    for site in ("alder", "cedar", "rowan"):
        shutil.copytree(hospitals / site, root / site)
    return root


@pytest.mark.long
@pytest.mark.slow
def test_the_readmes_command_trains_fedce_and_leaves_a_model_that_infers(
    three: Path, tmp_path: Path
) -> None:
    done = run(
        command(
            three,
            tmp_path / "run",
            "--strategy#_target_",
            "monai_fairfl.strategies.FedCE",
            "--rounds",
            "2",
        ),
        tmp_path,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert "FedCE round 2/2" in done.stdout and "left" in done.stdout
    records = read_ledger(tmp_path / "run" / "ledger.jsonl")
    assert [r["kind"] for r in records] == ["start", "round", "round", "end"]
    assert set(records[2]["measurements"]["alder"]) == {"global_score", "leave_one_out_error"}
    assert set(records[3]["scores"]["rowan"]["own"]) == {"score", "test_score", "test_hd95"}

    volume = next((three / "alder").glob("Case??.nii.gz"))
    (tmp_path / "in").mkdir()
    shutil.copy(volume, tmp_path / "in")
    inferred = infer(tmp_path / "run", tmp_path / "in", tmp_path / "out")
    assert inferred.returncode == 0, inferred.stderr[-2000:]
    (mask,) = (tmp_path / "out").rglob("*.nii.gz")
    image, result = nib.load(volume), nib.load(mask)
    assert result.shape == image.shape and np.allclose(result.affine, image.affine, atol=1e-4)
    assert result.get_data_dtype() == np.uint8 and set(np.unique(result.get_fdata())) <= {0, 1}


@pytest.mark.long
@pytest.mark.slow
def test_kill_at_a_random_moment_and_resume_gives_the_bits_of_an_uninterrupted_run(
    three: Path, tmp_path: Path
) -> None:
    arguments = ["--strategy#_target_", "monai_fairfl.strategies.FedCE", "--rounds", "4"]
    federation(three, tmp_path / "whole" / "run", FedCE(), rounds=4).run()
    generator = random.Random(time.time())
    for attempt in range(3):
        resume = ["--resume", "True"] if attempt else []
        process = warm_python.start(
            command(three, tmp_path / "killed" / "run", *arguments, *resume), tmp_path
        )
        ledger = tmp_path / "killed" / "run" / "ledger.jsonl"
        begun = ledger.stat().st_size if ledger.exists() else 0
        deadline = time.time() + 120
        while process.is_alive() and time.time() < deadline:
            if ledger.exists() and ledger.stat().st_size > begun:
                time.sleep(generator.uniform(0, 1.5))
                process.kill()
                break
            time.sleep(0.01)
        process.join(timeout=60)
        assert process.exitcode is not None
    federation(three, tmp_path / "killed" / "run", FedCE(), rounds=4, resume=True).run()
    assert (tmp_path / "killed/run/ledger.jsonl").read_bytes() == (
        tmp_path / "whole/run/ledger.jsonl"
    ).read_bytes()
    whole, killed = (
        read_state_dict(tmp_path / name / "run/models/global.pt") for name in ("whole", "killed")
    )
    assert all(torch.equal(whole[k], killed[k]) for k in whole)


@pytest.mark.slow
def test_a_run_goes_on_in_a_renamed_copy_of_its_folder_to_the_same_bits(
    three: Path, tmp_path: Path
) -> None:
    federation(three, tmp_path / "run", FedCE(), rounds=3).run()
    shutil.copytree(tmp_path / "run", tmp_path / "copy")
    # As if it had been copied before the last round.
    shutil.rmtree(tmp_path / "copy" / "checkpoints" / "round-0002")
    federation(three, tmp_path / "copy", FedCE(), rounds=3, resume=True).run()
    for file in ("ledger.jsonl", "models/global.pt"):
        assert (tmp_path / "copy" / file).read_bytes() == (tmp_path / "run" / file).read_bytes()


@pytest.mark.long
@pytest.mark.slow
def test_ctrl_c_ends_after_the_round_and_says_how_to_go_on(three: Path, tmp_path: Path) -> None:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(CHECKOUT)}
    process = subprocess.Popen(
        [sys.executable, *command(three, tmp_path / "run", "--rounds", "500")],
        env=environment,
        cwd=tmp_path,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    deadline = time.time() + 120
    while not list((tmp_path / "run").glob("checkpoints/round-*")) and time.time() < deadline:
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 0 and "the same command with --resume True goes on" in output
    records = read_ledger(tmp_path / "run" / "ledger.jsonl")
    assert records[-1]["kind"] == "round"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"overrides": {"learning_rate": 0.1}}, "overrides = .*0.003.* now it is .*0.1"),
        ({"local_epochs": 5}, "local_epochs = 1, now it is 5"),
        ({"sites": {"rowan": {"learning_rate": 0.1}}}, "sites of rowan"),
        ({"sites_root": "moved"}, "data of .* = .*correct their folder in .*config.json"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_a_run_is_not_resumed_with_what_trains_otherwise(
    change: dict[str, Any], words: str, three: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Clients whose updates are known take the place of training; everything else is the command's
    own.
    """
    clients = dict(
        zip(sorted(site.name for site in three.iterdir() if site.is_dir()), "ABC", strict=True)
    )
    monkeypatch.setattr(
        BundleRuns,
        "transport",
        lambda self, folder, names, pool: InProcess(
            {n: partial(LinearClient, clients[n], []) for n in names}
        ),
    )
    monkeypatch.setattr(bundle_runs, "initial_model", lambda *_: ({"w": vector(START)}, SPEC))
    shutil.copytree(three, tmp_path / "moved")

    def run(rounds: int, resume: bool, **changed: Any) -> History:
        given = {
            "sites_root": str(three),
            "overrides": {"learning_rate": 0.003},
            "local_epochs": 1,
            **changed,
        }
        if given["sites_root"] == "moved":
            given["sites_root"] = str(tmp_path / "moved")
        strategy, folder = FedAvg(), str(tmp_path / "run")
        federation = BundleFederation(
            str(BUNDLE),
            strategies=strategy,
            rounds=rounds,
            run_dir=folder,
            resume=resume,
            report=False,
            **given,
        )
        return federation.run()[0]

    run(2, resume=False)
    config, ledger = (tmp_path / "run" / name for name in ("config.json", "ledger.jsonl"))
    before = config.read_bytes(), ledger.read_bytes()
    with pytest.raises(ConfigError, match=words):
        run(4, resume=True, **change)
    with pytest.raises(
        FederationError, match="already holds a run: resume it"
    ):  # and is resumed as it was begun
        run(4, resume=False, **change)
    with pytest.raises(FederationError, match="seed"):
        run(4, resume=True, seed=5)
    with locked(tmp_path / "run"), pytest.raises(FederationError, match="in use by another run"):
        run(4, resume=True)
    assert (config.read_bytes(), ledger.read_bytes()) == before
    assert len(run(4, resume=True).rounds) == 4


def test_ctrl_c_in_the_last_round_of_a_strategy_does_not_begin_the_next(
    three: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Interrupted(LinearClient):
        def answer(self, request: Request) -> Reply:
            if not self.asked:
                signal.raise_signal(signal.SIGINT)
            return super().answer(request)

    asked: list[Request] = []
    monkeypatch.setattr(
        BundleRuns,
        "transport",
        lambda self, folder, names, pool: InProcess(
            {n: partial(Interrupted, c, asked) for n, c in zip(names, "ABC")}
        ),
    )
    monkeypatch.setattr(bundle_runs, "initial_model", lambda *_: ({"w": vector(START)}, SPEC))
    given = federation(three, tmp_path / "run", [Standalone(), FedAvg()], rounds=1)
    assert [history.run_dir.name for history in given.run()] == ["Standalone"]
    given.resume = True
    assert [history.finished for history in given.run()] == [True, True]


@pytest.mark.slow
def test_several_strategies_run_over_the_same_sites_splits_and_first_model(
    three: Path, tmp_path: Path
) -> None:
    histories = federation(three, tmp_path / "run", [Standalone(), FedAvg(), FedCE("sum")]).run()
    assert [h.run_dir.name for h in histories] == ["Standalone", "FedAvg", "FedCE-sum"]
    openings = [h.records[0] for h in histories]
    assert len({o["model"] for o in openings}) == 1 and len({o["seed"] for o in openings}) == 1
    first = [h.rounds[0]["measurements"] for h in histories]
    assert first[0] == first[1] == first[2]
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert (
        config["strategies"] == ["Standalone", "FedAvg", "FedCE-sum"]
        and "train.json" in config["files"]
    )


@pytest.mark.long
@pytest.mark.slow
def test_a_strategy_outside_the_package_works_by_its_target_alone(
    three: Path, tmp_path: Path
) -> None:
    (tmp_path / "my_methods.py").write_text(
        "from monai_fairfl.protocol.messages import Train\n"
        "from monai_fairfl.strategies import Strategy\n"
        "class FirstOnly(Strategy):\n"
        "    def round(self, clients):\n"
        "        local = yield [Train(c, self.start_of(c)) for c in clients]\n"
        "        weights = {c: float(c == local.clients[0]) for c in local.clients}\n"
        "        return self.finish(local, weights, weights)\n"
    )
    done = run(
        command(
            three, tmp_path / "run", "--strategy#_target_", "my_methods.FirstOnly", "--rounds", "1"
        ),
        tmp_path,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert read_ledger(tmp_path / "run/ledger.jsonl")[1]["aggregation"] == {
        "alder": 1.0,
        "cedar": 0.0,
        "rowan": 0.0,
    }


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--ronds", "5"], "unknown key 'ronds' for a federation; did you mean 'rounds'?"),
        (
            ["--strategy#_target_", "monai_fairfl.strategies.FedCa"],
            "unknown strategy 'monai_fairfl.strategies.FedCa'",
        ),
        (["--strategy#_target_", "FedCE"], "did you mean 'monai_fairfl.strategies.FedCE'?"),
        (["--strategy#_target_", "my_methds.Fair"], "there is no module 'my_methds'"),
        (
            ["--guards", "[{'_target_': 'monai_fairfl.guards.ToLong'}]"],
            "unknown guard 'monai_fairfl.guards.ToLong'",
        ),
        (
            ["--guards", "[{'_target_': 'TooLong'}]"],
            "did you mean 'monai_fairfl.guards.TooLong'?",
        ),
        (["--guards", "TooLong"], "guards must be a list, or null for the default ones"),
        (["--rounds", "two"], "rounds must be a whole number of at least 1, got 'two'"),
    ],
)
def test_a_mistake_on_the_command_line_ends_with_one_clear_line(
    three: Path, tmp_path: Path, arguments: list[str], says: str
) -> None:
    done = run(command(three, tmp_path / "run", *arguments), tmp_path)
    assert done.returncode == 2 and says in done.stderr.splitlines()[-1]
    assert (done.stdout + done.stderr).count(says) == 1
    assert "Traceback" not in done.stderr and not list((tmp_path / "run").glob("checkpoints/*"))


def broken(three: Path, folder: Path, what: str) -> Path:
    root = folder / "broken"
    shutil.copytree(three, root)
    case = sorted((root / "cedar").glob("*_segmentation.nii.gz"))[1]
    if what == "missing label":
        case.unlink()
    elif what == "unreadable image":
        image = case.with_name(case.name.replace("_segmentation", ""))
        image.write_bytes(image.read_bytes()[:100])
    elif what == "other shape":
        label = nib.load(case)
        nib.save(nib.Nifti1Image(np.asarray(label.dataobj)[:-1], label.affine), case)
    elif what == "empty site":
        shutil.rmtree(root / "cedar")
        (root / "cedar").mkdir()
    return root


@pytest.mark.parametrize(
    ("what", "names"),
    [
        ("missing label", "Case01"),
        ("unreadable image", "Case01"),
        ("other shape", "Case01_segmentation"),
        ("empty site", "cedar"),
    ],
)
def test_bad_data_is_named_before_anything_is_trained(
    three: Path, tmp_path: Path, what: str, names: str
) -> None:
    from monai_fairfl.data import check_cases

    root = broken(three, tmp_path, what)
    with pytest.raises(DataError, match=f"(?s)site 'cedar'.*{names}"):
        federation(root, tmp_path / "run", FedAvg(), check=check_cases).run()
    assert not (tmp_path / "run").exists()


def test_bad_sites_are_refused_by_name(three: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="sites_root .*nothing does not exist"):
        site_names(tmp_path / "nothing", None, {})
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="sites_root .*file is a file"):
        site_names(tmp_path / "file", None, {})
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigError, match="holds no site"):
        site_names(tmp_path / "empty", None, {})
    with pytest.raises(ConfigError, match="'ceder' has no folder.*did you mean 'cedar'"):
        site_names(three, None, {"ceder": {"learning_rate": 0.1}})
    with pytest.raises(ConfigError, match="'elm' has no folder"):
        site_names(three, ["elm"], {})
    with pytest.raises(ConfigError, match="override 'learning_rte' names nothing"):
        federation(three, tmp_path / "run", FedAvg(), sites={"cedar": {"learning_rte": 0.1}}).run()
    with pytest.raises(ConfigError, match="site_names names no site"):
        site_names(three, [], {})
    with pytest.raises(ConfigError, match="site_names names 'cedar' twice"):
        site_names(three, ["cedar", "rowan", "cedar"], {})
    with pytest.raises(ConfigError, match="names in quotes, got 3"):
        site_names(three, [3], {})  # type: ignore[list-item]
    assert site_names(three, ["rowan", "cedar"], {}) == ["cedar", "rowan"]
    assert site_names(three, "cedar", {}) == ["cedar"]
    assert site_names(three, None, {"far": {"dataset_dir": "/far"}}) == [
        "alder",
        "cedar",
        "far",
        "rowan",
    ]


def test_strategies_are_checked_against_sites_and_evaluator() -> None:
    train = train_config(BUNDLE, {})
    with pytest.raises(ConfigError, match=r"FedCE needs at least 2 sites, found 1 \['HK'\]"):
        check_strategies([FedCE()], ["HK"], train)
    with pytest.raises(ConfigError, match="different ones"):
        check_strategies([FedAvg(), FedAvg()], ["A", "B"], train)
    misspelt = FedCE()
    misspelt.requires = frozenset({"leave_one_out_eror"})  # type: ignore[misc]
    with pytest.raises(ConfigError, match="no client measures.*did you mean 'leave_one_out_error'"):
        check_strategies([misspelt], ["A", "B"], train)
    del train.config["validate"]["evaluator"]
    with pytest.raises(ConfigError, match="leave_one_out_error.*no validate#evaluator"):
        check_strategies([FedCE()], ["A", "B"], train)
    with pytest.raises(ConfigError, match=r"CGSV-contribution_index needs \['score'\]"):
        check_strategies([CGSV(reward="contribution_index")], ["A", "B"], train)


@pytest.mark.parametrize(
    "given",
    [
        {"strategies": [FedAvg(), CGSV()]},
        {"strategies": FedAvg(), "valuations": Retraining(strategy=CGSV())},
    ],
    ids=["second strategy", "strategy of a valuation"],
)
def test_a_strategy_that_comes_later_is_checked_before_the_first_one_trains(
    given: dict[str, Any], three: Path, tmp_path: Path
) -> None:
    run_dir = tmp_path / "run"
    with pytest.raises(ConfigError, match="CGSV compares the sites of a round"):
        federation(three, run_dir, clients_per_round=1, min_clients=1, **given).run()
    assert not run_dir.exists()


def test_the_strategy_of_a_valuation_is_checked_as_one_that_trains_all_sites(
    three: Path, tmp_path: Path
) -> None:
    strategy = FedCI()
    strategy.max_clients = 2  # type: ignore[misc]
    valuation = Retraining(strategy=strategy)
    with pytest.raises(
        ConfigError, match="valuation retraining-FedCI.* trains coalitions: FedCI can take at most"
    ):
        federation(three, tmp_path / "run", FedAvg(), valuations=valuation).run()


@pytest.mark.parametrize("setting", ["evaluate", "final"])
def test_a_measurement_that_no_client_knows_is_refused_before_the_first_round(
    setting: str, three: Path, tmp_path: Path
) -> None:
    misspelt = {setting: ["global_scor"]}
    with pytest.raises(ConfigError, match=f"{setting} requires .*did you mean 'global_score'"):
        federation(three, tmp_path / "run", FedAvg(), **misspelt).run()
    assert not (tmp_path / "run").exists()


def test_groups_are_of_sites_that_take_part_and_do_not_overlap() -> None:
    assert check_groups(None, ["elm"]) == {}
    with pytest.raises(
        ConfigError, match="group 'corrupted' names 'oak', which does not take part"
    ):
        check_groups({"corrupted": ["oak"]}, ["elm"])
    with pytest.raises(ConfigError, match="'elm' is in the groups 'a' and 'b'"):
        check_groups({"a": ["elm"], "b": ["elm"]}, ["elm"])
    # A text would be a site for each of its letters.
    with pytest.raises(ConfigError, match="groups: 'a' must be a list of sites, got 'elm'"):
        check_groups({"a": "elm"}, ["e", "l", "m"])
    with pytest.raises(ConfigError, match="groups: 'a' must be a list of sites, got None"):
        check_groups({"a": None}, ["elm"])  # type: ignore[dict-item]
    # It would count twice in the group's mean.
    with pytest.raises(ConfigError, match="'elm' is in the groups 'a' and 'a'; name it once"):
        check_groups({"a": ["elm", "elm"]}, ["elm"])
    with pytest.raises(ConfigError, match="groups must be a mapping, got 'elm'"):
        check_groups("elm", ["elm"])  # type: ignore[arg-type]


def test_an_override_that_names_nothing_is_refused() -> None:
    with pytest.raises(
        ConfigError,
        match="override 'learning_rte' names nothing in configs/train.json; "
        "did you mean 'learning_rate'",
    ):
        train_config(BUNDLE, {"learning_rte": 0.1})
    changed = train_config(BUNDLE, {"network_def#norm_name": "instance"})
    assert changed["network_def"]["norm_name"] == "instance"
    with pytest.raises(
        ConfigError, match="override 'network_def' is a Linear, built here and not at the sites"
    ):
        train_config(BUNDLE, {"network_def": torch.nn.Linear(1, 1)})
    with pytest.raises(ConfigError, match="must be the folder of a MONAI bundle"):
        train_config(BUNDLE / "configs", {})


@pytest.mark.slow
def test_overrides_reach_every_site_and_the_first_model_and_additions_one_site(
    three: Path, tmp_path: Path
) -> None:
    overrides = {**OVERRIDES, "network_def#norm_name": "instance"}
    sites = {"cedar": {"slices_per_volume": 2}}
    (history,) = federation(
        three, tmp_path / "run", FedAvg(), overrides=overrides, sites=sites, rounds=1
    ).run()
    samples = history.rounds[0]["samples"]
    assert samples["cedar"] < samples["alder"] == samples["rowan"]
    model = read_state_dict(tmp_path / "run" / "models" / "global.pt")
    assert not any("running_mean" in name for name in model)


@pytest.mark.long
@pytest.mark.slow
def test_a_run_may_begin_from_a_file_that_fits_and_no_other(
    three: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    federation(three, tmp_path / "first", FedAvg(), rounds=1).run()
    model = tmp_path / "first" / "models" / "global.pt"
    (history,) = federation(
        three, tmp_path / "second", FedAvg(), rounds=1, initial=str(model)
    ).run()
    first = read_ledger(tmp_path / "first" / "ledger.jsonl")
    assert history.records[0]["model"] == first[1]["model"]
    assert "was trained with" not in caplog.text
    resized = {**OVERRIDES, "field_of_view": 0.9}
    federation(
        three, tmp_path / "resized", FedAvg(), rounds=1, overrides=resized, initial=str(model)
    ).run()
    assert (
        "global.pt was trained with field_of_view 0.7, and this federation trains with 0.9"
        in caplog.text
    )
    other = {**OVERRIDES, "channels": [4, 8, 16]}
    with pytest.raises(Exception, match="initial model .* cannot be used"):
        federation(three, tmp_path / "third", FedAvg(), overrides=other, initial=str(model)).run()


@pytest.mark.slow
def test_an_overlay_acts_at_every_site_and_on_the_first_model(three: Path, tmp_path: Path) -> None:
    config = ["configs/train.json", "configs/two_channel.json"]
    (history,) = federation(three, tmp_path / "run", FedCE(), config=config).run()
    assert (
        history.finished
        and 0 <= history.rounds[1]["measurements"]["alder"]["global_score"]["mean"]["value"] <= 1
    )
    model = read_state_dict(tmp_path / "run" / "models" / "global.pt")
    assert any(
        tensor.ndim == 1 and len(tensor) == 2
        for name, tensor in model.items()
        if name.endswith("bias")
    )


@pytest.mark.parametrize(
    ("recipe", "layer", "shape"),
    [
        ("strong", "input_block.conv1.conv", (4, 3, 3, 3)),
        ("light", "model.0.conv", (4, 1, 3, 3)),
        ("volumes", "input_block.conv1.conv", (4, 1, 3, 3, 3)),
    ],
)
def test_a_recipes_network_may_take_other_channels_and_axes_than_the_bundles_own(
    recipe: str, layer: str, shape: tuple[int, ...]
) -> None:
    config = ["configs/train.json", f"configs/{recipe}.json"]
    weights, _ = initial_model(BUNDLE, {"channels": [4, 8, 8]}, config=config)
    assert weights[f"{layer}.weight"].shape == shape


@pytest.mark.slow
def test_slices_and_their_neighbours_are_trained_and_scored(three: Path, tmp_path: Path) -> None:
    config = ["configs/train.json", "configs/strong.json"]
    (history,) = federation(three, tmp_path / "run", FedCE(), rounds=1, config=config).run()
    assert history.finished
    for measured in history.rounds[0]["measurements"].values():
        assert 0 <= measured["global_score"]["mean"]["value"] <= 1
    precision = "bfloat16" if has_bfloat16("cpu") else "float32"
    sites = [path.name for path in three.iterdir()]
    assert history.rounds[0]["precision"] == dict.fromkeys(sorted(sites), precision)

    model = tmp_path / "run" / "models" / "global.pt"
    recipe = read_recipe(model)
    assert recipe is not None
    assert (recipe.values["neighbours"], recipe.values["channels"]) == (1, [4, 8, 8])


def test_a_network_that_cannot_be_built_and_a_file_that_is_no_configuration_are_told(
    tmp_path: Path,
) -> None:
    with pytest.raises(
        ConfigError,
        match=r"network_def of .* cannot be built with overrides .*'channels': 4.*because of",
    ):
        initial_model(BUNDLE, {"channels": 4})
    bundle = copy_bundle(BUNDLE.name, tmp_path / "bundle")
    file = bundle / "configs" / "train.json"
    file.write_text(file.read_text().replace("{", "{,", 1))
    with pytest.raises(ConfigError, match="train.json is not a configuration: .*line 1"):
        train_config(bundle, {})
    torch.save(torch.nn.Linear(2, 2), tmp_path / "whole.pt")  # a module, not its state_dict
    with pytest.raises(FederationError, match="initial model .*whole.pt cannot be used"):
        initial_model(BUNDLE, OVERRIDES, str(tmp_path / "whole.pt"))
