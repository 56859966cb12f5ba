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

import numpy as np
import pytest

from monai_fairfl.errors import ConfigError
from monai_fairfl.report import write_report, write_report_if_possible
from monai_fairfl.report.figures import small_multiples

pytest.importorskip("jinja2")
pytest.importorskip("plotly")

WriteRun = Callable[..., Path]
EVIL = [
    "<script>alert(1)</script>",
    "</script><script>alert(2)</script>",
    '"><img src=x onerror=alert(3)>',
    "'+alert(4)+'",
]


class Elements(HTMLParser):
    """Reads a page as a browser does.

    The body of a script ends at the first ``</script``; all else is tags and text.
    """

    def __init__(self, page: str):
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.text = ""
        self._inside = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._inside = tag
        if tag == "script":
            self.scripts.append("")

    def handle_endtag(self, tag: str) -> None:
        self._inside = ""

    def handle_data(self, data: str) -> None:
        if self._inside == "script":
            self.scripts[-1] += data
        elif self._inside != "style":
            self.text += data


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


def test_plotly_is_inside_once_and_draws_the_three_plots(page: Elements) -> None:
    plotly, *plots = page.scripts
    assert len(plotly) > 1_000_000
    names = [re.findall(r'newPlot\("([\w-]+)"', script)[0] for script in plots]
    assert names == ["plot-dice", "plot-weights", "plot-contributions"]
    assert all(len(script) < 1_000_000 for script in plots)


def test_sentences_tables_and_heads_are_on_the_page(
    page: Elements, comparison: Path, tmp_path: Path
) -> None:
    report = write_report([comparison], tmp_path)
    for sentence in report["sentences"].values():
        assert sentence in page.text
    for found in report["strategies"].values():
        assert f"{found['performance']['mean']:.3f}" in page.text
        assert found["ledger_head"] in page.text
    assert "ConnectionError: the hospital's line is down" in page.text
    assert "where the strategy knows it. FedCE: share of the average. FedAvg" in page.text


def test_bands_of_a_standard_error_surround_contributions_that_have_one(page: Elements) -> None:
    traces, _ = figure(page, "contributions")
    bands = [trace for trace in traces if trace.get("fill") == "toself"]
    assert len(bands) == 4  # FedCE's sites, not FedAvg's
    assert all(trace["hoverinfo"] == "skip" for trace in bands)


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
    report = write_report([run, alone], tmp_path / "out")
    page = Elements((tmp_path / "out" / "report.html").read_text())
    for tag, attributes in page.tags:
        assert tag != "img"
        assert not [name for name in attributes if name.startswith("on")]
    for sentence in report["sentences"].values():
        assert sentence in page.text

    _, *plots = page.scripts
    assert len(plots) == 6
    for script in plots:
        assert not script.lstrip().startswith("alert")
        _, layout, rest = parts_of(script)
        # The statement is whole: no string in it ended early.
        assert rest.strip().startswith(", {responsive")
        assert "alert" not in rest
        # Plotly's own markup is escaped, too.
        assert "<" not in script
        for title in layout.get("annotations", ()):
            assert "FedCE" not in title["text"] or "&lt;" in title["text"]


def parts_of(script: str) -> tuple[list[dict[str, Any]], dict[str, Any], str]:
    """Traces and layout of a plot's script, and what follows them."""
    decoder = json.JSONDecoder()
    traces, end = decoder.raw_decode(script, script.index("["))
    layout, end = decoder.raw_decode(script, script.index("{", end))
    return traces, layout, script[end:]


def figure(page: Elements, id: str) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Traces and layout of one plot."""
    start = f'Plotly.newPlot("plot-{id}"'
    (script,) = [script for script in page.scripts if script.strip().startswith(start)]
    traces, layout, _ = parts_of(script)
    return traces, layout


def page_of(*runs: Path) -> Elements:
    write_report(runs, runs[0])
    return Elements((runs[0] / "report.html").read_text())


@pytest.mark.parametrize(
    ("number", "first_rows", "best_of"),
    [
        (4, r"Strategyhospital00hospital01hospital02hospital03\s+Standalone0.500± 0.010", "column"),
        (40, r"StandaloneFedAvg\s+hospital000.500± 0.010\s+0.500± 0.010\s+hospital01", "row"),
    ],
)
def test_many_sites_are_rows_and_their_legend_does_not_squeeze_the_plots(
    number: int, first_rows: str, best_of: str, write_run: WriteRun
) -> None:
    scores = {f"hospital{index:02d}": (0.5 + index / 100, 0.01, 9) for index in range(number)}
    rounds = [{"measurements": {site: {"global_score": 0.5} for site in scores}}]
    runs = [write_run(name, scores, rounds=rounds) for name in ("Standalone", "FedAvg")]
    page = page_of(*runs)
    assert re.search(first_rows, page.text)
    assert f"best of each {best_of}" in page.text

    _, layout = figure(page, "dice")
    assert layout["height"] - layout["margin"]["t"] - layout["margin"]["b"] == 210
    lines_of_legend = {4: 1, 40: 5}  # a line holds eight entries
    assert layout["margin"]["b"] == 84 + 30 * (lines_of_legend[number] - 1)


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
        "Agreement with the server's step",
        "1 is the same direction",
        "temper",
        "As the strategy reports it",
    ):
        assert words in page.text
    lines, layout = figure(page, "quantity-1")
    drawn = {line["name"]: (line["x"], line["y"]) for line in lines}
    assert drawn == {"elm": ([0, 1], [0.9, 0.8]), "oak": ([0], [-0.2])}
    assert layout["yaxis"]["title"]["text"] == "Cosine"
    assert figure(page, "quantity-3")[0][0]["y"] == [3.0]  # an estimate is one number
    shared = figure(page, "quantity-2")[1]
    assert [title["text"] for title in shared["annotations"]] == ["CGSV", "FedAvg"]  # a panel each


def test_quantities_of_the_same_name_and_another_meaning_get_figures_of_their_own(
    write_run: WriteRun,
) -> None:
    gap = [{"details": {"gap": {"elm": 0.1, "oak": 0.2}}}]
    scores = {"elm": 0.8, "oak": 0.7}
    page = page_of(*[write_run(name, scores, rounds=gap) for name in ("FairFed", "FedGA", "Mine")])
    units = []
    for number in (1, 2, 3):
        _, layout = figure(page, f"quantity-{number}")
        units.append(layout["yaxis"]["title"]["text"])
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
    own, valued = figure(page, "valued-1")[0]
    assert own["name"] == "its own contributions"
    assert own["x"] == ["elm", "oak"]
    assert own["y"] == [0.4, 0.6]
    assert valued["name"] == VALUATION["name"]
    assert valued["y"] == [0.0, 1.0]
    assert "valued-2" not in "".join(page.scripts[1:])


@pytest.mark.parametrize("damage", ["{", '{"name": "x"}', "3"])
def test_a_damaged_valuation_is_named_with_the_way_to_make_it_again(
    write_run: WriteRun, damage: str
) -> None:
    run = write_run("FedCE", {"elm": 0.8})
    (run / "valuations").mkdir()
    (run / "valuations" / "one.json").write_text(damage)
    with pytest.raises(
        ConfigError, match=r"one\.json is damaged; remove it, and .*--resume True makes it again"
    ):
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

    (weights,), layout = figure(page, "map-1")
    assert weights["z"] == [[0.5, 0.5], [0.25, 0.75]]
    assert "%{z" in weights["hovertemplate"]
    assert layout["xaxis"]["ticktext"] == ["elm", "oak"]
    assert layout["yaxis"]["ticktext"] == ["down", "bottom"]

    (values,), layout = figure(page, "map-2")
    assert values["z"] == [[0.9, 0.8], [-0.3, None]]
    assert values["zmid"] == 0
    assert layout["yaxis"]["ticktext"] == ["class 0", "class 1"]


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
    assert [line["name"] for line in figure(page, "free-riders")[0]] == sites
    assert "cka absent: mean of the others used" in page.text
    assert "Standalone averages nothing and has no weights" in page.text


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
    assert not page.scripts


def test_weights_averaged_over_layers_say_so_on_the_page(write_run: WriteRun) -> None:
    layered = {"aggregation": {"conv": {"elm": 0.1, "oak": 0.9}, "head": {"elm": 0.3, "oak": 0.7}}}
    run = write_run("FedLWR", {"elm": 0.7, "oak": 0.8}, rounds=[layered])
    write_report([run])
    assert "the plain mean over its 2 layers" in Elements((run / "report.html").read_text()).text


@pytest.mark.slow
def test_equal_runs_give_equal_pages_wherever_they_lie(comparison: Path, tmp_path: Path) -> None:
    for out in ("a", "b"):
        write_report([comparison], tmp_path / out)
    for name in ("report.html", "report.json", "metrics.csv", "contributions.csv"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


@pytest.mark.parametrize("missing", ["jinja2", "plotly.offline"])
def test_without_the_extra_the_numbers_are_written_and_the_error_says_what_to_install(
    missing: str, write_run: WriteRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = write_run("FedAvg", {"elm": 0.5})
    monkeypatch.setitem(sys.modules, missing, None)
    monkeypatch.delitem(sys.modules, "monai_fairfl.report.figures", raising=False)
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


def test_a_site_that_the_first_strategy_lacks_is_in_the_legend() -> None:
    point = [{"round": 0, "value": 0.5}]
    series = {"Standalone": {"elm": point}, "FedAvg": {"elm": point, "oak": point}}
    traces = small_multiples(series, ["elm", "oak"], "Dice")["data"]  # type: ignore[index]
    assert [trace["name"] for trace in traces if trace.get("showlegend")] == ["elm", "oak"]


def test_a_page_that_cannot_be_made_never_costs_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*arguments: Any) -> None:
        raise KeyError("a number that nobody foresaw")

    monkeypatch.setattr("monai_fairfl.report.write.write_report", broken)
    assert write_report_if_possible([tmp_path], tmp_path) is None
    assert "a number that nobody foresaw" in caplog.text
