# Copyright (c) MONAI FairFL contributors
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#     http://www.apache.org/licenses/LICENSE-2.0
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS,
# WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
# See the License for the specific language governing permissions and
# limitations under the License.
"""Data lists for sites in the layout of the public six-site prostate set: ``SITE/CaseNN.nii.gz`` beside its mask.

The layout is that of Liu et al., *MS-Net*, IEEE TMI 2020 (https://liuquande.github.io/SAML/). A mask is named
``CaseNN_segmentation`` or ``CaseNN_Segmentation``; both spellings occur in the published folders.
"""

from __future__ import annotations

import inspect
import json
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from monai_fairfl.errors import DataError

__all__ = ["find_cases", "find_sites", "site_datalist", "split_cases"]

Case = dict[str, str]
PARTS = ("training", "validation", "testing")
_NIFTI = re.compile(r"(?P<case>.+?)(?P<mask>_segmentation)?\.nii(\.gz)?", re.IGNORECASE)


def _scan(site_dir: Path) -> tuple[dict[str, list[Path]], dict[str, list[Path]]]:
    """Images and masks of a folder by case."""
    if not site_dir.is_dir():
        raise DataError(f"{site_dir} is not a folder. Give the folder that holds the site's CaseNN.nii.gz files.")
    images: dict[str, list[Path]] = {}
    masks: dict[str, list[Path]] = {}
    for path in sorted(site_dir.iterdir()):
        match = _NIFTI.fullmatch(path.name)
        if match and path.is_file() and not path.name.startswith("."):
            (masks if match["mask"] else images).setdefault(match["case"], []).append(path)
    return images, masks


def find_sites(root: str | os.PathLike[str]) -> list[str]:
    """List the folders under ``root`` that hold at least one NIfTI file, which is where the sites are.

    Args:
        root: folder with one folder per site.

    Returns:
        The folders' names, sorted.

    Raises:
        DataError: ``root`` is no folder, or no folder in it holds a NIfTI file.

    >>> import tempfile
    >>> from monai_fairfl.data import SITES, write_sites
    >>> root = tempfile.mkdtemp()
    >>> _ = write_sites(root, sites=SITES[:2], size=(24, 24, 6), cases=1)
    >>> find_sites(root)
    ['alder', 'birch']
    """
    root = Path(root)
    if not root.is_dir():
        raise DataError(f"{root} is not a folder. Give the folder that holds one folder per site.")
    sites = sorted(path.name for path in root.iterdir() if path.is_dir() and any(_scan(path)))
    if not sites:
        raise DataError(f"{root} has no site: none of its folders holds SITE/CaseNN.nii.gz. Check the path.")
    return sites


def find_cases(site_dir: str | os.PathLike[str]) -> list[Case]:
    """Pair the images of a site with their masks.

    Args:
        site_dir: folder with ``CaseNN.nii[.gz]`` and ``CaseNN_segmentation.nii[.gz]``, in any case of letters.

    Returns:
        One ``{"image": path, "label": path}`` per case, sorted by image.

    Raises:
        DataError: no such folder, no case, or files that do not pair; all of them are named.

    >>> find_cases("/no/such/folder")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
        ...
    monai_fairfl.errors.DataError: /no/such/folder is not a folder...
    """
    site_dir = Path(site_dir)
    images, masks = _scan(site_dir)
    problems = []
    for case in sorted(images.keys() | masks.keys()):
        names = {
            kind: [path.name for path in found.get(case, [])] for kind, found in (("image", images), ("label", masks))
        }
        if not names["label"]:
            problems.append(f"{names['image'][0]} has no label; add {case}_segmentation.nii.gz or remove the image")
        elif not names["image"]:
            problems.append(f"{names['label'][0]} has no image; add {case}.nii.gz or remove the label")
        for kind, found in names.items():
            if len(found) > 1:
                problems.append(f"{case} has {len(found)} {kind}s, {' and '.join(found)}; keep one")
    if problems:
        raise DataError(f"{site_dir}: " + "; ".join(problems) + ".")
    if not images:
        raise DataError(f"{site_dir} holds no case. Put CaseNN.nii.gz and CaseNN_segmentation.nii.gz there.")
    return [{"image": str(images[case][0]), "label": str(masks[case][0])} for case in sorted(images)]


def split_cases(
    cases: Sequence[Case],
    *,
    fractions: Sequence[float] = (0.5, 0.25, 0.25),
    folds: int | None = None,
    fold: int = 0,
    validation: float = 0.2,
    seed: int = 0,
) -> dict[str, list[Case]]:
    """Split by case, so that no patient is in two parts.

    Without ``folds`` this is FedCE's rule (Jiang et al., CVPR 2023, released code): shuffle once, round(0.5 n) train,
    round(0.25 n) validate, the rest tests; each part gets at least one case. With ``folds`` it is cross-validation:
    each case is tested in exactly one fold.

    Args:
        cases: any order; they are sorted first.
        fractions: shares of training, validation and testing, which sum to 1; not used with ``folds``.
        folds: number of folds, at least 2.
        fold: which fold is tested, from 0.
        validation: share of the cases outside the fold that validates, rounded, at least one case.
        seed: of the shuffle.

    Returns:
        ``training``, ``validation`` and ``testing``, each sorted.

    Raises:
        DataError: too few cases, or shares and folds that are out of range.

    >>> cases = [{"image": f"Case{n:02d}.nii.gz", "label": f"Case{n:02d}_segmentation.nii.gz"} for n in range(39)]
    >>> {part: len(members) for part, members in split_cases(cases).items()}
    {'training': 20, 'validation': 10, 'testing': 9}
    >>> {part: len(members) for part, members in split_cases(cases, folds=3, fold=1).items()}
    {'training': 21, 'validation': 5, 'testing': 13}
    """
    n = len(cases)
    if n < 3:
        raise DataError(
            f"{n} case(s) cannot be split into training, validation and testing. Add cases; 3 is the least."
        )
    shuffled = sorted(cases, key=lambda case: case["image"])
    np.random.default_rng(seed).shuffle(shuffled)
    if folds is None:
        if len(fractions) != 3 or min(fractions) <= 0 or abs(sum(fractions) - 1) > 1e-6:
            raise DataError(
                f"fractions={tuple(fractions)}: give three positive shares that sum to 1, as (0.5, 0.25, 0.25)."
            )
        train = min(max(1, round(fractions[0] * n)), n - 2)
        end = min(train + max(1, round(fractions[1] * n)), n - 1)
        parts = [shuffled[:train], shuffled[train:end], shuffled[end:]]
    else:
        if not 2 <= folds <= n or not 0 <= fold < folds or not 0 < validation < 1:
            raise DataError(
                f"folds={folds}, fold={fold}, validation={validation} with {n} cases: give 2 <= folds <= {n},"
                " 0 <= fold < folds and 0 < validation < 1."
            )
        testing = shuffled[fold::folds]
        rest = [case for index, case in enumerate(shuffled) if index % folds != fold]
        np.random.default_rng([seed, fold]).shuffle(rest)
        count = min(max(1, round(validation * len(rest))), len(rest) - 1)
        if count < 1:
            raise DataError(f"{n} cases in {folds} folds leave nothing to validate. Add cases or use more folds.")
        parts = [rest[count:], rest[:count], testing]
    return {name: sorted(part, key=lambda case: case["image"]) for name, part in zip(PARTS, parts)}


def _read_datalist(file: Path, dataset_dir: Path, split: dict[str, Any]) -> dict[str, list[Case]]:
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
        parts = {
            part: [{key: str(case[key]) for key in ("image", "label")} for case in content[part]] for part in PARTS
        }
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(
            f"{file} is no data list ({type(error).__name__}: {error}). It needs the keys training, validation and"
            ' testing, each a list of {"image": path, "label": path}. Mend it, or delete it to have it made.'
        ) from error
    if content.get("split", split) != split:
        raise DataError(
            f"{file} was made with {content['split']}, not with {split}. Delete it to split anew, choose another file,"
            " or give its arguments."
        )
    paths = [dataset_dir / path for cases in parts.values() for case in cases for path in case.values()]
    missing = [str(path) for path in paths if not path.is_file()]
    if missing:
        raise DataError(
            f"{file} lists {len(missing)} file(s) that do not exist, first {missing[0]}. Check dataset_dir, or delete"
            " the list to have it made anew."
        )
    return parts


def site_datalist(
    dataset_dir: str | os.PathLike[str], file: str | os.PathLike[str] | None = None, **split: Any
) -> dict[str, list[Case]]:
    """Data list of a site, for a bundle's config: read from ``file`` if that exists, else made and written there.

    The file is JSON with paths relative to ``dataset_dir`` and the arguments of the split under ``split``; a list made
    by hand needs no ``split`` and is used as it is. So every run of a site sees the same cases.

    Args:
        dataset_dir: the site's folder.
        file: the list; nothing is read or written without it.
        split: arguments of :func:`split_cases`.

    Returns:
        ``training``, ``validation`` and ``testing`` with absolute paths.

    Raises:
        DataError: the file lacks keys, names files that do not exist, or was made with other arguments.

    >>> import tempfile
    >>> from monai_fairfl.data import SITES, write_sites
    >>> root = tempfile.mkdtemp()
    >>> _ = write_sites(root, sites=SITES[:1], size=(24, 24, 6), cases=4)
    >>> datalist = site_datalist(f"{root}/alder", f"{root}/alder.json", seed=3)
    >>> [len(datalist[part]) for part in ("training", "validation", "testing")]
    [2, 1, 1]
    """
    dataset_dir = Path(dataset_dir).absolute()
    bound = inspect.signature(split_cases).bind([], **split)
    bound.apply_defaults()
    used = ("fractions", "seed") if bound.kwargs["folds"] is None else ("folds", "fold", "validation", "seed")
    record = json.loads(json.dumps({key: bound.kwargs[key] for key in used}))
    if file is not None and Path(file).exists():
        parts = _read_datalist(Path(file), dataset_dir, record)
    else:
        cases = find_cases(dataset_dir)
        relative = [{key: os.path.relpath(path, dataset_dir) for key, path in case.items()} for case in cases]
        parts = split_cases(relative, **split)
        if file is not None:
            content = json.dumps({**parts, "split": record}, indent=2)
            Path(file).parent.mkdir(parents=True, exist_ok=True)
            partial = Path(f"{file}.{os.getpid()}.part")
            partial.write_text(content, encoding="utf-8")
            os.replace(partial, file)
    return {
        part: [{key: str(dataset_dir / path) for key, path in case.items()} for case in cases]
        for part, cases in parts.items()
    }
