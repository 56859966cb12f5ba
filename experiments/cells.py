# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""A cell of a study from its keys to its rows, as the package's scheduler deals it out.

It may be trained in another process, which knows this module and not the script that is run.
"""

from __future__ import annotations

import platform
import shutil
import time
from dataclasses import dataclass, replace
from pathlib import Path

import tables
import torch
from monai.bundle import ConfigParser
from study import FEDERATE, ROOT, Cell, Study, rounded
from summary import summary

import monai_fairfl
from monai_fairfl.bundle.federation import BundleFederation
from monai_fairfl.bundle.trainings import Training, remove_spare, run_logged
from monai_fairfl.errors import ConfigError
from monai_fairfl.transports.workers import Turn
from monai_fairfl.utils.files import locked, write_atomically


def processor(device: str = "cpu") -> str:
    """Name of the processor or GPU: on another one a long training ends in other numbers."""
    if torch.device(device).type == "cuda":
        return torch.cuda.get_device_name(device)
    information = Path("/proc/cpuinfo")
    if information.exists():
        for line in information.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


@dataclass(frozen=True)
class CellOfStudy:
    """A cell that has no result yet.

    Args:
        study: of the cell.
        cell: of the study.
        sites_root: folder of its sites.
        data: folder of real images.
        runs: folder of all runs.
        table: of the results, without its ending.
        device: that trains it.
    """

    study: Study
    cell: Cell
    sites_root: Path
    data: Path
    runs: Path
    table: Path
    device: str = "cpu"

    @property
    def folder(self) -> Path:
        """The folder of its run."""
        return self.runs.absolute() / self.study.name / self.cell.name

    def training(self) -> Training:
        """Return its training, which ends with its rows in the table."""
        return Training(
            title=f"{self.study.name} {self.cell.name}",
            rounds=self.study.rounds_of(self.cell),
            run=self.run,
            waits=self.study.alone_of(self.cell) is not None,
        )

    def federation(self, turn: Turn) -> BundleFederation:
        """Make the federation that its command would run.

        Raises:
            ConfigError: when a key of the study is misspelt or cannot be used.
        """
        bundle = ROOT / "bundles" / self.study.bundle
        folders = (bundle, self.sites_root.absolute(), self.folder, self.data.absolute())
        keys = self.study.keys_of(self.cell, *folders, self.device)
        self._require_models_trained_alone()
        parser = ConfigParser()
        parser.read_config(str(bundle / FEDERATE))
        for key, value in keys.items():
            parser[key] = value
        parser["jobs"] = turn.jobs
        try:
            # The bundle's check comes first, as where MONAI runs the command.
            parser.get_parsed_content("initialize")
            federation: BundleFederation = parser.get_parsed_content("federation")
        except RuntimeError as error:  # MONAI's, around that of the check
            where = f"{self.study.name} {self.cell.name}"
            raise ConfigError(f"{where}: {error.__cause__ or error}") from error
        return federation

    def _require_models_trained_alone(self) -> None:
        """Refuse to leave out a candidate of the last mile because its run was deleted."""
        alone = self.study.alone_of(self.cell)
        if alone is None or alone.name not in tables.read(self.table):
            # It is trained before this one.
            return
        models = self.folder.parent / alone.name / "models"
        if not models.is_dir():
            raise ConfigError(
                f"{models} is not there, and models are not committed: train {alone.name} again, "
                f"by run.py {self.study.name} --only {alone.name} --again"
            )

    def run(self, turn: Turn) -> bool:
        """Train and test, add the result to the table, and remove what only resuming needs.

        Returns:
            Whether it is finished; ``False`` when a signal stopped it.

        Raises:
            FederationError: another runner trains it at the moment.
        """
        with locked(self.folder / "cell"):
            # Another runner may have finished it since this one began.
            return self.cell.name in tables.read(self.table) or self._run(turn)

    def _run(self, turn: Turn) -> bool:
        done = self.folder / "done"
        command = self.study.recorded_command(self.cell, self.device)
        if done.exists() and done.read_text() != command:
            # Its numbers would be written as those of this command.
            raise ConfigError(
                f"{self.folder} has a finished run of another command than the study has now: "
                "delete this folder, and train again"
            )
        file = self.folder / "minutes.txt"
        # Those of a run that was stopped included.
        minutes = float(file.read_text()) if file.exists() else 0.0
        # A finished run has no checkpoints any more: only its rows are written again.
        if not done.exists():
            # Of the processor: other work on the machine does not count.
            started = time.process_time()
            try:
                # Its sites take turns in this process, whose time is counted.
                alone = replace(turn, jobs=1)
                finished = run_logged(self.folder, lambda turn: self.federation(turn).run(), alone)
            finally:
                minutes += (time.process_time() - started) / 60
                write_atomically(file, str(minutes).encode())
            if not finished:
                return False
            write_atomically(done, command.encode())
        result = {
            "version": monai_fairfl.__version__,
            "minutes": round(minutes, 1),
            "processor": processor(self.device),
            **summary(self.folder, self.study.keep),
        }
        order = [cell.name for cell in self.study.cells()]
        tables.add(self.table, {self.cell.name: rounded(result)}, order)
        remove_spare(self.folder)
        shutil.rmtree(self.folder / "updates", ignore_errors=True)
        return True
