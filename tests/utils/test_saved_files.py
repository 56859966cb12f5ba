# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Files of ``torch.save`` that cannot be read: the error says whose fault that is."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from monai_fairfl.errors import ConfigError
from monai_fairfl.model_files import read_recipe, state_of_file
from monai_fairfl.utils.saved_files import load_saved, read_state_dict

READERS = [load_saved, read_state_dict, read_recipe, state_of_file]


@pytest.mark.parametrize("read", READERS, ids=lambda read: read.__name__)
def test_a_file_that_is_not_there_is_not_called_one_of_another_form(
    read: Callable[[Path], Any], tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match="no.pt does not exist: name a model file$"):
        read(tmp_path / "no.pt")


@pytest.mark.parametrize("read", READERS, ids=lambda read: read.__name__)
def test_a_file_that_the_system_does_not_let_be_read_is_named_with_the_systems_reason(
    read: Callable[[Path], Any], tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=r"cannot be read \(Is a directory\): name a model file"):
        read(tmp_path)


@pytest.mark.parametrize("share", [0.0, 0.01, 0.5, 0.99])
def test_a_file_that_was_cut_short_is_none_of_torch_save(share: float, tmp_path: Path) -> None:
    file = tmp_path / "model.pt"
    torch.save({"w": torch.ones(1000)}, file)
    file.write_bytes(file.read_bytes()[: int(share * file.stat().st_size)])
    with pytest.raises(ConfigError, match=r"model.pt is no state_dict of torch.save"):
        load_saved(file)
