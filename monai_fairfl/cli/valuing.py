# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The command ``value``: what each hospital was worth to a finished run."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from monai_fairfl.cli.options import LOG, Answer, add, say
from monai_fairfl.errors import ConfigError

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
    add(command, "--verbose")


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
    from monai_fairfl.bundle.configuration import FEDERATE
    from monai_fairfl.cli.running import MonaiLine
    from monai_fairfl.report.collect import find_runs, read_records, read_valuations
    from monai_fairfl.run.resuming import SETTINGS, ended, recorded_config

    folder = find_runs([args.run_dir])[0].absolute()
    if not (folder / SETTINGS).is_file():
        # One of several strategies.
        folder = folder.parent
    keys = recorded_config(folder).get("keys")
    if keys is None:
        raise ConfigError(
            f"{folder} was not trained in processes of this machine. Over NVIDIA FLARE and Flower "
            "the hospitals score in each round: train with the strategy LeaveOneOut; in Python, "
            "give BundleFederation its valuations"
        )
    runs = find_runs([folder])
    if not all(ended(run) for run in runs):
        raise ConfigError(f"{folder} has not ended: the command that began it goes on")
    start = read_records(runs[0])[0]
    if keys["record_updates"]:
        from monai_fairfl.games import MOST_PLAYERS

        kind = "Reconstruction"
        methods = ["leave_one_out", "exact" if len(start["clients"]) <= MOST_PLAYERS else "gtg"]
    else:
        kind, methods = "Retraining", ["leave_one_out"]
        if not args.retrain:
            _ask(folder, runs, len(start["clients"]))
    judged = {"judged_by": "others"} if args.others_judge else {}
    target = {"_target_": f"monai_fairfl.valuation.{kind}", **judged}
    keys["valuations"] = [{**target, "method": method} for method in methods]
    keys |= {"run_dir": str(folder), "resume": True}
    line = MonaiLine([str(Path(keys["bundle_root"]) / FEDERATE)], keys)
    say(f"Into the folder {folder}")
    line.run(folder / LOG, args.verbose)

    found = {}
    lines = []
    for run in runs:
        of_run = [one for one in read_valuations(run) if one["name"].startswith(kind.lower())]
        of_run = [one for one in of_run if one["method"] in methods and one["data"] == "validation"]
        name = read_records(run)[0]["name"]
        found[name] = sorted(of_run, key=lambda one: methods.index(one["method"]))
        lines.append(_table(name, found[name]))
    page = folder / "report.html"
    data = {"run": str(folder), "command": line.text, "values": found, "report": str(page)}
    return Answer(data, "\n".join([*lines, f"Report: {page}"]))


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


def _table(name: str, valuations: Sequence[Mapping[str, Any]]) -> str:
    """A line for each hospital of a run, with its values and their intervals."""
    from monai_fairfl.utils.tables import text_of_table

    if not valuations:
        return f"{name} averages nothing: it has no values"
    rows = []
    for site in valuations[0]["values"]:
        row = [site]
        for valuation in valuations:
            cell = f"{valuation['values'][site]['value']:+.4f}"
            if interval := (valuation.get("intervals") or {}).get(site):
                cell += " ({:+.4f} to {:+.4f})".format(*interval)
            row.append(cell)
        rows.append(row)
    return text_of_table([name, *[TITLES[one["method"]] for one in valuations]], rows)
