# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Model files whose recipe is not the one of their training."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch


def with_recipe(trained: Path, out: Path, **changed: Any) -> Path:
    """A copy of the model whose recipe has other fields; ``None`` removes one."""
    content = torch.load(trained, weights_only=True)
    for name, value in changed.items():
        content["recipe"][name] = value
        if value is None:
            del content["recipe"][name]
    torch.save(content, out)
    return out
