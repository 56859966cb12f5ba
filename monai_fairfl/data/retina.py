# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Six synthetic eye clinics: photographs of disc and cup with known shifts between cameras.

They are for demonstrations, tests and benchmarks where no patient's data may go. Every number that
makes one clinic differ from the next is a field of :class:`Clinic`; nothing else differs. The order
in which random numbers are drawn decides every image, so it must not change.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image
from scipy.ndimage import gaussian_filter
from scipy.special import expit

from monai_fairfl.data.layouts import StrPath
from monai_fairfl.data.pelvis import random_field, write_sites
from monai_fairfl.utils.files import write_atomically

# From the disc's centre, temporal and down, in mm.
MACULA = (4.5, 0.4)


@dataclass(frozen=True)
class Clinic:
    """One synthetic eye clinic: how many cases it has, and how its photographs differ.

    Args:
        name: folder name.
        cases: number of photographs.
        fov: diameter of the round field of view in mm on the retina; 1 mm is about 3.5 degrees.
        aim: where the camera looks: 0 at the disc, 1 at the macula.
        frame: diameter of the field of view relative to the picture's side; from 1.42 on no black
            corner is left.
        gain: of red, green and blue: exposure and colour cast.
        gamma: exponent on the signal; above 1 is darker and of more contrast.
        vignette: loss of light at the rim of the field of view.
        uneven: standard deviation of the log of the illumination (smooth patches).
        blur: standard deviation of the point spread in mm.
        noise: standard deviation of the noise in each channel relative to white.
        resolution: pixels along the picture's side, relative to what the caller asks for.
        stereo: two views of the same eye side by side, in a picture twice as wide.
        cup: whether the cup is labelled, or the disc only.
        suffix: file format, ``.png``, ``.jpg``, ``.tif`` or ``.bmp``.

    >>> Clinic("yew", cases=4, fov=12.0).suffix
    '.png'
    """

    name: str
    cases: int
    fov: float = 9.0
    aim: float = 0.2
    frame: float = 0.96
    gain: tuple[float, float, float] = (1.0, 1.0, 1.0)
    gamma: float = 1.0
    vignette: float = 0.15
    uneven: float = 0.1
    blur: float = 0.02
    noise: float = 0.015
    resolution: float = 1.0
    stereo: bool = False
    cup: bool = True
    suffix: str = ".png"

    @property
    def files(self) -> tuple[str, str]:
        """The names of a case's files, with a place for its number."""
        return f"images/Case{{:02d}}{self.suffix}", "masks/Case{:02d}.png"

    def written(self, number: int, seed: int, size: tuple[int, int]) -> Iterator[bytes]:
        """The files of a case, see :func:`make_photograph`."""
        pictures = make_photograph(self, number, seed, size[0])
        for pixels, suffix in zip(pictures, (self.suffix, ".png")):
            file = io.BytesIO()
            Image.fromarray(pixels).save(file, Image.registered_extensions()[suffix])
            yield file.getvalue()


# Name, cases, fov, aim, frame, gain, gamma.
CLINICS: tuple[Clinic, ...] = (
    # Close to the disc, brownish.
    Clinic("acacia", 7, 7, 0, 1.1, (0.9, 0.95, 0.7), 1.1),
    # Bright, yellow, shaded.
    Clinic("beech", 9, 8.5, 0.1, 1.25, (1.15, 1.4, 1.0), 0.85, uneven=0.15, suffix=".jpg"),
    # Dark and small, discs alone.
    Clinic("cypress", 6, 10, 0.4, gamma=1.5, resolution=0.75, cup=False, suffix=".bmp"),
    # A wide view, red.
    Clinic("dogwood", 15, 11.5, 0.5, 0.96, (1.1, 0.8, 1.3), vignette=0.1, suffix=".tif"),
    # Stereo pairs, pale and noisy.
    Clinic("ebony", 8, 5.5, 0, 1.45, (1, 1.15, 1.6), 0.75, blur=0.05, noise=0.04, stereo=True),
    # A wide view, sharp and large.
    Clinic("fir", 20, 11, 0.5, blur=0.01, resolution=1.25, suffix=".jpg"),
)
"""The six sources of the fundus federation of FedCE (Jiang et al., CVPR 2023).

Their numbers of cases are the square roots of the 50, 98, 47, 230, 80 and 400 photographs there.
"""


def make_photograph(
    clinic: Clinic, number: int, seed: int = 0, size: int = 256
) -> tuple[np.ndarray, np.ndarray]:
    """Make one photograph: a retina with disc, cup, vessels and macula in the clinic's camera.

    The picture is blur(min(gain * light * tissue, 1) ** gamma) plus Gaussian noise, and black
    outside the field of view. The disc is 1.5 to 1.9 mm wide and the vertical cup-to-disc ratio
    0.25 to 0.8. What makes it hard: vessels hide the rim, the cup is a matter of pallor, and
    atrophy beside a disc is as bright as the disc.

    Args:
        clinic: the clinic.
        number: number of the case, from 0.
        seed: with the clinic's name and the number it decides everything.
        size: pixels along the side at resolution 1.

    Returns:
        image (uint8, height x width x RGB) and mask (uint8, height x width): 0 background, 128 disc
        outside the cup, 255 cup; where the clinic labels no cup, 255 is the disc.

    >>> image, mask = make_photograph(CLINICS[4], 0, size=64)
    >>> image.shape, image.dtype.name, sorted(set(mask.ravel().tolist()))
    ((64, 128, 3), 'uint8', [0, 128, 255])
    """
    rng = np.random.default_rng([seed, *clinic.name.encode(), number])
    # Positions on the sensor in mm, downwards and to the right; the views of a pair are neighbours.
    side, pixels = clinic.fov / clinic.frame, round(size * clinic.resolution)
    down = ((np.arange(pixels) + 0.5) / pixels - 0.5) * side
    views = np.repeat([-1, 1] if clinic.stereo else [0], pixels)
    right = np.resize(down, len(views))

    # Positions on the retina, temporal of the disc and downwards; temporal is left in a right eye.
    aim = np.multiply(clinic.aim, MACULA) + rng.normal(0, 0.05 * side, 2)
    across = aim[0] + rng.choice([-1, 1]) * (right + 0.03 * clinic.fov * views)
    y, x, _ = np.ix_(down + aim[1], across, [0])

    def smooth(scale: float) -> np.ndarray:
        return random_field(rng, [y, x], scale)[..., None]

    # Pigment, and the macula, which is darker.
    macula = np.hypot(x - MACULA[0], y - MACULA[1])
    pigment = rng.normal(-0.1, 0.2) + 0.15 * smooth(2) + 0.06 * smooth(0.4)
    pigment -= 0.6 * np.exp(-(macula**2))
    colour = (0.64, 0.27, 0.09) * np.exp(pigment * (0.6, 1.0, 1.2))

    # Disc and cup are nested: the cup's farthest point is at 0.92 of the disc at most.
    half = 0.5 * rng.uniform(1.65, 1.9) * np.array([rng.uniform(0.91, 1), 1])
    u, v = x / half[0], y / half[1]
    ratio, wide = rng.uniform((0.27, 0.85), (0.78, 1.1))
    shift = rng.uniform(-0.5, 0.5) * (0.92 - ratio * max(wide, 1))
    disc, cup = np.hypot(u, v), np.hypot((u - shift) / wide, v) / ratio

    # A crescent of atrophy, wider on the temporal side; the disc; the cup, which is paler.
    crescent = np.hypot(u - rng.uniform(0, 0.3), v) / rng.uniform(1.05, 1.25)
    for radius, amount, paint in (
        (crescent, rng.uniform(-0.4, 0.6), (0.84, 0.55, 0.3)),
        (disc, rng.uniform(0.75, 0.95), (0.95, 0.6, 0.26)),
        (cup, rng.uniform(0.35, 0.9), (1.0, 0.88, 0.55)),
    ):
        colour += max(amount, 0) * expit((1 - radius) / 0.05) * np.subtract(paint, colour)

    # Vessels are parabolas through the disc, of a curvature in 1/mm and a width in mm; those around
    # the macula are the wider ones, and none is in it.
    u, v = x + 0.15 + 0.15 * smooth(1), y + 0.15 * smooth(1)
    for curvature, width in ((0.28, 0.15), (-0.2, 0.12), (0.38, 0.1), (-0.13, 0.09)):
        gap = np.abs(u + rng.normal(0, 0.1) - curvature * v**2) / np.hypot(1, 2 * curvature * v)
        vessel = expit((width / 2 - gap) / 0.015) * np.clip(macula - 0.3, 0, 1)
        colour *= 1 - vessel * (0.25, 0.55, 0.45)

    # Light of the camera: exposure, smooth patches, and less of it at the rim of the field of view.
    radius = 2 / clinic.fov * np.hypot(down[:, None, None], right[:, None])
    light = rng.lognormal(0, 0.08) * np.exp(clinic.uneven * smooth(clinic.fov / 4))
    light *= 1 - clinic.vignette * radius**2

    # The signal, blurred, with noise, and black outside the field of view.
    signal = np.clip(light * clinic.gain * colour, 0, 1) ** clinic.gamma
    signal = gaussian_filter(signal, clinic.blur * pixels / side * np.array([1, 1, 0]))
    signal += clinic.noise * rng.standard_normal(signal.shape)
    image = np.clip(255 * signal * (radius < 1), 0, 255).round().astype(np.uint8)
    mask = np.where((cup if clinic.cup else disc) < 1, 255, np.where(disc < 1, 128, 0))
    return image, mask[..., 0].astype(np.uint8)


def write_clinics(
    root: StrPath,
    clinics: Sequence[Clinic] = CLINICS,
    seed: int = 0,
    size: int = 256,
    cases: int | None = None,
) -> list[str]:
    """Write synthetic clinics, and ``sites.json``, which describes them.

    Each case is ``CLINIC/images/CaseNN.*`` and ``CLINIC/masks/CaseNN.png``. The same arguments give
    the same bytes; a case depends on seed, clinic and number only. Cases that are there already and
    whole stay as they are, so an interrupted call can be repeated.

    Args:
        root: folder to write to; made if missing.
        clinics: which.
        seed: decides all photographs.
        size: pixels along a picture's side at resolution 1; field of view and disc stay the same in
            mm.
        cases: number of cases of every clinic instead of each clinic's own.

    Returns:
        The clinics' names, sorted.

    Raises:
        DataError: the folder holds synthetic sites of another seed, size or shift.

    >>> import tempfile
    >>> write_clinics(tempfile.mkdtemp(), clinics=CLINICS[:2], size=48, cases=1)
    ['acacia', 'beech']
    """

    written = write_sites(root, clinics, seed, (size, size), cases)
    for clinic in clinics:
        structures = {"disc": [128, 255], "cup": 255} if clinic.cup else {"disc": 255}
        content = json.dumps({"labels": {"background": 0, **structures}}).encode()
        write_atomically(Path(root, clinic.name, "dataset.json"), content)
    return written
