# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Data lists for sites in the layouts of public data sets (:mod:`monai_fairfl.data.layouts`)."""

from __future__ import annotations

import contextlib
import inspect
import json
import logging
import os
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from monai_fairfl.data import layouts
from monai_fairfl.data.layouts import PARTS, Case, Found, site_folders
from monai_fairfl.data.layouts.base import all_named
from monai_fairfl.data.layouts.values import check_values, recognise
from monai_fairfl.data.splits import complete_split, split_cases, warn_of_shared
from monai_fairfl.errors import DataError

logger = logging.getLogger(__name__)

A_FEW = 8  # masks that tell whether the values of a list still hold; all are read where they do not


def find_sites(root: str | os.PathLike[str]) -> list[str]:
    """List the sites under ``root``: its folders of any layout, or the clients whose data lists it
    holds (NVFlare).

    Args:
        root: folder with one folder per site; :func:`~monai_fairfl.data.site_folders` says where
            each site is.

    Returns:
        The sites' names, sorted.

    Raises:
        DataError: ``root`` is no folder, or there is no site in it.

    >>> import tempfile
    >>> from monai_fairfl.data import SITES, write_sites
    >>> root = tempfile.mkdtemp()
    >>> _ = write_sites(root, sites=SITES[:2], size=(24, 24, 6), cases=1)
    >>> find_sites(root)
    ['alder', 'birch']
    """
    return sorted(site_folders(root))


def find_cases(site_dir: str | os.PathLike[str]) -> list[Case]:
    """Pair the images of a site with their masks.

    Args:
        site_dir: the site's folder, of any layout, or its data list (NVFlare).

    Returns:
        One ``{"image": path, "label": path}`` per case, sorted by image.

    Raises:
        DataError: no such folder, no layout recognises it, or files that do not pair; all of them
            are named.

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
) -> dict[str, list[Case]]:
    """Data list of a site, for a bundle's config: read from ``file`` if that exists, else made and
    written there.

    The file is JSON with paths relative to ``dataset_dir`` and the arguments of the split under
    ``split``; a list made by hand needs no ``split`` and is used as it is. So every run of a site
    sees the same cases. A split that came with the data is kept; what it lacks of validation or
    testing is drawn from its training cases (:func:`~monai_fairfl.data.splits.complete_split`). Of
    a list that is read, warnings name patients in two parts and, unless it was made by hand, cases
    of the folder that it lacks.

    Args:
        dataset_dir: the site's folder, of any layout, or its data list (NVFlare).
        file: the list; nothing is read or written without it.
        structures: names of nested structures, the outermost first, as ``("disc", "cup")``. Each
            case then says in ``"values"`` which pixel values of its mask are which: found in the
            masks, where ``values`` does not say it.
        values: structure -> ``[lowest, highest]`` pixel value, in all masks of the site. Absent
            ones are not labelled.
        split: arguments of :func:`split_cases`.

    Returns:
        ``training``, ``validation`` and ``testing`` with absolute paths.

    Raises:
        DataError: the file lacks keys, names files that do not exist, was made with other
            arguments, or holds pixel values that are no longer those of the masks; or the masks'
            values cannot be told apart.

    >>> import tempfile
    >>> from monai_fairfl.data import SITES, write_sites
    >>> root = tempfile.mkdtemp()
    >>> _ = write_sites(root, sites=SITES[:1], size=(24, 24, 6), cases=4)
    >>> datalist = site_datalist(f"{root}/alder", f"{root}/alder.json", seed=3)
    >>> [len(datalist[part]) for part in ("training", "validation", "testing")]
    [2, 1, 1]
    """
    dataset_dir = Path(dataset_dir).absolute()
    base = dataset_dir.parent if dataset_dir.is_file() else dataset_dir
    bound = inspect.signature(split_cases).bind([], **split)
    bound.apply_defaults()
    arguments = bound.kwargs
    if file is not None and Path(file).exists():
        parts, made = _read_datalist(Path(file), base, arguments)
        _warn_of_changes(parts, dataset_dir, str(file), made)
        if made and structures and not values:
            _check_stored(parts, structures, str(file))
        return _with_values(parts, structures, values, str(file))
    found = layouts.find(dataset_dir)
    if found.parts is None:
        parts = split_cases(found.cases, **{**split, "patients": found.patients})
    elif arguments["folds"] is None:
        parts = complete_split(found, arguments["validation"], arguments["seed"], str(dataset_dir))
    else:
        raise DataError(
            f"{dataset_dir} comes with its own {' and '.join(found.parts)} cases, which folds={arguments['folds']}"
            " would undo. Leave folds out, or give a data list of your own for each fold."
        )
    parts = _with_values(parts, structures, values, str(dataset_dir))
    if file is not None:
        _write_datalist(Path(file), base, parts, _record(arguments, found.parts))
        sizes = [len(parts[part]) for part in PARTS]
        logger.info(
            "%s did not exist: split anew into %d training, %d validation, %d testing cases",
            file,
            *sizes,
        )
    return parts


def _record(
    arguments: Mapping[str, Any], kept: Sequence[str] | Mapping[str, Any] | None
) -> dict[str, Any]:
    """The arguments that decided a split: of all cases, or of what the data's own split ``kept``
    left open.
    """
    if kept is not None:
        used = ("validation", "seed") if len(kept) < len(PARTS) else ()
        folds = {} if arguments["folds"] is None else {"folds": arguments["folds"]}
        return (
            {key: arguments[key] for key in used}
            | {"kept": [part for part in PARTS if part in kept]}
            | folds
        )
    names = (
        ("fractions", "seed")
        if arguments["folds"] is None
        else ("folds", "fold", "validation", "seed")
    )
    return json.loads(json.dumps({key: arguments[key] for key in names}))


def _write_datalist(
    file: Path, base: Path, parts: Mapping[str, Sequence[Case]], record: Mapping[str, Any]
) -> None:
    relative = {
        part: [
            {**case, **{key: os.path.relpath(case[key], base) for key in ("image", "label")}}
            for case in cases
        ]
        for part, cases in parts.items()
    }
    file.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(f"{file}.{os.getpid()}.part")
    partial.write_text(json.dumps({**relative, "split": record}, indent=2), encoding="utf-8")
    os.replace(partial, file)


def _read_datalist(
    file: Path, base: Path, arguments: Mapping[str, Any]
) -> tuple[dict[str, list[Case]], bool]:
    """The parts, and whether this package made them."""
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
        parts: dict[str, list[Case]] = {
            part: [
                {key: os.path.normpath(base / str(case[key])) for key in ("image", "label")}
                | (
                    {"values": check_values(case["values"], (), str(file))}
                    if "values" in case
                    else {}
                )
                for case in content[part]
            ]
            for part in PARTS
        }
        made = content.get("split")
        record = _record(arguments, made.get("kept")) if made else {}
    except DataError:
        raise
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(
            f"{file} is no data list ({type(error).__name__}: {error}). It needs the keys training, validation and"
            ' testing, each a list of {"image": path, "label": path}. Mend it, or delete it to have it made.'
        ) from error
    if made and made != record:
        raise DataError(
            f"{file} was made with {made}, not with {record}. Give its arguments, to evaluate a model above all. For a"
            " new training with another split choose another file, or delete it."
        )
    paths = [case[key] for cases in parts.values() for case in cases for key in ("image", "label")]
    missing = [path for path in paths if not Path(path).is_file()]
    if missing:
        raise DataError(
            f"{file} lists {len(missing)} file(s) that do not exist, first {missing[0]}. Check dataset_dir, or delete"
            " the list to have it made anew."
        )
    return parts, bool(made)


def _warn_of_changes(
    parts: Mapping[str, Sequence[Case]], dataset_dir: Path, file: str, made: bool
) -> None:
    """Warn of what a list that is read has twice, and, where it was made here, of cases that came
    after it.
    """
    found = Found([])
    with contextlib.suppress(
        DataError
    ):  # a list by hand may be of files in no layout; the check tells of others
        found = layouts.find(dataset_dir)
    patients = {os.path.normpath(image): patient for image, patient in found.patients.items()}
    warn_of_shared(parts, patients, file)
    listed = {case["image"] for cases in parts.values() for case in cases}
    new = [case["image"] for case in found.cases if os.path.normpath(case["image"]) not in listed]
    if made and new:
        warnings.warn(
            f"{len(new)} case(s) of {dataset_dir} are not in {file} and not used: {all_named(new, 3)}. Delete the list"
            " to split anew, for a training from the beginning; a model already trained may know the new test cases.",
            stacklevel=3,
        )


def _check_stored(
    parts: Mapping[str, Sequence[Case]], structures: Sequence[str], file: str
) -> None:
    """Refuse a list whose masks were coded anew after it was made: a training would find its
    structures nowhere.
    """
    cases = [case for members in parts.values() for case in members if "values" in case]
    labels = [case["label"] for case in cases]
    stored = [
        {name: case["values"][name] for name in structures if name in case["values"]}
        for case in cases
    ]
    with contextlib.suppress(DataError):  # of a few masks; all of them say it better
        few = recognise(labels[:: -(-len(labels) // A_FEW) or 1], structures, file)
        if all(values == few for values in stored):
            return
    found = recognise(labels, structures, file) if labels else {}
    other = next(
        (case for case, values in zip(cases, stored, strict=True) if values != found), None
    )
    if other:
        raise DataError(
            f"{file} has {other['values']} for {other['label']}, but in the masks {found} is found now. Delete it to"
            " have it made anew, with another split if cases came or went; else write what is found into it. If what"
            f" it has is right, give values={other['values']} by hand."
        )


def _with_values(
    parts: dict[str, list[Case]],
    structures: Sequence[str],
    values: Mapping[str, Sequence[int]] | None,
    site: str,
) -> dict[str, list[Case]]:
    """The same cases, each with the pixel values of its structures."""
    cases = [case for members in parts.values() for case in members]
    if values:
        hand = check_values(values, structures, site)
        other = next((case for case in cases if case.get("values", hand) != hand), None)
        if other:
            raise DataError(
                f"{site} has {other['values']} for {other['label']}, not {hand}. Delete it, or give no values."
            )
        return {
            part: [{**case, "values": hand} for case in members] for part, members in parts.items()
        }
    bare = [case["label"] for case in cases if "values" not in case]
    if not structures or not bare:
        return parts
    found = recognise(bare, structures, site)
    return {
        part: [{**case, "values": case.get("values", found)} for case in members]
        for part, members in parts.items()
    }
