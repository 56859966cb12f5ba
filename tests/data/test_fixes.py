# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Every fix that a message about data proposes is followed to the letter, and then all is right."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np
import pytest
from helpers import public_layouts as made
from helpers.proposed_fixes import without_a_row
from helpers.refusals import notes, refused
from nibabel.processing import resample_from_to
from PIL import Image

from monai_fairfl.data import check_cases, find_cases, overview, site_datalist, site_folders
from monai_fairfl.errors import DataError

Change = Callable[[Path], object]
STRUCTURES = ("disc", "cup")
VOLUME, GLAND = made.volume(1), made.gland(1)
AFFINE = np.diag([0.6, 0.6, 3.6, 1])
SHEARED = AFFINE + np.eye(4, k=1) * [0, 0, 1, 0]
MASK = made.mask(2)
GREYS = {"background": 0, "disc": [128, 255], "cup": 255}


# What a user has, and what one does: each changes a site's folder


def volume(name: str, change: Callable[[Any], Any]) -> Change:
    """Another volume in place of one, from what nibabel reads."""

    return lambda site: nib.save(change(nib.load(site / name)), site / name)


def voxels(name: str, pixels: np.ndarray) -> Change:
    return lambda site: made.write(site / name, pixels)


def picture(name: str, pixels: np.ndarray, **options: Any) -> Change:
    def write(site: Path) -> None:
        for former in (site / name).parent.glob(f"{Path(name).stem}.*"):
            former.unlink()
        made.write(site / name, pixels, **options)

    return write


def labels(**named: Any) -> Change:
    return lambda site: (site / "dataset.json").write_text(json.dumps({"labels": named}))


def without(name: str) -> Change:
    return lambda site: (site / name).unlink()


def both(*changes: Change) -> Change:
    return lambda site: [change(site) for change in changes]


def header(**fields: Any) -> Callable[[Any], Any]:
    """The same voxels under a header with these fields, whatever they contradict."""

    def change(nifti: Any) -> Any:
        for name, value in fields.items():
            nifti.header[name] = value
        return nib.Nifti1Image(np.asarray(nifti.dataobj), None, nifti.header)

    return change


def placed(affine: np.ndarray) -> Callable[[Any], Any]:
    return lambda nifti: nib.Nifti1Image(np.asarray(nifti.dataobj), affine)


def sheared(nifti: Any) -> Any:
    """As of a tilted gantry, which a qform cannot say."""
    changed = nib.Nifti1Image(np.asarray(nifti.dataobj), SHEARED)
    changed.set_qform(SHEARED, code=1)
    return changed


def renamed(old: str, new: str) -> Change:
    return lambda site: (site / old).rename(site / new)


def on_grid(nifti: Any) -> Any:
    return resample_from_to(nifti, ((8, 8, 4), AFFINE), order=0)


def moved(*offset: float) -> np.ndarray:
    return nib.affines.from_matvec(AFFINE[:3, :3], offset)


def cropped(nifti: Any) -> Any:
    return nib.Nifti1Image(np.asarray(nifti.dataobj)[4:], AFFINE)


def turned(site: Path) -> None:
    exif = Image.Exif()
    exif[274] = 6
    Image.fromarray(np.rot90(MASK)).save(site / "masks" / "eye02.png", exif=exif)


def linked(site: Path) -> None:
    shutil.move(site / IMAGE, site.parent / "moved.nii.gz")
    (site / IMAGE).symlink_to(site.parent / "disk.nii.gz")


def pages(site: Path) -> None:
    (site / "masks" / "eye02.png").unlink()
    page = Image.fromarray(MASK)
    page.save(site / "masks" / "eye02.tif", save_all=True, append_images=[page])


def print_colours(site: Path) -> None:
    (site / "images" / "eye02.png").unlink()
    Image.fromarray(made.photo(2)).convert("CMYK").save(site / "images" / "eye02.tif")


IMAGE, LABEL = "Case01.nii.gz", "Case01_segmentation.nii.gz"
PHOTO, DRAWN = "images/eye02.png", "masks/eye02.png"
ON_EDGE = np.zeros((8, 8, 4), np.uint8)
ON_EDGE[6:, 3:5, 1:3] = 1
RED = np.dstack([MASK, MASK * 0, MASK * 0])
DEEP = made.photo(2)[..., 0].astype(np.uint16) * 257
AGAIN = "write it again (nibabel: Nifti1Image(voxels, affine))"
MANY = np.arange(260, dtype=np.int16).reshape(13, 5, 4)
LARGER = np.zeros((13, 5, 4), np.uint8)
LARGER[5:8, 1:3, 1:3] = 1

# The fix, what harms a site, and the change; without one, the case is made again as it was.
VOLUMES: list[tuple[Any, ...]] = [
    ("copy it again", lambda site: (site / IMAGE).write_bytes((site / IMAGE).read_bytes()[:-20])),
    ("store one 3D volume", voxels(IMAGE, VOLUME[..., 0])),
    ("scale the image", voxels(IMAGE, VOLUME.astype(float) * 1e39)),
    ("or mend it", voxels(IMAGE, np.where(GLAND > 0, np.nan, VOLUME))),
    ("convert or copy it again", voxels(IMAGE, VOLUME * 0)),
    (
        "put the mask in its place",
        both(voxels(IMAGE, MANY + np.int16(1)), voxels(LABEL, MANY)),
        voxels(LABEL, LARGER),
    ),
    ("put the label in its place", voxels(IMAGE, GLAND), voxels(LABEL, GLAND[::-1].copy())),
    ("resample it on the grid", volume(LABEL, placed(moved(1, 0, 0))), volume(LABEL, on_grid)),
    ("set a larger field_of_view", voxels(LABEL, GLAND + 2 * np.roll(ON_EDGE, 1, 0))),
    # Its header says nothing of its place: resampled it would lie elsewhere.
    ("else export it again", volume(LABEL, placed(np.eye(4)))),
    (
        AGAIN,
        both(volume(IMAGE, sheared), volume(LABEL, placed(SHEARED))),
        volume(IMAGE, placed(SHEARED)),
    ),
    ("rename it to .nii.gz", renamed(IMAGE, IMAGE[:-3]), renamed(IMAGE[:-3], IMAGE)),
    (
        "rename it to .nii",
        both(voxels("a.nii", VOLUME), renamed("a.nii", IMAGE)),
        renamed(IMAGE, IMAGE[:-3]),
    ),
    ("small and capital letters", renamed(IMAGE, "Case01.Nii.gz"), renamed("Case01.Nii.gz", IMAGE)),
    (AGAIN, volume(LABEL, header(pixdim=[1] * 8))),
    ("see which of them places it right", volume(IMAGE, header(qform_code=1, qoffset_x=20))),
    (AGAIN, volume(IMAGE, header(srow_x=[np.nan] * 4))),
    (
        f"if that is wrong, {AGAIN}",
        both(*(volume(name, header(sform_code=0)) for name in (IMAGE, LABEL))),
    ),
    ("write it again in mm", volume(IMAGE, header(xyzt_units=1))),
    ("store whole numbers from 0", voxels(LABEL, GLAND * np.float32(0.5))),
    ("background the value 0, and the organ 1", voxels(LABEL, 1 - GLAND)),
    (
        "or crop the volumes around the organ",
        voxels(LABEL, ON_EDGE),
        both(volume(IMAGE, cropped), volume(LABEL, cropped)),
    ),
    (
        "restore it or what it links to",
        linked,
        lambda site: shutil.move(site.parent / "moved.nii.gz", site.parent / "disk.nii.gz"),
    ),
    ("one mask, whose name begins", without(LABEL), without(IMAGE)),
    (
        "export the right ones",
        both(
            labels(unlabeled=0, organ=1),
            *(voxels(f"Case0{n}_segmentation.nii.gz", GLAND * 0) for n in range(4)),
        ),
        both(*(voxels(f"Case0{n}_segmentation.nii.gz", made.gland(n)) for n in range(4))),
    ),
    ("Keep one", voxels("Case02.nii.gz", VOLUME), voxels("Case02.nii.gz", made.volume(2))),
    (
        "draw what is there",
        both(labels(background=0, organ=1, not_annotated=2), voxels(LABEL, GLAND * 2)),
    ),
    (
        "convert DICOM to NIfTI",
        lambda site: (site / "IM0001.dcm").write_bytes(bytes(128) + b"DICM"),
        without("IM0001.dcm"),
    ),
]
PICTURES: list[tuple[Any, ...]] = [
    ("draw it in grey levels", picture(DRAWN, RED)),
    ("save it with 8", picture(PHOTO, DEEP)),
    (
        "put the mask in its place",
        both(without("dataset.json"), picture(DRAWN, made.photo(2)[..., 0])),
    ),
    ("save it upright", turned),
    ("store one image in each file", pages),
    ("save it in grey or RGB", print_colours),
    ("mend one of them", picture(DRAWN, made.mask(2, (0, 1, 2)))),
    ("state disc and cup in dataset.json", without("dataset.json")),
    (
        "name all in dataset.json",
        both(without("dataset.json"), picture(DRAWN, made.mask(2, (0, 1, 255)))),
    ),
    ("draw what is there", labels(background=0, disc=128, void_region=255)),
    ("else export it again", picture(DRAWN, MASK[::2])),
    ("Give disc those of both", labels(background=0, disc=128, cup=255)),
    ("call the structures disc and cup", labels(background=0, optic_disc=[128, 255], cup=255)),
    (
        "give each label a range",
        both(*(picture(f"masks/eye0{n}.jpg", made.mask(n), quality=95) for n in range(4))),
        labels(background=[0, 63], disc=[64, 255], cup=[192, 255]),
    ),
    ("convert them", picture(PHOTO, made.photo(2)[..., 0])),
    ("Mend it", labels(background=0, disc="one")),
    ("list that too", labels(disc=[1, 3])),
    (
        "Keep one, move the other away",
        lambda site: shutil.copytree(site / "masks", site / "labels"),
        lambda site: shutil.move(site / "labels", site.parent / "away"),
    ),
]


def complaints(site: Path, structures: tuple[str, ...]) -> tuple[list[str], Any]:
    found, _ = overview({"elm": site}, structures)
    refused = [*found["files"]["refused"].values()]
    return found["problems"] + found["warnings"] + refused, found["sites"]["elm"]["labels"]


KINDS = [("volume", *row) for row in VOLUMES] + [("picture", *row) for row in PICTURES]


@pytest.mark.parametrize("row", KINDS, ids=lambda row: row[1])
def test_a_fix_of_a_file_is_followed(row: Any, tmp_path: Path) -> None:
    kind, fix, harm, *change = row
    if kind == "volume":
        site, structures, labelled = made.saml(tmp_path / "elm"), (), [0, 1]
        right = both(voxels(IMAGE, VOLUME), voxels(LABEL, GLAND))
    else:
        site, structures, labelled = made.folders(tmp_path / "elm"), STRUCTURES, [0, 128, 255]
        right = both(picture(PHOTO, made.photo(2)), picture(DRAWN, MASK), labels(**GREYS))
    harm(site)
    assert fix in "".join(complaints(site, structures)[0])
    both(*(change or [right]))(site)
    assert complaints(site, structures) == ([], labelled)


CASE = {"image": IMAGE, "label": LABEL}
ELSEWHERE = {"image": "x.nii.gz", "label": LABEL}


def listed(**parts: Any) -> Change:
    content = {"training": [], "validation": [], "testing": [], **parts}
    return lambda file: file.write_text(json.dumps(content))


SPLIT = {"fractions": [0.5, 0.25, 0.25], "folds": None, "fold": 0, "validation": 0.2, "seed": 0}
LISTS: list[tuple[str, Change, Change, dict[str, Any]]] = [
    ("or delete it", lambda file: file.write_text("{"), Path.unlink, {}),
    ("Give training, validation and testing", listed(training="a"), listed(training=[CASE]), {}),
    ("Check dataset_dir, or delete the list", listed(training=[ELSEWHERE]), Path.unlink, {}),
    ("Keep one", listed(testing=[CASE, CASE]), listed(testing=[CASE]), {}),
    (
        "Keep a patient in one part",
        listed(training=[CASE], testing=[CASE]),
        listed(testing=[CASE]),
        {},
    ),
    ("delete it to split anew", listed(split={"seed": 9}), Path.unlink, {}),
    ("Delete the list to split anew", listed(split=SPLIT), Path.unlink, {}),
    (
        "Delete the list to have it rebuilt",
        listed(training=[{**CASE, "values": {"gland": [2, 2]}}]),
        Path.unlink,
        {"structures": ["gland"], "values": {"gland": [1, 1]}},
    ),
]


@pytest.mark.parametrize("row", LISTS, ids=lambda row: str(row[0]))
def test_a_fix_of_a_list_is_followed(row: Any, tmp_path: Path) -> None:
    fix, harm, change, named = row
    site, file = made.saml(tmp_path / "elm"), tmp_path / "elm.json"
    harm(file)
    with notes() as found:
        try:
            site_datalist(site, file, **named)
        except DataError as error:
            found.append(str(error))
    assert fix in "".join(found)
    change(file)
    with notes() as found:
        site_datalist(site, file, **named)
    assert not found
    with notes():
        check_cases(site)


# Folders and settings


def stay(root: Path) -> None:
    """What is there is right, and the fix is another path."""


def sites(root: Path) -> None:
    made.saml(root / "elm")
    made.folders(root / "oak")
    site_datalist(root / "elm", root / "elm.json")


def copied(old: str, new: str) -> Change:
    return lambda root: shutil.copytree(root / old, root / new)


def moved_to(old: str, new: str) -> Change:
    return lambda root: shutil.move(root / old, root / new)


def edited(name: str, **keys: Any) -> Change:
    """A JSON file with other values of these keys."""
    return lambda root: (root / name).write_text(
        json.dumps(json.loads((root / name).read_text()) | keys)
    )


def first_three(root: Path) -> None:
    listed = json.loads((root / "dataset.json").read_text())["training"]
    edited("dataset.json", training=listed[:3])(root)


MSD, LISTS_OF_FLARE = "datalist_2D/client_MSD.json", "datalist_2D"
Look = Callable[[Path], object]
# The fix; what is there, and what harms it; the path that is looked at; the change, and the path.
FOLDERS: list[tuple[str, Change, Change, Look, str, Change, str]] = [
    ("Give the one of the site's images and labels", sites, stay, find_cases, "no", stay, "elm"),
    (
        "Keep the files of one",
        sites,
        both(copied("oak/images", "elm/images"), copied("oak/masks", "elm/masks")),
        find_cases,
        "elm",
        both(moved_to("elm/images", "a"), moved_to("elm/masks", "b")),
        "elm",
    ),
    (
        "mend it",
        made.nvflare,
        lambda root: (root / MSD).write_text("{"),
        find_cases,
        MSD,
        made.nvflare,
        MSD,
    ),
    (
        "Unpack them again, or mend the list",
        made.msd,
        without("labelsTr/prostate_03.nii.gz"),
        find_cases,
        ".",
        first_three,
        ".",
    ),
    ("Give the folder that holds one", sites, stay, site_folders, "no", stay, "."),
    (
        "It is a site itself (saml): give the folder that holds it",
        sites,
        stay,
        site_folders,
        "elm",
        stay,
        ".",
    ),
    (
        "rename one of them",
        made.nvflare,
        lambda root: made.folders(root / "client_MSD"),
        site_folders,
        ".",
        moved_to("client_MSD", "oak"),
        ".",
    ),
]


@pytest.mark.parametrize("row", FOLDERS, ids=lambda row: str(row[0]))
def test_a_fix_of_a_folder_is_followed(row: Any, tmp_path: Path) -> None:
    fix, make, harm, look, wrong, change, right = row
    make(tmp_path)
    harm(tmp_path)
    with refused(fix):
        look(tmp_path / wrong)
    change(tmp_path)
    assert look(tmp_path / right)


SETTINGS: list[tuple[str, Change, dict[str, Any], dict[str, Any]]] = [
    ("Use the names", made.folders, {"values": {"disk": [1, 2]}}, {"values": {"disc": [1, 255]}}),
    (
        "Give [lowest, highest]",
        made.folders,
        {"values": {"disc": [2, 1]}},
        {"values": {"disc": [1, 2]}},
    ),
    ("Leave folds out", made.dofe, {"folds": 3}, {}),
    ("Give two patients, and a share", made.dofe, {"validation": 1.5}, {"validation": 0.2}),
    (
        "give three shares that sum to 1",
        made.saml,
        {"fractions": (0.5, 0.5)},
        {"fractions": (0.5, 0.5, 0)},
    ),
    ("or 2 to 4 folds", made.saml, {"fold": 2}, {"fold": 2, "folds": 4}),
]


@pytest.mark.parametrize("row", SETTINGS, ids=lambda row: str(row[0]))
def test_a_fix_of_a_setting_is_followed(row: Any, tmp_path: Path) -> None:
    fix, make, wrong, right = row
    make(tmp_path)
    structures = STRUCTURES if "values" in right else ()
    with refused(fix):
        site_datalist(tmp_path, structures=structures, **wrong)
    assert site_datalist(tmp_path, structures=structures, **right)["training"]


# Arguments of a class, choices with two right answers, and what a test beside this one follows.
OTHERS = (
    "Load it first|mend 'channel'|choose one|Add cases|set stereo"
    "|change the permissions|the prostate bundle takes|if nobody drew it|split by another seed"
    "|convert the DICOM series|Give these arguments|Leave datalist out"
    "|see docs/data.md"
)


def test_every_fix_that_the_room_proposes_is_in_a_table() -> None:
    """Or is one that a test of its own follows."""
    followed = {str(fix) for fix, *_ in [*VOLUMES, *PICTURES, *LISTS, *FOLDERS, *SETTINGS]}
    assert without_a_row("data", followed, OTHERS) == []
