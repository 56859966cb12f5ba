# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Six synthetic eye clinics: colour photographs of the optic disc and its cup, with known shifts
between cameras.

For demonstrations, tests and benchmarks where no patient's data may go. Every number that makes one
clinic differ from the next is a field of :class:`Clinic`; nothing else differs. The clinics stand
for the six sources of the fundus federation of FedCE (Jiang et al., CVPR 2023); their numbers of
cases are the square roots of the 50, 98, 47, 230, 80 and 400 photographs there.
"""

from __future__ import annotations

import io
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from scipy.ndimage import gaussian_filter, map_coordinates
from scipy.spatial import cKDTree

from monai_fairfl.data.generated import write_generated
from monai_fairfl.utils.files import write_atomically

_MACULA = (4.5, 0.4)  # from the disc's centre, temporal and down, in mm
_STEP = 0.04  # between the points of a vessel, in mm


@dataclass(frozen=True)
class Clinic:
    """One synthetic eye clinic: how many cases it has, and how its photographs differ from
    another's.

    Args:
        name: folder name.
        cases: number of photographs.
        words: the shift in plain words, for ``sites.json``.
        fov: diameter of the round field of view in mm on the retina; 1 mm is about 3.5 degrees.
        aim: where the camera looks: 0 at the disc, 1 at the macula.
        frame: diameter of the field of view relative to the picture's side; from 1.42 on no black
            corner is left.
        red: gain of the red channel; the three gains are exposure and colour cast.
        green: gain of the green channel.
        blue: gain of the blue channel.
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
    words: str = "plain mydriatic camera"
    fov: float = 9.0
    aim: float = 0.2
    frame: float = 0.96
    red: float = 1.0
    green: float = 1.0
    blue: float = 1.0
    gamma: float = 1.0
    vignette: float = 0.15
    uneven: float = 0.1
    blur: float = 0.02
    noise: float = 0.015
    resolution: float = 1.0
    stereo: bool = False
    cup: bool = True
    suffix: str = ".png"


CLINICS: tuple[
    Clinic, ...
] = (  # name, cases, words, fov, aim, frame, red, green, blue, gamma; then by name
    Clinic("acacia", 7, "close to the disc, brownish", 7, 0, 1.1, 0.9, 0.95, 0.7, 1.1),
    Clinic(
        "beech",
        9,
        "bright, yellow, shaded",
        8.5,
        0.1,
        1.25,
        1.15,
        1.4,
        1.0,
        0.85,
        uneven=0.15,
        suffix=".jpg",
    ),
    Clinic(
        "cypress",
        6,
        "dark, small, discs only",
        10,
        0.4,
        gamma=1.5,
        resolution=0.75,
        cup=False,
        suffix=".bmp",
    ),
    Clinic(
        "dogwood", 15, "wide view, red", 11.5, 0.5, 0.96, 1.1, 0.8, 1.3, vignette=0.1, suffix=".tif"
    ),
    Clinic(
        "ebony",
        8,
        "stereo, pale, noisy",
        5.5,
        0,
        1.45,
        1,
        1.15,
        1.6,
        0.75,
        blur=0.05,
        noise=0.04,
        stereo=True,
    ),
    Clinic(
        "fir", 20, "wide view, sharp, large", 11, 0.5, blur=0.01, resolution=1.25, suffix=".jpg"
    ),
)


class _Retina:
    """Coordinates in mm (temporal, down; disc at 0) at each pixel of each view, and the colours
    painted so far.
    """

    def __init__(self, clinic: Clinic, rng: np.random.Generator, size: int) -> None:
        self.rng = rng
        self.disc = (
            0.5 * rng.uniform(1.65, 1.9) * np.array([rng.uniform(0.91, 1.0), 1.0])
        )  # semi-axes
        side = rng.choice([-1, 1])  # of the picture that is temporal: left in a right eye
        offset = np.multiply(clinic.aim, _MACULA) + rng.normal(
            0, 0.05 * clinic.fov / clinic.frame, 2
        )
        views = np.array([-1.0, 1.0] if clinic.stereo else [0.0])[:, None, None]
        pixels = round(size * clinic.resolution)
        axis = ((np.arange(pixels) + 0.5) / pixels - 0.5) * clinic.fov / clinic.frame
        self.pixel = axis[1] - axis[0]
        self.sensor = np.stack(
            np.broadcast_arrays(axis[None, :, None], axis + 0 * views)
        )  # down, right
        y, x = self.sensor
        self.x, self.y = side * (x + 0.03 * clinic.fov * views) + offset[0], y + offset[1]
        depth = np.exp(-((self.x / self.disc[0]) ** 2) - (self.y / self.disc[1]) ** 2)
        self.x = self.x + 0.1 * views * depth  # the cup lies deeper than the rest
        self.colour = np.ones((*self.x.shape, 1)) * (0.64, 0.27, 0.09)

    def smooth(self, scale: float, at: Any = None) -> np.ndarray:
        """Random field of unit variance and correlation ``scale`` mm, the same for every resolution
        and view.
        """
        pitch = scale / 3
        field = gaussian_filter(self.rng.standard_normal((256, 256)), 3.0, mode="wrap")
        y, x = (self.y, self.x) if at is None else at
        return map_coordinates(
            field / field.std(), [y / pitch, x / pitch], order=1, mode="grid-wrap"
        )

    def edge(self, distance: np.ndarray, width: float) -> np.ndarray:
        """1 where ``distance`` (mm) is below 0, softly over ``width`` mm and never more sharply
        than a pixel.
        """
        return 0.5 - 0.5 * np.tanh(np.clip(distance / max(width, 0.5 * self.pixel), -8, 8))

    def paint(self, weight: np.ndarray, colour: tuple[float, float, float]) -> None:
        """Blend ``colour`` in."""
        self.colour += weight[..., None] * (np.array(colour) - self.colour)

    def stain(self, weight: np.ndarray, loss: tuple[float, float, float]) -> None:
        """Take the share ``loss`` of each channel away."""
        self.colour *= 1 - weight[..., None] * np.array(loss)


def _background(p: _Retina) -> None:
    """Paint pigment, choroid, macula and, in some eyes, bright deposits that are as yellow as a
    disc.
    """
    rng = p.rng
    pigment = (
        rng.normal(0, 0.2) + 0.2 * p.smooth(2.5) + 0.06 * p.smooth(0.5) + 0.03 * p.smooth(0.15)
    )
    p.colour *= np.exp(pigment[..., None] * (0.6, 1.0, 1.2))
    choroid = np.exp(-((p.smooth(0.6) / 0.4) ** 2))  # ridges: the zero lines of a field
    p.stain(rng.uniform(0, 0.2) * choroid, (0.5, 0.8, 1.0))
    macula = np.hypot(p.x - _MACULA[0], p.y - _MACULA[1])
    p.stain(np.exp(-((macula / 1.2) ** 2)) + 0.5 * np.exp(-((macula / 0.35) ** 2)), (0.3, 0.4, 0.4))
    if rng.random() < 0.35:
        deposits = p.edge(2.1 - p.smooth(rng.uniform(0.1, 0.2)), 0.3) * p.edge(
            0.5 - p.smooth(1.5), 0.3
        )
        p.paint(0.8 * deposits, (0.92, 0.66, 0.25))


def _disc(p: _Retina) -> tuple[np.ndarray, np.ndarray]:
    """Paint the disc and its cup; their radius fields, which are below 1 inside and nested by
    construction.
    """
    rng, wobble = p.rng, 1 + 0.02 * p.smooth(0.5)
    u, v = p.x / p.disc[0] * wobble, p.y / p.disc[1] * wobble
    disc = np.hypot(u, v)
    ratio, wide, angle = rng.uniform(0.27, 0.78), rng.uniform(0.85, 1.1), rng.uniform(0, 2 * np.pi)
    shift = rng.uniform(0, 0.5) * (
        0.92 - ratio * max(wide, 1)
    )  # keeps the cup's farthest point inside 0.92
    cup = np.hypot(
        (u - shift * np.cos(angle)) / (ratio * wide), (v - shift * np.sin(angle)) / ratio
    )
    size = float(p.disc.mean())
    crescent = np.hypot(u - rng.uniform(0, 0.3), v) / rng.uniform(
        1.05, 1.25
    )  # atrophy, wider on the temporal side
    p.paint(
        np.clip(rng.normal(0.1, 0.25), 0, 0.6) * p.edge((crescent - 1) * size, 0.06),
        (0.84, 0.55, 0.3),
    )
    grain, pallor = 0.05 * p.smooth(0.25), rng.uniform(0.35, 0.9)
    rim = rng.uniform(0.75, 0.95) * (1 - 0.12 * u + grain)
    p.paint(rim * p.edge((disc - 1) * size, rng.uniform(0.04, 0.1)), (0.92, 0.55, 0.24))
    p.paint((pallor + grain) * p.edge((cup - 1) * ratio * size, 0.1), (0.99, 0.84, 0.5))
    return disc, cup


def _grow(
    p: _Retina, start: np.ndarray, heading: float, bend: float, width: float, length: float
) -> np.ndarray:
    """Walk one vessel, then its branches: rows of x, y and width in mm; the heading turns by
    ``bend`` on the way.
    """
    rng, way = p.rng, np.arange(0, length, _STEP)
    wave, phase = rng.uniform(1.2, 2.5), rng.uniform(0, 2 * np.pi)
    headings = (
        heading + bend * (1 - np.exp(-way / 2.4)) + 0.25 * np.sin(2 * np.pi * way / wave + phase)
    )
    path = start + _STEP * np.cumsum(np.stack([np.cos(headings), np.sin(headings)], axis=1), axis=0)
    widths = width * (1 - 0.5 * way / length)
    rows = [np.column_stack([path, widths])]
    for at in rng.integers(
        len(way) // 8, len(way), rng.poisson(0.9 * length) if width > 0.035 else 0
    ):
        turn, share = rng.choice([-1, 1]) * rng.uniform(0.5, 1.0), rng.uniform(0.45, 0.75)
        left = length - way[at]
        rows.append(
            _grow(p, path[at], headings[at] + turn, -turn / 2, share * widths[at], share * left)
        )
    return np.concatenate(rows)


def _vessels(p: _Retina) -> None:
    """Paint veins, then arteries: arcades above and below the macula and their nasal counterparts,
    fine twigs.
    """
    rng, pixels = p.rng, np.stack([p.x, p.y], axis=-1)
    macula = np.hypot(p.x - _MACULA[0], p.y - _MACULA[1])
    hilum = p.disc * rng.normal((-0.15, 0), 0.08)
    for width, loss in ((0.15, (0.3, 0.62, 0.5)), (0.11, (0.12, 0.48, 0.4))):
        rows = []
        for up in (-1, 1):
            start = hilum + rng.normal(0, 0.06, 2)
            arcade = np.deg2rad(rng.normal(95, 8)), -np.deg2rad(rng.normal(105, 8))
            nasal = np.deg2rad(rng.normal(110, 10)), np.deg2rad(rng.normal(35, 12))
            for (heading, bend), share in ((arcade, 1.0), (nasal, 0.75)):
                rows.append(
                    _grow(
                        p,
                        start,
                        up * heading,
                        up * bend,
                        share * width * rng.uniform(0.8, 1.1),
                        9.0,
                    )
                )
            rows.append(_grow(p, start, up * rng.uniform(0.2, 0.7), 0.0, 0.04, 3.0))
        vessels = np.concatenate(rows)
        gap, nearest = cKDTree(vessels[:, :2]).query(pixels, distance_upper_bound=0.2 + p.pixel)
        calibre = np.append(vessels[:, 2], 0.0)[nearest]
        weight = p.edge(np.minimum(gap, 1.0) - calibre / 2, 0.02) * np.clip(calibre / 0.1, 0, 1)
        p.stain(weight * np.clip(macula / 0.6 - 0.5, 0, 1) * (1 + 0.15 * p.smooth(1.0)), loss)


def make_photograph(
    clinic: Clinic, number: int, seed: int = 0, size: int = 256
) -> tuple[np.ndarray, np.ndarray]:
    """Make one photograph: a retina with disc, cup, vessels and macula, seen through the clinic's
    camera.

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
    p = _Retina(clinic, rng, size)
    _background(p)
    disc, cup = _disc(p)
    _vessels(p)
    radius = np.hypot(*p.sensor) / (clinic.fov / 2)
    light = rng.lognormal(0, 0.08) * np.exp(clinic.uneven * p.smooth(clinic.fov / 4, p.sensor))
    light *= 1 - clinic.vignette * np.minimum(radius, 1) ** 2
    gain = light[..., None] * (clinic.red, clinic.green, clinic.blue)
    signal = np.clip(gain * p.colour, 0, 1) ** clinic.gamma
    signal = gaussian_filter(signal, (0, clinic.blur / p.pixel, clinic.blur / p.pixel, 0))
    signal += clinic.noise * rng.standard_normal(signal.shape)
    signal *= p.edge((radius - 1) * clinic.fov / 2, 0.02)[..., None]
    image = np.clip(255 * signal, 0, 255).round().astype(np.uint8)
    mask = np.where((cup if clinic.cup else disc) < 1, 255, np.where(disc < 1, 128, 0)).astype(
        np.uint8
    )
    return np.hstack(list(image)), np.hstack(list(mask))


def _is_complete(path: Path) -> bool:
    try:
        with Image.open(path) as image:
            image.load()
    except (OSError, SyntaxError, ValueError):
        return False
    return True


def _write_case(folder: Path, clinic: Clinic, number: int, seed: int, size: int) -> None:
    paths = (
        folder / f"images/Case{number:02d}{clinic.suffix}",
        folder / f"masks/Case{number:02d}.png",
    )
    if all(_is_complete(path) for path in paths):
        return
    for path, array in zip(paths, make_photograph(clinic, number, seed, size)):
        file = io.BytesIO()
        Image.fromarray(array).save(file, Image.registered_extensions()[path.suffix])
        write_atomically(path, file.getvalue())


def write_clinics(
    root: str | os.PathLike[str],
    clinics: Sequence[Clinic] | None = None,
    seed: int = 0,
    size: int = 256,
    cases: int | None = None,
    workers: int = 1,
) -> list[str]:
    """Write synthetic clinics as ``CLINIC/images/CaseNN.*`` and ``CLINIC/masks/CaseNN.png``, and
    ``sites.json``.

    The same arguments give the same bytes; a case depends on seed, clinic and number only. Cases
    that are there already and whole are left alone, so an interrupted call can be repeated.

    Args:
        root: folder to write to; made if missing.
        clinics: clinics, :data:`CLINICS` by default.
        seed: decides all photographs.
        size: pixels along a picture's side at resolution 1; field of view and disc stay the same in
            mm.
        cases: number of cases of every clinic instead of each clinic's own.
        workers: threads.

    Returns:
        The clinics' names, sorted.

    Raises:
        DataError: the folder holds synthetic sites of another seed, size or shift.

    >>> import tempfile
    >>> write_clinics(tempfile.mkdtemp(), clinics=CLINICS[:2], size=48, cases=1)
    ['acacia', 'beech']
    """
    return write_generated(
        root, CLINICS if clinics is None else clinics, seed, (size, size), cases, workers,
        lambda folder, clinic, number: _write_case(folder, clinic, number, seed, size),
    )  # fmt: skip
