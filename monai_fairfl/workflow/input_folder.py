# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The files of a folder as cases of a run, each checked before the network sees it."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from monai_fairfl.data.image_files import stem
from monai_fairfl.errors import ConfigError, DataError
from monai_fairfl.workflow.cases import Case


def require_folders(folder: Path, report: Path, hint: str) -> None:
    """Make the folder of the outputs, and refuse folders that cannot be used.

    Args:
        folder: of the images.
        report: file of the run's table, in the folder of the outputs.
        hint: how to name a folder of images, for the message.

    Raises:
        DataError: no such folder.
        ConfigError: the report is to lie in it, or its folder cannot be made.
    """
    _require_folder(folder, hint)
    outputs = report.parent
    if folder.resolve() == outputs.resolve():
        raise ConfigError(
            f"{folder} is the folder of the images and of the outputs, which the next run would "
            "take for images; name another one with --output_dir"
        )
    try:
        outputs.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(
            f"{outputs} cannot be the folder of the outputs ({error}): name another one with "
            "--output_dir"
        ) from error


def file_cases(
    folder: Path, pattern: str, problem: Callable[[Path], str | None], report: Path | None = None
) -> Iterator[Case]:
    """Yield the files of a folder as cases.

    A file with a problem, or with the name of another one, is a skipped case.

    Args:
        folder: where the files are.
        pattern: of their names, relative to the folder, in any case; hidden ones and
            ``_segmentation`` are left out.
        problem: returns what is wrong with a file and what to do, or nothing; may raise on
            unreadable ones.
        report: the run's table. What lies in its folder, if that is within ``folder``, are outputs
            and left out.

    Raises:
        DataError: no such folder; when the first case is asked for.

    >>> import tempfile
    >>> from pathlib import Path
    >>> def problem(path):
    ...     return None if path.stat().st_size else "is empty; copy it again"
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     for name, content in {"a.PNG": "x", "a_segmentation.png": "x", "b.png": ""}.items():
    ...         _ = Path(folder, name).write_text(content)
    ...     for case in file_cases(Path(folder), "*.png", problem):
    ...         print(case.name, case.status, case.problems)
    a waiting []
    b skipped ['is empty; copy it again']
    """
    _require_folder(folder, "name the folder that holds the files")
    outputs = outputs_within(folder, report)
    first_of_name: dict[str, Path] = {}
    for path in sorted(folder.glob(_in_any_case(pattern))):
        if "_segmentation" in path.name.lower() or path.name.startswith("."):
            continue
        # A broken link is a case, and is named as unreadable. In a folder whose files may not be
        # looked up, Path.is_dir() raises.
        if os.path.isdir(path) or is_output(path, outputs):
            continue
        name = stem(path)
        fault: str | None
        if name in first_of_name:
            case = Case(path.name, source=str(path))
            fault = (
                f"its outputs would have the names of those of {first_of_name[name]}; rename one "
                "of the two"
            )
        else:
            first_of_name[name] = path
            case = Case(name, source=str(path), image=str(path))
            fault = _fault_of(path, problem)
        if fault:
            case.skip(fault)
        yield case


def outputs_within(folder: Path, report: Path | None) -> Path | None:
    """Return the folder of the outputs, if it is within that of the images."""
    if report is not None and folder.resolve() in report.parent.resolve().parents:
        return report.parent.resolve()
    return None


def is_output(path: Path, outputs: Path | None) -> bool:
    """Return whether a file lies in the folder of the outputs, see :func:`outputs_within`."""
    return outputs is not None and path.parent.resolve().is_relative_to(outputs)


def files_without_case(
    files: Iterable[Path], cases: Iterable[Case], folder: Path, report: Path
) -> list[Path]:
    """Return the files of a folder that belong to no case, without those in that of the outputs.

    Args:
        files: of the folder, at any depth.
        cases: of the run.
        folder: of the images.
        report: file of the run's table, in the folder of the outputs.
    """
    sources = {case.source for case in cases}
    outputs = outputs_within(folder, report)
    return [path for path in files if str(path) not in sources and not is_output(path, outputs)]


def _require_folder(folder: Path, hint: str) -> None:
    """Refuse a folder that does not exist or may not be read, where a search would find nothing.

    Raises:
        DataError: no such folder, or it may not be read.
    """
    if not folder.is_dir():
        raise DataError(f"{folder} is not a folder: {hint}")
    try:
        os.scandir(folder).close()
    except OSError as error:
        raise DataError(f"{folder}: {why_unreadable(error)}") from error


def why_unreadable(error: Exception) -> str:
    """Return why a file or folder cannot be read, and what to do.

    >>> why_unreadable(PermissionError(13, "Permission denied"))
    'no permission to read; change the permissions'
    """
    if isinstance(error, PermissionError):
        return "no permission to read; change the permissions"
    reason = " ".join(str(error).split())
    return f"cannot be read ({type(error).__name__}: {reason}); copy it again from its source"


def _fault_of(path: Path, problem: Callable[[Path], str | None]) -> str | None:
    """Return what is wrong with a file, also where reading it fails."""
    # Readers have many ways to refuse a damaged file; MemoryError is one.
    try:
        # Readers may hide that the system refuses a file.
        if path.is_file():
            path.open("rb").close()
        return problem(path)
    except Exception as error:
        return why_unreadable(error)


def _in_any_case(pattern: str) -> str:
    """Make a glob pattern match capital and small letters alike.

    >>> _in_any_case("*.n[i1]")
    '*.[nN][i1]'
    """
    return re.sub(
        r"\[.+?\]|[a-zA-Z]",
        # Brackets of the user's own stay.
        lambda found: found[0] if found[0][1:] else f"[{found[0].lower()}{found[0].upper()}]",
        pattern,
    )
