# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The programs of MONAI Label and MONAI Deploy are no tests."""

from __future__ import annotations

# They run in those environments.
collect_ignore_glob = ["programs/*"]
