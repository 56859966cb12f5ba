# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Formulas of docstrings, which are written in LaTeX, as a terminal can show them."""

from __future__ import annotations

import re

SYMBOLS = {
    "alpha": "α",
    "beta": "β",
    "gamma": "γ",
    "delta": "δ",
    "lambda": "λ",
    "mu": "μ",
    "nu": "ν",
    "omega": "ω",
    "phi": "φ",
    "pi": "π",
    "psi": "ψ",
    "rho": "ρ",
    "Gamma": "Γ",
    "Delta": "Δ",
    "sum": "Σ",
    "prod": "Π",
    "sqrt": "√",
    "leftarrow": "←",
    "propto": "∝",
    "setminus": "∖",
    "in": "∈",
    "ne": "≠",
    "le": "≤",
    "ge": "≥",
    "cdot": "·",
    "cdots": "...",
    "dots": "...",
    "ldots": "...",
    "times": "×",
    "odot": "⊙",
    "subseteq": "⊆",
    "cup": "∪",
    "cap": "∩",
    "infty": "∞",
    "nabla": "∇",
    "epsilon": "ε",
    "varepsilon": "ε",
    "sigma": "σ",
    "tau": "τ",
    "theta": "θ",
    "eta": "η",
    "kappa": "κ",
    "lVert": "‖",
    "rVert": "‖",
    "Vert": "‖",
    "lvert": "|",
    "rvert": "|",
    "mid": "|",
    "langle": "⟨",
    "rangle": "⟩",
    "quad": "  ",
    "qquad": "    ",
    "left": "",
    "right": "",
    "big": "",
    "Big": "",
}
"""Name of a command -> what stands for it; any other one is its name, such as ``cos``."""

ACCENTS = {"tilde": "\u0303", "bar": "\u0304", "hat": "\u0302"}
"""Name of an accent -> the character that puts it over the one before."""


def plain_formula(latex: str) -> str:
    r"""A formula in one line of plain characters.

    >>> print(plain_formula(r"\gamma^{cos}_i = 1 - \cos(\Delta_i, \sum_{j \ne i} \pi_j \Delta_j)"))
    γ^cos_i = 1 - cos(Δ_i, Σ_(j ≠ i) π_j Δ_j)
    >>> print(plain_formula(r"\psi_i = \frac{1}{M} \sum_j (1 + \Gamma_{i,j}) / 2"))
    ψ_i = (1 / M) Σ_j (1 + Γ_(i,j)) / 2
    """
    text = re.sub(r"\\([ ,;:!])", " ", latex)
    text = re.sub(r"\\[|]", "‖", text)
    text = re.sub(r"\\(?:mathrm|text|mathbf|operatorname)\s*\{([^{}]*)\}", r"\1", text)
    for name, accent in ACCENTS.items():
        # The accent follows its letter, which may be a command.
        text = re.sub(rf"\\{name}\s*(?:\{{(\\?\w+)\}}|(\\[A-Za-z]+|\w))", rf"\1\2{accent}", text)
    text = re.sub(r"\\([A-Za-z]+)", _symbol, text)
    text = re.sub(r"\\([{}])", lambda found: "⦃" if found[1] == "{" else "⦄", text)

    # From the innermost braces outwards.
    previous = ""
    while text != previous:
        previous = text
        text = re.sub(r"([_^])\{([^{}]*)\}", _script, text)
        text = re.sub(r"frac\{([^{}]*)\}\s*\{([^{}]*)\}", _fraction, text)
        text = re.sub(r"√\{([^{}]*)\}", r"√(\1)", text)
    text = text.replace("{", "").replace("}", "").replace("⦃", "{").replace("⦄", "}")
    return re.sub(r" *\n *", " ", text).rstrip()


def _symbol(found: re.Match[str]) -> str:
    return SYMBOLS.get(found[1], found[1])


def _script(found: re.Match[str]) -> str:
    """What is raised or lowered; in parentheses where it is more than a name."""
    mark, script = found.groups()
    return f"{mark}{script}" if re.fullmatch(r"\w+", script) else f"{mark}({script})"


def _fraction(found: re.Match[str]) -> str:
    return f"({_one(found[1])} / {_one(found[2])})"


def _one(part: str) -> str:
    """A part of a fraction; in parentheses where it has several terms or factors."""
    return f"({part})" if re.search(r"\s", part.strip()) else part
