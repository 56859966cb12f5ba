# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""What a client measures on its own data, and what measuring leaves alone."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.client_requests import after, broken, measure, same, train
from helpers.refusals import refused
from helpers.reports import rows_of

from monai_fairfl import Estimate
from monai_fairfl.measurements import leave_one_out_model
from monai_fairfl.messages import value_of

Weights = dict[str, torch.Tensor]

# One case trains, and two of the four validate.
TWO_VALIDATE = {"split_fractions": [0.25, 0.5, 0.25]}


def random_states() -> list[Any]:
    of_numpy: Any = np.random.get_state()  # noqa: NPY002
    return [random.getstate(), of_numpy[1].tolist(), torch.random.get_rng_state().tolist()]


def test_measuring_changes_no_bit_of_the_training_and_nothing_of_the_process(
    new_client: Any, weights: Weights, tmp_path: Path
) -> None:
    names = ("global_score", "train_loss", "local_score", "local_loss", "sharpness")
    client = new_client(batch_size=1)
    undisturbed = [train(client, weights, number) for number in range(2)]
    first = train(client, weights, 0, names)
    assert set(first.measurements) == set(names)
    assert same(first.update, undisturbed[0].update)

    def state() -> list[Any]:
        own = client.train_workflow.evaluator.state
        return [*random_states(), own.best_metric, dict(own.metrics), own.epoch]

    trained = {name: tensor.clone() for name, tensor in client.trainer.network.state_dict().items()}
    before = state()
    between = ("score", "test_score", "cka", "feature_cosine", "sharpness", "global_loss")
    assert set(measure(client, weights, *between, number=0)) == set(between)
    assert state() == before
    assert same(client.trainer.network.state_dict(), trained)
    assert not list((tmp_path / "alder" / "models").glob("*"))
    assert same(train(client, weights, 1).update, undisturbed[1].update)


def test_a_case_that_cannot_be_scored_is_an_error_and_not_a_score_of_the_others(
    new_client: Any, weights: Weights
) -> None:
    client = new_client(**TWO_VALIDATE)
    expected = measure(client, weights, "score")["score"]
    assert expected["mean"].n == 2
    evaluator = client.train_workflow.evaluator
    usual = evaluator.inferer
    evaluator.inferer = broken(usual, 2, OSError("Case07.nii.gz is truncated"))
    with refused("Case07", by=OSError):
        measure(client, weights, "score")
    evaluator.inferer = usual
    assert measure(client, weights, "score")["score"] == expected


# ---- test cases, and what is stored of each case


def split_of(folder: Path, testing: list[dict[str, str]]) -> str:
    """A data list with these test cases; of the others, one trains and one validates."""
    cases = [named("Case00.nii.gz", 0), named("Case01.nii.gz", 1)]
    file = folder / "split.json"
    split = {"training": cases[:1], "validation": cases[1:], "testing": testing}
    file.write_text(json.dumps(split))
    return str(file)


def named(image: str, number: int) -> dict[str, str]:
    return {"image": image, "label": f"Case{number:02d}_segmentation.nii.gz"}


@pytest.fixture
def images(hospitals: Path, tmp_path: Path) -> Path:
    """A copy of a site's images, for further names of files."""
    shutil.copytree(hospitals / "alder", tmp_path / "images")
    return tmp_path / "images"


def test_scores_of_test_cases_stay_at_the_site_in_a_file_that_no_spreadsheet_runs(
    new_client: Any, weights: Weights, images: Path, tmp_path: Path
) -> None:
    names = ["=HYPERLINK(1).nii.gz", 'Smith, "John".nii.gz', "@a.nii.gz"]
    for name in names:
        (images / name).symlink_to(images / "Case02.nii.gz")
    lists = split_of(tmp_path, [named(name, 2) for name in names])
    client = new_client(dataset_dir=str(images), datalist_file=lists)
    measure(client, weights, "test_score")
    # Only the last measurement of a run is stored.
    assert not list((tmp_path / "alder" / "state").glob("*.csv"))
    score = measure(client, weights, "test_score", closing=1.0)["test_score"]

    [file] = (tmp_path / "alder" / "state").glob("*test_score*.csv")
    rows = rows_of(file)
    assert [row["case"].lstrip("'") for row in rows] == names
    assert not [row for row in rows if row["case"][0] in "=+-@"]
    mean = sum(float(row["dice"]) for row in rows) / len(rows)
    assert value_of(score) == pytest.approx(mean, abs=1e-5)


def test_test_cases_that_are_training_or_validation_cases_give_no_test_score_but_their_number(
    new_client: Any,
    weights: Weights,
    images: Path,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    (images / "link.nii.gz").symlink_to(images / "Case00.nii.gz")
    lists = split_of(tmp_path, [named("Case02.nii.gz", 2), named("link.nii.gz", 0)])
    client = new_client(dataset_dir=str(images), datalist_file=lists)
    found = measure(client, weights, "test_score", closing=1.0)
    counts = {"training": 1, "validation": 0}
    expected = {f"test_cases_in_{use}": Estimate(counts[use], None, 2) for use in counts}
    assert found == expected and "alder" in caplog.text and "Case00" in caplog.text
    assert not list((tmp_path / "alder" / "state").glob("*test_score*"))


# ---- measurements that need an earlier model


def mixture(one: Weights, two: Weights, share: float) -> Weights:
    """``one`` with this share of ``two``; counters are those of ``two``."""
    mixed = {}
    for name, tensor in one.items():
        mixed[name] = two[name]
        if tensor.is_floating_point():
            mixed[name] = (1 - share) * tensor + share * two[name]
    return mixed


def test_the_leave_one_out_error_is_that_of_the_model_without_exactly_the_previous_update(
    new_client: Any, learnt: Weights
) -> None:
    names = ("leave_one_out_error", "global_score")
    client = new_client(learning_rate=0.02)
    local = after(learnt, train(client, learnt))
    mixed = mixture(learnt, local, 0.4)
    second = train(client, mixed, 1, names, previous_weight=0.4)
    error, score = map(value_of, second.measurements.values())
    without = leave_one_out_model(mixed, local, 0.4)
    assert error == pytest.approx(1 - value_of(measure(client, without, "score")["score"]))
    assert error != pytest.approx(1 - score)

    local = {name: tensor.clone() for name, tensor in after(mixed, second).items()}
    # The tensors of a reply are the server's.
    for tensor in (second.buffers or {}).values():
        tensor.zero_()
    third = train(client, learnt, 2, names[:1], previous_weight=0.3).measurements
    without = leave_one_out_model(learnt, local, 0.3)
    score = value_of(measure(client, without, "score")["score"])
    assert value_of(third["leave_one_out_error"]) == pytest.approx(1 - score)
    alone = train(client, learnt, 4, names, previous_weight=1.0)
    assert set(alone.measurements) == {"global_score"}
    # The previous average is without a client that was absent.
    absent = train(client, learnt, 6, names, previous_weight=0.0)
    error, score = map(value_of, absent.measurements.values())
    assert error == pytest.approx(1 - score)
