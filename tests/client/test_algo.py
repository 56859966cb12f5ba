# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""FairMonaiAlgo on the real prostate bundle and real NIfTI files.

Each trap of MonaiAlgo that touches us has a test.
"""

from __future__ import annotations

import math
import random
import shutil
from collections.abc import Callable
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.checkout import CHECKOUT
from helpers.client_requests import after, same, tiny_model, train
from ignite.engine import Events
from monai.fl.utils.constants import WeightType
from monai.fl.utils.exchange_object import ExchangeObject

import monai_fairfl
from monai_fairfl.audit import read_receipts
from monai_fairfl.client.algo import FairMonaiAlgo
from monai_fairfl.client.state import ClientState, Past
from monai_fairfl.client.trainer_state import state_of
from monai_fairfl.client.training import TRAINING_HANDLERS
from monai_fairfl.errors import ConfigError, TransportAborted
from monai_fairfl.measurements.leave_one_out import leave_one_out_model
from monai_fairfl.protocol.checks import refusal
from monai_fairfl.protocol.messages import CONTEXT_KEYS, Reply, Request
from monai_fairfl.protocol.model_spec import read_spec
from monai_fairfl.protocol.values import value_of
from monai_fairfl.run_folder.ledger import digest_of
from monai_fairfl.utils.files import read_state_dict

Maker = Callable[..., FairMonaiAlgo]


@pytest.fixture(scope="module")
def model() -> tuple[dict[str, torch.Tensor], Any]:
    return tiny_model()


def score_of(client: FairMonaiAlgo, weights: Any, *names: str) -> Reply:
    return client.answer(
        Request("alder", "measure", weights, names or ("score",), run="r", round=9)
    )


def numpy_state() -> list[int]:
    return list(np.random.get_state()[1])  # type: ignore[index, arg-type] # noqa: NPY002


def test_a_case_that_comes_several_times_in_an_epoch_is_counted_once(
    prostate_client: Maker, model: Any
) -> None:
    client = prostate_client(**{"train#dataset#data": "$@datalist['training'] * 3"})
    reply = client.answer(Request("alder", "train", model[0], run="r", round=0))
    assert reply.num_cases == 2
    # The images that weigh are those that were trained.
    assert reply.num_samples == 24


def test_a_reply_is_well_formed_and_counts_images_cases_and_steps(
    prostate_client: Maker, model: Any
) -> None:
    weights, spec = model
    request = Request(
        "alder", "train", weights, ("train_loss", "global_score", "local_score"), run="r", round=0
    )
    reply = prostate_client().answer(request)
    assert refusal(request, reply, spec) is None
    # 2 of 4 cases train, 4 slices each.
    assert (reply.num_cases, reply.num_samples, reply.num_steps) == (2, 8, 1)
    assert set(reply.measurements) == {"train_loss", "global_score", "local_score"}
    assert 0 <= value_of(reply.measurements["global_score"]) <= 1
    assert value_of(reply.measurements["train_loss"]) > 0
    assert any(v.abs().max() > 0 for v in reply.update.values())  # type: ignore[union-attr]


def test_each_answer_leaves_a_receipt_with_the_head_and_the_digest_of_the_update_as_sent(
    prostate_client: Maker, model: Any
) -> None:
    client = prostate_client()
    sent = Request("alder", "train", model[0], run="r", round=0, id=4, ledger_head="ab12")
    reply = client.answer(sent)
    client.answer(replace(sent, task="measure", measure=("score",), round=1, ledger_head="cd34"))
    client.answer(Request("alder", "train", model[0], run="valuation", round=0))  # of no ledger
    end = Request("alder", "measure", {}, (), {"ended": 1}, run="r", round=1, ledger_head="ef56")
    assert (client.answer(end).error, client.answer(end).update) == (None, None)

    assert reply.update is not None
    assert reply.digest == digest_of({**reply.update, **(reply.buffers or {})})
    trained, measured, *ends = read_receipts(client.receipts.path)
    assert (trained.run, trained.round, trained.head) == ("r", 0, "ab12")
    assert (trained.client, trained.update, trained.ended) == ("alder", reply.digest, False)
    assert (measured.round, measured.head, measured.update) == (1, "cd34", None)
    assert [(receipt.head, receipt.ended) for receipt in ends] == [("ef56", True)] * 2


def test_a_measured_and_an_unmeasured_training_are_bit_equal(
    prostate_client: Maker, model: Any
) -> None:
    plain = train(prostate_client(state="plain"), model[0])
    names = ("global_score", "train_loss", "local_score", "global_loss", "local_loss", "sharpness")
    measured = train(prostate_client(state="measured"), model[0], 0, names)
    assert set(measured.measurements) == set(names)
    assert same(plain.update, measured.update) and same(plain.buffers, measured.buffers)


def test_probes_leave_best_checkpoint_metrics_random_state_and_weights_alone(
    prostate_client: Maker, model: Any, tmp_path: Path
) -> None:
    client = prostate_client()
    train(client, model[0])
    trained = {k: v.clone() for k, v in client.trainer.network.state_dict().items()}
    evaluator = client.train_workflow.evaluator
    before = (evaluator.state.best_metric, dict(evaluator.state.metrics), evaluator.state.epoch)
    states = random.getstate(), numpy_state(), torch.random.get_rng_state()
    reply = score_of(client, model[0])
    assert 0 <= value_of(reply.measurements["score"]) <= 1 and reply.update is None
    assert (
        evaluator.state.best_metric,
        dict(evaluator.state.metrics),
        evaluator.state.epoch,
    ) == before
    assert random.getstate() == states[0] and numpy_state() == states[1]  # type: ignore[index]
    assert torch.equal(torch.random.get_rng_state(), states[2])
    assert same(client.trainer.network.state_dict(), trained)
    assert not list((tmp_path / "alder" / "models").glob("*"))


def test_the_score_is_that_of_the_bundles_own_evaluator(prostate_client: Maker, model: Any) -> None:
    client = prostate_client()
    probed = value_of(score_of(client, model[0]).measurements["score"])
    evaluator = client.train_workflow.evaluator
    client.trainer.network.load_state_dict(model[0])
    evaluator.run()
    assert probed == pytest.approx(evaluator.state.metrics["val_mean_dice"], abs=1e-6)


def test_test_score_is_measured_on_the_testing_list_and_its_cases_stay_at_the_site(
    prostate_client: Maker, model: Any, tmp_path: Path
) -> None:
    client = prostate_client()
    request = Request("alder", "measure", model[0], ("score", "test_score"), run="r", round=9, id=3)
    client.answer(request)
    # Only the last measurement of a run is stored.
    assert not list((tmp_path / "alder" / "state").glob("*.csv"))
    reply = client.answer(replace(request, context={"closing": 1.0}))
    assert set(reply.measurements) == {"score", "test_score"}
    rows = (tmp_path / "alder" / "state" / "r-test_score-9-3.csv").read_text().splitlines()
    listed = Path(tmp_path / "alder.json").read_text()
    assert rows[0] == "case,dice" and rows[1].split(",")[0] in listed
    assert float(rows[1].split(",")[1]) == pytest.approx(
        value_of(reply.measurements["test_score"]), abs=1e-5
    )


def test_replies_share_no_memory_with_the_network(prostate_client: Maker, model: Any) -> None:
    client = prostate_client()
    reply = train(client, model[0])
    sent = {**reply.update, **reply.buffers}  # type: ignore[dict-item]
    copies = {name: tensor.clone() for name, tensor in sent.items()}
    with torch.no_grad():
        for tensor in client.trainer.network.state_dict().values():
            tensor.add_(1)
    assert same(sent, copies)


def test_stock_interface_returns_copies_too(prostate_client: Maker, model: Any) -> None:
    client = prostate_client(val_interval=0)
    client.send_weight_diff = False
    client.initialize({})
    client.train(ExchangeObject(weights=client.spec.with_aliases(model[0])))
    sent = client.get_weights()
    assert sent.weight_type == WeightType.WEIGHTS
    own = dict(client.trainer.network.state_dict())
    assert all(sent.weights[k].data_ptr() != own[k].data_ptr() for k in own if own[k].numel())
    first = client.evaluate(ExchangeObject(weights=dict(model[0]))).metrics
    again = client.evaluate(ExchangeObject(weights=own)).metrics
    assert first is not again and first != again


def test_what_the_server_never_sent_is_not_reported_as_unchanged(
    prostate_client: Maker, model: Any
) -> None:
    weights, spec = model
    client = prostate_client(val_interval=0)
    client.initialize({})
    client.train(ExchangeObject(weights={name: weights[name] for name in spec.parameters}))
    assert set(client.get_weights().weights) == set(spec.parameters)


def test_weights_of_another_network_are_an_error_that_names_a_tensor(
    prostate_client: Maker, model: Any
) -> None:
    weights, spec = model
    partial = {k: v for k, v in weights.items() if k != spec.parameters[0]}
    with pytest.raises(
        ValueError,
        match=f"'alder'.*lack 1 of {len(spec.parameters)} parameters.*{spec.parameters[0]}",
    ):
        train(prostate_client(), partial)
    with pytest.raises(KeyError, match="no tensor 'other'"):
        score_of(prostate_client(), {**weights, "other": torch.ones(1)})


def test_buffers_that_are_not_sent_stay_the_clients_own(
    prostate_client: Maker, model: Any, tmp_path: Path
) -> None:
    weights, spec = model
    client = prostate_client()
    first = train(client, weights)
    parameters = {k: weights[k] for k in spec.parameters}
    second = train(client, parameters, 1)
    assert set(first.buffers or {}) == set(spec.buffers)
    # What is not sent is not sent back.
    assert second.buffers == {}
    own = ClientState(tmp_path / "alder" / "state").load("r", 1)["local"]
    counters = [k for k in spec.buffers if k.endswith("num_batches_tracked")]
    assert all(own[k] == first.buffers[k] + second.num_steps for k in counters)  # type: ignore[index]
    closing = Request(
        "alder", "measure", parameters, ("score",), {"closing": 1.0}, run="r", round=2
    )
    client.answer(closing)
    # A whole model for inference.
    stored = read_state_dict(tmp_path / "alder" / "state" / "r-own.pt")
    assert set(stored) == set(client.trainer.network.state_dict())
    assert all(torch.equal(stored[name], own[name]) for name in spec.buffers)
    assert all(torch.equal(stored[name], weights[name]) for name in spec.parameters)


def test_what_the_client_does_not_know_is_an_error_not_ignored(
    prostate_client: Maker, model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ValueError, match="cannot do 'beauty'"):
        train(prostate_client(), model[0], 0, ("beauty",))
    monkeypatch.delitem(CONTEXT_KEYS, "prox_mu")  # an old client
    with pytest.raises(ValueError, match="unknown context key 'prox_mu'.*update monai_fairfl"):
        train(prostate_client(), model[0], 0, prox_mu=0.1)


def test_every_context_key_is_understood_and_gsams_alone_is_an_error(
    prostate_client: Maker, model: Any
) -> None:
    assert set(TRAINING_HANDLERS) <= set(CONTEXT_KEYS)
    package = Path(monai_fairfl.__file__).parent
    read = ""
    for room in ("client", "measurements"):
        read += "".join(file.read_text() for file in sorted((package / room).glob("*.py")))
    assert [key for key in CONTEXT_KEYS if f'"{key}"' not in read] == []
    with pytest.raises(ValueError, match="'gsam_alpha' needs 'sam_rho'"):
        train(prostate_client(), model[0], gsam_alpha=0.1)


def test_leave_one_out_error_is_that_of_the_model_without_this_client(
    prostate_client: Maker, model: Any
) -> None:
    weights, _ = model
    client = prostate_client(learning_rate=0.02)
    first = train(client, weights)
    local = after(weights, first)
    mixed = {
        k: 0.6 * weights[k] + 0.4 * local[k] if weights[k].is_floating_point() else local[k]
        for k in weights
    }
    second = train(client, mixed, 1, ("leave_one_out_error",), previous_weight=0.4)
    without = leave_one_out_model(mixed, local, 0.4)
    dice = score_of(client, without).measurements["score"]
    assert value_of(second.measurements["leave_one_out_error"]) == pytest.approx(
        1 - value_of(dice), abs=1e-9
    )
    for name in weights:
        if weights[name].is_floating_point():
            assert torch.allclose(without[name], weights[name], atol=1e-5)


def test_leave_one_out_error_needs_the_state_of_exactly_the_round_before(
    prostate_client: Maker, model: Any
) -> None:
    client = prostate_client()
    train(client, model[0], 0)
    late = train(client, model[0], 2, ("leave_one_out_error",), previous_weight=0.3)
    assert "leave_one_out_error" not in late.measurements
    alone = train(client, model[0], 3, ("leave_one_out_error",), previous_weight=1.0)
    assert "leave_one_out_error" not in alone.measurements
    away = train(client, model[0], 5, ("leave_one_out_error", "global_score"), previous_weight=0.0)
    score, error = (value_of(away.measurements[n]) for n in ("global_score", "leave_one_out_error"))
    assert error == pytest.approx(1 - score)


@pytest.mark.slow
def test_a_new_process_continues_to_the_bit_optimizer_and_schedule_included(
    prostate_client: Maker, model: Any
) -> None:
    weights = model[0]
    lasting = prostate_client(state="lasting")
    models = [weights]
    for number in range(3):
        models.append(after(models[-1], train(lasting, models[-1], number)))
    restarted = weights
    for number in range(3):
        restarted = after(restarted, train(prostate_client(state="restarted"), restarted, number))
    assert same(models[-1], restarted)


@pytest.mark.slow
def test_a_repeated_round_gives_the_same_update(prostate_client: Maker, model: Any) -> None:
    client = prostate_client()
    first = train(client, model[0], 0)
    middle = after(model[0], first)
    once = train(client, middle, 1)
    train(client, after(middle, once), 2)  # the server crashed after this and begins round 1 again
    assert same(train(client, middle, 1).update, once.update)
    assert same(train(prostate_client(), middle, 1).update, once.update)


def test_a_lost_state_starts_clean_and_local_epochs_and_optimizer_reset_act(
    prostate_client: Maker, model: Any, tmp_path: Path
) -> None:
    client = prostate_client()
    first = train(client, model[0], 0)
    assert (
        client.trainer.optimizer.param_groups[0]["lr"]
        < client._initial["optimizer"]["param_groups"][0]["lr"]
    )
    twice = train(client, model[0], 1, local_epochs=2.0, reset_optimizer=1.0)
    assert twice.num_steps == 2 * first.num_steps and twice.num_samples == first.num_samples
    shutil.rmtree(tmp_path / "alder" / "state")
    fresh = train(prostate_client(), model[0], 0)
    assert same(fresh.update, first.update)


def test_clients_do_not_disturb_each_other(
    prostate_client: Maker, model: Any, tmp_path: Path
) -> None:
    alone = train(prostate_client("alder"), model[0])
    first, other = prostate_client("alder", state="again"), prostate_client("elm")
    other.answer(Request("elm", "train", model[0], ("global_score",), run="r", round=0, seed=1))
    assert same(train(first, model[0]).update, alone.update)
    assert {p.name for p in tmp_path.iterdir()} >= {"alder", "elm"}


def test_the_callers_overrides_are_not_written_into(prostate_client: Maker, model: Any) -> None:
    kwargs: dict[str, Any] = {"dataset_dir": "x"}
    client = FairMonaiAlgo("nowhere", "state", train_kwargs=kwargs, config_evaluate_filename=None)
    client.train_kwargs["run_name"] = "y"
    assert kwargs == {"dataset_dir": "x"}


def test_abort_stops_the_evaluators_too(prostate_client: Maker) -> None:
    client = prostate_client()
    client.initialize({})
    for evaluator in client._evaluators():
        evaluator.should_interrupt = False
    assert len(client._evaluators()) == 2
    client.abort()
    assert all(evaluator.should_interrupt for evaluator in client._evaluators())


def test_a_bundle_without_evaluate_json_works(
    prostate_client: Maker, model: Any, tmp_path: Path
) -> None:
    source = CHECKOUT / "bundles" / "prostate_mri_segmentation"
    shutil.copytree(
        source, tmp_path / "bundle", ignore=shutil.ignore_patterns("evaluate.json", "runs")
    )
    client = prostate_client(bundle=str(tmp_path / "bundle"))
    reply = score_of(client, model[0], "score", "test_score")
    assert set(reply.measurements) == {"score"}


def broken(function: Callable[..., Any], at: int, error: Exception) -> Callable[..., Any]:
    """``function``, whose call number ``at`` raises."""
    calls = count(1)

    def call(*args: Any, **kwargs: Any) -> Any:
        if next(calls) == at:
            raise error
        return function(*args, **kwargs)

    return call


def test_a_step_that_fails_is_an_error_and_not_a_shorter_epoch_and_a_retry_trains_all_of_it(
    prostate_client: Maker, model: Any
) -> None:
    client, untouched = prostate_client(batch_size=1), prostate_client(
        batch_size=1, state="untouched"
    )
    expected = [train(untouched, model[0], number) for number in range(2)]
    assert expected[0].num_steps == 2
    for number in range(2):
        client.initialize({})
        loss = client.trainer.loss_function
        client.trainer.loss_function = broken(loss, 2, MemoryError("out of memory"))
        with pytest.raises(MemoryError, match="out of memory"):
            train(client, model[0], number)
        client.trainer.loss_function = loss
        retried = train(client, model[0], number)
        assert retried.num_steps == 2 and same(retried.update, expected[number].update)


def test_a_case_that_cannot_be_scored_is_an_error_and_not_a_score_of_the_others(
    prostate_client: Maker, model: Any
) -> None:
    client = prostate_client(split_fractions=[0.25, 0.5, 0.25])
    expected = score_of(client, model[0]).measurements["score"]["mean"]  # type: ignore[index]
    assert expected.n == 2  # type: ignore[union-attr]
    evaluator = client.train_workflow.evaluator
    inferer = evaluator.inferer
    evaluator.inferer = broken(inferer, 2, OSError("Case07.nii.gz is truncated"))
    with pytest.raises(OSError, match="Case07"):
        score_of(client, model[0])
    evaluator.inferer = inferer
    assert score_of(client, model[0]).measurements["score"]["mean"] == expected  # type: ignore[index]


def test_a_long_run_keeps_its_state_its_cases_and_its_model(
    prostate_client: Maker, model: Any, tmp_path: Path
) -> None:
    run = "fundus_disc_cup_segmentation-ShapFed-personalised-2.".ljust(128, "x")
    client = prostate_client()
    parameters = {name: model[0][name] for name in model[1].parameters}
    client.answer(Request("alder", "train", parameters, run=run, round=0))
    client.answer(
        Request(
            "alder",
            "measure",
            parameters,
            ("test_score",),
            {"closing": 1.0},
            run=run,
            round=60,
            id=3,
        )
    )
    names = ["round-0000.pt", "test_score-60-3.csv", "own.pt", "own.recipe.json"]
    assert {path.name for path in (tmp_path / "alder" / "state").iterdir()} == {
        f"{run}-{name}" for name in names
    }


def test_the_sites_own_privacy_filter_acts_on_the_update(
    prostate_client: Maker, model: Any
) -> None:
    client = prostate_client()
    client.initialize({})
    client.post_weight_filters = [
        lambda data, extra: ExchangeObject({k: v * 0 for k, v in data.weights.items()})
    ]
    assert all(v.abs().max() == 0 for v in train(client, model[0]).update.values())  # type: ignore[union-attr]
    remembered = Past(
        client.states, "r", 1
    ).previous  # what entered the average is what is taken out of it
    assert remembered is not None and all(
        torch.equal(remembered[name], model[0][name]) for name in client.spec.parameters
    )


def reply_through(client: FairMonaiAlgo, weights: Any, *post_weight_filters: Any) -> Reply:
    client.initialize({})
    client.post_weight_filters = list(post_weight_filters)
    return train(client, weights)


def test_a_post_weight_filter_may_return_arrays(prostate_client: Maker, model: Any) -> None:
    def as_arrays(data: ExchangeObject, extra: Any) -> ExchangeObject:
        data.weights = {
            name: change.numpy() * np.float32(0.5) for name, change in data.weights.items()
        }
        return data

    plain = reply_through(prostate_client(state="plain"), model[0])
    filtered = reply_through(prostate_client(state="filtered"), model[0], as_arrays)
    assert same(filtered.update, {name: change * 0.5 for name, change in plain.update.items()})  # type: ignore[union-attr]
    assert (
        refusal(Request("alder", "train", model[0], run="r", round=0), filtered, model[1]) is None
    )


@pytest.mark.parametrize(
    "change, error",
    [
        (lambda weights: None, "left nothing of the update"),
        (lambda weights: {}, "left nothing of the update"),
        (lambda weights: [1, 2], "made list of the update"),
        (
            lambda weights: {f"enc.{name}": change for name, change in weights.items()},
            "changed the names",
        ),
        (
            lambda weights: {name: weights[name] for name in list(weights)[1:]},
            r"the update: \['model.* are missing, \[\] are new",
        ),
        (
            lambda weights: {name: change.flatten() for name, change in weights.items()},
            "changed the shape of",
        ),
        (lambda weights: {name: b"encoded" for name in weights}, "made bytes of 'model"),
    ],
)
def test_an_update_that_a_filter_lost_is_an_error_that_names_it(
    prostate_client: Maker, model: Any, change: Callable[..., Any], error: str
) -> None:
    def spoil(data: ExchangeObject, extra: Any) -> ExchangeObject:
        data.weights = change(data.weights)
        return data

    client = prostate_client()
    with pytest.raises(
        ConfigError, match=f"client 'alder': the post-weight filter 'spoil' .*{error}"
    ):
        reply_through(client, model[0], lambda data, extra: data, spoil)
    assert not client.states.has("r", 0)  # nothing left the site, so this round did not happen


def test_pre_filters_see_what_came_in_and_all_that_follows_is_of_what_they_return(
    prostate_client: Maker, model: Any
) -> None:
    weights = model[0]
    sent = {f"module.{name}": (tensor / 2).numpy().ravel() for name, tensor in weights.items()}
    seen = []

    def decode(data: ExchangeObject, extra: Any) -> ExchangeObject:
        seen.append(set(data.weights))
        data.weights = {
            name.removeprefix("module."): value * 2 for name, value in data.weights.items()
        }
        return data

    names = ("global_score", "global_loss", "local_score", "personal_score")
    plain, filtered = prostate_client(state="plain"), prostate_client(state="filtered")
    filtered.initialize({})
    filtered.pre_filters = [decode]
    for number in range(2):
        expected = train(plain, weights, number, names, ditto_lambda=0.1)
        reply = train(filtered, sent, number, names, ditto_lambda=0.1)
        assert same(reply.update, expected.update) and same(reply.buffers, expected.buffers)
        assert reply.measurements == expected.measurements and set(reply.measurements) == set(names)
    assert score_of(filtered, sent).measurements == score_of(plain, weights).measurements
    assert seen == [set(sent)] * 3  # each request once
    filtered.pre_filters = []
    with pytest.raises(ValueError, match="the received weights lack"):
        train(filtered, sent, 2)


def test_a_pre_filter_changes_nothing_that_other_clients_receive(
    prostate_client: Maker, model: Any
) -> None:
    def spoil(data: ExchangeObject, extra: Any) -> ExchangeObject:
        for tensor in data.weights.values():
            tensor.zero_()
        return data

    weights = {name: tensor.clone() for name, tensor in model[0].items()}
    client = prostate_client()
    client.initialize({})
    client.pre_filters = [spoil]
    train(client, weights)
    assert same(weights, model[0])


def test_a_training_by_the_engine_between_two_requests_is_forgotten(
    prostate_client: Maker, model: Any
) -> None:
    client, untouched = prostate_client(state="driven"), prostate_client(state="untouched")
    for each in (client, untouched):
        train(each, model[0], 0)
    client.train(ExchangeObject(weights=client.spec.with_aliases(model[0])))
    assert same(train(client, model[0], 1).update, train(untouched, model[0], 1).update)


def test_a_request_to_a_client_that_only_evaluates_is_refused(
    prostate_client: Maker, model: Any
) -> None:
    client = prostate_client()
    client.config_train_filename = None
    with pytest.raises(
        ConfigError, match="'alder' only evaluates: give it a config_train_filename"
    ):
        train(client, model[0])


def test_a_training_that_diverged_leaves_no_trace_in_the_next_round(
    prostate_client: Maker, model: Any
) -> None:
    client, untouched = prostate_client(state="diverged"), prostate_client(state="untouched")
    for each in (client, untouched):
        train(each, model[0], 0)
    good = client.trainer.loss_function
    client.trainer.loss_function = lambda predicted, label: good(predicted, label) * math.nan
    with pytest.raises(
        ValueError, match="'alder': the training diverged, .* is not finite.*learning_rate"
    ):
        train(client, model[0], 1)
    client.trainer.loss_function = good
    after, expected = train(client, model[0], 2), train(untouched, model[0], 2)
    assert same(after.update, expected.update) and same(after.buffers, expected.buffers)


def test_a_constant_buffer_that_is_not_finite_is_no_divergence(
    prostate_client: Maker, model: Any
) -> None:
    client = prostate_client()
    client.initialize({})
    client.trainer.network.register_buffer("mask", torch.full((2, 2), -math.inf).triu(1))
    client.spec = read_spec(client.trainer.network)
    client._initial = state_of(client.trainer)
    weights = {**model[0], "mask": client.trainer.network.mask.clone()}
    assert torch.equal(train(client, weights).buffers["mask"], weights["mask"])  # type: ignore[index]
    client.trainer.network.mask.fill_(0.0)
    with pytest.raises(ValueError, match="'mask' is not finite"):
        client._require_finite({"mask": weights["mask"]}, {"mask": torch.zeros(2, 2)})


@pytest.mark.parametrize("context", [{}, {"ditto_lambda": 0.1}])
def test_an_aborted_training_is_an_error_and_leaves_no_trace(
    prostate_client: Maker, model: Any, context: dict[str, float], tmp_path: Path
) -> None:
    client, untouched = prostate_client(batch_size=1), prostate_client(
        batch_size=1, state="untouched"
    )
    expected = [train(untouched, model[0], number, **context) for number in range(2)]
    train(client, model[0], 0, **context)
    steps = count(1)
    abort_at = 3 if context else 1  # of four steps, the last two are the personal model's

    def abort(engine: Any) -> None:
        if next(steps) == abort_at:
            client.abort()

    with client.trainer.add_event_handler(Events.ITERATION_COMPLETED, abort):
        with pytest.raises(TransportAborted, match="aborted before the end of the data"):
            train(client, model[0], 1, **context)
    assert not client.states.has("r", 1)
    again = train(client, model[0], 1, **context)
    assert again.num_steps == 2 and same(again.update, expected[1].update)


def test_an_aborted_measurement_is_an_error_and_the_next_is_whole(
    prostate_client: Maker, model: Any
) -> None:
    client = prostate_client(split_fractions=[0.25, 0.5, 0.25])
    expected = score_of(client, model[0]).measurements
    evaluator = client.train_workflow.evaluator
    with evaluator.add_event_handler(Events.ITERATION_COMPLETED, lambda: client.abort()):
        inferer = evaluator.inferer
        evaluator.inferer = lambda *args, **kwargs: (client.abort(), inferer(*args, **kwargs))[1]
        with pytest.raises(TransportAborted, match="aborted before the end of the data"):
            score_of(client, model[0])
        evaluator.inferer = inferer
    assert score_of(client, model[0]).measurements == expected


def test_scores_of_shuffled_cases_are_not_given_the_names_of_others(
    prostate_client: Maker, model: Any, tmp_path: Path
) -> None:
    names = {}
    for shuffle in (False, True):
        settings = {"split_fractions": [0.25, 0.5, 0.25], "validate#dataloader#shuffle": shuffle}
        client = prostate_client(state=f"shuffle{shuffle}", **settings)
        client.answer(
            Request("alder", "measure", model[0], ("score",), {"closing": 1.0}, run="r", round=0)
        )
        rows = (
            (tmp_path / "alder" / f"shuffle{shuffle}" / "r-score-0-0.csv")
            .read_text()
            .splitlines()[1:]
        )
        names[shuffle] = [row.split(",")[0] for row in rows]
    assert all(name.startswith("Case") for name in names[False]) and names[True] == ["0", "1"]


def test_a_bundle_whose_schedule_reads_the_score_is_refused_each_time(
    prostate_client: Maker, model: Any
) -> None:
    settings = {
        "lr_scheduler": {
            "_target_": "torch.optim.lr_scheduler.ReduceLROnPlateau",
            "optimizer": "@optimizer",
        },
        "train#handlers#0#step_transform": (
            "$lambda _: @validate#evaluator.state.metrics['val_mean_dice']"
        ),
    }
    client = prostate_client(**settings)
    for _ in range(2):
        with pytest.raises(ConfigError, match="ReduceLROnPlateau reads the validation score"):
            train(client, model[0])
