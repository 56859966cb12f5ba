# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Statistics of a site's images, by MONAI's own ``MonaiAlgoStats``.

``MonaiAlgoStats`` writes the numbers of each case into a folder. Here that is a temporary one of
the site, and :mod:`~monai_fairfl.statistics.disclosure` decides what leaves it. MONAI's summary
does not: it has minima and maxima, which are values of single voxels, and it looks a label up by
its place in each case's list, so that a case that lacks a label shifts the others.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from monai.apps.auto3dseg.transforms import EnsureSameShaped
from monai.bundle import ConfigParser, ConfigWorkflow
from monai.data import PILReader
from monai.fl.client import MonaiAlgoStats
from monai.fl.utils.constants import ExtraItems, FlStatistics
from monai.transforms import EnsureTyped, LoadImage, LoadImaged, Orientationd
from monai.utils import ensure_tuple
from PIL import Image

from monai_fairfl.bundle.configuration import parsed_value
from monai_fairfl.bundle.settings import SiteSettings
from monai_fairfl.bundle.site import bundle_client, evaluation_files
from monai_fairfl.data.layouts.image_files import as_stored, is_picture
from monai_fairfl.data.structures import ClassNumbersd, grey_levels
from monai_fairfl.errors import ConfigError, DataError, FairFLError, in_words
from monai_fairfl.statistics.disclosure import CaseNumbers, site_statistics
from monai_fairfl.statistics.least import check_least
from monai_fairfl.utils.terminal import quiet

Case = Mapping[str, Any]

KEYS = ("image", "label")
"""Keys of a case that ``MonaiAlgoStats`` reads."""

INTENSITIES = (
    "mean",
    "stdev",
    "median",
    "percentile_00_5",
    "percentile_10_0",
    "percentile_90_0",
    "percentile_99_5",
)
"""What MONAI computes of a case's intensities, without its minimum and maximum."""

RANGE_OF_PICTURES = (0.0, 256.0)
"""Of 8 bits a channel."""

GREY_MODES = ("1", "L", "LA", "I", "I;16", "I;16B", "F")
"""Pillow's modes of pictures with one channel."""


class SiteData:
    """The images of one site, as its bundle lists them.

    Args:
        bundle_root: the site's copy of the bundle.
        site: its name.
        dataset_dir: its images and labels.
        settings: ``config`` and ``overrides`` of the bundle's training configuration.
    """

    def __init__(
        self,
        bundle_root: str | Path,
        site: str,
        dataset_dir: str | Path,
        settings: SiteSettings | None = None,
    ):
        self.bundle_root = Path(bundle_root).absolute()
        self.site = site
        self.dataset_dir = Path(dataset_dir)
        self.settings = settings or SiteSettings()

    def statistics(self, bins: int, limits: tuple[float, float], least: int) -> dict[str, Any]:
        """What leaves the site, see :func:`~monai_fairfl.statistics.disclosure.site_statistics`.

        Every case that the bundle trains, validates or tests with counts once. Files with the
        numbers of cases are deleted.

        Args:
            bins: of the histograms.
            limits: lower and upper end of the histograms, the same at all sites.
            least: the smallest count of cases behind a number.

        Raises:
            ConfigError: when the bundle has no images and labels that ``MonaiAlgoStats`` reads.
            DataError: when an image cannot be read, or the images do not go together.
        """
        check_least(least)
        with TemporaryDirectory() as private, quiet():
            try:
                workflow, cases = self._cases(Path(private))
                if len(cases) < least:
                    return site_statistics([], least)
                numbers = self._case_numbers(workflow, cases, Path(private), bins, limits)
                return site_statistics(numbers, least)
            except FairFLError as error:
                raise type(error)(f"site {self.site!r}: {error}") from error

    def usual_limits(self, least: int) -> tuple[float, float] | None:
        """Round ends of a histogram that most intensities lie between.

        They are those of 8 bits for pictures. For volumes they come from the 0.5 and the 99.5
        percentile of each image, and are rounded outwards, to 1, 2 or 5 times a power of ten: the
        ends tell no intensity.

        Args:
            least: of fewer cases nothing is reported.

        Returns:
            The ends; ``None`` where there are too few cases.

        Raises:
            ConfigError, DataError: as :meth:`statistics`.
        """
        with TemporaryDirectory() as private, quiet():
            _, cases = self._cases(Path(private))
            if len(cases) < least:
                return None
            if is_picture(_first_file(cases[0]["image"])):
                return RANGE_OF_PICTURES
            reader = LoadImage(image_only=True)
            lows = []
            highs = []
            for case in cases:
                try:
                    values = np.asarray(reader(case["image"]))
                except Exception as error:  # readers raise exceptions of many kinds
                    raise DataError(
                        f"site {self.site!r}: {case['image']} cannot be read: {in_words(error)}"
                    ) from error
                low, high = np.percentile(values, [0.5, 99.5])
                lows.append(low)
                highs.append(high)
        low = min(0.0, -rounded_up(-min(lows)))
        high = rounded_up(max(highs))
        return low, high

    def _cases(self, private: Path) -> tuple[ConfigWorkflow, list[dict[str, Any]]]:
        """The bundle's training, and every case that the site has, once.

        Args:
            private: gets the data list.
        """
        client = bundle_client(
            self.bundle_root,
            self.site,
            private,
            dataset_dir=self.dataset_dir,
            config=self.settings.config,
            overrides=self.settings.overrides,
        )
        files = [str(self.bundle_root / file) for file in self.settings.config]
        try:
            workflow = ConfigWorkflow(
                files, logging_file=False, workflow_type="train", **client.train_kwargs
            )
            workflow.initialize()
            listed = [*(workflow.train_dataset_data or []), *(workflow.val_dataset_data or [])]
            evaluation = evaluation_files(self.bundle_root)
            if evaluation:
                files += [str(self.bundle_root / file) for file in evaluation]
                listed += self._test_cases(files, client)
            dataset_dir = workflow.dataset_dir
        except FairFLError:
            raise
        except Exception as error:  # whatever a bundle raises
            raise ConfigError(f"{self.bundle_root}: no list of cases: {in_words(error)}") from error
        if not dataset_dir:
            raise ConfigError(
                f"{self.bundle_root} has no dataset_dir, which MONAI's statistics need; add the key"
            )
        return workflow, _each_once(listed, self.bundle_root)

    def _test_cases(self, files: Sequence[str], client: Any) -> list[Case]:
        """The cases of the evaluation; nothing else of it is built, its model neither."""
        parser = ConfigParser()
        parser.read_config(list(files))
        parser.update(client.train_kwargs)
        return list(parsed_value(parser, "validate#dataset#data", ()))

    def _case_numbers(
        self,
        workflow: ConfigWorkflow,
        cases: list[dict[str, Any]],
        private: Path,
        bins: int,
        limits: tuple[float, float],
    ) -> list[CaseNumbers]:
        """Let MONAI compute the numbers of each case, and read them from its file."""
        pictures = is_picture(_first_file(cases[0]["image"]))
        workflow.train_dataset_data = cases
        # All are in the first list; MONAI would warn. Its level is restored by quiet().
        workflow.val_dataset_data = None
        logging.getLogger(MonaiAlgoStats.__module__).setLevel(logging.ERROR)
        algo = MonaiAlgoStats(
            str(self.bundle_root),
            workflow=workflow,
            data_stats_transform_list=_transforms(pictures),
        )
        try:
            # MONAI writes each case's numbers into this folder.
            algo.initialize({ExtraItems.CLIENT_NAME: self.site, ExtraItems.APP_ROOT: str(private)})
            summary = algo.get_data_stats(
                {FlStatistics.HIST_BINS: bins, FlStatistics.HIST_RANGE: list(limits)}
            ).statistics[algo.train_data_key]
        except Exception as error:  # of a reader, of images that do not go together
            raise DataError(
                f"MONAI's statistics failed: {in_words(error)}; monai-fairfl datalist --check "
                "names files with faults"
            ) from error
        failed = summary[FlStatistics.FAIL_COUNT]
        if failed:
            raise DataError(
                f"{failed} of {len(cases)} case(s) were left out by MONAI's statistics; "
                "monai-fairfl datalist --check names files with faults"
            )
        written = ConfigParser.load_config_file(str(private / "train_data_stats_by_case.yaml"))
        _mend_first_histogram(written)
        numbers = []
        for case, by_case in zip(cases, written["stats_by_cases"], strict=True):
            numbers.append(_numbers(by_case, pictures, structures_of(case)))
        return numbers


def rounded_up(value: float) -> float:
    """The next of 1, 2 and 5 times a power of ten; 0 for what is not above it.

    >>> [rounded_up(value) for value in (0.7, 1.0, 1.1, 401.25, 4095.0, -3.0)]
    [1.0, 1.0, 2.0, 500.0, 5000.0, 0.0]
    """
    if not value > 0:
        return 0.0
    power = 10.0 ** math.floor(math.log10(value))
    for factor in (1, 2, 5):
        if factor * power >= value:
            return factor * power
    return 10 * power


def grey_or_colours(image: Image.Image) -> Image.Image:
    """A picture as one channel of grey levels, or as three of colours.

    This is the ``converter`` of MONAI's ``PILReader``.

    >>> [grey_or_colours(Image.new(mode, (2, 2))).mode for mode in ("RGBA", "LA", "I;16")]
    ['RGB', 'L', 'I;16']
    """
    stored = as_stored(image)
    if stored.mode in ("1", "LA"):
        return stored.convert("L")
    if stored.mode in GREY_MODES:
        return stored
    return stored.convert("RGB")


def _transforms(pictures: bool) -> list[Any]:
    """What reads a case, in the place of MONAI's own list.

    That one is for volumes. It would take a mask stored as RGB for one-hot classes.
    """
    if pictures:
        return [
            LoadImaged(
                "image",
                reader=PILReader(converter=grey_or_colours),  # type: ignore[arg-type]
                ensure_channel_first=True,
                image_only=True,
            ),
            LoadImaged(
                "label",
                reader=PILReader(converter=grey_levels),  # type: ignore[arg-type]
                ensure_channel_first=True,
                image_only=True,
            ),
            EnsureTyped(KEYS, dtype=float),
            ClassNumbersd("label"),
        ]
    return [
        LoadImaged(KEYS, ensure_channel_first=True, image_only=True),
        EnsureTyped(KEYS, dtype=float),
        Orientationd(KEYS, axcodes="RAS", labels=None),
        EnsureSameShaped(keys="label", source_key="image"),
        ClassNumbersd("label"),
    ]


def _each_once(listed: Sequence[Case], bundle_root: Path) -> list[dict[str, Any]]:
    """Every case of the lists once: a bundle may list one several times, or in two parts.

    Raises:
        ConfigError: when a case is not an image with a label.
        DataError: when there is no case.
    """
    cases: dict[str, dict[str, Any]] = {}
    for case in listed:
        missing = [key for key in KEYS if not isinstance(case, Mapping) or key not in case]
        if missing:
            raise ConfigError(
                f"{bundle_root}: a case of its lists has no {missing[0]!r}. MONAI's statistics "
                "read the keys 'image' and 'label'"
            )
        cases.setdefault(str(case["image"]), dict(case))
    if not cases:
        raise DataError(
            f"{bundle_root} lists no case of this site; monai-fairfl datalist DATA --check shows "
            "what was found"
        )
    return list(cases.values())


def _mend_first_histogram(written: Mapping[str, Any]) -> None:
    """Give the first case its own counts again.

    MONAI sums the histograms of all cases in the place of the first one's. What is written there is
    the total, so that the first one's is the total less the others.
    """
    first, *others = written["stats_by_cases"]
    totals = written["stats_summary"]["image_histogram"]["histogram"]
    for channel, total in enumerate(totals):
        counts = np.array(total["counts"])
        for other in others:
            counts = counts - np.array(other["image_histogram"][channel]["counts"])
        first["image_histogram"][channel]["counts"] = counts.tolist()


def structures_of(case: Case) -> list[str]:
    """The nested structures of a case's mask, the outermost first; none where it has no values.

    A list by hand may name them in any order, and leave out what nobody drew in this mask.

    >>> structures_of({"values": {"cup": [192, 255], "disc": [64, 255]}}), structures_of({})
    (['disc', 'cup'], [])
    """
    values = case.get("values") or {}

    def width(name: str) -> float:
        low, high = values[name]
        return float(high - low)

    # The values of a structure include those of the structures inside it.
    return sorted(values, key=width, reverse=True)


def _first_file(image: Any) -> str:
    return str(ensure_tuple(image)[0])


def _numbers(by_case: Mapping[str, Any], pictures: bool, structures: Sequence[str]) -> CaseNumbers:
    """A case's numbers, as MONAI wrote them.

    Args:
        by_case: of MONAI's file.
        pictures: their spacing is none: MONAI writes 1 mm.
        structures: nested, the outermost first; empty: labels are called by their numbers.
    """
    image = by_case["image_stats"]
    size = tuple(image["shape"][0])
    shares = _shares(by_case["label_stats"], structures)
    labelled = None
    # Where nothing is labelled, MONAI takes the intensity 0.
    if shares:
        labelled = [_intensities(of) for of in by_case["image_foreground_stats"]["intensity"]]
    return CaseNumbers(
        size=size,
        spacing=None if pictures else tuple(image["spacing"][: len(size)]),
        intensity=[_intensities(of_channel) for of_channel in image["intensity"]],
        labelled=labelled,
        shares=shares,
        counts=[of_channel["counts"] for of_channel in by_case["image_histogram"]],
    )


def _intensities(of_channel: Mapping[str, float]) -> dict[str, float]:
    return {name: float(of_channel[name]) for name in INTENSITIES}


def _shares(label_stats: Mapping[str, Any], structures: Sequence[str]) -> dict[str, float]:
    """Label -> its share of the case's voxels; background is none."""
    by_number = {}
    for number, found in zip(label_stats["labels"], label_stats["label"]):
        if number != 0:
            by_number[int(number)] = float(found["foreground_percentage"])
    if not structures:
        return {str(number): share for number, share in by_number.items()}
    shares = {}
    for depth, name in enumerate(structures, start=1):
        # A structure includes those inside it.
        share = sum(share for number, share in by_number.items() if number >= depth)
        if share:
            shares[name] = share
    return shares
