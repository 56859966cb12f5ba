# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""A used folder: nothing in it is replaced unasked, and a comparison that is resumed may grow."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np
import pytest
from helpers.linear_federation import bundle_federation, in_place_of_training

from monai_fairfl.data import check_cases, site_datalist
from monai_fairfl.errors import ConfigError, DataError, FederationError
from monai_fairfl.run_folder.ledger import Ledger
from monai_fairfl.run_folder.resuming import check_checkpoints, check_folder
from monai_fairfl.server.federation import History
from monai_fairfl.strategies import FedAvg, FedGA, Standalone, Strategy
from monai_fairfl.valuation import Retraining

ANOTHER = r"another run_dir \(--out for monai-fairfl train\)"
CHANGED = "cases are not as they were when .*run was begun"


@pytest.fixture(scope="module")
def sites(hospitals: Path) -> Iterator[Path]:
    """Hospitals whose clients train nothing."""
    with pytest.MonkeyPatch.context() as patch:
        in_place_of_training(patch)
        yield hospitals


def run(
    sites: Path, run_dir: Path, strategies: Sequence[Strategy], **settings: Any
) -> list[History]:
    settings = {"resume": False, **settings}
    return bundle_federation(sites, run_dir, strategies, **settings).run()


@pytest.fixture(scope="module")
def finished_comparison(sites: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A comparison of Standalone and FedAvg; read only."""
    run_dir = tmp_path_factory.mktemp("finished") / "compared"
    run(sites, run_dir, [Standalone(), FedAvg()])
    return run_dir


@pytest.fixture
def compared(finished_comparison: Path, tmp_path: Path) -> Path:
    """A copy of the comparison of Standalone and FedAvg."""
    return Path(shutil.copytree(finished_comparison, tmp_path / "compared"))


def content(folder: Path) -> dict[str, bytes]:
    """Every file of a folder, hidden ones too."""
    files = {}
    for path in folder.rglob("*"):
        if path.is_file():
            files[str(path.relative_to(folder))] = path.read_bytes()
    return files


def report_of(run_dir: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((run_dir / "report.json").read_text())
    return found


def ledgers(run_dir: Path, names: Sequence[str]) -> dict[str, bytes]:
    return {name: (run_dir / name / "ledger.jsonl").read_bytes() for name in names}


# --- a used folder is left as it is


@pytest.mark.parametrize("resume", [False, True])
def test_a_single_run_never_replaces_the_report_of_a_comparison(
    resume: bool, sites: Path, compared: Path
) -> None:
    used = content(compared)
    message = rf"compared already holds a comparison \(Standalone, FedAvg\).*{ANOTHER}, or add"
    with pytest.raises(FederationError, match=message):
        run(sites, compared, [FedGA()], resume=resume)
    assert content(compared) == used


@pytest.mark.slow
@pytest.mark.parametrize("resume", [False, True])
def test_a_comparison_never_replaces_the_report_of_a_single_run(
    resume: bool, sites: Path, tmp_path: Path
) -> None:
    run_dir = tmp_path / "single"
    run(sites, run_dir, [FedAvg()])
    used = content(run_dir)
    message = f"single already holds a run of one strategy.*{ANOTHER}$"
    with pytest.raises(FederationError, match=message):
        run(sites, run_dir, [Standalone(), FedAvg()], resume=resume)
    assert content(run_dir) == used


def test_a_comparison_of_other_strategies_is_refused_before_anything_is_written(
    sites: Path, compared: Path
) -> None:
    used = content(compared)
    message = rf"holds a comparison \(Standalone, FedAvg\): resume it .*{ANOTHER}$"
    with pytest.raises(FederationError, match=message):
        run(sites, compared, [FedAvg("uniform"), FedGA()])
    # Also where the first of them is new.
    with pytest.raises(FederationError, match="holds a comparison"):
        run(sites, compared, [FedGA(), FedAvg()])
    assert content(compared) == used


@pytest.mark.slow
def test_a_folder_that_holds_single_runs_below_may_hold_one_itself(
    sites: Path, tmp_path: Path
) -> None:
    """Such as ``runs`` and ``runs/later``: neither replaces anything of the other."""
    run(sites, tmp_path / "runs", [FedAvg()], rounds=1)
    run(sites, tmp_path / "runs" / "later", [FedAvg()], rounds=1)
    (history,) = run(sites, tmp_path / "runs", [FedAvg()], resume=True)
    assert len(history.rounds) == 2


@pytest.mark.slow
def test_a_damaged_configuration_is_named(sites: Path, tmp_path: Path) -> None:
    run(sites, tmp_path / "run", [FedAvg()], rounds=1)
    (tmp_path / "run" / "config.json").write_text('{"strategies": [')
    message = f"config.json is damaged .*restore it from a copy, or choose {ANOTHER}$"
    with pytest.raises(ConfigError, match=message):
        run(sites, tmp_path / "run", [FedAvg()], resume=True)


def test_a_run_without_its_checkpoints_needs_another_folder(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.jsonl")
    ledger.append({"kind": "start"})
    for number in range(2):
        ledger.append({"kind": "round", "round": number})
    with pytest.raises(FederationError, match=f"already holds a run: .* or choose {ANOTHER}$"):
        check_folder(tmp_path, ["FedAvg"], resume=False)
    with pytest.raises(FederationError, match=f"no checkpoint: .* choose {ANOTHER} or name$"):
        check_checkpoints([tmp_path])


@pytest.mark.slow
@pytest.mark.parametrize("left", [None, b"", bytes(300)])
def test_a_run_without_its_ledger_does_not_begin_again(
    sites: Path, tmp_path: Path, left: bytes | None
) -> None:
    """It is missing, or a crash of the machine left it empty or full of zeros."""
    folder = tmp_path / "run"
    run(sites, folder, [FedAvg()], rounds=1)
    ledger = folder / "ledger.jsonl"
    ledger.unlink()
    if left is not None:
        ledger.write_bytes(left)
    before = content(folder)
    message = f"checkpoint round-0000 and no record .* copy that to {ledger} .* choose {ANOTHER}"
    with pytest.raises(FederationError, match=message):
        run(sites, folder, [FedAvg()], resume=True)
    assert content(folder) == before


@pytest.mark.slow
@pytest.mark.parametrize(
    ("is_folder", "fix"),
    [
        (False, " is no data list .* Mend it, or delete it"),
        (True, ": this is a folder, .* remove it to have the data list made"),
    ],
)
def test_a_damaged_data_list_stops_the_run_before_its_site_misses_every_round(
    is_folder: bool, fix: str, sites: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    run(sites, folder, [FedAvg()], rounds=1)
    datalist = folder / "datalists" / "alder.json"
    # These clients train nothing, and so make none.
    datalist.parent.mkdir(exist_ok=True)
    if is_folder:
        datalist.mkdir()
    else:
        datalist.write_bytes(b"")
    before = (folder / "ledger.jsonl").read_bytes()
    with pytest.raises(DataError, match=f"{datalist}{fix}"):
        run(sites, folder, [FedAvg()], resume=True)
    assert (folder / "ledger.jsonl").read_bytes() == before


@pytest.mark.slow
def test_a_data_list_without_training_cases_is_refused_before_anything_is_trained(
    sites: Path, tmp_path: Path
) -> None:
    file = tmp_path / "by_hand.json"
    file.write_text(json.dumps({**site_datalist(sites / "alder"), "training": []}))
    federation = bundle_federation(sites, tmp_path / "run", [FedAvg()])
    federation.sites = {"alder": {"datalist_file": str(file)}}
    with pytest.raises(DataError, match=f"{file} lists no training case, so alder could train"):
        federation.run()
    assert not (tmp_path / "run").exists()


# --- a comparison grows


@pytest.mark.slow
def test_a_resumed_comparison_grows_and_loses_no_former_strategy(
    sites: Path, compared: Path
) -> None:
    former = report_of(compared)["strategies"]
    former_ledgers = ledgers(compared, former)

    histories = run(sites, compared, [FedGA(), FedAvg("uniform")], resume=True)
    assert [history.run_dir.name for history in histories] == ["FedGA", "FedAvg-uniform"]
    names = ["Standalone", "FedAvg", "FedGA", "FedAvg-uniform"]
    assert json.loads((compared / "config.json").read_text())["strategies"] == names

    grown = report_of(compared)["strategies"]
    assert list(grown) == names
    assert list(former) == ["Standalone", "FedAvg"]
    for name in former:
        assert grown[name]["ledger_head"] == former[name]["ledger_head"]
    assert ledgers(compared, former) == former_ledgers


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        pytest.param({"seed": 5}, FederationError, "seed = 0, now it is 5", id="seed"),
        pytest.param(
            {"buffers": "samples"},
            FederationError,
            "buffers = 'aggregation', now it is 'samples'",
            id="buffers",
        ),
        pytest.param(
            {"local_epochs": 5}, ConfigError, "local_epochs = 1, now it is 5", id="local_epochs"
        ),
    ],
)
def test_a_comparison_does_not_grow_by_runs_of_other_settings(
    change: dict[str, Any], error: type[Exception], message: str, sites: Path, compared: Path
) -> None:
    used = content(compared)
    with pytest.raises(error, match=message):
        run(sites, compared, [FedGA(), FedAvg("uniform")], resume=True, **change)
    assert content(compared) == used


def test_other_settings_of_a_run_are_named_with_the_options_that_set_them(
    sites: Path, compared: Path
) -> None:
    """A user of ``train`` types ``--quick`` and ``--out``."""
    file = compared / "config.json"
    config = json.loads(file.read_text())
    was_quick = {**config, "overrides": {"size": [64, 64]}}
    file.write_text(json.dumps(was_quick))
    message = rf"with overrides = {{'size': \[64, 64\]}}, now it is .* {ANOTHER}\. --quick of"
    with pytest.raises(ConfigError, match=message) as error:
        run(sites, compared, [FedGA(), FedAvg("uniform")], resume=True)
    assert "only moved" not in str(error.value)

    # Where the data is elsewhere, that is the likely cause.
    moved = {**config, "data": {site: f"/old/{site}" for site in config["data"]}}
    file.write_text(json.dumps(moved))
    message = f"data of alder = '/old/alder', now .* {ANOTHER}. Where the same data only moved"
    with pytest.raises(ConfigError, match=message) as error:
        run(sites, compared, [FedGA(), FedAvg("uniform")], resume=True)
    assert "--quick" not in str(error.value)


def test_a_comparison_does_not_grow_by_runs_that_are_scored_otherwise(
    sites: Path, compared: Path
) -> None:
    """The HD95 of one run would be in millimetres, and that of another in voxels."""
    config = json.loads((compared / "config.json").read_text())
    config["files"]["evaluate.json"] = "of another content"
    (compared / "config.json").write_text(json.dumps(config))
    with pytest.raises(ConfigError, match="files of evaluate.json = 'of another content', now"):
        run(sites, compared, [FedGA(), FedAvg("uniform")], resume=True)


@pytest.mark.parametrize("ending", ["json", "yaml"])
def test_an_overlay_counts_wherever_it_lies_and_however_it_is_written(
    ending: str, sites: Path, tmp_path: Path
) -> None:
    own = tmp_path / f"own.{ending}"
    own.write_text('{"learning_rate": 0.001}')
    config = {"config": ["configs/train.json", str(own)]}
    run(sites, tmp_path / "run", [FedAvg()], **config)
    own.write_text('{"learning_rate": 0.1}')
    with pytest.raises(ConfigError, match=f"files of .*own.{ending} = '[0-9a-f]+', now it is"):
        run(sites, tmp_path / "run", [FedAvg()], resume=True, **config)


def test_a_run_that_ended_without_checkpoints_is_not_begun_again_to_be_valued(
    sites: Path, tmp_path: Path
) -> None:
    run_dir = tmp_path / "FedAvg"
    run(sites, run_dir, [FedAvg()])
    ledger = (run_dir / "ledger.jsonl").read_bytes()
    # As a comparison over seeds or folds does with those that are done.
    shutil.rmtree(run_dir / "checkpoints")
    read = []
    with pytest.raises(FederationError, match="has ended and stores no checkpoint.*nor be valued"):
        run(sites, run_dir, [FedAvg()], resume=True, valuations=[Retraining()], check=read.append)
    assert not read and (run_dir / "ledger.jsonl").read_bytes() == ledger


# --- the data of a run that goes on


@pytest.fixture
def own_sites(sites: Path, tmp_path: Path) -> Path:
    """Hospitals whose files a test may change."""
    return Path(shutil.copytree(sites, tmp_path / "hospitals"))


def changed_label(root: Path, site: str) -> Path:
    """A label of a site, corrected in one voxel."""
    label = next((root / site).glob("Case00_*.nii.gz"))
    nifti = nib.load(label)
    voxels = np.asarray(nifti.dataobj).copy()
    voxels[0, 0, 0] = 1 - voxels[0, 0, 0]
    nib.save(nib.Nifti1Image(voxels, nifti.affine, nifti.header), label)
    return label


def moved_voxels(root: Path, site: str) -> None:
    """An image and its label whose header has other voxel sizes."""
    for file in (root / site).glob("Case00*.nii.gz"):
        nifti = nib.load(file)
        affine = nifti.affine @ np.diag([2, 1, 1, 1])
        nib.save(nib.Nifti1Image(np.asarray(nifti.dataobj), affine), file)


@pytest.mark.parametrize("change", [changed_label, moved_voxels])
def test_a_run_whose_images_or_labels_changed_is_not_resumed(
    change: Any, own_sites: Path, tmp_path: Path
) -> None:
    run(own_sites, tmp_path / "run", [FedAvg()], check=check_cases)
    before = content(tmp_path / "run")
    change(own_sites, "cedar")
    message = f"site 'cedar': 1 of 4 {CHANGED}"
    with pytest.raises(DataError, match=message) as error:
        run(own_sites, tmp_path / "run", [FedAvg()], rounds=3, resume=True, check=check_cases)
    assert "alder" not in str(error.value) and "choose another run_dir" in str(error.value)
    assert content(tmp_path / "run") == before


@pytest.mark.slow
def test_a_comparison_does_not_grow_after_a_label_was_corrected(
    own_sites: Path, tmp_path: Path
) -> None:
    run(own_sites, tmp_path / "run", [FedAvg(), Standalone()], check=check_cases)
    changed_label(own_sites, "rowan")
    with pytest.raises(DataError, match=f"site 'rowan': 1 of 4 {CHANGED}"):
        run(own_sites, tmp_path / "run", [FedAvg(), FedGA()], resume=True, check=check_cases)


@pytest.mark.slow
def test_further_cases_and_other_names_of_files_are_no_other_data(
    own_sites: Path, tmp_path: Path
) -> None:
    run(own_sites, tmp_path / "run", [FedAvg()], check=check_cases)
    for name in ("Case00.nii.gz", "Case00_segmentation.nii.gz"):
        file = own_sites / "cedar" / name
        assert file.exists()
        shutil.copy(next((own_sites / "elm").glob(name)), file.with_name(f"New{name}"))
        file.rename(file.with_name(f"Renamed{name}"))
    run(own_sites, tmp_path / "run", [FedAvg()], rounds=3, resume=True, check=check_cases)
    # A case that came later may not change from now on, either.
    digests = (tmp_path / "run" / "datalists" / "cedar.digests").read_text().split()
    assert len(digests) == 5
