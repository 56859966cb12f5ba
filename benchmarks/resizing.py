# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Milliseconds to make a photograph smaller, MONAI's ``Resized`` with anti-aliasing beside
``SmoothResized``.

python benchmarks/resizing.py [--size 768]
"""

from __future__ import annotations

import argparse
from functools import partial

import torch
from monai.transforms import Resized
from server_step import milliseconds

from monai_fairfl.data import SmoothResized

CAMERAS = {"12 megapixels": (4288, 2848), "4 megapixels": (2304, 1728), "1 megapixel": (1200, 900)}


def main() -> None:
    """See the module's text."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--size", type=int, default=768, help="of the longer side afterwards, pixels"
    )
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    print(
        "| photograph | ours, ms | MONAI's Resized, ms | ratio | largest difference, share of the range |"
    )
    print("| --- " * 5 + "|")
    for camera, shape in CAMERAS.items():
        data = {"image": torch.rand(3, *shape)}
        both = [
            kind("image", arguments.size, size_mode="longest", mode="bilinear", anti_aliasing=True)
            for kind in (SmoothResized, Resized)
        ]
        one, other = (resize(data)["image"] for resize in both)
        ours, usual = (milliseconds(partial(resize, data), arguments.repeats) for resize in both)
        difference = f"{float((one - other).abs().max()):.0e}"
        print(
            f"| {camera} | {ours:.1f} | {usual:.1f} | {usual / ours:.1f} | {difference} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
