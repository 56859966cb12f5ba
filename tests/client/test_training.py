# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from helpers.driving import GOLDEN
from helpers.small_trainers import (
    ONE_BATCH,
    Point,
    half_mean_square,
    image_batches,
    least_squares,
    trainer_of,
)
from ignite.engine import Events
from ignite.metrics import Average
from monai.engines import SupervisedTrainer
from monai.handlers import LrScheduleHandler, StatsHandler
from torch import nn

from monai_fairfl.client.trainer_state import load_state, state_of, with_new_optimizer
from monai_fairfl.client.training import (
    check_schedules,
    chosen_handlers,
    discard_interrupted_run,
    one_round,
    train_personal,
)
from monai_fairfl.errors import ConfigError
from monai_fairfl.handlers import SharpnessAware, TrainLoss

DITTO = GOLDEN["ditto"]


def test_one_step_of_the_personal_model_is_the_golden_one() -> None:
    network = Point(DITTO["w"])
    gradient = torch.tensor(DITTO["grad"], dtype=torch.float64)
    trainer = trainer_of(
        network,
        ONE_BATCH,
        lambda p, _: (gradient * p).sum(),
        torch.optim.SGD(network.parameters(), DITTO["eta"]),
    )
    anchor = {"w": torch.tensor(DITTO["w"], dtype=torch.float64)}
    begin = {**state_of(trainer), "local": {"w": torch.tensor(DITTO["v"], dtype=torch.float64)}}
    state = train_personal(trainer, begin, anchor, DITTO["lam"], epochs=1, seed=0)
    assert state["local"]["w"].tolist() == pytest.approx(DITTO["v_new"])
    assert network.w.tolist() == DITTO["w"] and trainer.state.epoch == 0


def test_the_personal_model_ends_at_the_closed_form_between_its_own_optimum_and_the_anchor() -> (
    None
):
    x, y = least_squares()
    network = nn.Linear(3, 1, bias=False, dtype=torch.float64)
    loader = [{"image": x, "label": y}]
    trainer = trainer_of(
        network, loader, half_mean_square, torch.optim.SGD(network.parameters(), 0.2, momentum=0.5)
    )
    anchor, strength = torch.tensor([[1.0, -2.0, 3.0]], dtype=torch.float64), 0.4
    state = state_of(trainer)
    for number in range(3):  # rounds
        state = train_personal(
            trainer, state, {"weight": anchor}, strength, epochs=150, seed=number
        )
    expected = torch.linalg.solve(
        x.T @ x / len(x) + strength * torch.eye(3), x.T @ y / len(x) + strength * anchor.T
    )
    assert torch.allclose(state["local"]["weight"], expected.T, atol=1e-8)
    assert state["epoch"] == 450


def test_the_usual_training_never_notices() -> None:
    x, y = least_squares()

    def weights_after(personal: bool) -> torch.Tensor:
        network = nn.Linear(3, 1, dtype=torch.float64)
        nn.init.ones_(network.weight)
        nn.init.zeros_(network.bias)
        optimizer = torch.optim.Adam(network.parameters(), 0.1)
        trainer = trainer_of(network, [{"image": x, "label": y}], half_mean_square, optimizer)
        for _ in range(3):
            trainer.state.max_epochs = trainer.state.epoch + 1
            trainer.run()
            if personal:
                before = copy.deepcopy(state_of(trainer))
                train_personal(
                    trainer, before, {"weight": torch.zeros(1, 3)}, 1.0, epochs=2, seed=0
                )
                assert trainer.state.epoch == trainer.state.max_epochs == before["epoch"]
        return network.weight.detach()

    assert torch.equal(weights_after(True), weights_after(False))


def test_a_training_that_failed_begins_anew_and_does_not_end_at_once() -> None:
    x, y = least_squares()
    network, steps = nn.Linear(3, 1, dtype=torch.float64), []

    def loss(predicted: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        steps.append(len(target))
        if len(steps) == 2:
            raise MemoryError("out of memory")
        return half_mean_square(predicted, target)

    loader = [{"image": a, "label": b} for a, b in zip(x.split(4), y.split(4), strict=True)]
    trainer = trainer_of(network, loader, loss, torch.optim.SGD(network.parameters(), 0.1))
    begin = state_of(trainer)
    with pytest.raises(MemoryError), one_round(trainer, 0, []):
        trainer.run()
    load_state(trainer, begin)
    with one_round(trainer, 0, []):
        trainer.run()
    assert steps == [4] * 5  # one step, the one that failed, and all three


@pytest.mark.parametrize("stop_at, epochs_done", [(1, 0), (4, 1), (6, 2)])
@pytest.mark.parametrize("fails", [False, True])
def test_after_an_interrupted_run_is_discarded_the_next_has_all_its_steps(
    stop_at: int, epochs_done: int, fails: bool
) -> None:
    x, y = least_squares()
    network, steps = nn.Linear(3, 1, dtype=torch.float64), []
    loader = [{"image": a, "label": b} for a, b in zip(x.split(4), y.split(4), strict=True)]
    trainer = trainer_of(
        network, loader, half_mean_square, torch.optim.SGD(network.parameters(), 0.1)
    )

    def stop(engine: Any) -> None:
        steps.append(engine.state.iteration)
        if len(steps) == stop_at and fails:
            raise MemoryError("out of memory")
        if len(steps) == stop_at:
            engine.interrupt()

    trainer.add_event_handler(Events.ITERATION_COMPLETED, stop)
    trainer.state.max_epochs = 2
    if fails:
        with pytest.raises(MemoryError):
            trainer.run()
    else:
        trainer.run()
    discard_interrupted_run(trainer)
    assert (trainer.state.epoch, trainer.state.iteration) == (epochs_done, 3 * epochs_done)
    discard_interrupted_run(trainer)  # there is none: nothing changes
    trainer.state.max_epochs = trainer.state.epoch + 2
    trainer.run()
    assert len(steps) == stop_at + 6 and trainer.state.epoch == epochs_done + 2


def test_handlers_take_the_whole_context_and_come_in_a_fixed_order() -> None:
    first, second = chosen_handlers(
        {"local_epochs": 1, "prox_mu": 0.5, "gsam_alpha": 0.2, "sam_rho": 0.1}
    )
    assert isinstance(first, SharpnessAware) and (first.rho, first.alpha) == (0.1, 0.2)
    assert second.mu == 0.5  # type: ignore[attr-defined]
    assert chosen_handlers({"gsam_alpha": 0.2}) == []


def test_a_new_optimizer_forgets_its_moments_and_keeps_rate_schedule_and_weights() -> None:
    old = {
        "local": 1,
        "optimizer": {"state": {0: "moments"}, "param_groups": [{"lr": 0.1}]},
        "schedulers": 3,
    }
    assert with_new_optimizer(old) == {
        **old,
        "optimizer": {"state": {}, "param_groups": [{"lr": 0.1}]},
    }


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")
def test_the_loss_scale_goes_on_from_round_to_round_and_in_a_new_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        torch.cuda.amp, "GradScaler", lambda: torch.amp.GradScaler("cpu", growth_interval=2)
    )
    seen: list[float] = []

    def trainer() -> Any:
        network = nn.Conv2d(1, 1, 1)
        optimizer = torch.optim.SGD(network.parameters(), 0.1)
        made = trainer_of(network, image_batches(2), nn.BCEWithLogitsLoss(), optimizer, amp=True)
        made.add_event_handler(
            Events.EPOCH_COMPLETED, lambda engine: seen.append(engine.scaler.get_scale())
        )
        return made

    def one(trainer: Any) -> dict[str, Any]:
        trainer.state.max_epochs = trainer.state.epoch + 1
        with one_round(trainer, 0, []):
            trainer.run()
        return state_of(trainer)

    first = trainer()
    initial = state_of(first)
    states = [one(first) for _ in range(3)]
    new = trainer()
    load_state(new, states[1])
    assert one(new)["scaler"] == states[2]["scaler"]
    load_state(first, initial)
    one(first)
    assert seen == [2.0**17, 2.0**18, 2.0**19, 2.0**19, 2.0**17]


@pytest.mark.parametrize(
    "read", [lambda state: state.metrics["dice"], lambda state: state.best_metric]
)
def test_a_schedule_by_the_validation_score_is_refused_and_one_by_the_training_is_not(
    read: Any,
) -> None:
    network = nn.Conv2d(1, 1, 1)
    optimizer = torch.optim.SGD(network.parameters(), 0.1)
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)
    evaluator = trainer_of(network, image_batches(1), nn.BCEWithLogitsLoss(), optimizer)
    state = evaluator.state

    def check(step: Any) -> None:
        handlers = [LrScheduleHandler(plateau, print_lr=False, step_transform=step)]
        trainer = trainer_of(
            network, image_batches(1), nn.BCEWithLogitsLoss(), optimizer, train_handlers=handlers
        )
        check_schedules(trainer, [evaluator], "alder")  # type: ignore[list-item]
        trainer.run()

    with pytest.raises(
        ConfigError,
        match="'alder': .* ReduceLROnPlateau reads the validation score.* schedule by epoch",
    ):
        check(lambda engine: read(evaluator.state))
    check(lambda engine: engine.state.output["loss"])
    assert evaluator.state is state


class Watched(Average):
    """A training metric that counts for how many batches it was computed."""

    def __init__(self) -> None:
        self.batches = 0
        super().__init__(output_transform=lambda output: 1.0)

    def update(self, output: Any) -> None:
        self.batches += 1
        super().update(output)


class Round:
    """A round of two batches with a training metric, and what was made of the output."""

    def __init__(self, *handlers: Any):
        self.metric = Watched()
        self.postprocessed = 0
        torch.manual_seed(0)
        network = nn.Conv2d(1, 1, 1)
        optimizer = torch.optim.SGD(network.parameters(), 0.1)
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1)
        self.trainer = SupervisedTrainer(
            torch.device("cpu"),
            1,
            image_batches(2),  # type: ignore[arg-type]
            network,
            optimizer,
            nn.BCEWithLogitsLoss(),
            postprocessing=self.postprocess,  # type: ignore[arg-type]
            key_train_metric={"ones": self.metric},
            train_handlers=[LrScheduleHandler(schedule, print_lr=False), *handlers],
        )

    def postprocess(self, case: Any) -> Any:
        self.postprocessed += 1
        return case

    def train(self) -> dict[str, torch.Tensor]:
        with one_round(self.trainer, 0, [TrainLoss(None)]):
            self.trainer.run()
        return self.trainer.network.state_dict()


def test_a_round_makes_no_metric_that_nobody_reads_and_trains_the_same() -> None:
    silent = Round()
    read = Round(StatsHandler(output_transform=lambda output: output[0]["loss"]))
    weights, same_weights = silent.train(), read.train()
    assert (silent.metric.batches, silent.postprocessed) == (0, 0)
    assert (read.metric.batches, read.postprocessed) == (2, 8)
    for name in weights:
        assert torch.equal(weights[name], same_weights[name])

    # A training outside of a federation has them again.
    silent.trainer.state.max_epochs += 1
    silent.trainer.run()
    assert (silent.metric.batches, silent.postprocessed) == (2, 8)
    assert silent.trainer.state.metrics == {"ones": 1.0}


def test_a_schedule_by_the_training_metric_still_has_it() -> None:
    steps = []
    optimizer = torch.optim.SGD(nn.Conv2d(1, 1, 1).parameters(), 0.1)
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)

    def read(engine: Any) -> float:
        steps.append(engine.state.metrics["ones"])
        return steps[-1]

    by_metric = Round(LrScheduleHandler(plateau, print_lr=False, step_transform=read))
    by_metric.train()
    assert by_metric.metric.batches == 2 and steps == [1.0]
