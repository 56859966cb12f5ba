# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Six synthetic eye clinics: photographs of disc and cup with known shifts between cameras.

They are for demonstrations, tests and benchmarks where no patient's data may go. Every number that
makes one clinic differ from the next is a field of :class:`Clinic`; nothing else differs. The
clinics stand for the six sources of the fundus federation of FedCE (Jiang et al., CVPR 2023); their
numbers of cases are the square roots of the 50, 98, 47, 230, 80 and 400 photographs there.
"""

from __future__ import annotations

import io
import os
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from PIL import Image
from scipy.ndimage import gaussian_filter

from monai_fairfl.data.generated import write_generated
from monai_fairfl.data.retina import Retina, paint_background, paint_disc_and_cup, paint_vessels


@dataclass(frozen=True)
class Clinic:
    """One synthetic eye clinic: how many cases it has, and how its photographs differ.

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


CLINICS: tuple[Clinic, ...] = (
    Clinic(
        "acacia",
        7,
        "close to the disc, brownish",
        fov=7,
        aim=0,
        frame=1.1,
        red=0.9,
        green=0.95,
        blue=0.7,
        gamma=1.1,
    ),
    Clinic(
        "beech",
        9,
        "bright, yellow, shaded",
        fov=8.5,
        aim=0.1,
        frame=1.25,
        red=1.15,
        green=1.4,
        blue=1.0,
        gamma=0.85,
        uneven=0.15,
        suffix=".jpg",
    ),
    Clinic(
        "cypress",
        6,
        "dark, small, discs only",
        fov=10,
        aim=0.4,
        gamma=1.5,
        resolution=0.75,
        cup=False,
        suffix=".bmp",
    ),
    Clinic(
        "dogwood",
        15,
        "wide view, red",
        fov=11.5,
        aim=0.5,
        frame=0.96,
        red=1.1,
        green=0.8,
        blue=1.3,
        vignette=0.1,
        suffix=".tif",
    ),
    Clinic(
        "ebony",
        8,
        "stereo, pale, noisy",
        fov=5.5,
        aim=0,
        frame=1.45,
        red=1,
        green=1.15,
        blue=1.6,
        gamma=0.75,
        blur=0.05,
        noise=0.04,
        stereo=True,
    ),
    Clinic(
        "fir",
        20,
        "wide view, sharp, large",
        fov=11,
        aim=0.5,
        blur=0.01,
        resolution=1.25,
        suffix=".jpg",
    ),
)


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
    patches = retina.smooth_at(clinic.fov / 4, retina.sensor)
    light = exposure * np.exp(clinic.uneven * patches)
    light *= 1 - clinic.vignette * np.minimum(radius, 1) ** 2
    gain = light[..., None] * (clinic.red, clinic.green, clinic.blue)

    # The signal, blurred within each view, with noise, and black outside the field of view.
    signal = np.clip(gain * retina.colour, 0, 1) ** clinic.gamma
    sigma = clinic.blur / retina.pixel
    signal = gaussian_filter(signal, (0, sigma, sigma, 0))
    signal += clinic.noise * rng.standard_normal(signal.shape)
    signal *= retina.edge((radius - 1) * clinic.fov / 2, 0.02)[..., None]
    image = np.clip(255 * signal, 0, 255).round().astype(np.uint8)

    labelled = cup if clinic.cup else disc
    mask = np.zeros(disc.shape, np.uint8)
    mask[disc < 1] = 128
    mask[labelled < 1] = 255
    # Two views of a stereo pair lie side by side.
    return np.hstack(list(image)), np.hstack(list(mask))


def write_clinics(
    root: str | os.PathLike[str],
    clinics: Sequence[Clinic] | None = None,
    seed: int = 0,
    size: int = 256,
    cases: int | None = None,
    workers: int = 1,
) -> list[str]:
    """Write synthetic clinics, and ``sites.json``, which describes them.

    Each case is ``CLINIC/images/CaseNN.*`` and ``CLINIC/masks/CaseNN.png``. The same arguments give
    the same bytes; a case depends on seed, clinic and number only. Cases that are there already and
    whole stay as they are, so an interrupted call can be repeated.

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

    def names(clinic: Clinic, number: int) -> tuple[str, str]:
        return f"images/Case{number:02d}{clinic.suffix}", f"masks/Case{number:02d}.png"

    def make(clinic: Clinic, number: int) -> tuple[bytes, bytes]:
        image, mask = make_photograph(clinic, number, seed, size)
        return _encoded(image, clinic.suffix), _encoded(mask, ".png")

    if clinics is None:
        clinics = CLINICS
    return write_generated(root, clinics, seed, (size, size), cases, workers, names, make)


def _encoded(pixels: np.ndarray, suffix: str) -> bytes:
    """A picture file of the format that the suffix stands for."""
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, Image.registered_extensions()[suffix])
    return file.getvalue()
