# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Three hospitals, each a process of its own, driven over a transport of one's own."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from contextlib import suppress
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import torch

from monai_fairfl.bundle import bundle_client, find_bundle, initial_model
from monai_fairfl.client import FairMonaiAlgo
from monai_fairfl.messages import Reply, Request
from monai_fairfl.server import Federation, History
from monai_fairfl.strategies import FedCE

BUNDLE = find_bundle("prostate_mri_segmentation")
# A first try; not for results.
SMALL = {
    "size": [32, 32],
    "channels": [4, 8, 8],
    "batch_size": 2,
    "slices_per_volume": 4,
}
# One in each hospital's process.
client: FairMonaiAlgo


def begin(site: str, images: Path, private: Path, rounds: int) -> None:
    global client
    torch.set_num_threads(1)
    client = bundle_client(
        BUNDLE, site, private, dataset_dir=images, rounds=rounds, overrides=SMALL
    )


def answer(request: Request) -> Reply:
    return client.answer(request)


class Processes:
    """The three members of ``monai_fairfl.server.Transport``."""

    def __init__(self, hospitals: Path, sites: Sequence[str], private: Path, rounds: int):
        self.clients, spawn = sorted(sites), get_context("spawn")
        self.at = {
            site: ProcessPoolExecutor(
                1, spawn, begin, (site, hospitals / site, private / site, rounds)
            )
            for site in self.clients
        }

    def ask(self, requests: Sequence[Request], timeout: float | None = None) -> Iterator[Reply]:
        sent = {self.at[request.client].submit(answer, request): request for request in requests}
        with suppress(TimeoutError):  # who is late is missing
            for done in as_completed(sent, timeout):
                yield _reply(done, sent[done])

    def close(self) -> None:
        for process in self.at.values():
            process.shutdown(cancel_futures=True)


def _reply(done: Future[Reply], request: Request) -> Reply:
    error = done.exception()  # of one hospital; the others go on
    if error is None:
        return done.result()
    return request.reply(error=str(error))


def run(
    hospitals: Path,
    run_dir: Path,
    sites: Sequence[str] = ("alder", "birch", "cedar"),
    rounds: int = 2,
) -> History:
    transport = Processes(hospitals, sites, run_dir / "sites", rounds)
    initial = partial(initial_model, BUNDLE, SMALL)
    return Federation(
        FedCE(), transport, rounds, initial, run_dir=run_dir, min_clients=len(sites)
    ).run()


if __name__ == "__main__":
    print(run(Path(sys.argv[1]), Path(sys.argv[2])).rounds[-1]["aggregation"])
