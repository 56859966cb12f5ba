# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The entry of NVFlare's ``class_allow_list`` that a job without custom code needs.

The server and every site must have it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from nvflare.app_common.default_component_policy import DEFAULT_CLASS_ALLOW_LIST

from monai_fairfl.errors import ConfigError
from monai_fairfl.utils.files import write_atomically
from monai_fairfl.utils.plain_values import object_of_json

ENTRY = "monai_fairfl."
"""With its dot: the classes of this package and no others."""
LIST = "class_allow_list"
OWN_POLICY = "resources.json"
DEFAULT_POLICY = "resources.json.default"
NEEDS = (
    f"a job without custom code needs '{ENTRY}' in {LIST} of local/{OWN_POLICY}, here and at every "
    "site: 'monai-fairfl doctor KIT --flare-policy --add' adds it"
)
"""Written into a job's configuration, which NVFlare shows when it refuses a class."""


def allowed(kit: str | Path, also: Sequence[str] = ()) -> bool:
    """Return whether a startup kit's policy lets a job build the classes of this package.

    Arguments and errors are those of :func:`allow`.
    """
    return not _policy(Path(kit), also)[1]


def allow(kit: str | Path, also: Sequence[str] = ()) -> Path:
    """Add the entry to ``local/resources.json``.

    Where the file is missing it is made of ``resources.json.default``. A list in this file replaces
    NVFlare's own, so all of that goes in too. Restart the server or client afterwards.

    Args:
        kit: folder of a server or client, with ``local/``.
        also: dotted paths of classes of another package, such as a strategy of one's own; in the
            server's kit only.

    Returns:
        The file.

    Raises:
        ConfigError: when there is no policy, or the kit is of another kind.
    """
    policy, lacking = _policy(Path(kit), also)
    if lacking:
        policy[LIST] = [*policy.get(LIST, DEFAULT_CLASS_ALLOW_LIST), *lacking]
    file = Path(kit) / "local" / OWN_POLICY
    write_atomically(file, (json.dumps(policy, indent=2) + "\n").encode())
    return file


def _policy(kit: Path, also: Sequence[str]) -> tuple[dict[str, Any], list[str]]:
    """Return a kit's own policy, or the default one, and the entries that its list lacks."""
    if (kit / "startup" / "fed_admin.json").exists():
        raise ConfigError(
            f"{kit} is the kit of a person who submits jobs, and runs none: give the kit of the "
            "server or of a site"
        )
    if also and (kit / "startup" / "fed_client.json").exists():
        raise ConfigError(
            f"{kit} is the kit of a site, and only the server runs {', '.join(also)}: leave out "
            "--also here, or give the server's kit"
        )
    file = kit / "local" / OWN_POLICY
    if not file.exists():
        file = kit / "local" / DEFAULT_POLICY
    try:
        policy = object_of_json(file.read_bytes())
        listed = policy.get(LIST, list(DEFAULT_CLASS_ALLOW_LIST))
        if not isinstance(listed, list):
            raise ValueError(f"{LIST} is no list")
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"{file} is no JSON policy of a server or site ({error}): mend it, or give the folder "
            "that 'nvflare provision' or 'nvflare poc prepare' made for the site"
        ) from error
    # A star allows every class.
    lacking = [entry for entry in (ENTRY, *also) if entry not in listed and "*" not in listed]
    return policy, lacking
