# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""How long a training will take, as far as it is known before it begins."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import mean

from monai.bundle import ConfigParser

from monai_fairfl.bundle.jobs import Jobs, number_of_cases
from monai_fairfl.bundle.preflight import data_folders
from monai_fairfl.cli.running import MonaiLine
from monai_fairfl.run_folder.full_run import duration_words
from monai_fairfl.run_folder.schedule import Schedule


def expected_time(line: MonaiLine, runs: Sequence[Path]) -> str:
    """The time that a training will take, as a sentence.

    It is that of the rounds that were done before. A new training takes ``case_seconds`` of the
    bundle for each case that it trains or validates with, in each local epoch of each strategy; its
    processes share that. No time is known where the training's overrides are not those of the
    bundle's files, or on a GPU.

    Args:
        line: that trains; nothing of it is built.
        runs: folder of each strategy's run.
    """
    settings = line.configuration()
    rounds = settings["rounds"]
    done: list[float] = []
    for run in runs:
        done.extend(Schedule.read(run).seconds.values())
    left = len(runs) * rounds - len(done)
    if left <= 0:
        return "All rounds are done."
    if done:
        return f"{len(done)} rounds are done; {duration_words(mean(done) * left)} for the others."

    later = "The first round is timed, to estimate the rest."
    devices = settings.get("devices") or [settings.get_parsed_content("device")]
    on_a_gpu = any("cuda" in device for device in devices)
    case_seconds = settings.get("case_seconds")
    if case_seconds is None or on_a_gpu or not _has_the_bundles_overrides(line, settings):
        return later
    folders = data_folders(Path(settings["sites_root"]), bool(settings.get("any_folder")))
    cases = sum(number_of_cases(str(folder)) for folder in folders.values())
    seconds = case_seconds * cases * settings["local_epochs"] * left
    most = len(folders) * len(runs)
    processes = Jobs(settings.get("jobs"), devices).workers(most, settings["threads"])
    words = duration_words(seconds / processes)
    return f"Expected time: {words} on idle cores, as the bundle was measured. {later}"


def _has_the_bundles_overrides(line: MonaiLine, settings: ConfigParser) -> bool:
    """Whether images and network have the size with which the bundle's times were measured."""
    bundle = Path(settings["bundle_root"])
    files = [file for file in line.files if Path(file).is_relative_to(bundle)]
    measured = MonaiLine(files, {}).configuration().get("overrides") or {}
    return bool((settings.get("overrides") or {}) == measured)
