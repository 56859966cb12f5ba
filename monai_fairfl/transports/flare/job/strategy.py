# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The strategy of a job: made from what the user gives, with the code that travels along."""

from __future__ import annotations

import inspect
from collections.abc import Sequence

from monai_fairfl.errors import ConfigError
from monai_fairfl.strategies import FedCE, Strategy
from monai_fairfl.transports.flare.policy import LIST, NEEDS


def nvflare_fedce(mode: str) -> Strategy:
    """Return the strategy that weighs as NVFlare's FedCE does.

    >>> nvflare_fedce("plus").name
    'FedCE-sum-revised'
    """
    modes = {"plus": "sum", "times": "multi"}
    if mode not in modes:
        raise ConfigError(f"fedce_mode must be 'plus' or 'times', got {mode!r}")
    return FedCE(modes[mode], variant="revised")


def own_classes(strategy: Strategy) -> list[str]:
    """Return the dotted paths of a strategy's classes that are not of this package.

    These are the strategy's class and those of its parts.

    Raises:
        ConfigError: when one does not store an argument under its name: NVFlare writes a job from
            these attributes, and the server would use the default instead.

    >>> from monai_fairfl.strategies import FedCE
    >>> own_classes(FedCE())
    []
    """
    own: list[str] = []
    parts = strategy.parts
    for component in (strategy, parts.weighting, parts.reward, parts.average):
        if component is None:
            continue
        kind = type(component)
        path = f"{kind.__module__}.{kind.__name__}"
        if not path.startswith("monai_fairfl."):
            _check_stored_arguments(component, path)
            own.append(path)
    return own


def installed_packages(own: Sequence[str], custom_code: bool) -> list[str]:
    """Return the packages that server and sites have installed: their code does not travel.

    Code of one's own travels along, unless the job must bring none: then the server must have it.

    >>> installed_packages(["my_methods.Mine"], custom_code=True)
    ['monai_fairfl']
    >>> installed_packages(["my_methods.Mine"], custom_code=False)
    ['monai_fairfl', 'my_methods']
    """
    packages = ["monai_fairfl"]
    if not custom_code:
        packages += [path.partition(".")[0] for path in own]
    return packages


def needs_of(own: Sequence[str], custom_code: bool) -> str:
    """Return what a job needs, for its configuration.

    NVFlare shows it when a class of the job cannot be built.

    Args:
        own: what :func:`own_classes` found.
        custom_code: whether the job brings code.
    """
    if not own:
        return NEEDS
    classes = ", ".join(own)
    if custom_code:
        return (
            f"{classes} came with this job; what it imports must be importable at the server: "
            "install that there"
        )
    return (
        f"{NEEDS}. {classes} did not come with this job and must be importable at the server: "
        f"install it there, or put its folder on PYTHONPATH. It must be in {LIST} of the server, "
        f"too: 'monai-fairfl flare-policy --kit KIT --also {' '.join(own)}' adds it"
    )


def _check_stored_arguments(component: object, path: str) -> None:
    """Refuse a component with an argument that NVFlare would not find."""
    attributes = vars(component)
    for name, argument in inspect.signature(type(component)).parameters.items():
        if argument.kind in (argument.VAR_POSITIONAL, argument.VAR_KEYWORD):
            continue
        # NVFlare looks for both.
        if name not in attributes and f"_{name}" not in attributes:
            raise ConfigError(
                f"{path} does not store its argument {name!r}: write self.{name} = {name} in its "
                "constructor. NVFlare makes the job from these attributes, and the server would "
                "use the default"
            )
