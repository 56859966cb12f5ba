# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Six synthetic hospitals: T2-like pelvis phantoms in the public prostate layout, with known site
shifts.

For demonstrations, tests and benchmarks where no patient's data may go. Every number that makes one
hospital differ from the next is a field of :class:`Site`; nothing else differs. The numbers of
cases follow the slice counts of the prostate federation of FedCE (381:238:278:242:389:814; Jiang et
al., CVPR 2023, table 5).
"""

from __future__ import annotations

import gzip
import os
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np
from scipy.ndimage import gaussian_filter

from monai_fairfl.data.generated import write_generated
from monai_fairfl.utils.files import write_atomically

_Triple = tuple[Any, Any, Any]  # numbers, or fields that vary over the volume


@dataclass(frozen=True)
class Site:
    """One synthetic hospital: how many cases it has, and how its images differ from another's.

    Args:
        name: folder name.
        cases: number of volumes.
        words: the shift in plain words, for ``sites.json``.
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
    words: str = "plain 3 T scanner"
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


SITES: tuple[
    Site, ...
] = (  # name, cases, words, scale, gamma, zones, bias, noise, coil; then by name
    Site("alder", 7, "sharp 3 T images", 400, fov=190, blur=0.6, thickness=3.4),
    Site(
        "birch",
        5,
        "endorectal coil, small view",
        11000,
        0.9,
        0.8,
        0.12,
        0.05,
        9.0,
        fov=130,
        blur=0.6,
        thickness=3.0,
    ),
    Site(
        "cedar",
        5,
        "large field of view, high contrast",
        1500,
        1.3,
        1.1,
        bias=0.12,
        fov=230,
        thickness=3.6,
    ),
    Site(
        "elm",
        5,
        "blurred, noisy, zones inverted",
        120,
        0.6,
        -0.5,
        0.25,
        0.11,
        fov=240,
        blur=2.2,
        thickness=4.5,
    ),
    Site(
        "hazel",
        7,
        "1.5 T, shaded, large glands",
        4000,
        0.9,
        0.8,
        0.25,
        0.05,
        blur=1.0,
        thickness=3.8,
        volume=1.25,
    ),
    Site(
        "rowan",
        15,
        "screening centre, small glands",
        900,
        gamma=1.1,
        bias=0.12,
        noise=0.04,
        volume=0.85,
    ),
)


class _Pelvis:
    """Coordinates in mm (left, posterior, superior; gland at 0) and the signal painted so far (fat
    is about 0.8).
    """

    def __init__(self, site: Site, rng: np.random.Generator, size: tuple[int, int, int]) -> None:
        self.rng, self.extent = rng, (site.fov, site.fov, 16 * site.thickness)
        self.spacing = tuple(e / n for e, n in zip(self.extent, size))
        self.axes = [(np.arange(n) - (n - 1) / 2) * s for n, s in zip(size, self.spacing)]
        offset = rng.normal(0, (4, 5, 2.5))
        grid = np.meshgrid(*self.axes, indexing="ij")
        self.x, self.y, self.z = (
            g + o + 1.8 * self.smooth(25) + 3.5 * self.smooth(75) for g, o in zip(grid, offset)
        )
        self.signal = np.full(size, 0.02)

    def smooth(self, scale: float) -> np.ndarray:
        """Random field of unit variance and correlation ``scale`` mm, the same at every resolution
        (noise on knots).
        """
        bases = []
        for axis, extent in zip(self.axes, self.extent):
            knots = np.arange(-extent / 2 - scale, extent / 2 + 2 * scale, scale)
            basis = np.exp(-0.5 * ((axis[:, None] - knots) / (0.7 * scale)) ** 2)
            bases.append(basis / np.sqrt((basis**2).sum(axis=1, keepdims=True)))
        field = self.rng.standard_normal([basis.shape[1] for basis in bases])
        for basis in bases:
            field = np.tensordot(field, basis, axes=(0, 1))
        return field

    def radius(self, centre: _Triple, radii: _Triple) -> np.ndarray:
        """Elliptic radius: below 1 inside; an infinite radius makes a tube."""
        gaps = zip((self.x, self.y, self.z), centre, radii)
        return np.sqrt(sum(((axis - c) / r) ** 2 for axis, c, r in gaps))

    def paint(self, radius: np.ndarray, size: float, value: Any, edge: Any = 0.8) -> None:
        """Blend ``value`` in where ``radius`` is below 1, over an edge of ``edge`` mm on a body
        ``size`` mm wide.
        """
        weight = 0.5 + 0.5 * np.tanh(np.clip((1 - radius) * size / edge, -8, 8))
        self.signal += weight * (value - self.signal)

    def organ(
        self, centre: _Triple, radii: _Triple, value: Any, wall: float = 0.0, dark: float = 0.1
    ) -> None:
        """Paint an ellipsoid, with a dark wall of ``wall`` mm around it."""
        radius, size = self.radius(centre, radii), float(np.min([np.min(r) for r in radii]))
        if wall:
            self.paint(radius * size / (size + wall), size + wall, dark)
        self.paint(radius, size, value)


def _surroundings(p: _Pelvis, rectum: float, coil: bool, top: float) -> None:
    """Paint all but the gland; ``rectum`` is its radius and ``top`` the height of the gland's base,
    in mm.
    """
    rng, inf = p.rng, np.inf
    grain, fine = p.smooth(9), p.smooth(4)
    skin, depth = rng.uniform((12, 82), (28, 98))
    p.organ((0, 0, 0), (178, depth, inf), 0.85 + 0.04 * grain)
    p.organ((0, 0, 0), (178 - skin, depth - skin, inf), 0.2 + 0.04 * fine)  # all muscle at first
    for side in (-1, 1):
        p.organ(
            (side * 34, -45 - 0.3 * p.z, 0), (20, 4, inf), 0.6
        )  # fat between the anterior muscles
        p.organ((side * 45, 62, 0), (42, 3.5, inf), 0.65)  # fat over the gluteus
        p.organ((side * 58, 20, 0), (9, 20, inf), 0.48 + 0.06 * grain, 2.5)  # ischium
        p.organ((side * 84, -12, 12), (23, 23, 26), 0.55 + 0.05 * grain, 2.5)  # femoral head
        p.organ((side * 15, -48, -14), (12, 8, 18), 0.45 + 0.05 * grain, 2.0)  # pubis
    p.organ(
        (0, 14, 0), (40 + 0.25 * p.z, 46, inf), 0.66 + 0.06 * grain + 0.08 * fine
    )  # pelvic and ischiorectal fat
    p.organ((0, 64, 0), (9, 7, inf), 0.4, 2.0)  # coccyx
    sling = np.abs(p.radius((0, 12, 0), (31 + 0.3 * p.z, 36, inf)) - 1) / 0.045
    p.paint(sling, 1.5, np.where(p.z + 8 * p.smooth(20) < 10, 0.24, p.signal))  # levator ani
    p.paint(
        p.radius((0, -6, 2), (33, 24, 26)), 24, 0.55 + 0.22 * fine, 3.0
    )  # venous plexus, nerves and vessels
    shift, width, depth = rng.normal(0, 5), rng.uniform(26, 36), rng.uniform(18, 26)
    p.organ((shift, -14, top + 19), (width, depth, 21), 1.05, 3.0, 0.25)  # bladder
    for side in (-1, 1):
        p.organ(
            (side * 15, 10 + 0.2 * np.abs(p.x), top + 3), (16, 5.5, 8), 0.62 + 0.25 * fine
        )  # seminal vesicles
    content = 0.03 if coil or rng.random() < 0.5 else rng.uniform(0.25, 0.9) + 0.15 * grain
    shift, flat = (0, 1) if coil else (rng.normal(0, 4), 0.85)
    p.organ((shift, 20 + rectum, 0), (rectum, flat * rectum, inf), content, 3.0, 0.33)


def _gland(p: _Pelvis, site: Site) -> tuple[np.ndarray, tuple[float, float, float]]:
    """Draw the gland's size and shape: its radius field (below 1 inside) and its semi-axes in mm."""
    volume = np.clip(p.rng.lognormal(np.log(40.0), 0.4), 20, 90) * site.volume
    wide, flat = (1.3, 0.72) if site.coil else (1.22, 0.86)  # a coil presses the gland flat
    unit = (volume * 1000 / (4 / 3 * np.pi * wide * flat)) ** (1 / 3)
    axes = (unit * wide, unit * flat, unit)
    taper = 1 + 0.15 * np.clip(p.z / unit, -1, 1)  # a small apex and a wide base
    front = p.y - 0.006 * p.x**2  # horns beside the rectum
    flatten = np.where(front > 0, 0.86, 1.05) * axes[1] * taper
    radius = np.sqrt((p.x / (axes[0] * taper)) ** 2 + (front / flatten) ** 2 + (p.z / axes[2]) ** 2)
    return radius * (1 + 0.03 * p.smooth(12)), axes


def make_case(
    site: Site, number: int, seed: int = 0, size: tuple[int, int, int] = (96, 96, 16)
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
    p = _Pelvis(site, rng, size)
    radius, (wide, flat, height) = _gland(p, site)
    coil = site.coil > 0
    rectum = rng.uniform(18, 22) if coil else rng.uniform(8, 17)
    _surroundings(p, rectum, coil, height)
    fine, grain = p.smooth(3.5), p.smooth(8)
    seen = radius * (1 + 0.05 * grain)  # the visible edge is not the true one everywhere
    edge = 0.8 + 3.5 * np.clip(p.smooth(16), 0, 1.5)
    outer = (
        0.54 + 0.2 * site.zones * (1 - 0.8 * np.clip(p.smooth(10) - 0.8, 0, 1)) + 0.04 * fine
    )  # with dark lesions
    inner = 0.53 - 0.15 * site.zones + 0.12 * grain + 0.05 * fine  # nodules
    p.paint(seen / 1.06, flat, np.where(grain > -0.2, 0.28, p.signal), edge)  # capsule
    p.paint(seen, flat, outer, edge)
    centre = p.radius((0, -0.22 * flat, 0.1 * height), (0.72 * wide, 0.68 * flat, 0.9 * height))
    p.paint(centre * (1 + 0.06 * fine), flat, inner, 1.5)
    p.paint(
        p.radius((0, -1.0 * flat, 0), (0.5 * wide, 0.3 * flat, height)), 6, 0.24, 2.0
    )  # fibromuscular stroma
    sigma = (site.blur / p.spacing[0], site.blur / p.spacing[1], 0.35)
    signal = gaussian_filter(np.clip(p.signal, 0.01, None), sigma) ** site.gamma
    shading = np.exp(site.bias * p.smooth(70))
    if coil:
        shading *= 0.5 * (
            1 + site.coil / (1 + p.radius((0, 20 + rectum, 0), (24, 24, 60)) ** 2) ** 2
        )
    real, imaginary = site.noise * rng.standard_normal((2, *size))
    image = (
        np.clip(np.hypot(signal * shading + real, imaginary) * site.scale, 0, 32767)
        .round()
        .astype(np.int16)
    )
    affine = np.diag([-p.spacing[0], -p.spacing[1], p.spacing[2], 1.0])
    affine[:3, 3] = -affine[:3, :3] @ ((np.array(size) - 1) / 2)
    return image, (radius < 1).astype(np.uint8), affine


def _is_complete(path: Path) -> bool:
    try:
        nib.Nifti1Image.from_bytes(gzip.decompress(path.read_bytes()))
    except (OSError, EOFError, ValueError, zlib.error, nib.spatialimages.HeaderDataError):
        return False
    return True


def _write_case(
    folder: Path, site: Site, number: int, seed: int, size: tuple[int, int, int]
) -> None:
    names = (f"Case{number:02d}.nii.gz", f"Case{number:02d}_segmentation.nii.gz")
    if all(_is_complete(folder / name) for name in names):
        return
    image, mask, affine = make_case(site, number, seed, size)
    for name, array in zip(names, (image, mask)):
        nifti = nib.Nifti1Image(array, affine)
        nifti.header.set_xyzt_units("mm")
        write_atomically(folder / name, gzip.compress(nifti.to_bytes(), compresslevel=4, mtime=0))


def write_sites(
    root: str | os.PathLike[str],
    sites: Sequence[Site] | None = None,
    seed: int = 0,
    size: tuple[int, int, int] = (96, 96, 16),
    cases: int | None = None,
    workers: int = 1,
) -> list[str]:
    """Write synthetic hospitals as ``SITE/CaseNN.nii.gz`` and ``SITE/CaseNN_segmentation.nii.gz``,
    and ``sites.json``.

    The same arguments give the same bytes; a case depends on seed, site and number only. Cases that
    are there already and whole are left alone, so an interrupted call can be repeated.

    Args:
        root: folder to write to; made if missing.
        sites: hospitals, :data:`SITES` by default.
        seed: decides all images.
        size: voxels of every volume; field of view and gland stay the same in mm.
        cases: number of cases of every site instead of each site's own.
        workers: threads.

    Returns:
        The sites' names, sorted.

    Raises:
        DataError: the folder holds synthetic sites of another seed, size or shift.

    >>> import tempfile
    >>> write_sites(tempfile.mkdtemp(), sites=SITES[:2], size=(24, 24, 6), cases=1)
    ['alder', 'birch']
    """
    return write_generated(
        root, SITES if sites is None else sites, seed, size, cases, workers,
        lambda folder, site, number: _write_case(folder, site, number, seed, size),
    )  # fmt: skip
