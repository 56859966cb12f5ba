# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Checks of one site or of all, which find what would stop or spoil a training before it begins."""

from __future__ import annotations

import hashlib
import os
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from monai_fairfl.data.datalist import site_datalist
from monai_fairfl.data.image_files import count_of_files, files_under, kind_of_image
from monai_fairfl.data.inspection import (
    BACKGROUND,
    FIELD_OF_VIEW,
    Inspection,
    inspect_site,
    labels_of,
)
from monai_fairfl.data.layouts import PARTS, CaseFiles, Values, all_named, few
from monai_fairfl.data.sites import folder_of_site, layouts_once
from monai_fairfl.errors import ConfigError, DataError, DataWarning
from monai_fairfl.utils.files import safe_name
from monai_fairfl.utils.tables import text_of_table
from monai_fairfl.utils.terminal import warnings_as_notes

LISTED = 3
"""Problems of a site that an error lists: a wrong folder has one for each file."""

MOST_SHOWN = 8
"""Values of labels that a table shows; JPEG's noise makes more."""


def check_cases(
    site_dir: str | os.PathLike[str],
    structures: Sequence[str] = (),
    values: Mapping[str, Sequence[int]] | None = None,
    stereo: bool | None = None,
    cases: Sequence[CaseFiles] | None = None,
    field_of_view: float = FIELD_OF_VIEW,
) -> Summary:
    """Read every file of a site and report all that would stop a training later.

    Every file must be readable to its end, an image and its label of one size and not the same
    pixels. Volumes must be 3D (images of a layout that states its channels may be 4D), with affines
    that place every corner within 0.01 mm and the rounding of rotations, in whatever order each
    stores its axes; images finite, labels whole numbers from 0. A case with an empty label,
    channels that need a choice and files that occur twice are warnings; a site where all labels are
    empty is an error.

    Args:
        site_dir: the site's folder, of any layout, or its data list (NVFlare); see
            :func:`find_cases`.
        structures: names of nested structures, the outermost first. Which pixel values they have
            is stated by ``values``, or in a ``dataset.json`` of the site; of masks with two values,
            the one above 0 is the outermost.
        values: structure -> ``[lowest, highest]``.
        stereo: whether photographs are pairs of views side by side; ``None``: by their shape, which
            is noted, and an error where a label lies in the half that is not used.
        cases: the only ones that are checked, of a data list, with absolute paths; the other files
            of the site may have faults, and all these labels may be empty. ``None``: all cases.
        field_of_view: share of each side of a slice that the network sees of volumes; a label that
            lies partly outside is a warning.

    Returns:
        For JSON: ``site``, ``layout``, ``num_cases``, ``labels`` (values found), ``gland_slices``
        (slices, or pictures, with a label), ``names`` where a ``dataset.json`` states what labels
        mean, ``values`` where structures were asked for, and ``cases`` with ``image``, ``shape``
        (voxels, or rows and columns), ``spacing`` (mm, of volumes), ``channels`` (of pictures, or
        if above 1), ``labels`` and ``gland_slices`` of each.

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
    inspection = inspect_site(site_dir, structures, values, stereo, cases, field_of_view)
    if inspection.problems:
        listed = all_named(inspection.problems, LISTED, separator="\n- ")
        if len(inspection.problems) > LISTED:
            listed += f"; monai-fairfl doctor {site_dir} lists all"
        raise DataError(f"{site_dir}: {len(inspection.problems)} problem(s)\n- {listed}")
    for note in [*inspection.notes, *check_duplicates({inspection.site: inspection})]:
        warnings.warn(note, DataWarning, stacklevel=2)
    return Summary(inspection)


class Summary(dict[str, Any]):
    """An inspection's summary for JSON, see :func:`check_cases`."""

    def __init__(self, inspection: Inspection) -> None:
        self.inspection = inspection
        sound = inspection.sound
        super().__init__(
            site=inspection.site,
            layout=inspection.layout,
            num_cases=len(sound),
            labels=labels_of(sound),
            gland_slices=sum(case.slices for case in sound),
        )
        if inspection.labels:
            self["names"] = dict(inspection.labels)
        if inspection.values:
            self["values"] = dict(inspection.values)
        self["cases"] = []
        for case in sound:
            image = case.image
            line: dict[str, Any] = {"image": os.path.relpath(image.path, inspection.folder)}
            line["shape"] = list(image.shape)
            if image.spacing:
                line["spacing"] = list(image.spacing)
            if image.channels > 1 or not image.spacing:
                line["channels"] = image.channels
            line |= {"labels": list(case.label.labels), "gland_slices": case.slices}
            self["cases"].append(line)


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
        for case in inspection.readable:
            image, label = case.image, case.label
            images.setdefault(image.digest, []).append(f"{site}: {image.path}")
            if len(label.labels) > 1:
                images_of_label = labels.setdefault(label.digest, {})
                images_of_label.setdefault(image.digest, f"{site}: {label.path}")
    return [
        f"the same image occurs {len(copies)} times, {', '.join(copies)}. Keep one."
        for copies in images.values()
        if len(copies) > 1
    ] + [
        f"different images have the same label, {', '.join(of.values())}. Look for the right one."
        for of in labels.values()
        if len(of) > 1
    ]


def digests_of_cases(inspection: Inspection) -> list[str]:
    """SHA-256 of each case: of the pixels of its image and label, and where its voxels lie.

    A file's name, its compression and the rest of its header do not count.
    """
    digests = []
    for case in inspection.readable:
        affine = case.image.affine
        # Adding 0 makes one zero of -0 and 0.
        place = [] if affine is None else (np.round(affine, 4) + 0).tolist()
        text = f"{case.image.digest} {case.label.digest} {place}"
        digests.append(hashlib.sha256(text.encode()).hexdigest())
    return digests


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
    listed = []
    numbers_of_values = set()
    for site, inspection in sites.items():
        # Value -> the masks that have it.
        masks: dict[int, list[str]] = {}
        for case in inspection.readable:
            for value in set(case.label.labels) - {0}:
                masks.setdefault(value, []).append(case.label.path)
        if not masks or inspection.values:
            continue
        numbers_of_values.add(len(masks))
        total = len(inspection.readable)
        words = []
        for value, paths in sorted(masks.items()):
            rare = f" ({few(paths)})" if 2 * len(paths) <= total else ""
            named = _with_name(value, inspection.labels)
            words.append(f"{named} in {len(paths)} of {total} cases{rare}")
        listed.append(f"{site} has {', '.join(words)}")
    if len(numbers_of_values) < 2:
        return []
    return [
        f"the sites' masks have different numbers of labels: {'; '.join(listed)}. Check that they "
        "mean the same: the prostate bundle takes every label above 0 for the gland"
    ]


def _with_name(value: int, named: Values) -> str:
    """A value of a label, and what it means by the site's ``dataset.json``.

    >>> _with_name(2, {"disc": [1, 2], "cup": [2, 2]}), _with_name(3, {})
    ('2 (disc, cup)', '3')
    """
    within = [name for name, (low, high) in named.items() if low <= value <= high]
    names = [name for name in within if name.lower() != BACKGROUND]
    return f"{value} ({', '.join(names)})" if names else str(value)


def overview(
    sites: Mapping[str, str | os.PathLike[str]],
    structures: Sequence[str] = (),
    stereo: bool | None = None,
    noticed: Sequence[str] = (),
    reading: Callable[[str], None] = lambda site: None,
    root: str | os.PathLike[str] | None = None,
    **split: Any,
) -> tuple[dict[str, Any], str]:
    """Read every file of every site once, and report what each holds.

    Sites with problems are reported too. Nothing is written.

    Args:
        sites: site -> its folder or data list, as :func:`~monai_fairfl.data.site_folders` gives
            them.
        structures: names of nested structures whose pixel values are looked for, the outermost
            first.
        stereo: whether photographs are pairs of views; by their shape where it is not given.
        noticed: notes that the caller already has, such as on folders that are no site.
        reading: called with the name of each site before its files are read.
        root: the folder whose files are counted; ``None``: those of the sites.
        split: arguments of :func:`~monai_fairfl.data.split_cases`.

    Returns:
        For JSON: ``sites`` (see :func:`~monai_fairfl.data.check_cases`, and the number of cases in
        each part), ``warnings`` and ``problems``, sentences, and ``files`` (see
        :func:`sorted_out`); and the same as a table and lines of text.

    >>> import tempfile
    >>> from monai_fairfl.data import SITES, site_folders, write_sites
    >>> root = tempfile.mkdtemp()
    >>> _ = write_sites(root, sites=SITES[:2], size=(24, 24, 6), cases=4)
    >>> data, text = overview(site_folders(root))
    >>> data["problems"], data["sites"]["alder"]["training"], text.splitlines()[-1]
    ([], 2, '16 file(s): 16 used, 0 image(s) refused, 0 not an image')
    """
    notes = list(noticed)
    problems: list[str] = []
    inspections: dict[str, Inspection] = {}
    summaries: dict[str, dict[str, Any]] = {}
    for name, path in sites.items():
        reading(name)
        inspection = inspections[name] = Inspection(name, folder_of_site(Path(path)))
        faults = []
        datalist: dict[str, list[CaseFiles]] = {}
        try:
            inspection = inspections[name] = inspect_site(path, structures, stereo=stereo)
            faults += inspection.problems
            if not faults:
                with warnings_as_notes() as notes_on_split:
                    datalist = site_datalist(path, None, structures, **split)
                inspection.notes.extend(notes_on_split)
        except DataError as error:
            faults.append(str(error))
        if len(sites) > 1:
            # One hospital's own folder is no name in a federation.
            try:
                safe_name(name, "the name of the hospital's folder")
            except ConfigError as error:
                problems.append(str(error))
        notes += inspection.notes
        problems += [f"site {name!r}: {fault}" for fault in faults]
        sizes = {part: len(cases) for part, cases in datalist.items()}
        summaries[name] = Summary(inspection) | sizes
        for part in ("validation", "testing"):
            listed = {os.path.abspath(case["label"]) for case in datalist.get(part, ())}
            of_part = [case for case in inspection.sound if case.label.path in listed]
            if of_part and not any(case.label.labelled_slices for case in of_part):
                notes.append(
                    f"site {name!r}: all labels of its {part} cases are empty, so that they have no"
                    " score; take another seed for the split, or a list by hand"
                )
    notes += [*check_duplicates(inspections), *check_label_values(inspections)]
    problems = layouts_once(problems)
    roots = [Path(root)] if root is not None else [each.folder for each in inspections.values()]
    files = sorted_out(roots, inspections.values())

    text = [as_table(summaries), ""]
    text.extend(f"note: {note}" for note in notes)
    text.extend(f"problem: {problem}" for problem in problems)
    text.append(
        f"{len(inspections)} site(s), {len(notes)} note(s), {len(problems)} problem(s) that would"
        " stop a training"
    )
    text.append(count_of_files(files["used"], len(files["refused"]), files["not_images"]))
    data = {"sites": summaries, "warnings": notes, "problems": problems, "files": files}
    return data, "\n".join(text)


def sorted_out(roots: Iterable[Path], inspections: Iterable[Inspection]) -> dict[str, Any]:
    """What became of every file of some folders; each is in one of the three.

    Args:
        roots: the folders.
        inspections: of the sites in them.

    Returns:
        For JSON: ``used`` (number of images and labels of sound cases), ``refused`` (other image ->
        why it is not used) and ``not_images`` (number of other files).
    """
    used: set[str] = set()
    reasons: dict[str, str] = {}
    for inspection in inspections:
        for case in inspection.cases:
            paths = (case.image.path, case.label.path)
            used.update(paths if not case.faults else ())
            reasons |= dict.fromkeys(paths, case.faults[0]) if case.faults else {}
    refused = {}
    counts = Counter[str]()
    for path in {os.path.abspath(path) for root in roots for path in files_under(root)}:
        if path in used:
            counts["used"] += 1
        elif path in reasons or kind_of_image(Path(path)):
            refused[path] = reasons.get(path, "it belongs to no case of a site")
        else:
            counts["not_images"] += 1
    ordered = dict(sorted(refused.items()))
    return {"used": counts["used"], "refused": ordered, "not_images": counts["not_images"]}


TITLES = ("Site", "Layout", "Cases", "Size", "Channels", "Spacing, mm", "Labels", "Empty", "Split")


def as_table(summaries: Mapping[str, Mapping[str, Any]]) -> str:
    """Sites side by side, for a terminal.

    >>> case = {"shape": [4, 6], "channels": 3, "labels": [0, 255], "gland_slices": 1}
    >>> site = {"layout": "folders", "num_cases": 1, "labels": [0, 255], "cases": [case]}
    >>> as_table({"elm": site}).splitlines()[-1].split()
    ['elm', 'folders', '1', '4', 'x', '6', '3', '0,', '255', '0', '–']
    """
    return text_of_table(TITLES, [_row(site, summary) for site, summary in summaries.items()])


def _row(site: str, summary: Mapping[str, Any]) -> list[str]:
    """The cells of a site, in the order of :data:`TITLES`."""
    cases = summary["cases"]
    shapes = [case["shape"] for case in cases]
    channels = [[case.get("channels", 1)] for case in cases]
    spacings = [case["spacing"] for case in cases if "spacing" in case]
    labels = [_with_name(label, summary.get("names", {})) for label in summary["labels"]]
    if len(labels) > MOST_SHOWN:
        labels = [*labels[:MOST_SHOWN], f"... ({len(labels)} values)"]
    label_lines = [", ".join(labels)]
    for name, (low, high) in summary.get("values", {}).items():
        label_lines.append(f"{name} {low}-{high}")
    num_empty = sum(1 for case in cases if not case["gland_slices"])
    part_sizes = [str(summary[part]) for part in PARTS if part in summary]
    return [
        site,
        summary["layout"],
        str(summary["num_cases"]),
        _range(shapes),
        _range(channels),
        _range(spacings),
        "\n".join(label_lines),
        str(num_empty),
        "/".join(part_sizes) or "–",
    ]


def _range(rows: Sequence[Sequence[float]]) -> str:
    """Each column as one number or as its least and greatest.

    >>> _range([[384, 384, 15], [384, 384, 24]])
    '384 x 384 x 15-24'
    """
    ranges = []
    for column in zip(*rows):
        low = min(column)
        high = max(column)
        ranges.append(f"{low:g}" if low == high else f"{low:g}-{high:g}")
    return " x ".join(ranges)
