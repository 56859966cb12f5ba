# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The entry of NVFlare's ``class_allow_list`` that a job without custom code needs.

The server and every site must have it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from nvflare.app_common.default_component_policy import DEFAULT_CLASS_ALLOW_LIST

from monai_fairfl.errors import ConfigError
from monai_fairfl.utils.files import write_atomically
from monai_fairfl.utils.plain_values import object_of_json

ENTRY = "monai_fairfl."
"""With its dot: the classes of this package and no others."""
LIST = "class_allow_list"
OWN_POLICY = "resources.json"
NEEDS = (
    f"a job without custom code needs '{ENTRY}' in {LIST} of local/{OWN_POLICY}, here and at every "
    "site: 'monai-fairfl doctor KIT --flare-policy --add' adds it"
)
"""Written into a job's configuration, which NVFlare shows when it refuses a class."""


def allowed(kit: str | Path, also: Sequence[str] = (), add: bool = False) -> bool:
    """Return whether a startup kit's policy lets a job build the classes of this package.

    Args:
        kit: folder of a server or client, with ``local/``.
        also: dotted paths of classes of another package, such as a strategy of one's own; in the
            server's kit only.
        add: add what the list lacks to ``local/resources.json``. Where this file is missing it is
            made of ``resources.json.default``. A list in it replaces NVFlare's own, so all of that
            goes in too. Restart the server or client afterwards.

    Raises:
        ConfigError: when there is no policy.
    """
    own = Path(kit) / "local" / OWN_POLICY
    file = own if own.exists() else own.with_name(f"{OWN_POLICY}.default")
    try:
        policy = object_of_json(file.read_bytes())
        listed = policy.get(LIST, list(DEFAULT_CLASS_ALLOW_LIST))
        if not isinstance(listed, list):
            raise ValueError(f"{LIST} is no list")
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"{file} is no JSON policy ({error}): mend it, or give the kit of a server or site"
        ) from error
    # A star allows every class.
    lacking = [entry for entry in (ENTRY, *also) if entry not in listed and "*" not in listed]
    if add:
        policy[LIST] = [*listed, *lacking]
        write_atomically(own, (json.dumps(policy, indent=2) + "\n").encode())
    return add or not lacking
