# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Data lists for sites in the layouts of public data sets (:mod:`monai_fairfl.data.layouts`)."""

from __future__ import annotations

import inspect
import logging
import os
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from monai_fairfl.data import layouts
from monai_fairfl.data.datalist_file import (
    read_datalist,
    require_single,
    split_record,
    write_datalist,
)
from monai_fairfl.data.layouts import CaseFiles, Found
from monai_fairfl.data.layouts.base import all_cases, all_named
from monai_fairfl.data.splits import complete_split, require_folds, split_cases, warn_of_shared
from monai_fairfl.data.values import check_stored_values, with_values
from monai_fairfl.errors import DataError, DataWarning

logger = logging.getLogger(__name__)


def find_cases(site_dir: str | os.PathLike[str]) -> list[CaseFiles]:
    """Pair the images of a site with their masks.

    Args:
        site_dir: the site's folder, of any layout, or its data list (NVFlare).

    Returns:
        One ``{"image": path, "label": path}`` per case, sorted by image.

    Raises:
        DataError: no such folder, no layout recognises it, or files do not pair; the error names
            all of them.

    >>> find_cases("/no/such/folder")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
        ...
    monai_fairfl.errors.DataError: /no/such/folder is not a folder...
    """
    return layouts.find(site_dir).cases


def site_datalist(
    dataset_dir: str | os.PathLike[str],
    file: str | os.PathLike[str] | None = None,
    structures: Sequence[str] = (),
    values: Mapping[str, Sequence[int]] | None = None,
    **split: Any,
) -> dict[str, list[CaseFiles]]:
    """Make the data list of a site, for a bundle's config, or read it from ``file`` if that exists.

    A list that is made is written to ``file``, so that every run of a site sees the same cases. The
    file is JSON with paths relative to ``dataset_dir`` and the arguments of the split under
    ``split``; a list made by hand needs no ``split`` and is used as it is.

    A split that came with the data stays; the validation or testing cases that it lacks are drawn
    from its training cases (:func:`~monai_fairfl.data.splits.complete_split`). For a list that is
    read, warnings name patients in two parts and, unless it was made by hand, cases of the folder
    that it lacks.

    Args:
        dataset_dir: the site's folder, of any layout, or its data list (NVFlare).
        file: the list; nothing is read or written without it.
        structures: names of nested structures, the outermost first, as ``("disc", "cup")``. Each
            case then has in ``"values"`` which pixel values of its mask are which. They are found
            in the masks where ``values`` does not give them.
        values: structure -> ``[lowest, highest]`` pixel value, in all masks of the site. Absent
            ones are not labelled.
        split: arguments of :func:`split_cases`.

    Returns:
        ``training``, ``validation`` and ``testing`` with absolute paths.

    Raises:
        DataError: the file lacks keys, names files that do not exist, was made with other
            arguments, or holds pixel values that are no longer those of the masks; or the masks'
            values cannot be distinguished.

    >>> import tempfile
    >>> from monai_fairfl.data import SITES, write_sites
    >>> root = tempfile.mkdtemp()
    >>> _ = write_sites(root, sites=SITES[:1], size=(24, 24, 6), cases=4)
    >>> datalist = site_datalist(f"{root}/alder", f"{root}/alder.json", seed=3)
    >>> [len(datalist[part]) for part in ("training", "validation", "testing")]
    [2, 1, 1]
    """
    dataset_dir = Path(dataset_dir).absolute()
    try:
        found = layouts.find(dataset_dir)
    except DataError:
        # The files of a list made by hand may be in no layout. Of other lists the check reports it.
        if file is None or not Path(file).exists():
            raise
        found = Found([])
    return datalist_of(found, dataset_dir, file, structures, values, **split)


def datalist_of(
    found: Found,
    dataset_dir: Path,
    file: str | os.PathLike[str] | None,
    structures: Sequence[str] = (),
    values: Mapping[str, Sequence[int]] | None = None,
    **split: Any,
) -> dict[str, list[CaseFiles]]:
    """Make the data list of cases that are found already, or read it from ``file``.

    Args:
        found: the cases of a site.
        dataset_dir: its folder, or its data list (NVFlare), absolute.
        file: the list; nothing is read or written without it.
        structures: as of :func:`site_datalist`.
        values: see there.
        split: arguments of :func:`split_cases`.

    Returns:
        As :func:`site_datalist`.
    """
    bound = inspect.signature(split_cases).bind([], **split)
    bound.apply_defaults()
    arguments = bound.kwargs
    # A list that is read would ignore a fold without the number of folds.
    require_folds(arguments["folds"], arguments["fold"])
    folder = layouts.folder_of_site(dataset_dir)
    if file is not None and Path(file).exists():
        parts, written_here = read_datalist(Path(file), folder, arguments)
        _warn_of_changes(parts, found, str(file), written_here)
        if written_here and structures and not values:
            check_stored_values(parts, structures, str(file))
        return with_values(parts, structures, values, str(file))

    parts = _new_split(found, arguments, dataset_dir)
    parts = with_values(parts, structures, values, str(dataset_dir))
    if file is not None:
        write_datalist(Path(file), folder, parts, split_record(arguments, found.parts))
        sizes = ", ".join(f"{len(cases)} {part}" for part, cases in parts.items())
        logger.info("%s did not exist: a new split has %s cases", file, sizes)
    return parts


def _new_split(
    found: Found, arguments: Mapping[str, Any], dataset_dir: Path
) -> dict[str, list[CaseFiles]]:
    """Split the cases of a site, or complete the split that came with them."""
    if found.parts is None:
        try:
            return split_cases(found.cases, **{**arguments, "patients": found.patients})
        except DataError as error:
            raise DataError(f"{dataset_dir}: {error}") from error
    folds = arguments["folds"]
    if folds is not None:
        raise DataError(
            f"{dataset_dir} comes with its own {' and '.join(found.parts)} cases, which"
            f" folds={folds} would undo. Leave folds out, or give a data list of your own for each"
            " fold."
        )
    tests = list(arguments["fractions"][2:]) != [0]
    drawn = arguments["validation"], arguments["seed"]
    parts = complete_split(found, *drawn, str(dataset_dir), tests)
    require_single(parts, str(dataset_dir))
    return parts


def _warn_of_changes(
    parts: Mapping[str, Sequence[CaseFiles]], found: Found, file: str, written_here: bool
) -> None:
    """Warn of patients in two parts of a list, and of cases that are not in it.

    A list made by hand may leave cases out on purpose.
    """
    patients = {os.path.normpath(image): patient for image, patient in found.patients.items()}
    warn_of_shared(parts, patients, file)
    listed = {case["image"] for case in all_cases(parts)}
    images = [os.path.normpath(case["image"]) for case in found.cases]
    new = [image for image in images if image not in listed]
    if new and written_here:
        warnings.warn(
            f"{len(new)} case(s) of the site are not in {file} and not used: {all_named(new, 3)}."
            " Delete the list to make a new split, for a training from the beginning; a model"
            " already trained may know the new test cases.",
            DataWarning,
            stacklevel=3,
        )
