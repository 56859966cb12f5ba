# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Moved to :mod:`monai_fairfl.bundle.site`."""

from monai_fairfl.bundle.site import bundle_client as bundle_client
