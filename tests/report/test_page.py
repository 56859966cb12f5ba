# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The page is one offline file, in which names from outside are text."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from helpers.ledgers import replace_closing_scores

from monai_fairfl.errors import ConfigError
from monai_fairfl.report import write_report, write_report_if_possible
from monai_fairfl.report.site_pages import SITE_REPORTS
from monai_fairfl.report.verdicts import VERDICTS

pytest.importorskip("jinja2")

WriteRun = Callable[..., Path]
EVIL = [
    "<script>alert(1)</script>",
    "</script><script>alert(2)</script>",
    '"><img src=x onerror=alert(3)>',
    "'+alert(4)+'",
]


class Elements(HTMLParser):
    """Reads a page as a browser does: tags and text, and the drawings."""

    def __init__(self, page: str):
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.bytes = len(page.encode())
        self._inside = ""
        self.feed(page)
        self.drawings = drawings_of(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._inside = tag

    def handle_endtag(self, tag: str) -> None:
        self._inside = ""

    def handle_data(self, data: str) -> None:
        if self._inside != "style":
            self.text += data

    def drawing(self, title: str) -> ElementTree.Element:
        """The one drawing of this title."""
        [found] = [svg for svg in self.drawings if svg.findtext("title") == title]
        return found


def drawings_of(page: str) -> list[ElementTree.Element]:
    """The drawings of a page that have a title."""
    found = []
    for text in re.findall(r"<svg[ >].*?</svg>", page, re.DOTALL):
        svg = ElementTree.fromstring(text)
        if svg.find("title") is not None:
            found.append(svg)
    return found


def points_of(line: ElementTree.Element) -> list[tuple[float, float]]:
    """The places of a line in its drawing."""
    pairs = [pair.split(",") for pair in line.attrib["points"].split()]
    return [(float(x), float(y)) for x, y in pairs]


@pytest.fixture(scope="module")
def page(comparison: Path, tmp_path_factory: pytest.TempPathFactory) -> Elements:
    out = tmp_path_factory.mktemp("page")
    write_report([comparison], out)
    return Elements((out / "report.html").read_text())


def test_nothing_is_loaded_from_anywhere(page: Elements) -> None:
    policies = []
    for tag, attributes in page.tags:
        assert tag != "link"
        assert not {"src", "href", "srcset"} & set(attributes)
        if tag == "meta" and "http-equiv" in attributes:
            policies.append(attributes["content"])
    (policy,) = policies
    assert policy is not None
    assert policy.startswith("default-src 'none'")


def test_the_page_is_small_has_no_script_and_draws_what_it_has(page: Elements) -> None:
    assert page.bytes < 100_000
    assert "script" not in [tag for tag, _ in page.tags]
    titles = [svg.findtext("title") or "" for svg in page.drawings]
    for title in (
        "Shares by rule, FedCE",
        "Validation Dice by rounds finished, Standalone",
        "Aggregation weight by round, FedAvg",
        "Contribution by round, FedCE",
        "Mean cosine of the sites' updates, FedAvg",
    ):
        assert title in titles
    # FedAvg estimates no contributions, and Standalone has no weights.
    assert "Contribution by round, FedAvg" not in titles
    assert "Aggregation weight by round, Standalone" not in titles


def test_every_drawing_has_a_text_with_its_numbers(page: Elements, comparison: Path) -> None:
    for svg in page.drawings:
        assert svg.attrib["role"] == "img"
        assert svg.findtext("desc")
        assert svg.attrib["aria-label"].endswith(svg.findtext("desc") or "no text")
    ledger = (comparison / "FedCE" / "ledger.jsonl").read_text().splitlines()
    last = json.loads(ledger[-2])
    desc = page.drawing("Contribution by round, FedCE").findtext("desc") or ""
    for site, value in last["contributions"].items():
        assert f"{site}: " in desc and f"{value['value']:.3f} at round 3" in desc


def test_headings_are_in_order_and_tables_have_captions_and_scopes(page: Elements) -> None:
    levels = [int(tag[1]) for tag, _ in page.tags if re.fullmatch("h[1-6]", tag)]
    assert levels[0] == 1 and levels.count(1) == 1
    for before, after in zip(levels, levels[1:]):
        assert after <= before + 1
    names = [tag for tag, _ in page.tags]
    assert names.count("caption") == names.count("table")
    assert all("scope" in attributes for tag, attributes in page.tags if tag == "th")


def test_rows_numbers_and_heads_are_on_the_page(
    page: Elements, comparison: Path, tmp_path: Path
) -> None:
    report = write_report([comparison], tmp_path)
    for site, hospital in report["decision"]["hospitals"].items():
        row = page.text[page.text.index("What to do") :]
        assert re.search(rf"\b{site}\s+{VERDICTS[hospital['verdict']].title}\b", row)
        assert hospital["contribution"]["words"] in page.text
        for sentence in hospital["advice"]:
            assert f"{sentence}." in page.text
    assert report["overview"] in page.text
    for found in report["strategies"].values():
        assert f"{found['performance']['mean']:.3f}" in page.text
        assert found["ledger_head"] in page.text
    assert "ConnectionError: the hospital's line is down" in page.text
    assert "What the strategy credits each site with. FedCE: share of the average." in page.text


def test_the_lines_are_the_numbers(write_run: WriteRun) -> None:
    dice = [0.2, 0.5, 0.3, 0.6]
    rounds = [{"measurements": {"elm": {"global_score": value}}} for value in dice]
    page = page_of(write_run("FedAvg", {"elm": 0.7}, rounds=rounds))
    svg = page.drawing("Validation Dice by rounds finished, FedAvg")
    [line] = [found for found in svg.iter("polyline")]
    x, y = np.array(points_of(line)).T
    assert np.allclose(np.diff(x), np.diff(x)[0], atol=0.2)
    # Higher on the page is more Dice, and equal steps are equal differences.
    slope = np.polyfit(y, dice, 1)
    assert slope[0] < 0
    assert np.polyval(slope, y) == pytest.approx(dice, abs=1e-3)


@pytest.mark.slow
def test_names_from_outside_are_text_everywhere(write_run: WriteRun, tmp_path: Path) -> None:
    scores = dict.fromkeys(EVIL, 0.5)
    record = {
        "contributions": dict.fromkeys(EVIL, 0.25),
        "aggregation": dict.fromkeys(EVIL, 0.25),
        "missing": {EVIL[0]: f"error: {EVIL[1]}"},
        "notes": {EVIL[0]: EVIL[2]},
        "guards": {EVIL[0]: EVIL[3]},
        "measurements": {name: {"global_score": 0.5} for name in EVIL},
        "details": {
            EVIL[0]: dict.fromkeys(EVIL, 0.5),
            EVIL[1]: {name: dict.fromkeys(EVIL, 0.5) for name in EVIL},
            "kept": dict.fromkeys(EVIL, 1.0),
        },
    }
    run = write_run("FedCE", scores, rounds=[record], name=f"FedCE{EVIL[1]}", seed=EVIL[0])
    alone = write_run("Standalone", scores, seed=EVIL[1])
    write_report([run, alone], tmp_path / "out")
    page = Elements((tmp_path / "out" / "report.html").read_text())
    pages = [page]
    for file in sorted((tmp_path / "out" / SITE_REPORTS).iterdir()):
        pages.append(Elements(file.read_text()))
    assert len(pages) == 1 + len(EVIL)
    for each in pages:
        for tag, attributes in each.tags:
            assert tag not in ("img", "script")
            assert not [name for name in attributes if name.startswith("on")]
    for name in EVIL:
        assert name in page.text
    # Drawings of weights, contributions, Dice, credit and three quantities.
    assert len(page.drawings) > 6


def page_of(*runs: Path) -> Elements:
    write_report(runs, runs[0])
    return Elements((runs[0] / "report.html").read_text())


@pytest.mark.parametrize(
    ("number", "first_rows"),
    [
        (4, r"Strategyhospital00hospital01hospital02hospital03\s+Standalone0.500± 0.010"),
        (40, r"StandaloneFedAvg\s+hospital000.500± 0.010\s+0.500± 0.010\s+hospital01"),
    ],
)
def test_many_sites_are_rows_and_the_page_stays_small(
    number: int, first_rows: str, write_run: WriteRun
) -> None:
    scores = {f"hospital{index:02d}": (0.5 + index / 100, 0.01, 9) for index in range(number)}
    rounds = [{"measurements": {site: {"global_score": 0.5} for site in scores}}] * 3
    runs = [write_run(name, scores, rounds=rounds) for name in ("Standalone", "FedAvg")]
    page = page_of(*runs)
    assert re.search(first_rows, page.text)
    assert page.bytes < 500_000


def test_a_strategys_own_quantities_are_titled_explained_and_drawn_by_round(
    write_run: WriteRun,
) -> None:
    first = {"details": {"cosine": {"elm": 0.9, "oak": -0.2}, "kept": {"elm": 1.0, "oak": 0.4}}}
    second = {
        "details": {
            "cosine": {"elm": 0.8, "oak": None},
            "temper": {"elm": {"value": 3.0, "stderr": 0.1, "n": 4}},
        }
    }
    other = {"details": {"kept": {"elm": 0.5}}}
    scores = {"elm": 0.8, "oak": 0.7}
    page = page_of(
        write_run("CGSV", scores, rounds=[first, second]),
        write_run("FedAvg", scores, rounds=[other]),
    )
    for words in (
        "Agreement with the step by reputations",
        "1 is the same direction",
        "temper",
        "As the strategy reports it",
    ):
        assert words in page.text
    cosine = page.drawing("Cosine by round, CGSV").findtext("desc")
    assert cosine == (
        "elm: 0.900 at round 0, 0.800 at round 1; oak: -0.200 at round 0, -0.200 at round 0"
    )
    # An estimate is one number.
    assert page.drawing("temper by round, CGSV").findtext("desc") == (
        "elm: 3.000 at round 1, 3.000 at round 1"
    )
    kept = [
        svg.findtext("title") for svg in page.drawings if "Share" in (svg.findtext("title") or "")
    ]
    assert [title for title in kept if title and title.endswith((", CGSV", ", FedAvg"))]


def test_quantities_of_the_same_name_and_another_meaning_get_figures_of_their_own(
    write_run: WriteRun,
) -> None:
    gap = [{"details": {"gap": {"elm": 0.1, "oak": 0.2}}}]
    scores = {"elm": 0.8, "oak": 0.7}
    page = page_of(*[write_run(name, scores, rounds=gap) for name in ("FairFed", "FedGA", "Mine")])
    units = []
    for svg in page.drawings:
        title = svg.findtext("title") or ""
        if " by round, " in title:
            units.append(title.partition(" by ")[0])
    assert units == ["Distance", "Loss", "gap"]


VALUATION = {
    "name": "reconstruction-multi_round-exact-mean",
    "strategy": "FedCE",
    "method": "exact",
    "utility": "mean",
    "data": "validation",
    "evaluations": 8,
    "rank_stability": 0.75,
    "total": 0.2,
    "values": {
        "elm": {"value": -0.1, "stderr": None, "n": 4},
        "oak": {"value": 0.3, "stderr": 0.02, "n": 4},
    },
    "shares": {"elm": 0.0, "oak": 1.0},
    "own": {
        "elm": {"value": 0.4, "stderr": None, "n": 1},
        "oak": {"value": 0.6, "stderr": None, "n": 1},
    },
    "fidelity": {
        "pearson": {"estimate": 80.0, "low": 60.0, "high": 90.0},
        "spearman": {"estimate": None, "low": None, "high": None},
        "euclidean": {"estimate": 0.5657, "low": None, "high": None},
        "cosine": {"estimate": 0.832, "low": None, "high": None},
    },
}


def test_valuations_are_tables_and_bars_beside_the_methods_own_shares(write_run: WriteRun) -> None:
    scores = {"elm": 0.8, "oak": 0.7}
    valued_run = write_run("FedCE", scores)
    (valued_run / "valuations").mkdir()
    (valued_run / "valuations" / "one.json").write_text(json.dumps(VALUATION))
    page = page_of(valued_run, write_run("FedAvg", scores))
    for words in (
        "Shapley value of the mean Dice of the sites, validation images, "
        "models rebuilt from updates",
        "-0.1000",
        "no std. error",
        "+0.3000",
        "± 0.0200",
        "100.0",
        "60.0",
        "8 models",
        "0.75 of 1",
        "Pearson 80.0 (60.0 to 90.0) of 100",
        "Spearman undefined",
        "Euclid 0.566",
    ):
        assert words in page.text, words
    worth = page.drawing("Shares of worth, FedCE")
    assert worth.findtext("desc") == (
        f"elm: its own contributions 0.400, {VALUATION['name']} 0.000; "
        f"oak: its own contributions 0.600, {VALUATION['name']} 1.000"
    )
    widths = [float(bar.attrib["width"]) for bar in worth.iter("rect")]
    # elm's bars, then oak's.
    assert widths[0] / widths[3] == pytest.approx(0.4, abs=0.01)
    assert widths[2] / widths[3] == pytest.approx(0.6, abs=0.01)
    assert widths[1] == 0


def test_a_valuation_without_the_methods_own_shares_has_a_table_without_them(
    write_run: WriteRun,
) -> None:
    run = write_run("FedCE", {"elm": 0.8, "oak": 0.7})
    (run / "valuations").mkdir()
    others = {key: value for key, value in VALUATION.items() if key not in ("own", "fidelity")}
    (run / "valuations" / "one.json").write_text(json.dumps(others))
    page = page_of(run)
    assert "+0.3000" in page.text and "own share" not in page.text
    worth = page.drawing("Shares of worth, FedCE").findtext("desc")
    assert worth == f"elm: {VALUATION['name']} 0.000; oak: {VALUATION['name']} 1.000"


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        ("{", ".+"),
        ("3", "it holds no JSON object but a int"),
        ('{"name": "x"}', "it lacks strategy"),
        ('{"name": null}', "name is None"),
    ],
)
def test_a_damaged_valuation_is_named_with_the_way_to_make_it_again(
    write_run: WriteRun, damage: str, words: str
) -> None:
    run = write_run("FedCE", {"elm": 0.8})
    (run / "valuations").mkdir()
    (run / "valuations" / "one.json").write_text(damage)
    match = rf"one\.json is damaged: {words}\. Remove it, and .*--resume True makes it again"
    with pytest.raises(ConfigError, match=match):
        write_report([run])


def test_layers_and_classes_of_the_last_round_are_a_map(write_run: WriteRun) -> None:
    early = {"details": {"layer_weight": {"elm": {"up": 0.0}, "gone": {"up": 1.0}}}}
    layers = {"elm": {"down": 0.5, "bottom": 0.25}, "oak": {"down": 0.5, "bottom": 0.75}}
    order = ["down", "bottom", "up"]  # of the network
    classes = {"elm": {"0": 0.9, "1": -0.3}, "oak": {"0": 0.8}}
    scores = {"elm": 0.8, "oak": 0.7}
    rounds = [early, {"details": {"layer_weight": layers}}, {}]
    page = page_of(
        write_run("FedLWR", scores, rounds=rounds, layers=order),
        write_run("ShapFed", scores, rounds=[{"details": {"class_value": classes}}]),
    )
    assert "Layer weights: FedLWR, round 1" in page.text
    assert "Class values: ShapFed, round 0" in page.text

    weights = page.drawing("Layer weights, FedLWR, round 1")
    assert weights.findtext("desc") == "down: elm 0.50, oak 0.50; bottom: elm 0.25, oak 0.75"
    cells = list(weights.iter("rect"))
    assert [cell.findtext("title") for cell in cells] == [
        "elm, down: 0.5",
        "oak, down: 0.5",
        "elm, bottom: 0.25",
        "oak, bottom: 0.75",
    ]
    shades = [float(cell.attrib["fill-opacity"]) for cell in cells]
    assert shades[2] < shades[0] == shades[1] < shades[3]

    values = page.drawing("Class values, ShapFed, round 0")
    kinds = [cell.attrib["class"] for cell in values.iter("rect")]
    assert kinds == ["cell positive", "cell positive", "cell negative"]
    assert values.findtext("desc") == "class 0: elm 0.90, oak 0.80; class 1: elm -0.30"


def test_surface_distances_are_beside_what_changed_where_they_were_measured(
    write_run: WriteRun,
) -> None:
    runs = []
    for name, distance in (("FedAvg", 7.25), ("FedCE", 5.5)):
        run = write_run(name, {"elm": 0.8})
        measured = {"test_score": 0.8, "test_hd95": {"value": distance, "stderr": 1.0, "n": 3}}
        replace_closing_scores(run, {"elm": {"own": measured}})
        runs.append(run)
    text = page_of(*runs).text
    assert "Boundary, FedAvg" in text and "7.2 mm" in text and "5.5 mm" in text
    assert "Boundary" not in page_of(write_run("FedAvg", {"elm": 0.8}, folder="one")).text


def test_free_rider_scores_notes_and_missing_weights_are_on_the_page(write_run: WriteRun) -> None:
    sites = ["elm", "oak", "yew"]
    record = {
        "measurements": {
            "elm": {"global_score": 0.5, "local_score": 0.51},
            "oak": {"global_score": 0.5, "local_score": 0.51},
            "yew": {"global_score": 0.5, "local_score": 0.9},
        },
        "gram": {"clients": sites, "whole": np.eye(3).tolist()},
        "aggregation": dict.fromkeys(sites, 1 / 3),
        "notes": {"oak": "cka absent: mean of the others used"},
    }
    run = write_run("FedAvg", dict.fromkeys(sites, 0.8), rounds=[record] * 3)
    page = page_of(run, write_run("Standalone", dict.fromkeys(sites, 0.7)))
    assert "the free-rider score of yew was above 5 times" in page.text
    scores = page.drawing("Free-rider score by round, FedAvg").findtext("desc") or ""
    assert all(f"{site}: " in scores for site in sites)
    assert "cka absent: mean of the others used" in page.text


def test_ledgers_without_details_or_scores_show_neither(page: Elements) -> None:
    assert "own quantities" not in page.text
    assert "Free-rider" not in page.text


def test_one_run_of_one_site_and_one_without_any_round_make_pages(
    write_run: WriteRun, tmp_path: Path
) -> None:
    write_report([write_run("FedAvg", {"elm": 0.5})])
    empty = write_run("FedCE", {"elm": 0}, rounds=(), finished=False)
    write_report([empty])
    page = Elements((empty / "report.html").read_text())
    assert "FedCE is unfinished, 0 rounds" in page.text
    assert not page.drawings


@pytest.mark.slow
def test_equal_runs_give_equal_pages_wherever_they_lie(comparison: Path, tmp_path: Path) -> None:
    for out in ("a", "b"):
        write_report([comparison], tmp_path / out)
    names = ("report.html", "report.json", "metrics.csv", "contributions.csv")
    for name in (*names, f"{SITE_REPORTS}/elm.html"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


def test_without_the_extra_the_numbers_are_written_and_the_error_says_what_to_install(
    write_run: WriteRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = write_run("FedAvg", {"elm": 0.5})
    monkeypatch.setitem(sys.modules, "jinja2", None)
    with pytest.raises(ConfigError, match=r'pip install "monai_fairfl\[report\]"'):
        write_report([run])
    assert {"report.json", "metrics.csv", "contributions.csv"} <= {
        path.name for path in run.iterdir()
    }
    assert not (run / "report.html").exists()


def test_the_report_goes_to_the_one_folder_or_to_what_holds_all(
    write_run: WriteRun, tmp_path: Path
) -> None:
    runs = [write_run("FedAvg", {"elm": 0.5}), write_run("FedCE", {"elm": 0.5})]
    write_report(runs[:1])
    assert (runs[0] / "report.html").exists()
    returned = write_report(runs)
    assert json.loads((runs[0].parent / "report.json").read_text()) == returned


def test_a_page_that_cannot_be_made_never_costs_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*arguments: Any) -> None:
        raise KeyError("a number that nobody foresaw")

    monkeypatch.setattr("monai_fairfl.report.write.write_report", broken)
    assert write_report_if_possible([tmp_path], tmp_path) is None
    assert "a number that nobody foresaw" in caplog.text


def test_fedavgs_dice_has_a_column_before_that_of_the_method(
    write_run: WriteRun, tmp_path: Path
) -> None:
    runs = [write_run(name, {"elm": 0.8, "oak": 0.7}) for name in ("Standalone", "FedCE")]
    for federated in (runs, [*runs, write_run("FedAvg", {"elm": 0.6, "oak": 0.7})]):
        report = write_report(federated, tmp_path)
        assert report["focus"] == "FedCE"
        page = (tmp_path / "report.html").read_text()
        columns = page.count('<th scope="col">FedAvg</th><th scope="col">FedCE</th>')
        # The table of what changed against FedAvg has both, too.
        assert columns == (2 if len(federated) == 3 else 0)
        assert ('<td data-label="FedAvg"><span class="number">0.600' in page) == bool(columns)
