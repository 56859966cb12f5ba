# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Cases that the studies deal to clients: to whom, how many, and always alike."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path
from random import Random
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
    repeat_case,
)
from monai_fairfl.data import site_datalist
from monai_fairfl.errors import ConfigError, DataError

ROOT = Path(__file__).parents[2]
TRAIN = ROOT / "bundles" / "prostate_mri_segmentation" / "configs" / "train.json"
KINDS = ["uniform", "power_law", "class_imbalance"]


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


@given(
    st.sampled_from(KINDS), st.integers(1, 80), st.integers(1, 12), st.integers(0, 99), st.randoms()
)
def test_every_case_goes_to_one_client_and_every_client_gets_one(
    kind: str, n: int, clients: int, seed: int, shuffled: Random
) -> None:
    assume(n >= clients)
    pool, names = pool_of(n), names_of(clients)
    dealt = partition(pool, names, kind, seed, content=by_number)
    assert list(dealt) == names and all(dealt.values())
    assert sorted(images_of(dealt.values())) == images_of([pool])
    shuffled.shuffle(pool)
    assert partition(pool, names, kind, seed, content=by_number) == dealt


def test_power_law_sizes_are_those_of_the_authors_code() -> None:
    for clients in (2, 5, 20):
        ends = powerlaw.ppf([0.01, 0.99], 1.65911332899)
        shares = np.linspace(*ends, clients)
        shares /= shares.sum()
        dealt = partition(pool_of(6000), names_of(clients), "power_law")
        sizes = [len(part) for part in dealt.values()]
        np.testing.assert_allclose(sizes, 6000 * shares, atol=1)
        assert sizes == sorted(sizes)


def test_class_imbalance_gives_client_i_equal_numbers_of_the_i_lowest_classes() -> None:
    clients, each = 5, 840  # divisible by 1 to 8
    pool = [{"image": f"{i:05d}", "label": str(i)} for i in range(each * clients)]
    dealt = partition(pool, names_of(clients), "class_imbalance", content=by_number)
    shares = []
    for j in range(1, clients + 1):
        shares.append(sum(1 / i for i in range(j, clients + 1)) / clients)
    # Class j has the labels from ends[j - 1] to ends[j].
    ends = np.round(np.cumsum(shares) * len(pool)).astype(int)
    for number, part in enumerate(dealt.values(), start=1):
        labels = [int(case["label"]) for case in part]
        counts = np.bincount(np.searchsorted(ends, labels, side="right"))
        assert counts.tolist() == [each // number] * number


def test_what_cannot_be_dealt_is_refused() -> None:
    with pytest.raises(DataError, match="3 case.* for 4 clients"):
        partition(pool_of(3), names_of(4))
    with pytest.raises(ConfigError, match="kind='dirichlet'"):
        partition(pool_of(3), names_of(2), "dirichlet")
    with pytest.raises(ConfigError, match="different names"):
        partition(pool_of(3), ["a", "a"])


# data lists


def test_clients_share_the_pool_and_are_tested_alike(hospitals: Path) -> None:
    pooled = [str(hospitals / name) for name in ("alder", "birch", "elm")]
    names = names_of(3)
    given: dict[str, Any] = {"kind": "class_imbalance", "seed": 2}
    lists = [partitioned_datalist(pooled, name, names, **given) for name in names]
    sites = [site_datalist(folder, seed=2) for folder in pooled]
    for part in ("training", "validation"):
        dealt = images_of(each[part] for each in lists)
        assert sorted(dealt) == sorted(images_of(site[part] for site in sites))
    for each in lists:
        assert images_of([each["testing"]]) == images_of(site["testing"] for site in sites)
        assert Path(each["training"][0]["label"]).is_absolute()

    # The size of the structure is the class, or what else is given.
    everything = [structure_size(case) for site in sites for case in site["training"]]
    largest = [max(map(structure_size, each["training"])) for each in lists]
    assert largest[0] < largest[2] == max(everything)
    turned = partitioned_datalist(
        pooled, names[0], names, content=lambda case: -structure_size(case), **given
    )
    # Of six cases the four largest are the first class.
    assert min(map(structure_size, turned["training"])) >= sorted(everything)[2]


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
def test_the_documented_files_are_right(setting: str, hospitals: Path, tmp_path: Path) -> None:
    [overlay] = [json.dumps(block) for heading, block in documented().items() if setting in heading]
    overlay = overlay.replace("/data/", f"{hospitals}/").replace('"client5"', '"birch"')
    for name in ("client3", "client4"):  # the pool of the tests is smaller
        overlay = overlay.replace(f'"{name}", ', "")
    (tmp_path / "overlay.json").write_text(overlay)
    parser = ConfigParser()
    parser.read_config([str(TRAIN), str(tmp_path / "overlay.json")])
    folders = {"dataset_dir": str(hospitals / "birch"), "ckpt_dir": str(tmp_path)}
    parser.update({**folders, "site": "birch", "size": [32, 32]})
    datalist = parser.get_parsed_content("datalist")
    transforms = parser.get_parsed_content("train#deterministic_transforms")
    names = [type(each).__name__ for each in transforms]
    assert ("CorruptLabeld" in names) == (setting == "wrong labels")
    assert (len(datalist["training"]) == 20) == (setting == "free rider")
    assert (len(datalist["testing"]) > 1) == (setting == "shares")


@given(st.integers(1, 9), st.integers(0, 4), st.none() | st.integers(1, 30))
def test_a_free_rider_has_one_image_and_claims_many(
    training: int, validation: int, times: int | None
) -> None:
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
