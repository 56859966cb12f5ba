# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0

from .cup_to_disc import CupToDiscError as CupToDiscError
from .pictures import CasePictures as CasePictures
from .segmentation import SliceDice as SliceDice
from .segmentation import SliceDiceMetric as SliceDiceMetric
from .segmentation import SpacedHausdorff as SpacedHausdorff
from .segmentation import SpacedHausdorffMetric as SpacedHausdorffMetric
