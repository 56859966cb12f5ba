# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""A strategy of one's own in a job: whether its code travels along, and what the server must have."""

from __future__ import annotations

import inspect
from collections.abc import Sequence

from monai_fairfl.errors import ConfigError
from monai_fairfl.strategies import Strategy
from monai_fairfl.transports.flare.policy import LIST, NEEDS


def own_classes(strategy: Strategy) -> list[str]:
    """The dotted paths of the classes of a strategy, and of its parts, that are not of this
    package.

    Raises:
        ConfigError: when one does not store an argument under its name: NVFlare writes a job from
            these attributes, and the server would use the default instead.

    >>> from monai_fairfl.strategies import FedCE
    >>> own_classes(FedCE())
    []
    """
    own: list[str] = []
    for component in (strategy, strategy.parts.weighting, strategy.parts.reward):
        kind = type(component)
        path = f"{kind.__module__}.{kind.__name__}"
        if component is not None and not path.startswith("monai_fairfl."):
            _check_stored_arguments(component, path)
            own.append(path)
    return own


def _check_stored_arguments(component: object, path: str) -> None:
    """Refuse a component with an argument that NVFlare would not find."""
    for name, argument in inspect.signature(type(component)).parameters.items():
        if argument.kind in (argument.VAR_POSITIONAL, argument.VAR_KEYWORD):
            continue
        if not {name, f"_{name}"} & vars(component).keys():  # NVFlare looks for both
            raise ConfigError(
                f"{path} does not store its argument {name!r}: write self.{name} = {name} in its constructor. "
                "NVFlare makes the job from these attributes, and the server would use the default"
            )


def installed_packages(own: Sequence[str], custom_code: bool) -> list[str]:
    """The packages whose code does not travel with the job, since server and sites have them
    installed.

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
    """What a job needs, written into its configuration: NVFlare shows it when a class of it cannot
    be built.

    Args:
        own: what :func:`own_classes` found.
        custom_code: whether the job brings code.
    """
    classes = ", ".join(own)
    if not own:
        return NEEDS
    if custom_code:
        return f"{classes} came with this job; what it imports must be importable at the server: install that there"
    return (
        f"{NEEDS}. {classes} did not come with this job and must be importable at the server: install it there, or "
        f"put its folder on PYTHONPATH. It must be in {LIST} of the server, too: 'monai-fairfl flare-policy --kit KIT "
        f"--also {' '.join(own)}' adds it"
    )
