# Copyright (c) MONAI FairFL contributors
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#     http://www.apache.org/licenses/LICENSE-2.0
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS,
# WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
# See the License for the specific language governing permissions and
# limitations under the License.
"""Draw ``demo_hospitals.png``: one slice of each hospital of ``make demo``, with the outline of the gland.

python docs/images/demo_hospitals.py
"""

from __future__ import annotations

from pathlib import Path

import matplotlib
import numpy as np

from monai_fairfl.data import DEMO_SITES, make_case

matplotlib.use("Agg")  # no window

import matplotlib.pyplot as plt  # noqa: E402

SEED = 0
SIZE = (96, 96, 12)


def draw(file: Path) -> None:
    """Draw the slice of the first case of each hospital in which the gland is largest."""
    figure, panels = plt.subplots(1, len(DEMO_SITES), figsize=(2.5 * len(DEMO_SITES), 2.7))
    for panel, site in zip(panels, DEMO_SITES, strict=True):
        image, mask, _ = make_case(site, 0, SEED, SIZE)
        largest = int(mask.sum(axis=(0, 1)).argmax())
        shown = image[:, :, largest].T  # rows run from front to back, columns from right to left
        panel.imshow(shown, cmap="gray", vmin=0, vmax=np.percentile(image, 99.5))  # as the bundle scales a volume
        panel.contour(mask[:, :, largest].T, [0.5], colors="gold", linewidths=1.2)
        panel.set_title(site.name)
        panel.axis("off")
    figure.tight_layout(pad=0.3)
    figure.savefig(file, dpi=80, metadata={"Software": None})
    plt.close(figure)


if __name__ == "__main__":
    draw(Path(__file__).with_suffix(".png"))
