# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""What each method asks of a client, on the real prostate bundle.

Tests show what it must change, and what it must not.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.client_requests import after, measure, same, tiny_model, train

from monai_fairfl.client.algo import FairMonaiAlgo
from monai_fairfl.errors import ConfigError
from monai_fairfl.measurements.table import MEASUREMENTS
from monai_fairfl.protocol.messages import Request
from monai_fairfl.protocol.model_spec import read_spec
from monai_fairfl.protocol.values import Estimate, value_of

Maker = Callable[..., FairMonaiAlgo]


@pytest.fixture(scope="module")
def model() -> tuple[dict[str, torch.Tensor], Any]:
    return tiny_model()


def state(folder: Path, number: int, name: str = "state") -> dict[str, Any]:
    loaded: dict[str, Any] = torch.load(
        folder / "alder" / name / f"r-round-{number:04d}.pt", weights_only=True
    )
    return loaded


def equal(one: Any, two: Any) -> bool:
    """Nested states, to the bit."""
    if isinstance(one, torch.Tensor):
        return torch.equal(one, two)
    if isinstance(one, dict):
        return set(one) == set(two) and all(equal(one[k], two[k]) for k in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(two) and all(equal(a, b) for a, b in zip(one, two))
    return bool(one == two)


def test_a_measurement_whose_name_would_date_it_wrongly_is_refused(
    prostate_client: Callable[..., FairMonaiAlgo],
    model: tuple[dict[str, torch.Tensor], Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(MEASUREMENTS, "final_score", MEASUREMENTS["local_score"])
    monkeypatch.setitem(MEASUREMENTS, "local_start", MEASUREMENTS["global_score"])
    with pytest.raises(ConfigError, match="such as 'local_final_score'"):
        measure(prostate_client(), model[0], "final_score")
    with pytest.raises(ConfigError, match="'local_start' is of the received model"):
        measure(prostate_client(), model[0], "local_start")


# ---- training: SAM, FedProx


def test_sharpness_aware_training_changes_the_update_and_counts_each_step_once(
    prostate_client: Maker, model: Any
) -> None:
    plain = train(prostate_client(state="plain"), model[0])
    sam = train(prostate_client(state="sam"), model[0], sam_rho=0.05)
    gsam = train(prostate_client(state="gsam"), model[0], sam_rho=0.05, gsam_alpha=0.5)
    assert not same(plain.update, sam.update) and not same(sam.update, gsam.update)
    assert (sam.num_steps, sam.num_samples) == (plain.num_steps, plain.num_samples)
    # One step: both saw the same batch with the same weights.
    assert same(plain.buffers, sam.buffers)
    assert same(
        plain.update,
        train(prostate_client(state="zero"), model[0], sam_rho=0.0, gsam_alpha=0.5).update,
    )


def test_a_proximal_term_holds_the_update_back(prostate_client: Maker, model: Any) -> None:
    def length(reply: Any) -> float:
        return float(
            torch.linalg.vector_norm(torch.cat([v.flatten() for v in reply.update.values()]))
        )

    settings = {"local_epochs": 6.0}
    plain = train(prostate_client(state="plain"), model[0], **settings)
    pulled = train(prostate_client(state="pulled"), model[0], prox_mu=5.0, **settings)
    assert length(pulled) < 0.8 * length(plain)
    assert same(
        train(prostate_client(state="zero"), model[0], prox_mu=0.0, **settings).update, plain.update
    )


# ---- losses and sharpness on the training data


def test_losses_are_of_the_received_and_of_the_trained_model_on_the_same_crops(
    prostate_client: Maker, model: Any
) -> None:
    client = prostate_client(learning_rate=0.01)
    reply = train(client, model[0], 0, ("global_loss", "local_loss"), local_epochs=8.0)
    received, trained = (reply.measurements[name] for name in ("global_loss", "local_loss"))
    assert isinstance(received, Estimate) and value_of(trained) < value_of(received)
    local = after(model[0], reply)
    assert value_of(measure(client, local, "global_loss")["global_loss"]) == pytest.approx(
        value_of(trained), rel=1e-5
    )
    assert measure(client, model[0], "global_loss")["global_loss"] == received


def test_sharpness_is_positive_and_grows_with_the_radius(
    prostate_client: Maker, model: Any
) -> None:
    client = prostate_client()
    values = [
        measure(client, model[0], "sharpness", sam_rho=rho)["sharpness"]
        for rho in (0.01, 0.05, 0.1)
    ]
    assert 0 < values[0] < values[1] < values[2]
    assert measure(client, model[0], "sharpness")["sharpness"] == values[1]  # the default radius


def test_measuring_between_rounds_leaves_the_next_training_as_it_was(
    prostate_client: Maker, model: Any
) -> None:
    updates = []
    for name, measured in (("plain", False), ("measured", True)):
        client = prostate_client(state=name)
        anchor = after(model[0], train(client, model[0], 0, ditto_lambda=0.1))
        if measured:
            received = {"cka", "feature_cosine", "sharpness", "global_loss"}
            personal = {"personal_score", "personal_test_score"}
            names = sorted(received | personal)
            # The personal model is that of the round before the request's.
            found = measure(client, model[0], *names, number=0)
            assert set(found) == received
            found = measure(client, model[0], *sorted(personal), number=1, cka_training=1.0)
            assert set(found) == personal
        updates.append(train(client, anchor, 1).update)
    assert same(*updates)


# ---- Fed-LWR


def test_cka_of_the_anchor_itself_is_one_in_every_layer_and_less_for_another_model(
    prostate_client: Maker, model: Any
) -> None:
    weights, spec = model
    client = prostate_client(learning_rate=0.01)
    local = after(weights, train(client, weights, local_epochs=4.0))
    # The same to the bit, as the trainer has it.
    trained = client.trainer.network.state_dict()
    local = {name: trained[name].clone() for name in local}
    layers = {spec.layers[name] for name in spec.parameters}
    for name in ("cka", "feature_cosine"):
        own = measure(client, local, name, number=0)[name]
        assert set(own) == {"mean", *layers}
        assert all(value == pytest.approx(1, abs=1e-6) for value in own.values())
        other = measure(client, weights, name, number=0)[name]
        assert value_of(other) == pytest.approx(sum(other[layer] for layer in layers) / len(layers))
        assert all(-1 <= other[layer] < 1 - 1e-6 for layer in layers)


def test_cka_is_the_same_in_a_new_process_and_absent_for_a_round_that_was_not_trained(
    prostate_client: Maker, model: Any
) -> None:
    client = prostate_client()
    train(client, model[0])
    first = measure(client, model[0], "cka", number=0)
    assert measure(prostate_client(), model[0], "cka", number=0) == first
    assert measure(client, model[0], "cka", number=1) == {}
    # Before the training, the state of this round is of an earlier try.
    assert "cka" not in train(client, model[0], 0, ("cka",)).measurements


def test_cka_on_training_images_and_by_the_unbiased_estimator_are_other_numbers(
    prostate_client: Maker, model: Any
) -> None:
    client = prostate_client(learning_rate=0.01)
    train(client, model[0], local_epochs=4.0)
    found = [
        measure(client, model[0], "cka", number=0, **context)["cka"]
        for context in ({}, {"cka_training": 1.0}, {"cka_unbiased": 1.0})
    ]
    assert len({value_of(values) for values in found}) == 3
    assert set(found[0]) == set(found[1]) == set(found[2])


def test_cka_of_the_bundle_with_residual_units(prostate_client: Maker) -> None:
    client = prostate_client(res_units=2)
    client.initialize({})
    weights = client.spec.split(
        {k: v.clone() for k, v in client.trainer.network.state_dict().items()}
    )
    together = {**weights[0], **weights[1]}
    reply = train(client, together)
    local = {name: client.trainer.network.state_dict()[name].clone() for name in together}
    values = measure(client, local, "cka", number=0)["cka"]
    assert set(values) == {"mean", *(client.spec.layers[name] for name in reply.update or {})}
    assert all(value == pytest.approx(1, abs=1e-6) for value in values.values())


# ---- Ditto


def test_the_usual_training_is_bit_equal_with_and_without_a_personal_model(
    prostate_client: Maker, model: Any
) -> None:
    results = []
    for name, context in (("plain", {}), ("ditto", {"ditto_lambda": 0.5})):
        client, weights = prostate_client(state=name), model[0]
        for number in range(2):
            reply = train(client, weights, number, ("train_loss", "local_score"), **context)
            weights = after(weights, reply)
        results.append((weights, reply.measurements, reply.num_steps))
    assert same(results[0][0], results[1][0]) and results[0][1:] == results[1][1:]


def test_the_personal_model_lies_between_and_keeps_its_own_statistics(
    prostate_client: Maker, model: Any, tmp_path: Path
) -> None:
    weights, spec = model
    client = prostate_client()
    train(client, weights, 0, ditto_lambda=0.5)
    train(client, weights, 1, ditto_lambda=0.5)
    stored = state(tmp_path, 1)
    assert stored["personal"]["iteration"] == stored["iteration"]
    assert "personal" not in stored["personal"]
    counters = [name for name in spec.buffers if name.endswith("num_batches_tracked")]
    # v goes on from its own buffers, while the usual model began again from those received.
    for name in counters:
        assert stored["personal"]["local"][name] == 2
        assert stored["local"][name] == 1

    def distance(number: int, **context: float) -> float:
        train(prostate_client(state=f"{number}"), weights, 0, local_epochs=6.0, **context)
        v = state(tmp_path, 0, f"{number}")["personal"]["local"]
        return sum(float((v[name] - weights[name]).square().sum()) for name in spec.parameters)

    assert distance(2, ditto_lambda=20.0) < 0.5 * distance(3, ditto_lambda=0.0)


def test_with_no_pull_the_first_personal_round_is_the_usual_training(
    prostate_client: Maker, model: Any, tmp_path: Path
) -> None:
    train(prostate_client(), model[0], 0, ditto_lambda=0.0)
    stored = state(tmp_path, 0)
    assert equal(stored["personal"]["local"], stored["local"])
    assert equal(stored["personal"]["optimizer"], stored["optimizer"])


def test_the_personal_model_goes_on_to_the_bit_in_a_new_process_and_in_a_repeated_round(
    prostate_client: Maker, model: Any, tmp_path: Path
) -> None:
    lasting = prostate_client(state="lasting")
    for number in range(3):
        train(lasting, model[0], number, ditto_lambda=0.3)
        train(prostate_client(state="restarted"), model[0], number, ditto_lambda=0.3)
    assert equal(state(tmp_path, 2, "lasting"), state(tmp_path, 2, "restarted"))
    final = state(tmp_path, 2, "lasting")
    for number in (1, 2):  # the server resumed from round 0
        train(lasting, model[0], number, ditto_lambda=0.3)
    assert equal(state(tmp_path, 2, "lasting"), final)


def test_personal_scores_are_of_the_newest_personal_model_and_nothing_of_it_is_sent(
    prostate_client: Maker, model: Any, tmp_path: Path
) -> None:
    client = prostate_client(learning_rate=0.02)
    assert measure(client, model[0], "personal_score", number=0) == {}
    without = train(
        prostate_client(state="plain", learning_rate=0.02), model[0], 0, ("personal_score",)
    )
    reply = train(client, model[0], 0, ("personal_score",), ditto_lambda=0.1, local_epochs=6.0)
    assert "personal_score" not in without.measurements
    assert set(reply.update) == set(without.update) and set(reply.buffers) == set(without.buffers)  # type: ignore[arg-type]
    personal = state(tmp_path, 0)["personal"]["local"]
    expected = measure(client, {k: personal[k] for k in model[0]}, "score", "test_score")
    assert reply.measurements["personal_score"] == expected["score"]
    train(client, model[0], 1)  # a round without it does not end it
    closing = measure(
        prostate_client(), model[0], "personal_score", "personal_test_score", "score", number=2
    )
    assert closing["personal_score"] == expected["score"]
    assert closing["personal_test_score"] == expected["test_score"]
    assert measure(client, model[0], "personal_score", number=0) == {}  # it is of no earlier round


def test_the_optimizer_reset_reaches_the_personal_model(
    prostate_client: Maker, model: Any, tmp_path: Path
) -> None:
    client = prostate_client()
    train(client, model[0], 0, ditto_lambda=0.1)
    train(client, model[0], 1, ditto_lambda=0.1, reset_optimizer=1.0)
    steps = [slot["step"] for slot in state(tmp_path, 1)["personal"]["optimizer"]["state"].values()]
    assert all(step == 1 for step in steps) and state(tmp_path, 1)["personal"]["epoch"] == 2


# ---- tensors that stay at the site


@pytest.fixture
def shared(model: Any, prostate_client: Maker) -> dict[str, torch.Tensor]:
    """The model less its normalisation layers: what FedBN sends."""
    weights, spec = model
    client = prostate_client(state="unused")
    client.initialize({})
    local = {*read_spec(client.trainer.network).norms, *spec.buffers}
    assert local and local < set(weights)
    return {name: tensor for name, tensor in weights.items() if name not in local}


def test_local_normalisation_stays_at_the_site_across_rounds_and_processes(
    prostate_client: Maker, model: Any, shared: dict[str, torch.Tensor], tmp_path: Path
) -> None:
    client, (_, spec) = prostate_client(state="lasting"), model
    for number in range(2):
        reply = train(client, shared, number, local_norm=1.0)
        again = train(prostate_client(state="restarted"), shared, number, local_norm=1.0)
        assert set(reply.update or {}) == set(shared) & set(spec.parameters) and reply.buffers == {}
        assert same(reply.update, again.update)
    first, second = state(tmp_path, 0, "lasting")["local"], state(tmp_path, 1, "lasting")["local"]
    own = sorted(set(spec.parameters) - set(shared))
    counters = [name for name in spec.buffers if name.endswith("num_batches_tracked")]
    assert all(second[name] == 2 * first[name] for name in counters)  # went on from its own
    assert any(not torch.equal(first[name], second[name]) for name in own)


def test_received_weights_are_measured_with_the_sites_own_tensors(
    prostate_client: Maker, model: Any, shared: dict[str, torch.Tensor], tmp_path: Path
) -> None:
    client = prostate_client(learning_rate=0.02)
    fresh = measure(client, shared, "score", number=0, local_norm=1.0)
    initial = {name: client._initial["local"][name] for name in model[0]}
    assert fresh == measure(client, {**initial, **shared}, "score", number=0)
    train(client, shared, 0, local_norm=1.0, local_epochs=4.0)
    own = {name: state(tmp_path, 0)["local"][name] for name in model[0]}
    complete = {**own, **shared}
    names = ("score", "global_loss", "sharpness", "test_score")
    for asked in (client, prostate_client(learning_rate=0.02)):
        assert measure(asked, shared, *names, number=1, local_norm=1.0) == measure(
            asked, complete, *names, number=1
        )
    # This round's own statistics make it the local model.
    trained_anchor = {name: own[name] for name in shared}
    values = measure(client, trained_anchor, "cka", number=0, local_norm=1.0)["cka"]
    assert all(value == pytest.approx(1, abs=1e-6) for value in values.values())


def test_buffers_of_another_run_do_not_leak_into_a_new_one(
    prostate_client: Maker, model: Any
) -> None:
    weights, spec = model
    parameters = {name: weights[name] for name in spec.parameters}
    client = prostate_client()
    first = train(client, parameters)
    request = Request("alder", "train", parameters, run="another", round=0, seed=7)
    assert same(client.answer(request).buffers, first.buffers)


def test_missing_parameters_are_refused_unless_they_are_those_of_normalisation_layers(
    prostate_client: Maker, model: Any, shared: dict[str, torch.Tensor]
) -> None:
    client = prostate_client()
    with pytest.raises(ValueError, match="lack"):
        train(client, shared)
    with pytest.raises(ValueError, match="lack"):
        measure(client, shared, "score")
    fewer = dict(list(shared.items())[1:])
    with pytest.raises(ValueError, match=f"lack 1 of .* example '{next(iter(shared))}'"):
        train(client, fewer, local_norm=1.0)


def test_the_personal_model_of_a_site_with_local_normalisation_is_not_pulled_there(
    prostate_client: Maker, model: Any, shared: dict[str, torch.Tensor], tmp_path: Path
) -> None:
    client = prostate_client()
    request = Request(
        "alder",
        "train",
        shared,
        (),
        {"local_norm": 1.0, "ditto_lambda": 1e3},
        run="r",
        round=0,
        seed=7,
    )
    client.answer(replace(request, context={**request.context, "local_epochs": 4.0}))
    personal, begun = state(tmp_path, 0)["personal"]["local"], client._initial["local"]
    moved = {
        name: float((personal[name] - begun[name]).abs().max())
        for name in read_spec(client.trainer.network).norms
    }
    assert all(value > 0 for value in moved.values())
