# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Augmentation of training images in both bundles: MONAI's Compose beside UntrackedCompose, the
same draws in one run.

python benchmarks/augmentation.py [--sizes 64 128 256]
"""

from __future__ import annotations

import argparse
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import torch
from monai.bundle import ConfigParser
from server_step import milliseconds

from monai_fairfl.data import CLINICS, SITES, write_clinics, write_sites

BUNDLES = Path(__file__).parents[1] / "bundles"
KINDS = ("Compose", "monai_fairfl.data.UntrackedCompose")


def dataset(bundle: Path, site: Path, size: int, kind: str) -> Any:
    """The bundle's training images, all of them cached."""
    parser = ConfigParser()
    parser.read_config(str(bundle / "configs" / "train.json"))
    parser["train#preprocessing#_target_"] = kind
    parser.update({"dataset_dir": str(site), "bundle_root": str(bundle), "size": [size, size]})
    return parser.get_parsed_content("train#dataset")


def one_epoch(images: Any) -> list[torch.Tensor]:
    """The images of an epoch, the same ones every time."""
    images.transform.set_random_state(0)
    items = [images[index] for index in range(len(images))]
    samples = [sample for item in items for sample in (item if isinstance(item, list) else [item])]
    return [torch.as_tensor(sample["image"]) for sample in samples]


def main() -> None:
    """See the module's text."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sizes", type=int, nargs="+", default=[64, 128, 256])
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    print(
        "| bundle | size | ours, ms an image | MONAI's Compose, ms | ratio |\n" + "| --- " * 5 + "|"
    )
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        write_sites(root / "volumes", sites=SITES[:1], cases=4)
        write_clinics(root / "photographs", clinics=CLINICS[:1], cases=8)
        sites = {
            "prostate_mri_segmentation": root / "volumes" / SITES[0].name,
            "fundus_disc_cup_segmentation": root / "photographs" / CLINICS[0].name,
        }
        for name, site in sites.items():
            for size in arguments.sizes:
                both = [dataset(BUNDLES / name, site, size, kind) for kind in KINDS]
                tracked, plain = map(one_epoch, both)
                assert all(
                    torch.equal(one, other) for one, other in zip(tracked, plain, strict=True)
                )
                usual, ours = (
                    milliseconds(partial(one_epoch, images), arguments.repeats) / len(plain)
                    for images in both
                )
                print(
                    f"| {name.split('_')[0]} | {size} | {ours:.2f} | {usual:.2f} | {usual / ours:.1f} |",
                    flush=True,
                )


if __name__ == "__main__":
    main()
