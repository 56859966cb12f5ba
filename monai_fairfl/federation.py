# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Moved to :mod:`monai_fairfl.server.federation`."""

from monai_fairfl.server.federation import Federation as Federation
from monai_fairfl.server.federation import History as History
