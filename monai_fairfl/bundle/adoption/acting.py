# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The handlers of a bundle's engines: which of them act in a federation."""

from __future__ import annotations

from collections.abc import Iterator

from monai_fairfl.bundle.adoption.refusals import EVALUATOR, TRAINER
from monai_fairfl.bundle.adoption.training_config import TrainingConfig, target_of

HANDLERS = (f"{TRAINER}#train_handlers", f"{EVALUATOR}#val_handlers")

LOADS = {"CheckpointLoader"}
STOPS = {"EarlyStopHandler", "EarlyStopping"}
LOGS = {
    "TensorBoardStatsHandler",
    "TensorBoardImageHandler",
    "MLFlowHandler",
    "ClearMLStatsHandler",
    "ClearMLImageHandler",
}
SAVES = {"CheckpointSaver", "MetricsSaver"}

REASONS = {
    "loads": "it would put another model in the place of the one that the server sends",
    "stops": "a site that stops early would leave the round",
    "logs": "a federation logs itself, and the output of each training step would be computed "
    "for this log alone",
}

KNOWN = {
    "LrScheduleHandler",
    "ValidationHandler",
    "StatsHandler",
    "GarbageCollector",
    "NVTXHandler",
    "ParamSchedulerHandler",
}


def handlers_of(config: TrainingConfig, handlers: str) -> Iterator[tuple[str, str]]:
    """Yields the key and the class name of each handler that an engine has and may use.

    Left out is one that the bundle has turned off. Where an expression decides that, such as
    ``$not @finetune``, it may act.
    """
    place = config.find(handlers)
    written = config.get(place) if place else None
    if not isinstance(written, list):
        return
    for index in range(len(written)):
        key = config.find(f"{place}#{index}")
        if key is not None and config.get(f"{key}#_disabled_") is not True:
            yield key, target_of(config.get(key))


def adopt_handlers(config: TrainingConfig) -> None:
    """Turn off the handlers that a federated training does without, and say why."""
    turned_off: dict[str, list[str]] = {}
    for handlers in HANDLERS:
        _note_expression(config, handlers)
        for key, name in handlers_of(config, handlers):
            if _reason_against(name):
                config.set(f"{key}#_disabled_", True)
                turned_off.setdefault(name, []).append(key)
            elif name in SAVES:
                _save_at_the_site(config, key, name)
            elif name and name not in KNOWN:
                config.left.append(
                    f"Handlers: {name} ({key}) is not known here and acts at every site."
                )
    for name, keys in turned_off.items():
        config.changed.append(
            f"Handlers: {name} ({', '.join(keys)}) is off: {_reason_against(name)}."
        )


def _note_expression(config: TrainingConfig, handlers: str) -> None:
    """Say that the handlers of an engine are not known where an expression makes them."""
    place = config.find(handlers)
    if place is not None and isinstance(config.get(place), str):
        config.left.append(
            f"Handlers: {place} is the expression {config.get(place)!r}, and its handlers act at "
            f"every site. If one is a CheckpointLoader, turn it off: {REASONS['loads']}."
        )


def _reason_against(name: str) -> str:
    for kind, names in (("loads", LOADS), ("stops", STOPS), ("logs", LOGS)):
        if name in names:
            return REASONS[kind]
    return ""


def _save_at_the_site(config: TrainingConfig, key: str, name: str) -> None:
    """Let a handler write into the folder of the site, and not into the bundle."""
    own = "@ckpt_dir" if name == "CheckpointSaver" else "@output_dir"
    if own in str(config.get(f"{key}#save_dir")):
        return
    config.set(f"{key}#save_dir", own)
    config.changed.append(f"Handlers: {name} ({key}) writes into the folder of each site.")
