# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""What the studies simulate: cases dealt to clients, free riders, damaged images, wrong labels.

The damage is the same in every epoch, process and order. Both transforms are deterministic, so they
belong among a bundle's deterministic transforms and are cached with them. Put them after the
resizing (noise of larger images is averaged away by it) and before slices are drawn. What is random
in them is seeded by their seed and the case's file, ``FOLDER/NAME``; so moving the data changes
nothing.

Configurations name them from the project's folder on, as in
``experiments.simulated.quality.CorruptQualityd``.
"""
