# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Options of commands that train, from the table of settings, and the line of MONAI that they make.

Each key of ``federate.json`` is an option of the same name, ``--local-epochs`` for
``local_epochs``.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from dataclasses import Field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from monai_fairfl.bundle.settings import Settings, rows_of
from monai_fairfl.cli.command import plain_mapping
from monai_fairfl.errors import ConfigError
from monai_fairfl.utils.arguments import check_value
from monai_fairfl.utils.plain_values import written_value
from monai_fairfl.utils.settings import LEAD, meanings

if TYPE_CHECKING:
    from monai_fairfl.cli.running import MonaiLine

OF_THE_COMMAND = ("bundle_root", "sites_root", "run_dir", "resume", "strategy", "strategies")
"""Keys that a command sets itself, by DATA, ``--bundle``, ``--out`` and ``--strategy``."""


def add_keys(command: argparse._ActionsContainer, shown: Sequence[str], who: str = LEAD) -> None:
    """Add an option for each setting that somebody may set, such as all keys of ``federate.json``.

    Args:
        command: gets them.
        shown: keys that its help explains; docs/keys.md has the others.
        who: sets them: the lead of a federation, or a job.

    >>> parser = argparse.ArgumentParser()
    >>> add_keys(parser, ["rounds"])
    >>> keys_given(parser.parse_args(["--rounds", "3", "--seeds", "0", "1", "--share-cases"]))
    {'rounds': 3, 'seeds': [0, 1], 'share_cases': True}
    """
    texts = meanings(Settings)
    for name, row in rows_of(who).items():
        if name in OF_THE_COMMAND:
            continue
        given: dict[str, Any] = {"type": partial(_value_of, row), "default": argparse.SUPPRESS}
        if str(row.type) == "bool":
            given |= {"nargs": "?", "const": True}
        elif str(row.type).startswith("Sequence") or name in ("site_names", "config"):
            given |= {"nargs": "*", "action": _Listed}
        help_text = argparse.SUPPRESS
        if name in shown:
            # Without marks and links, which are of the page.
            plain = re.sub(r"\[([^\]]+)\]\([^)]+\)", r"\1", texts[name])
            help_text = plain.replace("`", "").replace("%", "%%")
        option = f"--{name.replace('_', '-')}"
        command.add_argument(option, metavar="VALUE", help=help_text, **given)


def _value_of(row: Field[Any], text: str) -> Any:
    """The value of an option, as JSON or as Python writes it, else a text."""
    try:
        value = written_value(text)
    except ValueError:
        value = text
    kind, allowed = str(row.type), row.metadata["allowed"]
    if kind.startswith("Mapping"):
        return plain_mapping(text)
    if value is None and kind.endswith("| None"):
        return None
    try:
        if allowed or kind == "bool":
            check_value(row.name, value, kind, allowed)
    except ConfigError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    return value


class _Listed(argparse.Action):
    """A list: its values one after the other, or written as one."""

    def __call__(
        self, parser: Any, namespace: argparse.Namespace, values: Any, option: Any = None
    ) -> None:
        if len(values) == 1 and isinstance(values[0], (list, type(None))):
            values = values[0]
        setattr(namespace, self.dest, values)


def keys_given(args: argparse.Namespace) -> dict[str, Any]:
    """The keys that the options of a command give."""
    names = [name for name in rows_of(LEAD) if name not in OF_THE_COMMAND]
    return {name: getattr(args, name) for name in names if hasattr(args, name)}


def federation_line(
    bundle: Path,
    sites_root: Path,
    run_dir: Path,
    files: Sequence[Path] = (),
    strategies: Sequence[str] | None = None,
    **keys: Any,
) -> MonaiLine:
    """The line that trains hospitals with a bundle, or goes on where it stopped.

    Args:
        bundle: its folder.
        sites_root: one folder per hospital.
        run_dir: gets the run.
        files: that come after the bundle's ``federate.json``, such as that of a recipe or a user's.
        strategies: each as on a command line, such as ``FedCE`` or ``CGSV(gamma=None)``; ``None``:
            those of the files.
        keys: others of ``federate.json``; ``overrides`` are added to those of the files.

    Raises:
        ConfigError: when a file is no configuration.

    >>> from monai_fairfl.bundle.shipped import find_bundle
    >>> bundle = find_bundle("prostate_mri_segmentation")
    >>> line = federation_line(bundle, Path("data"), Path("run"), strategies=["FedCE"], rounds=3)
    >>> line.arguments["strategies"], line.arguments["rounds"], "seed" in line.arguments
    (['FedCE'], 3, False)
    """
    from monai_fairfl.bundle.configuration import FEDERATE
    from monai_fairfl.cli.running import MonaiLine

    # The line is recorded with the run, and may be used in another folder.
    names = [str(file.absolute()) for file in (bundle / FEDERATE, *files)]
    places = {"bundle_root": bundle, "sites_root": sites_root, "run_dir": run_dir}
    arguments: dict[str, Any] = {key: str(place) for key, place in places.items()}
    arguments["resume"] = True
    if strategies is not None:
        arguments["strategies"] = list(strategies)
    arguments.update(keys)
    line = MonaiLine(names, arguments)
    of_files = MonaiLine(names, {}).configuration()
    if keys.get("overrides"):
        arguments["overrides"] = {**(of_files.get("overrides") or {}), **keys["overrides"]}
    return line
