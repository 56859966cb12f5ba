# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Faults 10, 30 and 33 by the real processes of NVIDIA FLARE end as they do in one process.

One provisioned system of seven clients, with mTLS on loopback, runs one job of FedCE. Three of the
clients attack, each by a filter in its own kit (:mod:`helpers.hostile_filter`): one reports 1e9 for
everything that FedCE asks, one sends NaN, and one is a hospital's second identity, which sends the
first one's update again. The job knows nothing of it. ``pytest -s`` prints how each of them ended.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from functools import partial, partialmethod
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("nvflare")

from helpers import hostile_filter  # noqa: E402
from helpers.federations import BUNDLE, SETTINGS, assert_same_run  # noqa: E402
from helpers.flare_poc import Poc, poc  # noqa: E402
from helpers.hostile_filter import Filtered, Hostile  # noqa: E402
from nvflare.recipe.prod_env import ProdEnv  # noqa: E402

from monai_fairfl.bundle.federation import BundleFederation  # noqa: E402
from monai_fairfl.bundle.runs import BundleRuns  # noqa: E402
from monai_fairfl.bundle.shipped import find_bundle  # noqa: E402
from monai_fairfl.client.algo import FairMonaiAlgo  # noqa: E402
from monai_fairfl.run_folder.ledger import heads_of, read_ledger  # noqa: E402
from monai_fairfl.strategies import FedCE  # noqa: E402
from monai_fairfl.transports.flare.job.fairfl_recipe import FairFLRecipe  # noqa: E402
from monai_fairfl.transports.in_process import InProcess  # noqa: E402

pytestmark = [pytest.mark.slow, pytest.mark.nvflare, pytest.mark.poc]

ROUNDS = 2
HOSPITAL, TWIN = "cedar", "cedar-again"
"""Two identities of one hospital: the second one sends what the first one trained."""

REPORTER, BROKEN = "hazel", "rowan"
ATTACKS = {HOSPITAL: "share", TWIN: "copy", REPORTER: "report", BROKEN: "nan"}
SITES = sorted(["alder", "birch", "elm", *ATTACKS])

RUN = "attacked"
OVERRIDES = {**SETTINGS, "channels": [8, 16, 16]}
"""A tiny network, and still more than the 1000 parameters below which no direction is judged."""


@pytest.fixture(scope="module")
def images(hospitals: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The hospitals' images; those of one hospital are found under both of its names."""
    folder = tmp_path_factory.mktemp("images")
    for site in SITES:
        source = HOSPITAL if site == TWIN else site
        shutil.copytree(hospitals / source, folder / site)
    return folder


def attacked_transport(
    runs: BundleRuns, shared: Path, folder: Path, names: Sequence[str], pool: object
) -> InProcess:
    """Clients in one process, some of whom attack.

    Args:
        runs: of the federation.
        shared: folder of the hospital with two identities.
        folder: of the run.
        names: of the sites.
        pool: none.
    """
    makers: dict[str, Any] = {}
    for name in names:
        makers[name] = runs.sites.client_maker(name, folder, "cpu")
        if name in ATTACKS:
            makers[name] = partial(attacker, shared, name, makers[name])
    return InProcess(makers)


def attacker(shared: Path, name: str, make: Callable[[], FairMonaiAlgo]) -> Filtered:
    return Filtered(make(), Hostile(ATTACKS[name], str(shared)))


@pytest.fixture(scope="module")
def one_process_run(images: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run of the attacked federation in one process."""
    return run_in_one_process(images, tmp_path_factory.mktemp("one_process"), SITES)


@pytest.fixture(scope="module")
def one_identity_run(images: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same without the second identity."""
    sites = [site for site in SITES if site != TWIN]
    return run_in_one_process(images, tmp_path_factory.mktemp("one_identity"), sites)


def run_in_one_process(images: Path, folder: Path, sites: Sequence[str]) -> Path:
    run = folder / RUN
    federation = BundleFederation(
        bundle_root=str(find_bundle(BUNDLE)),
        sites_root=str(images),
        site_names=sites,
        strategies=FedCE(),
        rounds=ROUNDS,
        run_dir=str(run),
        overrides=OVERRIDES,
        min_clients=len(sites) - 1,
        report=False,
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(BundleRuns, "transport", partialmethod(attacked_transport, folder))
        federation.run()
    return run


@pytest.fixture(scope="module")
def real_run(images: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The run of the same federation by a server and seven clients, each with its processes."""
    folder = tmp_path_factory.mktemp("poc")
    job = FairFLRecipe(
        bundle=BUNDLE,
        strategy=FedCE(),
        num_rounds=ROUNDS,
        sites_root=images,
        overrides=OVERRIDES,
        min_clients=len(SITES) - 1,
        name=RUN,
    )
    with poc(folder, SITES) as system:
        for site, attack in ATTACKS.items():
            install_filter(system, site, attack, folder)
        system.start()
        system.wait_until_ready()
        started = job.execute(ProdEnv(startup_kit_location=system.admin, login_timeout=30))
        started.get_result(timeout=400)
        assert started.get_status() == "FINISHED:COMPLETED", system.log("server")[-3000:]
        yield system.kits / "server" / "fairfl" / RUN


def install_filter(system: Poc, site: str, attack: str, shared: Path) -> None:
    """What the administrator of a hostile site does: its own code, and a policy that names it."""
    local = system.kits / site / "local"
    code = Path(hostile_filter.__file__)
    (local / "custom").mkdir()
    shutil.copy(code, local / "custom" / code.name)
    filter_of_site = {
        "path": f"{code.stem}.{Hostile.__name__}",
        "args": {"attack": attack, "folder": str(shared)},
    }
    policy = {
        "scopes": [{"name": "own", "task_result_filters": [filter_of_site]}],
        "default_scope": "own",
    }
    (local / "privacy.json").write_text(json.dumps(policy))


def rounds_of(run: Path) -> list[dict[str, Any]]:
    return [record for record in read_ledger(run / "ledger.jsonl") if record["kind"] == "round"]


def test_real_processes_end_as_one_process_does(one_process_run: Path, real_run: Path) -> None:
    """The same verdicts, weights, drops and models, to the last bit."""
    print_ends({"one process": one_process_run, "real processes": real_run})
    assert len(rounds_of(real_run)) == ROUNDS
    assert_same_run(one_process_run, real_run)


def test_a_report_out_of_its_range_is_dropped_and_the_mean_of_the_others_counts(
    real_run: Path,
) -> None:
    first, second = rounds_of(real_run)
    assert set(first["dropped"]) == set(second["dropped"]) == {REPORTER}
    reason = second["dropped"][REPORTER]["leave_one_out_error"]
    assert reason.startswith("1e+09, outside of 0 to 1 (1 - Dice)")
    assert "leave_one_out_error absent" in second["notes"][REPORTER]
    end = read_ledger(real_run / "ledger.jsonl")[-1]
    assert set(end["dropped"]) == {REPORTER}


def test_two_identities_with_one_update_share_the_weight_of_one(
    real_run: Path, one_identity_run: Path
) -> None:
    for record, alone in zip(rounds_of(real_run), rounds_of(one_identity_run), strict=True):
        for site in (HOSPITAL, TWIN):
            [verdict] = record["verdicts"][site]
            assert (verdict["guard"], verdict["group"]) == ("Copies", [HOSPITAL, TWIN])
        weights = record["aggregation"]
        both = weights[HOSPITAL] + weights[TWIN]
        assert both == pytest.approx(alone["aggregation"][HOSPITAL], rel=0.01)


def test_an_update_with_nan_is_quarantined_in_every_round(real_run: Path) -> None:
    for record in rounds_of(real_run):
        assert record["missing"][BROKEN].startswith("quarantined: ")
        assert BROKEN not in record["aggregation"]


def test_nobody_else_has_a_verdict(real_run: Path) -> None:
    for record in rounds_of(real_run):
        assert set(record["verdicts"]) == {HOSPITAL, TWIN, BROKEN}
        assert set(record["missing"]) == {BROKEN}


def print_ends(runs: dict[str, Path]) -> None:
    """How every attack ended, round for round."""
    for engine, run in runs.items():
        print(f"\n{engine}: head of the ledger {heads_of(run / 'ledger.jsonl')[-1]}")
        for record in rounds_of(run):
            print(f"\n{engine}, round {record['round']}, model {record['model'][:16]}")
            for site in SITES:
                weight = record["aggregation"].get(site, 0.0)
                attack = ATTACKS.get(site, "honest")
                print(f"  {site:<12} {attack:<7} weight {weight:.4f}  {end_of(record, site)}")


def end_of(record: dict[str, Any], site: str) -> str:
    """What the ledger has of a site's attack in one round."""
    found = []
    if site in record["guards"]:
        found.append(record["guards"][site])
    for name, reason in record["dropped"].get(site, {}).items():
        found.append(f"dropped {name}: {reason}")
    return "; ".join(found)
