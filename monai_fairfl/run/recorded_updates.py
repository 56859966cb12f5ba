# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Recorded updates: what every client sent in every round.

Coalitions' models can be rebuilt of them after the run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load as load_tensors

from monai_fairfl.errors import ConfigError, FederationError
from monai_fairfl.messages import ModelSpec, Request, Weights, to_json
from monai_fairfl.replies import Replies
from monai_fairfl.run.checkpoint import reading
from monai_fairfl.run.ledger import count_rounds, digest_of, read_ledger
from monai_fairfl.utils.files import (
    MANIFEST,
    read_listed,
    safe_name,
    tensors_as_bytes,
    write_folder,
)
from monai_fairfl.utils.plain_values import object_of_json

RECORD_UPDATES = (
    "the key record_updates true (--record_updates True for MONAI's command, "
    "--record-updates for monai-fairfl train)"
)
"""How a user lets a run keep its updates."""

START = "start.safetensors"


@dataclass(frozen=True)
class RecordedRound:
    """One round on disk; its tensors are read when asked for.

    Args:
        folder: ``run_dir/updates/round-NNNN``.
        manifest: all that :func:`record_round` wrote of the round, with the digest of each file.
    """

    folder: Path
    manifest: Mapping[str, Any]

    @property
    def clients(self) -> list[str]:
        """Names of the clients that answered, and that no guard quarantined; sorted."""
        return sorted(self.manifest["samples"])

    def start(self) -> Weights:
        """The global model before the round.

        Raises:
            FederationError: when the file is damaged, or cannot be read at present.
        """
        return self._read(START)

    def replies(self) -> Replies:
        """The clients' updates and buffers, as the strategy saw them; memory for N models.

        Raises:
            FederationError: when a file is damaged, or cannot be read at present.
        """
        start, spec = self.start(), ModelSpec.from_json(self.manifest["spec"])
        requests = [Request(name, "train", start, id=id) for id, name in enumerate(self.clients)]
        replies = []
        for request in requests:
            sent = self.sent_by(request.client)
            update = {name: sent[name] for name in spec.parameters}
            buffers = {name: sent[name] for name in spec.buffers if name in sent}
            labelled = tuple(self.manifest["labelled"].get(request.client, ()))
            samples = self.manifest["samples"][request.client]
            replies.append(request.reply(update, samples, buffers=buffers, labelled=labelled))
        return Replies(replies, requests, spec)

    def sent_by(self, client: str) -> Weights:
        """The update and the buffers of one client.

        Raises:
            FederationError: when the file is damaged, or cannot be read at present.
        """
        return self._read(_file_of(client))

    def _read(self, name: str) -> dict[str, torch.Tensor]:
        with reading(f"recorded round {self.folder}"):
            return load_tensors(read_listed(self.folder, name, self.manifest))


def record_round(
    run_dir: Path, number: int, start: Weights, replies: Replies, buffers: str
) -> None:
    """Write round ``number``, whole or not at all, in place of an earlier attempt at it.

    Args:
        run_dir: the federation's.
        number: of the round.
        start: the global model before the round.
        replies: of the exchange that trained.
        buffers: the run's buffer policy.

    >>> import torch
    >>> from pathlib import Path
    >>> from tempfile import TemporaryDirectory
    >>> from monai_fairfl import ModelSpec, Replies, Reply, Request
    >>> start, update = {"w": torch.zeros(1)}, {"w": torch.ones(1)}
    >>> asked, sent = [Request("elm", "train", start)], [Reply("elm", update, 8)]
    >>> with TemporaryDirectory() as folder:
    ...     record_round(Path(folder), 0, start, Replies(sent, asked, ModelSpec(("w",))), "samples")
    ...     sorted(path.name for path in Path(folder, "updates/round-0000").rglob("*.safetensors"))
    ['elm.safetensors', 'start.safetensors']
    """
    about = {
        "round": number,
        "samples": {reply.client: reply.num_samples for reply in replies},
        "labelled": {reply.client: list(reply.labelled) for reply in replies if reply.labelled},
        "buffers": buffers,
        "spec": to_json(replies.spec),
    }
    sent = {START: start}
    for reply in replies:
        sent[_file_of(reply.client)] = {**(reply.update or {}), **(reply.buffers or {})}
    # One client's at a time in memory.
    files = ((name, tensors_as_bytes(tensors)) for name, tensors in sent.items())
    write_folder(_folder(run_dir, number), files, about)


def _folder(run_dir: Path, number: int) -> Path:
    return run_dir / "updates" / f"round-{number:04d}"


def _file_of(client: str) -> str:
    return f"clients/{safe_name(client)}.safetensors"


def is_recorded(run_dir: Path, number: int) -> bool:
    """Whether the updates of a round were recorded."""
    return (_folder(run_dir, number) / MANIFEST).exists()


def check_recorded(run_dir: Path) -> None:
    """Refuse to use the updates of a run, or to record more, where a round has none.

    Args:
        run_dir: of the run.

    Raises:
        ConfigError: when one of its rounds was not recorded.
    """
    for number in range(count_rounds(read_ledger(run_dir / "ledger.jsonl"))):
        if not is_recorded(run_dir, number):
            raise ConfigError(
                f"round {number} of {run_dir} was not recorded, and never will be. Train again in "
                f"a new folder with {RECORD_UPDATES}; value it with Retraining, which needs no "
                "updates; or go on with it without record_updates"
            )


def recorded_rounds(run_dir: str | Path) -> list[RecordedRound]:
    """All rounds of a run, in order, as its ledger has them.

    Raises:
        ConfigError: when a round was not recorded.
        FederationError: when a recorded round is damaged, or of another run than the ledger: each
            must have begun with the ledger's model, and have its clients and images.

    >>> from pathlib import Path
    >>> from tempfile import TemporaryDirectory
    >>> from monai_fairfl import ModelSpec, Replies, Reply, Request
    >>> from monai_fairfl.run import Ledger
    >>> replies = Replies([Reply("elm", {}, 8)], [Request("elm", "train", {})], ModelSpec(()))
    >>> with TemporaryDirectory() as folder:
    ...     ledger = Ledger(f"{folder}/ledger.jsonl")
    ...     ledger.append({"kind": "start", "model": digest_of({})})
    ...     record = {"kind": "round", "round": 0, "samples": {"elm": 8}, "labelled": {}}
    ...     ledger.append({**record, "model": ""})
    ...     record_round(Path(folder), 0, {}, replies, "samples")
    ...     [found.clients for found in recorded_rounds(folder)]
    [['elm']]
    """
    run_dir = Path(run_dir)
    check_recorded(run_dir)
    opening, *records = read_ledger(run_dir / "ledger.jsonl")
    model = opening["model"]
    found = []
    for record in records:
        if record["kind"] == "round":
            found.append(recorded_round(run_dir, record, model))
            model = record["model"]
    return found


def recorded_round(run_dir: Path, record: Mapping[str, Any], model: str) -> RecordedRound:
    """One recorded round, checked against the ledger.

    Args:
        run_dir: of the run.
        record: of the round in the ledger.
        model: digest of the model that the round began with.

    Raises:
        FederationError: as :func:`recorded_rounds`.
    """
    folder = _folder(run_dir, record["round"])
    with reading(f"recorded round {folder}"):
        about = object_of_json((folder / MANIFEST).read_bytes())
        found = RecordedRound(folder, about)
    recorded = (digest_of(found.start()), about["samples"], about["labelled"])
    of_ledger = (model, record["samples"], record["labelled"])
    if recorded != of_ledger:
        raise FederationError(f"recorded round {folder} has {recorded}, the ledger {of_ledger}")
    return found
