# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Augmentation of training images in both bundles: MONAI's Compose beside UntrackedCompose.

Both make the same random draws, in one run::

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
from stopwatch import milliseconds

from monai_fairfl.data import CLINICS, SITES, write_clinics, write_sites

BUNDLES = Path(__file__).parents[1] / "bundles"
MONAIS = "Compose"
OURS = "monai_fairfl.data.UntrackedCompose"


def dataset(bundle: Path, site: Path, size: int, kind: str) -> Any:
    """Build the bundle's training images with one kind of Compose, all of them cached."""
    parser = ConfigParser()
    parser.read_config([str(bundle / "configs" / f"{name}.json") for name in ("train", "light")])
    parser["train#preprocessing#_target_"] = kind
    parser.update({"dataset_dir": str(site), "bundle_root": str(bundle), "size": [size, size]})
    # Nothing is written into the bundle.
    parser["datalist_file"] = None
    return parser.get_parsed_content("train#dataset")


def one_epoch(images: Any) -> list[torch.Tensor]:
    """Return the images of an epoch, the same ones every time."""
    images.transform.set_random_state(0)
    tensors = []
    for index in range(len(images)):
        samples = images[index]
        # Of a volume several slices are drawn, of a photograph one picture.
        if not isinstance(samples, list):
            samples = [samples]
        tensors += [torch.as_tensor(sample["image"]) for sample in samples]
    return tensors


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sizes", type=int, nargs="+", default=[64, 128, 256])
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    print("| bundle | size | ours, ms an image | MONAI's Compose, ms | ratio |")
    print("| --- " * 5 + "|")
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
                monais = dataset(BUNDLES / name, site, size, MONAIS)
                ours = dataset(BUNDLES / name, site, size, OURS)
                number = require_same_images(one_epoch(monais), one_epoch(ours))
                ms_of_monais = milliseconds(partial(one_epoch, monais), arguments.repeats) / number
                ms_of_ours = milliseconds(partial(one_epoch, ours), arguments.repeats) / number
                ratio = ms_of_monais / ms_of_ours
                print(
                    f"| {name.split('_')[0]} | {size} | {ms_of_ours:.2f} | {ms_of_monais:.2f} "
                    f"| {ratio:.1f} |",
                    flush=True,
                )


def require_same_images(monais: list[torch.Tensor], ours: list[torch.Tensor]) -> int:
    """Check that both made the same images; return how many."""
    for one, other in zip(monais, ours, strict=True):
        assert torch.equal(one, other)
    return len(ours)


if __name__ == "__main__":
    main()
