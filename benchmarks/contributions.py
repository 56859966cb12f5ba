# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""CGSV's server side, two pairs, each on the same numbers in one run.

One partition for all clients' masks beside one top-k per client; exact values from the Gram matrix
beside summing the updates of every coalition.

    python benchmarks/contributions.py [--clients 4 8] [--parameters 1.6]
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from itertools import combinations

import numpy as np
import torch
from server_step import milliseconds

from monai_fairfl.strategies.rewards import keep_largest
from monai_fairfl.valuation import cosine_game, exact_shapley


def by_topk(values: torch.Tensor, counts: Sequence[int]) -> list[torch.Tensor]:
    """The usual way: every client's largest entries found anew."""
    masks = []
    for count in counts:
        mask = torch.zeros(values.numel(), dtype=torch.bool)
        mask[values.abs().topk(count).indices] = True
        masks.append(mask)
    return masks


def by_summing(rows: torch.Tensor, weights: Sequence[float]) -> dict[tuple[int, ...], float]:
    """The utility of every coalition from the updates themselves."""
    whole = torch.tensor(weights) @ rows
    worth = {}
    for size in range(1, len(rows) + 1):
        for coalition in combinations(range(len(rows)), size):
            members = list(coalition)
            summed = torch.tensor(weights)[members] @ rows[members]
            worth[coalition] = float(torch.nn.functional.cosine_similarity(summed, whole, dim=0))
    return worth


def main() -> None:
    """See the module's text."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--clients", type=int, nargs="+", default=[4, 8])
    parser.add_argument("--parameters", type=float, default=1.6, help="in millions")
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    size = int(arguments.parameters * 1e6)
    print("| step | clients | ours, ms | the usual way, ms | ratio |\n" + "| --- " * 5 + "|")
    for clients in arguments.clients:
        rows = torch.randn(clients, size, generator=torch.Generator().manual_seed(0))
        step, counts = rows.mean(0), [size * (i + 1) // (clients + 1) for i in range(clients)]
        weights = [1 / clients] * clients
        names = [str(i) for i in range(clients)]
        one, other = keep_largest(step, counts), by_topk(step, counts)
        assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))

        def exact(
            rows: torch.Tensor = rows, weights: list[float] = weights, names: list[str] = names
        ) -> object:
            return exact_shapley(
                cosine_game((rows @ rows.T).numpy().astype(np.float64), weights, names)
            )

        pairs = (
            (
                "masks of all clients",
                lambda s=step, c=counts: keep_largest(s, c),
                lambda s=step, c=counts: by_topk(s, c),
            ),
            ("exact CGSV, Gram matrix included", exact, lambda r=rows, w=weights: by_summing(r, w)),
        )
        for name, ours, usual in pairs:
            mine, theirs = milliseconds(ours, arguments.repeats), milliseconds(
                usual, arguments.repeats
            )
            print(f"| {name} | {clients} | {mine:.1f} | {theirs:.1f} | {theirs / mine:.1f} |")


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
