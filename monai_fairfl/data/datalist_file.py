# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The file of a data list: how a split is written, and read again by later runs.

The file is JSON with paths relative to the site's folder. Under ``split`` it records the arguments
that decided the split; a list made by hand has no ``split``.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from monai_fairfl.data.layouts import PARTS, CaseFiles, folder_of_site
from monai_fairfl.data.layouts.base import all_cases, all_named, missing_files
from monai_fairfl.data.values import check_values
from monai_fairfl.errors import DataError
from monai_fairfl.utils.plain_values import object_of_json


def split_record(arguments: Mapping[str, Any], own_parts: Collection[str] | None) -> dict[str, Any]:
    """The arguments that decided a split.

    Args:
        arguments: of :func:`~monai_fairfl.data.split_cases`.
        own_parts: names of the parts that came with the data; ``None``: all cases were split.
    """
    folds = arguments["folds"]
    if own_parts is None:
        names = ("fractions", "seed") if folds is None else ("folds", "fold", "validation", "seed")
        # Tuples become lists, as they are when the file is read.
        return json.loads(json.dumps({name: arguments[name] for name in names}))
    record: dict[str, Any] = {}
    # What the data's own split lacks was drawn from its training cases.
    if len(own_parts) < len(PARTS):
        record = {"validation": arguments["validation"], "seed": arguments["seed"]}
    record["kept"] = [part for part in PARTS if part in own_parts]
    if folds is not None:
        record["folds"] = folds
    return record


def write_datalist(
    file: Path,
    folder: Path,
    parts: Mapping[str, Sequence[CaseFiles]],
    record: Mapping[str, Any],
) -> None:
    """Write a data list whole or not at all.

    Args:
        file: to write.
        folder: which the written paths are relative to.
        parts: the cases, with absolute paths.
        record: see :func:`split_record`.
    """
    content: dict[str, Any] = {}
    for part, cases in parts.items():
        content[part] = []
        for case in cases:
            image = os.path.relpath(case["image"], folder)
            label = os.path.relpath(case["label"], folder)
            content[part].append({**case, "image": image, "label": label})
    content["split"] = record
    file.parent.mkdir(parents=True, exist_ok=True)
    # The process is in the name, because clients in several processes may share a list.
    partial = Path(f"{file}.{os.getpid()}.part")
    # It names cases, as a hospital's files do: for its owner alone.
    partial.touch(mode=0o600)
    partial.write_text(json.dumps(content, indent=2), encoding="utf-8")
    os.replace(partial, file)


def read_datalist(
    file: Path, folder: Path, arguments: Mapping[str, Any]
) -> tuple[dict[str, list[CaseFiles]], bool]:
    """Read a data list.

    Args:
        file: to read.
        folder: which its paths are relative to.
        arguments: of :func:`~monai_fairfl.data.split_cases`, which must be those of the list.

    Returns:
        The parts with absolute paths, and whether :func:`write_datalist` wrote the list.

    Raises:
        DataError: the file is no data list, was made with other arguments, names files that do not
            exist, or a case twice among those that are scored.
    """
    parts, stored_record = _read(file, folder)
    if stored_record:
        record = split_record(arguments, stored_record.get("kept"))
        if stored_record != record:
            raise DataError(
                f"{file} was made with {stored_record}, not with {record}. To evaluate a model,"
                " give the arguments that made the file. For a new training with another split,"
                " name another file, or delete this one."
            )
    require_single(parts, str(file))
    missing = missing_files(all_cases(parts))
    if missing:
        raise DataError(
            f"{file} lists {len(missing)} missing file(s): {all_named(missing, 3)}. Check"
            " dataset_dir, or delete the list to have it rebuilt."
        )
    return parts, bool(stored_record)


def _read(file: Path, folder: Path) -> tuple[dict[str, list[CaseFiles]], dict[str, Any]]:
    """The parts of a data list with absolute paths, and the arguments that decided its split."""
    parts: dict[str, list[CaseFiles]] = {}
    try:
        content = object_of_json(file.read_bytes())
        for part in PARTS:
            parts[part] = []
            for case in content[part]:
                absolute = dict(case)
                for name in ("image", "label"):
                    absolute[name] = os.path.normpath(folder / str(case[name]))
                if "values" in case:
                    absolute["values"] = check_values(case["values"], (), str(file))
                parts[part].append(absolute)
        return parts, dict(content.get("split") or {})
    except DataError:
        raise
    except IsADirectoryError as error:
        raise DataError(
            f"{file}: this is a folder, where a file is needed; remove it to have the data list "
            "made, or name another file"
        ) from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(
            f"{file} is no data list ({type(error).__name__}: {error}). It needs the keys training,"
            ' validation and testing, each a list of {"image": path, "label": path}. Mend it, or'
            " delete it to have it made."
        ) from error


def cases_of_list(file: Path, dataset_dir: Path, parts: Sequence[str] = PARTS) -> list[CaseFiles]:
    """The cases of a data list, with absolute paths, whatever arguments it was made with.

    Args:
        file: of the list.
        dataset_dir: the site's folder, or its data list (NVFlare).
        parts: of the list.

    Raises:
        DataError: the file is no data list.
    """
    content = _read(file, folder_of_site(dataset_dir))[0]
    return all_cases({part: content[part] for part in parts})


def settings_of_split(file: Path) -> dict[str, Any]:
    """The keys of a bundle's configuration with which a data list was made, to read it again.

    Args:
        file: of the list.

    Returns:
        Key -> value; empty of a list that was made by hand, or is none.

    >>> import tempfile
    >>> file = Path(tempfile.mkdtemp(), "elm.json")
    >>> write_datalist(file, file.parent, {}, {"folds": 4, "fold": 1, "validation": 0.2, "seed": 0})
    >>> settings_of_split(file)
    {'split_folds': 4, 'split_fold': 1, 'split_validation': 0.2, 'split_seed': 0}
    """
    try:
        record = object_of_json(file.read_bytes()).get("split") or {}
    except (OSError, ValueError):
        return {}
    # What the data's own split kept is no setting.
    return {f"split_{name}": value for name, value in record.items() if name != "kept"}


def require_single(parts: Mapping[str, Sequence[CaseFiles]], source: str) -> None:
    """Refuse a case that would be scored twice: it would count as two, with no error between.

    Args:
        parts: the cases of a data list.
        source: where they come from, for errors.

    Raises:
        DataError: naming the case and its part.
    """
    for part in ("validation", "testing"):
        images = Counter(case["image"] for case in parts[part])
        for image, times in images.items():
            if times > 1:
                raise DataError(
                    f"{source} lists {image} {times} times under {part}, and each case counts once."
                    " Keep one."
                )
