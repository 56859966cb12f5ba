# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The guards of a job, which its configuration names in plain JSON."""

from __future__ import annotations

from typing import Any

from monai_fairfl.errors import ConfigError
from monai_fairfl.guards import Guard
from monai_fairfl.guards.registry import Given, config_of, guards_of

OURS = "monai_fairfl.guards."


def config_of_shipped(given: Given) -> list[dict[str, Any]] | None:
    """The configuration of a job's guards; ``None``: the default ones.

    Raises:
        ConfigError: when one is unknown, or is not of this package.

    >>> config_of_shipped(["NonFinite"])
    [{'_target_': 'monai_fairfl.guards.NonFinite'}]
    """
    if given is None:
        return None
    config = config_of(guards_of(given))
    for one in config:
        if not one["_target_"].startswith(OURS):
            raise ConfigError(
                f"guard {one['_target_']!r} is not of this package: a job must not name classes "
                "that its engine's policy does not see. Use shipped guards, or run the federation "
                "in one process"
            )
    return config


def shipped_guards(given: Given) -> tuple[Guard, ...]:
    """The guards that a job's configuration names; ``None``: the default ones.

    Raises:
        ConfigError: when one is unknown, or is not of this package.
    """
    return guards_of(config_of_shipped(given))
