# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Rewards that share a step take little room in a checkpoint, and no bit of any is lost."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file

from monai_fairfl.run_folder.checkpoint import Checkpoint, Checkpoints, read_checkpoint
from monai_fairfl.run_folder.reward_files import differences, restored, stored_from
from monai_fairfl.utils.files import tensors_as_bytes, write_folder

TYPES = (torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.int64, torch.bool)
SPECIAL = torch.tensor([float("nan"), float("inf"), -0.0, 0.0, 1.0])


def same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    both = [tensor.contiguous().reshape(-1).view(torch.uint8) for tensor in (one, other)]
    return one.dtype == other.dtype and one.shape == other.shape and torch.equal(*both)


@pytest.mark.slow
@settings(max_examples=300)
@given(
    dtype=st.sampled_from(TYPES),
    shape=st.lists(st.integers(0, 5), max_size=3).map(tuple),
    share=st.sampled_from([0.0, 0.1, 0.5, 1.0]),
    seed=st.integers(0, 99),
)
def test_a_model_comes_back_with_every_bit(
    dtype: torch.dtype, shape: tuple[int, ...], share: float, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    places = torch.randint(len(SPECIAL), shape, generator=generator)
    reference = {"w": SPECIAL[places].to(dtype), "other": torch.ones(2)}
    changed = torch.rand(shape, generator=generator) < share
    model = {"w": torch.where(changed, SPECIAL[(places + 1) % 5].to(dtype), reference["w"])}
    model["new"] = torch.ones(3)
    found = restored(differences(model, reference), reference)
    assert set(found) == {"w", "new"}
    assert same_bits(found["w"], model["w"]) and same_bits(found["new"], model["new"])


def rewards(count: int, lacking: float, size: int = 20_000) -> dict[str, dict[str, torch.Tensor]]:
    """Models of clients that lack more and more of a step; client 0 has it whole."""
    generator = torch.Generator().manual_seed(0)
    start = torch.randn(size, generator=generator)
    step = torch.randn(size, generator=generator)
    models = {}
    for number in range(count):
        receives = step.abs() >= step.abs().quantile(lacking * number / count)
        models[f"site{number}"] = {"w": torch.where(receives, start + step, start)}
    return models


def bytes_of(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def test_rewards_of_one_step_take_a_third_of_their_room(tmp_path: Path) -> None:
    models = rewards(count=8, lacking=0.3)
    Checkpoints(tmp_path).save(Checkpoint(0, {"w": torch.zeros(1)}, models))
    folder = tmp_path / "round-0000"
    assert json.loads((folder / "manifest.json").read_text())["format"] == 3
    assert bytes_of(folder / "rewards") < 8 * 80_000 / 3
    found = read_checkpoint(folder).rewards
    for client, model in models.items():
        assert same_bits(found[client]["w"], model["w"])


def test_rewards_that_have_nothing_in_common_are_whole(tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(0)
    models = {client: {"w": torch.randn(1000, generator=generator)} for client in "ABC"}
    Checkpoints(tmp_path).save(Checkpoint(0, {"w": torch.zeros(1)}, models))
    folder = tmp_path / "round-0000"
    assert bytes_of(folder / "rewards") < 3 * 4000 + 3 * 100
    for client, model in models.items():
        assert same_bits(read_checkpoint(folder).rewards[client]["w"], model["w"])


def test_the_reference_has_most_in_common_with_the_others() -> None:
    models = rewards(count=3, lacking=0.9)
    models["a stranger"] = {"v": torch.zeros(7)}
    # The second lacks a third of what the third lacks, and nothing that the third has.
    whole, differs_from = stored_from(models)
    assert whole == "site1"
    assert differs_from["site0"] == "site1" and differs_from["site2"] == "site1"


def test_each_model_differs_from_the_one_most_like_it(tmp_path: Path) -> None:
    models = rewards(count=12, lacking=0.9)
    shuffled = {client: models[client] for client in sorted(models, key=lambda name: name[::-1])}
    _, differs_from = stored_from(shuffled)
    for client, other in differs_from.items():
        assert abs(int(client[4:]) - int(other[4:])) == 1, (client, other)

    # One whole model, and of each other a bit a value and one in 13 of the values.
    Checkpoints(tmp_path).save(Checkpoint(0, {"w": torch.zeros(1)}, shuffled))
    folder = tmp_path / "round-0000"
    assert bytes_of(folder / "rewards") < 80_000 + 11 * (20_000 / 8 + 80_000 / 12 + 300)
    found = read_checkpoint(folder).rewards
    assert list(found) == sorted(found)
    for client, model in models.items():
        assert same_bits(found[client]["w"], model["w"])


def test_a_checkpoint_whose_models_all_differ_from_one_is_read(tmp_path: Path) -> None:
    models = rewards(count=3, lacking=0.5)
    files = [
        ("model.safetensors", tensors_as_bytes({"w": torch.zeros(1)})),
        ("strategy.json", b"{}"),
    ]
    for client, model in models.items():
        stored = model if client == "site0" else differences(model, models["site0"])
        files.append((f"rewards/{client}.safetensors", tensors_as_bytes(stored)))
    write_folder(tmp_path / "round-0003", files, {"format": 2, "round": 3, "reference": "site0"})
    found = Checkpoints(tmp_path).load()
    assert found is not None
    for client, model in models.items():
        assert same_bits(found.rewards[client]["w"], model["w"])


@pytest.mark.parametrize(
    "differs_from",
    [{"site1": "site2", "site2": "site1"}, {"site1": "nobody"}, {"nobody": "site0"}, 5],
)
def test_models_that_lead_to_none_that_is_there_are_a_damaged_checkpoint(
    tmp_path: Path, differs_from: object
) -> None:
    store = Checkpoints(tmp_path)
    for number in range(2):
        store.save(Checkpoint(number, {"w": torch.zeros(1)}, rewards(3, 0.1)))
    path = tmp_path / "round-0001" / "manifest.json"
    manifest = json.loads(path.read_text())
    path.write_text(json.dumps({**manifest, "reference": "site0", "differs_from": differs_from}))
    whole = store.load()
    assert whole is not None and whole.round == 0


def test_a_checkpoint_without_rewards_can_be_read_by_earlier_versions(tmp_path: Path) -> None:
    Checkpoints(tmp_path).save(Checkpoint(0, {"w": torch.zeros(1)}))
    manifest = json.loads((tmp_path / "round-0000" / "manifest.json").read_text())
    assert manifest["format"] == 1 and "reference" not in manifest


def test_the_whole_rewards_of_earlier_versions_are_read(tmp_path: Path) -> None:
    models = {"A": {"w": torch.tensor([1.0])}, "B.C": {"w": torch.tensor([2.0])}}
    files = [
        ("model.safetensors", tensors_as_bytes({"w": torch.zeros(1)})),
        ("strategy.json", b"{}"),
    ]
    for client, model in models.items():
        files.append((f"rewards/{client}.safetensors", tensors_as_bytes(model)))
    write_folder(tmp_path / "round-0003", files, {"format": 1, "round": 3})
    found = Checkpoints(tmp_path).load()
    assert found is not None and found.round == 3 and set(found.rewards) == {"A", "B.C"}
    assert found.rewards["B.C"]["w"].item() == 2.0


@pytest.mark.parametrize(
    "damage", ["no values", "too many values", "another type", "few places", "other key"]
)
def test_differences_that_do_not_fit_are_a_damaged_checkpoint(tmp_path: Path, damage: str) -> None:
    store = Checkpoints(tmp_path)
    for number in range(2):
        store.save(Checkpoint(number, {"w": torch.zeros(1)}, rewards(3, 0.1)))
    folder = tmp_path / "round-0001"
    found = load_file(folder / "rewards" / "site2.safetensors")
    if damage == "no values":
        del found["values/w"]
    elif damage == "too many values":
        found["values/w"] = torch.zeros(20_000)
    elif damage == "another type":
        found["where/w"] = found["where/w"].float()
    elif damage == "few places":
        found["where/w"] = found["where/w"][:5].clone()
    else:
        found["w"] = torch.zeros(20_000)

    manifest = json.loads((folder / "manifest.json").read_text())
    files = [(name, (folder / name).read_bytes()) for name in manifest.pop("sha256")]
    kept = [(name, data) for name, data in files if not name.endswith("site2.safetensors")]
    write_folder(folder, [*kept, ("rewards/site2.safetensors", tensors_as_bytes(found))], manifest)
    whole = store.load()
    assert whole is not None and whole.round == 0
