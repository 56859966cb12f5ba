# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Image files: their kinds, their pixels, and what is wrong with them."""

from __future__ import annotations

import gzip
import logging
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np
from monai.data.utils import affine_to_spacing
from PIL import ExifTags, Image

from monai_fairfl.errors import DataError

# Threads that read files; each holds one image.
WORKERS = min(4, os.cpu_count() or 1)
# Pillow's modes for greys and for colours of light.
MODES = ("1", "L", "P", "LA", "RGB", "RGBA", "I", "I;16", "I;16B", "F")
# In mm, at the corners of a volume; rounding of a header stays below, but for rotations.
HEADER_TOLERANCE = 0.1
# In radians. A qform stores three of the four numbers of a quaternion, with 32 bits each. The
# fourth is computed as a square root. Where it is near 0, rounding turns a volume by up to 0.0013:
# axes that point to the left and the back, as scanners write them, and are a little oblique.
ROUNDED_ROTATION = 2e-3
# The size of its header, with which a file of NIfTI-2 begins; either byte may come first.
NIFTI_2 = (540).to_bytes(4, "little")
COPY_AGAIN = "copy it again, restore it or what it links to, or change the permissions"
WRITE_AGAIN = "write it again (nibabel: Nifti1Image(voxels, affine))"

# A kind that is read here, and one that is not.
_READ = re.compile(r"(?P<stem>[^.].*)\.(nii(\.gz)?|png|jpe?g|tiff?|bmp)", re.IGNORECASE)
_UNREAD = re.compile(
    r"[^.].*\.(mha|mhd|nrrd|mg[hz]|img|hdr|par|rec|mnc|gipl|nii\.(bz2|xz|zst|zip)|np[yz]|gif|webp"
    r"|hei[cf]|avif|jp2|jxl|jfif|jpe|tga|dng|p[gp]m)",
    re.IGNORECASE,
)
# How a DICOM data set without the prefix may begin: an element of group 0008 that comes early
# (PS3.6); the one of the group's length has 4 bytes.
_GROUP_8 = re.compile(rb"\x08\0(\0\0(\x04\0\0\0|UL)|[\x01\x05\x08\x12\x16]\0)")


# A warning of nibabel's on a header is told once, not for every file and every reading.
_told: set[str] = set()


def _is_new(record: logging.LogRecord) -> bool:
    num_before = len(_told)
    _told.add(record.getMessage())
    return len(_told) > num_before


nib.imageglobals.logger.addFilter(_is_new)


def stem(path: Path) -> str:
    """A file's name without its ending.

    >>> stem(Path("labels/Case00.nii.gz"))
    'Case00'
    """
    match = _READ.fullmatch(path.name)
    return match["stem"] if match else path.stem


def is_nifti(path: str | Path) -> bool:
    """Whether the name ends as a NIfTI file's."""
    return str(path).lower().endswith((".nii", ".nii.gz"))


def is_picture(path: str | Path) -> bool:
    """Whether the name ends as that of a PNG, JPEG, TIFF or BMP file.

    >>> is_picture("OD_1.JPG"), is_picture("Case00.nii.gz")
    (True, False)
    """
    return not is_nifti(path) and _READ.fullmatch(Path(path).name) is not None


def is_lossy(path: str | Path) -> bool:
    """Whether the name ends as that of a JPEG file, whose values are not those that were drawn."""
    return str(path).lower().endswith((".jpg", ".jpeg"))


def kind_of_image(path: Path) -> str:
    """The ending of an image's name in capitals, also of a kind that is not read here.

    ``DICOM`` of a file that is such by its name or by how it begins, or may be and cannot be read:
    it has the prefix (PS3.10, 7.1), or it begins as a data set without it. Less of the beginning is
    asked of a name without an ending, or with a number as in UIDs, since archives export files such
    as ``IM0001`` or ``1.2.840.113``. Empty of other files, and of hidden ones.

    >>> [kind_of_image(Path(name)) for name in ("a.nii.gz", "b.REC", "._b.nrrd", "notes.txt")]
    ['NII.GZ', 'REC', '', '']
    >>> [kind_of_image(Path(name)) for name in ("IM_0001.dcm", ".IM_0001.dcm", "DICOMDIR")]
    ['DICOM', '', '']
    """
    if _READ.fullmatch(path.name) or _UNREAD.fullmatch(path.name):
        return path.name[len(stem(path)) + 1 :].upper()
    name = path.name.lower()
    if name[0] == "." or name == "dicomdir" or name.endswith(".json"):
        return ""
    # A broken link, too, which is then named as unreadable.
    if name.endswith((".dcm", ".dicom", ".ima")):
        return "DICOM"
    ending = path.suffix[1:]
    is_open = not ending or ending.isdigit()
    try:
        if not path.is_file():
            return ""
        with path.open("rb") as file:
            start = file.read(132)
    except OSError:
        return "DICOM" if is_open else ""
    # Scanners and archives leave the prefix out: the first element is of group 0002 or 0008.
    begins_so = _GROUP_8.match(start) or (is_open and start[:2] in (b"\x02\x00", b"\x08\x00"))
    return "DICOM" if start[128:] == b"DICM" or (begins_so and len(start) == 132) else ""


def sort_files(
    files: Iterable[str], used: set[str], reasons: Mapping[str, str], otherwise: str
) -> dict[str, Any]:
    """What became of files, each of which is one of three.

    Args:
        files: paths.
        used: paths of those that are used.
        reasons: path of an image -> why it is not used.
        otherwise: the reason of other images.

    Returns:
        For JSON: ``used`` (number), ``refused`` (image -> why it is not used) and ``not_images``
        (number of other files).

    >>> sort_files(["a.nii", "b.nii", "c.txt"], {"a.nii"}, {}, "it has no mask")
    {'used': 1, 'refused': {'b.nii': 'it has no mask'}, 'not_images': 1}
    """
    present = set(files)
    unused = sorted(present - used)
    images = [path for path in unused if path in reasons or kind_of_image(Path(path))]
    refused = {path: reasons.get(path, otherwise) for path in images}
    others = len(unused) - len(refused)
    return {"used": len(present & used), "refused": refused, "not_images": others}


def count_of_files(files: Mapping[str, Any]) -> str:
    """The three numbers of :func:`sort_files` and their sum, in words.

    >>> count_of_files({"used": 8, "refused": {"a.mha": "convert it"}, "not_images": 2})
    '11 file(s): 8 used, 1 image(s) refused, 2 not an image'
    """
    used, refused, others = files["used"], len(files["refused"]), files["not_images"]
    total = used + refused + others
    return f"{total} file(s): {used} used, {refused} image(s) refused, {others} not an image"


def files_under(
    folder: Path, on_unreadable: Callable[[OSError], None] | None = None
) -> Iterator[Path]:
    """Yield every file of a folder at any depth, none twice.

    Args:
        folder: where to begin.
        on_unreadable: gets the error of each folder that cannot be read. Without it such folders
            are passed over.
    """
    seen: set[str] = set()
    for parent, folders, names in os.walk(folder, onerror=on_unreadable, followlinks=True):
        # Links may form a loop, and come after the folders that they may lead to.
        if os.path.realpath(parent) in seen:
            folders.clear()
            continue
        seen.add(os.path.realpath(parent))
        links = {name for name in folders if os.path.islink(os.path.join(parent, name))}
        folders[:] = [*sorted({*folders} - links), *sorted(links)]
        yield from (Path(parent, name) for name in names)


def images_in(folder: Path) -> list[Path]:
    """The NIfTI, PNG, JPEG, TIFF and BMP files of a folder, sorted.

    Hidden files are left out; broken links are not.
    """
    files = folder.iterdir() if folder.is_dir() else ()
    return sorted(path for path in files if _READ.fullmatch(path.name) and not path.is_dir())


def read_picture(path: str | Path) -> np.ndarray:
    """Pixels of a picture as they are stored: palette images give the numbers of their colours.

    Args:
        path: PNG, JPEG, TIFF or BMP.

    Returns:
        H x W or H x W x C.

    Raises:
        DataError: the file is not there, cannot be read to its end, has several pages, or a fault,
            see :func:`as_stored`.
    """
    try:
        with Image.open(path) as picture:
            pages = getattr(picture, "n_frames", 1)
            pixels = np.asarray(as_stored(picture), np.uint8 if picture.mode == "1" else None)
    except DataError:
        raise
    except Exception as error:
        raise DataError(f"{path} cannot be read as a picture ({error}); {COPY_AGAIN}") from error
    if pages > 1:
        raise DataError(f"{path} has {pages} pages; store one image in each file")
    return pixels


def read_nifti(path: str | Path) -> tuple[nib.Nifti1Image, np.ndarray]:
    """Header and values of a NIfTI file, which is opened once and read to its end.

    nibabel reads a compressed file up to the last voxel. The checksum of gzip comes after it, so
    that nibabel does not see that a bit changed on a disk or on the way.

    Raises:
        DataError: the file is not there, cannot be read to its end, or is damaged.
    """
    try:
        content = Path(path).read_bytes()
        is_named_so, is_compressed = str(path).lower().endswith(".gz"), content[:2] == b"\x1f\x8b"
        if is_compressed > is_named_so or (is_named_so and content[344:347] == b"n+1"):
            ending = ".nii.gz" if is_compressed else ".nii"
            raise DataError(
                f"{path} is {'' if is_compressed else 'not '}compressed, unlike its ending; rename "
                f"it to {ending}"
            )
        # nibabel opens those in mixed case in small letters.
        if not {".nii", ".NII"} & {*Path(path).suffixes}:
            raise DataError(
                f"{path} has small and capital letters in its ending; rename it to "
                f".nii{'.gz' * is_named_so}"
            )
        if is_named_so:
            content = gzip.decompress(content)
        sizes = (content[:4], content[3::-1])
        kind = nib.Nifti2Image if NIFTI_2 in sizes else nib.Nifti1Image
        nifti = kind.from_bytes(content)
        return nifti, np.asanyarray(nifti.dataobj)
    except DataError:
        raise
    except Exception as error:
        raise DataError(f"{path} cannot be read as NIfTI ({error}); {COPY_AGAIN}") from error


def read_volume(path: str | Path, most_axes: int = 3) -> tuple[nib.Nifti1Image, np.ndarray]:
    """Header and values of a NIfTI volume, in 32-bit numbers as a network reads them.

    Args:
        path: of the file.
        most_axes: 3, or 4 where the last one may count channels.

    Raises:
        DataError: the file is damaged, no such volume, its header has a fault, see
            :func:`header_fault`, or a value is no finite number of 32 bits.
    """
    nifti, values = read_nifti(path)
    if not 3 <= values.ndim <= most_axes or values.dtype.kind not in "biuf":
        raise DataError(f"{path} is {values.dtype} {values.shape}; store one 3D volume of numbers")
    if fault := header_fault(nifti):
        raise DataError(f"{path} {fault}")
    with np.errstate(over="ignore"):
        read = values.astype(np.float32)
    is_lost = ~np.isfinite(read)
    if is_lost.any():
        raise DataError(
            f"{path} has the value {values[is_lost][0]:.3g}, no finite number of 32 bits; scale "
            "the image, or mend it"
        )
    return nifti, read


def header_fault(nifti: Any) -> str:
    """Why programs place a NIfTI volume differently, and the fix; empty when they do not.

    Where the voxel sizes of pixdim are not those of the sform, MONAI's reader takes the qform, most
    viewers the sform. Sizes in metres or micrometres, which NIfTI allows, MONAI's reader takes for
    millimetres.

    Args:
        nifti: image of nibabel.

    >>> header_fault(nib.Nifti1Image(np.zeros((4, 4, 4)), np.eye(4)))
    ''
    """
    # The code of the unit: 1 is the metre, 2 the millimetre, 3 the micrometre.
    if int(nifti.header["xyzt_units"]) % 8 in (1, 3):
        return "has sizes in metres or micrometres, which are read as mm; write it again in mm"
    affine = nifti.affine
    if not (np.isfinite(affine).all() and abs(np.linalg.det(affine[:3, :3])) > 0):
        return f"has an affine that is not finite or without volume; {WRITE_AGAIN}"
    pixdim, sform = np.array(nifti.header.get_zooms()[:3]), affine_to_spacing(affine)
    if not np.allclose(pixdim, sform, rtol=ROUNDED_ROTATION, atol=0):
        return f"has voxels of {pixdim} mm by its pixdim, {sform} by its sform; {WRITE_AGAIN}"
    return ""


def forms_fault(nifti: Any) -> str:
    """Why the sform and the qform of a volume contradict each other; empty where they do not.

    Programs choose between them in different ways: MONAI and nibabel take the sform, ITK and the
    programs that are made of it may take the qform.

    Args:
        nifti: image of nibabel.

    >>> nifti = nib.Nifti1Image(np.zeros((4, 4, 4)), np.eye(4))
    >>> nifti.set_qform(np.diag([1, 1, 1, 1]) + np.eye(4, k=3) * 20, code=1)
    >>> forms_fault(nifti).partition(";")[0]
    'has an sform and a qform that place it up to 20 mm apart'
    """
    if not nifti.header["sform_code"] or not nifti.header["qform_code"]:
        return ""
    try:
        qform = nifti.get_qform()
    except ValueError:  # it is no rotation
        qform = np.full((4, 4), np.nan)
    shift = largest_shift(nifti.get_sform(), qform, nifti.shape[:3], HEADER_TOLERANCE)
    if shift:
        fault = f"has an sform and a qform that place it up to {shift:.3g} mm apart"
        return f"{fault}; see which of them places it right, and with that one {WRITE_AGAIN}"
    return ""


def is_oriented(nifti: Any) -> bool:
    """Whether a NIfTI image stores an affine or a rotation (NIfTI-1, methods 3 and 2).

    >>> is_oriented(nib.Nifti1Image(np.zeros((2, 2, 2)), np.eye(4)))
    True
    """
    return bool(nifti.header["sform_code"] or nifti.header["qform_code"])


def largest_shift(
    first: np.ndarray, second: np.ndarray, shape: Sequence[int], tolerance: float
) -> float:
    """Distance in mm between the two places that two affines give to a corner of a volume.

    Args:
        first: affine, 4 x 4, in mm.
        second: the other affine.
        shape: of the volume, three numbers of voxels.
        tolerance: distance in mm that is allowed at the first voxel. A corner at a distance from it
            may lie ``ROUNDED_ROTATION`` times that distance farther.

    Returns:
        The largest distance that is not allowed, or no number where an affine has none; 0 where all
        are allowed.

    >>> moved = np.eye(4)
    >>> moved[0, 3] = 2
    >>> largest_shift(np.eye(4), moved, (8, 8, 4), 0.1), largest_shift(moved, moved, (8, 8, 4), 0.1)
    (2.0, 0.0)
    """
    corners = np.array([(*corner, 1) for corner in product(*((0, size - 1) for size in shape))])
    shifts = np.linalg.norm(corners @ (first - second)[:3].T, axis=1)
    radii = np.linalg.norm(corners[:, :3] @ first[:3, :3].T, axis=1)
    is_allowed = shifts <= tolerance + ROUNDED_ROTATION * radii
    return float(shifts[~is_allowed].max(initial=0.0))


def as_stored(picture: Image.Image) -> Image.Image:
    """A picture whose values numpy takes as they are stored, and viewers show.

    The check and the training both read through this function.

    Args:
        picture: opened, not loaded: Pillow turns a TIFF as it loads it, and forgets that it was
            turned. Palette images keep the numbers of their colours.

    Raises:
        DataError: the pixels are not what viewers show.

    >>> as_stored(Image.frombytes("I;16B", (1, 1), bytes([1, 0]))).getpixel((0, 0))
    256
    """
    name = getattr(picture, "filename", "a picture")
    if picture.mode not in MODES:
        raise DataError(
            f"{name} has the colours {picture.mode}, read in many ways; save it in grey or RGB"
        )
    turn = picture.getexif().get(ExifTags.Base.Orientation, 1)
    if turn in range(2, 9):
        raise DataError(
            f"{name} is shown turned (EXIF orientation {turn}), but read as it lies; save it "
            "upright, its mask too where that lies turned"
        )
    # torch does not take big-endian bytes.
    return picture.convert("I") if picture.mode == "I;16B" else picture


def grey(pixels: np.ndarray) -> np.ndarray | None:
    """The grey levels of a picture, without alpha; ``None`` where its channels differ.

    Args:
        pixels: H x W or H x W x C.

    Returns:
        H x W.

    >>> grey(np.full((4, 5, 3), 255, np.uint8)).shape
    (4, 5)
    """
    if pixels.ndim == 2:
        return pixels
    # One or two channels are grey and alpha; three or four are colours and alpha.
    colours = pixels[..., : 3 if pixels.shape[2] > 2 else 1]
    return colours[..., 0] if (colours == colours[..., :1]).all() else None
