# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""``python -m monai_fairfl`` is ``monai-fairfl``."""

import sys

from monai_fairfl.cli import main

if __name__ == "__main__":
    sys.exit(main())
