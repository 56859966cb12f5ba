# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""What pytest leaves out where an optional engine is not installed."""

from __future__ import annotations

from importlib.util import find_spec

collect_ignore_glob: list[str] = []
if find_spec("flwr") is None:
    collect_ignore_glob += ["monai_fairfl/transports/flower/*", "tests/helpers/flower_*"]

# Files of a job, which import each other and start it.
collect_ignore = ["docs/examples/flare/own_script"]
