# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Whether the models, checkpoints and recorded updates of a run are those that its ledger names.

A digest is of names, types, shapes and numbers of a model. What else a file holds, such as the
recipe of a model or the state of a strategy, is in no ledger.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from monai_fairfl.errors import FairFLError, FederationError
from monai_fairfl.messages import ModelSpec
from monai_fairfl.model_files.recipe import state_of_file
from monai_fairfl.run.checkpoint import Checkpoints, read_checkpoint
from monai_fairfl.run.ledger import digest_of, read_ledger
from monai_fairfl.run.recorded_updates import is_recorded, recorded_round
from monai_fairfl.run.resuming import kept_results

ROUNDING = 1e-4
"""Of inner products that another processor computed, relative to the lengths."""


@dataclass(frozen=True)
class Files:
    """What the files beside a ledger show.

    Args:
        checked: how many models, checkpoints and recorded rounds were compared with the ledger.
        problems: what is damaged, or is not what the ledger names.
        notes: what a reader should know and is no problem.

    >>> Files(2, ["models/global.pt is damaged"]).problems
    ['models/global.pt is damaged']
    """

    checked: int
    problems: Sequence[str]
    notes: Sequence[str] = ()


def check_files(run_dir: str | Path) -> Files:
    """Compare every model, checkpoint and recorded update in a run's folder with its ledger.

    A file that is not there is not missed: a folder may hold a ledger alone.

    Args:
        run_dir: of the run; it may be running, resumed or finished.

    Raises:
        FederationError: when the ledger's chain is broken, or a record is none of a run.

    >>> import torch
    >>> from pathlib import Path
    >>> from tempfile import TemporaryDirectory
    >>> from monai_fairfl import Federation, InProcess, ModelSpec
    >>> from monai_fairfl.strategies import FedAvg
    >>> class Hospital:
    ...     def answer(self, asked):
    ...         return asked.reply(*([{"w": torch.ones(9)}, 8] if asked.task == "train" else []))
    >>> initial = lambda: ({"w": torch.zeros(9)}, ModelSpec(("w",)))
    >>> hospitals = InProcess({"elm": Hospital, "oak": Hospital})
    >>> with TemporaryDirectory() as folder:
    ...     ran = Federation(FedAvg(), hospitals, 1, initial, run_dir=folder).run()
    ...     whole = check_files(folder)
    ...     file = Path(folder, "models", "global.pt")
    ...     _ = file.write_bytes(file.read_bytes()[:500])
    ...     cut = check_files(folder)
    >>> whole, len(cut.problems)
    (Files(checked=2, problems=(), notes=()), 1)
    """
    run_dir = Path(run_dir)
    checked = 0
    problems = []
    notes = []
    stated: dict[str, dict[int, bool]] = {}
    try:
        for path, read, named in _files(run_dir, stated):
            checked += 1
            place = path.relative_to(run_dir)
            try:
                if read() not in named:
                    problems.append(f"{place} is not what the ledger names")
            except FairFLError as error:
                problems.append(f"{place}: {error}")
    except (LookupError, TypeError, AttributeError) as error:
        raise FederationError(
            f"the ledger of {run_dir} has a record that is none of a run ({error!r}): restore it "
            "from a copy"
        ) from error
    for client, fits in stated.items():
        unlike = [number for number in fits if not fits[number]]
        text = f"the recorded updates of {client} in rounds {unlike} are not those that it stated"
        if 0 < len(unlike) < len(fits):
            problems.append(text)
        elif unlike:
            notes.append(f"{text}, as after a privacy filter: their inner products were compared")
    for earlier in kept_results(run_dir):
        # A crash may have cut the copy short.
        if (earlier / "ledger.jsonl").exists():
            try:
                found = check_files(earlier)
            except FederationError as error:
                found = Files(0, [str(error)])
            checked += found.checked
            problems += [f"{earlier.name}: {problem}" for problem in found.problems]
    return Files(checked, tuple(problems), tuple(notes))


def _files(
    run_dir: Path, stated: dict[str, dict[int, bool]]
) -> Iterator[tuple[Path, Callable[[], object], Sequence[object]]]:
    """Each file or folder, what reads its digests, and those that the ledger allows.

    Args:
        run_dir: of the run.
        stated: gets client -> round -> whether its recorded update is the one that it stated.
    """
    opening, *others = read_ledger(run_dir / "ledger.jsonl")
    rounds = [record for record in others if record["kind"] == "round"]
    ends = [record for record in others if record["kind"] == "end"]
    models = [record["model"] for record in rounds]
    # Client -> digest of its own model, after each round. A round without rewards leaves those of
    # earlier ones.
    rewards: list[Mapping[str, str]] = []
    for record in rounds:
        rewards.append(record["rewards"] or (rewards[-1] if rewards else {}))

    # A run that goes on has models of its earlier end.
    named: dict[str, Sequence[object]] = {"global": models, "best": models}
    own = rewards
    if ends:
        best = ends[0]["best"].get("round")
        named = {"global": [ends[0]["model"]], "best": [] if best is None else [models[best]]}
        own = rewards[-1:]
    spec = ModelSpec.from_json(opening["spec"])
    for file in sorted(run_dir.glob("models/*.pt")):
        allowed = named.get(file.stem, [of_round.get(file.stem) for of_round in own])
        yield file, partial(_digest_of_model, file, spec), allowed

    for folder in Checkpoints(run_dir / "checkpoints").newest_first():
        number = int(folder.name.removeprefix("round-"))
        after = list(zip(models, rewards))[number : number + 1]
        yield folder, partial(_digests_of_checkpoint, folder), after

    begun_with = opening["model"]
    for number, record in enumerate(rounds):
        if is_recorded(run_dir, number):
            folder = run_dir / "updates" / f"round-{number:04d}"
            yield folder, partial(_updates_fit, run_dir, record, begun_with, stated), [True]
        begun_with = record["model"]


def _digest_of_model(file: Path, spec: ModelSpec) -> str:
    state = state_of_file(file)
    return digest_of({name: state[name] for name in state if name not in spec.aliases})


def _digests_of_checkpoint(folder: Path) -> tuple[str, dict[str, str]]:
    found = read_checkpoint(folder)
    rewards = {client: digest_of(reward) for client, reward in found.rewards.items()}
    return digest_of(found.weights), rewards


def _updates_fit(
    run_dir: Path,
    record: Mapping[str, Any],
    begun_with: str,
    stated: dict[str, dict[int, bool]],
) -> bool:
    """Whether a recorded round has the updates of the ledger."""
    found = recorded_round(run_dir, record, begun_with)
    all_fit = True
    for client in found.clients:
        fits = digest_of(found.sent_by(client)) == record["digests"].get(client)
        all_fit = all_fit and fits
        verdicts = record["verdicts"].get(client, [])
        if client in record["digests"] and all(one["action"] != "clip" for one in verdicts):
            stated.setdefault(client, {})[record["round"]] = fits
    if all_fit:
        return True
    # A guard cuts updates, and a privacy filter of an engine changes them, after a site stated the
    # digest. The inner products are of what the strategy saw.
    recorded = np.array(record["gram"]["whole"], dtype=float)
    lengths = np.sqrt(np.diag(recorded))
    difference = abs(found.replies().geometry.gram - recorded)
    return not (difference > ROUNDING * np.outer(lengths, lengths)).any()
