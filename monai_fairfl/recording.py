# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Moved to :mod:`monai_fairfl.run_folder.recording`."""

from monai_fairfl.run_folder.recording import recorded_rounds as recorded_rounds
