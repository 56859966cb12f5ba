# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0

from .adopt import Adoption as Adoption
from .adopt import adopt_bundle as adopt_bundle
from .site_check import check_listed_site as check_listed_site
