# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""A federation of generated hospitals in NVFlare's simulator."""

from __future__ import annotations

import argparse

from nvflare.recipe.sim_env import SimEnv

from monai_fairfl.data import sites_at
from monai_fairfl.transports.flare import FairFLRecipe

SMALL = {
    "size": [32, 32],
    "channels": [4, 8, 8],
    "batch_size": 2,
    "slices_per_volume": 4,
}  # a first try; not for results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hospitals", required=True, help="one folder per hospital")
    parser.add_argument("--sites", nargs="+", help="those that take part (default: all)")
    parser.add_argument("--strategy", default="FedCE", help="see monai-fairfl strategies")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument(
        "--threads", type=int, help="clients at work at the same time (default: all)"
    )
    parser.add_argument("--workspace", required=True, help="gets everything that the run writes")
    args = parser.parse_args()

    sites = args.sites or sorted(sites_at(args.hospitals))
    recipe = FairFLRecipe(
        bundle="prostate_mri_segmentation",
        strategy=args.strategy,
        min_clients=len(sites),
        num_rounds=args.rounds,
        name=args.strategy,
        sites_root=args.hospitals,
        overrides=SMALL,
    )
    run = recipe.execute(
        SimEnv(clients=sites, num_threads=args.threads, workspace_root=args.workspace)
    )
    print(run.get_result())


if __name__ == "__main__":
    main()
