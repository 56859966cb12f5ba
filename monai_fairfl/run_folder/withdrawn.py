# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Which sites withdrew from a run: the statements in its folder ``withdrawn``."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from monai_fairfl.errors import FederationError

FOLDER = "withdrawn"

SITE_REPORTS = "site_reports"
"""Folder of the report's pages that are for one site, each ``SITE.html``."""


def statement_file(run_dir: str | Path, site: str) -> Path:
    """Where the statement of a site's withdrawal is."""
    return Path(run_dir) / FOLDER / f"{site}.json"


def withdrawn_sites(run_dir: str | Path) -> list[str]:
    """The sites that withdrew from a run, sorted; also where their withdrawal was interrupted.

    >>> from monai_fairfl.run_folder.withdrawn import statement_file
    >>> import tempfile
    >>> folder = tempfile.mkdtemp()
    >>> withdrawn_sites(folder)
    []
    >>> statement_file(folder, "elm").parent.mkdir()
    >>> _ = statement_file(folder, "elm").write_text("{}")
    >>> withdrawn_sites(folder)
    ['elm']
    """
    return sorted(file.stem for file in (Path(run_dir) / FOLDER).glob("*.json"))


def refuse_withdrawn(run_dir: str | Path, sites: Iterable[str], to_do: str) -> None:
    """Refuse what would collect new data of a site that withdrew.

    Args:
        run_dir: of the run.
        sites: that would take part.
        to_do: what they would take part in, for the message.

    Raises:
        FederationError: naming the sites and the fix.
    """
    withdrawn = set(withdrawn_sites(run_dir))
    present = sorted(withdrawn.intersection(sites))
    if present:
        names = ", ".join(present)
        raise FederationError(
            f"{to_do} of {run_dir} cannot begin with {names}, which withdrew from this run: "
            "name the other sites only (--site_names), or choose another run_dir"
        )
