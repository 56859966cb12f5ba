# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Moved to :mod:`monai_fairfl.run_folder.recorded_updates`."""

from monai_fairfl.run_folder.recorded_updates import recorded_rounds as recorded_rounds
