# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Milliseconds to make a photograph smaller.

MONAI's ``Resized`` with anti-aliasing beside ``SmoothResized``::

    python benchmarks/resizing.py [--size 768]
"""

from __future__ import annotations

import argparse
from collections.abc import Hashable
from functools import partial
from typing import Any

import torch
from monai.transforms import Resized
from stopwatch import milliseconds

from monai_fairfl.data import SmoothResized

CAMERAS = {"12 megapixels": (4288, 2848), "4 megapixels": (2304, 1728), "1 megapixel": (1200, 900)}


def main() -> None:
    """Print the table."""
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
        "| photograph | ours, ms | MONAI's Resized, ms | ratio "
        "| largest difference, share of the range |"
    )
    print("| --- " * 5 + "|")
    for camera, shape in CAMERAS.items():
        data: dict[Hashable, Any] = {"image": torch.rand(3, *shape)}
        settings: dict[str, Any] = {
            "size_mode": "longest",
            "mode": "bilinear",
            "anti_aliasing": True,
        }
        ours = SmoothResized("image", arguments.size, **settings)
        monais = Resized("image", arguments.size, **settings)
        difference = float((ours(data)["image"] - monais(data)["image"]).abs().max())
        ms_of_ours = milliseconds(partial(ours, data), arguments.repeats)
        ms_of_monais = milliseconds(partial(monais, data), arguments.repeats)
        print(
            f"| {camera} | {ms_of_ours:.1f} | {ms_of_monais:.1f} "
            f"| {ms_of_monais / ms_of_ours:.1f} | {difference:.0e} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
