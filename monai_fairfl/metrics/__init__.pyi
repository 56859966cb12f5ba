# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0

from .pictures import CasePictures as CasePictures
from .segmentation import CupToDiscErrorMetric as CupToDiscErrorMetric
from .segmentation import SliceDiceMetric as SliceDiceMetric
from .segmentation import SpacedHausdorffMetric as SpacedHausdorffMetric
