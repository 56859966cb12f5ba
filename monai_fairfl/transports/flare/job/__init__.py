# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""A job of NVIDIA FLARE: its recipe, its folder, its classes."""
