# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The pixel values of structures in the cases of a data list: given, found in masks, or checked."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping, Sequence

from monai_fairfl.data.layouts import CaseFiles
from monai_fairfl.data.layouts.base import all_cases
from monai_fairfl.data.layouts.values import Values, check_values, recognise
from monai_fairfl.errors import DataError

# Masks that show whether the values of a list are still right. All are read where they are not.
A_FEW = 8


def with_values(
    parts: dict[str, list[CaseFiles]],
    structures: Sequence[str],
    values: Mapping[str, Sequence[int]] | None,
    site: str,
) -> dict[str, list[CaseFiles]]:
    """Give each case the pixel values of its structures.

    Args:
        parts: the cases of a data list; some may have values.
        structures: names, the outermost first; empty: cases need no values.
        values: given by hand; ``None``: found in the masks of the cases that have none.
        site: for errors.

    Raises:
        DataError: a case has other values than those given, or the masks' values cannot be
            distinguished.
    """
    if values:
        checked = check_values(values, structures, site)
        _refuse_other_values(parts, checked, site)
        return _with_default_values(parts, checked)
    labels = [case["label"] for case in all_cases(parts) if "values" not in case]
    if not structures or not labels:
        return parts
    return _with_default_values(parts, recognise(labels, structures, site))


def _refuse_other_values(parts: Mapping[str, list[CaseFiles]], values: Values, site: str) -> None:
    for case in all_cases(parts):
        if "values" in case and case["values"] != values:
            raise DataError(
                f"{site} has {case['values']} for {case['label']}, not {values}. Delete it, or give"
                " no values."
            )


def _with_default_values(
    parts: Mapping[str, list[CaseFiles]], values: Values
) -> dict[str, list[CaseFiles]]:
    """The same cases; those without values have ``values``."""
    completed: dict[str, list[CaseFiles]] = {}
    for part, cases in parts.items():
        completed[part] = [{**case, "values": case.get("values", values)} for case in cases]
    return completed


def check_stored_values(
    parts: Mapping[str, Sequence[CaseFiles]], structures: Sequence[str], file: str
) -> None:
    """Refuse a data list whose masks were coded in another way after it was written.

    A training would find its structures nowhere.

    Args:
        parts: the cases of the list.
        structures: names, the outermost first.
        file: the list, for errors.

    Raises:
        DataError: the values of a case are not those of the masks.
    """
    cases = [case for case in all_cases(parts) if "values" in case]
    if not cases:
        return
    labels = [case["label"] for case in cases]

    # A few masks are enough where their values are those of every case. What is wrong with them is
    # reported for all masks below.
    step = math.ceil(len(labels) / A_FEW)
    with contextlib.suppress(DataError):
        values_of_few = recognise(labels[::step], structures, file)
        if _first_with_other_values(cases, structures, values_of_few) is None:
            return

    found = recognise(labels, structures, file)
    case = _first_with_other_values(cases, structures, found)
    if case is not None:
        raise DataError(
            f"{file} has {case['values']} for {case['label']}, but in the masks {found} is found"
            " now. Delete it to have it rebuilt, with another split if cases came or went; else"
            " write what is found into it. If what it has is right, give"
            f" values={case['values']} by hand."
        )


def _first_with_other_values(
    cases: Sequence[CaseFiles], structures: Sequence[str], values: Values
) -> CaseFiles | None:
    """The first case whose values of the structures are not ``values``."""
    for case in cases:
        stored = {name: case["values"][name] for name in structures if name in case["values"]}
        if stored != values:
            return case
    return None
