# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Digests of the sites' cases: they show that images or labels changed since a run was begun.

A file ``SITE.digests`` beside a site's data list has a line for each case, and names none. Runs
over engines have none: what a site's cases are stays there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from monai_fairfl.errors import DataError
from monai_fairfl.run.resuming import FOR_TRAIN

SUFFIX = ".digests"


def files_to_write(datalists: Path, digests: Mapping[str, Sequence[str]]) -> dict[Path, bytes]:
    """File of each site -> its content, where the file is missing or says something else.

    Args:
        datalists: folder of the data lists.
        digests: site -> digest of each of its cases.
    """
    files = {}
    for site, of_site in digests.items():
        file = datalists / f"{site}{SUFFIX}"
        content = "".join(f"{digest}\n" for digest in sorted(of_site)).encode()
        if not file.exists() or file.read_bytes() != content:
            files[file] = content
    return files


def read_digests(datalists: Path) -> dict[str, frozenset[str]]:
    """Site -> digests of its cases; sites without a file are left out."""
    files = sorted(datalists.glob(f"*{SUFFIX}"))
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
        other = known.difference(of_site)
        if other:
            problems.append(
                f"site {site!r}: {len(other)} of {len(known)} cases are not as they were when "
                f"{datalists.parent} was begun: an image or a label was changed or removed"
            )
    if problems:
        raise DataError(
            "\n".join(problems) + "\nPut the files back as they were, or choose another "
            f"run_dir {FOR_TRAIN}"
        )


def differ(one: Mapping[str, frozenset[str]], other: Mapping[str, frozenset[str]]) -> bool:
    """Whether a site of both has other cases in one than in the other, besides further ones.

    >>> old, grown = frozenset({"1", "2"}), frozenset({"1", "2", "3"})
    >>> differ({"elm": old}, {"elm": grown}), differ({"elm": old}, {"elm": frozenset({"1", "3"})})
    (False, True)
    """
    return any(
        not (one[site] <= other[site] or other[site] <= one[site])
        for site in one.keys() & other.keys()
    )
