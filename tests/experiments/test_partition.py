# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from monai.bundle import ConfigParser
from scipy.stats import powerlaw

from experiments.simulated.content import structure_size
from experiments.simulated.partition import (
    partition,
    partitioned_datalist,
    pick,
    repeat_case,
)
from monai_fairfl.data import site_datalist
from monai_fairfl.errors import ConfigError, DataError

ROOT = Path(__file__).parents[2]
TRAIN = ROOT / "bundles" / "prostate_mri_segmentation" / "configs" / "train.json"
KINDS = ["uniform", "power_law", "class_imbalance"]
PARTS = ("training", "validation", "testing")


def pool_of(n: int) -> list[dict[str, str]]:
    return [{"image": f"SITE/Case{i:03d}.png", "label": f"{(i * 37) % 101}"} for i in range(n)]


def by_number(case: Any) -> float:
    return float(case["label"])


def images_of(lists: Iterable[list[dict[str, Any]]]) -> list[str]:
    """The images of all cases of several lists."""
    images = []
    for cases in lists:
        images.extend(case["image"] for case in cases)
    return images


def names_of(n: int) -> list[str]:
    return [f"client{i}" for i in range(1, n + 1)]


# partitions


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@given(
    n=st.integers(1, 80), clients=st.integers(1, 12), seed=st.integers(0, 99), shuffled=st.randoms()
)
def test_every_case_goes_to_one_client_and_every_client_gets_one(kind, n, clients, seed, shuffled):
    assume(n >= clients)
    pool, names = pool_of(n), names_of(clients)
    dealt = partition(pool, names, kind, seed, content=by_number)
    assert list(dealt) == names and all(dealt.values())
    assert sorted(images_of(dealt.values())) == images_of([pool])
    shuffled.shuffle(pool)
    assert partition(pool, names, kind, seed, content=by_number) == dealt


@pytest.mark.parametrize("kind", KINDS)
def test_the_seed_decides_who_gets_which(kind):
    deals = [partition(pool_of(40), names_of(4), kind, seed, content=by_number) for seed in (0, 1)]
    assert deals[0] != deals[1]
    assert [len(part) for part in deals[0].values()] == [len(part) for part in deals[1].values()]


@pytest.mark.parametrize("clients", [2, 5, 10, 20])
def test_power_law_sizes_are_those_of_the_authors_code(clients):
    shares = np.linspace(
        powerlaw.ppf(0.01, 1.65911332899), powerlaw.ppf(0.99, 1.65911332899), clients
    )
    shares /= shares.sum()
    sizes = [
        len(part) for part in partition(pool_of(6000), names_of(clients), "power_law").values()
    ]
    np.testing.assert_allclose(sizes, 6000 * shares, atol=1)
    assert sizes == sorted(sizes)
    if clients == 5:
        documented = [2.4, 11.2, 20.0, 28.8, 37.6]
        assert [round(100 * float(share), 1) for share in shares] == documented


@pytest.mark.parametrize("clients", [2, 5, 8])
def test_class_imbalance_gives_client_i_equal_numbers_of_the_i_lowest_classes(clients):
    each = 840  # divisible by 1 to 8
    pool = [{"image": f"{i:05d}", "label": str(i)} for i in range(each * clients)]
    dealt = partition(pool, names_of(clients), "class_imbalance", content=by_number)
    shares = []
    for j in range(1, clients + 1):
        shares.append(sum(1 / i for i in range(j, clients + 1)) / clients)
    assert sum(shares) == pytest.approx(1)
    # Class j has the labels from ends[j - 1] to ends[j].
    ends = np.round(np.cumsum(shares) * len(pool)).astype(int)
    for number, part in enumerate(dealt.values(), start=1):
        counts = np.bincount(
            np.searchsorted(ends, [int(case["label"]) for case in part], side="right")
        )
        assert counts.tolist() == [each // number] * number
    if clients == 5:
        documented = [45.7, 25.7, 15.7, 9.0, 4.0]
        assert [round(100 * share, 1) for share in shares] == documented


def test_partition_faults_are_explained():
    with pytest.raises(DataError, match="3 case.* for 4 clients"):
        partition(pool_of(3), names_of(4))
    with pytest.raises(ConfigError, match="kind='dirichlet'"):
        partition(pool_of(3), names_of(2), "dirichlet")
    for names in ([], ["a", "a"], "ab"):
        with pytest.raises(ConfigError, match="different names"):
            partition(pool_of(3), names)


# data lists


@pytest.fixture
def pooled(hospitals: Path) -> list[str]:
    return [str(hospitals / name) for name in ("alder", "birch", "elm")]


def sizes_of(cases: list[dict[str, Any]]) -> list[float]:
    return [structure_size(case) for case in cases]


@pytest.mark.parametrize("kind", KINDS)
def test_clients_share_the_pool_and_are_tested_alike(pooled, kind):
    names = names_of(3)
    lists = [partitioned_datalist(pooled, name, names, kind, seed=2) for name in names]
    sites = [site_datalist(folder, seed=2) for folder in pooled]
    for part in ("training", "validation"):
        dealt = images_of(each[part] for each in lists)
        pool = images_of(site[part] for site in sites)
        assert sorted(dealt) == sorted(pool)
    tested = []
    for site in sites:
        tested.extend(site["testing"])
    for each in lists:
        assert each["testing"] == tested
        assert set(each) == set(PARTS)
        assert Path(each["training"][0]["label"]).is_absolute()
    if kind == "class_imbalance":
        largest = [max(sizes_of(each["training"])) for each in lists]
        everything = []
        for site in sites:
            everything.extend(sizes_of(site["training"]))
        assert largest[0] < largest[2] == max(everything)
        other = partitioned_datalist(
            pooled, names[0], names, kind, 2, content=lambda case: -structure_size(case)
        )
        smallest = min(sizes_of(other["training"]))
        # Of six cases the four largest are the first class.
        assert smallest >= sorted(everything)[2]


def test_a_config_alone_makes_a_client_of_a_pool_and_a_free_rider(pooled, tmp_path):
    overlay = {
        "site": "",
        "honest": {
            "_target_": "experiments.simulated.partition.partitioned_datalist",
            "dataset_dirs": pooled,
            "client": "@site",
            "clients": names_of(3),
            "kind": "class_imbalance",
            "content": {
                "_target_": "experiments.simulated.content.structure_size",
                "_mode_": "callable",
            },
            "seed": "@split_seed",
        },
        "free_rider": {
            "_target_": "experiments.simulated.partition.repeat_case",
            "datalist": "@honest",
            "times": 7,
        },
        "datalist": "$@free_rider if @site in ['client2'] else @honest",
    }
    (tmp_path / "overlay.json").write_text(json.dumps(overlay))
    found = {}
    for name in names_of(2):
        parser = ConfigParser()
        parser.read_config([str(TRAIN), str(tmp_path / "overlay.json")])
        parser["site"] = name
        found[name] = parser.get_parsed_content("datalist")
    assert found["client1"] == partitioned_datalist(
        pooled, "client1", names_of(3), "class_imbalance"
    )
    assert len(found["client2"]["training"]) == 7
    rider = found["client2"]
    assert len({str(case) for case in rider["training"] + rider["validation"]}) == 1


def documented() -> dict[str, dict[str, Any]]:
    """The configuration files of docs/settings.md by heading, for the synthetic hospitals."""
    text = (ROOT / "docs" / "settings.md").read_text()
    for name, site in (("BIDMC", "alder"), ("HK", "birch"), ("RUNMC", "elm"), ("UCL", "hazel")):
        text = text.replace(name, site)
    found = re.findall(
        r"^## ([^\n]*)\n(?:(?!^## ).)*?```json\n(\{.*?\n\})\n```", text, re.DOTALL | re.MULTILINE
    )
    return {heading: json.loads(block) for heading, block in found}


@pytest.mark.parametrize("setting", ["wrong labels", "free rider", "shares"])
def test_the_documented_files_are_right(setting, hospitals, tmp_path):
    (heading,) = [heading for heading in documented() if setting in heading]
    overlay = (
        json.dumps(documented()[heading])
        .replace("/data/", f"{hospitals}/")
        .replace('"client5"', '"birch"')
    )
    for name in ("client3", "client4"):  # the pool of the tests is smaller
        overlay = overlay.replace(f'"{name}", ', "")
    (tmp_path / "overlay.json").write_text(overlay)
    parser = ConfigParser()
    parser.read_config([str(TRAIN), str(tmp_path / "overlay.json")])
    parser.update(
        {
            "dataset_dir": str(hospitals / "birch"),
            "ckpt_dir": str(tmp_path),
            "site": "birch",
            "size": [32, 32],
        }
    )
    datalist = parser.get_parsed_content("datalist")
    transforms = [
        type(each).__name__ for each in parser.get_parsed_content("train#deterministic_transforms")
    ]
    assert ("CorruptLabeld" in transforms) == (setting == "wrong labels")
    assert (len(datalist["training"]) == 20) == (setting == "free rider")
    assert (len(datalist["testing"]) > 1) == (setting == "shares")


@given(
    training=st.integers(1, 9), validation=st.integers(0, 4), times=st.none() | st.integers(1, 30)
)
def test_a_free_rider_has_one_image_and_claims_many(training, validation, times):
    cases = pool_of(training + validation + 2)
    parts = {
        "training": cases[:training],
        "validation": cases[training : training + validation],
        "testing": cases[training + validation :],
    }
    rider = repeat_case(parts, times)
    assert len(rider["training"]) == (times or training) and len(rider["validation"]) == validation
    assert rider["testing"] == parts["testing"]
    assert len({case["image"] for case in rider["training"] + rider["validation"]}) == 1
    assert rider["training"][0] in parts["training"]
    assert repeat_case({**parts, "training": parts["training"][::-1]}, times) == rider


# chosen clients


@given(
    names=st.lists(st.text(max_size=5), unique=True, max_size=30),
    share=st.floats(0, 1),
    seed=st.integers(0, 99),
    shuffled=st.randoms(),
)
def test_a_share_of_names_is_picked_whatever_their_order(names, share, seed, shuffled):
    picked = pick(names, share, seed)
    assert len(picked) == (min(len(names), max(1, int(share * len(names) + 0.5))) if share else 0)
    assert set(picked) <= set(names) and picked == sorted(picked)
    shuffled.shuffle(names)
    assert pick(names, share, seed) == picked
    assert set(picked) <= set(pick(names, min(1, share + 0.3), seed))
