# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Data lists of sites: split by patients once, written to a file, and read by later runs.

The file is JSON with paths relative to the site's folder. Under ``split`` it records the arguments
that decided the split; a list made by hand has no ``split``.
"""

from __future__ import annotations

import inspect
import json
import os
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import chain, pairwise
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

import numpy as np

from monai_fairfl.data.image_files import is_lossy
from monai_fairfl.data.layouts import (
    BY_IMAGE,
    FILES,
    PARTS,
    CaseFiles,
    Found,
    StrPath,
    Values,
    all_cases,
    all_named,
    few,
    missing_files,
    name_and_folder,
    recognise,
)
from monai_fairfl.errors import DataError, DataWarning
from monai_fairfl.utils.plain_values import object_of_json

Groups = list[list[CaseFiles]]
"""The cases of each patient."""

Parts = dict[str, list[CaseFiles]]
"""The cases of ``training``, ``validation`` and ``testing``."""

# The values of a mask that has two, if nothing states more: all above the background, 0, or above
# the noise of JPEG.
ABOVE_BACKGROUND = [1, 65535]
ABOVE_NOISE = [128, 255]


def site_datalist(
    dataset_dir: StrPath,
    file: StrPath | None = None,
    structures: Sequence[str] = (),
    values: Mapping[str, Sequence[int]] | None = None,
    found: Found | None = None,
    **split: Any,
) -> Parts:
    """Make the data list of a site, for a bundle's config, or read it from ``file`` if that exists.

    A list that is made is written to ``file``, so that every run of a site sees the same cases. The
    file is JSON with paths relative to ``dataset_dir`` and the arguments of the split under
    ``split``; a list made by hand needs no ``split`` and is used as it is.

    A split that came with the data stays; the validation or testing cases that it lacks are drawn
    from its training cases (:func:`~monai_fairfl.data.datalist.complete_split`). For a list that is
    read, warnings name patients in two parts and, unless it was made by hand, cases of the folder
    that it lacks.

    Args:
        dataset_dir: the site's folder, of any layout, or its data list (NVFlare).
        file: the list; nothing is read or written without it.
        structures: names of nested structures, the outermost first, as ``("disc", "cup")``. Each
            case then has in ``"values"`` which pixel values of its mask are which, where they are
            not given by ``values``: by a ``dataset.json`` in the site's folder, else all values
            above 0 are the outermost structure.
        values: structure -> ``[lowest, highest]`` pixel value, in all masks of the site. Absent
            ones are not labelled.
        found: the cases, where they are known; ``None``: those of the site's layout.
        split: arguments of :func:`split_cases`.

    Returns:
        ``training``, ``validation`` and ``testing`` with absolute paths.

    Raises:
        DataError: the file lacks keys, names files that do not exist, was made with other
            arguments, or has other pixel values for a case.

    >>> import tempfile
    >>> from monai_fairfl.data import SITES, write_sites
    >>> root = tempfile.mkdtemp()
    >>> _ = write_sites(root, sites=SITES[:1], size=(24, 24, 6), cases=4)
    >>> datalist = site_datalist(f"{root}/alder", f"{root}/alder.json", seed=3)
    >>> [len(datalist[part]) for part in ("training", "validation", "testing")]
    [2, 1, 1]
    """
    dataset_dir = Path(os.path.abspath(dataset_dir))
    is_new = file is None or not Path(file).exists()
    if found is None:
        # The files of a list made by hand may be in no layout. Of other lists the check reports it.
        found = recognise(dataset_dir, must=is_new)
    if is_new and found.problems:
        raise DataError(all_named(found.problems))
    bound = inspect.signature(split_cases).bind([], **split)
    bound.apply_defaults()
    # A list, as it is when a data list is read.
    record = bound.kwargs | {"fractions": list(bound.kwargs["fractions"])}
    del record["patients"]
    folder = name_and_folder(dataset_dir)[1]
    known = values_of(structures, found, values, dataset_dir)
    source = dataset_dir
    stored: dict[str, Any] = {}
    if is_new:
        try:
            if found.parts is None:
                parts = split_cases(found.cases, **record, patients=found.patients)
            else:
                parts = complete_split(found, record)
        except DataError as error:
            raise DataError(f"{dataset_dir}: {error}") from error
    else:
        source = Path(str(file))
        parts, stored = _read(source, folder)
        if stored and stored != record:
            raise DataError(
                f"{file} was made with {stored}, not with {record}. Give these arguments again, or "
                "delete it to split anew."
            )
        if missing := missing_files(all_cases(parts)):
            raise DataError(
                f"{file} lists {len(missing)} missing file(s): {few(missing)}. Check dataset_dir, "
                "or delete the list to have it rebuilt."
            )
        listed = {case["image"] for case in all_cases(parts)}
        new = [case["image"] for case in found.cases if case["image"] not in listed]
        # A list made by hand may leave cases out on purpose.
        if new and stored:
            fault = f"{len(new)} case(s) of the site are not in {file} and not used: {few(new)}"
            warnings.warn(f"{fault}. Delete the list to split anew.", DataWarning, stacklevel=3)
    for part in ("validation", "testing"):
        # A case that would be scored twice would count as two, with no error between.
        for image, times in Counter(case["image"] for case in parts[part]).items():
            if times > 1:
                raise DataError(f"{source} lists {image} {times} times under {part}. Keep one.")
    if found.parts or not is_new:
        warn_of_shared(parts, found.patients, source)
    # Each case has the values of its structures.
    for case in all_cases(parts) if known else ():
        if (values or stored) and case.get("values", known) != known:
            raise DataError(
                f"{source} has the values {case['values']} for {case['label']}, which are {known} "
                "now. Delete the list to have it rebuilt"
            )
        case.setdefault("values", known)
    if file is not None and is_new:
        write_datalist(Path(file), folder, parts, record)
    return parts


# The lists of a bundle


def listed_datalist(
    lists: Sequence[Sequence[Mapping[str, Any]]],
    dataset_dir: StrPath,
    file: StrPath | None = None,
    **split: Any,
) -> Parts:
    """Make the data list of a site from the lists of a bundle, or read it from ``file``.

    A list of the bundle may be common to all sites: of its cases, those that the site has count.
    Where it has none of them, its folder is looked at, see ``docs/data.md``. Cases whose images lie
    in one folder are of one patient, where there are three such folders or more.

    Args:
        lists: of cases with the files ``image`` and ``label``, as the bundle lists them. All are
            split again.
        dataset_dir: the site's folder.
        file: the list, as :func:`~monai_fairfl.data.site_datalist` reads and writes it.
        split: other arguments of :func:`~monai_fairfl.data.split_cases`.

    Returns:
        ``training``, ``validation`` and ``testing`` with absolute paths.

    Raises:
        DataError: the lists are not of such cases, none of them is at the site, or there are too
            few for a split.

    >>> import tempfile
    >>> from monai_fairfl.data import SITES, find_cases, write_sites
    >>> root = tempfile.mkdtemp()
    >>> _ = write_sites(root, sites=SITES[:1], size=(24, 24, 6), cases=4)
    >>> cases = find_cases(f"{root}/alder")
    >>> found = listed_datalist([cases[:-9], cases[-9:]], f"{root}/alder")
    >>> {part: len(members) for part, members in found.items()}
    {'training': 2, 'validation': 1, 'testing': 1}
    """
    folder = Path(os.path.abspath(dataset_dir))
    cases: dict[str, CaseFiles] = {}
    try:
        for item in chain(*lists):
            case = {**item, **{name: os.path.abspath(item[name]) for name in FILES}}
            if not missing_files([case]):
                cases[case["image"]] = case
    except (TypeError, KeyError) as error:
        raise DataError(
            f"{folder}: the bundle's lists are not of cases with image and label. Leave datalist "
            "out of the overlay"
        ) from error
    if cases:
        patients = {image: os.path.dirname(image) for image in cases}
        # Of fewer folders, no split could hold the patients apart.
        if len({*patients.values()}) < 3:
            patients = {}
        in_order = sorted(cases.values(), key=BY_IMAGE)
        found = Found("data list", in_order, patients=patients)
    else:
        try:
            found = recognise(folder)
        except DataError as error:
            raise DataError(
                f"{folder}: none of the cases of the bundle's lists is there. {error}"
            ) from error
    return site_datalist(folder, file, found=found, **split)


# The file


def write_datalist(file: Path, folder: Path, parts: Parts, record: Mapping[str, Any]) -> None:
    """Write a data list whole or not at all.

    Args:
        file: to write.
        folder: which the written paths are relative to.
        parts: the cases, with absolute paths.
        record: the arguments that decided the split.
    """
    content: dict[str, Any] = {}
    for part, cases in parts.items():
        content[part] = [
            case | {name: os.path.relpath(case[name], folder) for name in FILES} for case in cases
        ]
    content["split"] = dict(record)
    file.parent.mkdir(parents=True, exist_ok=True)
    # It has a name of its own, because clients in several processes may share a list. The list
    # names cases, as a hospital's files do: it is for its owner alone, as such files are.
    with NamedTemporaryFile("w", dir=file.parent, suffix=".part", delete=False) as partial:
        json.dump(content, partial, indent=2)
    os.replace(partial.name, file)


def _read(file: Path, folder: Path) -> tuple[Parts, dict[str, Any]]:
    """The parts of a data list with absolute paths, and the arguments that decided its split."""
    parts: Parts = {}
    try:
        content = object_of_json(file.read_bytes())
        for part in PARTS:
            parts[part] = []
            for case in content[part]:
                files = {name: os.path.normpath(folder / case[name]) for name in FILES}
                parts[part].append(case | files)
                if "values" in case:
                    values_of((), Found(), case["values"], file)
        return parts, content.get("split") or {}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        fix = 'Give training, validation and testing, each a list of {"image": path, "label": path}'
        raise DataError(f"{file} is no data list ({error!r}). {fix}, or delete it.") from error


def cases_of_list(file: Path, dataset_dir: Path, parts: Sequence[str] = PARTS) -> list[CaseFiles]:
    """The cases of a data list, with absolute paths, whatever arguments it was made with.

    Args:
        file: of the list.
        dataset_dir: the site's folder, or its data list (NVFlare).
        parts: of the list.

    Raises:
        DataError: the file is no data list.
    """
    content = _read(file, name_and_folder(dataset_dir)[1])[0]
    return all_cases({part: content[part] for part in parts})


def settings_of_split(file: Path) -> dict[str, Any]:
    """The keys of a bundle's configuration with which a data list was made, to read it again.

    Args:
        file: of the list.

    Returns:
        Key -> value; empty of a list that was made by hand, or is not there.

    >>> import tempfile
    >>> file = Path(tempfile.mkdtemp(), "elm.json")
    >>> parts = {"training": [], "validation": [], "testing": []}
    >>> write_datalist(file, file.parent, parts, {"folds": 4, "fold": 1})
    >>> settings_of_split(file)
    {'split_folds': 4, 'split_fold': 1}
    """
    record = _read(file, file.parent)[1] if file.is_file() else {}
    return {f"split_{name}": value for name, value in record.items()}


# Pixel values of structures


def values_of(
    structures: Sequence[str],
    found: Found,
    given: Mapping[str, Sequence[int]] | None = None,
    site: object = "",
) -> Values:
    """The pixel values of structures: as a user gives them, else by ``dataset.json`` or layout.

    Where these name none of them, masks have two values, and the outermost structure is what is
    above the background. No mask is read.

    Args:
        structures: names, the outermost first.
        found: the site's cases, and what each value means.
        given: structure -> lowest and highest value.
        site: for errors.

    Raises:
        DataError: a name that is no structure, no interval of whole pixel values, or an interval
            that does not hold that of the structure within.

    >>> labels = {"background": [0, 0], "disc": [1, 2], "cup": [2, 2]}
    >>> values_of(["disc", "Cup"], Found(labels=labels))
    {'disc': [1, 2], 'Cup': [2, 2]}
    >>> values_of(["disc", "cup"], Found(cases=[{"label": "7.png"}]))
    {'disc': [1, 65535]}
    """
    values = dict(given or {})
    if not values:
        stated = {name: found.labels.get(name.lower()) for name in structures}
        values = {name: bounds for name, bounds in stated.items() if bounds is not None}
    if structures and not values:
        has_noise = any(is_lossy(case["label"]) for case in found.cases)
        values = {structures[0]: ABOVE_NOISE if has_noise else ABOVE_BACKGROUND}
    for name, bounds in values.items():
        if structures and name not in structures:
            raise DataError(f"{site}: values name {name!r}. Use the names {list(structures)}.")
        whole = isinstance(bounds, (list, tuple)) and [*map(type, bounds)] == [int, int]
        if not whole or bounds[0] > bounds[1]:
            raise DataError(
                f"{site}: values of {name!r} are {bounds!r}. Give [lowest, highest], such as [128, "
                "255]."
            )
    for outer, inner in pairwise(name for name in structures if name in values):
        low, high = values[outer]
        if not low <= values[inner][0] <= values[inner][1] <= high:
            raise DataError(
                f"{site}: {outer} has the values {values[outer]}, {inner} {values[inner]}. Give "
                f"{outer} those of both."
            )
    return {name: list(bounds) for name, bounds in values.items()}


# The split: no patient is in two parts


def split_cases(
    cases: Sequence[CaseFiles],
    *,
    fractions: Sequence[float] = (0.5, 0.25, 0.25),
    folds: int | None = None,
    fold: int = 0,
    validation: float = 0.2,
    seed: int = 0,
    patients: Mapping[str, str] | None = None,
) -> Parts:
    """Split by case, so that no patient is in two parts.

    Without ``folds`` this is FedCE's rule (Jiang et al., CVPR 2023, released code): shuffle once,
    round(0.5 n) train, round(0.25 n) validate, the rest tests; each part gets at least one case.
    With ``folds`` it is cross-validation: each case is tested in exactly one fold.

    Args:
        cases: any order; they are sorted first.
        fractions: shares of training, validation and testing, which sum to 1; not used with
            ``folds``. The last one may be 0: then no case tests.
        folds: number of folds, at least 2.
        fold: which fold is tested, from 0; only with ``folds``.
        validation: share of the cases outside the fold that validates, rounded, at least one case.
        seed: of the shuffle.
        patients: image -> patient, where a patient has several cases; n then counts patients.

    Returns:
        ``training``, ``validation`` and ``testing``, each sorted.

    Raises:
        DataError: too few cases, or shares and folds that are out of range.

    >>> cases = [{"image": f"image{n:02d}.png", "label": f"mask{n:02d}.png"} for n in range(39)]
    >>> {part: len(members) for part, members in split_cases(cases).items()}
    {'training': 20, 'validation': 10, 'testing': 9}
    >>> no_tests = split_cases(cases, fractions=(0.75, 0.25, 0))
    >>> {part: len(members) for part, members in no_tests.items()}
    {'training': 29, 'validation': 10, 'testing': 0}
    >>> {part: len(members) for part, members in split_cases(cases, folds=3, fold=1).items()}
    {'training': 21, 'validation': 5, 'testing': 13}
    """
    groups = _by_patient(cases, patients or {})
    n = len(groups)
    has_tests = folds is not None or list(fractions[2:]) != [0]
    if folds is None:
        is_possible = len(fractions) == 3 and min(*fractions[:2]) > 0 <= fractions[2] and fold == 0
        is_possible = is_possible and abs(sum(fractions) - 1) <= 1e-6
    else:
        is_possible = 2 <= folds <= n and 0 <= fold < folds and 0 < validation < 1
    if not is_possible:
        given = f"fractions={tuple(fractions)}, folds={folds}, fold={fold}, validation={validation}"
        fix = "give three shares that sum to 1, of which only the last one, of testing, may be 0"
        fix += f"; or 2 to {n} folds (split_folds), a split_fold from 0 to below, validation < 1"
        raise DataError(f"{given} of {n} patients: {fix}")
    np.random.default_rng(seed).shuffle(groups)
    if folds is None:
        # One group must remain for validation and one for testing.
        num_training = min(max(1, round(fractions[0] * n)), n - 1 - has_tests)
        num_validating = max(1, round(fractions[1] * n)) if has_tests else n
        first_testing = min(num_training + num_validating, n - has_tests)
        training, testing = groups[: max(0, num_training)], groups[first_testing:]
        validating = groups[num_training:first_testing]
    else:
        testing = groups[fold::folds]
        others = [group for index, group in enumerate(groups) if index % folds != fold]
        validating, training = _draw(others, validation, np.random.default_rng([seed, fold]))
    if not training:
        raise DataError(f"{n} patient(s) leave none to train on. Add cases.")
    parts = zip(PARTS, (training, validating, testing), strict=True)
    return {part: sorted(sum(members, []), key=BY_IMAGE) for part, members in parts}


def complete_split(found: Found, split: Mapping[str, Any]) -> Parts:
    """Complete the split that came with the data.

    A part that it lacks is drawn from its training cases, patient by patient, unless no test cases
    are wanted.

    Args:
        found: with ``parts``.
        split: arguments of :func:`split_cases`.

    Raises:
        DataError: folds are wanted, or there are too few training patients.

    >>> training = [{"image": f"train/{n}.png", "label": f"{n}"} for n in range(10)]
    >>> testing = [{"image": "test/0.png", "label": "0"}]
    >>> found = Found(parts={"training": training, "testing": testing})
    >>> wanted = {"fractions": [0.5, 0.25, 0.25], "folds": None, "validation": 0.2, "seed": 0}
    >>> {part: len(members) for part, members in complete_split(found, wanted).items()}
    {'training': 8, 'validation': 2, 'testing': 1}
    """
    if split["folds"] is not None:
        raise DataError(
            f"folds={split['folds']} would undo its own split. Leave folds out, or list each fold "
            "by hand."
        )
    parts = {part: list((found.parts or {}).get(part, ())) for part in PARTS}
    for part in PARTS:
        if parts[part] or (part == "testing" and split["fractions"][2:] == [0]):
            continue
        groups = _by_patient(parts["training"], found.patients)
        validation = split["validation"]
        if len(groups) < 2 or not 0 < validation < 1:
            raise DataError(
                f"{len(groups)} training patient(s), validation={validation}: {part} is drawn of "
                "these. Give two patients, and a share such as 0.2."
            )
        drawn, others = _draw(groups, validation, np.random.default_rng(split["seed"]))
        parts[part] = sorted(sum(drawn, []), key=BY_IMAGE)
        parts["training"] = sorted(sum(others, []), key=BY_IMAGE)
    return parts


def warn_of_shared(parts: Parts, patients: Mapping[str, str], source: Path) -> None:
    """Warn of patients who are in two parts of a split: published splits have such.

    A case that has no patient is a patient of its own.
    """
    part_of: dict[str, str] = {}
    shared = []
    for part, cases in parts.items():
        for patient in sorted({patients.get(case["image"], case["image"]) for case in cases}):
            if patient in part_of:
                shared.append(f"{patient} is in {part_of[patient]} and {part}")
            part_of[patient] = part
    if shared:
        fault = f"{source}: a test sees who was trained: {all_named(shared, 5)}"
        warnings.warn(f"{fault}. Keep a patient in one part.", DataWarning, stacklevel=3)


def _by_patient(cases: Sequence[CaseFiles], patients: Mapping[str, str]) -> Groups:
    """The cases of each patient, in the order of the first image of each."""
    groups: Parts = {}
    for case in sorted(cases, key=BY_IMAGE):
        groups.setdefault(patients.get(case["image"], case["image"]), []).append(case)
    return list(groups.values())


def _draw(groups: Groups, share: float, rng: np.random.Generator) -> tuple[Groups, Groups]:
    """Draw a share of the groups, at least one, and leave at least one unless there is only one.

    Returns:
        The drawn groups and the others.
    """
    rng.shuffle(groups)
    rounded = max(1, round(share * len(groups)))
    count = max(1, min(rounded, len(groups) - 1))
    return groups[:count], groups[count:]
