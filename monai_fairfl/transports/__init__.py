# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Transports: in this process, over NVIDIA FLARE. Each only implements ``exchange``."""
