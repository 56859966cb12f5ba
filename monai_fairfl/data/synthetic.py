# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Six synthetic hospitals: T2-like pelvis phantoms with known shifts between sites.

They have the public prostate layout, for demonstrations, tests and benchmarks where no patient's
data may go. Every number that makes one hospital differ from the next is a field of :class:`Site`;
nothing else differs. The numbers of cases follow the slice counts of the prostate federation of
FedCE (381:238:278:242:389:814; Jiang et al., CVPR 2023, table 5).
"""

from __future__ import annotations

import gzip
import os
from collections.abc import Sequence
from dataclasses import dataclass

import nibabel as nib
import numpy as np
from scipy.ndimage import gaussian_filter

from monai_fairfl.data.generated import write_generated
from monai_fairfl.data.pelvis import Pelvis, draw_gland, paint_gland, paint_surroundings


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


SITES: tuple[Site, ...] = (
    Site("alder", 7, "sharp 3 T images", scale=400, fov=190, blur=0.6, thickness=3.4),
    Site(
        "birch",
        5,
        "endorectal coil, small view",
        scale=11000,
        gamma=0.9,
        zones=0.8,
        bias=0.12,
        noise=0.05,
        coil=9.0,
        fov=130,
        blur=0.6,
        thickness=3.0,
    ),
    Site(
        "cedar",
        5,
        "large field of view, high contrast",
        scale=1500,
        gamma=1.3,
        zones=1.1,
        bias=0.12,
        fov=230,
        thickness=3.6,
    ),
    Site(
        "elm",
        5,
        "blurred, noisy, zones inverted",
        scale=120,
        gamma=0.6,
        zones=-0.5,
        bias=0.25,
        noise=0.11,
        fov=240,
        blur=2.2,
        thickness=4.5,
    ),
    Site(
        "hazel",
        7,
        "1.5 T, shaded, large glands",
        scale=4000,
        gamma=0.9,
        zones=0.8,
        bias=0.25,
        noise=0.05,
        blur=1.0,
        thickness=3.8,
        volume=1.25,
    ),
    Site(
        "rowan",
        15,
        "screening centre, small glands",
        scale=900,
        gamma=1.1,
        bias=0.12,
        noise=0.04,
        volume=0.85,
    ),
)


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
    pelvis = Pelvis(site, rng, size)
    radius, gland_axes = draw_gland(pelvis, site)
    has_coil = site.coil > 0
    rectum = rng.uniform(18, 22) if has_coil else rng.uniform(8, 17)
    paint_surroundings(pelvis, rectum, has_coil, top=gland_axes[2])
    paint_gland(pelvis, radius, gland_axes, site.zones)

    # The signal: tissue, blurred in plane by the point spread and a little across slices.
    sigma = (site.blur / pelvis.spacing[0], site.blur / pelvis.spacing[1], 0.35)
    signal = gaussian_filter(np.clip(pelvis.signal, 0.01, None), sigma) ** site.gamma
    # The receive field: smooth shading, and the flare of a coil.
    shading = np.exp(site.bias * pelvis.smooth(70))
    if has_coil:
        distance = pelvis.radius((0, 20 + rectum, 0), (24, 24, 60))
        shading *= 0.5 * (1 + site.coil / (1 + distance**2) ** 2)
    # The magnitude of the noisy signal.
    real, imaginary = site.noise * rng.standard_normal((2, *size))
    magnitude = np.hypot(signal * shading + real, imaginary)
    image = np.clip(magnitude * site.scale, 0, 32767).round().astype(np.int16)
    mask = (radius < 1).astype(np.uint8)

    # The middle of the volume is at 0 mm.
    affine = np.diag([-pelvis.spacing[0], -pelvis.spacing[1], pelvis.spacing[2], 1.0])
    affine[:3, 3] = -affine[:3, :3] @ ((np.array(size) - 1) / 2)
    return image, mask, affine


def write_sites(
    root: str | os.PathLike[str],
    sites: Sequence[Site] | None = None,
    seed: int = 0,
    size: tuple[int, int, int] = (96, 96, 16),
    cases: int | None = None,
    workers: int = 1,
) -> list[str]:
    """Write synthetic hospitals, and ``sites.json``, which describes them.

    Each case is ``SITE/CaseNN.nii.gz`` and ``SITE/CaseNN_segmentation.nii.gz``. The same arguments
    give the same bytes; a case depends on seed, site and number only. Cases that are there already
    and whole stay as they are, so an interrupted call can be repeated.

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

    def make(site: Site, number: int) -> tuple[bytes, bytes]:
        image, mask, affine = make_case(site, number, seed, size)
        return _encoded(image, affine), _encoded(mask, affine)

    return write_generated(
        root, SITES if sites is None else sites, seed, size, cases, workers, _file_names, make
    )


def _file_names(site: Site, number: int) -> tuple[str, str]:
    return f"Case{number:02d}.nii.gz", f"Case{number:02d}_segmentation.nii.gz"


def _encoded(voxels: np.ndarray, affine: np.ndarray) -> bytes:
    """A compressed NIfTI file, the same bytes whenever it is made."""
    nifti = nib.Nifti1Image(voxels, affine)
    nifti.header.set_xyzt_units("mm")
    return gzip.compress(nifti.to_bytes(), compresslevel=4, mtime=0)
