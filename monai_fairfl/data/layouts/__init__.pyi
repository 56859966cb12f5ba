# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0

from .base import PARTS as PARTS
from .base import CaseFiles as CaseFiles
from .base import Found as Found
from .base import Layout as Layout
from .finding import LAYOUTS as LAYOUTS
from .finding import find as find
from .finding import folder_of_site as folder_of_site
from .finding import layout_of as layout_of
from .finding import name_of_site as name_of_site
from .finding import site_folders as site_folders
from .finding import sites_at as sites_at
