# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""How long a training will take, as far as it is known before it begins."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import mean

from monai.bundle import ConfigParser

from monai_fairfl.bundle.jobs import Jobs, number_of_cases
from monai_fairfl.data.layouts import site_folders
from monai_fairfl.run_folder.full_run import duration_words
from monai_fairfl.run_folder.schedule import Schedule


def expected_time(line: ConfigParser, runs: Sequence[Path], same_size: bool) -> str:
    """The time that a training will take, as a sentence.

    It is that of the rounds that were done before. A new training takes ``case_seconds`` of the
    bundle for each case that it trains or validates with, in each local epoch of each strategy; its
    processes share that.

    Args:
        line: configuration of the training, of which nothing is built.
        runs: folder of each strategy's run.
        same_size: whether images and network are those of the bundle's files.
    """
    rounds = line["rounds"]
    done: list[float] = []
    for run in runs:
        done.extend(Schedule.read(run).seconds.values())
    left = len(runs) * rounds - len(done)
    if left <= 0:
        return "All rounds are done."
    if done:
        return f"{len(done)} rounds are done; {duration_words(mean(done) * left)} for the others."

    later = "The first round is timed, then the time for all is estimated."
    jobs = Jobs(line.get("jobs"), line.get("devices") or [line.get_parsed_content("device")])
    on_processors = not any("cuda" in device for device in jobs.devices)
    case_seconds = line.get("case_seconds")
    if case_seconds is None or not same_size or not on_processors:
        return later
    folders = site_folders(line["sites_root"])
    cases = sum(number_of_cases(str(folder)) for folder in folders.values())
    seconds = case_seconds * cases * line["local_epochs"] * left
    processes = jobs.workers(most=len(folders) * len(runs), threads=line["threads"])
    words = duration_words(seconds / processes)
    return f"Expected here: {words}, by the bundle's measured times. {later}"
