# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""How long a training will take, as far as it is known before it begins."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

from monai.bundle import ConfigParser

from monai_fairfl.bundle.configuration import parsed_value
from monai_fairfl.bundle.jobs import Jobs, number_of_cases
from monai_fairfl.bundle.preflight import data_folders, site_names
from monai_fairfl.cli.running import MonaiLine
from monai_fairfl.run_folder.schedule import Schedule
from monai_fairfl.utils.devices import has_bfloat16
from monai_fairfl.utils.words import duration_words, rounds_done


def expected_time(line: MonaiLine, runs: Sequence[Path]) -> str:
    """The time that a training will take, as a sentence.

    It is that of the rounds that were done before; runs that train at a time share it. A new
    training takes ``case_seconds`` of the bundle for each case that it trains or validates with, in
    each local epoch of each strategy; its processes share that. A recipe whose precision follows
    the hardware has one number for each. No time is known where the training's overrides or
    configuration files are not those of the bundle's files, or on a GPU.

    Args:
        line: that trains; nothing of it is built.
        runs: folder of each strategy's run.
    """
    settings = line.configuration()
    rounds = settings["rounds"]
    done: list[float] = []
    left = []
    for run in runs:
        seconds = list(Schedule.read(run).seconds.values())
        done.extend(seconds)
        left.append(max(0, rounds - len(seconds)))
    if not any(left):
        return "All rounds are done."

    devices = settings.get("devices") or [settings.get_parsed_content("device")]
    folders = _folders_of_sites(settings)
    most = len(folders) * len(runs)
    processes = Jobs(settings.get("jobs"), devices).workers(most, settings["threads"])
    if done:
        # Nothing is done before its longest run.
        in_turn = max(sum(left) / processes, max(left))
        words = duration_words(mean(done) * in_turn)
        return f"{rounds_done(len(done))}; {words} for the others."

    later = "The first round is timed, to estimate the rest."
    on_a_gpu = any("cuda" in device for device in devices)
    case_seconds = settings.get("case_seconds")
    if case_seconds is None or on_a_gpu or not _is_as_measured(line, settings):
        return later
    precision = ""
    if isinstance(case_seconds, Mapping):
        precision = "bfloat16" if has_bfloat16("cpu") else "float32"
        case_seconds = case_seconds[precision]
        precision = f" in {precision}"
    cases = sum(number_of_cases(folder) for folder in folders)
    drawn = min(parsed_value(settings, "clients_per_round") or len(folders), len(folders))
    of_a_round = case_seconds * cases * settings["local_epochs"] * drawn / len(folders)
    words = duration_words(of_a_round * sum(left) / processes)
    return f"Expected time: {words} on idle cores{precision}, as the bundle was measured. {later}"


def _folders_of_sites(settings: ConfigParser) -> list[str]:
    """Where the images of the sites are that take part."""
    root = Path(settings["sites_root"])
    any_folder = bool(settings.get("any_folder"))
    sites: Mapping[str, Mapping[str, Any]] = parsed_value(settings, "sites") or {}
    folders = data_folders(root, any_folder)
    found = []
    for name in site_names(root, parsed_value(settings, "site_names"), sites, any_folder):
        elsewhere = (sites.get(name) or {}).get("dataset_dir")
        found.append(str(elsewhere or folders[name]))
    return found


def _is_as_measured(line: MonaiLine, settings: ConfigParser) -> bool:
    """Whether images and network are those with which the bundle's times were measured."""
    bundle = Path(settings["bundle_root"])
    files = [file for file in line.files if Path(file).is_relative_to(bundle)]
    measured = MonaiLine(files, {}).configuration()
    for key in ("overrides", "config"):
        if (settings.get(key) or None) != (measured.get(key) or None):
            return False
    return True
