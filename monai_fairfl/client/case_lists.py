# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Finds test cases that are used for something else besides.

A bundle's evaluator may score cases that the model was trained or chosen on.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from monai_fairfl.messages import IN_TRAINING, IN_VALIDATION, Estimate
from monai_fairfl.utils.case_files import image_files_of

NAMED = 5
"""Files that a message names at most."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Overlap:
    """Test cases that are used for something else besides; there is at least one.

    Args:
        cases: number of test cases.
        validation: those that are validation cases, by their files.
        training: those that are training cases.
    """

    cases: int
    validation: Sequence[str] = ()
    training: Sequence[str] = ()

    def measurements(self) -> dict[str, Estimate]:
        """The counts alone, of the number of test cases: no name of a case leaves the site.

        >>> Overlap(5, validation=["a.nii.gz"]).measurements()["test_cases_in_validation"]
        Estimate(value=1.0, stderr=None, n=5)
        """
        return {
            IN_VALIDATION: Estimate(float(len(self.validation)), None, self.cases),
            IN_TRAINING: Estimate(float(len(self.training)), None, self.cases),
        }

    def in_words(self) -> str:
        """What is wrong, with the files, for the log of the site.

        >>> Overlap(2, validation=["/d/a.nii.gz", "/d/b.nii.gz"]).in_words()
        'its evaluator scores its 2 validation cases, not test cases'
        >>> Overlap(2, training=["/d/a.nii.gz"]).in_words()
        'of its 2 test cases, 1 is used in training (a.nii.gz)'
        """
        if len(self.validation) == self.cases and not self.training:
            return f"its evaluator scores its {self.cases} validation cases, not test cases"
        parts = []
        for files, use in ((self.training, "training"), (self.validation, "validation")):
            if files:
                parts.append(_used_in(use, files))
        return f"of its {self.cases} test cases, {' and '.join(parts)}"


def _used_in(use: str, files: Sequence[str]) -> str:
    """How many cases, and the first of their files: ``1 is used in training (a.nii.gz)``."""
    verb = "is" if len(files) == 1 else "are"
    names = ", ".join(os.path.basename(file) for file in files[:NAMED])
    unnamed = len(files) - NAMED
    if unnamed > 0:
        names += f" and {unnamed} more"
    return f"{len(files)} {verb} used in {use} ({names})"


def overlap_of(client: str, evaluator: Any, trainer: Any, validator: Any) -> Overlap | None:
    """The test cases of a client that are training or validation cases too.

    Cases are compared by the files of their images. Lists that cannot be compared are named in the
    log.

    Args:
        client: its name, for the log.
        evaluator: of the test cases; ``None`` where the bundle has none.
        trainer: of the training cases.
        validator: of the validation cases; ``None`` where the bundle has none.

    Returns:
        ``None`` where there are none, or where the test cases are no list of files.
    """
    if evaluator is None:
        return None
    test_files = image_files(evaluator)
    if test_files is None:
        _log_unknown(client, ["test"])
        return None

    engines = {"training": trainer}
    if validator is not None:
        engines["validation"] = validator
    # use -> files that are test cases, too
    shared: dict[str, list[str]] = {}
    unknown = []
    for use, engine in engines.items():
        files = image_files(engine)
        if files is None:
            unknown.append(use)
        else:
            shared[use] = sorted(test_files & files)
    if unknown:
        _log_unknown(client, unknown)
    if not any(shared.values()):
        return None

    found = Overlap(len(test_files), shared.get("validation", ()), shared.get("training", ()))
    logger.warning("client %s: %s; no test score is reported", client, found.in_words())
    return found


def _log_unknown(client: str, uses: Sequence[str]) -> None:
    logger.warning(
        "client %s: its %s cases are no list of files, so whether its test cases are used "
        "elsewhere is not checked",
        client,
        " and ".join(uses),
    )


def image_files(engine: Any) -> set[str] | None:
    """The image files of an engine's cases, links resolved.

    Returns:
        One string per case, with a line per file; ``None`` where the dataset does not list files.
    """
    dataset = getattr(getattr(engine, "data_loader", None), "dataset", None)
    cases = getattr(dataset, "data", dataset)
    if not isinstance(cases, Sequence) or isinstance(cases, str) or not cases:
        return None
    found = set()
    for case in cases:
        files = image_files_of(case)
        if files is None:
            return None
        found.add("\n".join(os.path.realpath(file) for file in files))
    return found
