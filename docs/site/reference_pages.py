# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Makes the pages of the API reference: one for each package's face, from its stub.

What ``monai_fairfl/ROOM/__init__.pyi`` exports is what users may import from there.
"""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[2]
PACKAGE = "monai_fairfl"


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Put the pages into the navigation, at the end of its last section."""
    pages: list[Any] = ["reference/index.md"]
    for module in modules():
        pages.append({module: f"reference/{module}.md"})
    last: dict[str, list[Any]] = (config.nav or [])[-1]
    for section in last.values():
        section.append({"API reference": pages})
    return config


def modules() -> dict[str, dict[str, str]]:
    """List what every package exports: package -> name -> its dotted path.

    The package's own face comes last: it exports again what its rooms do.
    """
    stubs = sorted(ROOT.glob(f"{PACKAGE}/*/**/__init__.pyi"))
    found = {}
    for stub in [*stubs, ROOT / PACKAGE / "__init__.pyi"]:
        names = exported(stub)
        if names:
            found[".".join(stub.parent.relative_to(ROOT).parts)] = names
    return found


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add a page for every package that exports names, and an overview."""
    overview = ["# API reference", "", "Each page lists what its package exports.", ""]
    documented: dict[str, str] = {}
    for module, names in modules().items():
        content = _page(module, names, documented)
        files.append(File.generated(config, f"reference/{module}.md", content=content))
        shown = ", ".join(f"`{name}`" for name in names)
        overview.append(f"- [{module}]({module}.md): {shown}")
    files.append(File.generated(config, "reference/index.md", content="\n".join(overview) + "\n"))
    return files


def exported(stub: Path) -> dict[str, str]:
    """Read what a package's stub exports: name -> its dotted path.

    Args:
        stub: ``__init__.pyi`` of a package.
    """
    package = ".".join(stub.parent.relative_to(ROOT).parts)
    names = {}
    for statement in ast.parse(stub.read_text(encoding="utf-8")).body:
        if not isinstance(statement, ast.ImportFrom):
            continue
        module = f"{package}.{statement.module}"
        if statement.level == 0:
            module = str(statement.module)
        for alias in statement.names:
            names[alias.asname or alias.name] = f"{module}.{alias.name}"
    return dict(sorted(names.items()))


def _page(module: str, names: dict[str, str], documented: dict[str, str]) -> str:
    """Write a page; what another page documents already is a link to it.

    Args:
        module: of the page.
        names: that it exports -> their dotted paths.
        documented: dotted path -> page, of what is documented; what this page documents is added.
    """
    lines = [f"# {module}", ""]
    for name, path in names.items():
        if path in documented:
            lines += [f"## {name}", "", f"See [{name}][{path}].", ""]
            continue
        documented[path] = module
        lines += [f"::: {path}", ""]
    return "\n".join(lines)
