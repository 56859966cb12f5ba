# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""What a server or site without custom code must allow: one entry of NVFlare's
``class_allow_list``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from nvflare.app_common.default_component_policy import DEFAULT_CLASS_ALLOW_LIST

from monai_fairfl.errors import ConfigError
from monai_fairfl.utils.files import write_atomically

ENTRY = "monai_fairfl."
"""With its dot: the classes of this package and no others."""
LIST = "class_allow_list"
NEEDS = (
    f"a job without custom code needs '{ENTRY}' in {LIST} of local/resources.json, here and at every site: "
    "'monai-fairfl flare-policy --kit KIT' adds it"
)
"""Written into a job's configuration, which NVFlare shows when it refuses a class."""


def allowed(kit: str | Path, also: Sequence[str] = ()) -> bool:
    """Whether the startup kit's policy lets a job without code of its own build this package's
    classes.

    Args:
        kit: folder of a server or client, with ``local/``.
        also: dotted paths of classes of another package, such as a strategy of one's own.

    Raises:
        ConfigError: when there is no policy.
    """
    return not _lacking(_policy(Path(kit))[1], also)


def allow(kit: str | Path, also: Sequence[str] = ()) -> Path:
    """Add the entry to ``local/resources.json``, which is made of ``resources.json.default`` if it
    is missing.

    A list in this file replaces NVFlare's own, so all of that goes in too. Restart the server or
    client afterwards.

    Args:
        kit: folder of a server or client, with ``local/``.
        also: dotted paths of classes of another package, such as a strategy of one's own.

    Returns:
        The file.

    Raises:
        ConfigError: when there is no policy.
    """
    file, policy = _policy(Path(kit))
    lacking = _lacking(policy, also)
    if lacking:
        policy[LIST] = [*policy.get(LIST, DEFAULT_CLASS_ALLOW_LIST), *lacking]
    write_atomically(file, (json.dumps(policy, indent=2) + "\n").encode())
    return file


def _lacking(policy: Mapping[str, Any], also: Sequence[str]) -> list[str]:
    """The entries that the policy's list needs and does not have."""
    listed = policy.get(LIST, DEFAULT_CLASS_ALLOW_LIST)
    if "*" in listed:  # allows every class
        return []
    return [entry for entry in (ENTRY, *also) if entry not in listed]


def _policy(kit: Path) -> tuple[Path, dict[str, Any]]:
    own = kit / "local" / "resources.json"
    for file in (own, kit / "local" / "resources.json.default"):
        if file.exists():
            try:
                policy = json.loads(file.read_text())
            except ValueError as error:
                raise ConfigError(
                    f"{file} is no JSON ({error}): mend it, or delete it to begin anew from the default"
                ) from None
            if not isinstance(policy, dict) or not isinstance(policy.get(LIST, []), list):
                raise ConfigError(
                    f"{file} must be an object whose {LIST!r}, if it has any, is a list: mend it by hand"
                )
            return own, policy
    raise ConfigError(
        f"{kit} is no startup kit of a server or client: it has no local/resources.json.default. Give the folder that "
        "'nvflare provision' or 'nvflare poc prepare' made for the site"
    )
