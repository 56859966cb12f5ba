# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The four synthetic hospitals of ``make demo``: three large ones look alike, a small one does not.

They were built to show one effect: plain averaging leaves the small hospital behind, for a reason
that one sees in its images. ``docs/demo.md`` explains how they were chosen and what was measured.
The six hospitals of :mod:`monai_fairfl.data.synthetic`, which the studies use, were not built for
an effect.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path

from monai_fairfl.data.synthetic import Site, write_sites
from monai_fairfl.utils.files import write_atomically

# Each site has these, whatever its size; all other cases train.
VALIDATION_CASES = 2
TESTING_CASES = 8

DEMO_SITES: tuple[Site, ...] = (
    Site("ash", 18, "sharp 3 T images", scale=400, fov=190, blur=0.7),
    Site("beech", 18, "plain 3 T images", scale=900, noise=0.04),
    Site("maple", 18, "slightly shaded 3 T images", scale=1500, bias=0.12, fov=210),
    Site(
        "willow",
        12,
        "endorectal coil: bright flare behind the gland, small field of view",
        scale=11000,
        gamma=0.9,
        zones=0.8,
        noise=0.05,
        coil=12,
        fov=120,
    ),
)


def write_demo(
    root: str | os.PathLike[str],
    seed: int = 0,
    size: tuple[int, int, int] = (96, 96, 12),
    workers: int = 1,
    sites: Sequence[Site] = DEMO_SITES,
) -> list[str]:
    """Write the hospitals of the demonstration, with the split of each as ``datalist/SITE.json``.

    The lists are those of the layout ``nvflare`` (``docs/data.md``), so that every engine trains
    and tests on the same cases: two cases of a site validate, eight test, the others train.

    Args:
        root: folder to write to; made if missing.
        seed: decides all images.
        size: voxels of every volume; field of view and gland stay the same in mm.
        workers: threads.
        sites: the hospitals, with at least eleven cases each; by default the four of the
            demonstration.

    Returns:
        The sites' names, sorted.

    Raises:
        DataError: the folder holds synthetic sites of another seed, size or shift.

    >>> import tempfile
    >>> from monai_fairfl.data import site_datalist, site_folders
    >>> root = tempfile.mkdtemp()
    >>> write_demo(root, size=(16, 16, 4))
    ['ash', 'beech', 'maple', 'willow']
    >>> {part: len(cases) for part, cases in site_datalist(site_folders(root)["willow"]).items()}
    {'training': 2, 'validation': 2, 'testing': 8}
    """
    written = write_sites(root, sites, seed, size, workers=workers)
    folder = Path(root) / "datalist"
    folder.mkdir(exist_ok=True)
    for site in sites:
        # Cases are drawn independently, so their numbers may decide.
        names = [f"{site.name}/Case{number:02d}" for number in range(site.cases)]
        cases = [
            {"image": f"{name}.nii.gz", "label": f"{name}_segmentation.nii.gz"} for name in names
        ]
        content = {
            "training": cases[: -VALIDATION_CASES - TESTING_CASES],
            "validation": cases[-VALIDATION_CASES - TESTING_CASES : -TESTING_CASES],
            "testing": cases[-TESTING_CASES:],
        }
        write_atomically(folder / f"{site.name}.json", json.dumps(content, indent=2).encode())
    return written
