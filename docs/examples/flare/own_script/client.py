# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""A client of NVFlare's Client API for FedCE, which uses nothing of this package."""

import argparse

import nvflare.client as flare
import torch
from net import Net
from nvflare.app_common.abstract.fl_model import FLModel, ParamsType
from nvflare.app_opt.pt.fedce import PTFedCEHelper
from torch import nn


def images_of(site: str, count: int = 16) -> tuple[torch.Tensor, torch.Tensor]:
    """In place of a hospital's files: bright discs, under noise that differs between scanners."""
    draw = torch.Generator().manual_seed(sum(map(ord, site)))
    centres = torch.randint(4, 12, (count, 2, 1, 1), generator=draw)
    rows, columns = torch.meshgrid(torch.arange(16), torch.arange(16), indexing="ij")
    labels = ((rows - centres[:, 0]) ** 2 + (columns - centres[:, 1]) ** 2 < 16).float()[:, None]
    return labels + 0.1 * len(site) * torch.randn(count, 1, 16, 16, generator=draw), labels


def dice(model: Net, images: torch.Tensor, labels: torch.Tensor) -> float:
    model.eval()
    with torch.no_grad():
        found = (model(images) > 0).float()
    return float(2 * (found * labels).sum() / (found.sum() + labels.sum()).clamp(min=1))


def train(model: Net, images: torch.Tensor, labels: torch.Tensor, epochs: int = 3) -> int:
    model.train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
    for _ in range(epochs):
        for batch, truth in zip(images.split(4), labels.split(4)):
            optimizer.zero_grad()
            nn.functional.binary_cross_entropy_with_logits(model(batch), truth).backward()
            optimizer.step()
    return epochs * len(images.split(4))


def main(log: str) -> None:
    torch.set_num_threads(1)
    flare.init()
    site, model = flare.get_site_name(), Net()
    trained: dict[str, torch.Tensor] | None = None
    scores: list[float] = []
    images, labels = images_of(site)
    validation, training = slice(0, 4), slice(4, None)
    while flare.is_running():
        received = flare.receive()
        if received is None:
            break
        model.load_state_dict(received.params)
        before = {name: value.clone() for name, value in model.state_dict().items()}
        weight = PTFedCEHelper.get_contribution_weight(received, site)
        with open(f"{log}-{site}.txt", "a") as file:
            file.write(f"{weight!r} {sorted(received.meta.get('fedce_coef', {}))}\n")
        score = dice(model, images[validation], labels[validation])
        if trained is None:
            scores.append(0.0)
        else:
            without = PTFedCEHelper.make_minus_model(model, trained, weight)
            scores.append(dice(without, images[validation], labels[validation]))
        steps = train(model, images[training], labels[training])
        trained = {name: value.clone() for name, value in model.state_dict().items()}
        result = FLModel(
            params_type=ParamsType.DIFF,
            params={name: value - before[name] for name, value in trained.items()},
            metrics={"dice": score},
            meta={"NUM_STEPS_CURRENT_ROUND": steps},
        )
        flare.send(PTFedCEHelper.set_minus_model_score(result, 1 - sum(scores) / len(scores)))


if __name__ == "__main__":
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--log", required=True)
    main(arguments.parse_args().log)
