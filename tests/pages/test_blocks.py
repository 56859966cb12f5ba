# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Every command and every Python block of the pages runs, or says above it why it does not.

A block is one of three. Most run here, as they are printed, on tiny hospitals. Those of
``ELSEWHERE`` run in a test of another file. The others have a marker with a reason in the page.
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from helpers.checkout import CHECKOUT
from helpers.made_once import MadeOnce
from helpers.page_blocks import (
    MARKED,
    PAGES,
    Block,
    blocks_of_page,
    blocks_of_text,
    recorded,
    run_commands,
)
from helpers.shipped_bundles import BUNDLES, Bundle

ELSEWHERE = {
    "README.md": ["from monai_fairfl import BundleFederation"],
    "CONTRIBUTING.md": [
        '"""InverseLoss: a strategy',
        ".venv/bin/python -m pytest",
        '"prediction_entropy": Entry',
        "from monai_fairfl.messages import MEASUREMENTS",
        "requires = frozenset",
    ],
    "docs/adopt.md": ["monai-fairfl bundle adopt"],
    "docs/architecture.md": ["def round"],
    "docs/flare_production.md": [
        "pip install",
        "cd workspace",
        "pip download",
        "python3 -m venv",
        "sed -i",
    ],
    "docs/flare_simulator.md": [
        "pip install",
        "recipe = FairFLRecipe",
        "from nvflare",
    ],
    "docs/flower_production.md": [
        "pip install",
        "bash docs/examples/flower/certificates.sh",
        "ssh-keygen",
        "mkdir",
        "MONAI_FAIRFL_HOME",
        "flwr supernode register",
        "flower-supernode",
        "monai-fairfl export",
        "flwr run",
    ],
    "docs/flower_simulation.md": ["pip install", "from monai_fairfl.transports.flower"],
    "docs/guards.md": ['"""FrozenTensors'],
    **dict.fromkeys(
        (f"bundles/{bundle.name}/docs/README.md" for bundle in BUNDLES),
        [
            "monai-fairfl export models/model.pt",
            "python -m monai.bundle verify_net_in_out",
        ],
    ),
    # The hospitals of these tests have one validation case each.
    "docs/use_model.md": ["monai-fairfl adapt"],
    "docs/own_bundle.md": ["cp bundles/", "monai-fairfl train"],
    "docs/own_loop.md": [
        "monai-fairfl demo",
        "python docs/examples/own_client.py",
        "python docs/examples/own_engines.py",
        "from dataclasses",
        "from monai.fl",
    ],
}
"""Page -> how the first line of a block begins that a test of another file runs."""

BLOCKS = [block for page in PAGES for block in blocks_of_page(page)]


def runs_elsewhere(block: Block) -> bool:
    return block.first_line.startswith(tuple(ELSEWHERE.get(block.page, ())))


def run_here() -> list[Block]:
    return [
        block
        for block in BLOCKS
        if block.runs and block.reason is None and not runs_elsewhere(block)
    ]


# ---- which of the three a block is ----


def test_no_block_of_a_page_is_missed() -> None:
    for page in PAGES:
        fences = re.findall(r"^ *(?:```|~~~)", (CHECKOUT / page).read_text(), re.MULTILINE)
        assert len(fences) == 2 * len(blocks_of_page(page)), page


def test_the_markers_of_a_page_stand_above_a_block_and_say_why() -> None:
    for page in PAGES:
        reasons = MARKED.findall((CHECKOUT / page).read_text())
        above = [block for block in blocks_of_page(page) if block.runs and block.reason is not None]
        assert len(reasons) == len(above), f"{page}: a marker stands above no block"
        for reason in reasons:
            assert len(reason.split()) >= 3, f"say why in three words or more: {reason!r}"


def test_every_line_of_the_table_has_its_block_which_is_not_marked() -> None:
    found: Counter[tuple[str, str]] = Counter()
    for block in BLOCKS:
        assert not (block.reason and runs_elsewhere(block)), (block.page, block.first_line)
        for beginning in ELSEWHERE.get(block.page, ()):
            found[block.page, beginning] += block.first_line.startswith(beginning)
    expected = [(page, beginning) for page, table in ELSEWHERE.items() for beginning in table]
    assert found == Counter(dict.fromkeys(expected, 1))


def test_commands_are_in_blocks_of_bash() -> None:
    """A block without a language would be a drawing, which nothing runs."""
    programs = ("$", "make", "pip", "python", "python3", "monai-fairfl", "nvflare", "docker")
    for block in BLOCKS:
        assert block.language in (
            "",
            "bash",
            "diff",
            "json",
            "math",
            "python",
            "toml",
            "yaml",
        ), block
        if block.language == "":
            for line in block.text.splitlines():
                assert not line.strip().startswith(tuple(f"{name} " for name in programs)), line


def test_the_json_of_the_pages_can_be_read() -> None:
    for block in BLOCKS:
        if block.language == "json":
            text = block.text.strip()
            if not text.startswith(("{", "[")):
                # Some keys of a file.
                text = "{" + text + "}"
            json.loads(text)


# ---- the blocks that run here ----


HOSPITALS = ("alder", "birch", "cedar")
PROSTATE, FUNDUS = BUNDLES
GIVEN = {"my_utility": len}
"""What the Python of a page takes from the reader's own files."""


@pytest.fixture(scope="module")
def runs(hospitals: Path, made_once: MadeOnce) -> Path:
    """A folder with finished runs, ``fedce`` and ``cgsv``, on three hospitals; read only."""

    def train(folder: Path) -> None:
        shutil.copytree(PROSTATE.root, folder, dirs_exist_ok=True)
        for site in HOSPITALS:
            shutil.copytree(hospitals / site, folder / "DATA" / site)
        for name, strategy in (("fedce", "FedCE"), ("cgsv", "CGSV")):
            words = ["...", "--strategy", strategy, "--run_dir", f"runs/{name}"]
            words += ["--record_updates", "True"]
            # Only the hospitals of one have receipts.
            run_commands([words], folder, PROSTATE.small, trains=name == "fedce")

    return made_once("runs_of_pages", train) / "runs"


def json_below(page: str, heading: str) -> str:
    """The first JSON file below a heading of a page."""
    text = (CHECKOUT / page).read_text()
    below = text.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    found = [block.text for block in blocks_of_text(below) if block.language == "json"]
    return found[0]


@pytest.fixture
def place(hospitals: Path, runs: Path, tmp_path: Path) -> Path:
    """A folder that has what the pages name: a bundle, ``DATA``, ``IMAGES`` and ``runs``."""
    (tmp_path / "bundles").symlink_to(CHECKOUT / "bundles")
    put_bundle(tmp_path, PROSTATE)
    for site in HOSPITALS[:2]:
        shutil.copytree(hospitals / site, tmp_path / "DATA" / site)
    (tmp_path / "IMAGES").mkdir()
    shutil.copy(hospitals / "alder" / "Case00.nii.gz", tmp_path / "IMAGES")
    shutil.copytree(runs, tmp_path / "runs")
    return tmp_path


def put_bundle(place: Path, bundle: Bundle) -> None:
    """Copy the files of a bundle that its commands read and write, and the schema."""
    for name in ("configs", "models"):
        shutil.rmtree(place / name, ignore_errors=True)
        shutil.copytree(bundle.root / name, place / name)
    shutil.copy(CHECKOUT / "monai_fairfl" / "bundle_schema.json", place / "SCHEMA.json")


def for_fundus(place: Path) -> None:
    """Photographs, and the bundle for them, in place of volumes."""
    put_bundle(place, FUNDUS)
    shutil.rmtree(place / "DATA")
    FUNDUS.write(place / "DATA")
    (place / "PHOTOGRAPHS").mkdir()
    shutil.copy(place / "DATA" / "beech" / "images" / "Case00.jpg", place / "PHOTOGRAPHS")


def for_settings(place: Path) -> None:
    for name in ("quality_shift", "corrupted_images"):
        shutil.copy(CHECKOUT / "experiments" / "overlays" / f"{name}.json", place / "configs")
    labels = json_below("docs/settings.md", "CGSV: wrong labels")
    (place / "configs" / "wrong_labels.json").write_text(labels)
    shares = json_below("docs/settings.md", "CGSV: equal, uneven and one-sided shares")
    for name in ("BIDMC", "HK", "RUNMC", "UCL"):
        shares = shares.replace(f"/data/{name}", str(place / "POOL" / name))
        shutil.copytree(place / "DATA" / "alder", place / "POOL" / name)
    # Five clients take a validation case more than four hospitals of the tests have.
    for file in [*(place / "POOL" / "UCL").glob("Case0*")]:
        shutil.copy(file, file.with_name(file.name.replace("Case0", "Case1")))
    (place / "configs" / "partition.json").write_text(shares)


def for_production(place: Path) -> None:
    """The folders of a site under both engines, and what a job gave back."""
    (place / "local").mkdir()
    policy = {"class_allow_list": ["nvflare."]}
    (place / "local" / "resources.json.default").write_text(json.dumps(policy))
    own = {"dataset_dir": str(place / "DATA" / "alder")}
    for folder in ("kit", "site"):
        (place / folder / "local").mkdir(parents=True)
        (place / folder / "local" / "fairfl.json").write_text(json.dumps(own))
    (place / "kit" / "startup").mkdir()
    (place / "kit" / "startup" / "fed_client.json").write_text("{}")
    (place / "my_methods.py").write_text("from monai_fairfl.strategies import FedAvg as MyStrategy")
    results = place / "results" / "JOB_ID" / "workspace"
    shutil.copytree(place / "runs" / "fedce", results / "fairfl")


PREPARED: dict[str, Callable[[Path], None]] = {
    "docs/flare_production.md": for_production,
    "docs/flower_production.md": for_production,
    "docs/settings.md": for_settings,
    "bundles/fundus_disc_cup_segmentation/docs/README.md": for_fundus,
}
"""Page -> what its commands need besides :func:`place`."""

HERE = {
    "/data/prostate": "DATA/alder",
    "/data/lists": "lists",
    "/data/fl": "fl",
    "/data/site": "site",
    "/srv/fl/alder": "kit",
    "demo/hospitals": "DATA",
    "RUN1": "runs/fedce",
    "RUN2": "runs/cgsv",
}
"""Folder of a page -> the folder of the test."""


def with_names(block: Block, place: Path) -> Block:
    """The block with names of this place for names of a reader's files."""
    site = sorted(folder.name for folder in (place / "DATA").iterdir() if folder.is_dir())[0]
    text = block.text.replace("DATA/SITE", f"DATA/{site}")
    for name, here in HERE.items():
        text = re.sub(rf"(?<![\w./]){name}\b", str(place / here), text)
    return block._replace(text=text)


def commands_here(page: str, place: Path) -> Iterator[list[str]]:
    for block in run_here():
        if block.page == page and block.language == "bash":
            for words in recorded(with_names(block, place), place):
                if "--engine" not in words or "export" in words:
                    yield words


METHODS = "docs/methods/"


def pages_with(language: str) -> list[str]:
    """The pages with blocks that run here, besides those of the methods."""
    pages = [block.page for block in run_here() if block.language == language]
    return [page for page in dict.fromkeys(pages) if not page.startswith(METHODS)]


@pytest.mark.parametrize("page", pages_with("bash"))
def test_the_commands_of_a_page_run(page: str, place: Path) -> None:
    if page == "docs/flare_production.md":
        pytest.importorskip("nvflare")
    if page in PREPARED:
        PREPARED[page](place)
    small = FUNDUS.small if page.startswith("bundles/fundus") else PROSTATE.small
    commands = commands_here(page, place)
    # The hospitals of this page differ in what they train on; those of others answer at once.
    run_commands(commands, place, small, trains=page == "docs/settings.md")


def test_the_strategies_of_the_pages_of_methods_train_in_one_command(place: Path) -> None:
    # Each page has one command, which differs from the others in its strategies and its folder.
    strategies: dict[str, None] = {}
    for block in run_here():
        if block.page.startswith(METHODS):
            program, command, data, option, *given = shlex.split(block.text)
            assert (program, data, option) == ("monai-fairfl", "DATA", "--strategy"), block
            assert command in ("train", "compare") and given[-2] == "--out", block
            strategies.update(dict.fromkeys(given[:-2]))
    assert len(strategies) > 15
    words = ["monai-fairfl", "train", "DATA", "--strategy", *strategies, "--out", "runs/methods"]
    run_commands([words], place, PROSTATE.small, trains=False)


@pytest.mark.parametrize("page", pages_with("python"))
def test_the_python_of_a_page_runs(page: str, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(place)
    names: dict[str, Any] = dict(GIVEN)
    for block in run_here():
        if block.page == page and block.language == "python":
            exec(compile(block.text, page, "exec"), names)
