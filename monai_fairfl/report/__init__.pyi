# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0

from .hospitals import as_text as as_text
from .write import write_comparison as write_comparison
from .write import write_report as write_report
from .write import write_report_if_possible as write_report_if_possible
