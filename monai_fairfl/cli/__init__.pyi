# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0

from .program import EXAMPLES as EXAMPLES
from .program import main as main
