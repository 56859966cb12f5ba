# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""MONAI's own FL client and tools with the shipped bundles, and our handlers at that client."""

from __future__ import annotations

import json
import math
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.checkout import DEVICE, TINY
from helpers.shipped_bundles import PROSTATE, TRAIN, Bundle
from helpers.small_trainers import conv_net, image_batches, trainer_of
from ignite.engine import Engine
from monai.bundle import ConfigParser, ckpt_export
from monai.fl.client import MonaiAlgo, MonaiAlgoStats
from monai.fl.utils.constants import FlStatistics
from monai.fl.utils.exchange_object import ExchangeObject

from monai_fairfl.bundle import initial_model
from monai_fairfl.data import site_datalist
from monai_fairfl.errors import ConfigError
from monai_fairfl.handlers import (
    GlobalLoss,
    LeaveOneOutError,
    LocalLoss,
    MeasurementHandler,
    MeasurementsFilter,
    Sharpness,
    TrainLoss,
    board,
)
from monai_fairfl.measurements import leave_one_out_model

Weights = dict[str, torch.Tensor]

# --- each bundle at MONAI's client


def test_monais_client_trains_sends_and_evaluates(
    bundle: Bundle, site: Path, tmp_path: Path
) -> None:
    given = {
        "dataset_dir": str(site),
        **bundle.small,
        "ckpt_dir": str(tmp_path),
        "output_dir": str(tmp_path / "eval"),
        "device": "cpu",
    }
    kwargs = {"train_kwargs": dict(given), "eval_kwargs": dict(given)}
    algo = MonaiAlgo(str(bundle.root), local_epochs=1, **kwargs)
    with warnings.catch_warnings():
        # MONAI reminds that a bundle is executable.
        warnings.simplefilter("ignore")
        algo.initialize()
    assert algo.trainer is not None
    received = {k: value.clone() for k, value in algo.trainer.network.state_dict().items()}
    for _ in range(2):
        algo.train(ExchangeObject(weights=dict(received)))
    # A round does not shorten the schedule to its own epochs.
    config = bundle.config("train")
    rate = config["learning_rate"] * (1 - 2 / config["max_epochs"]) ** config["decay_power"]
    assert algo.trainer.optimizer.param_groups[0]["lr"] == pytest.approx(rate)

    update = algo.get_weights()
    assert update.weights.keys() == received.keys()
    assert any(bool(change.any()) for change in update.weights.values())
    assert update.statistics[FlStatistics.NUM_EXECUTED_ITERATIONS] >= 1
    evaluated = algo.evaluate(ExchangeObject(weights=dict(received)))
    assert set(evaluated.metrics) == bundle.metrics
    algo.finalize()


def test_data_statistics_of_a_site_come_from_the_bundle(
    bundle: Bundle, site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The analyser writes train_data_stats.yaml to the working directory.
    monkeypatch.chdir(tmp_path)
    stats = MonaiAlgoStats(str(bundle.root), workflow=bundle.workflow(TRAIN, site, tmp_path))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        stats.initialize()
    channels = 1 if bundle.images == "." else 3
    asked = {
        FlStatistics.HIST_BINS: [10] * channels,
        FlStatistics.HIST_RANGE: [[0, 1000]] * channels,
    }
    result = stats.get_data_stats(asked).statistics
    counts = {}
    for part in ("train", "eval", FlStatistics.TOTAL_DATA):
        counts[part] = result[part][FlStatistics.DATA_COUNT]
    assert counts == {"train": 2, "eval": 1, FlStatistics.TOTAL_DATA: 3}
    assert result["train"][FlStatistics.FAIL_COUNT] == 0


def test_monais_own_export_gives_the_networks_numbers(
    bundle: Bundle, trained: Path, tmp_path: Path
) -> None:
    small = tmp_path / "small.json"
    small.write_text(json.dumps({**bundle.config("inference"), "ckpt_path": str(trained)}))
    files = (str(trained), str(bundle.configs / "metadata.json"), str(small))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ckpt_export("network_def", str(tmp_path / "model.ts"), *files, "model")

    network = ConfigParser(json.loads(small.read_text())).get_parsed_content("network_def")
    network.load_state_dict(torch.load(trained, weights_only=True)["model"])
    exported = torch.jit.load(str(tmp_path / "model.ts"))
    channels = bundle.config("metadata")["network_data_format"]["inputs"]["image"]["num_channels"]
    image = torch.rand(2, channels, 32, 32)
    with torch.no_grad():
        torch.testing.assert_close(exported.eval()(image), network.eval()(image))


def test_an_evaluation_without_a_model_file_warns_that_it_uses_its_own_values(
    bundle: Bundle, site: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    given = {
        "dataset_dir": str(site),
        "ckpt_dir": str(tmp_path),
        "output_dir": str(tmp_path / "eval"),
        "device": "cpu",
    }
    MonaiAlgo(str(bundle.root), config_train_filename=None, eval_kwargs=given).initialize()
    assert caplog.text.count("no model file") == 1


# --- measurements of our handlers in the client's statistics


def client_of(data: Path, folder: Path, **overrides: Any) -> MonaiAlgo:
    """MONAI's client of the prostate bundle, with the overlays of our handlers and filters."""
    kwargs: dict[str, Any] = {
        "dataset_dir": str(data),
        "device": f"$torch.device('{DEVICE}')",
        "val_interval": 0,
        **TINY,
        **overrides,
        "datalist_file": str(folder / "list.json"),
        "ckpt_dir": str(folder),
        "output_dir": str(folder),
    }
    algo = MonaiAlgo(
        str(PROSTATE.root),
        config_train_filename=["configs/train.json", "configs/fl_handlers.json"],
        train_kwargs=kwargs,
        config_evaluate_filename=None,
        config_filters_filename="configs/fl_filters.json",
    )
    algo.initialize({})
    return algo


@pytest.fixture(scope="module")
def weights() -> Weights:
    """A first model with all names of its tensors, as a file of PyTorch's has them."""
    torch.manual_seed(0)
    model, spec = initial_model(PROSTATE.root, {k: TINY[k] for k in ("size", "channels")})
    return dict(spec.with_aliases(model))


@pytest.fixture(autouse=True)
def _clean_board() -> None:
    board("default").values, board("default").context = {}, {}


def seeded_training(client: MonaiAlgo, weights: Weights) -> ExchangeObject:
    """What a client sends that trains with the same draws as any other."""
    torch.manual_seed(3)
    client.trainer.data_loader.dataset.transform.set_random_state(3)
    client.train(ExchangeObject(weights=dict(weights)))
    sent: ExchangeObject = client.get_weights()
    return sent


def measured(sent: ExchangeObject) -> dict[str, float]:
    found = {}
    for name, value in sent.statistics.items():
        if name.startswith("fairfl/"):
            assert isinstance(value, float)
            found[name.removeprefix("fairfl/")] = value
    return found


def test_two_rounds_send_every_measurement(
    weights: Weights, hospitals: Path, tmp_path: Path
) -> None:
    client = client_of(hospitals / "alder", tmp_path, learning_rate=0.02)
    client.train(ExchangeObject(weights=dict(weights)))
    first = client.get_weights()
    scores = measured(first)
    assert set(scores) == {"train_loss", "global_score", "local_score"}
    local = {name: weights[name] + change for name, change in first.weights.items()}
    mixed = {}
    for name, value in local.items():
        floating = value.is_floating_point()
        mixed[name] = 0.7 * weights[name] + 0.3 * value if floating else value

    incoming = ExchangeObject(weights=dict(mixed))
    incoming["context"] = {"previous_weight": 0.3}
    client.train(incoming)
    # Left out of a mixture of the first model and its own, what remains is the first model.
    error = measured(client.get_weights())["leave_one_out_error"]
    assert error == pytest.approx(1 - scores["global_score"], abs=0.02)
    without = leave_one_out_model(mixed, local, 0.3)
    for name, value in weights.items():
        if value.is_floating_point():
            torch.testing.assert_close(without[name], value, atol=1e-4, rtol=0)
    # Nobody says with which weight the last update entered.
    client.train(ExchangeObject(weights=dict(mixed)))
    assert "leave_one_out_error" not in measured(client.get_weights())


def test_a_site_without_validation_cases_sends_what_it_can_measure(
    weights: Weights, hospitals: Path, tmp_path: Path
) -> None:
    file = tmp_path / "list.json"
    site_datalist(hospitals / "alder", file)
    file.write_text(json.dumps({**json.loads(file.read_text()), "validation": []}))
    client = client_of(hospitals / "alder", tmp_path)
    client.train(ExchangeObject(weights=dict(weights)))
    assert list(measured(client.get_weights())) == ["train_loss"]


def test_measuring_disturbs_neither_the_training_nor_the_checkpoints(
    weights: Weights, hospitals: Path, tmp_path: Path
) -> None:
    losses: list[dict[str, Any]] = [
        {"_target_": "monai_fairfl.handlers.GlobalLoss"},
        {"_target_": "monai_fairfl.handlers.Sharpness", "rho": 0.1},
        {"_target_": "monai_fairfl.handlers.LocalLoss"},
    ]
    sent = {}
    for name, more in {
        "plain": {"train#handlers": []},
        "shipped": {},
        "losses": {"train#handlers": losses},
    }.items():
        client = client_of(hospitals / "alder", tmp_path / name, learning_rate=0.02, **more)
        sent[name] = seeded_training(client, weights)
        assert not list((tmp_path / name).glob("*.pt"))
    for name in ("shipped", "losses"):
        for key, value in sent["plain"].weights.items():
            assert torch.equal(sent[name].weights[key], value), (name, key)
    values = measured(sent["losses"])
    assert set(values) == {"global_loss", "sharpness", "local_loss"}
    assert values["sharpness"] > 0
    assert values["local_loss"] != values["global_loss"]


def test_handlers_of_a_configuration_change_the_training(
    weights: Weights, hospitals: Path, tmp_path: Path
) -> None:
    sam = {"_target_": "monai_fairfl.handlers.SharpnessAware", "rho": 0.05, "alpha": 0.1}
    proximal = {"_target_": "monai_fairfl.handlers.Proximal", "mu": 10.0}
    updates = []
    for number, handlers in enumerate(([], [sam], [proximal])):
        folder = tmp_path / str(number)
        client = client_of(hospitals / "alder", folder, **{"train#handlers": handlers})
        client.local_epochs = 3
        updates.append(seeded_training(client, weights).weights)
    kernels = [name for name in weights if name.endswith(".weight")]
    for other in updates[1:]:
        assert any(not torch.equal(updates[0][name], other[name]) for name in kernels)


# --- boards: who measured what


def test_measurements_are_sent_once_and_by_the_client_that_measured_them(
    caplog: pytest.LogCaptureFixture,
) -> None:
    engine = Engine(lambda engine, batch: None)
    first, second = board("A"), board("two clients")
    first.write(engine, "train_loss", 0.5)
    sent = MeasurementsFilter("A")(ExchangeObject(statistics={"current_epoch": 1}))
    assert sent.statistics == {"current_epoch": 1, "fairfl/train_loss": 0.5}
    for name in ("A", "B"):
        assert MeasurementsFilter(name)(ExchangeObject(statistics={})).statistics == {}

    # Another training on the same board: what came before is dropped.
    second.write(engine, "train_loss", 0.5)
    other = Engine(lambda engine, batch: None)
    second.write(other, "train_loss", 0.25)
    assert "board" in caplog.text
    sent = MeasurementsFilter("two clients")(ExchangeObject(statistics={}))
    assert sent.statistics == {"fairfl/train_loss": 0.25}
    second.write(engine, "train_loss", 0.5)
    second.begin(other)
    assert MeasurementsFilter("two clients")(ExchangeObject(statistics={})).statistics == {}


def test_a_context_lasts_until_weights_come_after_its_training() -> None:
    incoming = ExchangeObject(weights={})
    incoming["context"] = {"sam_rho": 0.1}
    receive = MeasurementsFilter("rounds")
    receive(incoming)
    # Such as an evaluation before the training of the round.
    receive(ExchangeObject(weights={}))
    assert board("rounds").context == {"sam_rho": 0.1}
    board("rounds").begin(Engine(lambda engine, batch: None))
    receive(ExchangeObject(statistics={}))
    assert board("rounds").context == {"sam_rho": 0.1}
    receive(ExchangeObject(weights={}))
    assert board("rounds").context == {}


def test_a_handler_leaves_its_engine_as_it_was_and_without_a_board_keeps_its_value() -> None:
    network = conv_net()
    optimizer = torch.optim.SGD(network.parameters(), 0.1)
    loss = torch.nn.BCEWithLogitsLoss()
    trainer = trainer_of(network, image_batches(), loss, optimizer)

    def number_of_handlers() -> int:
        return sum(len(entries) for entries in trainer._event_handlers.values())

    before = number_of_handlers()
    for handler in (TrainLoss(), GlobalLoss(), LocalLoss()):
        handler.attach(trainer)
        assert number_of_handlers() > before
        handler.detach()
        assert number_of_handlers() == before
    lone = TrainLoss(board=None)
    lone.attach(trainer)
    trainer.run()
    assert lone.board is None and lone.value is not None and 0 < lone.value < 2


@pytest.mark.parametrize("weight", [25.0, 1.0, 1 - 1e-9, -0.2, math.nan, math.inf])
def test_a_weight_of_which_there_is_no_model_without_the_client_is_refused(weight: float) -> None:
    with pytest.raises(ConfigError, match=f"previous_weight.*{weight}"):
        LeaveOneOutError(None, previous_weight=weight)  # type: ignore[arg-type]


def test_what_a_handler_cannot_measure_is_refused() -> None:
    class Unknown(MeasurementHandler):
        name = "nonsense"

    with pytest.raises(ConfigError, match="sharpness"):
        Unknown().attach(Engine(lambda engine, batch: None))  # type: ignore[arg-type]
    for rho in (-1.0, 0.0, math.nan):
        with pytest.raises(ConfigError, match="rho"):
            Sharpness(rho)
