# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The cases of one inference run, volumes or photographs, and the run's table.

The table has one line per image: what was found, what went wrong and what was written.
"""

from __future__ import annotations

import json
import logging
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, ClassVar

from monai.config import KeysCollection
from monai.data import MetaTensor
from monai.transforms import MapTransform
from monai.utils import ImageMetaKey

from monai_fairfl.errors import DataError, in_words
from monai_fairfl.utils.files import write_atomically
from monai_fairfl.utils.terminal import print_replacing
from monai_fairfl.workflow.answer import answer_csv, answer_text, compare_sizes

EXIT_NOTHING_USABLE = 2
EXIT_SOME_SKIPPED = 3

logger = logging.getLogger(__name__)


@dataclass
class Case:
    """One image of a run and its line of the table.

    Its status is ``waiting`` until an output was written, then ``segmented``; ``incomplete`` when
    an output failed, and ``skipped`` when the image cannot be used.

    Args:
        name: begins the names of its output files; unique in the run.
        source: file or folder that the user knows.
        image: file that the network reads; empty for a skipped case.
        series: SeriesInstanceUID of a DICOM series.
        files: of the folder that the image is made of; of a DICOM series in the order of slices.

    >>> case = Case("Case01", source="in/Case01.nii.gz")
    >>> case.skip("has 4 dimensions; store one 3D volume")
    >>> case.line()["status"], case.line()["problems"]
    ('skipped', ['has 4 dimensions; store one 3D volume'])
    """

    name: str
    source: str
    image: str = ""
    series: str | None = None
    files: tuple[str, ...] = ()
    status: str = "waiting"
    problems: list[str] = field(default_factory=list)
    results: dict[str, Any] = field(default_factory=dict)

    def note(self, problem: str) -> None:
        """Record and log a problem that costs no output."""
        self.problems.append(problem)
        logger.warning("%s: %s", self.name, problem)

    def skip(self, problem: str) -> None:
        """Record why the image cannot be used."""
        self.image = ""
        self.status = "skipped"
        self.note(problem)

    def flag(self, remark: str) -> None:
        """Record what somebody should look at in the output."""
        self.results.setdefault("flags", []).append(remark)

    def line(self) -> dict[str, Any]:
        """Return the case as it stands in the table."""
        line: dict[str, Any] = {"case": self.name, "status": self.status, "source": self.source}
        if self.series:
            line["series_instance_uid"] = self.series
        line.update(self.results)
        if self.problems:
            line["problems"] = self.problems
        return line


def why_unreadable(error: Exception) -> str:
    """Return why a file or folder cannot be read, and what to do.

    >>> why_unreadable(PermissionError(13, "Permission denied"))
    'no permission to read; change the permissions'
    """
    if isinstance(error, PermissionError):
        return "no permission to read; change the permissions"
    if isinstance(error, DataError):
        return str(error)
    return f"cannot be read ({in_words(error)}); copy it again from its source"


class Cases:
    """All cases of a run, usable or not, and the run's table.

    Args:
        cases: in the order of the table.
        report: JSON file of the table, ``{"summary": {status: number}, "cases": [line, ...]}``.
            At the end of the run, also of one without a usable case, a CSV file of the same name
            lies beside it.
        scratch: folder of converted images; removed with the end of the run.
        files: of the folder: ``used`` (number), ``refused`` (image -> why it is not used) and
            ``not_images`` (number); part of the table where given.

    >>> import tempfile
    >>> found = [Case("a", "a.png", image="a.png"), Case("b", "b.png")]
    >>> cases = Cases(found, tempfile.mkdtemp() + "/table.json")
    >>> cases.cases[1].skip("cannot be read; copy it again")
    >>> cases.images
    [{'image': 'a.png'}]
    >>> cases.cases[0].status = "segmented"
    >>> cases.finish()
    Traceback (most recent call last):
        ...
    SystemExit: 3
    """

    def __init__(
        self,
        cases: Iterable[Case],
        report: str | Path,
        scratch: TemporaryDirectory[str] | None = None,
        files: Mapping[str, Any] | None = None,
    ):
        self.cases = list(cases)
        self.report = Path(report)
        self.scratch = scratch
        self.files = files
        # With what the volumes were compared, in a sentence; empty before the end.
        self.compared = ""

    def __iter__(self) -> Iterator[Case]:
        return iter(self.cases)

    @property
    def images(self) -> list[dict[str, str]]:
        """List what a ``Dataset`` reads: ``{"image": file}`` of each usable case."""
        return [{"image": case.image} for case in self.cases if case.image]

    def of(self, pred: MetaTensor) -> Case:
        """Return the case from whose image this prediction was made."""
        image = pred.meta[ImageMetaKey.FILENAME_OR_OBJ]
        return next(case for case in self.cases if case.image == image)

    def table(self) -> dict[str, Any]:
        """Return the table as it is now."""
        table: dict[str, Any] = {"summary": dict(Counter(case.status for case in self.cases))}
        if self.compared:
            table["compared"] = self.compared
        if self.files is not None:
            table["files"] = self.files
        return {**table, "cases": [case.line() for case in self.cases]}

    def save(self) -> None:
        """Write the table as it is now."""
        self._write(".json", json.dumps(self.table(), indent=4, ensure_ascii=False) + "\n")

    def require(self) -> None:
        """Go on only with something to do.

        Raises:
            SystemExit: with code 2, after writing both tables, when every case was skipped.
        """
        if not self.images:
            self._end()
            self._leave(EXIT_NOTHING_USABLE)

    def finish(self) -> None:
        """Compare the volumes, write the table, print it, and end the run.

        Raises:
            SystemExit: with code 3 when a case was skipped or lacks an output. Without one the
                function returns.
        """
        # A skipped DICOM series has results, too, such as its description, but no size.
        self.compared = compare_sizes([case.results for case in self if "share" in case.results])
        # Before anything is printed: the reader of standard output may have left.
        self._end()
        print_replacing(f"{answer_text(self.table())}\nFolder: {self.report.parent}")
        if any(case.status != "segmented" for case in self):
            self._leave(EXIT_SOME_SKIPPED)

    def _end(self) -> None:
        self.save()
        self._write(".csv", answer_csv(self.table()["cases"]))
        if self.scratch is not None:
            self.scratch.cleanup()

    def _write(self, ending: str, text: str) -> None:
        # A file's name that is no UTF-8 must not cost the table.
        content = text.encode("utf-8", "backslashreplace")
        write_atomically(self.report.with_suffix(ending), content)

    def _leave(self, code: int) -> None:
        # Each was named with its problem when it was found.
        logger.warning("exit code %d: cases that are not segmented; see %s", code, self.report)
        raise SystemExit(code)


class CaseOutput(MapTransform, ABC):
    """A post transform that makes one more output of every case.

    If it fails, only this output of this case is lost. A subclass writes its output in
    :meth:`write`.

    Args:
        keys: of the masks, MetaTensors ``(1, ...)`` of labels on the grid of the original image.
        cases: of the run.

    >>> import tempfile, torch
    >>> from monai.data import MetaTensor
    >>> class CountVoxels(CaseOutput):
    ...     def write(self, case, pred):
    ...         return {"voxels": int(pred.sum())}
    >>> case = Case("a", source="a.nii", image="a.nii")
    >>> mask = MetaTensor(torch.ones(1, 4, 4, 2), meta={"filename_or_obj": "a.nii"})
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = CountVoxels("pred", Cases([case], f"{folder}/table.json"))({"pred": mask})
    >>> case.line()
    {'case': 'a', 'status': 'segmented', 'source': 'a.nii', 'voxels': 32}
    """

    def __init__(self, keys: KeysCollection, cases: Cases):
        super().__init__(keys)
        self.cases = cases

    @abstractmethod
    def write(self, case: Case, pred: MetaTensor) -> Mapping[str, Any]:
        """Make the output, and return what goes into the case's line of the table."""

    def __call__(self, data: Mapping[Hashable, Any]) -> dict[Hashable, Any]:
        for key in self.key_iterator(dict(data)):
            case = self.cases.of(data[key])
            if case.status == "waiting":
                case.status = "segmented"
            # Whatever goes wrong here, the other cases and outputs are worth having.
            try:
                case.results.update(self.write(case, data[key]))
            except Exception as error:
                case.status = "incomplete"
                case.note(f"{type(self).__name__} failed: {error}")
        # The table is written after each case, so that an aborted run leaves one, too.
        self.cases.save()
        return dict(data)


class CaseFile(CaseOutput):
    """An output that is one file of the case, ``NAME_POSTFIX.ENDING``.

    A subclass writes the file in :meth:`save`; ``ending`` is that of its name, ``entry`` its key in
    the table.

    Args:
        keys: as of :class:`CaseOutput`.
        cases: of the run.
        output_dir: folder for the files.
        output_postfix: of their names; the class's own by default.
    """

    ending: ClassVar[str]
    entry: ClassVar[str]
    output_postfix: str

    def __init__(
        self,
        keys: KeysCollection,
        cases: Cases,
        output_dir: str | Path,
        output_postfix: str | None = None,
    ) -> None:
        super().__init__(keys, cases)
        self.output_dir = Path(output_dir).expanduser()
        self.output_postfix = output_postfix or type(self).output_postfix

    @abstractmethod
    def save(self, case: Case, pred: MetaTensor, path: Path) -> None:
        """Write the file."""

    def write(self, case: Case, pred: MetaTensor) -> Mapping[str, Any]:
        name = f"{case.name}_{self.output_postfix}.{self.ending}"
        self.save(case, pred, self.output_dir / name)
        return {self.entry: name}
