# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Checks of the sites' files, which find what would stop or spoil a training before it begins."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from monai_fairfl.data.inspection import Inspection, inspect_site, labels_of
from monai_fairfl.data.layouts import CaseFiles
from monai_fairfl.data.layouts.base import all_named, few
from monai_fairfl.errors import DataError, DataWarning

LISTED = 3
"""Problems of a site that an error lists: a wrong folder has one for each file."""


def check_cases(
    site_dir: str | os.PathLike[str],
    structures: Sequence[str] = (),
    values: Mapping[str, Sequence[int]] | None = None,
    stereo: bool | None = None,
    cases: Sequence[CaseFiles] | None = None,
) -> Summary:
    """Read every file of a site and report all that would stop a training later.

    Every file must be readable to its end, an image and its label of one size and not the same
    pixels. Volumes must be 3D (images of a layout that states its channels may be 4D), with affines
    that place every corner within 0.01 mm and the rounding of rotations; images finite, labels
    whole numbers from 0. Masks that are pictures must have a few values, give or take the noise of
    JPEG. A case with an empty label, channels that need a choice and files that occur twice are
    warnings; a site where all labels are empty is an error.

    Args:
        site_dir: the site's folder, of any layout, or its data list (NVFlare); see
            :func:`find_cases`.
        structures: names of nested structures, the outermost first, whose pixel values must be
            found in the masks.
        values: the same given by hand: structure -> ``[lowest, highest]``.
        stereo: whether photographs are pairs of views side by side; ``None``: by their shape, which
            is noted, and an error where a label lies in the half that is not used.
        cases: the only ones that are checked, of a data list, with absolute paths; the other files
            of the site may have faults, and all these labels may be empty. ``None``: all cases.

    Returns:
        For JSON: ``site``, ``layout``, ``num_cases``, ``labels`` (values found), ``gland_slices``
        (slices, or pictures, with a label), ``values`` where structures were asked for, and
        ``cases`` with ``image``, ``shape`` (voxels, or rows and columns), ``spacing`` (mm, of
        volumes), ``channels`` (of pictures, or if above 1), ``labels`` and ``gland_slices`` of
        each.

    Raises:
        DataError: with the number of problems, and the first three.

    >>> import tempfile
    >>> from monai_fairfl.data import SITES, write_sites
    >>> root = tempfile.mkdtemp()
    >>> _ = write_sites(root, sites=SITES[:1], size=(24, 24, 6), cases=2)
    >>> summary = check_cases(f"{root}/alder")
    >>> summary["layout"], summary["num_cases"], summary["labels"]
    ('saml', 2, [0, 1])
    """
    inspection = inspect_site(site_dir, structures, values, stereo, cases)
    if inspection.problems:
        listed = all_named(inspection.problems, LISTED, separator="\n- ")
        if len(inspection.problems) > LISTED:
            listed += f"; monai-fairfl doctor {site_dir} lists all"
        raise DataError(f"{site_dir}: {len(inspection.problems)} problem(s)\n- {listed}")
    for note in [*inspection.notes, *check_duplicates({inspection.site: inspection})]:
        warnings.warn(note, DataWarning, stacklevel=2)
    return summary_of(inspection)


class Summary(dict[str, Any]):
    """A site's summary for JSON, which also has the inspection that it is of."""

    inspection: Inspection


def summary_of(inspection: Inspection) -> Summary:
    """Summarise an inspection for JSON, see :func:`check_cases`."""
    lines = inspection.lines
    summary = Summary(
        site=inspection.site,
        layout=inspection.layout,
        num_cases=len(lines),
        labels=labels_of(lines),
        gland_slices=sum(line["gland_slices"] for line in lines),
    )
    summary.inspection = inspection
    if inspection.values:
        summary["values"] = dict(inspection.values)
    summary["cases"] = lines
    return summary


def check_duplicates(sites: Mapping[str, str | os.PathLike[str] | Inspection]) -> list[str]:
    """Find the same image, or the same label of different images, at two sites or twice at one.

    Files are compared by the SHA-256 of their decoded pixels, so a copy in another lossless format
    counts too. A score on an image that was trained elsewhere is too good. Empty labels are alike
    and not compared.

    Args:
        sites: site -> its folder or data list, or its inspection.

    Returns:
        One sentence for each group of copies, with the fix; none when there is no copy.

    >>> import shutil, tempfile
    >>> from monai_fairfl.data import SITES, site_folders, write_sites
    >>> root = tempfile.mkdtemp()
    >>> _ = write_sites(root, sites=SITES[:1], size=(24, 24, 6), cases=2)
    >>> _ = shutil.copytree(f"{root}/alder", f"{root}/copy")
    >>> len(check_duplicates(site_folders(root)))
    2
    """
    # Digest of an image -> where each of its copies is.
    images: dict[str, list[str]] = {}
    # Digest of a label -> digest of an image -> where the label is.
    labels: dict[str, dict[str, str]] = {}
    for site, source in sites.items():
        inspection = source if isinstance(source, Inspection) else inspect_site(source)
        for image, label in inspection.files:
            images.setdefault(image.digest, []).append(f"{site}: {image.path}")
            if label.labelled_slices:
                images_of_label = labels.setdefault(label.digest, {})
                images_of_label.setdefault(image.digest, f"{site}: {label.path}")
    found = []
    for copies in images.values():
        if len(copies) > 1:
            places = ", ".join(copies)
            found.append(f"the same image occurs {len(copies)} times, {places}. Keep one.")
    for images_of_label in labels.values():
        if len(images_of_label) > 1:
            places = ", ".join(images_of_label.values())
            found.append(f"different images have the same label, {places}. Look for the right one.")
    return found


def check_label_values(sites: Mapping[str, Inspection]) -> list[str]:
    """Find sites whose masks have more values than those of others, such as a second structure.

    Which numbers they are does not matter: one site may write 255 where others write 1. Sites whose
    structures were looked for are not compared.

    Args:
        sites: site -> its inspection.

    Returns:
        One note, or none where the sites have equally many values. It names the masks that have a
        value which at most half of their site's masks have.
    """
    # Site -> mask -> its values, without the background.
    labels: dict[str, dict[str, set[int]]] = {}
    numbers_of_values = set()
    for site, inspection in sites.items():
        of_masks = {label.path: set(label.labels) - {0} for _, label in inspection.files}
        values = set().union(*of_masks.values())
        if values and not inspection.values:
            labels[site] = of_masks
            numbers_of_values.add(len(values))
    if len(numbers_of_values) < 2:
        return []
    listed = [f"{site} has {_values_in_words(of_masks)}" for site, of_masks in labels.items()]
    return [
        f"the sites' masks have different numbers of labels: {'; '.join(listed)}. Check that they "
        "mean the same: the prostate bundle takes every label above 0 for the gland"
    ]


def _values_in_words(of_masks: Mapping[str, set[int]]) -> str:
    """How many masks of a site have each value, and which ones have a rare value.

    >>> _values_in_words({"elm/a.nii": {1}, "elm/b.nii": {1}, "elm/c.nii": {255}})
    '1 in 2 of 3 cases, 255 in 1 of 3 cases (elm/c.nii)'
    """
    parts = []
    for value in sorted(set().union(*of_masks.values())):
        masks = [mask for mask, values in of_masks.items() if value in values]
        part = f"{value} in {len(masks)} of {len(of_masks)} cases"
        if 2 * len(masks) <= len(of_masks):
            part += f" ({few(masks)})"
        parts.append(part)
    return ", ".join(parts)
