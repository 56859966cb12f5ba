# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""``multi_gpu_train.json`` and ``multi_gpu_evaluate.json``, with two processes on the CPU.

They are what the ``docs/README.md`` of a bundle starts with ``torchrun``.
"""

from __future__ import annotations

import csv
import json
import socket
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import warm_python
from helpers.checkout import CHECKOUT
from helpers.shipped_bundles import EVALUATE, TRAIN, Bundle

from monai_fairfl.data import find_cases

pytestmark = [pytest.mark.slow, pytest.mark.long]

# The mean of two plain steps is a plain step along the mean gradient; Adam's is not.
PLAIN_STEP = {"_target_": "torch.optim.SGD", "params": "$@network.parameters()", "lr": 0.1}
ONE_EPOCH = {"max_epochs": 1, "val_interval": 0, "augmentation": [], "optimizer": PLAIN_STEP}


def without_chance(bundle: Bundle) -> dict[str, Any]:
    """Overrides under which a training draws no random number after the first weights."""
    if "slices_per_volume" in bundle.small:
        return {"slices_per_volume": "all"}
    # Every photograph is seen as a whole.
    return {"near": 0.0}


def run_two(names: tuple[str, ...], bundle: Bundle, data: Path, out: Path, **values: Any) -> None:
    """Run a workflow in two processes that find each other as torchrun's do."""
    given = {
        "bundle_root": bundle.root,
        "dataset_dir": data,
        "ckpt_dir": out,
        "output_dir": out / "eval",
        **values,
    }
    words = ["-W", "ignore", "-m", "monai.bundle", "run"]
    words += ["--config_file", json.dumps(bundle.files(*names))]
    for key, value in given.items():
        text = str(value) if isinstance(value, Path) else json.dumps(value)
        words += [f"--{key}", text]

    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    group = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    started = []
    for rank in ("0", "1"):
        log = out.parent / f"{out.name}_{rank}.log"
        started.append(
            warm_python.start(words, CHECKOUT, log, log, RANK=rank, LOCAL_RANK=rank, **group)
        )
    for rank, process in enumerate(started):
        process.join(240)
        if process.exitcode is None:
            process.kill()
        log = out.parent / f"{out.name}_{rank}.log"
        assert process.exitcode == 0, log.read_text()[-3000:]


def write_list(file: Path, site: Path, training: list[int]) -> Path:
    """A data list made by hand: these cases for training, all others for the rest."""
    cases = []
    for case in find_cases(site):
        cases.append({key: str(Path(case[key]).relative_to(site)) for key in ("image", "label")})
    listed = {
        "training": [cases[number] for number in training],
        "validation": cases[2:],
        "testing": cases[2:],
    }
    file.write_text(json.dumps(listed))
    return file


def saved_weights(file: Path) -> dict[str, torch.Tensor]:
    state: dict[str, torch.Tensor] = torch.load(file, weights_only=True)["model"]
    return state


def trained_alone(bundle: Bundle, site: Path, out: Path, case: int) -> dict[str, torch.Tensor]:
    out.mkdir()
    datalist = write_list(out / "list.json", site, [case])
    chosen = {**ONE_EPOCH, **without_chance(bundle), "batch_size": 1}
    bundle.run(TRAIN, site, out, datalist_file=str(datalist), **chosen)
    return saved_weights(out / "model.pt")


def dice_by_case(folder: Path) -> dict[str, list[float]]:
    with open(folder / "val_mean_dice_raw.csv") as file:
        rows = list(csv.DictReader(file))
    found = {}
    for row in rows:
        case = Path(row.pop("filename")).name
        assert case not in found
        found[case] = [float(value) for value in row.values()]
    return found


def test_a_step_of_two_processes_is_the_mean_of_their_steps(
    bundle: Bundle, site: Path, tmp_path: Path
) -> None:
    alone = [trained_alone(bundle, site, tmp_path / str(case), case) for case in (0, 1)]

    datalist = write_list(tmp_path / "both.json", site, [0, 1])
    chosen = {**bundle.small, **ONE_EPOCH, **without_chance(bundle), "batch_size": 1}
    names = (*TRAIN, "multi_gpu_train")
    run_two(names, bundle, site, tmp_path / "both", datalist_file=datalist, **chosen)

    together = saved_weights(tmp_path / "both" / "model.pt")
    assert together.keys() == alone[0].keys()
    network = bundle.workflow(TRAIN, site, tmp_path).parser.get_parsed_content("network_def")
    trained = [name for name, _ in network.named_parameters()]
    # A bias before a batch norm has no gradient.
    moved = [name for name in trained if not torch.equal(alone[0][name], alone[1][name])]
    assert len(moved) > len(trained) / 2
    for name in trained:
        mean = (alone[0][name] + alone[1][name]) / 2
        torch.testing.assert_close(together[name], mean, msg=name)


def test_two_processes_evaluate_each_case_once_as_one_process_does(
    bundle: Bundle, site: Path, tmp_path: Path
) -> None:
    datalist = write_list(tmp_path / "list.json", site, [0, 1])
    bundle.run(
        TRAIN,
        site,
        tmp_path,
        max_epochs=60,
        val_interval=0,
        datalist_file=str(datalist),
        **bundle.quick_learning,
    )
    model = tmp_path / "model.pt"
    given = {"ckpt_path": str(model), "datalist_file": str(datalist)}
    users = bundle.without_overrides()
    users.run(EVALUATE, site, tmp_path, **given)

    names = (*EVALUATE, "multi_gpu_evaluate")
    run_two(names, bundle, site, tmp_path / "two", ckpt_path=model, datalist_file=datalist)
    expected = dice_by_case(tmp_path / "eval")
    assert len(expected) == 2
    found = dice_by_case(tmp_path / "two" / "eval")
    assert found.keys() == expected.keys()
    for case, scores in expected.items():
        assert min(scores) > 0.05, "of an empty mask the Dice says nothing"
        assert found[case] == pytest.approx(scores, abs=1e-6), case
