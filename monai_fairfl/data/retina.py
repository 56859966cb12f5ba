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
from scipy.ndimage import gaussian_filter, map_coordinates
from scipy.spatial import cKDTree

from monai_fairfl.data.layouts import StrPath
from monai_fairfl.data.pelvis import write_sites
from monai_fairfl.utils.files import write_atomically

Random = np.random.Generator
# From the disc's centre, temporal and down, in mm.
MACULA = (4.5, 0.4)
# Between the points of a vessel, in mm.
STEP = 0.04
# Width in mm from which a vessel has branches.
BRANCHING_WIDTH = 0.035

# Width of a trunk in mm, and the share of red, green and blue light that it takes.
VEINS = (0.15, (0.3, 0.62, 0.5))
ARTERIES = (0.11, (0.12, 0.48, 0.4))


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
    atrophy and deposits are as bright as a disc.

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
    retina = Retina(clinic, rng, size)
    paint_background(retina)
    disc, cup = paint_disc_and_cup(retina)
    paint_vessels(retina)

    # Light of the camera: exposure, smooth patches, and less of it at the rim of the field of view.
    radius = np.hypot(*retina.sensor) / (clinic.fov / 2)
    exposure = rng.lognormal(0, 0.08)
    light = exposure * np.exp(clinic.uneven * retina.smooth(clinic.fov / 4, retina.sensor))
    light *= 1 - clinic.vignette * np.minimum(radius, 1) ** 2
    gain = light[..., None] * clinic.gain

    # The signal, blurred within each view, with noise, and black outside the field of view.
    sigma = clinic.blur / retina.pixel
    signal = np.clip(gain * retina.colour, 0, 1) ** clinic.gamma
    signal = gaussian_filter(signal, (0, sigma, sigma, 0))
    signal += clinic.noise * rng.standard_normal(signal.shape)
    signal *= retina.edge((radius - 1) * clinic.fov / 2, 0.02)[..., None]
    image = np.clip(255 * signal, 0, 255).round().astype(np.uint8)

    labelled = cup if clinic.cup else disc
    mask = np.where(labelled < 1, 255, np.where(disc < 1, 128, 0)).astype(np.uint8)
    # Two views of a stereo pair lie side by side.
    return np.hstack(list(image)), np.hstack(list(mask))


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


class Retina:
    """Coordinates in mm at each pixel of each view, and the colours painted so far.

    Args:
        clinic: whose camera looks at the retina.
        rng: draws everything.
        size: pixels along the side at resolution 1.

    Attributes:
        x: temporal position, with the disc at 0.
        y: position downwards.
        disc: semi-axes of the disc in mm.
        pixel: side of a pixel in mm.
        sensor: positions on the sensor in mm, downwards and to the right.
        macula: distance to it in mm.
        colour: views x height x width x RGB.
    """

    def __init__(self, clinic: Clinic, rng: Random, size: int) -> None:
        self.rng = rng
        self.disc = 0.5 * rng.uniform(1.65, 1.9) * np.array([rng.uniform(0.91, 1.0), 1.0])
        # The side of the picture that is temporal: left in a right eye.
        side = rng.choice([-1, 1])
        drift = rng.normal(0, 0.05 * clinic.fov / clinic.frame, 2)

        # Positions on the sensor, the same in both views of a stereo pair.
        views = np.array([-1.0, 1.0] if clinic.stereo else [0.0])[:, None, None]
        pixels = round(size * clinic.resolution)
        axis = ((np.arange(pixels) + 0.5) / pixels - 0.5) * clinic.fov / clinic.frame
        self.pixel = axis[1] - axis[0]
        self.sensor = np.stack(np.broadcast_arrays(axis[None, :, None], axis + 0 * views))

        # Positions on the retina. The cup lies deeper than the rest, so the views see it shifted.
        y, x = self.sensor
        right, down = np.multiply(clinic.aim, MACULA) + drift
        self.x = side * (x + 0.03 * clinic.fov * views) + right
        self.y = y + down
        depth = np.exp(-((self.x / self.disc[0]) ** 2) - (self.y / self.disc[1]) ** 2)
        self.x = self.x + 0.1 * views * depth
        self.macula = np.hypot(self.x - MACULA[0], self.y - MACULA[1])
        self.colour = np.ones((*self.x.shape, 1)) * (0.64, 0.27, 0.09)

    def smooth(self, scale: float, positions: np.ndarray | None = None) -> np.ndarray:
        """Random field of unit variance and correlation ``scale`` mm.

        It is the same at every resolution and in every view.

        Args:
            scale: in mm.
            positions: in mm, downwards and to the right; ``None``: those on the retina.
        """
        noise = self.rng.standard_normal((256, 256))
        field = gaussian_filter(noise, 3.0, mode="wrap")
        places = (np.stack([self.y, self.x]) if positions is None else positions) / (scale / 3)
        return map_coordinates(field / field.std(), places, order=1, mode="grid-wrap")

    def edge(self, distance: np.ndarray, width: float) -> np.ndarray:
        """1 where ``distance`` (mm) is below 0, softly over ``width`` mm, at least half a pixel."""
        width = max(width, 0.5 * self.pixel)
        return 0.5 - 0.5 * np.tanh(np.clip(distance / width, -8, 8))

    def paint(self, weight: np.ndarray, colour: tuple[float, float, float]) -> None:
        """Blend ``colour`` in."""
        self.colour += weight[..., None] * (colour - self.colour)

    def stain(self, weight: np.ndarray, loss: tuple[float, float, float]) -> None:
        """Take the share ``loss`` of each channel away."""
        self.colour *= 1 - weight[..., None] * loss


def paint_background(retina: Retina) -> None:
    """Paint pigment, choroid and macula, and bright deposits in some eyes."""
    rng = retina.rng
    pigment = rng.normal(0, 0.2) + 0.2 * retina.smooth(2.5)
    pigment += 0.06 * retina.smooth(0.5)
    pigment += 0.03 * retina.smooth(0.15)
    retina.colour *= np.exp(pigment[..., None] * (0.6, 1.0, 1.2))

    # The choroid's vessels are ridges: the zero lines of a field.
    ridges = np.exp(-((retina.smooth(0.6) / 0.4) ** 2))
    retina.stain(rng.uniform(0, 0.2) * ridges, (0.5, 0.8, 1.0))

    macula = np.exp(-((retina.macula / 1.2) ** 2)) + 0.5 * np.exp(-((retina.macula / 0.35) ** 2))
    retina.stain(macula, (0.3, 0.4, 0.4))

    # Deposits are as yellow as a disc.
    if rng.random() < 0.35:
        spots = retina.edge(2.1 - retina.smooth(rng.uniform(0.1, 0.2)), 0.3)
        regions = retina.edge(0.5 - retina.smooth(1.5), 0.3)
        retina.paint(0.8 * (spots * regions), (0.92, 0.66, 0.25))


def paint_disc_and_cup(retina: Retina) -> tuple[np.ndarray, np.ndarray]:
    """Paint the disc and its cup.

    Returns:
        The radius fields of disc and cup, which are below 1 inside and nested by construction.
    """
    rng = retina.rng
    size = float(retina.disc.mean())

    # Shape of the disc, and of the cup, whose farthest point lies at 0.92 of the disc at most.
    wobble = 1 + 0.02 * retina.smooth(0.5)
    u = retina.x / retina.disc[0] * wobble
    v = retina.y / retina.disc[1] * wobble
    disc = np.hypot(u, v)
    ratio, wide, angle = rng.uniform((0.27, 0.85, 0), (0.78, 1.1, 2 * np.pi))
    shift = rng.uniform(0, 0.5) * (0.92 - ratio * max(wide, 1))
    across = (u - shift * np.cos(angle)) / (ratio * wide)
    cup = np.hypot(across, (v - shift * np.sin(angle)) / ratio)

    # A crescent of atrophy, wider on the temporal side.
    crescent = np.hypot(u - rng.uniform(0, 0.3), v) / rng.uniform(1.05, 1.25)
    atrophy = np.clip(rng.normal(0.1, 0.25), 0, 0.6)
    retina.paint(atrophy * retina.edge((crescent - 1) * size, 0.06), (0.84, 0.55, 0.3))

    # The rim, then the cup, which is a matter of pallor.
    grain = 0.05 * retina.smooth(0.25)
    pallor = rng.uniform(0.35, 0.9)
    rim = rng.uniform(0.75, 0.95) * (1 - 0.12 * u + grain)
    rim_edge = retina.edge((disc - 1) * size, rng.uniform(0.04, 0.1))
    retina.paint(rim * rim_edge, (0.92, 0.55, 0.24))
    cup_edge = retina.edge((cup - 1) * ratio * size, 0.1)
    retina.paint((pallor + grain) * cup_edge, (0.99, 0.84, 0.5))
    return disc, cup


def paint_vessels(retina: Retina) -> None:
    """Paint veins, then arteries; none in the macula."""
    rng = retina.rng
    pixels = np.stack([retina.x, retina.y], axis=-1)
    outside_macula = np.clip(retina.macula / 0.6 - 0.5, 0, 1)
    hilum = retina.disc * rng.normal((-0.15, 0), 0.08)
    for width, loss in (VEINS, ARTERIES):
        # Above and below, an arcade around the macula, its nasal counterpart, and a fine twig.
        rows = []
        for up in (-1, 1):
            start = hilum + rng.normal(0, 0.06, 2)
            arcade, turn, nasal, back = np.deg2rad(rng.normal((95, 105, 110, 35), (8, 8, 10, 12)))
            wide = width * rng.uniform(0.8, 1.1)
            rows.append(_grow(rng, start, up * arcade, up * -turn, wide, 9.0))
            wide = 0.75 * width * rng.uniform(0.8, 1.1)
            rows.append(_grow(rng, start, up * nasal, up * back, wide, 9.0))
            rows.append(_grow(rng, start, up * rng.uniform(0.2, 0.7), 0.0, 0.04, 3.0))
        vessels = np.concatenate(rows)
        tree = cKDTree(vessels[:, :2])
        gap, nearest = tree.query(pixels, distance_upper_bound=0.2 + retina.pixel)
        # Pixels without a vessel near them have the index behind the last point.
        calibre = np.append(vessels[:, 2], 0.0)[nearest]
        weight = retina.edge(np.minimum(gap, 1.0) - calibre / 2, 0.02)
        weight *= np.clip(calibre / 0.1, 0, 1)
        retina.stain(weight * outside_macula * (1 + 0.15 * retina.smooth(1.0)), loss)


def _grow(
    rng: Random, start: np.ndarray, heading: float, bend: float, width: float, length: float
) -> np.ndarray:
    """Walk one vessel, then its branches.

    Args:
        rng: draws the vessel.
        start: x and y in mm.
        heading: direction at the start in radians.
        bend: by which the heading turns on the way, in radians.
        width: at the start, in mm.
        length: in mm.

    Returns:
        Rows of x, y and width in mm.
    """
    way = np.arange(0, length, STEP)
    wave, phase = rng.uniform((1.2, 0), (2.5, 2 * np.pi))
    turning = bend * (1 - np.exp(-way / 2.4))
    headings = heading + turning + 0.25 * np.sin(2 * np.pi * way / wave + phase)
    steps = np.stack([np.cos(headings), np.sin(headings)], axis=1)
    path = start + STEP * np.cumsum(steps, axis=0)
    widths = width * (1 - 0.5 * way / length)
    rows = [np.column_stack([path, widths])]
    num_branches = rng.poisson(0.9 * length) if width > BRANCHING_WIDTH else 0
    for at in rng.integers(len(way) // 8, len(way), num_branches):
        turn = rng.choice([-1, 1]) * rng.uniform(0.5, 1.0)
        share = rng.uniform(0.45, 0.75)
        sizes = (share * widths[at], share * (length - way[at]))
        rows.append(_grow(rng, path[at], headings[at] + turn, -turn / 2, *sizes))
    return np.concatenate(rows)
