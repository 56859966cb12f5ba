# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The folder of a run or of a comparison: what it holds, and what may be written there.

Nothing that exists is overwritten unasked: a used folder needs ``resume``, and then the same
settings and cases.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass
from pathlib import Path
from typing import Any

from monai_fairfl.errors import ConfigError, DataError, FederationError
from monai_fairfl.run.checkpoint import Checkpoints
from monai_fairfl.run.ledger import read_ledger
from monai_fairfl.utils.arguments import Checked, setting
from monai_fairfl.utils.plain_values import object_of_json

SETTINGS = "settings.json"
"""File of a run or a comparison: what its user asked for, and the hashes of the bundle's files."""

FOR_TRAIN = "(--out for monai-fairfl train)"
"""The option by which a user of that command names another run_dir."""

PLAIN = ("bundle", "config", "local_epochs", "amp")
"""Settings of the training that are one value for all sites."""

SCORING = ("configs/evaluate.json", "configs/federated_evaluate.json")
"""Files of a bundle that say how its test cases are scored."""

DATA = "data.json"
"""File of a run or a comparison on one machine: what the check of the sites' files found."""

DIGESTS = ".digests"
"""End of the name of a site's file beside its data list: a line for each case, which names none.

Runs over engines have none: what a site's cases are stays there.
"""


def records_of(folder: Path) -> list[dict[str, Any]]:
    """The records of the run in ``folder``; none where it has not begun."""
    ledger = folder / "ledger.jsonl"
    return read_ledger(ledger) if ledger.exists() else []


def ended(folder: Path) -> bool:
    """Whether ``folder`` holds a run that has ended, its closing scores included."""
    records = records_of(folder)
    return bool(records) and records[-1]["kind"] == "end"


def recorded_config(run_dir: Path, name: str = SETTINGS) -> dict[str, Any]:
    """What ``settings.json`` of a run or a comparison records; empty where there is none.

    Args:
        run_dir: its folder.
        name: of another file.

    Raises:
        ConfigError: when the file is damaged.
    """
    file = run_dir / name
    if not file.exists():
        return {}
    try:
        return object_of_json(file.read_bytes())
    except ValueError as error:
        raise ConfigError(f"{file} is damaged ({error}): restore it from a copy") from error


def compared(run_dir: Path, strategies: Sequence[str] = ()) -> list[str]:
    """The strategies whose runs a comparison in ``run_dir`` holds, each in the folder of its name.

    Args:
        run_dir: of the comparison.
        strategies: names that count beside those that ``settings.json`` records.

    Returns:
        Those of ``settings.json`` first; empty where the folder holds no comparison.
    """
    recorded = recorded_config(run_dir).get("strategies") or []
    names = dict.fromkeys([*recorded, *strategies])
    return [name for name in names if records_of(run_dir / name)]


def check_folder(run_dir: Path, strategies: Sequence[str], resume: bool) -> None:
    """Refuse a folder whose runs, report or configuration the runs asked for would replace.

    A comparison and a single run never share a folder. A resumed comparison may grow by further
    strategies.

    Args:
        run_dir: of the runs asked for.
        strategies: their names; several are a comparison.
        resume: whether what is there goes on.

    Raises:
        FederationError: naming the folder, what it holds and the fix.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> check_folder(folder, ["FedAvg"], resume=False)
    >>> from monai_fairfl.run import Ledger
    >>> Ledger(folder / "FedAvg" / "ledger.jsonl").append({"kind": "start"})
    >>> check_folder(folder, ["FedAvg", "FedCE"], resume=False)  # doctest: +ELLIPSIS
    Traceback (most recent call last):
        ...
    monai_fairfl.errors.FederationError: ... already holds a comparison (FedAvg): resume it with ...
    """
    previous = compared(run_dir, strategies)
    if not previous and not records_of(run_dir):
        return
    is_same_kind = bool(previous) == (len(strategies) > 1)
    if not (resume and is_same_kind):
        held = f"a comparison ({', '.join(previous)})" if previous else "a run of one strategy"
        raise FederationError(
            f"{run_dir} already holds {held}: resume it with such strategies (--resume True), or "
            f"choose another run_dir {FOR_TRAIN}"
        )


def check_checkpoints(folders: Iterable[Path]) -> None:
    """Refuse runs with rounds and no checkpoint, or the other way round: they would begin again.

    A run that was killed before its first checkpoint may begin again. A round is recorded before
    its checkpoint is written, so such a run has recorded one round at most.

    Args:
        folders: of runs that are to go on.

    Raises:
        FederationError: naming the run and the fix; or a ledger that is damaged.
    """
    for folder in folders:
        records = records_of(folder)
        has_checkpoints = Checkpoints(folder / "checkpoints").newest_first()
        lost = ""
        if has_checkpoints and not records:
            lost = "ledger.jsonl"
        elif not has_checkpoints and len(records) > 2:
            lost = "checkpoints"
        if lost:
            raise FederationError(
                f"{folder} has no {lost}: to resume it would begin it again. If a backup, or the "
                f"machine where it ran, has its {lost}, copy that to {folder / lost}; else choose "
                f"another run_dir {FOR_TRAIN} or name"
            )


def check_training(run_dir: Path, config: Mapping[str, Any], sites: Sequence[str]) -> None:
    """Refuse a resumed run that would train otherwise, as far as ``settings.json`` records it.

    Args:
        run_dir: of the run or comparison that is resumed.
        config: the present one, as :class:`~monai_fairfl.bundle.federation.BundleFederation`
            writes it.
        sites: that take part now; they may come and go.

    Raises:
        FederationError: naming each setting that differs, and both values.
    """
    previous = recorded_config(run_dir)
    if not previous:  # a run of one's own loop records none
        return
    both = [site for site in sites if site in previous.get("data", {})]

    def named(found: Mapping[str, Any]) -> dict[str, Any]:
        own = {key: {site: found[key][site] for site in both} for key in ("sites", "data")}
        folders = {f"data of {site}": folder for site, folder in own["data"].items()}
        return training_settings({**found, **own}) | folders

    before = named(previous)
    now = named(json.loads(json.dumps(config, default=str)))
    check_same(run_dir, before, {**dict.fromkeys(before), **now})


def check_openings(folders: Sequence[Path], settings: Mapping[str, Any]) -> None:
    """Refuse settings with which the runs that go on, or are compared, were not begun.

    Args:
        folders: of these runs.
        settings: the present ones, under the names of a ledger's opening record.

    Raises:
        FederationError: naming the run, each setting that differs and both values; or a ledger
            that is damaged.
    """
    now = json.loads(json.dumps(settings))
    for folder in folders:
        for opening in records_of(folder)[:1]:
            check_same(folder, opening, now)


def check_same(run_dir: Path, recorded: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Refuse to resume a run with other settings than it was begun with: it is one experiment.

    Args:
        run_dir: of the run.
        recorded: settings that it was begun with.
        now: the present ones; the run's name, the clients and the package's version may differ.

    Raises:
        FederationError: when they differ; it names each setting and both values.
    """
    different = []
    for key, value in now.items():
        if key not in ("run", "clients", "package") and recorded.get(key) != value:
            different.append(f"{key} = {recorded.get(key)!r}, now it is {value!r}")
    if different:
        raise FederationError(
            f"{run_dir} was begun with {'; with '.join(different)}: resume with the same settings "
            f"(--quick of monai-fairfl train sets overrides), or choose another run_dir "
            f"{FOR_TRAIN}. Where the same data only moved, correct its folder in settings.json"
        )


# ---- digests of cases: they show that images or labels changed since a run was begun


def files_to_write(
    run_dir: Path, digests: Mapping[str, Sequence[str]], data: Mapping[str, Any]
) -> dict[Path, bytes]:
    """The files of what a check found -> their content; that of a run's beginning stays.

    Args:
        run_dir: of the run or comparison.
        digests: site -> digest of each of its cases.
        data: for :data:`DATA`.
    """
    files = {}
    if data and not (run_dir / DATA).exists():
        files[run_dir / DATA] = json.dumps(data, indent=4).encode()
    for site, of_site in digests.items():
        content = "".join(f"{digest}\n" for digest in sorted(of_site))
        files[run_dir / "datalists" / f"{site}{DIGESTS}"] = content.encode()
    return files


def read_digests(datalists: Path) -> dict[str, frozenset[str]]:
    """Site -> digests of its cases; sites without a file are left out."""
    files = sorted(datalists.glob(f"*{DIGESTS}"))
    return {file.stem: frozenset(file.read_text(errors="replace").split()) for file in files}


def require_same_cases(datalists: Path, digests: Mapping[str, Sequence[str]]) -> None:
    """Refuse to go on with other images or labels than those of the beginning.

    New cases are no difference: the data list says which cases are used.

    Args:
        datalists: folder of the data lists, in that of the run or comparison.
        digests: site -> digest of each case that it has now.

    Raises:
        DataError: naming each such site, how many of its cases are not as they were, and the fix.
    """
    problems = []
    before = read_digests(datalists)
    for site, of_site in digests.items():
        known = before.get(site, frozenset())
        if other := known.difference(of_site):
            problems.append(
                f"site {site!r}: {len(other)} of {len(known)} cases are not as they were when "
                f"{datalists.parent} was begun: an image or a label was changed or removed"
            )
    if problems:
        raise DataError(
            "\n".join(problems) + "\nPut the files back as they were, or choose another "
            f"run_dir {FOR_TRAIN}"
        )


# ---- what of settings.json decides how the sites train and are scored, and the full run


def config_files(config: Mapping[str, Any]) -> list[str]:
    """The files of the training's configuration, of all sites and of single ones.

    >>> config_files({"config": ["a.json"], "sites": {"elm": {"config": ["b.json"]}, "oak": {}}})
    ['a.json', 'b.json']
    """
    found: list[str] = []
    for settings in (config, *(config.get("sites") or {}).values()):
        found += (settings or {}).get("config") or []
    return found


def training_settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """Name -> what of ``settings.json`` decides how a run's sites train, and how they are scored.

    These are settings of all sites and of single ones, overrides, and the SHA-256 of files.

    Args:
        config: as :class:`~monai_fairfl.bundle.federation.BundleFederation` writes it; what is not
            in it is left out.

    >>> training_settings({"local_epochs": 4, "overrides": {"size": [64, 64]}, "keep": 3})
    {'local_epochs': 4, 'size': [64, 64]}
    """
    found = {key: config[key] for key in PLAIN if key in config}
    found |= config.get("overrides") or {}
    digests = config.get("files") or {}
    for file in [*config_files(config), *SCORING]:
        if file in digests:
            found[file] = digests[file]
    for site, own in (config.get("sites") or {}).items():
        found |= {f"{name} of {site}": value for name, value in own.items()}
    return found


@dataclass(frozen=True)
class FullRun(Checked):
    """The training at which a bundle's results were measured: ``full_run`` of ``federate.json``.

    Args:
        rounds: of the measured training.
        local_epochs: of each of these rounds.
        mean_dice: least mean Dice over the sites; below it a model has not learnt enough to be
            judged.
        overrides: of the measured training, for a reader of the file.

    >>> FullRun(rounds=60, local_epochs=4, mean_dice=0.5).epochs
    240
    """

    prefix = "full_run: "
    rounds: int = setting(MISSING, allowed="[1, inf)")
    local_epochs: int = setting(MISSING, allowed="[1, inf)")
    mean_dice: float = setting(MISSING, allowed="[0, 1]")
    overrides: Mapping[str, Any] = setting({})

    @property
    def epochs(self) -> int:
        """Local epochs of all rounds together."""
        return self.rounds * self.local_epochs
