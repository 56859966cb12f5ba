# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""A round begins with the same random numbers after other rounds and in a new process."""

from __future__ import annotations

import pytest
import torch
from helpers.random_loaders import KINDS, images_of, loaders
from helpers.small_trainers import conv_net, trainer_of
from torch import nn

from monai_fairfl.client.training import one_round


@pytest.mark.parametrize("kind", KINDS)
def test_a_round_begins_the_same_after_others_and_in_a_new_process(kind: str) -> None:
    lasting, new = loaders(kind), loaders(kind)
    rounds = []
    for loader, seeds in ((lasting, (1, 2)), (new, (2,))):
        for seed in seeds:
            trainer = trainer_of(
                conv_net(), loader, nn.L1Loss(), torch.optim.SGD([nn.Parameter(torch.ones(1))], 0.1)
            )
            with one_round(trainer, seed, []):
                rounds.append(images_of(loader))
    assert torch.equal(rounds[1], rounds[2]) and not torch.equal(rounds[0], rounds[1])
