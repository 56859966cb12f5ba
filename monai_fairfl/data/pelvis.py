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
from pathlib import Path
from typing import Any, ClassVar

import nibabel as nib
import numpy as np
from scipy.ndimage import gaussian_filter

from monai_fairfl.data.image_files import WORKERS
from monai_fairfl.data.layouts import StrPath
from monai_fairfl.errors import DataError
from monai_fairfl.utils.files import write_atomically

# Voxels from right to left, front to back and feet to head.
Size = tuple[int, int, int]
# Numbers, or fields that vary over the volume.
Triple = tuple[Any, Any, Any]


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
    Site("maple", 18, 1500, bias=0.12, fov=210),
    # An endorectal coil: a bright flare behind the gland, and a small field of view.
    Site("willow", 12, 11000, gamma=0.9, zones=0.8, noise=0.05, coil=12, fov=120),
)
"""Four hospitals of ``make demo``: three large ones look alike, a small one does not.

They were built to show one effect: plain averaging leaves the small hospital behind, for a reason
that one sees in its images. ``docs/demo.md`` explains how they were chosen and what was measured.
"""


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
    pelvis = Pelvis(site, rng, size)
    radius, axes = draw_gland(pelvis, site)
    rectum = rng.uniform(18, 22) if site.coil else rng.uniform(8, 17)
    paint_surroundings(pelvis, rectum, site.coil > 0, top=axes[2])
    paint_gland(pelvis, radius, axes, site.zones)

    # The signal: tissue, blurred in plane by the point spread and a little across slices.
    right, front, head = pelvis.spacing
    sigma = (site.blur / right, site.blur / front, 0.35)
    signal = gaussian_filter(np.clip(pelvis.signal, 0.01, None), sigma) ** site.gamma
    # The receive field: smooth shading, and the flare of a coil.
    shading = np.exp(site.bias * pelvis.smooth(70))
    if site.coil:
        distance = pelvis.radius((0, 20 + rectum, 0), (24, 24, 60))
        shading *= 0.5 * (1 + site.coil / (1 + distance**2) ** 2)
    # The magnitude of the noisy signal.
    real, imaginary = site.noise * rng.standard_normal((2, *size))
    magnitude = np.hypot(signal * shading + real, imaginary)
    image = np.clip(magnitude * site.scale, 0, 32767).round().astype(np.int16)

    # The middle of the volume is at 0 mm.
    affine = np.diag([-right, -front, head, 1.0])
    affine[:3, 3] = -affine[:3, :3] @ ((np.array(size) - 1) / 2)
    return image, (radius < 1).astype(np.uint8), affine


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

    def write_case(site: Any, number: int) -> None:
        paths = [Path(root, site.name, name.format(number)) for name in site.files]
        # Files are written whole or not at all.
        if not all(path.exists() for path in paths):
            for path, content in zip(paths, site.written(number, seed, size)):
                write_atomically(path, content)

    numbered = [(site, number) for site in sites for number in range(site.cases)]
    with ThreadPoolExecutor(WORKERS) as pool:
        list(pool.map(write_case, *zip(*numbered)))
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


class Pelvis:
    """Coordinates of each voxel in mm, and the signal painted so far (fat is about 0.8).

    Args:
        site: the hospital, whose field of view and slice distance are used.
        rng: draws everything.
        size: voxels from right to left, front to back and feet to head.

    Attributes:
        x: position to the left, with the gland at 0.
        y: position to the back.
        z: position to the head.
    """

    def __init__(self, site: Site, rng: np.random.Generator, size: Size) -> None:
        self.rng = rng
        self.extent = (site.fov, site.fov, 16 * site.thickness)
        self.spacing = [extent / n for extent, n in zip(self.extent, size)]
        self.axes = [(np.arange(n) - (n - 1) / 2) * step for n, step in zip(size, self.spacing)]
        offset = rng.normal(0, (4, 5, 2.5))
        self.x, self.y, self.z = (
            position + shift + 1.8 * self.smooth(25) + 3.5 * self.smooth(75)
            for position, shift in zip(np.meshgrid(*self.axes, indexing="ij"), offset)
        )
        self.signal = np.full(size, 0.02)

    def smooth(self, scale: float) -> np.ndarray:
        """Random field of unit variance and correlation ``scale`` mm.

        It is noise on knots, interpolated, so that it is the same at every resolution.
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

    def radius(self, centre: Triple, radii: Triple) -> np.ndarray:
        """Elliptic radius: below 1 inside; an infinite radius makes a tube."""
        axes = zip((self.x, self.y, self.z), centre, radii)
        return np.sqrt(sum(((axis - middle) / half) ** 2 for axis, middle, half in axes))

    def paint(self, radius: np.ndarray, size: float, value: Any, edge: Any = 0.8) -> None:
        """Blend ``value`` in where ``radius`` is below 1.

        Args:
            radius: elliptic radius.
            size: width of the body in mm.
            value: signal of the body.
            edge: width of its edge in mm.
        """
        weight = 0.5 + 0.5 * np.tanh(np.clip((1 - radius) * size / edge, -8, 8))
        self.signal += weight * (value - self.signal)

    def organ(
        self, centre: Triple, radii: Triple, value: Any, wall: float = 0.0, dark: float = 0.1
    ) -> None:
        """Paint an ellipsoid, with a dark wall of ``wall`` mm around it."""
        radius = self.radius(centre, radii)
        size = float(min(np.min(half) for half in radii))
        if wall:
            self.paint(radius * size / (size + wall), size + wall, dark)
        self.paint(radius, size, value)


def paint_surroundings(pelvis: Pelvis, rectum: float, coil: bool, top: float) -> None:
    """Paint all but the gland.

    Args:
        pelvis: to paint.
        rectum: its radius in mm.
        coil: whether an endorectal coil fills it.
        top: height of the gland's base in mm.
    """
    rng, organ, inf = pelvis.rng, pelvis.organ, np.inf
    grain, fine = pelvis.smooth(9), pelvis.smooth(4)

    # Skin and fat; inside them everything is muscle at first.
    skin, depth = rng.uniform((12, 82), (28, 98))
    organ((0, 0, 0), (178, depth, inf), 0.85 + 0.04 * grain)
    organ((0, 0, 0), (178 - skin, depth - skin, inf), 0.2 + 0.04 * fine)

    for side in (-1, 1):
        # Fat between the anterior muscles, and over the gluteus.
        organ((side * 34, -45 - 0.3 * pelvis.z, 0), (20, 4, inf), 0.6)
        organ((side * 45, 62, 0), (42, 3.5, inf), 0.65)
        # Ischium, femoral head and pubis.
        organ((side * 58, 20, 0), (9, 20, inf), 0.48 + 0.06 * grain, 2.5)
        organ((side * 84, -12, 12), (23, 23, 26), 0.55 + 0.05 * grain, 2.5)
        organ((side * 15, -48, -14), (12, 8, 18), 0.45 + 0.05 * grain, 2.0)

    # Pelvic and ischiorectal fat.
    fat = 0.66 + 0.06 * grain + 0.08 * fine
    organ((0, 14, 0), (40 + 0.25 * pelvis.z, 46, inf), fat)
    # Coccyx.
    organ((0, 64, 0), (9, 7, inf), 0.4, 2.0)
    # Levator ani, a sling around the rectum.
    sling = np.abs(pelvis.radius((0, 12, 0), (31 + 0.3 * pelvis.z, 36, inf)) - 1) / 0.045
    is_below = pelvis.z + 8 * pelvis.smooth(20) < 10
    pelvis.paint(sling, 1.5, np.where(is_below, 0.24, pelvis.signal))
    # Venous plexus, nerves and vessels.
    pelvis.paint(pelvis.radius((0, -6, 2), (33, 24, 26)), 24, 0.55 + 0.22 * fine, 3.0)
    # Bladder.
    centre = (rng.normal(0, 5), -14, top + 19)
    organ(centre, (rng.uniform(26, 36), rng.uniform(18, 26), 21), 1.05, 3.0, 0.25)
    # Seminal vesicles.
    for side in (-1, 1):
        centre = (side * 15, 10 + 0.2 * np.abs(pelvis.x), top + 3)
        organ(centre, (16, 5.5, 8), 0.62 + 0.25 * fine)
    # The rectum, with a coil, air or stool.
    content: Any = 0.03
    if not coil and rng.random() >= 0.5:
        content = rng.uniform(0.25, 0.9) + 0.15 * grain
    shift, flat = (0.0, 1.0) if coil else (rng.normal(0, 4), 0.85)
    organ((shift, 20 + rectum, 0), (rectum, flat * rectum, inf), content, 3.0, 0.33)


def draw_gland(pelvis: Pelvis, site: Site) -> tuple[np.ndarray, tuple[float, float, float]]:
    """Draw the gland's size and shape.

    Returns:
        Its radius field (below 1 inside) and its semi-axes in mm.
    """
    # In millilitres, a log-normal around 40.
    volume = np.clip(pelvis.rng.lognormal(np.log(40.0), 0.4), 20, 90) * site.volume

    # The semi-axes of an ellipsoid of that volume; width and depth are multiples of the height.
    # A coil presses the gland flat.
    wide, flat = (1.3, 0.72) if site.coil else (1.22, 0.86)
    unit = (volume * 1000 / (4 / 3 * np.pi * wide * flat)) ** (1 / 3)
    axes = (unit * wide, unit * flat, unit)

    # A small apex and a wide base: width and depth grow towards the head.
    taper = 1 + 0.15 * np.clip(pelvis.z / unit, -1, 1)

    # Horns beside the rectum: the gland bends to the back at its sides. Its back half is flatter.
    bent_y = pelvis.y - 0.006 * pelvis.x**2
    depth = np.where(bent_y > 0, 0.86, 1.05) * axes[1] * taper

    # The elliptic radius, with a slightly uneven surface.
    wide_x = pelvis.x / (axes[0] * taper)
    radius = np.sqrt(wide_x**2 + (bent_y / depth) ** 2 + (pelvis.z / axes[2]) ** 2)
    return radius * (1 + 0.03 * pelvis.smooth(12)), axes


def paint_gland(
    pelvis: Pelvis, radius: np.ndarray, axes: tuple[float, float, float], zones: float
) -> None:
    """Paint the gland with its zones and its capsule, which is seen in places only.

    Args:
        pelvis: to paint.
        radius: of the gland, below 1 inside.
        axes: its semi-axes in mm.
        zones: peripheral minus central signal.
    """
    wide, flat, height = axes
    fine, grain = pelvis.smooth(3.5), pelvis.smooth(8)
    # The visible edge is not the true one everywhere.
    seen = radius * (1 + 0.05 * grain)
    edge = 0.8 + 3.5 * np.clip(pelvis.smooth(16), 0, 1.5)
    # The peripheral zone has dark lesions, the central one nodules.
    lesions = np.clip(pelvis.smooth(10) - 0.8, 0, 1)
    peripheral = 0.54 + 0.2 * zones * (1 - 0.8 * lesions) + 0.04 * fine
    central = 0.53 - 0.15 * zones + 0.12 * grain + 0.05 * fine
    # Capsule.
    pelvis.paint(seen / 1.06, flat, np.where(grain > -0.2, 0.28, pelvis.signal), edge)
    pelvis.paint(seen, flat, peripheral, edge)
    radii = (0.72 * wide, 0.68 * flat, 0.9 * height)
    core = pelvis.radius((0, -0.22 * flat, 0.1 * height), radii) * (1 + 0.06 * fine)
    pelvis.paint(core, flat, central, 1.5)
    # Fibromuscular stroma.
    stroma = pelvis.radius((0, -1.0 * flat, 0), (0.5 * wide, 0.3 * flat, height))
    pelvis.paint(stroma, 6, 0.24, 2.0)
