# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Scores of a model on a site's test cases, outside of a federation."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from helpers.checkout import TINY
from helpers.client_requests import PROSTATE, tiny_model

from monai_fairfl.bundle.site_scores import scores_at_site
from monai_fairfl.data.synthetic import volume_file_names
from monai_fairfl.errors import ConfigError
from monai_fairfl.model_files.recipe import save_model_file


@pytest.mark.slow
def test_scores_are_of_this_call_and_never_of_a_model_before(
    hospitals: Path, tmp_path: Path
) -> None:
    weights, _ = tiny_model()
    model = tmp_path / "model.pt"
    save_model_file(model, weights)
    cases = []
    for number in range(4):
        image, label = volume_file_names(number)
        cases.append({"image": image, "label": label})
    lists = tmp_path / "lists.json"

    def scores(tested: list[dict[str, str]]) -> dict[str, dict[str, float]]:
        split = {"training": cases[:1], "validation": cases[1:2], "testing": tested}
        lists.write_text(json.dumps(split))
        return scores_at_site(
            model,
            PROSTATE,
            hospitals / "alder",
            tmp_path / "out",
            datalist_file=lists,
            overrides=TINY,
        )

    assert len(scores(cases[2:])) == 2
    # A site reports no score of cases that it trains.
    with pytest.raises(ConfigError, match="scores no test cases"):
        scores(cases[:1])
