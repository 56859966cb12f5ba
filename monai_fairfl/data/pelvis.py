# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""A T2-like pelvis, painted organ by organ: the phantom of the synthetic hospitals.

The order in which random numbers are drawn decides every image, so it must not change.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from monai_fairfl.data.synthetic import Site

# Numbers, or fields that vary over the volume.
Triple = tuple[Any, Any, Any]


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

    def __init__(self, site: Site, rng: np.random.Generator, size: tuple[int, int, int]) -> None:
        self.rng = rng
        self.extent = (site.fov, site.fov, 16 * site.thickness)
        self.spacing = tuple(extent / n for extent, n in zip(self.extent, size))
        self.axes = []
        for n, spacing in zip(size, self.spacing):
            self.axes.append((np.arange(n) - (n - 1) / 2) * spacing)
        offset = rng.normal(0, (4, 5, 2.5))
        grid = np.meshgrid(*self.axes, indexing="ij")
        self.x = self._deformed(grid[0], offset[0])
        self.y = self._deformed(grid[1], offset[1])
        self.z = self._deformed(grid[2], offset[2])
        self.signal = np.full(size, 0.02)

    def _deformed(self, position: np.ndarray, offset: float) -> np.ndarray:
        return position + offset + 1.8 * self.smooth(25) + 3.5 * self.smooth(75)

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
        squares: Any = 0
        for axis, axis_centre, axis_radius in zip((self.x, self.y, self.z), centre, radii):
            squares = squares + ((axis - axis_centre) / axis_radius) ** 2
        return np.sqrt(squares)

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
        size = float(np.min([np.min(axis_radius) for axis_radius in radii]))
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
    rng = pelvis.rng
    inf = np.inf
    grain = pelvis.smooth(9)
    fine = pelvis.smooth(4)

    # Skin and fat; inside them everything is muscle at first.
    skin, depth = rng.uniform((12, 82), (28, 98))
    pelvis.organ((0, 0, 0), (178, depth, inf), 0.85 + 0.04 * grain)
    pelvis.organ((0, 0, 0), (178 - skin, depth - skin, inf), 0.2 + 0.04 * fine)

    for side in (-1, 1):
        # Fat between the anterior muscles, and over the gluteus.
        pelvis.organ((side * 34, -45 - 0.3 * pelvis.z, 0), (20, 4, inf), 0.6)
        pelvis.organ((side * 45, 62, 0), (42, 3.5, inf), 0.65)
        # Ischium, femoral head and pubis.
        pelvis.organ((side * 58, 20, 0), (9, 20, inf), 0.48 + 0.06 * grain, 2.5)
        pelvis.organ((side * 84, -12, 12), (23, 23, 26), 0.55 + 0.05 * grain, 2.5)
        pelvis.organ((side * 15, -48, -14), (12, 8, 18), 0.45 + 0.05 * grain, 2.0)

    # Pelvic and ischiorectal fat.
    fat = 0.66 + 0.06 * grain + 0.08 * fine
    pelvis.organ((0, 14, 0), (40 + 0.25 * pelvis.z, 46, inf), fat)
    # Coccyx.
    pelvis.organ((0, 64, 0), (9, 7, inf), 0.4, 2.0)
    # Levator ani, a sling around the rectum.
    sling = np.abs(pelvis.radius((0, 12, 0), (31 + 0.3 * pelvis.z, 36, inf)) - 1) / 0.045
    is_below = pelvis.z + 8 * pelvis.smooth(20) < 10
    pelvis.paint(sling, 1.5, np.where(is_below, 0.24, pelvis.signal))
    # Venous plexus, nerves and vessels.
    plexus = pelvis.radius((0, -6, 2), (33, 24, 26))
    pelvis.paint(plexus, 24, 0.55 + 0.22 * fine, 3.0)
    # Bladder.
    shift = rng.normal(0, 5)
    width = rng.uniform(26, 36)
    depth = rng.uniform(18, 26)
    pelvis.organ((shift, -14, top + 19), (width, depth, 21), 1.05, 3.0, 0.25)
    # Seminal vesicles.
    for side in (-1, 1):
        centre = (side * 15, 10 + 0.2 * np.abs(pelvis.x), top + 3)
        pelvis.organ(centre, (16, 5.5, 8), 0.62 + 0.25 * fine)
    _paint_rectum(pelvis, rectum, coil, grain)


def _paint_rectum(pelvis: Pelvis, radius: float, coil: bool, grain: np.ndarray) -> None:
    """Paint the rectum, which holds a coil, air or stool."""
    rng = pelvis.rng
    content: Any = 0.03
    if not coil and rng.random() >= 0.5:
        content = rng.uniform(0.25, 0.9) + 0.15 * grain
    shift = 0.0
    flattening = 1.0
    if not coil:
        shift = rng.normal(0, 4)
        flattening = 0.85
    radii = (radius, flattening * radius, np.inf)
    pelvis.organ((shift, 20 + radius, 0), radii, content, 3.0, 0.33)


def draw_gland(pelvis: Pelvis, site: Site) -> tuple[np.ndarray, tuple[float, float, float]]:
    """Draw the gland's size and shape.

    Returns:
        Its radius field (below 1 inside) and its semi-axes in mm.
    """
    # In millilitres, a log-normal around 40.
    volume = np.clip(pelvis.rng.lognormal(np.log(40.0), 0.4), 20, 90) * site.volume

    # The semi-axes of an ellipsoid of that volume; width and depth are multiples of the height.
    wide = 1.22
    flat = 0.86
    if site.coil:
        # A coil presses the gland flat.
        wide = 1.3
        flat = 0.72
    unit = (volume * 1000 / (4 / 3 * np.pi * wide * flat)) ** (1 / 3)
    axes = (unit * wide, unit * flat, unit)

    # A small apex and a wide base: width and depth grow towards the head.
    taper = 1 + 0.15 * np.clip(pelvis.z / unit, -1, 1)

    # Horns beside the rectum: the gland bends to the back at its sides. Its back half is flatter.
    bent_y = pelvis.y - 0.006 * pelvis.x**2
    depth = np.where(bent_y > 0, 0.86, 1.05) * axes[1] * taper

    # The elliptic radius, with a slightly uneven surface.
    x_square = (pelvis.x / (axes[0] * taper)) ** 2
    y_square = (bent_y / depth) ** 2
    z_square = (pelvis.z / axes[2]) ** 2
    radius = np.sqrt(x_square + y_square + z_square)
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
    fine = pelvis.smooth(3.5)
    grain = pelvis.smooth(8)
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
    centre = pelvis.radius(
        (0, -0.22 * flat, 0.1 * height), (0.72 * wide, 0.68 * flat, 0.9 * height)
    )
    pelvis.paint(centre * (1 + 0.06 * fine), flat, central, 1.5)
    # Fibromuscular stroma.
    stroma = pelvis.radius((0, -1.0 * flat, 0), (0.5 * wide, 0.3 * flat, height))
    pelvis.paint(stroma, 6, 0.24, 2.0)
