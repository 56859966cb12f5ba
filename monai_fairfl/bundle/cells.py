# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The cells of a comparison: a federation for each strategy, seed and fold.

Cells are independent of each other. Each is plain values, has a folder of its own, and is run by
:func:`run_cell` alone, so they may be run in any order and in any process.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from monai_fairfl.bundle import configuration
from monai_fairfl.bundle.federation import BundleFederation
from monai_fairfl.bundle.plan import Cell, ComparisonPlan
from monai_fairfl.bundle.trainings import Training, remove_spare, run_logged
from monai_fairfl.errors import DataError, in_words
from monai_fairfl.run.resuming import files_to_write, require_same_cases
from monai_fairfl.transports.workers import Turn
from monai_fairfl.utils.files import private_folder, write_atomically


def trainings_of(plan: ComparisonPlan, out: Path) -> list[Training]:
    """The training of every cell of a plan, in its order.

    Args:
        plan: of the comparison, checked by :func:`check_plan`.
        out: its folder.
    """
    rounds = plan.training()["rounds"]
    alone = plan.candidate_alone()
    trainings = []
    for cell in plan.cells():
        training = Training(
            title=cell.title,
            kind=cell.strategy,
            rounds=rounds,
            folder=cell.folder(out),
            federation=partial(_federation_of_cell, plan, cell, out),
            run=partial(run_cell, plan, cell, out),
            waits=alone not in (None, cell.strategy),
        )
        trainings.append(training)
    return trainings


def check_plan(plan: ComparisonPlan, out: Path) -> dict[Path, bytes]:
    """Find what is wrong before anything is trained; nothing is written.

    Args:
        plan: of the comparison.
        out: its folder.

    Returns:
        File -> content of the data lists that ``out`` lacks, one for each fold and site, and of the
        digests of the sites' cases.

    Raises:
        FairFLError: naming the setting, the site or the file, and the fix.
    """
    folds = plan.fold_numbers()
    lists: dict[Path, bytes] = {}
    for fold in folds:
        # The files are the same in every fold: they are read once.
        federation = plan.federation(
            list(plan.names()), plan.seeds[0], fold, out / "checked", check=fold == folds[0]
        )
        federation.check_settings()
        require_same_cases(out / "datalists", federation.digests)
        lists.update(files_to_write(out / "datalists", federation.digests))
        lists.update(_new_datalists(plan, fold, federation.names, datalists(out, fold)))
    return lists


def datalists(out: Path, fold: int | None) -> Path:
    """Return the folder of the data lists that all cells of a fold share."""
    if fold is None:
        return out / "datalists"
    return out / "datalists" / f"fold-{fold}"


def _new_datalists(
    plan: ComparisonPlan, fold: int | None, sites: Sequence[str], folder: Path
) -> dict[Path, bytes]:
    """Make the data list of every site that has none in ``folder``.

    They are made where the bundle's configuration has the usual keys; the cells of another bundle
    make their own, and so do those of a site whose images or list lie elsewhere.
    """
    folders = plan.folders()
    lists = {}
    for site in sites:
        additions = dict(plan.sites().get(site, {}))
        if "datalist_file" in additions or "dataset_dir" in additions:
            continue
        files = additions.pop("config", plan.files())
        overrides = {**plan.overrides_of(fold), **additions}
        parser = configuration.train_config(plan.bundle, overrides, files)
        keys = ("datalist", "dataset_dir", "datalist_file")
        if site not in folders or not all(key in parser for key in keys):
            continue
        file = folder / f"{site}.json"
        if file.exists():
            continue
        with TemporaryDirectory() as place:
            made = Path(place) / file.name
            parser["bundle_root"] = str(plan.bundle)
            folder_of_site = str(folders[site].absolute())
            parser["dataset_dir"] = configuration.data_folder_of(parser, folder_of_site)
            parser["datalist_file"] = str(made)
            try:
                parser.get_parsed_content("datalist")
            except Exception as error:  # MONAI's, around that of the data
                reason = in_words(error.__cause__ or error)
                raise DataError(f"site {site!r}: its cases cannot be split: {reason}") from error
            lists[file] = made.read_bytes()
    return lists


def run_cell(plan: ComparisonPlan, cell: Cell, out: Path, turn: Turn | None = None) -> bool:
    """Run a cell to its end, or go on with what its folder holds.

    Its log is ``log.txt``.

    Args:
        plan: of the comparison, checked by :func:`check_plan`.
        cell: one of its cells, which is not done.
        out: folder of the comparison.
        turn: what this run may use, one process by default; the numbers are the same.

    Returns:
        Whether it is finished; ``False`` when a signal stopped it.

    Raises:
        FairFLError: when the federation cannot go on.
    """
    turn = turn or Turn()
    folder = cell.folder(out)
    _copy_datalists(datalists(out, cell.fold), folder / "datalists")
    finished = run_logged(folder, partial(_federation_of_cell, plan, cell, out), turn)
    if finished:
        remove_spare(folder)
    return finished


def _federation_of_cell(
    plan: ComparisonPlan, cell: Cell, out: Path, turn: Turn
) -> BundleFederation:
    alone = plan.candidate_alone()
    trained_alone = None
    if alone not in (None, cell.strategy):
        trained_alone = replace(cell, strategy=alone).folder(out) / "models"
    return plan.federation(
        [cell.strategy],
        cell.seed,
        cell.fold,
        cell.folder(out),
        check=False,
        turn=turn,
        trained_alone=trained_alone,
    )


def _copy_datalists(shared: Path, own: Path) -> None:
    """Give a cell the data lists of its fold."""
    private_folder(own)
    # A list that is there is that of the run which goes on.
    for file in sorted(shared.glob("*.json")):
        if not (own / file.name).exists():
            write_atomically(own / file.name, file.read_bytes())
