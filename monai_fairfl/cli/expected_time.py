# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""About how long a training will take, before it begins."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from monai.bundle import ConfigParser

from monai_fairfl.bundle.jobs import Jobs, number_of_cases
from monai_fairfl.bundle.preflight import data_folders
from monai_fairfl.utils.devices import has_bfloat16


def expected_time(settings: ConfigParser, runs: int) -> str:
    """About how long the chosen recipe takes on this machine, as a sentence.

    ``case_seconds`` of the bundle for each case, round and local epoch of each run; the processes
    share that. Empty where the bundle names none, on a GPU, and for a run that goes on.

    Args:
        settings: of the training.
        runs: number of trainings.
    """
    seconds = settings.get("case_seconds")
    devices = settings.get("devices") or [settings.get_parsed_content("device")]
    on_a_gpu = any("cuda" in device for device in devices)
    if seconds is None or on_a_gpu or Path(settings["run_dir"], "log.txt").exists():
        return ""
    if isinstance(seconds, Mapping):
        # A recipe whose precision follows the hardware.
        seconds = seconds["bfloat16" if has_bfloat16("cpu") else "float32"]
    folders = data_folders(Path(settings["sites_root"]), bool(settings.get("any_folder")))
    cases = sum(number_of_cases(str(folder)) for folder in folders.values())
    most = len(folders) * runs
    processes = Jobs(settings.get("jobs"), devices).workers(most, settings["threads"])
    epochs = settings["rounds"] * settings["local_epochs"] * runs
    words = duration_words(seconds * cases * epochs / processes)
    return f"Expected time: {words} on idle cores, as the bundle was measured."


def duration_words(seconds: float) -> str:
    """An estimated time, as coarse as it is known.

    >>> duration_words(20), duration_words(600), duration_words(9000)
    ('about a minute', 'about 10 minutes', 'about 2.5 hours')
    """
    minutes = max(1, round(seconds / 60))
    if minutes == 1:
        return "about a minute"
    if minutes < 90:
        return f"about {minutes} minutes"
    return f"about {seconds / 3600:.1f} hours"
