# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Scores of a model on the test cases of a site, as a federation measures them at its end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from monai_fairfl.bundle.shipped import TRAIN
from monai_fairfl.bundle.site import bundle_client
from monai_fairfl.errors import ConfigError
from monai_fairfl.messages import Measure
from monai_fairfl.model_files.recipe import state_of_file
from monai_fairfl.utils.spreadsheets import read_csv_text

RUN = "evaluate"
"""Name of the files that the site's client writes."""

TESTED = "test_score"


def scores_at_site(
    model: str | Path,
    bundle_root: str | Path,
    dataset_dir: str | Path,
    out: str | Path,
    *,
    datalist_file: str | Path,
    config: Sequence[str] = TRAIN,
    overrides: Mapping[str, Any] | None = None,
    device: str = "cpu",
) -> dict[str, dict[str, float]]:
    """Score a model on the test cases of a site's data list.

    Args:
        model: its file.
        bundle_root: the bundle that trained it.
        dataset_dir: the site's images and labels.
        out: gets the files of the site's client.
        datalist_file: which cases are test cases.
        config: training configuration, files relative to the bundle.
        overrides: of the configuration.
        device: such as ``"cpu"`` or ``"cuda:0"``.

    Returns:
        Case -> ``"dice"`` and, of several classes, each class -> its score, from 0 to 1.

    Raises:
        ConfigError: the bundle scores no test cases.
        ValueError: the model is of another network.
    """
    site = Path(dataset_dir).name
    client = bundle_client(
        bundle_root,
        site,
        Path(out),
        dataset_dir=dataset_dir,
        datalist_file=datalist_file,
        device=device,
        config=list(config),
        overrides=overrides or {},
    )
    # As at the end of a run, the client writes the score of each case into a table.
    request = Measure(site, state_of_file(model), (TESTED,), {"closing": 1.0})
    request = replace(request, run=RUN, round=0)
    table = client.states.path(RUN, f"{TESTED}-{request.round}-{request.id}.csv")
    # That of an earlier call may be of another model.
    table.unlink(missing_ok=True)
    try:
        client.answer(request)
    finally:
        client.finalize()
    if not table.exists():
        raise ConfigError(f"{bundle_root} scores no test cases: adopt it again, with --data")

    scores = {}
    for row in read_csv_text(table.read_bytes().decode()):
        case = row.pop("case")
        scores[case] = {name: float(value) for name, value in row.items()}
    return scores
