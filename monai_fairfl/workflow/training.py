# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""A training of one site alone: its data checked before, its model saved after."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from torch import nn

from monai_fairfl.bundle.configuration import errors_in_one_line
from monai_fairfl.data import check_cases
from monai_fairfl.data.layouts import CaseFiles
from monai_fairfl.errors import DataError
from monai_fairfl.model_files.recipe import ModelRecipe, save_model_file
from monai_fairfl.model_files.recipe import write_recipe_file as write_recipe_file


def check_data(
    dataset_dir: str | Path,
    datalist_file: str | Path | None = None,
    structures: Sequence[str] = (),
    values: Mapping[str, Sequence[int]] | None = None,
    stereo: bool | None = None,
    cases: Sequence[CaseFiles] | None = None,
    field_of_view: float = 0.7,
) -> None:
    """Go on only with data without faults.

    Args:
        dataset_dir: of the site; every file is read once, see
            :func:`monai_fairfl.data.check_cases`.
        datalist_file: its data list, which may have been made to leave files out.
        structures: see :func:`~monai_fairfl.data.check_cases`.
        values: see there.
        stereo: see there.
        cases: see there; a configuration that uses some cases of its data list names these.
        field_of_view: see there.

    Raises:
        DataError: with the number of faults, and the first three. From the command line: the text,
            and exit code 2.

    >>> import tempfile
    >>> from pathlib import Path
    >>> from monai_fairfl.data import SITES, write_sites
    >>> with tempfile.TemporaryDirectory() as root:  # doctest: +ELLIPSIS
    ...     _ = write_sites(root, sites=SITES[:1], size=(24, 24, 6), cases=1)
    ...     check_data(f"{root}/alder")  # without faults
    ...     Path(root, "alder", "Case00_segmentation.nii.gz").unlink()
    ...     check_data(f"{root}/alder")
    Traceback (most recent call last):
        ...
    monai_fairfl.errors.DataError: ...alder: 1 problem(s)
    - ...: alder/Case00.nii.gz has no mask Case00_segmentation.nii.gz; add it, or remove the file
    """
    with errors_in_one_line():
        try:
            check_cases(dataset_dir, structures, values, stereo, cases, field_of_view)
        except DataError as error:
            if cases is not None or datalist_file is None or not Path(datalist_file).exists():
                raise
            raise DataError(
                f"{error}\nIf {datalist_file} was made to leave these out, --check_data False "
                "trains without this check."
            ) from None


def save_model(path: str | Path, network: nn.Module, recipe: ModelRecipe | None = None) -> None:
    """Write a model with the recipe of its training, as ``CheckpointLoader`` reads it.

    >>> from pathlib import Path
    >>> from torch import nn
    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp(), "models", "model.pt")
    >>> save_model(path, nn.Linear(1, 1))
    >>> path.is_file()
    True
    """
    save_model_file(path, network.state_dict(), recipe)
