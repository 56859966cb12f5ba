# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0

from .algo import FairMonaiAlgo as FairMonaiAlgo
