# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""What a federation saves beside its ledger: checkpoints, models for inference, its schedule.

Each checkpoint is written whole or not at all.
"""

from __future__ import annotations

import json
import logging
import platform
import re
import shutil
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load as load_tensors

from monai_fairfl.errors import FairFLError, FederationError
from monai_fairfl.messages import Measurement, ModelSpec, Weights, value_of
from monai_fairfl.model_files.recipe import ModelRecipe, save_model_file
from monai_fairfl.utils.files import (
    MANIFEST,
    read_listed,
    safe_name,
    tensors_as_bytes,
    write_atomically,
    write_folder,
)
from monai_fairfl.utils.plain_values import object_of_json

logger = logging.getLogger(__name__)

REWARDS = "rewards/"

SCHEDULE = "schedule.json"

NAME = re.compile(r"round-([0-9]+)")
"""Of a checkpoint's folder."""


@contextmanager
def reading(what: str) -> Iterator[None]:
    """Name what cannot be read inside.

    Raises:
        FederationError: when it cannot.
    """
    try:
        yield
    except (FairFLError, MemoryError):
        raise
    except Exception as error:  # whatever a reader raises of what is not in its form
        raise FederationError(
            f"{what} is damaged or cannot be read ({error!r}): restore it from a copy, or mend the "
            "cause, such as a missing permission"
        ) from error


@dataclass(frozen=True)
class Checkpoint:
    """All that a federation needs to go on after ``round``: models, and ``state`` (JSON).

    >>> import torch
    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     checkpoints = Checkpoints(Path(folder))
    ...     checkpoints.save(Checkpoint(4, {"w": torch.ones(1)}, state={"rounds": 10}))
    ...     found = checkpoints.load()
    >>> found.round, found.weights, found.state
    (4, {'w': tensor([1.])}, {'rounds': 10})
    """

    round: int
    weights: Weights
    rewards: Mapping[str, Weights] = field(default_factory=dict)
    state: Mapping[str, Any] = field(default_factory=dict)


@dataclass
class Checkpoints:
    """The folder ``checkpoints/round-NNNN/``; tensors as safetensors, everything else JSON, never a
    pickle.

    Args:
        folder: where the rounds' folders stand.
        keep: how many of the newest to keep, at least 2: a damaged one needs a predecessor.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     checkpoints = Checkpoints(Path(folder), keep=2)
    ...     for number in range(3):
    ...         checkpoints.save(Checkpoint(number, {}))
    ...     [path.name for path in checkpoints.newest_first()]
    ['round-0002', 'round-0001']
    """

    folder: Path
    keep: int = 3

    def save(self, checkpoint: Checkpoint) -> None:
        """Write a checkpoint so that a crash at any moment leaves either all of it or nothing."""
        final = self.folder / f"round-{checkpoint.round:04d}"
        state = json.dumps(checkpoint.state, sort_keys=True, indent=1).encode()
        whole = {"model.safetensors": checkpoint.weights}
        for client, reward in checkpoint.rewards.items():
            whole[f"{REWARDS}{safe_name(client)}.safetensors"] = reward
        # One model at a time in memory.
        models = ((name, tensors_as_bytes(model)) for name, model in whole.items())
        write_folder(final, chain([("strategy.json", state)], models), {"round": checkpoint.round})
        for folder in self.newest_first()[self.keep :]:
            shutil.rmtree(folder)

    def load(self) -> Checkpoint | None:
        """The newest checkpoint; ``None`` when there is none.

        Raises:
            FederationError: when it is damaged, or cannot be read at present.
        """
        folders = self.newest_first()
        return read_checkpoint(folders[0]) if folders else None

    def newest_first(self) -> list[Path]:
        """The folders of all checkpoints, whole or not."""
        numbers = {}
        for path in self.folder.glob("round-*"):
            name = NAME.fullmatch(path.name)
            if name is not None:
                numbers[path] = int(name[1])
        return sorted(numbers, key=numbers.__getitem__, reverse=True)


def read_checkpoint(folder: Path) -> Checkpoint:
    """One checkpoint, each file checked against the manifest.

    Raises:
        FederationError: when it is not what was written, or cannot be read.
    """
    with reading(f"checkpoint {folder}"):
        manifest = object_of_json((folder / MANIFEST).read_bytes())
        files = {name: read_listed(folder, name, manifest) for name in manifest["sha256"]}
        of_rewards = [name for name in files if name.startswith(REWARDS)]
        rewards = {Path(name).stem: load_tensors(files[name]) for name in of_rewards}
        weights = load_tensors(files["model.safetensors"])
        state = object_of_json(files["strategy.json"])
        return Checkpoint(manifest["round"], weights, rewards, state)


# ---- models for inference


@dataclass
class Models:
    """Writes ``global.pt``, ``best.pt`` and, for each reward, ``CLIENT.pt``.

    A bundle's network loads them. None is written where some tensors never leave the clients: each
    has a whole model of its own then.

    Args:
        folder: ``run_dir/models``.
        spec: the model's tensors.
        everybody: the clients that the run began with. A score is the mean over all of them, since
            one over some is over other patients.
        withheld: names of the tensors that never leave the clients.
        recipe: how the models were trained, written into each file; ``None``: unknown.
        best: round and mean validation score of the best global model so far.

    >>> import torch
    >>> from pathlib import Path
    >>> from tempfile import TemporaryDirectory
    >>> from monai_fairfl import ModelSpec
    >>> with TemporaryDirectory() as folder:
    ...     models = Models(Path(folder), ModelSpec(("w",)), ["elm"])
    ...     for number, score in enumerate((0.8, 0.7)):
    ...         measured = {"elm": {"score": score}}
    ...         models.save_if_best(number, {"w": torch.zeros(1)}, measured, "score")
    >>> models.best
    {'round': 0, 'score': 0.8}
    """

    folder: Path
    spec: ModelSpec
    everybody: Sequence[str]
    withheld: Collection[str] = ()
    recipe: ModelRecipe | None = None
    best: dict[str, float] = field(default_factory=dict)

    def save_if_best(
        self,
        number: int,
        weights: Weights,
        measured: Mapping[str, Mapping[str, Measurement]],
        name: str,
    ) -> None:
        """Write the global model of round ``number`` if its mean ``name`` is the best so far.

        Args:
            number: of the round; below 0 it is the initial model, which is not stored.
            weights: the global model.
            measured: client -> what it measured of this model.
            name: of the score; where a client of the start did not measure it nothing is written.
        """
        known = [
            measured[client][name] for client in self.everybody if name in measured.get(client, {})
        ]
        if number < 0 or len(known) < len(self.everybody):
            return
        score = sum(map(value_of, known)) / len(known)
        if not self.best or score > self.best["score"]:
            self.best = {"round": number, "score": score}
            self._save("best", weights, number + 1)

    def write(self, weights: Weights, rewards: Mapping[str, Weights], rounds: int) -> None:
        """Write the last global model, after ``rounds``, and every client's reward."""
        self._save("global", weights, rounds)
        for client, reward in rewards.items():
            self._save(safe_name(client), reward, rounds, client)

    def _save(self, name: str, weights: Weights, rounds: int, client: str = "") -> None:
        """Write one model; of a ``client``, where only that one uses it."""
        if self.withheld:
            return
        recipe = self.recipe and self.recipe.trained(rounds=rounds)
        if recipe and client:
            recipe = recipe.of_site(client)
        save_model_file(self.folder / f"{name}.pt", self.spec.with_aliases(weights), recipe)


# ---- schedule: the ledger holds none of it, so that equal runs have equal ledgers


@dataclass
class Schedule:
    """What ``schedule.json`` of a run holds.

    Args:
        seconds: round -> wall-clock seconds that it took; of a repeated round the last time.
        processor: on which the run was begun, with the version of PyTorch; empty where it was not
            recorded.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> schedule = Schedule.begun(folder, resumed=False)
    >>> schedule.took(folder, number=0, seconds=1.5)
    >>> Schedule.begun(folder, resumed=True).seconds
    {0: 1.5}
    """

    seconds: dict[int, float] = field(default_factory=dict)
    processor: str = ""

    @classmethod
    def read(cls, run_dir: Path) -> Schedule:
        """The schedule of a run; empty where the file is missing or damaged."""
        try:
            found = object_of_json((run_dir / SCHEDULE).read_bytes())
            seconds = {int(number): float(value) for number, value in found["seconds"].items()}
            return cls(seconds, str(found["processor"]))
        except Exception:  # whatever a damaged file leads to
            return cls()

    @classmethod
    def begun(cls, run_dir: Path, resumed: bool) -> Schedule:
        """Record that a run begins, or goes on.

        A warning says where it goes on with another processor than it was begun on.
        """
        schedule = cls.read(run_dir) if resumed else cls()
        # Both decide the last bits of a sum.
        cpuinfo = Path("/proc/cpuinfo")
        found = re.search("model name\\s*: (.*)", cpuinfo.read_text() if cpuinfo.is_file() else "")
        name = found[1] if found else platform.machine()
        capability = torch.backends.cpu.get_cpu_capability()
        here = f"{name}, {capability}, PyTorch {torch.__version__}"
        schedule.processor = schedule.processor or here
        if schedule.processor != here:
            text = "%s was begun with %s and goes on with %s: the last bits may differ"
            logger.warning(text, run_dir, schedule.processor, here)
        write_atomically(run_dir / SCHEDULE, json.dumps(asdict(schedule)).encode())
        return schedule

    def took(self, run_dir: Path, number: int, seconds: float) -> None:
        """Record how long round ``number`` took."""
        self.seconds[number] = round(seconds, 3)
        write_atomically(run_dir / SCHEDULE, json.dumps(asdict(self)).encode())
