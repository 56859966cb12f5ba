# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""What several sites on one machine must not share: folders, caches, worker processes, devices."""

from __future__ import annotations

from monai_fairfl.bundle.adoption.refusals import EVALUATOR, TRAINER
from monai_fairfl.bundle.adoption.training_config import TrainingConfig, target_of

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
