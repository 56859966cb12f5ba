# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of a federation, each written whole or not at all.

When the newest one is damaged, it gets another name, and the previous one is used.
"""

from __future__ import annotations

import json
import logging
import re
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load as load_tensors

from monai_fairfl.errors import FederationError
from monai_fairfl.messages import Weights
from monai_fairfl.utils.files import MANIFEST, read_listed, tensors_as_bytes, write_folder
from monai_fairfl.utils.names import safe_name
from monai_fairfl.utils.plain_values import object_of_json

logger = logging.getLogger(__name__)

FORMAT = 1
"""Number of the format of checkpoints."""

REWARDS = "rewards/"
SUFFIX = ".safetensors"

DAMAGED = ".damaged"
"""Ends the name of a folder that was not whole when it was read."""

UNREADABLE = (FileNotFoundError, ValueError, KeyError, TypeError, SafetensorError)
"""Exceptions that reading a checkpoint, or a recorded round, raises where it is not whole."""


@dataclass(frozen=True)
class Checkpoint:
    """All that a federation needs to go on after ``round``: models, and ``state`` (JSON).

    >>> import torch
    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     Checkpoints(folder).save(Checkpoint(4, {"w": torch.ones(1)}, state={"rounds": 10}))
    ...     found = Checkpoints(folder).load()
    >>> found.round, found.weights, found.state
    (4, {'w': tensor([1.])}, {'rounds': 10})
    """

    round: int
    weights: Weights
    rewards: Mapping[str, Weights] = field(default_factory=dict)
    state: Mapping[str, Any] = field(default_factory=dict)


class Checkpoints:
    """The folder ``checkpoints/round-NNNN/``; tensors as safetensors, everything else JSON, never a
    pickle.

    Args:
        folder: where the rounds' folders stand.
        keep: how many of the newest to keep, at least 2.

    Raises:
        ValueError: when ``keep`` is below 2.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     checkpoints = Checkpoints(folder, keep=2)
    ...     for number in range(3):
    ...         checkpoints.save(Checkpoint(number, {}))
    ...     [path.name for path in checkpoints.newest_first()]
    ...     (checkpoints.newest_first()[0] / "strategy.json").unlink()
    ...     checkpoints.load().round
    ['round-0002', 'round-0001']
    1
    """

    def __init__(self, folder: str | Path, keep: int = 3):
        if keep < 2:
            raise ValueError(
                "keep must be at least 2, so that a damaged checkpoint has a predecessor; got "
                f"{keep}"
            )
        self.folder = Path(folder)
        self.keep = keep

    def save(self, checkpoint: Checkpoint) -> None:
        """Write a checkpoint so that a crash at any moment leaves either all of it or nothing."""
        final = self.folder / f"round-{checkpoint.round:04d}"
        about = {"format": FORMAT, "round": checkpoint.round}
        write_folder(final, _files(checkpoint), about)
        self._prune()

    def load(self) -> Checkpoint | None:
        """The newest checkpoint that is whole; ``None`` when there is none at all.

        Newer ones, which are not whole, get names of their own: their rounds are played again.

        Raises:
            FederationError: when there are checkpoints and none is whole; or when one cannot be
                read at present, though it may be whole.
        """
        damaged: list[Path] = []
        problems: list[str] = []
        for folder in self.newest_first():
            try:
                checkpoint = read_checkpoint(folder)
            except UNREADABLE as error:
                damaged.append(folder)
                problems.append(f"{folder.name}: {error}")
                logger.warning(
                    "checkpoint %s is damaged (%s); the previous one is used", folder, error
                )
                continue
            for newer in damaged:
                aside = newer.with_name(newer.name + DAMAGED)
                shutil.rmtree(aside, ignore_errors=True)
                newer.rename(aside)
            return checkpoint
        if problems:
            raise FederationError(
                f"no checkpoint of {self.folder} can be read: {'; '.join(problems)}. Begin the run "
                "again in another run_dir"
            )
        return None

    def _prune(self) -> None:
        folders = self.newest_first()
        kept = folders[: self.keep]
        oldest_kept = _number(kept[-1])
        for folder in (*folders, *self.damaged()):
            if _number(folder) < oldest_kept:
                shutil.rmtree(folder)

    def newest_first(self) -> list[Path]:
        """The folders of all checkpoints, whole or not."""
        return self._folders("")

    def damaged(self) -> list[Path]:
        """The folders that were not whole, under the names that :meth:`load` gave them."""
        return self._folders(DAMAGED)

    def _folders(self, end: str) -> list[Path]:
        """Those whose names are a round's with ``end``, newest first."""
        found = []
        for path in self.folder.glob("round-*"):
            if re.fullmatch("round-[0-9]+" + re.escape(end), path.name):
                found.append(path)
        return sorted(found, key=_number, reverse=True)


def _number(folder: Path) -> int:
    """The round of a checkpoint's folder."""
    return int(folder.name.removeprefix("round-").removesuffix(DAMAGED))


def read_checkpoint(folder: Path) -> Checkpoint:
    """One checkpoint, each file checked against the manifest.

    Raises:
        FederationError: when it has another format, or the system cannot read it at present;
            :data:`UNREADABLE` when it is not whole.
    """
    try:
        return _read(folder)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise FederationError(
            f"checkpoint {folder} cannot be read ({error}), though it may be whole. Mend the "
            "cause, then resume. To resume from the previous one, move this folder away"
        ) from error


def _read(folder: Path) -> Checkpoint:
    """:func:`read_checkpoint`, with the system's own errors."""
    manifest = object_of_json((folder / MANIFEST).read_bytes())
    if manifest["format"] != FORMAT:
        raise FederationError(
            f"checkpoint {folder} has format {manifest['format']}, and this version of "
            f"monai_fairfl reads format {FORMAT}: use the version that wrote it"
        )
    files = {name: read_listed(folder, name, manifest) for name in manifest["sha256"]}
    rewards: dict[str, Weights] = {}
    for name, data in files.items():
        if name.startswith(REWARDS):
            client = name.removeprefix(REWARDS).removesuffix(SUFFIX)
            rewards[client] = load_tensors(data)
    weights = load_tensors(files["model.safetensors"])
    state = object_of_json(files["strategy.json"])
    return Checkpoint(manifest["round"], weights, rewards, state)


def _files(checkpoint: Checkpoint) -> Iterator[tuple[str, bytes]]:
    """Name and content of each file, one at a time."""
    state = json.dumps(checkpoint.state, sort_keys=True, indent=1)
    yield "model.safetensors", tensors_as_bytes(checkpoint.weights)
    yield "strategy.json", state.encode()
    for client, reward in checkpoint.rewards.items():
        yield f"{REWARDS}{safe_name(client)}{SUFFIX}", tensors_as_bytes(reward)
