# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""MONAI's ``MonaiAlgo`` at a site of NVFlare's or Flower's own methods, for ``engines.py``."""

from __future__ import annotations

import json
from functools import lru_cache
from pathlib import Path

from monai.fl.client import MonaiAlgo
from monai.fl.utils.constants import ExtraItems

from monai_fairfl.client.training import drop_unread_output


@lru_cache
def algo_of(site: str, settings_file: str) -> MonaiAlgo:
    """Return the site's ``MonaiAlgo``, with what our engine gives its own; one in a process.

    Args:
        site: its name.
        settings_file: written by ``engines_runs.Run.write_settings``.
    """
    settings = json.loads(Path(settings_file).read_text())
    folder = Path(settings["folder"]) / "sites" / site
    arguments = {
        "dataset_dir": str(Path(settings["hospitals"]) / site),
        "datalist_file": str(folder / "datalist.json"),
        "ckpt_dir": str(folder / "models"),
        "output_dir": str(folder / "eval"),
        "device": "$torch.device('cpu')",
        **settings["overrides"],
    }
    algo = MonaiAlgo(
        settings["bundle"],
        settings["local_epochs"],
        config_train_filename=settings["config"],
        train_kwargs=arguments,
        config_evaluate_filename=[*settings["config"], "configs/evaluate.json"],
        eval_kwargs=dict(arguments),
    )
    algo.initialize({ExtraItems.CLIENT_NAME: site})
    assert algo.trainer is not None
    drop_unread_output(algo.trainer)
    return algo
