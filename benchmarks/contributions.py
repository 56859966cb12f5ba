# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""CGSV's server side, two pairs, each on the same numbers in one run.

One sort for all clients' masks beside one top-k per client; exact values from the Gram matrix
beside summing the updates of every coalition::

    python benchmarks/contributions.py [--clients 4 8] [--parameters 1.6]
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import combinations

import numpy as np
import torch
from stopwatch import alternating

from monai_fairfl.replies import cosine
from monai_fairfl.strategies.parts import keep_largest
from monai_fairfl.valuation import Game, exact_shapley


def by_topk(values: torch.Tensor, counts: Sequence[int]) -> list[torch.Tensor]:
    """Find every client's largest entries by itself, which is the usual way."""
    masks = []
    for count in counts:
        mask = torch.zeros(values.numel(), dtype=torch.bool)
        mask[values.abs().topk(count).indices] = True
        masks.append(mask)
    return masks


def by_gram_matrix(
    rows: torch.Tensor, weights: Sequence[float], names: Sequence[str]
) -> Mapping[str, object]:
    """Compute exact values from the Gram matrix of the updates."""
    gram = (rows @ rows.T).numpy().astype(np.float64)
    whole = np.array(weights)

    def value(coalition: frozenset[str]) -> float:
        return cosine(gram, whole * [name in coalition for name in names], whole)

    return exact_shapley(Game(names, value)).values


def by_summing(rows: torch.Tensor, weights: Sequence[float]) -> dict[tuple[int, ...], float]:
    """Compute the utility of every coalition from the updates themselves."""
    whole = torch.tensor(weights) @ rows
    utilities = {}
    for size in range(1, len(rows) + 1):
        for coalition in combinations(range(len(rows)), size):
            members = list(coalition)
            summed = torch.tensor(weights)[members] @ rows[members]
            cosine = torch.nn.functional.cosine_similarity(summed, whole, dim=0)
            utilities[coalition] = float(cosine)
    return utilities


def print_row(
    name: str, clients: int, ours: Callable[[], object], usual: Callable[[], object], repeats: int
) -> None:
    """Time both ways in turns, and print their row."""
    found = alternating({"ours": ours, "usual": usual}, repeats)
    ratio = found["usual"].cpu / found["ours"].cpu
    print(f"| {name} | {clients} | {found['ours']} | {found['usual']} | {ratio:.1f} |")


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--clients", type=int, nargs="+", default=[4, 8])
    parser.add_argument("--parameters", type=float, default=1.6, help="in millions")
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    size = int(arguments.parameters * 1e6)
    print("| step | clients | ours, CPU ms (wall) | the usual way, CPU ms (wall) | ratio |")
    print("| --- " * 5 + "|")
    for clients in arguments.clients:
        rows = torch.randn(clients, size, generator=torch.Generator().manual_seed(0))
        weights = [1 / clients] * clients
        names = [str(client) for client in range(clients)]
        step = rows.mean(0)
        counts = [size * (client + 1) // (clients + 1) for client in range(clients)]
        for one, other in zip(keep_largest(step, counts), by_topk(step, counts), strict=True):
            assert torch.equal(one, other)

        print_row(
            "masks of all clients",
            clients,
            partial(keep_largest, step, counts),
            partial(by_topk, step, counts),
            arguments.repeats,
        )
        print_row(
            "exact CGSV, Gram matrix included",
            clients,
            partial(by_gram_matrix, rows, weights, names),
            partial(by_summing, rows, weights),
            arguments.repeats,
        )


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
