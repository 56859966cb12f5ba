# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Which folders are sites, and the layouts of public data sets, each recognised by its files.

A layout of your own is one more function in :data:`LAYOUTS`.
"""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache
from operator import itemgetter
from pathlib import Path
from typing import Any

from monai_fairfl.data.image_files import (
    count_of_files,
    files_under,
    images_in,
    kind_of_image,
    stem,
)
from monai_fairfl.errors import DataError, DataWarning
from monai_fairfl.utils.plain_values import object_of_json

PARTS = ("training", "validation", "testing")
FILES = ("image", "label")
# The highest number of a class; grey levels are above.
HIGHEST_CLASS = 31

StrPath = str | os.PathLike[str]

CaseFiles = dict[str, Any]
"""``{"image": path, "label": path}``, and ``"values"`` where pixel values code structures."""

Values = dict[str, list[int]]
"""Structure -> lowest and highest pixel value that belongs to it, both included."""


@dataclass(frozen=True)
class Found:
    """The cases of one site, with absolute paths.

    Args:
        layout: its name; ``"–"`` of a folder that was meant to be a site, empty of any other.
        cases: all of them, sorted by image.
        parts: the split that came with the data: some of ``training``, ``validation`` and
            ``testing``. ``None``: none.
        patients: image -> patient, where a patient has several cases; every other case is a patient
            of its own.
        labels: what each value of a label means, the background too, where the layout or a
            ``dataset.json`` states it.
        problems: of files that do not pair, one for each.

    >>> case = {"image": "/elm/Case00.nii.gz", "label": "/elm/Case00_segmentation.nii.gz"}
    >>> found = Found("saml", [case], patients={case["image"]: "patient 7"})
    >>> len(found.cases), found.parts, found.patients["/elm/Case00.nii.gz"]
    (1, None, 'patient 7')
    """

    layout: str = ""
    cases: Sequence[CaseFiles] = ()
    parts: dict[str, list[CaseFiles]] | None = None
    patients: Mapping[str, str] = field(default_factory=dict)
    labels: Values = field(default_factory=dict)
    problems: tuple[str, ...] = ()


# Lists of cases, and texts about many of them

BY_IMAGE = itemgetter("image")
"""Cases are sorted by this key."""


def all_cases(parts: Mapping[str, Sequence[CaseFiles]]) -> list[CaseFiles]:
    """The cases of all parts of a split, one part after the other.

    >>> all_cases({"training": [{"image": "a.png"}], "testing": [{"image": "b.png"}]})
    [{'image': 'a.png'}, {'image': 'b.png'}]
    """
    return [case for members in parts.values() for case in members]


def missing_files(cases: Sequence[CaseFiles]) -> list[str]:
    """A problem for each image and label that does not exist."""
    files = [case[name] for case in cases for name in FILES]
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


def text_of_files(files: Mapping[str, Any], told: str = "") -> str:
    """What :func:`~monai_fairfl.data.image_files.sort_files` found: the refused images, the counts.

    Args:
        files: what it returned.
        told: text that the user reads before; a reason in it is not repeated.

    >>> print(text_of_files({"used": 8, "refused": {"a.mha": "convert it"}, "not_images": 2}))
    refused: a.mha: convert it
    11 file(s): 8 used, 1 image(s) refused, 2 not an image
    """
    named = few(f"{file}: {why}" for file, why in files["refused"].items() if why not in told)
    return (f"refused: {named}\n" if named else "") + count_of_files(files)


# Images paired with masks, and eyes with patients, by the names of their files

# _mask, _OD; not _2, which is another image
_MASK_SUFFIX = re.compile(r"[_\-. ][A-Za-z_\-. ]+")
# A word of the name, with the mark before it, as in P0_left_2020 and OD_P0, or after a number at
# the end, as in RET002OD. A single letter may be a series there, as in 2024R.
_EYE = re.compile(r"(^|[_\-. ])(L|R|OD|OS|left|right)(?![^_\-. ])|(?<=\d)(OD|OS)$", re.IGNORECASE)


Named = list[tuple[str, Path]]
"""The name of a case, and a file of it."""


def pair(layout: str, images: Named, masks: Named) -> Found:
    """Pair the one image with the one mask of each case.

    >>> pair("folders", [("7", Path("images/7.jpg"))], [("7", Path("masks/7_OD.tif"))]).cases
    [{'image': 'images/7.jpg', 'label': 'masks/7_OD.tif'}]
    >>> pair("folders", [("7", Path("images/7.jpg"))], []).problems[0].partition(";")[0]
    '7 has 1 image(s) and 0 mask(s), images/7.jpg'
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
        else:
            listed = few(f"{path.parent.name}/{path.name}" for path in image + mask)
            counts = f"{len(image)} image(s) and {len(mask)} mask(s), {listed}"
            fix = "give each image one mask, whose name begins as the image's"
            problems.append(f"{name} has {counts}; {fix}")
    return Found(layout, cases, problems=tuple(problems))


def pair_by_stem(layout: str, images: Sequence[Path], masks: Sequence[Path]) -> Found:
    """Pair images with the masks of the same stem, or of the same stem and one common suffix."""
    stems = {stem(path) for path in images}
    named = []
    example_of: dict[str, str] = {}
    for path in masks:
        name = stem(path)
        # The longest image stem that the mask's begins with.
        begins = [name[:end] for end in range(1, len(name) + 1) if name[:end] in stems]
        suffix = name.removeprefix(begins[-1]) if begins else ""
        if _MASK_SUFFIX.fullmatch(suffix):
            example_of.setdefault(suffix, path.name)
            name = begins[-1]
        named.append((name, path))
    found = pair(layout, [(stem(path), path) for path in images], named)
    problems = list(found.problems)
    if len(example_of) > 1:  # such as of discs and of cups
        examples = few(sorted(example_of.values()))
        problems.append(f"the masks end differently, {examples}. Keep the files of one ending")
    return replace(found, patients=patients_of(found.cases), problems=tuple(problems))


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
        for eye in _EYE.finditer(name):
            # Of several words the last one is the eye: L may be a series in L_12_OD.
            patient = (name[: eye.start()] + name[eye.end() :]).lstrip("_-. ")
            if patient:
                patients[case["image"]] = patient
    return patients


# Each layout is a function of a folder: the cases of a site, or None where the folder has another
# layout. A DataError names what is missing or cannot be understood in a folder of this one.


# saml: the public six-site prostate set of Liu et al., MS-Net, IEEE TMI 2020
# (https://liuquande.github.io/SAML/). Both spellings of the suffix occur there.

_NIFTI = re.compile(r"(?P<case>.+?)(?P<mask>_segmentation)?\.nii(\.gz)?", re.IGNORECASE)
# As other tools name masks.
_AS_A_MASK = re.compile("_(seg|mask|label|gt)$", re.IGNORECASE)


def _saml(folder: Path) -> Found | None:
    images: Named = []
    masks: Named = []
    # Broken links too, so that a check can name them.
    for path in folder.glob("[!.]*"):
        match = _NIFTI.fullmatch(path.name)
        if match and not path.is_dir():
            (masks if match["mask"] else images).append((match["case"], path))
    problems = []
    names, drawn = {case for case, _ in images}, {case for case, _ in masks}
    for case, path in sorted(images):
        image = _AS_A_MASK.sub("", case)
        if image in names - {case} and not drawn & {image, case}:
            images.remove((case, path))
            masks.append((image, path))
            ending = path.name.removeprefix(case)
            problems.append(f"rename the mask {path.name} to {image}_segmentation{ending}")
    found = pair("saml", images, masks)
    found = replace(found, problems=(*problems, *found.problems))
    return found if images or masks else None


# folders: images in one folder and masks in another

IMAGES = ("images", "image", "imgs", "img")
MASKS = ("masks", "mask", "labels", "label")
# Of masks where none of these holds any.
OTHER_MASKS = ("segmentations", "segmentation", "segs", "seg", "annotations")


def _folders(folder: Path) -> Found | None:
    inner = sorted(folder.iterdir())
    sides = []
    for names, others in ((IMAGES, ()), (MASKS, OTHER_MASKS)):
        filled = [path for path in inner if path.name.lower() in names and images_in(path)]
        filled = filled or [p for p in inner if p.name.lower() in others and images_in(p)]
        if not filled:
            return None
        if len(filled) > 1:
            raise DataError(f"{folder} has {few(filled)}. Keep one, move the other away.")
        sides.append(images_in(filled[0]))
    return pair_by_stem("folders", *sides)


# dofe: a domain of the multi-site fundus set of Wang et al., DoFE, IEEE TMI 2020
# (https://github.com/emma-sjwang/Dofe): crops around the optic disc, with test images of its own.

# Its masks are bright outside. These are the published bounds of cup and rim.
_DOFE_LABELS = {"background": [201, 255], "disc": [0, 200], "cup": [0, 50]}


def _dofe(folder: Path) -> Found | None:
    parts: dict[str, list[CaseFiles]] = {}
    patients: dict[str, str] = {}
    problems: list[str] = []
    for part, name in (("training", "train"), ("testing", "test")):
        crops = folder / name / "ROIs"
        if crops.is_dir():
            found = pair_by_stem("dofe", images_in(crops / "image"), images_in(crops / "mask"))
            parts[part] = sorted(found.cases, key=BY_IMAGE)
            patients |= found.patients
            problems += found.problems
    if not parts:
        return None
    own_parts = parts if "testing" in parts else None
    return Found("dofe", all_cases(parts), own_parts, patients, _DOFE_LABELS, tuple(problems))


# nvflare: a client's data list of NVIDIA FLARE's prostate example, which has its split
# (https://github.com/NVIDIA/NVFlare, examples/advanced/prostate). The images lie beside the folder
# of the lists or in dataset* there, those of one case as SITE/Image/CASE/SLICE.png.


def client_lists(root: Path) -> dict[str, Path]:
    """Map clients to their data lists, in ``root/datalist_2D`` or in ``root`` of such a name.

    ``client_All``, which merges the lists, is left out, and so are lists that this package wrote.
    Every other JSON file is a list, so that a damaged one is a site whose error names the damage.
    """
    clients = {}
    for folder in (root, *sorted(root.glob("datalist*"))):
        if re.fullmatch("datalist(_.*)?", folder.absolute().name):
            for file in sorted(folder.glob("[!.]*.json")):
                content: dict[str, Any] = {}
                with suppress(DataError):
                    content = _read_json(file)
                if "split" not in content and not file.stem.lower().endswith("_all"):
                    clients[file.stem] = file
    return clients


def _read_json(file: Path) -> dict[str, Any]:
    """The content of a JSON file, of which a process reads each version once."""
    version = file.stat()
    return _content(file, version.st_mtime_ns, version.st_size)


@lru_cache
def _content(file: Path, *version: int) -> dict[str, Any]:
    try:
        # Windows begins files with a byte order mark, which the encoding skips.
        return object_of_json(file.read_text(encoding="utf-8-sig"))
    except (OSError, ValueError) as error:
        raise DataError(f"{file} cannot be read as JSON ({error}); mend it") from error


def _nvflare(file: Path) -> Found:
    content = _read_json(file)
    beside = file.parent.parent
    bases = [file.parent, beside, *sorted(beside.glob("dataset*/"))]
    parts = {}
    for part in PARTS:
        if content.get(part) or part == "training":
            parts[part] = _listed_cases(content.get(part), bases, file)
    patients = {}
    for case in all_cases(parts):
        # Slices of one patient lie as SITE/Image/CASE/SLICE.png.
        of_slices = Path(case["image"]).parent
        if of_slices.parent.name.lower() in IMAGES:
            patients[case["image"]] = str(of_slices)
    return Found("nvflare", all_cases(parts), parts, patients)


def _listed_cases(entries: Any, bases: Sequence[Path], file: Path) -> list[CaseFiles]:
    """The cases of a list, with absolute paths.

    Args:
        entries: each with the paths ``image`` and ``label``.
        bases: folders that the paths may begin at; the first image decides.
        file: of the list, for errors.

    Raises:
        DataError: there is none, an entry is something else, or files do not exist.
    """
    try:
        first = entries[0]["image"]
        base = next((base for base in bases if (base / first).is_file()), bases[-1])
        cases = [
            {name: os.path.normpath(base / entry[name]) for name in FILES} for entry in entries
        ]
    except (TypeError, KeyError, IndexError) as error:
        raise DataError(f'{file}: "training" must list cases with image and label') from error
    if problems := missing_files(cases):
        raise DataError(f"{file}: {all_named(problems)}. Unpack them again, or mend the list.")
    return cases


# msd: a task of the Medical Segmentation Decathlon (Antonelli et al., Nature Communications 2022),
# whose "training" has labels. nnunet: a raw data set of nnU-Net (Isensee et al., Nature Methods
# 2021), whose dataset.json names the files' ending (version 2), or lists images without the channel
# in their names (version 1).


def _of_dataset_json(folder: Path) -> Found | None:
    file = folder / "dataset.json"
    if not file.exists():
        return None
    description = _read_json(file)
    with suppress(AttributeError, LookupError, TypeError):  # no list of version 2.2
        files = description["dataset"].values()
        entries = [{"image": each["images"][0], "label": each["label"]} for each in files]
        return Found("nnunet", _listed_cases(entries, [folder], file))
    ending = str(description.get("file_ending") or "")
    with suppress(IndexError, KeyError, TypeError):
        image = folder / description["training"][0]["image"]
        if not image.exists() and image.with_name(f"{stem(image)}_0000.nii.gz").exists():
            ending = ending or ".nii.gz"
    if not ending and "training" not in description:
        return None
    if not ending:
        return Found("msd", _listed_cases(description["training"], [folder], file))
    ending = "." + ending.lstrip(".")
    inner = {path.name.lower(): path for path in sorted(folder.iterdir())}
    images, masks = (images_in(inner.get(name, folder / name)) for name in ("imagestr", "labelstr"))
    sides = []
    for paths, end in ((images, f"_0000{ending}"), (masks, ending)):
        named = [path for path in paths if path.name.endswith(end)]
        sides.append([(path.name.removesuffix(end), path) for path in named])
    if images and not any(sides):
        held = f"imagesTr holds {images[0].name}"
        raise DataError(f"{file}: file_ending is {ending!r}, but {held}: mend it there")
    return pair("nnunet", *sides) if any(sides) else None


def described_labels(site: StrPath) -> Values:
    """What the values of a site's labels mean by its ``dataset.json``, in any layout.

    nnU-Net writes ``{"background": 0, "disc": [1, 2], "cup": 2}``, its first version and the
    Decathlon ``{"0": "background", "1": "disc"}``.

    Returns:
        Name in small letters -> lowest and highest value; empty where nothing is stated.

    Raises:
        DataError: the values of a label are no whole numbers, or numbers of classes with a gap.
    """
    file = name_and_folder(site)[1] / "dataset.json"
    labels = _read_json(file).get("labels") if file.exists() else None
    named: Values = {}
    for key, value in labels.items() if isinstance(labels, Mapping) else ():
        is_named = isinstance(value, str) and key.isdigit()
        name, values = (value, [key]) if is_named else (key, value)
        try:
            numbers = [int(number) for number in (values if isinstance(values, list) else [values])]
            low, high = min(numbers), max(numbers)
        except (TypeError, ValueError) as error:
            raise DataError(f"{file}: label {key!r} has the value {value!r}. Mend it.") from error
        # Two grey levels are a range; of nnU-Net's lists of classes, what is between is another's.
        if high <= HIGHEST_CLASS and (left_out := {*range(low, high)} - {*numbers}):
            raise DataError(
                f"{file}: label {key!r} is {value} without {min(left_out)}; list that too if it "
                "is part of it, else number its values in a row, in the masks too"
            )
        named[name.lower()] = [low, high]
    return named


LAYOUTS = (_saml, _folders, _dofe, _of_dataset_json)
"""Of a folder; a file is a list of ``nvflare``."""


# Which folders are sites, which layout each has, and its cases

CONVERT_DICOM = "to NIfTI, for example with dcm2niix"
# Names, in small letters, that only a folder that is meant to be a site holds.
_NAMES_IN_A_SITE = {*IMAGES, *MASKS, "imagestr", "labelstr", "dataset.json"}
# Folders of the file system itself, in small letters: a disk has them beside the hospitals.
_OF_THE_FILE_SYSTEM = {"lost+found", "$recycle.bin", "system volume information"}


def find_cases(site_dir: StrPath) -> list[CaseFiles]:
    """Pair the images of a site with their masks.

    Args:
        site_dir: the site's folder, of any layout, or its data list (NVFlare).

    Returns:
        One ``{"image": path, "label": path}`` per case, sorted by image.

    Raises:
        DataError: no such folder, no layout recognises it, or files do not pair; the error names
            all of them.

    >>> find_cases("/no/such/folder")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
        ...
    monai_fairfl.errors.DataError: /no/such/folder is not a folder...
    """
    found = recognise(site_dir)
    if found.problems:
        raise DataError(all_named(found.problems))
    return list(found.cases)


def recognise(site_dir: StrPath, must: bool = True) -> Found:
    """All that the files of a site say of its cases, by the one layout that they have.

    Args:
        site_dir: the site's folder, or its data list where that is the site (NVFlare).
        must: whether it must be a sound site. Else one whose files cannot be understood has no
            cases.

    Raises:
        DataError: no such folder, this account may not read it, no layout or several have such
            files, or they are missing or cannot be understood.
    """
    site = Path(site_dir)
    if not site.exists():
        raise DataError(f"{site} is not a folder. Give the one of the site's images and labels.")
    try:
        looks = LAYOUTS if site.is_dir() else (_nvflare,)
        results = [found for found in (look(site) for look in looks) if found]
        labels = described_labels(site)
        if len(results) > 1:
            kinds = " and ".join(found.layout for found in results)
            raise DataError(f"{site} could be of the layouts {kinds}. Keep the files of one.")
        for found in results:
            problems = tuple(f"{site}: {problem}" for problem in found.problems)
            cases, labels = sorted(found.cases, key=BY_IMAGE), labels or found.labels
            return replace(found, cases=cases, labels=labels, problems=problems)
        if must:
            raise DataError(f"{site} holds no case: {_describe(site)}; see docs/data.md")
    except DataError:
        if must:
            raise
        return Found("–")
    except PermissionError as error:
        raise DataError(f"this account may not read {site}; change the permissions") from error
    names = {path.name.lower() for path in site.glob("*")}
    return Found("–" if names & _NAMES_IN_A_SITE else "")


def site_folders(root: StrPath, must: bool = True) -> dict[str, Path]:
    """Find the sites under ``root``, each with what its ``dataset_dir`` must be.

    That is one folder per site, each of any layout, and the data lists of ``root/datalist_2D``,
    where a list is a site and the folders of its images are none. A folder that was meant to be a
    site, such as one with ``images/`` but no masks, is one: its check names what is missing. Other
    folders are left out, with a warning where they hold images.

    Args:
        root: the folder of all sites.
        must: whether there must be a site.

    Returns:
        Site -> its folder or data list, sorted.

    Raises:
        DataError: ``root`` is no folder, there is no site in it, a list and a folder have one
            name, or this account may not read a folder.

    >>> import tempfile
    >>> from monai_fairfl.data import SITES, write_sites
    >>> root = tempfile.mkdtemp()
    >>> _ = write_sites(root, sites=SITES[:2], size=(24, 24, 6), cases=1)
    >>> [(name, folder.name) for name, folder in site_folders(root).items()]
    [('alder', 'alder'), ('birch', 'birch')]
    """
    # Without "..", as the folders of a data list are.
    root = Path(os.path.abspath(root))
    if not root.is_dir():
        raise DataError(f"{root} is no folder. Give the folder that holds one folder per site.")
    lists = client_lists(root)
    sites = dict(lists)
    # The folders above the images of the lists are not sites themselves, nor are those above them.
    listed: set[Path] = set()
    for file in lists.values():
        for case in recognise(file, must=False).cases:
            listed.update(Path(case["image"]).parents)

    notes = []
    for folder in folders_in(root):
        if folder in listed or (lists and folder.name.startswith("datalist")):
            continue
        # An empty folder is a hospital's whose data did not arrive, unless there are lists.
        if recognise(folder, must=False).layout or not (lists or any(folder.glob("[!.]*"))):
            if folder.name in lists:
                raise DataError(f"{lists[folder.name]} and {folder}: rename one of them")
            sites[folder.name] = folder
        elif any(kind_of_image(file) for file in files_under(folder)):
            notes.append(
                f"{folder} holds no site of docs/data.md directly, and is left out: "
                f"{_describe(folder)}"
            )
    if must and not sites:
        fault = f"{root} has no site: none of its folders holds images with labels"
        if layout := recognise(root, must=False).layout:
            fault += f". It is a site itself ({layout}): give the folder that holds it"
        raise DataError("\n- ".join([fault, *notes]))
    for note in notes:
        warnings.warn(note, DataWarning, stacklevel=2)
    return dict(sorted(sites.items()))


def folders_in(root: Path) -> list[Path]:
    """The folders of ``root``, sorted, without hidden ones and those of the file system itself.

    >>> import tempfile
    >>> root = Path(tempfile.mkdtemp())
    >>> for name in ("elm", ".cache", "lost+found"):
    ...     (root / name).mkdir()
    >>> [folder.name for folder in folders_in(root)]
    ['elm']
    """
    folders = [path for path in sorted(root.glob("[!.]*")) if path.is_dir()]
    return [path for path in folders if path.name.lower() not in _OF_THE_FILE_SYSTEM]


def sites_at(path: StrPath) -> dict[str, Path]:
    """The site at ``path``, or all sites under it, as :func:`site_folders` gives them.

    Raises:
        DataError: there is none.

    >>> import tempfile
    >>> from monai_fairfl.data import SITES, write_sites
    >>> with tempfile.TemporaryDirectory() as root:
    ...     _ = write_sites(root, sites=SITES[:2], size=(24, 24, 6), cases=1)
    ...     list(sites_at(root)), list(sites_at(f"{root}/alder"))
    (['alder', 'birch'], ['alder'])
    """
    path = Path(path)
    found = recognise(path, must=False)
    # Images without masks beside the folders of sites are no site.
    inner = folders_in(path) if found.layout == "saml" and not found.cases else []
    holds_sites = client_lists(path) or any(recognise(each, must=False).layout for each in inner)
    if path.is_file() or (found.layout and not holds_sites):
        return {name_and_folder(path)[0]: path}
    return site_folders(path)


def name_and_folder(site_dir: StrPath) -> tuple[str, Path]:
    """The name of a site, and the folder that its paths begin at.

    Of a data list (NVFlare): its name without the ending, and the folder that it lies in.

    >>> name_and_folder("/hospitals/elm")[0]
    'elm'
    """
    # Also of "." and "..", which have no name of their own.
    path = Path(os.path.abspath(site_dir))
    return (path.stem, path.parent) if path.is_file() else (path.name, path)


def _describe(site: Path) -> str:
    """The first files of a folder, and the fix for DICOM.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> (folder / "7.png").touch()
    >>> _describe(folder)
    '7.png'
    """
    held = sorted(path for path in files_under(site) if path.name[0] != ".")
    has_dicom = "DICOM" in map(kind_of_image, held)
    fix = f"; convert the DICOM series {CONVERT_DICOM}" if has_dicom else ""
    names = {path.name.lower() for path in site.glob("*")}
    if "imagestr" in names and "dataset.json" not in names:
        fix = f" (dataset.json is missing){fix}"
    return (few(os.path.relpath(path, site) for path in held) or "nothing") + fix
