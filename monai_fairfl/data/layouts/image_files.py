# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Image files: their endings, their pixels, and images paired with masks by name."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Sequence
from itertools import product
from pathlib import Path

import nibabel as nib
import numpy as np
from monai.data.utils import affine_to_spacing, correct_nifti_header_if_necessary
from PIL import ExifTags, Image

from monai_fairfl.data.layouts.base import Case, all_named
from monai_fairfl.errors import DataError

WORKERS = min(4, os.cpu_count() or 1)  # each holds one image
MODES = (
    "1",
    "L",
    "P",
    "LA",
    "RGB",
    "RGBA",
    "I",
    "I;16",
    "I;16B",
    "F",
)  # of Pillow; greys or colours of light
HEADER_TOLERANCE = 0.1  # mm, at the corners of a volume: rounding stays below

_IMAGE = re.compile(
    r"(?P<stem>.+)(?P<ending>\.nii(\.gz)?|\.png|\.jpe?g|\.tiff?|\.bmp)", re.IGNORECASE
)
_OTHER = re.compile(
    r".+\.(mha|mhd|nrrd|mg[hz]|img|npy|npz|dcm|ima|gif|webp|hei[cf]|avif|jp2|jxl|pgm|ppm)",
    re.IGNORECASE,
)
_UNLABELLED = (
    "imagests",
    "labelsts",
)  # test cases of the Decathlon and of nnU-Net, which need not be told
_SUFFIX = re.compile(r"[_\-. ][A-Za-z_\-. ]+")  # _mask, _OD; not _2, which is another image
_EYE = re.compile(r"[_\- ](L|R|OD|OS|left|right)", re.IGNORECASE)


def stem(path: Path) -> str:
    """A file's name without its ending.

    >>> stem(Path("labels/Case00.nii.gz"))
    'Case00'
    """
    match = _IMAGE.fullmatch(path.name)
    return match["stem"] if match else path.stem


def is_nifti(path: str | Path) -> bool:
    """Whether the name ends as a NIfTI file's."""
    return str(path).lower().endswith((".nii", ".nii.gz"))


def is_image(name: str) -> bool:
    """Whether the name ends as an image's, also of a kind that is not read here, and is not hidden.

    >>> is_image("Case00.nrrd"), is_image("._Case00.nii.gz"), is_image("notes.txt")
    (True, False, False)
    """
    return name[0] != "." and bool(_IMAGE.fullmatch(name) or _OTHER.fullmatch(name))


def images_in(folder: Path) -> list[Path]:
    """The NIfTI, PNG, JPEG, TIFF and BMP files of a folder, sorted, without hidden ones; with
    broken links.
    """
    if not folder.is_dir():
        return []
    return sorted(
        p
        for p in folder.iterdir()
        if _IMAGE.fullmatch(p.name) and p.name[0] != "." and not p.is_dir()
    )


def left_out(cases: Sequence[Case], site: Path | None = None) -> list[str]:
    """A note for each folder with images that lies beside those of the cases, but holds none of
    theirs.

    And for each kind of image beside the cases that cannot be read.

    Args:
        cases: of the site.
        site: its folder; folders in it, and in these, count as beside the cases too.
    """
    folders = {Path(case[key]).parent for case in cases for key in ("image", "label")}
    beside = {found for folder in folders for found in _folders_in(folder)}
    for folder in _folders_in(site) if site else []:
        beside |= {folder, *_folders_in(folder)}
    near = sorted(folder for folder in beside - folders if folder.name.lower() not in _UNLABELLED)
    counts = {folder: len(images_in(folder)) for folder in near}
    notes = [
        f"{n} image(s) in {folder} are left out; move them to the cases"
        for folder, n in counts.items()
        if n
    ]
    for folder in sorted(filter(Path.is_dir, folders)):
        names = [
            entry.name
            for entry in os.scandir(folder)
            if entry.name[0] != "." and _OTHER.fullmatch(entry.name)
        ]
        kinds = Counter(name.rsplit(".", 1)[1].upper() for name in names)
        notes += [
            f"{n} {kind} file(s) in {folder} are left out; convert them"
            for kind, n in sorted(kinds.items())
        ]
    return notes


def _folders_in(folder: Path) -> list[Path]:
    if not folder.is_dir():
        return []
    return [Path(entry) for entry in os.scandir(folder) if entry.is_dir() and entry.name[0] != "."]


def read_nifti(path: str | Path) -> tuple[nib.Nifti1Image, np.ndarray]:
    """Header and values of a NIfTI file.

    Raises:
        DataError: it cannot be read to its end.
    """
    try:
        nifti = nib.load(path)
        return nifti, np.asanyarray(nifti.dataobj)  # type: ignore[return-value, attr-defined]
    except Exception as error:  # a damaged file makes readers raise of many kinds
        raise DataError(
            f"{path} cannot be read as NIfTI ({error}); copy it again from its source"
        ) from error


def header_fault(path: str | Path) -> str:
    """Why programs place a NIfTI volume differently, and the fix; empty when they do not.

    Where the voxel sizes of pixdim are not those of the sform, MONAI's reader takes the qform, most
    viewers the sform.

    Args:
        path: of a volume.

    Raises:
        DataError: its header cannot be read.

    >>> import tempfile
    >>> file = f"{tempfile.mkdtemp()}/a.nii"
    >>> nib.save(nib.Nifti1Image(np.zeros((4, 4, 4)), np.eye(4)), file)
    >>> header_fault(file)
    ''
    """
    try:
        nifti, read = nib.load(path), correct_nifti_header_if_necessary(
            nib.load(path)
        )  # which changes its argument
    except Exception as error:  # a damaged file makes readers raise of many kinds
        raise DataError(
            f"{path} cannot be read as NIfTI ({error}); copy it again from its source"
        ) from error
    affine = nifti.affine  # type: ignore[attr-defined]
    corners = np.array([(*corner, 1) for corner in product(*((0, size - 1) for size in nifti.shape[:3]))])  # type: ignore[attr-defined]
    gap = np.linalg.norm(corners @ (affine - read.affine)[:3].T, axis=1).max()
    if not gap > HEADER_TOLERANCE:
        return ""
    pixdim, sform = nifti.header.get_zooms()[:3], affine_to_spacing(affine)  # type: ignore[attr-defined]
    return (
        f"has voxels of {' x '.join(f'{mm:.6g}' for mm in pixdim)} mm by its pixdim, of"
        f" {' x '.join(f'{mm:.6g}' for mm in sform)} by its sform, so that programs place it up to {gap:.3g} mm apart;"
        " write the header again (nibabel: image.set_qform(affine), image.set_sform(affine), with the right affine)"
    )


def fault_of(picture: Image.Image) -> str:
    """Why the pixels of a picture are not what its viewers show, and the fix; empty when they are.

    Args:
        picture: opened, not loaded: Pillow turns a TIFF as it loads it, and forgets that it was
            turned.

    >>> fault_of(Image.new("CMYK", (2, 2)))
    'has the colours CMYK, which programs make grey in different ways; save it in grey or RGB'
    """
    if picture.mode not in MODES:
        return f"has the colours {picture.mode}, which programs make grey in different ways; save it in grey or RGB"
    turn = picture.getexif().get(ExifTags.Base.Orientation, 1)
    if turn in range(2, 9):
        return f"is shown turned (EXIF orientation {turn}), but read as it lies in the file; save it upright"
    return ""


def as_stored(picture: Image.Image) -> Image.Image:
    """A picture whose values numpy takes as they are stored. The check and the training both read
    through it.

    Args:
        picture: opened; palette images keep the numbers of their colours.

    Raises:
        DataError: its pixels are not what viewers show, see :func:`fault_of`.

    >>> as_stored(Image.frombytes("I;16B", (1, 1), bytes([1, 0]))).getpixel((0, 0))
    256
    """
    if fault := fault_of(picture):
        raise DataError(f"{getattr(picture, 'filename', '') or 'a picture'} {fault}")
    return (
        picture.convert("I") if picture.mode == "I;16B" else picture
    )  # whose bytes torch does not take


def read(path: str | Path) -> np.ndarray:
    """Pixels of an image file as they are stored: palette images give the numbers of their colours.

    Args:
        path: NIfTI, PNG, JPEG, TIFF or BMP.

    Returns:
        H x W or H x W x C of a picture, the volume of a NIfTI file.

    Raises:
        DataError: it cannot be read to its end, has several pages, or has a :func:`fault_of` a
            picture.
    """
    if is_nifti(path):
        return read_nifti(path)[1]
    try:
        with Image.open(path) as picture:
            pages = getattr(picture, "n_frames", 1)
            pixels = np.asarray(as_stored(picture), np.uint8 if picture.mode == "1" else None)
    except DataError:
        raise
    except Exception as error:  # a damaged file makes readers raise of many kinds
        raise DataError(
            f"{path} cannot be read as a picture ({error}); copy it again from its source"
        ) from error
    if pages > 1:
        raise DataError(f"{path} has {pages} pages; store one image in each file")
    return pixels


def grey(pixels: np.ndarray) -> np.ndarray | None:
    """A picture H x W or H x W x C as H x W where its colours are equal, without alpha; ``None``
    for a coloured one.

    >>> grey(np.full((4, 5, 3), 255, np.uint8)).shape
    (4, 5)
    """
    if pixels.ndim == 2:
        return pixels
    others = range(1, 3) if pixels.shape[2] > 2 else ()
    return pixels[..., 0] if all((pixels[..., 0] == pixels[..., c]).all() for c in others) else None


def pair(images: Sequence[Path], masks: Sequence[Path], where: str) -> list[tuple[Path, Path]]:
    """Images with the masks of the same stem, or of the same stem and a suffix that all masks
    share.

    Args:
        images: image files.
        masks: mask files.
        where: the site, for errors.

    Raises:
        DataError: files that do not pair, a stem that occurs twice, or several suffixes; all are
            named.

    >>> [(image.name, mask.name) for image, mask in pair([Path("im/7.jpg")], [Path("ma/7_OD.tif")], "elm")]
    [('7.jpg', '7_OD.tif')]
    """
    names = {stem(path) for path in images}
    suffixes: dict[str, str] = {}
    for path in masks:
        beginnings = [end for end in range(1, len(stem(path))) if stem(path)[:end] in names]
        rest = stem(path)[max(beginnings) :] if beginnings and stem(path) not in names else ""
        if _SUFFIX.fullmatch(rest):
            suffixes.setdefault(rest, path.name)
    if len(suffixes) > 1:
        raise DataError(
            f"{where}: masks end differently, {' and '.join(sorted(suffixes.values()))}. Keep the masks of one kind"
            " there; a mask that holds several structures codes them by its values."
        )
    suffix = next(iter(suffixes), "")
    by_stem: dict[str, tuple[list[Path], list[Path]]] = {}
    for path in images:
        by_stem.setdefault(stem(path), ([], []))[0].append(path)
    for path in masks:
        name = stem(path)
        by_stem.setdefault(name if name in names else name.removesuffix(suffix), ([], []))[
            1
        ].append(path)
    problems = []
    for name, (pictures, labels) in sorted(by_stem.items()):
        if not labels or not pictures:
            lone, kind = (pictures or labels)[0], "image" if labels else "mask"
            problems.append(
                f"{lone.parent.name}/{lone.name} has no {kind}; add it, or remove the file"
            )
        for kind, files in (("images", pictures), ("masks", labels)):
            if len(files) > 1:
                problems.append(
                    f"{name} has {len(files)} {kind}, {' and '.join(p.name for p in files)}; keep one"
                )
    if problems:
        raise DataError(f"{where}: {all_named(problems)}.")
    return [(pictures[0], labels[0]) for _, (pictures, labels) in sorted(by_stem.items())]


def as_cases(pairs: Sequence[tuple[Path, Path]]) -> list[Case]:
    """Pairs as cases, sorted by image."""
    return [{"image": str(image), "label": str(mask)} for image, mask in sorted(pairs)]


def patients_of(cases: Sequence[Case]) -> dict[str, str]:
    """Image -> patient, where file names tell left eyes from right ones (``_L``, ``-R``, ``_OD``,
    ``_left``, ...).

    >>> patients_of([{"image": "im/G-1-L.png"}, {"image": "im/G-1-R.png"}, {"image": "im/V0001.png"}])
    {'im/G-1-L.png': 'G-1', 'im/G-1-R.png': 'G-1'}
    """
    names = {case["image"]: stem(Path(case["image"])) for case in cases}
    eyes = {
        image: match[0]
        for image, name in names.items()
        if (match := re.search(_EYE.pattern + "$", name, re.I))
    }
    return {image: names[image].removesuffix(eye) for image, eye in eyes.items()}
