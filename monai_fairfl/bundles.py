# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Moved to :mod:`monai_fairfl.bundle.shipped`."""

from monai_fairfl.bundle.shipped import bundle_names as bundle_names
from monai_fairfl.bundle.shipped import check_new as check_new
from monai_fairfl.bundle.shipped import copy_bundle as copy_bundle
from monai_fairfl.bundle.shipped import find_bundle as find_bundle
from monai_fairfl.bundle.shipped import locate_bundle as locate_bundle
