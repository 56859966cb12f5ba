# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Synthetic hospitals: T2-like pelvis phantoms with known shifts between sites.

They have the public prostate layout, for demonstrations, tests and benchmarks where no patient's
data may go. Every number that makes one hospital differ from the next is a field of :class:`Site`;
nothing else differs. The order in which random numbers are drawn decides every image, so it must
not change.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import nibabel as nib
import numpy as np
from scipy.ndimage import gaussian_filter
from scipy.special import expit

from monai_fairfl.data.image_files import WORKERS
from monai_fairfl.data.layouts import StrPath
from monai_fairfl.errors import DataError
from monai_fairfl.utils.files import write_atomically

# Voxels from right to left, front to back and feet to head.
Size = tuple[int, int, int]
# Of a random field.
WAVES = 32


@dataclass(frozen=True)
class Site:
    """One synthetic hospital: how many cases it has, and how its images differ from another's.

    Args:
        name: folder name.
        cases: number of volumes.
        scale: stored value of fat; scanners differ by orders of magnitude.
        gamma: exponent on the signal; above 1 is darker and of more contrast.
        zones: peripheral minus central gland signal, 1 as in textbooks, below 0 inverted.
        bias: standard deviation of the log of the receive field (smooth shading).
        noise: standard deviation of the Rician noise relative to fat.
        coil: brightness at an endorectal coil relative to far away, less one; 0 means no coil.
        fov: side of the square field of view in mm.
        blur: in-plane standard deviation of the point spread in mm.
        thickness: slice distance in mm at 16 slices; a stack of any number of slices covers 16
            times this.
        volume: factor on the gland's volume, which is 20 to 90 ml at 1.

    >>> Site("yew", cases=4, fov=180.0).thickness
    3.5
    """

    name: str
    cases: int
    scale: float = 500.0
    gamma: float = 1.0
    zones: float = 1.0
    bias: float = 0.1
    noise: float = 0.03
    coil: float = 0.0
    fov: float = 200.0
    blur: float = 0.8
    thickness: float = 3.5
    volume: float = 1.0

    files: ClassVar = ("Case{:02d}.nii.gz", "Case{:02d}_segmentation.nii.gz")

    def written(self, number: int, seed: int, size: Size) -> Iterator[bytes]:
        """The files of a case, see :func:`make_case`."""
        *volumes, affine = make_case(self, number, seed, size)
        for voxels in volumes:
            nifti = nib.Nifti1Image(voxels, affine)
            nifti.header.set_xyzt_units("mm")
            # Without a time, so that a file is the same whenever it is made.
            yield gzip.compress(nifti.to_bytes(), compresslevel=4, mtime=0)


# Name, cases, scale, gamma, zones, bias, noise, coil, fov, blur, thickness, volume.
SITES: tuple[Site, ...] = (
    # Sharp 3 T images.
    Site("alder", 7, 400, fov=190, blur=0.6, thickness=3.4),
    # An endorectal coil, and a small view.
    Site("birch", 5, 11000, 0.9, 0.8, 0.12, 0.05, 9.0, 130, 0.6, 3.0),
    # A large field of view of high contrast.
    Site("cedar", 5, 1500, 1.3, 1.1, 0.12, fov=230, thickness=3.6),
    # Blurred and noisy, with the zones inverted.
    Site("elm", 5, 120, 0.6, -0.5, 0.25, 0.11, 0.0, 240, 2.2, 4.5),
    # Shaded images of 1.5 T, and large glands.
    Site("hazel", 7, 4000, 0.9, 0.8, 0.25, 0.05, blur=1.0, thickness=3.8, volume=1.25),
    # A screening centre with small glands.
    Site("rowan", 15, 900, 1.1, 1.0, 0.12, 0.04, volume=0.85),
)
"""Six hospitals of the studies.

Their numbers of cases follow the slice counts of the prostate federation of FedCE
(381:238:278:242:389:814; Jiang et al., CVPR 2023, table 5).
"""

DEMO_SITES: tuple[Site, ...] = (
    # Sharp, plain and slightly shaded images of 3 T.
    Site("ash", 18, 400, fov=190, blur=0.7),
    Site("beech", 18, 900, noise=0.04),
    Site("maple", 18, 1500, bias=0.12),
    # An endorectal coil: a bright flare behind the gland, and a small field of view.
    Site("willow", 12, 11000, coil=12, fov=126),
)
"""Four hospitals of ``make demo``: three large ones look alike, a small one does not.

They were built to show one effect: plain averaging leaves the small hospital behind, for a reason
that one sees in its images. ``docs/demo.md`` explains how they were chosen and what was measured.
"""


def random_field(rng: np.random.Generator, axes: Sequence[np.ndarray], scale: float) -> np.ndarray:
    """Smooth field of mean 0, unit variance and covariance exp(-distance**2 / (2 scale**2)).

    It is a sum of waves, so it is the same at every resolution.

    Args:
        rng: draws the waves.
        axes: positions along each axis in mm.
        scale: in mm.

    >>> random_field(np.random.default_rng(0), [np.arange(4), np.arange(5)], 2.0).shape
    (4, 5)
    """
    # A wave of a grid is a product of waves along its axes.
    waves = np.exp(2j * np.pi * rng.random(WAVES))
    for axis in axes[:-1]:
        waves = waves[..., None, :] * np.exp(1j * np.outer(axis, rng.normal(0, 1 / scale, WAVES)))
    last = np.exp(1j * np.outer(rng.normal(0, 1 / scale, WAVES), axes[-1]))
    return np.sqrt(2 / WAVES) * (waves.real @ last.real - waves.imag @ last.imag)


def make_case(
    site: Site, number: int, seed: int = 0, size: Size = (96, 96, 16)
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Make one case: a pelvis whose gland is partly as bright as what surrounds it.

    The signal is s = shading * blur(tissue) ** gamma; the image is the magnitude of s plus complex
    Gaussian noise, hence Rician (Gudbjartsson and Patz, MRM 1995), times the scanner's scale. The
    capsule is seen in places only, and the seminal vesicles and the venous plexus look like the
    peripheral zone.

    Args:
        site: the hospital.
        number: number of the case, from 0.
        seed: with the site's name and the number it decides everything.
        size: voxels from right to left, front to back and feet to head.

    Returns:
        image (int16), mask (uint8, 0 or 1) and affine (4 x 4, mm, RAS+ as in NIfTI; rows run left
        and posterior).

    >>> image, mask, affine = make_case(SITES[0], 0, size=(32, 32, 8))
    >>> image.shape, image.dtype.name, sorted(set(mask.ravel().tolist()))
    ((32, 32, 8), 'int16', [0, 1])
    """
    rng = np.random.default_rng([seed, *site.name.encode(), number])
    spacing = np.array([site.fov, site.fov, 16 * site.thickness]) / size
    axes = [(np.arange(n) - (n - 1) / 2) * step for n, step in zip(size, spacing)]
    smooth = partial(random_field, rng, axes)

    # Positions to the left, back and head of the gland's centre; the body is bent a little.
    offsets = rng.normal(0, (4, 5, 2.5))
    places = [axis + offset + 2.5 * smooth(50) for axis, offset in zip(np.ix_(*axes), offsets)]
    # Both sides are alike.
    places[0] = np.abs(places[0])

    # Half axes in mm of the gland, whose volume in ml is log-normal; a coil presses it flat.
    volume = np.clip(rng.lognormal(np.log(40), 0.4), 20, 90) * site.volume
    wide, flat = (1.3, 0.72) if site.coil else (1.22, 0.86)
    high = (3000 * volume / (4 * np.pi * wide * flat)) ** (1 / 3)
    gland = np.array([wide, flat, 1]) * high

    # Centres and half axes in mm, and signals: fat is 0.85.
    rectum = rng.uniform(18, 22) if site.coil else rng.uniform(8, 17)
    content = 0.03 if site.coil else rng.choice([0.03, rng.uniform(0.25, 0.9)])
    bodies = [
        ((0, 0, 0), (178, 90, np.inf), 0.85),  # fat
        ((0, 0, 0), (158, 70, np.inf), 0.2),  # muscle
        ((15, -48, -14), (12, 8, 18), 0.45),  # pubis
        ((58, 20, 0), (9, 20, np.inf), 0.48),  # ischium
        ((84, -12, 12), (23, 23, 26), 0.55),  # femoral heads
        ((0, 14, 0), (40, 46, np.inf), 0.66),  # pelvic fat
        ((0, -6, 2), (33, 24, 26), 0.55),  # venous plexus
        ((0, -14, high + 19), (31, 22, 21), 1.05),  # bladder
        ((15, 11, high + 3), (16, 5.5, 8), 0.62),  # seminal vesicles
        ((0, 20 + rectum, 0), (rectum + 3, rectum + 3, np.inf), 0.33),  # rectum
        ((0, 20 + rectum, 0), (rectum, rectum, np.inf), content),  # its content, or the coil
    ]
    tissue = np.full(size, 0.02)
    for centre, half, value in bodies:
        tissue = blend(tissue, depth_in(places, centre, half), value)

    # The gland and its central zone. Edge and dark capsule are seen in places only.
    grain, edge = smooth(9), 1 + 2.5 * np.clip(smooth(16), 0, 1.5)
    depth = depth_in(places, (0, 0, 0), gland) + 0.6 * smooth(12)
    seen = depth + 0.5 * grain
    tissue = blend(tissue, (seen + 2) / edge, np.where(grain > -0.5, 0.28, tissue))
    tissue = blend(tissue, seen / edge, 0.54 + 0.18 * site.zones)
    core = depth_in(places, (0, -0.22, 0.1) * gland, (0.72, 0.68, 0.9) * gland)
    tissue = blend(tissue, core, 0.53 - 0.15 * site.zones + 0.12 * grain)
    tissue = np.clip(tissue, 0.01, None) * np.exp(0.15 * smooth(4))

    # The signal, blurred in plane by the point spread and a little across slices.
    signal = gaussian_filter(tissue, (*site.blur / spacing[:2], 0.35)) ** site.gamma
    # The receive field: smooth shading, and the flare of a coil.
    signal *= np.exp(site.bias * smooth(70))
    if site.coil:
        distance = np.hypot(places[0], places[1] - 20 - rectum) / 24
        signal *= 0.5 * (1 + site.coil / (1 + distance**2) ** 2)
    # The magnitude of the noisy signal.
    real, imaginary = site.noise * rng.standard_normal((2, *size))
    magnitude = site.scale * np.hypot(signal + real, imaginary)
    image = np.clip(magnitude, 0, 32767).round().astype(np.int16)

    # The middle of the volume is at 0 mm.
    steps = spacing * (-1, -1, 1)
    affine = nib.affines.from_matvec(np.diag(steps), steps * (1 - np.array(size)) / 2)
    return image, (depth > 0).astype(np.uint8), affine


def depth_in(places: Any, centre: Any, half: Any) -> np.ndarray:
    """Depth in mm in an ellipsoid, below 0 outside; an infinite half axis makes a tube."""
    radius = np.sqrt(sum(((place - c) / h) ** 2 for place, c, h in zip(places, centre, half)))
    return (1 - radius) * min(half)


def blend(below: np.ndarray, depth: np.ndarray, value: Any) -> np.ndarray:
    """``value`` where ``depth`` is above 0, ``below`` elsewhere, with an edge of width 1."""
    return below + expit(2 * depth) * (value - below)


def write_sites(
    root: StrPath,
    sites: Sequence[Any] = SITES,
    seed: int = 0,
    size: tuple[int, ...] = (96, 96, 16),
    cases: int | None = None,
) -> list[str]:
    """Write synthetic hospitals, and ``sites.json``, which describes them.

    Each case is ``SITE/CaseNN.nii.gz`` and ``SITE/CaseNN_segmentation.nii.gz``. The same arguments
    give the same bytes; a case depends on seed, site and number only. Cases that are there already
    and whole stay as they are, so that an interrupted call can be repeated.

    Args:
        root: folder to write to; made if missing.
        sites: hospitals, or clinics.
        seed: decides all images.
        size: of every image, such as voxels of a volume; the field of view and what is in it stay
            the same in mm.
        cases: number of cases of every site instead of each site's own.

    Returns:
        The sites' names, sorted.

    Raises:
        DataError: the folder holds synthetic sites of another seed, size or shift.

    >>> import tempfile
    >>> write_sites(tempfile.mkdtemp(), sites=SITES[:2], size=(24, 24, 6), cases=1)
    ['alder', 'birch']
    """

    path = Path(root, "sites.json")
    sites = [site if cases is None else replace(site, cases=cases) for site in sites]
    described = {"seed": seed, "size": size, "sites": [asdict(site) for site in sites]}
    content = json.dumps(described, indent=2).encode()
    if path.exists() and path.read_bytes() != content:
        raise DataError(f"{path} has another seed, size or site. Delete {root}, or change --out.")
    write_atomically(path, content)

    def write(site: Any, number: int) -> None:
        paths = [Path(root, site.name, name.format(number)) for name in site.files]
        # Files are written whole or not at all.
        if not all(path.exists() for path in paths):
            for path, content in zip(paths, site.written(number, seed, size)):
                write_atomically(path, content)

    numbered = [(site, number) for site in sites for number in range(site.cases)]
    with ThreadPoolExecutor(WORKERS) as pool:
        list(pool.map(write, *zip(*numbered)))
    return sorted(site.name for site in sites)


def write_demo(
    root: StrPath, seed: int = 0, size: Size = (96, 96, 12), sites: Sequence[Site] = DEMO_SITES
) -> list[str]:
    """Write the hospitals of the demonstration, with the split of each as ``datalist/SITE.json``.

    The lists are those of the layout ``nvflare`` (``docs/data.md``), so that every engine trains
    and tests on the same cases: two cases of a site validate, eight test, the others train.

    Args:
        root: folder to write to; made if missing.
        seed: decides all images.
        size: voxels of every volume; field of view and gland stay the same in mm.
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
    written = write_sites(root, sites, seed, size)
    for site in sites:
        names = [f"{site.name}/Case{number:02d}" for number in range(site.cases)]
        cases = [{"image": f"{n}.nii.gz", "label": f"{n}_segmentation.nii.gz"} for n in names]
        # Cases are drawn independently, so their numbers may decide. Whatever its size, two of a
        # site's validate and eight test.
        parts = {"training": cases[:-10], "validation": cases[-10:-8], "testing": cases[-8:]}
        file = Path(root, "datalist", f"{site.name}.json")
        write_atomically(file, json.dumps(parts, indent=2).encode())
    return written
