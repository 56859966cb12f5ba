# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""What ``FairMonaiAlgo`` replies, on the real prostate bundle and real NIfTI files.

Each trap of MonaiAlgo that touches us has a test, here or in another file ``test_algo_*.py``.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.client_requests import counters_of, measure, same, train
from monai.fl.utils.constants import WeightType
from monai.fl.utils.exchange_object import ExchangeObject

import monai_fairfl
from monai_fairfl.client.algo import FairMonaiAlgo
from monai_fairfl.client.state import ClientState
from monai_fairfl.client.training import TRAINING_HANDLERS
from monai_fairfl.errors import ConfigError
from monai_fairfl.protocol.checks import refusal
from monai_fairfl.protocol.messages import CONTEXT_KEYS, Request
from monai_fairfl.protocol.model_spec import ModelSpec
from monai_fairfl.protocol.values import value_of
from monai_fairfl.utils.saved_files import read_state_dict

Maker = Callable[..., FairMonaiAlgo]
Weights = dict[str, torch.Tensor]


def test_a_reply_is_well_formed_and_counts_images_cases_and_steps(
    prostate_client: Maker, weights: Weights, spec: ModelSpec
) -> None:
    names = ("train_loss", "global_score", "local_score")
    request = Request("alder", "train", weights, names, run="r", round=0)
    reply = prostate_client().answer(request)
    assert refusal(request, reply, spec) is None
    # 2 of 4 cases train, 4 slices each.
    assert reply.num_cases == 2
    assert reply.num_samples == 8
    assert reply.num_steps == 1
    assert set(reply.measurements) == set(names)
    assert 0 <= value_of(reply.measurements["global_score"]) <= 1
    assert value_of(reply.measurements["train_loss"]) > 0
    assert reply.update is not None
    assert any(change.abs().max() > 0 for change in reply.update.values())


@pytest.mark.slow
def test_a_case_that_comes_several_times_in_an_epoch_is_counted_once(
    prostate_client: Maker, weights: Weights
) -> None:
    client = prostate_client(**{"train#dataset#data": "$@datalist['training'] * 3"})
    reply = client.answer(Request("alder", "train", weights, run="r", round=0))
    assert reply.num_cases == 2
    # The images that weigh are those that were trained.
    assert reply.num_samples == 24


def test_replies_share_no_memory_with_the_network(prostate_client: Maker, weights: Weights) -> None:
    client = prostate_client()
    reply = train(client, weights)
    sent = {**reply.update, **reply.buffers}  # type: ignore[dict-item]
    copies = {name: tensor.clone() for name, tensor in sent.items()}
    with torch.no_grad():
        for tensor in client.trainer.network.state_dict().values():
            tensor.add_(1)
    assert same(sent, copies)


def test_stock_interface_returns_copies_too(
    prostate_client: Maker, weights: Weights, spec: ModelSpec
) -> None:
    client = prostate_client(val_interval=0)
    client.send_weight_diff = False
    client.initialize({})
    client.train(ExchangeObject(weights=spec.with_aliases(weights)))
    sent = client.get_weights()
    assert sent.weight_type == WeightType.WEIGHTS
    own = dict(client.trainer.network.state_dict())
    for name, tensor in own.items():
        if tensor.numel():
            assert sent.weights[name].data_ptr() != tensor.data_ptr(), name

    first = client.evaluate(ExchangeObject(weights=dict(weights))).metrics
    second = client.evaluate(ExchangeObject(weights=own)).metrics
    assert first is not second
    assert first != second


def test_what_the_server_never_sent_is_not_reported_as_unchanged(
    prostate_client: Maker, weights: Weights, spec: ModelSpec
) -> None:
    client = prostate_client(val_interval=0)
    client.initialize({})
    client.train(ExchangeObject(weights={name: weights[name] for name in spec.parameters}))
    assert set(client.get_weights().weights) == set(spec.parameters)


@pytest.mark.slow
def test_buffers_that_are_not_sent_stay_the_clients_own(
    prostate_client: Maker, weights: Weights, spec: ModelSpec, tmp_path: Path
) -> None:
    client = prostate_client()
    first = train(client, weights)
    assert first.buffers is not None
    assert set(first.buffers) == set(spec.buffers)

    # What is not sent is not sent back.
    parameters = {name: weights[name] for name in spec.parameters}
    second = train(client, parameters, 1)
    assert second.buffers == {}
    own = ClientState(tmp_path / "alder" / "state").load("r", 1)["local"]
    for name in counters_of(spec):
        assert own[name] == first.buffers[name] + second.num_steps

    # At the end of a run the site stores a whole model for inference.
    measure(client, parameters, "score", number=2, closing=1.0)
    stored = read_state_dict(tmp_path / "alder" / "state" / "r-own.pt")
    assert set(stored) == set(client.trainer.network.state_dict())
    assert same({name: stored[name] for name in spec.parameters}, parameters)
    for name in spec.buffers:
        assert torch.equal(stored[name], own[name])


# ---- what is refused


def test_weights_of_another_network_are_an_error_that_names_a_tensor(
    prostate_client: Maker, weights: Weights, spec: ModelSpec
) -> None:
    missing = spec.parameters[0]
    partial = {name: tensor for name, tensor in weights.items() if name != missing}
    client = prostate_client()
    message = f"'alder'.*lack 1 of {len(spec.parameters)} parameters.*{missing}"
    with pytest.raises(ValueError, match=message):
        train(client, partial)
    with pytest.raises(KeyError, match="no tensor 'other'"):
        measure(client, {**weights, "other": torch.ones(1)}, "score")


@pytest.mark.parametrize("swap", [False, True])
def test_a_parameter_of_another_shape_is_named_with_both_shapes(
    prostate_client: Maker, weights: Weights, spec: ModelSpec, swap: bool
) -> None:
    name = "downsamples.0.conv1.conv.weight"
    # MONAI fills in what has as many values, in whatever order.
    other = weights[name].transpose(0, 1) if swap else weights[name][:2]
    assert spec.parameters.count(name) == 1 and other.shape != weights[name].shape
    client = prostate_client()
    sizes = f"{tuple(other.shape)}, and this site's network has {tuple(weights[name].shape)}"
    with pytest.raises(ValueError, match=re.escape(sizes)):
        train(client, {**weights, name: other.contiguous()})


def test_what_the_client_does_not_know_is_an_error_not_ignored(
    prostate_client: Maker, weights: Weights, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = prostate_client()
    with pytest.raises(ValueError, match="cannot do 'beauty'"):
        train(client, weights, 0, ("beauty",))
    # An old client does not have this key.
    monkeypatch.delitem(CONTEXT_KEYS, "prox_mu")
    with pytest.raises(ValueError, match="unknown context key 'prox_mu'.*update monai_fairfl"):
        train(client, weights, 0, prox_mu=0.1)


def test_every_context_key_is_read_by_the_client() -> None:
    assert set(TRAINING_HANDLERS) <= set(CONTEXT_KEYS)
    package = Path(monai_fairfl.__file__).parent
    code = ""
    for room in ("client", "measurements"):
        for file in sorted((package / room).glob("*.py")):
            code += file.read_text()
    unread = [key for key in CONTEXT_KEYS if f'"{key}"' not in code]
    assert unread == []


def test_gsams_context_key_alone_is_an_error(prostate_client: Maker, weights: Weights) -> None:
    with pytest.raises(ValueError, match="'gsam_alpha' needs 'sam_rho'"):
        train(prostate_client(), weights, gsam_alpha=0.1)


@pytest.mark.slow
def test_a_request_to_a_client_that_only_evaluates_is_refused(
    prostate_client: Maker, weights: Weights
) -> None:
    client = prostate_client()
    client.config_train_filename = None
    message = "'alder' only evaluates: give it a config_train_filename"
    with pytest.raises(ConfigError, match=message):
        train(client, weights)


@pytest.mark.slow
def test_a_bundle_whose_schedule_reads_the_score_is_refused_each_time(
    prostate_client: Maker, weights: Weights
) -> None:
    client = prostate_client(
        **{
            "lr_scheduler": {
                "_target_": "torch.optim.lr_scheduler.ReduceLROnPlateau",
                "optimizer": "@optimizer",
            },
            "train#handlers#0#step_transform": (
                "$lambda _: @validate#evaluator.state.metrics['val_mean_dice']"
            ),
        }
    )
    for _ in range(2):
        with pytest.raises(ConfigError, match="ReduceLROnPlateau reads the validation score"):
            train(client, weights)


def test_the_callers_overrides_are_not_written_into() -> None:
    settings: dict[str, Any] = {"dataset_dir": "x"}
    client = FairMonaiAlgo("nowhere", "state", train_kwargs=settings, config_evaluate_filename=None)
    client.train_kwargs["run_name"] = "y"
    assert settings == {"dataset_dir": "x"}
