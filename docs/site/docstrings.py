# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""What the API reference needs to know of the package's own forms.

Docstrings have a few marks of reStructuredText, which become Markdown. A subclass of ``Component``
is a dataclass without a decorator, see :mod:`monai_fairfl.utils.arguments`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from griffe import Class, Decorator, ExprName, Extension, Module, NameResolutionError, Object
from latex2mathml.converter import convert

Resolve = Callable[[str], str]
"""A name as a docstring has it -> its full dotted path."""
ROLE = re.compile(r":(?:class|func|meth|mod|attr|data|exc):`(~?)([\w.]+)`")
"""A cross reference: ``~`` shows the last part of the name only."""
LITERAL = re.compile(r"``([^`]+)``")
LITERAL_BLOCK = re.compile(r"::(\n\n {4})")
FORMULA = re.compile(r":math:`([^`]+)`")
FORMULA_BLOCK = re.compile(r"^( *)\.\. math:: (.*(?:\n\1 {2,}\S.*)*)", re.MULTILINE)
FENCE = "```"


class MarkdownDocstrings(Extension):
    """Changes docstrings and components before griffe's extension for dataclasses sees them."""

    def on_package(self, *, pkg: Module, **settings: Any) -> None:
        """Change all docstrings, once the whole package is known and names can be resolved.

        Args:
            pkg: the package.
            settings: of the extension's interface, which are not used.
        """
        arguments = pkg["utils.arguments"]
        decorator = Decorator(ExprName("dataclass", parent=arguments), lineno=None, endlineno=None)
        _decorate_components(pkg, decorator)
        _change_all(pkg)


def _decorate_components(owner: Object, decorator: Decorator) -> None:
    """Give every subclass of ``Component`` the decorator that it does without."""
    for member in owner.members.values():
        if member.is_alias:
            continue
        if isinstance(member, Class) and any(base.name == "Component" for base in member.mro()):
            member.decorators.append(decorator)
        _decorate_components(member, decorator)


def _change_all(owner: Object) -> None:
    """Change the docstrings of a module or class and of all that it defines."""
    if owner.docstring is not None:
        owner.docstring.value = as_markdown(owner.docstring.value, _resolver(owner))
    for member in owner.members.values():
        if not member.is_alias:
            _change_all(member)


def _resolver(owner: Object) -> Resolve:
    """Return what resolves names in the scope of this object."""

    def resolve(name: str) -> str:
        first, dot, rest = name.lstrip(".").partition(".")
        if first == owner.package.name:
            return name
        if first in owner.members:
            return f"{owner.canonical_path}.{name}"
        try:
            return owner.resolve(first) + dot + rest
        except NameResolutionError:
            return name

    return resolve


def as_markdown(docstring: str, resolve: Resolve) -> str:
    r"""Return a docstring with examples, links, code and formulas as Markdown writes them.

    An example begins with ``>>>``, and a block of code after a line that ends with ``::``. A link
    to what the reference does not document is shown as code.

    Args:
        docstring: of any object.
        resolve: resolves names in its scope.

    >>> print(as_markdown("Is ``d``.\n\n>>> 1 + 1\n2", str))
    Is `d`.
    <BLANKLINE>
    ```pycon
    >>> 1 + 1
    2
    ```
    """

    def link(found: re.Match[str]) -> str:
        short, name = found.groups()
        shown = name.lstrip(".")
        if short:
            shown = shown.rpartition(".")[2]
        return f'<autoref optional identifier="{resolve(name)}"><code>{shown}</code></autoref>'

    lines: list[str] = []
    in_example = False
    for line in docstring.split("\n"):
        if not in_example and line.lstrip().startswith(">>>"):
            in_example = True
            lines.append(f"{_indent(line)}{FENCE}pycon")
        elif in_example and not line.strip():
            in_example = False
            lines.append(_indent(lines[-1]) + FENCE)
        if not in_example:
            line = LITERAL.sub(r"`\1`", ROLE.sub(link, line))
        lines.append(line)
    if in_example:
        lines.append(_indent(lines[-1]) + FENCE)
    text = LITERAL_BLOCK.sub(r":\1", "\n".join(lines))
    text = FORMULA_BLOCK.sub(_formula_block, text)
    return FORMULA.sub(_formula, text)


def _formula(found: re.Match[str]) -> str:
    """Return a formula as MathML, which browsers show without help from another host.

    Within a ``span`` Markdown leaves it in its line.
    """
    return f"<span>{convert(' '.join(found.group(1).split()))}</span>"


def _formula_block(found: re.Match[str]) -> str:
    indent, formula = found.groups()
    return indent + str(convert(" ".join(formula.split()), display="block"))


def _indent(line: str) -> str:
    return line[: len(line) - len(line.lstrip())]
