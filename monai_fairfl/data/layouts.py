# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The layouts of public data sets, each recognised by its files.

A layout of your own is one more line of :data:`LAYOUTS`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from monai_fairfl.data.image_files import images_in, stem
from monai_fairfl.errors import DataError
from monai_fairfl.utils.plain_values import object_of_json

PARTS = ("training", "validation", "testing")

CaseFiles = dict[str, Any]
"""``{"image": path, "label": path}``, and ``"values"`` where pixel values code structures."""

Values = dict[str, list[int]]
"""Structure -> lowest and highest pixel value that belongs to it, both included."""


@dataclass(frozen=True)
class Found:
    """The cases of one site, sorted by image, with absolute paths.

    Args:
        cases: all of them.
        parts: the split that came with the data: some of ``training``, ``validation`` and
            ``testing``. ``None``: none.
        patients: image -> patient, where a patient has several cases; every other case is a patient
            of its own.
        channels: names of the channels of an image, where the layout states them.
        labels: what each value of a label means, the background too, where the layout or a
            ``dataset.json`` states it.
        notes: what a user should know, in sentences.
        problems: of files that do not pair, one for each.

    >>> case = {"image": "/elm/Case00.nii.gz", "label": "/elm/Case00_segmentation.nii.gz"}
    >>> found = Found([case], patients={case["image"]: "patient 7"})
    >>> len(found.cases), found.parts, found.patients["/elm/Case00.nii.gz"]
    (1, None, 'patient 7')
    """

    cases: list[CaseFiles]
    parts: dict[str, list[CaseFiles]] | None = None
    patients: Mapping[str, str] = field(default_factory=dict)
    channels: tuple[str, ...] = ()
    labels: Values = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()


# Lists of cases, and texts about many of them


def sorted_by_image(cases: Iterable[CaseFiles]) -> list[CaseFiles]:
    """Cases in the order of their images' paths.

    >>> sorted_by_image([{"image": "b.png"}, {"image": "a.png"}])
    [{'image': 'a.png'}, {'image': 'b.png'}]
    """
    return sorted(cases, key=lambda case: case["image"])


def all_cases(parts: Mapping[str, Sequence[CaseFiles]]) -> list[CaseFiles]:
    """The cases of all parts of a split, one part after the other.

    >>> all_cases({"training": [{"image": "a.png"}], "testing": [{"image": "b.png"}]})
    [{'image': 'a.png'}, {'image': 'b.png'}]
    """
    return [case for members in parts.values() for case in members]


def missing_files(cases: Sequence[CaseFiles]) -> list[str]:
    """A problem for each image and label that does not exist."""
    files = [path for case in cases for path in (case["image"], case["label"])]
    return [f"{path} does not exist" for path in files if not Path(path).is_file()]


def all_named(problems: Sequence[str], most: int = 20, separator: str = "; ") -> str:
    """Join problems into one text, which names the first ``most`` and counts the others.

    >>> all_named(["a is missing", "b is missing", "c is missing"], most=2)
    'a is missing; b is missing; and 1 more'
    """
    more = [f"and {len(problems) - most} more"] if len(problems) > most else []
    return separator.join([*problems[:most], *more])


def few(names: Iterable[object]) -> str:
    """The first three of some files or folders, for a note.

    >>> few(["elm/a.png", "elm/b.png", "elm/c.png", "elm/d.png"])
    'elm/a.png, elm/b.png, elm/c.png, and 1 more'
    """
    return all_named([str(name) for name in names], 3, separator=", ")


# Images paired with masks, and eyes with patients, by the names of their files

# _mask, _OD; not _2, which is another image
_MASK_SUFFIX = re.compile(r"[_\-. ][A-Za-z_\-. ]+")
# Between two marks, or between a mark and an end of the name: P0_left_2020, OD_P0.
_EYE_WORD = re.compile(r"(?<![^_\-. ])(L|R|OD|OS|left|right)(?![^_\-. ])", re.IGNORECASE)
# After a number at the end, as in RET002OD. A single letter may be a series there, as in 2024R.
_EYE_AFTER_NUMBER = re.compile(r"(?<=\d)(OD|OS)$", re.IGNORECASE)


Named = list[tuple[str, Path]]
"""The name of a case, and a file of it."""


def pair(images: Named, masks: Named, suffix: str = "") -> Found:
    """Pair the one image with the one mask of each case, sorted by image.

    Args:
        images: the image files.
        masks: the mask files.
        suffix: what the masks' names have beside the images', for the problems.

    >>> pair([("7", Path("images/7.jpg"))], [("7", Path("masks/7_OD.tif"))]).cases
    [{'image': 'images/7.jpg', 'label': 'masks/7_OD.tif'}]
    >>> pair([("7", Path("images/7.jpg"))], []).problems
    ('images/7.jpg has no mask 7.jpg; add it, or remove the file',)
    """
    files: dict[str, tuple[list[Path], list[Path]]] = {}
    for place, named in enumerate((images, masks)):
        for name, path in named:
            files.setdefault(name, ([], []))[place].append(path)
    cases = []
    problems = []
    for name, (image, mask) in sorted(files.items()):
        if len(image) == len(mask) == 1:
            cases.append({"image": str(image[0]), "label": str(mask[0])})
        for kind, paths, other, others, partner in (
            ("image", image, "mask", mask, name + suffix),
            ("mask", mask, "image", image, name),
        ):
            if len(paths) > 1:
                names = " and ".join(path.name for path in paths)
                problems.append(f"{name} has {len(paths)} {kind}s, {names}; keep one")
            if not others:
                file = f"{paths[0].parent.name}/{paths[0].name}"
                partner += paths[0].name.removeprefix(stem(paths[0]))
                problems.append(f"{file} has no {other} {partner}; add it, or remove the file")
    return Found(sorted_by_image(cases), problems=tuple(problems))


def pair_by_stem(images: Sequence[Path], masks: Sequence[Path]) -> Found:
    """Pair images with the masks of the same stem, or of the same stem and one common suffix."""
    stems = {stem(path) for path in images}
    example_of: dict[str, str] = {}
    for path in masks:
        mask = stem(path)
        # The longest image stem that the mask's begins with.
        begins = [mask[:end] for end in range(1, len(mask) + 1) if mask[:end] in stems]
        added = mask.removeprefix(begins[-1]) if begins else ""
        if _MASK_SUFFIX.fullmatch(added):
            example_of.setdefault(added, path.name)
    if len(example_of) > 1:
        examples = " and ".join(sorted(example_of.values()))
        problem = f"the masks end differently, {examples}; keep the masks of one ending there"
        return Found([], problems=(problem,))
    suffix = next(iter(example_of), "")
    named_masks = []
    for path in masks:
        case = stem(path)
        named_masks.append((case if case in stems else case.removesuffix(suffix), path))
    return pair([(stem(path), path) for path in images], named_masks, suffix)


def patients_of(cases: Sequence[CaseFiles]) -> dict[str, str]:
    """Map images to patients, where the names of files say which eye they show.

    The eye is a word of the name, such as ``L``, ``OD`` or ``left``, or ``OD`` or ``OS`` after a
    number at its end. What remains of the name is the patient.

    >>> patients_of([{"image": "G-1-L.png"}, {"image": "G-1-R.png"}, {"image": "V0001.png"}])
    {'G-1-L.png': 'G-1', 'G-1-R.png': 'G-1'}
    >>> patients_of([{"image": "P0_left_2020.png"}, {"image": "OD_P0.png"}, {"image": "P0OS.png"}])
    {'P0_left_2020.png': 'P0_2020', 'OD_P0.png': 'P0', 'P0OS.png': 'P0'}
    """
    patients = {}
    for case in cases:
        name = stem(Path(case["image"]))
        patient = ""
        words = list(_EYE_WORD.finditer(name))
        if after_number := _EYE_AFTER_NUMBER.search(name):
            patient = name[: after_number.start()]
        elif words:
            # Of several words the last one is the eye: L may be a series in L_12_OD. One of the
            # marks beside it goes with it.
            before, after = name[: words[-1].start()], name[words[-1].end() :]
            patient = before[:-1] + after if before else after[1:]
        if patient:
            patients[case["image"]] = patient
    return patients


# Each layout is a function of a folder: the cases of a site, or None where the folder has another
# layout. A DataError names what is missing or cannot be understood in a folder of this one.


# saml: the public six-site prostate set of Liu et al., MS-Net, IEEE TMI 2020
# (https://liuquande.github.io/SAML/). Both spellings of the suffix occur there.

_NIFTI = re.compile(r"(?P<case>.+?)(?P<mask>_segmentation)?\.nii(\.gz)?", re.IGNORECASE)


def _saml(folder: Path) -> Found | None:
    images: Named = []
    masks: Named = []
    # Broken links too, so that a check can name them.
    for path in folder.iterdir() if folder.is_dir() else ():
        match = _NIFTI.fullmatch(path.name)
        if match and not path.name.startswith(".") and not path.is_dir():
            (masks if match["mask"] else images).append((match["case"], path))
    return pair(images, masks, "_segmentation") if images or masks else None


# folders: images in one folder and masks in another

IMAGES = ("images", "image", "imgs", "img")
MASKS = ("masks", "mask", "labels", "label")


def _folders(folder: Path) -> Found | None:
    inner = sorted(folder.iterdir()) if folder.is_dir() else []
    pair_of_files = []
    for names in (IMAGES, MASKS):
        filled = [path for path in inner if path.name.lower() in names and images_in(path)]
        if not filled:
            return None
        pair_of_files.append(filled)
    for filled in pair_of_files:
        if len(filled) > 1:
            listed = " and ".join(f"{path.name}/" for path in filled)
            raise DataError(f"{folder} has {listed}. Keep one, move the other away.")
    [images], [masks] = pair_of_files
    found = pair_by_stem(images_in(images), images_in(masks))
    return replace(found, patients=patients_of(found.cases))


# dofe: a domain of the multi-site fundus set of Wang et al., DoFE, IEEE TMI 2020
# (https://github.com/emma-sjwang/Dofe): crops around the optic disc, with test images of its own.

# Its masks are bright outside. These are the published bounds of cup and rim.
_DOFE_LABELS = {"background": [201, 255], "disc": [0, 200], "cup": [0, 50]}


def _dofe(folder: Path) -> Found | None:
    crops = {"training": folder / "train" / "ROIs", "testing": folder / "test" / "ROIs"}
    if not any(path.is_dir() for path in crops.values()):
        return None
    parts = {}
    problems: tuple[str, ...] = ()
    for part, path in crops.items():
        images, masks = images_in(path / "image"), images_in(path / "mask")
        if bool(images) != bool(masks) or (part == "training" and not images):
            empty = path / ("mask" if images else "image")
            raise DataError(f"{empty} holds no image. Unpack the archive again.")
        if images:
            found = pair_by_stem(images, masks)
            parts[part] = found.cases
            problems += found.problems
    cases = sorted_by_image(all_cases(parts))
    own_parts = parts if "testing" in parts else None
    return Found(cases, own_parts, patients_of(cases), labels=_DOFE_LABELS, problems=problems)


# nvflare: a client's data list of NVIDIA FLARE's prostate example, which has its split
# (https://github.com/NVIDIA/NVFlare, examples/advanced/prostate). The images lie beside the folder
# of the lists or in dataset* there, those of one case as SITE/Image/CASE/SLICE.png.


def client_lists(root: Path) -> dict[str, Path]:
    """Map clients to their data lists, in ``root/datalist_2D`` or in ``root`` of such a name.

    ``client_All``, which merges the lists, is left out, and so are lists that this package wrote.
    Every other JSON file is a list, so that a damaged one is a site whose error names the damage.
    """
    folders = sorted(folder for folder in root.glob("datalist*") if _is_for_lists(folder))
    if not folders and _is_for_lists(root):
        folders = [root]
    if len(folders) > 1:
        names = " and ".join(folder.name for folder in folders)
        raise DataError(f"{root} has lists in {names}. Give one of these folders.")
    clients = {}
    for folder in folders:
        for file in sorted(folder.glob("[!.]*.json")):
            written_here = False
            with suppress(DataError):
                written_here = "split" in _json_of_list(file)
            if not file.stem.lower().endswith("_all") and not written_here:
                clients[file.stem] = file
    return clients


def _is_for_lists(folder: Path) -> bool:
    name = folder.absolute().name
    return folder.is_dir() and (name == "datalist" or name.startswith("datalist_"))


def _json_of_list(file: Path) -> dict[str, Any]:
    try:
        # Windows begins files with a byte order mark, which the encoding skips.
        return object_of_json(file.read_text(encoding="utf-8-sig"))
    except (OSError, ValueError) as error:
        raise DataError(f"{file} cannot be read as JSON ({error}); export it again") from error


def _nvflare(folder: Path) -> Found | None:
    file = folder
    if not folder.is_file():
        lists = list(client_lists(folder).values())
        # A folder that holds its lists itself is one of sites, as one of several lists is.
        if len(lists) != 1 or lists[0].parent == folder:
            return None
        file = lists[0]
    content = _json_of_list(file)
    if "split" in content:
        raise DataError(f"{file}: this package wrote it for a site's folder; give that folder")
    if not isinstance(content.get("training"), list):
        keys = ", ".join(content) or "none"
        raise DataError(f'{file} has no list "training" of cases, but the keys {keys}; mend it')
    base = _base_of_list(file, content["training"])
    parts = {}
    for part in PARTS:
        if content.get(part):
            parts[part] = _listed_cases(content[part], base, str(file))
    cases = sorted_by_image(all_cases(parts))
    patients = {}
    for case in cases:
        # Slices of one patient lie as SITE/Image/CASE/SLICE.png.
        of_slices = Path(case["image"]).parent
        if of_slices.parent.name.lower() in IMAGES:
            patients[case["image"]] = str(of_slices)
    return Found(cases, parts, patients)


def _base_of_list(file: Path, cases: list[Any]) -> Path:
    """The folder that the paths of a list begin from, found by the list's first image."""
    beside = file.parent.parent
    with suppress(IndexError, KeyError, TypeError):
        for folder in (file.parent, beside, *sorted(beside.glob("dataset*/"))):
            if (folder / cases[0]["image"]).is_file():
                return folder
    raise DataError(f"{file}: its images are not in {beside} or {beside}/dataset*; put them there")


def _listed_cases(entries: Iterable[Any], folder: Path, where: str) -> list[CaseFiles]:
    """The cases of a list, with the folder before their paths.

    Args:
        entries: each with the paths ``image`` and ``label``.
        folder: that the paths begin at.
        where: the list, for errors.

    Raises:
        DataError: there is none, an entry is something else, or files do not exist.
    """
    try:
        cases = [
            {"image": str(folder / entry["image"]), "label": str(folder / entry["label"])}
            for entry in entries
        ]
    except (TypeError, KeyError) as error:
        fix = 'make each entry of "training" and others {"image": path, "label": path}'
        raise DataError(f"{where}: {fix}") from error
    problems = missing_files(cases) if cases else ["it lists no case"]
    if problems:
        raise DataError(f"{where}: {all_named(problems)}. Unpack them again, or mend the list.")
    return cases


# msd: a task of the Medical Segmentation Decathlon (Antonelli et al., Nature Communications 2022).
# nnunet: a raw data set of nnU-Net (Isensee et al., Nature Methods 2021), whose dataset.json names
# the files' ending (version 2), or lists images without the channel in their names (version 1).


def description_of(folder: Path) -> dict[str, Any]:
    """The content of ``dataset.json``; empty when there is none or it is no JSON object."""
    try:
        return object_of_json((folder / "dataset.json").read_text(encoding="utf-8-sig"))
    except (OSError, ValueError):
        return {}


def _lists_without_channel(folder: Path, description: dict[str, Any]) -> bool:
    """Whether images are listed without the channel that their names have (nnU-Net, version 1)."""
    with suppress(IndexError, KeyError, TypeError):
        image = folder / description["training"][0]["image"]
        with_channel = f"{stem(image)}_0000{image.name.removeprefix(stem(image))}"
        return not image.exists() and image.with_name(with_channel).exists()
    return False


def _nnunet(folder: Path) -> Found | None:
    description = description_of(folder)
    ending = description.get("file_ending")
    if not isinstance(ending, str):
        if not _lists_without_channel(folder, description):
            return None
        ending = ".nii.gz"
    ending = "." + ending.lstrip(".")
    images = _by_ending(folder / "imagesTr", f"_0000{ending}")
    labels = _by_ending(folder / "labelsTr", ending)
    if not images and not labels:
        where = f"{folder}: imagesTr/ and labelsTr/ hold no case"
        raise DataError(f"{where} with the ending {ending}, file_ending in dataset.json; mend that")
    found = pair(images, labels)
    if not _by_ending(folder / "imagesTr", f"_0001{ending}"):
        return found
    channels = description.get("channel_names") or description.get("modality") or {}
    named = channels.items() if isinstance(channels, dict) else enumerate(channels)
    listed = ", ".join(f"{key}: {name}" for key, name in named)
    note = f"channels are in files of their own ({listed}); the first, CASE_0000, is taken"
    return replace(found, notes=(note,))


def _by_ending(folder: Path, ending: str) -> Named:
    """The image files that have the ending, with the name before it."""
    files = [path for path in images_in(folder) if path.name.endswith(ending)]
    return [(path.name.removesuffix(ending), path) for path in files if path.name != ending]


def _msd(folder: Path) -> Found | None:
    """Take the cases under ``"training"``; those under ``"test"`` have no labels."""
    description = description_of(folder)
    is_nnunet = isinstance(description.get("file_ending"), str)
    if not isinstance(description.get("training"), list) or is_nnunet:
        return None
    if _lists_without_channel(folder, description):
        return None
    cases = _listed_cases(description["training"], folder, f"{folder}/dataset.json")
    modality = description.get("modality", {})
    channels = modality.values() if isinstance(modality, dict) else ()
    return Found(sorted_by_image(cases), channels=tuple(map(str, channels)))


def described_labels(folder: Path) -> Values:
    """What the values of a site's labels mean by its ``dataset.json``, in any layout.

    nnU-Net writes ``{"background": 0, "disc": [1, 2], "cup": 2}``, its first version and the
    Decathlon ``{"0": "background", "1": "disc"}``.

    Returns:
        Name -> lowest and highest value; empty where nothing is stated.

    Raises:
        DataError: the values of a label are no whole numbers.
    """
    labels = description_of(folder).get("labels")
    named: Values = {}
    for key, value in labels.items() if isinstance(labels, Mapping) else ():
        name, values = (value, [key]) if isinstance(value, str) else (key, value)
        try:
            numbers = [int(number) for number in (values if isinstance(values, list) else [values])]
            named[name] = [min(numbers), max(numbers)]
        except (TypeError, ValueError) as error:
            fault = f"{folder}/dataset.json: the label {key!r} has the value {value!r}"
            raise DataError(f"{fault}, which is no number and no list of some. Mend it.") from error
    return named


LAYOUTS: Mapping[str, tuple[str, Callable[[Path], Found | None]]] = {
    "saml": ("CaseNN.nii.gz beside CaseNN_segmentation.nii.gz", _saml),
    "folders": (
        "images/NAME.png and masks/NAME.png, or NAME_mask.png (also jpg, tif, bmp, nii.gz)",
        _folders,
    ),
    "dofe": ("{train,test}/ROIs/{image,mask}/NAME.png (DoFE's DomainN)", _dofe),
    "nvflare": (
        'datalist_2D/CLIENT.json with "training", "validation" and "testing", and the images they'
        " list (NVFlare)",
        _nvflare,
    ),
    "msd": (
        'dataset.json with "training": [{"image": ..., "label": ...}], imagesTr/ and labelsTr/'
        " (Decathlon)",
        _msd,
    ),
    "nnunet": (
        'dataset.json with "channel_names" and "file_ending", imagesTr/CASE_0000.nii.gz,'
        " labelsTr/CASE.nii.gz (nnU-Net)",
        _nnunet,
    ),
}
"""Name -> the layout in one line, and the function that finds a site's cases."""
