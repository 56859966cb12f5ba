# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0

from .program import COMMANDS as COMMANDS
from .program import main as main
from .program import parsed as parsed
