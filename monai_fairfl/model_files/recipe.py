# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""What a model was trained with: its recipe, which travels inside the model's file.

Weights alone do not show how images must be prepared for them. A model that was trained at 64 x 64
gives wrong masks at 256 x 256, and nothing fails. So every model file of this package holds two
entries::

    {"model": state_dict, "recipe": {"bundle": ..., "values": {"size": [64, 64], ...}, ...}}

MONAI's ``CheckpointLoader`` and NVFlare read the first;
``torch.load(file, weights_only=True)["model"]`` is all that anybody else needs. The recipe also
lies beside the model, as ``NAME.recipe.json``, for people to read.

The file of a fused model has the tensors of all its members, so it is used, scored and exported as
any other model. It takes the time and the memory of its members together.
"""

from __future__ import annotations

import copy
import hashlib
import io
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from monai_fairfl import __version__
from monai_fairfl.errors import ConfigError
from monai_fairfl.messages import Weights
from monai_fairfl.model_files.parts import acts as acts
from monai_fairfl.model_files.parts import refused_part
from monai_fairfl.utils.files import load_saved, write_atomically

RECIPE_SUFFIX = ".recipe.json"
"""Of the file beside a model."""

REQUIRED = ("bundle", "version", "values")
"""Fields that every recipe has."""


@dataclass(frozen=True)
class ModelRecipe:
    """Records how a model was trained: what decides its preprocessing, network and inference.

    Every model file contains a recipe, so that inference prepares images as the training did.

    Args:
        bundle: the bundle's name in its metadata.
        version: the bundle's version.
        values: key of the bundle's configuration -> the plain value with which the model was
            trained.
        sections: part of the configuration, such as ``"network_def"`` -> SHA-256 of its JSON. It
            covers what plain values cannot say, because a configuration file may replace a section.
        parts: the same name -> ``content``, the section with every reference and expression
            resolved, for whoever has another one; and ``values``, the keys that it follows from.
            A section that holds more than classes of
            :data:`~monai_fairfl.model_files.parts.ALLOWED` and plain values is not among them.
        files: configuration file -> SHA-256, in the order of merging; empty if it is not known
            which files were merged.
        classes: output channel -> what it means.
        sites: site -> its own values, if they differ from ``values``.
        package: name and version of the package that trained the model.
        training: how the model was trained, as far as it is known: ``strategy``, ``seed`` and
            ``rounds`` of its federation, ``local_epochs`` of each round, and the bundle's
            ``full_run`` (``rounds`` and ``local_epochs``). If the bundle declares no ``values``,
            also the given ``overrides`` and ``overrides_of_sites``.

    >>> values = {"size": [64, 64], "channel": 0}
    >>> recipe = ModelRecipe("Prostate", "0.1.0", values, sites={"HK": {"channel": 1}})
    >>> recipe.of_site("HK").values
    {'size': [64, 64], 'channel': 1}
    """

    bundle: str
    version: str
    values: Mapping[str, Any]
    sections: Mapping[str, str] = field(default_factory=dict)
    parts: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)
    classes: Mapping[str, str] = field(default_factory=dict)
    sites: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    package: str = f"monai_fairfl {__version__}"
    training: Mapping[str, Any] = field(default_factory=dict)

    def of_site(self, site: str) -> ModelRecipe:
        """The recipe of a model that only this site uses."""
        own = self.sites.get(site, {})
        # A part that follows from a value that the site has otherwise is another one there.
        parts = {}
        for section, part in self.parts.items():
            if own.keys().isdisjoint(part["values"]):
                parts[section] = part
        return replace(self, values={**self.values, **own}, parts=parts, sites={})

    def trained(self, **known: Any) -> ModelRecipe:
        """Return the recipe with further entries of ``training``.

        >>> ModelRecipe("Prostate", "0.1.0", {}).trained(rounds=3).training
        {'rounds': 3}
        """
        return replace(self, training={**self.training, **known})

    def state_dict(self) -> dict[str, Any]:
        """The recipe as plain values; ``CheckpointSaver`` writes it beside the weights."""
        return dict(json.loads(json.dumps(asdict(self))))

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load nothing: a recipe describes the model that it came with.

        ``CheckpointLoader`` calls this where a configuration names the recipe.
        """

    @classmethod
    def from_state(cls, state: Mapping[str, Any], source: str | Path) -> ModelRecipe:
        """The inverse of :meth:`state_dict`.

        Raises:
            ConfigError: when a field is missing or not what it must be, or would act where it is
                used; it names the file and the field.
        """
        kinds: dict[str, Any] = {
            row.name: str if row.type == "str" else Mapping for row in fields(cls)
        }
        known: dict[str, Any] = {name: state[name] for name in kinds if name in state}
        problems = [f"it lacks {name}" for name in REQUIRED if name not in known]
        for name, value in known.items():
            if not isinstance(value, kinds[name]):
                problems.append(f"its {name} is {value!r}")
            elif name == "parts":
                for section, part in value.items():
                    if refused := refused_part(part):
                        problems.append(f"{refused} in its {section}")
            elif acts(value):
                problems.append(f"code or a reference in its {name}")
            elif name == "sites" and not all(isinstance(own, Mapping) for own in value.values()):
                problems.append(f"its sites have {value!r}")
        if problems:
            raise ConfigError(f"{source} has an unusable recipe, ask its sender: {problems}")
        return cls(**known)


def save_model_file(path: str | Path, weights: Weights, recipe: ModelRecipe | None = None) -> None:
    """Write a model with its recipe; a crash leaves the old file or the new one.

    Tensors are sorted by name, so that equal models are equal files, wherever they come from.

    Args:
        path: of the file; ``NAME.recipe.json`` is written beside it.
        weights: the whole ``state_dict``.
        recipe: of the model; ``None``: unknown, and the file holds the ``state_dict`` alone. The
            ``NAME.recipe.json`` of a previous model is deleted then.

    >>> import torch
    >>> from pathlib import Path
    >>> import tempfile
    >>> file = Path(tempfile.mkdtemp(), "global.pt")
    >>> recipe = ModelRecipe("Prostate", "0.1.0", {"size": [64, 64]})
    >>> save_model_file(file, {"w": torch.ones(1)}, recipe)
    >>> torch.load(file, weights_only=True)["model"]
    {'w': tensor([1.])}
    >>> read_recipe(file).values
    {'size': [64, 64]}
    """
    path = Path(path)
    state = {name: weights[name].detach().cpu().clone() for name in sorted(weights)}
    content = state if recipe is None else {"model": state, "recipe": recipe.state_dict()}
    file = io.BytesIO()
    torch.save(content, file)
    write_atomically(path, file.getvalue())
    if recipe is None:
        # A previous model may have left one.
        path.with_suffix(RECIPE_SUFFIX).unlink(missing_ok=True)
    else:
        write_recipe_file(path, recipe)


def write_recipe_file(model: str | Path, recipe: ModelRecipe) -> None:
    """Write the recipe beside its model.

    Args:
        model: its file, which need not exist; ``NAME.recipe.json`` is written in its folder,
            which is made where there is none.
        recipe: of the model.

    >>> import json, tempfile
    >>> from pathlib import Path
    >>> from monai_fairfl import ModelRecipe
    >>> recipe = ModelRecipe("Prostate", "0.1.0", {"size": [64, 64]})
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_recipe_file(f"{folder}/global.pt", recipe)
    ...     json.loads(Path(folder, "global.recipe.json").read_text())["values"]
    {'size': [64, 64]}
    """
    text = json.dumps(recipe.state_dict(), indent=4, ensure_ascii=False) + "\n"
    write_atomically(Path(model).with_suffix(RECIPE_SUFFIX), text.encode())


def digests_of_files(root: str | Path, names: Sequence[str]) -> dict[str, str]:
    """Configuration file, relative to ``root`` -> SHA-256, in the order of ``names``."""
    return {str(name): hashlib.sha256(Path(root, name).read_bytes()).hexdigest() for name in names}


def read_recipe(path: str | Path) -> ModelRecipe | None:
    """The recipe inside a model file.

    Returns:
        The recipe; ``None`` where the file has none.

    Raises:
        ConfigError: when the file is missing, damaged or something else.

    >>> import torch
    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     recipe = ModelRecipe("Prostate", "0.1.0", {"size": [64, 64]}).trained(rounds=3)
    ...     save_model_file(folder + "/global.pt", {"w": torch.ones(1)}, recipe)
    ...     found = read_recipe(folder + "/global.pt")
    >>> found.values, found.training
    ({'size': [64, 64]}, {'rounds': 3})
    """
    found = load_saved(path)
    # A state_dict alone has none.
    recipe = found.get("recipe") if isinstance(found, Mapping) else None
    if recipe is None:
        return None
    if not isinstance(recipe, Mapping):
        raise ConfigError(f"{path} holds no recipe but a {type(recipe).__name__}")
    return ModelRecipe.from_state(recipe, path)


def state_of_file(path: str | Path) -> Weights:
    """The ``state_dict`` in a model file.

    It is the whole content, or its entry ``"model"``, as MONAI's ``CheckpointLoader`` reads it.

    Raises:
        ConfigError: when the file is missing, damaged or something else.

    >>> import torch
    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     recipe = ModelRecipe("Prostate", "0.1.0", {"size": [64, 64]})
    ...     save_model_file(folder + "/global.pt", {"w": torch.ones(1)}, recipe)
    ...     state_of_file(folder + "/global.pt")
    {'w': tensor([1.])}
    """
    found = load_saved(path)
    if isinstance(found, Mapping) and isinstance(found.get("model"), Mapping):
        found = found["model"]
    if not isinstance(found, Mapping):
        raise ConfigError(f"{path} is no state_dict of torch.save but a {type(found).__name__}")
    return found


# ---- fused models: two or more models of one network, whose outputs are averaged

MEMBERS = "members"
"""Every name of a fused model's tensors begins with this word and the number of the member."""


class FusedNetwork(nn.Module):
    """Averages the outputs of networks of one kind.

    Outputs are logits as a rule. The mean of logits is the logarithm of the geometric mean of the
    odds (sigmoid), or of the probabilities up to a factor (softmax).

    Args:
        network: of each member; it gives one tensor.
        num_members: number of copies of it.

    >>> import torch
    >>> from torch import nn
    >>> fused = FusedNetwork(nn.Linear(1, 1, bias=False), 2)
    >>> weights = [{"weight": torch.tensor([[1.0]])}, {"weight": torch.tensor([[2.0]])}]
    >>> _ = fused.load_state_dict(dict(fused_weights(weights)))
    >>> fused(torch.ones(1, 1)).item()
    1.5
    """

    def __init__(self, network: nn.Module, num_members: int):
        super().__init__()
        self.members = nn.ModuleList(copy.deepcopy(network) for _ in range(num_members))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """The mean of the members' outputs (B, C, ...) for ``images`` (B, channels, ...)."""
        # A plain loop, which TorchScript compiles.
        outputs = []
        for member in self.members:
            outputs.append(member(images))
        return torch.stack(outputs).mean(0)


def fused_weights(models: Sequence[Weights]) -> Weights:
    """The tensors of a fused model.

    Args:
        models: the members, of one network.

    >>> import torch
    >>> list(fused_weights([{"w": torch.zeros(1)}, {"w": torch.ones(1)}]))
    ['members.0.w', 'members.1.w']
    """
    found = {}
    for number, weights in enumerate(models):
        for name, tensor in weights.items():
            found[f"{MEMBERS}.{number}.{name}"] = tensor
    return found


def num_members(weights: Weights) -> int:
    """The number of members of a fused model; 0: it is no fused model.

    >>> num_members({"members.0.w": torch.zeros(1), "members.1.w": torch.ones(1)})
    2
    >>> num_members({"w": torch.zeros(1)})
    0
    """
    found = [re.match(rf"{MEMBERS}\.(\d+)\..", name) for name in weights]
    return len({name.group(1) for name in found if name}) if all(found) else 0


def network_for(network: nn.Module, weights: Weights) -> nn.Module:
    """The network that a model is of: the given one, or that of a fused model, made of copies.

    Args:
        network: of a model that is not fused, or of each member.
        weights: the model.
    """
    # A network of one's own may have parts that are called members, too.
    if weights.keys() == network.state_dict().keys():
        return network
    members = num_members(weights)
    return FusedNetwork(network, members) if members else network
