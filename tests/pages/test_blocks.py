# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Every command and every Python block of the pages runs, or says above it why it does not.

A block is one of three. Most run here, as they are printed, on tiny hospitals. Some run in another
test, which ``ELSEWHERE`` names. The others have a marker with a reason in the page, and ``MARKERS``
counts them, so that each is a decision.
"""

from __future__ import annotations

import ast
import json
import re
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.checkout import CHECKOUT
from helpers.command_line import run_process
from helpers.made_once import MadeOnce
from helpers.page_blocks import (
    MARKED,
    PAGES,
    Block,
    blocks_of_page,
    blocks_of_text,
    recorded,
    run_command,
)
from helpers.shipped_bundles import BUNDLES, Bundle
from PIL import Image

from monai_fairfl.strategies.quantities import Quantity

MARKERS = {
    "CONTRIBUTING.md": 1,
    "README.md": 1,
    "docs/controls.md": 1,
    "docs/demo.md": 2,
    "docs/flare_production.md": 4,
    "docs/install.md": 2,
    "docs/model_zoo.md": 1,
    "docs/versions.md": 1,
}
"""Page -> its blocks that no test runs."""

PACKAGING = "tests/test_packaging.py::test_the_guide_shows_the_example_that_is_tested"
CONTRIBUTING = "tests/pages/test_contributing.py::"
MEASUREMENT = f"{CONTRIBUTING}test_the_steps_of_a_measurement_are_enough"
OWN_LOOP = "tests/pages/test_own_loop.py::"
FLARE = "tests/engines/test_flare_pages.py::"
SWITCHED = f"{FLARE}test_the_migrating_pages_job_gives_the_same_model_under_both_recipes"
SIMULATOR = f"{FLARE}test_the_simulator_page_is_enough"
SHOWN = f"{FLARE}test_the_simulator_page_shows_the_script_filters_and_early_stopping"
KITS = f"{FLARE}test_the_production_pages_kits_demand_mutual_tls_and_hold_what_it_says"
POLICY = f"{FLARE}test_the_production_pages_policy_results_and_logs"
WHEELS = f"{FLARE}test_the_production_pages_wheels_are_enough_without_internet"

FOLLOWED = (
    "tests/transports/flower/test_superlink.py::"
    "test_the_pages_commands_give_the_ledger_and_the_models_of_one_process"
)
SIMULATED = "tests/transports/flower/test_pages.py::test_the_simulation_page_is_enough"

# Page -> how the first line of a block begins -> the test that runs the block.
ELSEWHERE = {
    "README.md": {
        "from monai_fairfl import BundleFederation": "tests/pages/test_readme.py::"
        "test_the_python_prints_contributions_and_writes_a_report",
    },
    "CONTRIBUTING.md": {
        '"""InverseLoss: a strategy': PACKAGING,
        '"""A strategy is tested': PACKAGING,
        ".venv/bin/python -m pytest": f"{CONTRIBUTING}"
        "test_the_steps_are_enough_and_pages_that_are_left_out_are_named",
        '"""Measures how undecided': PACKAGING,
        '"""A measurement on validation data': PACKAGING,
        '"""Measures how much the gradient': PACKAGING,
        '"""A measurement is tested': PACKAGING,
        '"prediction_entropy": Entry': MEASUREMENT,
        '"prediction_entropy": Range': MEASUREMENT,
        "def test_the_entropy_is_measured": MEASUREMENT,
        "from monai_fairfl.measurements import MEASUREMENTS": f"{CONTRIBUTING}"
        "test_a_measurement_is_added_without_the_package_as_the_guide_shows",
        "requires = frozenset": f"{CONTRIBUTING}"
        "test_a_strategy_asks_for_a_measurement_as_the_guide_shows",
    },
    "docs/adopt.md": {
        "monai-fairfl adopt": "tests/cli/test_adopting.py::"
        "test_the_pages_commands_train_every_kind_of_method",
    },
    "docs/architecture.md": {
        "def round": "tests/pages/test_architecture.py::"
        "test_the_round_that_the_page_shows_is_fedavgs",
    },
    "docs/flare_migrating.md": {
        "# net.py": SWITCHED,
        "# client.py": SWITCHED,
        "# job.py": SWITCHED,
        "# other.py": f"{FLARE}test_the_migrating_pages_other_job_is_written",
        "# keep.py": f"{FLARE}test_the_migrating_pages_aggregator_keeps_nvflares_fedavg",
    },
    "docs/flare_production.md": {
        "pip install": KITS,
        "cd workspace": POLICY,
        "pip download": WHEELS,
        "python3 -m venv": WHEELS,
        "sed -i": POLICY,
    },
    "docs/flare_simulator.md": {
        "pip install": SIMULATOR,
        "recipe = FairFLRecipe": SHOWN,
        "from nvflare": SHOWN,
        "FairFLRecipe(...": SHOWN,
    },
    "docs/flower_production.md": {
        "pip install": FOLLOWED,
        "bash docs/examples/flower/certificates.sh": FOLLOWED,
        "ssh-keygen": FOLLOWED,
        "mkdir": FOLLOWED,
        "MONAI_FAIRFL_HOME": FOLLOWED,
        "flwr supernode register": FOLLOWED,
        "flower-supernode": FOLLOWED,
        "monai-fairfl export-flower": FOLLOWED,
        "flwr run": FOLLOWED,
    },
    "docs/flower_simulation.md": {
        "pip install": SIMULATED,
        "from monai_fairfl.transports.flower": SIMULATED,
    },
    "docs/guards.md": {
        '"""FrozenTensors': "tests/pages/test_guards_page.py::"
        "test_the_example_is_the_file_that_is_tested",
    },
    **{
        f"bundles/{name}/docs/README.md": {
            "torchrun": "tests/bundles/test_commands.py::"
            "test_a_step_of_two_processes_is_the_mean_of_their_steps",
        }
        for name in ("fundus_disc_cup_segmentation", "prostate_mri_segmentation")
    },
    "docs/own_bundle.md": {
        "cp bundles/": "tests/bundles/test_own_bundle.py::"
        "test_the_bundle_federates_as_the_page_says",
        "monai-fairfl train": "tests/bundles/test_own_bundle.py::"
        "test_the_short_command_reads_the_file_that_it_is_given",
    },
    "docs/own_loop.md": {
        "monai-fairfl demo-data": f"{OWN_LOOP}"
        "test_a_process_for_each_hospital_gives_the_same_ledger_and_models",
        "python docs/examples/own_client.py": "tests/pages/test_own_client.py::"
        "test_the_script_of_the_page_prints_the_weights_of_each_round",
        "python docs/examples/own_engines.py": "tests/pages/test_own_engines.py::"
        "test_the_script_of_the_page_measures_trains_and_resumes",
        "from dataclasses": f"{OWN_LOOP}"
        "test_a_round_by_hand_is_the_first_round_of_the_federation",
        "from monai.fl": f"{OWN_LOOP}test_the_mended_client_alone_trains_and_evaluates",
    },
}

BLOCKS = [block for page in PAGES for block in blocks_of_page(page)]


def other_tests(block: Block) -> list[str]:
    """The tests that run a block, by ``ELSEWHERE``."""
    found = []
    for beginning, test in ELSEWHERE.get(block.page, {}).items():
        if block.first_line.startswith(beginning):
            found.append(test)
    return found


def run_here() -> list[Block]:
    return [
        block for block in BLOCKS if block.runs and block.reason is None and not other_tests(block)
    ]


# ---- which of the three a block is ----


def test_blocks_and_their_markers_are_found_at_any_depth() -> None:
    indented = "1. One:\n\n    ```bash\n    a\n    ```\n\n"
    marked = "<!-- not run: it is\nfar away -->\n\n```bash\nb\n```\n"
    first, second = blocks_of_text(indented + marked)
    assert (first.language, first.text.strip(), first.reason) == ("bash", "a", None)
    assert (second.text, second.reason) == ("b\n", "it is far away")


@pytest.mark.parametrize("page", PAGES)
def test_no_block_of_a_page_is_missed(page: str) -> None:
    fences = re.findall(r"^ *(?:```|~~~)", (CHECKOUT / page).read_text(), re.MULTILINE)
    assert len(fences) == 2 * len(blocks_of_page(page))


@pytest.mark.parametrize("page", PAGES)
def test_the_markers_of_a_page_are_counted_and_say_why(page: str) -> None:
    reasons = MARKED.findall((CHECKOUT / page).read_text())
    above = [block for block in blocks_of_page(page) if block.runs and block.reason is not None]
    assert len(reasons) == len(above), "a marker stands above no block, or without a blank line"
    for reason in reasons:
        assert len(reason.split()) >= 3, f"say why in three words or more: {reason!r}"
    assert len(reasons) == MARKERS.get(page, 0), "is it right that no test runs the block?"


def test_a_marked_block_is_not_run_elsewhere_and_every_line_of_the_table_has_its_block() -> None:
    found: Counter[tuple[str, str]] = Counter()
    for block in BLOCKS:
        tests = other_tests(block)
        assert len(tests) + (block.reason is not None) <= 1, (block.page, block.first_line)
        for beginning in ELSEWHERE.get(block.page, {}):
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


def names_page(file: Path, page: str) -> bool:
    """Whether a test, or a helper that it imports, names a page."""
    text = file.read_text()
    for helper in re.findall(r"^from helpers\.(\w+) import", text, re.MULTILINE):
        if helper != "page_blocks":
            text += (CHECKOUT / "tests" / "helpers" / f"{helper}.py").read_text()
    return Path(page).name in text


@pytest.mark.parametrize("page", ELSEWHERE)
def test_the_tests_that_run_blocks_of_a_page_exist_and_name_the_page(page: str) -> None:
    for test in set(ELSEWHERE[page].values()):
        name, _, function = test.partition("::")
        file = CHECKOUT / name
        functions = set()
        for node in ast.parse(file.read_text()).body:
            if isinstance(node, ast.FunctionDef):
                functions.add(node.name)
        assert function in functions, test
        assert names_page(file, page), f"{name} does not name {page}"


@pytest.mark.parametrize("page", PAGES)
def test_the_json_of_a_page_can_be_read(page: str) -> None:
    for block in blocks_of_page(page):
        if block.language == "json":
            text = block.text.strip()
            if not text.startswith(("{", "[")):
                # Some keys of a file.
                text = "{" + text + "}"
            json.loads(text)


# ---- the blocks that run here ----


def test_a_shell_makes_the_words_and_starts_no_program_of_a_page(tmp_path: Path) -> None:
    text = "B=a  # b\nmkdir $B\npip install $B/c 'd e'\n... --f#g {1..2} \\\n    h\n--i j\n"
    [block] = blocks_of_text(f"```bash\n{text}```\n")
    assert recorded(block, tmp_path) == [
        ["pip", "install", "a/c", "d e"],
        ["...", "--f#g", "1", "2", "h"],
        ["--i", "j"],
    ]
    assert (tmp_path / "a").is_dir()


def test_a_program_that_no_test_knows_fails(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="no test knows how to run 'pip'"):
        run_command(["pip", "install", "torch"], tmp_path, {})


HOSPITALS = ("alder", "birch", "cedar")
PROSTATE, FUNDUS = BUNDLES
GIVEN = {"Quantity": Quantity, "my_utility": len}
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
            run_command([*words, "--record_updates", "True"], folder, PROSTATE.small)

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
    for site in HOSPITALS:
        shutil.copytree(hospitals / site, tmp_path / "DATA" / site)
    (tmp_path / "IMAGES").mkdir()
    shutil.copy(hospitals / "alder" / "Case00.nii.gz", tmp_path / "IMAGES")
    shutil.copytree(runs, tmp_path / "runs")
    return tmp_path


def put_bundle(place: Path, bundle: Bundle) -> None:
    """Copy the files of a bundle that its commands read and write."""
    for name in ("configs", "models"):
        shutil.rmtree(place / name, ignore_errors=True)
        shutil.copytree(bundle.root / name, place / name)


def put_clinics(place: Path) -> None:
    """Photographs, and the bundle for them, in place of volumes."""
    put_bundle(place, FUNDUS)
    shutil.rmtree(place / "DATA")
    FUNDUS.write(place / "DATA")


def for_data(place: Path) -> None:
    """A site whose masks have the values that the page gives: 255 outside, 128 and 0."""
    put_clinics(place)
    refuge = shutil.copytree(place / "DATA" / "beech", place / "DATA" / "REFUGE")
    values = np.array([255, 128, 0], np.uint8)
    for file in refuge.glob("masks/*.png"):
        mask = np.asarray(Image.open(file))
        levels, indices = np.unique(mask, return_inverse=True)
        assert len(levels) == 3
        Image.fromarray(values[indices.reshape(mask.shape)]).save(file)


def for_fundus(place: Path) -> None:
    put_clinics(place)
    shutil.copytree(place / "DATA" / "beech" / "images", place / "PHOTOGRAPHS")
    shutil.copy(CHECKOUT / "monai_fairfl" / "bundle_schema.json", place / "SCHEMA.json")


def for_prostate(place: Path) -> None:
    shutil.copy(CHECKOUT / "monai_fairfl" / "bundle_schema.json", place / "SCHEMA.json")


def for_contributing(place: Path) -> None:
    (place / "demo").mkdir()
    (place / "demo" / "hospitals").symlink_to(place / "DATA")


def for_composition(place: Path) -> None:
    text = json_below("docs/methods/composition.md", "FedCE's contribution, CGSV's reward")
    (place / "composed.json").write_text(text)


def for_report(place: Path) -> None:
    (place / "runs" / "fedce").rename(place / "RUN1")
    (place / "runs" / "cgsv").rename(place / "RUN2")


def for_settings(place: Path) -> None:
    for name in ("quality_shift", "corrupted_images"):
        shutil.copy(CHECKOUT / "experiments" / "overlays" / f"{name}.json", place / "configs")
    labels = json_below("docs/settings.md", "CGSV: wrong labels")
    (place / "configs" / "wrong_labels.json").write_text(labels)
    heading = "CGSV: equal, uneven and one-sided shares"
    shares = json_below("docs/settings.md", heading)
    for name, site in zip(("BIDMC", "HK", "RUNMC", "UCL"), (*HOSPITALS, "elm"), strict=True):
        shares = shares.replace(f"/data/{name}", str(place / "POOL" / site))
    shutil.copytree(place / "DATA", place / "POOL")
    shutil.copytree(place / "DATA" / "alder", place / "POOL" / "elm")
    # Five clients take more cases than the hospitals of the tests have.
    for file in sorted((place / "POOL").glob("*/Case0*")):
        shutil.copy(file, file.with_name(file.name.replace("Case0", "Case1")))
    (place / "configs" / "partition.json").write_text(shares)


def for_production(place: Path) -> None:
    """The kit of a site, its images, and what a job gave back."""
    (place / "local").mkdir()
    policy = {"class_allow_list": ["nvflare."]}
    (place / "local" / "resources.json.default").write_text(json.dumps(policy))
    own = {"dataset_dir": str(place / "DATA" / "alder")}
    for folder in ("local", "startup"):
        (place / "kit" / folder).mkdir(parents=True)
    (place / "kit" / "local" / "fairfl.json").write_text(json.dumps(own))
    (place / "kit" / "startup" / "fed_client.json").write_text("{}")
    (place / "my_methods.py").write_text(
        "from monai_fairfl.strategies import FedAvg\n\n\nclass MyStrategy(FedAvg):\n    pass\n"
    )
    (place / "results" / "JOB_ID" / "workspace").mkdir(parents=True)
    shutil.copytree(place / "runs" / "fedce", place / "results/JOB_ID/workspace/fairfl")


def for_flower_production(place: Path) -> None:
    """A site's folder with the site's settings."""
    (place / "site" / "local").mkdir(parents=True)
    own = {"dataset_dir": str(place / "DATA" / "alder")}
    (place / "site" / "local" / "fairfl.json").write_text(json.dumps(own))


PREPARED: dict[str, Callable[[Path], None]] = {
    "CONTRIBUTING.md": for_contributing,
    "docs/data.md": for_data,
    "docs/flare_production.md": for_production,
    "docs/flower_production.md": for_flower_production,
    "docs/methods/composition.md": for_composition,
    "docs/report.md": for_report,
    "docs/settings.md": for_settings,
    "bundles/fundus_disc_cup_segmentation/docs/README.md": for_fundus,
    "bundles/prostate_mri_segmentation/docs/README.md": for_prostate,
}
"""Page -> what its commands need besides :func:`place`."""


HERE = {"prostate": "DATA/alder", "lists": "lists", "fl": "fl", "site": "site"}
"""Folder in /data of a page -> the folder of the test."""


def with_names(block: Block, place: Path) -> Block:
    """The block with names of this place for names of a reader's files."""
    site = sorted(folder.name for folder in (place / "DATA").iterdir() if folder.is_dir())[0]
    text = block.text.replace("DATA/SITE", f"DATA/{site}")
    text = text.replace("/srv/fl/alder", str(place / "kit"))
    for name, here in HERE.items():
        text = re.sub(rf"(?<![\w.])/data/{name}\b", str(place / here), text)
    return block._replace(text=text)


def commands_here(page: str, place: Path) -> Iterator[list[str]]:
    for block in run_here():
        if block.page == page and block.language == "bash":
            yield from recorded(with_names(block, place), place)


NEEDS_NVFLARE = ("docs/flare_production.md",)
EXTENDED = ("README.md", "docs/comparing.md")
"""Pages whose commands take more than about ten seconds."""


def pages_with(language: str) -> list[Any]:
    """The pages with blocks that run here, each with the marks of its duration.

    A page takes seconds, and all pages together more than ``make test`` has.
    """
    pages = {block.page: None for block in run_here() if block.language == language}
    found = []
    for page in pages:
        marks = [pytest.mark.slow, pytest.mark.long]
        if page in EXTENDED:
            marks.append(pytest.mark.extended)
        found.append(pytest.param(page, marks=marks))
    return found


@pytest.mark.parametrize("page", pages_with("bash"))
def test_the_commands_of_a_page_run(page: str, place: Path) -> None:
    if page in NEEDS_NVFLARE:
        pytest.importorskip("nvflare")
    if page in PREPARED:
        PREPARED[page](place)
    small = PROSTATE.small
    if PREPARED.get(page) in (for_data, for_fundus):
        small = FUNDUS.small
    for words in commands_here(page, place):
        if "simulate-flare" not in words:
            run_command(words, place, small)


@pytest.mark.parametrize("page", pages_with("python"))
def test_the_python_of_a_page_runs(page: str, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(place)
    names: dict[str, Any] = dict(GIVEN)
    for block in run_here():
        if block.page == page and block.language == "python":
            exec(compile(block.text, page, "exec"), names)


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.extended
@pytest.mark.nvflare
@pytest.mark.simulator
def test_the_pages_command_for_nvflares_simulator_runs(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("nvflare")
    monkeypatch.setenv("HOME", str(place))
    commands = [words for words in commands_here("docs/flare_simulator.md", place)]
    [words] = [words for words in commands if "simulate-flare" in words]
    tiny = ["--num-rounds", "1", "--local-epochs", "1", "--overrides", str(PROSTATE.small)]
    done = run_process(*words[1:], *tiny, folder=place)
    assert done.returncode == 0, (done.stdout + done.stderr).decode()[-3000:]
