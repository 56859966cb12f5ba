# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The engines of a bundle: what sites on one machine must not share, and which handlers act."""

from __future__ import annotations

from collections.abc import Iterator

from monai_fairfl.bundle.adoption.training_config import (
    EVALUATOR,
    TRAINER,
    TrainingConfig,
    target_of,
)

LOADERS = (f"{TRAINER}#train_data_loader", f"{EVALUATOR}#val_data_loader")
ENGINES = (TRAINER, EVALUATOR)

FOLDERS = {"ckpt_dir": "models", "output_dir": "eval", "cache_dir": "cache"}
"""Key that a federation sets for each site -> its folder where a bundle trains alone."""


def adopt_folders(config: TrainingConfig) -> None:
    """Give each site folders of its own for models, evaluations and caches."""
    for name, folder in FOLDERS.items():
        if name != "cache_dir":
            config.add(name, f"$@bundle_root + '/{folder}'")
    for key, section in list(config.sections()):
        # Keys at the top, such as cache_dir, are those that a federation sets.
        if not target_of(section) or "cache_dir" not in section:
            continue
        if section["cache_dir"] == "@cache_dir":
            continue
        config.add("cache_dir", f"$@bundle_root + '/{FOLDERS['cache_dir']}'")
        config.set(f"{key}#cache_dir", "@cache_dir")
        config.changed.append(
            f"Cache: {key} stores its images in a folder of each site's own; one that all sites "
            "share would mix their images."
        )


def adopt_workers(config: TrainingConfig) -> None:
    """Let every site load its images in its own process."""
    changed = []
    for loader in LOADERS:
        key = config.find(loader)
        if key is None or config.get(f"{key}#num_workers") in (None, 0, "@num_workers"):
            continue
        config.add("num_workers", 0)
        config.set(f"{key}#num_workers", "@num_workers")
        # Without workers a loader refuses these.
        for name in ("persistent_workers", "prefetch_factor"):
            if config.get(f"{key}#{name}"):
                config.set(f"{key}#{name}", None if name == "prefetch_factor" else False)
        changed.append(key)
    if changed:
        config.changed.append(
            f"Workers: {' and '.join(changed)} load in the site's own process; several sites with "
            "workers of their own would not fit one machine (num_workers)."
        )


def adopt_precision(config: TrainingConfig) -> bool:
    """Let the setting ``amp`` of a federation decide, and say what the bundle's own value is.

    Returns:
        Whether the bundle trains in mixed precision.
    """
    own = bool(config.built("amp")) if "amp" in config.parser else False
    changed = False
    for engine in ENGINES:
        if config.get(engine) is None:
            continue
        written = config.get(f"{engine}#amp")
        if isinstance(written, bool):
            own = own or written
            config.add("amp", written)
            config.set(f"{engine}#amp", "@amp")
            changed = True
    if changed and own:
        config.changed.append("Precision: amp is on where there is a GPU, as in the bundle.")
    return own


def adopt_lengths(config: TrainingConfig) -> None:
    """Let a check end each engine after some batches (``epoch_length``, ``validation_length``)."""
    for engine, name in zip(ENGINES, ("epoch_length", "validation_length"), strict=True):
        if config.get(engine) is None or config.get(f"{engine}#epoch_length") is not None:
            continue
        config.add(name, None)
        config.set(f"{engine}#epoch_length", f"@{name}")


# ---- handlers

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
