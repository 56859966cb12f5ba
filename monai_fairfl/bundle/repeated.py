# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""A comparison over seeds and folds: runs the cells that are not done, then writes the tables."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from monai.bundle import ConfigParser

from monai_fairfl.bundle.cells import check_plan, trainings_of
from monai_fairfl.bundle.configuration import errors_in_one_line, parsed_value
from monai_fairfl.bundle.jobs import Jobs
from monai_fairfl.bundle.plan import ComparisonPlan
from monai_fairfl.bundle.several_runs import failure_of
from monai_fairfl.bundle.trainings import remove_spare, run_trainings
from monai_fairfl.errors import ConfigError, FederationError
from monai_fairfl.report.repeated import write_comparison
from monai_fairfl.report.repeated_tables import comparison_text
from monai_fairfl.run.resuming import ended
from monai_fairfl.transports.workers import prepare
from monai_fairfl.utils.files import locked, private_folder, write_atomically
from monai_fairfl.utils.plain_values import object_of_json
from monai_fairfl.utils.terminal import print_replacing

PLAN = "plan.json"

BESIDE = (".lock", "log.txt")
"""What a folder may hold besides a comparison."""


def run_comparison(
    plan: ComparisonPlan,
    out: Path,
    jobs: int | str | None = 1,
    devices: Sequence[str] | None = None,
) -> dict[str, Any]:
    """Train every cell of a plan that is not done, and write what came out.

    A cell that fails does not stop the others. A full disk and Ctrl-C end the comparison; the same
    call goes on. Every cell has its folder in ``out/cells``.

    Args:
        plan: what is trained.
        out: folder of the comparison; what it holds of the same plan goes on.
        jobs: processes that work at a time, see :class:`~monai_fairfl.bundle.jobs.Jobs`; the
            numbers are the same.
        devices: of the processes, in turn; ``None``: as the bundle has it.

    Returns:
        What ``comparison.json`` holds, see
        :func:`~monai_fairfl.report.repeated.write_comparison`.

    Raises:
        ConfigError: when ``out`` holds another comparison; it names what differs. Or when this
            machine lacks a device.
        FairFLError: what is wrong with the plan or the data; a signal stopped it; or no two
            strategies have cells that can be compared.
    """
    if devices:
        Jobs(jobs, devices).require_devices()
    with locked(out):
        require_same_plan(plan, out)
        trainings = trainings_of(plan, out)
        done = [training for training in trainings if ended(training.folder)]
        lists: dict[Path, bytes] = {}
        if len(done) < len(trainings):
            if Jobs(jobs, devices or ["cpu"]).workers(len(trainings), threads=1) > 1:
                # Libraries are imported for the workers in the meantime.
                prepare()
            lists = check_plan(plan, out)
        # The plan goes first: a folder without one holds nothing of a comparison.
        text = json.dumps(plan.record(), indent=4, default=str) + "\n"
        write_atomically(out / PLAN, text.encode())
        for file, content in lists.items():
            private_folder(file.parent)
            write_atomically(file, content)
        for training in done:
            # A crash may have come between its end and this.
            remove_spare(training.folder)
        failed = run_trainings(trainings, done, jobs, devices)
        finished = [training.folder for training in trainings if training.title not in failed]
        return write_comparison(out, plan.record(), finished, failed)


class RepeatedFederation:
    """What ``configs/federate.json`` runs where it asks for several seeds or for folds.

    It is the comparison of ``monai-fairfl compare``, of any number of sites, guards and settings
    that ``federate.json`` can give.

    Args:
        plan: what is trained.
        out: folder of the comparison.
        jobs: as :func:`run_comparison`.
        devices: as :func:`run_comparison`.
        resume: go on with what ``out`` holds; else a used folder is refused.
    """

    def __init__(
        self,
        plan: ComparisonPlan,
        out: Path,
        jobs: int | str | None = 1,
        devices: Sequence[str] | None = None,
        resume: bool = False,
    ):
        self.plan = plan
        self.out = out
        self.jobs = jobs
        self.devices = devices
        self.resume = resume

    @classmethod
    def from_parser(cls, parser: ConfigParser) -> RepeatedFederation:
        """The comparison that a configuration describes by its top-level keys.

        Args:
            parser: of the configuration, whose ``seeds`` or ``folds`` is given.

        Raises:
            ConfigError: when the keys do not go together.
        """
        value = partial(parsed_value, parser)
        return cls(
            ComparisonPlan.from_parser(parser),
            Path(value("run_dir")),
            value("jobs", 1),
            value("devices"),
            value("resume", False),
        )

    def run(self) -> dict[str, Any]:
        """Train every cell that is not done, write the tables and print them.

        Returns:
            What ``comparison.json`` holds.

        Raises:
            FairFLError: as :func:`run_comparison`; or the folder is used, and ``resume`` not set.
            FederationError: naming every cell that failed and why, after the others have run.
        """
        with errors_in_one_line():
            if (self.out / PLAN).exists() and not self.resume:
                raise FederationError(
                    f"{self.out} already holds a comparison: resume it (--resume True) or choose "
                    "another run_dir"
                )
            found = run_comparison(self.plan, self.out, self.jobs, self.devices)
            print_replacing(f"{comparison_text(found)}\nPage: {self.out / 'comparison.html'}")
            if found["failed"]:
                raise failure_of(found["failed"], len(self.plan.cells()), "trainings")
            return found


def require_same_plan(plan: ComparisonPlan, out: Path) -> None:
    """Refuse to mix two comparisons in one folder.

    Args:
        plan: what is asked for.
        out: folder of the comparison, which exists.

    Raises:
        ConfigError: naming each setting that differs, with both values; or when the folder holds
            something else.
    """
    file = out / PLAN
    asked = plan.record()
    if not file.exists():
        others = [path.name for path in out.iterdir() if path.name not in BESIDE]
        if others:
            raise ConfigError(
                f"{out} holds no comparison but {', '.join(sorted(others)[:3])}: give the "
                "comparison a folder of its own with --out"
            )
        return
    try:
        recorded = object_of_json(file.read_bytes())
    except ValueError as error:
        raise ConfigError(
            f"{file} is damaged ({error}): restore it, or give the comparison another folder"
        ) from error
    # As JSON has it: tuples are lists.
    plain = json.loads(json.dumps(asked, default=str))
    differences = []
    for name in plain:
        differences += _differences(name, recorded.get(name), plain[name])
    if differences:
        raise ConfigError(
            f"{out} holds another comparison: {'; '.join(differences)}. Give the same "
            "command as before to go on with it, or another folder with --out"
        )


def _differences(name: str, before: Any, now: Any) -> list[str]:
    """What differs in one entry of a plan; of values by name, each that does."""
    if before == now:
        return []
    if not (isinstance(before, Mapping) and isinstance(now, Mapping)):
        return [f"{name} was {before}, asked for is {now}"]
    if name == "strategies":
        # As a user gave them: the names are those of their folders.
        return [f"strategies was {list(before.values())}, asked for is {list(now.values())}"]
    differences = []
    for key in dict.fromkeys([*before, *now]):
        differences += _differences(f"{key} of {name}", before.get(key), now.get(key))
    return differences
