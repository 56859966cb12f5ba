# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Contribution estimation in a stock MonaiAlgo by bundle configuration alone.

The configuration is in fl_handlers.json and fl_filters.json.
"""

from __future__ import annotations

import gc
import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.checkout import CHECKOUT, DEVICE, TINY
from ignite.engine import Engine, Events
from monai.engines import SupervisedTrainer
from monai.engines.utils import IterationEvents
from monai.fl.client import MonaiAlgo
from monai.fl.utils.exchange_object import ExchangeObject

from monai_fairfl.bundle.initial import initial_model
from monai_fairfl.data import site_datalist
from monai_fairfl.errors import ConfigError
from monai_fairfl.handlers import (
    LeaveOneOutError,
    LocalLoss,
    MeasurementHandler,
    MeasurementsFilter,
    Sharpness,
    TrainLoss,
    board,
)
from monai_fairfl.measurements.leave_one_out import leave_one_out_model

BUNDLE = CHECKOUT / "bundles" / "prostate_mri_segmentation"


def stock_client(data: Path, folder: Path, **overrides: Any) -> MonaiAlgo:
    kwargs: dict[str, Any] = {
        "dataset_dir": str(data),
        "device": f"$torch.device('{DEVICE}')",
        "val_interval": 0,
        **TINY,
        **overrides,
    }
    kwargs |= {
        "datalist_file": str(folder / "list.json"),
        "ckpt_dir": str(folder),
        "output_dir": str(folder),
    }
    client = MonaiAlgo(
        str(BUNDLE),
        config_train_filename=["configs/train.json", "configs/fl_handlers.json"],
        train_kwargs=kwargs,
        config_evaluate_filename=None,
        config_filters_filename="configs/fl_filters.json",
    )
    client.initialize({})
    return client


def first_weights() -> dict[str, torch.Tensor]:
    """A first model with all names of its tensors, as a file of PyTorch's has them."""
    weights, spec = initial_model(BUNDLE, {k: TINY[k] for k in ("size", "channels")})
    return dict(spec.with_aliases(weights))


@pytest.fixture(autouse=True)
def clean_board() -> None:
    board("default").values, board("default").context = {}, {}


@pytest.mark.slow
def test_two_rounds_send_every_measurement_in_the_statistics(
    hospitals: Path, tmp_path: Path
) -> None:
    torch.manual_seed(0)
    weights = first_weights()
    client = stock_client(hospitals / "alder", tmp_path, learning_rate=0.02)
    client.train(ExchangeObject(weights=dict(weights)))
    first = client.get_weights()
    assert {k for k in first.statistics if k.startswith("fairfl/")} == {
        "fairfl/train_loss",
        "fairfl/global_score",
        "fairfl/local_score",
    }
    local = {k: weights[k] + v for k, v in first.weights.items()}
    mixed = {
        k: 0.7 * weights[k] + 0.3 * local[k] if v.is_floating_point() else v
        for k, v in local.items()
    }

    incoming = ExchangeObject(weights=dict(mixed))
    incoming["context"] = {"previous_weight": 0.3}
    client.train(incoming)
    second = client.get_weights().statistics
    error = second["fairfl/leave_one_out_error"]
    # left out of a mixture of the first model and its own, what remains is the first model
    assert error == pytest.approx(1 - first.statistics["fairfl/global_score"], abs=0.02)
    assert all(isinstance(v, float) for k, v in second.items() if k.startswith("fairfl/"))
    without = leave_one_out_model(mixed, local, 0.3)
    assert all(
        torch.allclose(without[k], weights[k], atol=1e-4)
        for k in weights
        if weights[k].is_floating_point()
    )
    # Nobody reports with which weight its update entered; that of the round before is another one.
    client.train(ExchangeObject(weights=dict(mixed)))
    assert "fairfl/leave_one_out_error" not in client.get_weights().statistics


@pytest.mark.slow
def test_a_site_without_validation_cases_sends_what_it_can_measure(
    hospitals: Path, tmp_path: Path
) -> None:
    file = tmp_path / "list.json"
    site_datalist(hospitals / "alder", file)
    parts = json.loads(file.read_text())
    by_hand = {"training": parts["training"], "validation": [], "testing": parts["testing"]}
    file.write_text(json.dumps(by_hand))

    torch.manual_seed(0)
    weights = first_weights()
    client = stock_client(hospitals / "alder", tmp_path)
    client.train(ExchangeObject(weights=dict(weights)))
    sent = client.get_weights()
    assert [k for k in sent.statistics if k.startswith("fairfl/")] == ["fairfl/train_loss"]
    assert any(change.any() for change in sent.weights.values())


@pytest.mark.parametrize("weight", [25.0, 1.0, 1 - 1e-9, -0.2, math.nan, math.inf])
def test_a_weight_of_which_there_is_no_model_without_the_client_is_refused(weight: float) -> None:
    with pytest.raises(ConfigError, match=f"previous_weight must be .* got {weight}.*in percent"):
        LeaveOneOutError(None, previous_weight=weight)  # type: ignore[arg-type]


@pytest.mark.parametrize("weight", [None, 0.0, 0.25, 0.999])
def test_a_share_of_the_average_is_taken_as_previous_weight(weight: float | None) -> None:
    handler = LeaveOneOutError(None, previous_weight=weight)  # type: ignore[arg-type]
    assert handler.context() == ({} if weight is None else {"previous_weight": weight})


@pytest.mark.slow
def test_handlers_disturb_neither_the_training_nor_the_checkpoints(
    hospitals: Path, tmp_path: Path
) -> None:
    torch.manual_seed(0)
    weights = first_weights()
    updates = []
    for folder, extra in ((tmp_path / "with", {}), (tmp_path / "without", {"train#handlers": []})):
        client = stock_client(hospitals / "alder", folder, **extra)
        torch.manual_seed(3)
        client.trainer.data_loader.dataset.transform.set_random_state(3)
        client.train(ExchangeObject(weights=dict(weights)))
        updates.append(client.get_weights().weights)
        assert not list(folder.glob("*.pt"))
    assert all(torch.equal(updates[0][k], updates[1][k]) for k in updates[0])


def test_measurements_are_sent_once_and_boards_are_apart() -> None:
    board_of_a = board("A")
    board_of_a.values["train_loss"] = 0.5
    sent = MeasurementsFilter("A")(ExchangeObject(statistics={"current_epoch": 1}))
    assert sent.statistics == {"current_epoch": 1, "fairfl/train_loss": 0.5}
    assert MeasurementsFilter("A")(ExchangeObject(statistics={})).statistics == {}
    assert MeasurementsFilter("B")(ExchangeObject(statistics={})).statistics == {}


def test_a_context_lasts_until_weights_come_after_its_training() -> None:
    incoming = ExchangeObject(weights={})
    incoming["context"] = {"sam_rho": 0.1}
    receive = MeasurementsFilter("rounds")
    receive(incoming)
    receive(ExchangeObject(weights={}))  # such as an evaluation before the training of the round
    assert board("rounds").context == {"sam_rho": 0.1}

    board("rounds").begin(Engine(lambda engine, batch: None))
    MeasurementsFilter("rounds")(ExchangeObject(statistics={}))
    assert board("rounds").context == {"sam_rho": 0.1}
    receive(ExchangeObject(weights={}))
    assert board("rounds").context == {}


@pytest.mark.slow
def test_a_board_ends_with_the_handlers_and_filters_that_have_it() -> None:
    handler = TrainLoss("short")
    assert handler.board is not None
    handler.board.context = {"previous_weight": 0.5}
    assert MeasurementsFilter("short").board is handler.board
    del handler
    gc.collect()
    assert board("short").context == {}


def test_no_client_sends_what_another_client_measured(caplog: pytest.LogCaptureFixture) -> None:
    first, second = Engine(lambda engine, batch: None), Engine(lambda engine, batch: None)
    shared = board("shared")
    shared.write(first, "train_loss", 0.5)
    shared.write(first, "global_score", 0.8)
    shared.write(second, "train_loss", 0.25)
    assert "give their handlers and filters different board arguments" in caplog.text
    sent = MeasurementsFilter("shared")(ExchangeObject(statistics={}))
    assert sent.statistics == {"fairfl/train_loss": 0.25}


def test_a_training_that_measures_nothing_sends_nothing_of_the_client_before_it() -> None:
    first, second = Engine(lambda engine, batch: None), Engine(lambda engine, batch: None)
    shared = board("one after the other")
    shared.write(first, "train_loss", 0.5)
    shared.begin(second)
    sent = MeasurementsFilter("one after the other")(ExchangeObject(statistics={}))
    assert sent.statistics == {}


def test_what_another_client_measured_is_dropped_as_a_training_begins() -> None:
    network = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(network.parameters(), 0.1)
    data = [{"image": torch.ones(1, 1), "label": torch.ones(1, 1)}]
    handler = LocalLoss("begins")
    handler.board.write(Engine(lambda engine, batch: None), "local_loss", 0.5)
    loss = torch.nn.MSELoss()
    trainer = SupervisedTrainer(torch.device("cpu"), 1, data, network, optimizer, loss)
    handler.attach(trainer)
    seen = []
    # Its own loss is measured when the training ends.
    trainer.add_event_handler(Events.EPOCH_STARTED, lambda: seen.append(dict(handler.board.values)))
    trainer.run()
    assert seen == [{}] and set(handler.board.values) == {"local_loss"}


def test_what_a_handler_cannot_measure_is_refused_with_the_names_that_it_could() -> None:
    class Unnamed(MeasurementHandler):
        pass

    class Unknown(MeasurementHandler):
        name = "nonsense"

    for handler in (Unnamed(), Unknown()):
        handler.detach()  # It was never attached.
        with pytest.raises(ConfigError, match="must be that of a measurement, such as .*sharpness"):
            handler.attach(Engine(lambda engine, batch: None))  # type: ignore[arg-type]
    for rho in (-1.0, 0.0, math.nan, math.inf):
        with pytest.raises(ConfigError, match="rho must be above 0"):
            Sharpness(rho)


def test_without_a_board_the_loss_stays_with_its_handler() -> None:
    handler = TrainLoss(board=None)
    engine = Engine(lambda engine, batch: {"image": [1, 2], "loss": torch.tensor(3.0)})
    engine.register_events(*IterationEvents)
    handler.attach(engine)
    completed = Events.ITERATION_COMPLETED
    engine.add_event_handler(completed, lambda: engine.fire_event(IterationEvents.LOSS_COMPLETED))
    engine.run([None])
    assert handler.board is None and handler.value == 3.0


def test_attach_and_detach_leave_the_engine_as_it_was(hospitals: Path, tmp_path: Path) -> None:
    client = stock_client(hospitals / "alder", tmp_path)
    engine = client.trainer
    count = sum(len(entries) for entries in engine._event_handlers.values())
    for handler in (TrainLoss(), LeaveOneOutError(client.train_workflow.evaluator)):
        handler.attach(engine)
        assert sum(len(entries) for entries in engine._event_handlers.values()) > count
        handler.detach()
        assert sum(len(entries) for entries in engine._event_handlers.values()) == count


@pytest.mark.slow
def test_losses_and_sharpness_can_be_sent_too_and_disturb_nothing(
    hospitals: Path, tmp_path: Path
) -> None:
    torch.manual_seed(0)
    weights = first_weights()
    measuring: list[dict[str, Any]] = [
        {"_target_": "monai_fairfl.handlers.GlobalLoss"},
        {"_target_": "monai_fairfl.handlers.Sharpness", "rho": 0.1},
        {"_target_": "monai_fairfl.handlers.LocalLoss"},
    ]
    sent = []
    for folder, handlers in ((tmp_path / "with", measuring), (tmp_path / "without", [])):
        client = stock_client(
            hospitals / "alder", folder, learning_rate=0.02, **{"train#handlers": handlers}
        )
        torch.manual_seed(3)
        client.trainer.data_loader.dataset.transform.set_random_state(3)
        client.train(ExchangeObject(weights=dict(weights)))
        sent.append(client.get_weights())
    assert all(torch.equal(sent[0].weights[k], sent[1].weights[k]) for k in weights)
    values = {k: v for k, v in sent[0].statistics.items() if k.startswith("fairfl/")}
    assert set(values) == {"fairfl/global_loss", "fairfl/sharpness", "fairfl/local_loss"}
    assert (
        values["fairfl/sharpness"] > 0
        and values["fairfl/local_loss"] != values["fairfl/global_loss"]
    )


@pytest.mark.slow
def test_sharpness_aware_and_proximal_training_by_configuration_alone(
    hospitals: Path, tmp_path: Path
) -> None:
    torch.manual_seed(0)
    weights = first_weights()
    updates = []
    for name, handlers in {
        "plain": [],
        "sam": [{"_target_": "monai_fairfl.handlers.SharpnessAware", "rho": 0.05, "alpha": 0.1}],
        "proximal": [{"_target_": "monai_fairfl.handlers.Proximal", "mu": 10.0}],
    }.items():
        client = stock_client(hospitals / "alder", tmp_path / name, **{"train#handlers": handlers})
        client.local_epochs = 3
        torch.manual_seed(3)
        client.trainer.data_loader.dataset.transform.set_random_state(3)
        client.train(ExchangeObject(weights=dict(weights)))
        updates.append(client.get_weights().weights)
    names = [k for k in weights if k.endswith(".weight")]
    assert all(
        any(not torch.equal(updates[0][k], other[k]) for k in names) for other in updates[1:]
    )
