# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""A retina with disc, cup, vessels and macula: the phantom of the synthetic eye clinics.

The order in which random numbers are drawn decides every image, so it must not change.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from scipy.ndimage import gaussian_filter, map_coordinates
from scipy.spatial import cKDTree

if TYPE_CHECKING:
    from monai_fairfl.data.synthetic_fundus import Clinic

# From the disc's centre, temporal and down, in mm.
MACULA = (4.5, 0.4)
# Between the points of a vessel, in mm.
STEP = 0.04
# Width in mm from which a vessel has branches.
BRANCHING_WIDTH = 0.035

# Width of a trunk in mm, and the share of red, green and blue light that it takes.
VEINS = (0.15, (0.3, 0.62, 0.5))
ARTERIES = (0.11, (0.12, 0.48, 0.4))


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
        colour: views x height x width x RGB.
    """

    def __init__(self, clinic: Clinic, rng: np.random.Generator, size: int) -> None:
        self.rng = rng
        height = rng.uniform(1.65, 1.9)
        narrowing = rng.uniform(0.91, 1.0)
        self.disc = 0.5 * height * np.array([narrowing, 1.0])
        # The side of the picture that is temporal: left in a right eye.
        side = rng.choice([-1, 1])
        aim = np.multiply(clinic.aim, MACULA)
        offset = aim + rng.normal(0, 0.05 * clinic.fov / clinic.frame, 2)

        # Positions on the sensor, the same in both views of a stereo pair.
        views = np.array([-1.0, 1.0] if clinic.stereo else [0.0])[:, None, None]
        pixels = round(size * clinic.resolution)
        axis = ((np.arange(pixels) + 0.5) / pixels - 0.5) * clinic.fov / clinic.frame
        self.pixel = axis[1] - axis[0]
        down = axis[None, :, None]
        right = axis + 0 * views
        self.sensor = np.stack(np.broadcast_arrays(down, right))

        # Positions on the retina. The cup lies deeper than the rest, so the views see it shifted.
        y, x = self.sensor
        self.x = side * (x + 0.03 * clinic.fov * views) + offset[0]
        self.y = y + offset[1]
        depth = np.exp(-((self.x / self.disc[0]) ** 2) - (self.y / self.disc[1]) ** 2)
        self.x = self.x + 0.1 * views * depth
        self.colour = np.ones((*self.x.shape, 1)) * (0.64, 0.27, 0.09)

    def smooth(self, scale: float) -> np.ndarray:
        """Random field of unit variance and correlation ``scale`` mm on the retina.

        It is the same at every resolution and in every view.
        """
        return self.smooth_at(scale, np.stack([self.y, self.x]))

    def smooth_at(self, scale: float, positions: np.ndarray) -> np.ndarray:
        """The field of :meth:`smooth` at positions in mm, downwards and to the right."""
        pitch = scale / 3
        noise = self.rng.standard_normal((256, 256))
        field = gaussian_filter(noise, 3.0, mode="wrap")
        y, x = positions
        return map_coordinates(
            field / field.std(), [y / pitch, x / pitch], order=1, mode="grid-wrap"
        )

    def edge(self, distance: np.ndarray, width: float) -> np.ndarray:
        """1 where ``distance`` (mm) is below 0, softly over ``width`` mm, at least half a pixel."""
        width = max(width, 0.5 * self.pixel)
        return 0.5 - 0.5 * np.tanh(np.clip(distance / width, -8, 8))

    def paint(self, weight: np.ndarray, colour: tuple[float, float, float]) -> None:
        """Blend ``colour`` in."""
        self.colour += weight[..., None] * (np.array(colour) - self.colour)

    def stain(self, weight: np.ndarray, loss: tuple[float, float, float]) -> None:
        """Take the share ``loss`` of each channel away."""
        self.colour *= 1 - weight[..., None] * np.array(loss)

    def distance_to_macula(self) -> np.ndarray:
        """In mm."""
        return np.hypot(self.x - MACULA[0], self.y - MACULA[1])


def paint_background(retina: Retina) -> None:
    """Paint pigment, choroid and macula, and bright deposits in some eyes."""
    rng = retina.rng
    pigment = rng.normal(0, 0.2) + 0.2 * retina.smooth(2.5)
    pigment += 0.06 * retina.smooth(0.5)
    pigment += 0.03 * retina.smooth(0.15)
    retina.colour *= np.exp(pigment[..., None] * (0.6, 1.0, 1.2))

    # The choroid's vessels are ridges: the zero lines of a field.
    ridges = np.exp(-((retina.smooth(0.6) / 0.4) ** 2))
    strength = rng.uniform(0, 0.2)
    retina.stain(strength * ridges, (0.5, 0.8, 1.0))

    distance = retina.distance_to_macula()
    macula = np.exp(-((distance / 1.2) ** 2)) + 0.5 * np.exp(-((distance / 0.35) ** 2))
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
    ratio = rng.uniform(0.27, 0.78)
    wide = rng.uniform(0.85, 1.1)
    angle = rng.uniform(0, 2 * np.pi)
    shift = rng.uniform(0, 0.5) * (0.92 - ratio * max(wide, 1))
    cup_u = (u - shift * np.cos(angle)) / (ratio * wide)
    cup_v = (v - shift * np.sin(angle)) / ratio
    cup = np.hypot(cup_u, cup_v)

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
    outside_macula = np.clip(retina.distance_to_macula() / 0.6 - 0.5, 0, 1)
    hilum = retina.disc * rng.normal((-0.15, 0), 0.08)
    for width, loss in (VEINS, ARTERIES):
        vessels = _vessel_tree(rng, hilum, width)
        gap, nearest = cKDTree(vessels[:, :2]).query(
            pixels, distance_upper_bound=0.2 + retina.pixel
        )
        # Pixels without a vessel near them have the index behind the last point.
        calibre = np.append(vessels[:, 2], 0.0)[nearest]
        weight = retina.edge(np.minimum(gap, 1.0) - calibre / 2, 0.02)
        weight = weight * np.clip(calibre / 0.1, 0, 1)
        unevenness = 1 + 0.15 * retina.smooth(1.0)
        retina.stain(weight * outside_macula * unevenness, loss)


def _vessel_tree(rng: np.random.Generator, hilum: np.ndarray, width: float) -> np.ndarray:
    """All veins, or all arteries: rows of x, y and width in mm.

    Above and below there is an arcade around the macula, its nasal counterpart, and a fine twig.
    """
    rows = []
    for up in (-1, 1):
        start = hilum + rng.normal(0, 0.06, 2)
        arcade_heading = np.deg2rad(rng.normal(95, 8))
        arcade_bend = -np.deg2rad(rng.normal(105, 8))
        nasal_heading = np.deg2rad(rng.normal(110, 10))
        nasal_bend = np.deg2rad(rng.normal(35, 12))
        arcade_width = width * rng.uniform(0.8, 1.1)
        rows.append(
            _grow(rng, start, up * arcade_heading, up * arcade_bend, arcade_width, length=9.0)
        )
        nasal_width = 0.75 * width * rng.uniform(0.8, 1.1)
        rows.append(_grow(rng, start, up * nasal_heading, up * nasal_bend, nasal_width, length=9.0))
        twig_heading = up * rng.uniform(0.2, 0.7)
        rows.append(_grow(rng, start, twig_heading, bend=0.0, width=0.04, length=3.0))
    return np.concatenate(rows)


def _grow(
    rng: np.random.Generator,
    start: np.ndarray,
    heading: float,
    bend: float,
    width: float,
    length: float,
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
    wave = rng.uniform(1.2, 2.5)
    phase = rng.uniform(0, 2 * np.pi)
    turning = bend * (1 - np.exp(-way / 2.4))
    headings = heading + turning + 0.25 * np.sin(2 * np.pi * way / wave + phase)
    steps = np.stack([np.cos(headings), np.sin(headings)], axis=1)
    path = start + STEP * np.cumsum(steps, axis=0)
    widths = width * (1 - 0.5 * way / length)
    rows = [np.column_stack([path, widths])]
    num_branches = 0
    if width > BRANCHING_WIDTH:
        num_branches = rng.poisson(0.9 * length)
    for at in rng.integers(len(way) // 8, len(way), num_branches):
        turn = rng.choice([-1, 1]) * rng.uniform(0.5, 1.0)
        share = rng.uniform(0.45, 0.75)
        remaining = length - way[at]
        branch = _grow(
            rng,
            path[at],
            headings[at] + turn,
            bend=-turn / 2,
            width=share * widths[at],
            length=share * remaining,
        )
        rows.append(branch)
    return np.concatenate(rows)
