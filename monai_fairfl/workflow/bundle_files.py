# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""A bundle's configuration files and metadata as they are on disk."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from monai.bundle import ConfigParser

TRAIN = Path("configs", "train.json")


def read_configs(bundle_root: Path, names: Sequence[str | Path]) -> ConfigParser:
    """Merge configuration files of the bundle, without the overrides of the running configuration.

    Args:
        bundle_root: folder of the bundle.
        names: of the files, relative to ``bundle_root``; missing files are left out.
    """
    files = []
    for name in names:
        file = bundle_root / name
        if file.is_file():
            files.append(str(file))
    parser = ConfigParser()
    parser.read_config(files)
    # A parser that runs has done this, too, so that both can be compared.
    parser.resolve_macro_and_relative_ids()
    return parser
