# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The command ``value``: what each hospital was worth to a finished run."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from monai_fairfl.cli.command import Answer, add_verbose, progress_stream
from monai_fairfl.errors import ConfigError

if TYPE_CHECKING:
    from monai_fairfl.cli.running import MonaiLine

TITLES = {"leave_one_out": "leave-one-out", "exact": "Shapley", "gtg": "Shapley (GTG)"}
"""Method of a valuation -> its column."""


def value_options(command: argparse.ArgumentParser) -> None:
    """Add the options of ``value``."""
    command.add_argument(
        "run_dir", metavar="RUN", help="folder of a run of train, demo or try, or of several"
    )
    command.add_argument(
        "--retrain",
        action="store_true",
        help="train federations without each hospital, which a run without updates needs",
    )
    command.add_argument(
        "--others-judge",
        action="store_true",
        help="no hospital's own scores count for its own value",
    )
    add_verbose(command)


def value(args: argparse.Namespace) -> Answer:
    """Answer what each hospital was worth to a run: leave-one-out and Shapley values.

    With recorded updates (demo, or train --record-updates) nothing is trained: every hospital
    scores the models of coalitions on its validation cases. Without them, the command says what
    training anew would take, and asks. The intervals are over the hospitals that score.
    docs/valuation.md has more kinds of values.

    examples:
      monai-fairfl value demo/run
      monai-fairfl value runs/fedce --retrain
    """
    from monai_fairfl.cli.running import require_end
    from monai_fairfl.report.collect import find_runs, read_records
    from monai_fairfl.run.resuming import SETTINGS, recorded_config

    folder = find_runs([args.run_dir])[0].absolute()
    if not (folder / SETTINGS).is_file():
        # One of several strategies.
        folder = folder.parent
    settings = recorded_config(folder)
    if settings.get("command") is None:
        raise ConfigError(
            f"{folder} was not trained by a command of this machine. Over NVIDIA FLARE and Flower "
            "the hospitals score in each round: train with the strategy LeaveOneOut; in Python, "
            "give BundleFederation its valuations"
        )
    runs = find_runs([folder])
    require_end(folder)
    sites = list(settings["data"])
    judged = {"judged_by": "others"} if args.others_judge else {}
    if settings["federation"].get("record_updates"):
        from monai_fairfl.games import MOST_PLAYERS

        kind = "Reconstruction"
        methods = ["leave_one_out", "exact" if len(sites) <= MOST_PLAYERS else "gtg"]
    else:
        if not args.retrain:
            _ask(folder, runs, len(sites))
        kind, methods = "Retraining", ["leave_one_out"]
    valuations = []
    for method in methods:
        target = f"monai_fairfl.valuation.{kind}"
        valuations.append({"_target_": target, "method": method, **judged})
    line = line_of_words(settings["command"], {"resume": True, "valuations": valuations})
    print(f"Log: {folder / 'log.txt'}", file=progress_stream(args), flush=True)
    line.run(folder / "log.txt", args.verbose)

    from monai_fairfl.report.collect import read_valuations

    found = {}
    for run in runs:
        of_run = [one for one in read_valuations(run) if one["name"].startswith(kind.lower())]
        of_run = [one for one in of_run if one["method"] in methods and one["data"] == "validation"]
        name = read_records(run)[0]["name"]
        found[name] = sorted(of_run, key=lambda one: methods.index(one["method"]))
    lines = []
    for name, of_run in found.items():
        lines += _table(name, of_run) if of_run else [f"{name} averages nothing: it has no values"]
    page = folder / "report.html"
    data = {"run": str(folder), "command": line.text, "values": found, "report": str(page)}
    return Answer(data, "\n".join([*lines, f"Report: {page}"]))


def line_of_words(words: Sequence[str], keys: Mapping[str, Any]) -> MonaiLine:
    """The line of ``python -m monai.bundle run`` that a run recorded, with other keys.

    >>> words = ["python", "-m", "monai.bundle", "run", "--config_file", "a.json", "--rounds", "3"]
    >>> line_of_words(words, {"resume": True}).arguments
    {'rounds': 3, 'resume': True}
    """
    from monai_fairfl.cli.running import MonaiLine
    from monai_fairfl.utils.plain_values import written_value
    from monai_fairfl.utils.settings import one_or_several

    given: dict[str, Any] = {}
    for name, text in zip(words[4::2], words[5::2], strict=True):
        try:
            given[name.removeprefix("--")] = written_value(text)
        except ValueError:
            given[name.removeprefix("--")] = text
    files = one_or_several(given.pop("config_file"))
    return MonaiLine(files, {**given, **keys})


def _ask(folder: Path, runs: Sequence[Path], sites: int) -> None:
    """Say what training anew takes, and end unless a person at a terminal wants it.

    Raises:
        ConfigError: nobody wants it.
    """
    from monai_fairfl.run.checkpoint import Schedule

    seconds = [sum(Schedule.read(run).seconds.values()) for run in runs]
    minutes = max(1, round(max(seconds) * (sites + 1) / 60))
    text = (
        f"{folder} recorded no updates, so {sites + 1} federations would have to be trained, in "
        f"about {minutes} minutes"
    )
    if not sys.stdin.isatty():
        raise ConfigError(f"{text}: monai-fairfl value {folder} --retrain trains them")
    print(f"{text}. Train them? [y/N] ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise ConfigError("nothing was trained")


def _table(name: str, valuations: Sequence[Mapping[str, Any]]) -> list[str]:
    """A line for each hospital of a run, with its values and their intervals."""
    from monai_fairfl.utils.tables import text_of_table

    rows = []
    for site in valuations[0]["values"]:
        row = [site]
        for valuation in valuations:
            cell = f"{valuation['values'][site]['value']:+.4f}"
            interval = (valuation.get("intervals") or {}).get(site)
            if interval is not None:
                low, high = interval
                cell += f" ({low:+.4f} to {high:+.4f})"
            row.append(cell)
        rows.append(row)
    titles = [name, *[TITLES[valuation["method"]] for valuation in valuations]]
    return text_of_table(titles, rows).splitlines()
