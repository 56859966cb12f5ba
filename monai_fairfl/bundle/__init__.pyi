# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0

from .checks import check_config as check_config
from .federation import BundleFederation as BundleFederation
from .settings import SiteSettings as SiteSettings
from .shipped import copy_bundle as copy_bundle
from .shipped import find_bundle as find_bundle
from .shipped import locate_bundle as locate_bundle
from .site import bundle_client as bundle_client
from .site import initial_model as initial_model
