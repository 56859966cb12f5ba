# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Writes what is made of the table of settings: ``federate.json`` of both bundles, and their page.

``python docs/site/keys_page.py`` writes them; a test makes them again and compares.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from monai_fairfl.bundle.settings import GROUPS, Settings, federate_config, rows_of
from monai_fairfl.utils.arguments import BUNDLE, LEAD, meanings

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "keys.md"
FILES = sorted(ROOT.glob("bundles/*/configs/federate.json"))


def main() -> None:
    """Write all files anew. A bundle keeps the keys that are its own."""
    for file in FILES:
        file.write_text(federate_text(file))
    PAGE.write_text(page())


def federate_text(file: Path) -> str:
    """The text of a bundle's ``federate.json``, with the present values of its own keys."""
    present = json.loads(file.read_text())
    own = {name: present[name] for name in ("imports", *rows_of(BUNDLE)) if name in present}
    return json.dumps(federate_config(own), indent=4) + "\n"


def page() -> str:
    """The text of the page: its introduction stays, its tables are made of the rows."""
    texts = meanings(Settings)
    rows = rows_of(LEAD)
    bundles = {file.parts[-3].partition("_")[0]: json.loads(file.read_text()) for file in FILES}
    lines = [PAGE.read_text().partition("\n## ")[0]]
    for group in GROUPS:
        lines += [f"## {group}", "", "| key | default | meaning |", "| --- | --- | --- |"]
        for name, row in rows.items():
            if row.metadata["group"] == group:
                values = {bundle: content[name] for bundle, content in bundles.items()}
                lines.append(f"| `{name}` | {_shown(values)} | {texts[name]} |")
        lines.append("")
    return "\n".join(lines)


def _shown(values: dict[str, Any]) -> str:
    """A default as the page shows it, of each bundle where they differ."""
    texts = {bundle: f"`{json.dumps(value)}`" for bundle, value in values.items()}
    if any(isinstance(value, dict) and len(value) > 1 for value in values.values()):
        return "of the bundle"
    if len(set(texts.values())) == 1:
        return next(iter(texts.values()))
    return ", ".join(f"{text} ({bundle})" for bundle, text in texts.items())


if __name__ == "__main__":
    main()
