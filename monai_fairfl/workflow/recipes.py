# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""What a bundle's configurations call: of the model's recipe, the data, the network.

How a model was trained is recorded where it is trained, and compared and used where it is used:
``train.json`` calls :func:`training_recipe`, and ``inference.json`` and ``evaluate.json`` have the
values of a :class:`ModelValues`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from monai.bundle import ConfigParser
from monai.bundle.reference_resolver import ReferenceResolver
from monai.utils import ensure_tuple
from torch import nn

from monai_fairfl.bundle.configuration import (
    METADATA,
    TRAIN,
    calling,
    errors_in_one_line,
    read_configs,
    read_keys,
    require_same_bundle,
)
from monai_fairfl.data import check_cases
from monai_fairfl.data.layouts import CaseFiles
from monai_fairfl.errors import ConfigError
from monai_fairfl.model_files.parts import OF_FILES, refused_in
from monai_fairfl.model_files.recipe import ModelRecipe, network_for, read_recipe, state_of_file
from monai_fairfl.utils.arguments import check_value
from monai_fairfl.utils.files import write_atomically

DESCRIPTION = "_desc_"
TRANSFORMS = "train#deterministic_transforms"
INFERER = "validate#inferer"

FREE = ("mirror_axes", "overlap", "mode", "sw_batch_size", "sw_device", "device", "progress")
"""Arguments of an inferer that may differ from run to run."""

NOT_GIVEN = ...
"""Stands for a value that neither the model nor the user gave; ``require`` reports it."""


# ---- the recipe of a training


@errors_in_one_line()
def training_recipe(
    bundle_root: str | Path,
    values: Mapping[str, Any],
    sections: Sequence[str] = (),
    unlabelled: Mapping[str, Any] | None = None,
) -> ModelRecipe:
    """Make the recipe of the models that the running configuration trains.

    ``train.json`` calls it under the key ``recipe``.

    Args:
        bundle_root: folder of the bundle; name, version and classes are read from its metadata.
        values: key -> value, of all that decides preprocessing, network, inference and classes.
        sections: parts of the running configuration whose content decides, too, such as
            ``"network_def"``.
        unlabelled: key -> value with which these parts prepare images alone, such as the keys that
            are resampled.

    Raises:
        ConfigError: when a value is not plain (finite numbers, texts, lists of these): it could not
            be read again; when a value would train in vain; or when the metadata is damaged. From
            the command line: the text, and exit code 2.

    >>> from monai_fairfl.bundle import find_bundle
    >>> recipe = training_recipe(find_bundle("prostate_mri_segmentation"), {"size": (64, 64)})
    >>> recipe.bundle, recipe.values, recipe.classes
    ('Prostate MRI segmentation', {'size': [64, 64]}, {'0': 'background', '1': 'prostate'})
    """
    root = Path(bundle_root).absolute()
    metadata = read_keys(root / METADATA)
    try:
        plain = json.loads(json.dumps(dict(values), allow_nan=False))
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"{values} are no recipe's ({error}): give finite numbers, texts, or lists of these"
        ) from error
    check_value("field_of_view", plain.get("field_of_view", 1), "float", "(0, 1]")
    # One channel has a sigmoid, several share a softmax; other bundles may do otherwise.
    channels, softmax = plain.get("out_channels", 1), plain.get("softmax", False)
    both = "configs/two_channel.json"
    if (root / both).is_file() and softmax != (channels > 1):
        fault = f"out_channels {channels} does not go with softmax {softmax}"
        raise ConfigError(f"{fault}: leave both out, or use {both}")
    running, config_files = calling()
    parser = running or ConfigParser({})
    files = {}
    for file in map(Path, config_files):
        # Of a file elsewhere only the name: no path of a hospital travels with a model.
        path = file.absolute()
        name = path.relative_to(root).as_posix() if path.is_relative_to(root) else path.name
        files[name] = hashlib.sha256(path.read_bytes()).hexdigest()
    # Another parser: what was built of the running one stays.
    alone = ConfigParser({**parser.get(), **(unlabelled or {})})
    digests, parts = {}, {}
    # MONAI's parser writes "::" for "#". A bundle of others may lack a section.
    for section in [name.replace("::", "#") for name in sections if name in parser]:
        digests[section] = digest_of(parser[section])
        try:
            content = _resolved(alone, section)
        except Exception:  # whatever an expression raises, or JSON of what it gives
            continue
        if refused_in(content):
            continue
        places = [section]
        for place in places:
            if place not in values:
                found = ReferenceResolver.find_refs_in_config(parser.get(place), place)
                places += found.keys() - places
        parts[section] = {"content": content, "values": sorted(set(places).intersection(values))}
    # What each output channel means.
    outputs = metadata.get("network_data_format", {}).get("outputs", {})
    channels = outputs.get("pred", {}).get("channel_def", {})
    return ModelRecipe(
        bundle=str(metadata.get("name", root.name)),
        version=str(metadata.get("version", "")),
        values=plain,
        sections=digests,
        parts=parts,
        files=files,
        classes={str(channel): str(meaning) for channel, meaning in channels.items()},
    )


def _resolved(parser: ConfigParser, place: str) -> Any:
    """The content of a place, with references and expressions replaced by their plain values."""
    content = parser[place]
    if isinstance(content, Mapping):
        names = [name for name in content if name != DESCRIPTION]
        return {name: _resolved(parser, f"{place}#{name}") for name in names}
    if isinstance(content, list):
        return [_resolved(parser, f"{place}#{number}") for number in range(len(content))]
    if content in OF_FILES:
        return content
    if isinstance(content, str) and content.startswith("@"):
        return _resolved(parser, content[1:])
    return json.loads(json.dumps(parser.get_parsed_content(place), allow_nan=False))


def digest_of(section: Any, without: Sequence[str] = ()) -> str:
    """Compute the SHA-256 of a part of a configuration, without its descriptions and some keys.

    >>> digest_of({"_target_": "UNet", "_desc_": "small"}) == digest_of({"_target_": "UNet"})
    True
    """
    plain = json.loads(json.dumps(section, default=str))
    parts = [plain]
    for part in parts:
        if isinstance(part, dict):
            for key in (DESCRIPTION, *without):
                part.pop(key, None)
            parts += part.values()
        elif isinstance(part, list):
            parts += part
    return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()


# ---- what a model brings: sections that a configuration file of the training changed


def own_recipe(recipe: ModelRecipe, bundle_root: Path) -> ModelRecipe:
    """The recipe that a bundle's training would give to a model of the same values."""
    training = read_configs(bundle_root, TRAIN)
    for key, value in recipe.values.items():
        # The bundle says what models bring: a model may replace nothing else.
        if key.isidentifier() and key != "recipe" and key in training:
            training[key] = value
    training["bundle_root"] = str(bundle_root)
    return training.get_parsed_content("recipe", default=None) or ModelRecipe("", "", {})


def carried_sections(recipe: ModelRecipe, own: ModelRecipe) -> dict[str, Any]:
    """Section -> content as trained, where the bundle would build another from the same values."""
    carried = {}
    for section, part in recipe.parts.items():
        here = own.parts.get(section, {}).get("content")
        if section in own.sections and here != part["content"]:
            carried[section] = part["content"]
    return carried


def overlay_of(
    recipe: ModelRecipe, bundle_root: Path, config: ConfigParser, own: ModelRecipe | None = None
) -> dict[str, Any]:
    """What comes after a bundle's configuration for a model: often nothing.

    Args:
        recipe: of the model.
        bundle_root: the bundle that uses it.
        config: of its evaluation, which has the sections of the training; or of its inference,
            which has the transforms in ``preprocessing`` and the inferer in ``inferer``.
        own: :func:`own_recipe`, where the caller has it.

    Raises:
        ConfigError: when the configuration has no place for what the model brings.
    """
    overlay: dict[str, Any] = {}
    carried = carried_sections(recipe, own or own_recipe(recipe, bundle_root))
    for section, content in carried.items():
        key = section
        if section == TRANSFORMS and section not in config:
            key, content = "preprocessing#transforms", _of_images(content)
        elif section == INFERER and section not in config:
            key = "inferer#inferer" if "inferer#inferer" in config else "inferer"
        if key not in config:
            raise ConfigError(f"{bundle_root} has no {key}, which this model brings: add it")
        overlay[key] = content
        # The values that only the parts of the training know, as its configuration had them.
        for name in recipe.parts[section]["values"]:
            if name in recipe.values and name not in config:
                overlay |= {name: recipe.values[name], f"deciding#{name}": f"@{name}"}
    return overlay


def _of_images(transforms: Any) -> list[dict[str, Any]]:
    """The transforms of images with labels, for images alone."""
    found = []
    for transform in transforms:
        keys = ensure_tuple(transform.get("keys", ()))
        if "image" in keys:
            others = {"allow_missing_keys": True} if len(keys) > 1 else {}
            found.append({**transform, **others})
    return found


# ---- the values of a model that is used


class ModelValues:
    """The values that a model was trained with, for a configuration that uses the model.

    ``inference.json`` has them as ``"size": "$@recipe['size']"``, so that a value given by hand
    replaces the expression. :meth:`require` then compares all values with the recipe before
    anything is computed.

    Args:
        ckpt_path: the model file. Where there is none, or it is not loaded, the values are
            ``defaults``: MONAI builds the network without a model to check it, and a federation's
            client gets its weights from the server.
        bundle_root: folder of the bundle.
        own_values: keys that this hospital gives by hand although the model was trained with
            others, because its own images were trained so. A section of the configuration, such as
            ``"network_def"`` or one of ``unchanged``, may be named, too.
        defaults: key -> value.
        config: the bundle's own configuration files of this run, relative to ``bundle_root``.
        unchanged: sections that must be as in ``config``, such as ``"preprocessing"``: an argument
            such as ``--preprocessing#transforms#5#mode nearest`` changes results that no plain
            value shows.

    Raises:
        ConfigError: when the model file or its recipe cannot be read.

    >>> import tempfile
    >>> from torch import nn
    >>> from monai_fairfl import ModelRecipe
    >>> from monai_fairfl.model_files import save_model_file
    >>> folder = tempfile.TemporaryDirectory()
    >>> file = f"{folder.name}/model.pt"
    >>> recipe = ModelRecipe("Prostate", "0.1.0", {"channel": 1})
    >>> save_model_file(file, nn.Linear(1, 1).state_dict(), recipe)
    >>> values = ModelValues(file, folder.name)
    >>> values["channel"]
    1
    >>> values.require({"channel": 0})  # doctest: +ELLIPSIS
    Traceback (most recent call last):
        ...
    monai_fairfl.errors.ConfigError: channel is 0 here, and model.pt was trained with 1: ...
    >>> folder.cleanup()
    """

    def __init__(
        self,
        ckpt_path: str | Path,
        bundle_root: str | Path,
        own_values: Sequence[str] | str = (),
        defaults: Mapping[str, Any] = MappingProxyType({}),
        config: Sequence[str] = (),
        unchanged: Sequence[str] = (),
    ):
        self.path = Path(ckpt_path)
        self.bundle_root = Path(bundle_root)
        # On the command line one key may be given without the brackets of a list. MONAI's parser
        # writes "::" for "#".
        self.own_values = [key.replace("::", "#") for key in ensure_tuple(own_values)]
        self.known = self.defaults = defaults
        self.config = config
        self.unchanged = [section.replace("::", "#") for section in unchanged]
        # What the run uses, for model.json.
        self.values: dict[str, Any] = {}
        self.recipe: ModelRecipe | None = None
        if self.path.is_file() and not _loader_is_disabled(calling()[0]):
            with errors_in_one_line():
                self.recipe = read_recipe(self.path)
            self.known = self.recipe.values if self.recipe else {}

    def __getitem__(self, key: str) -> Any:
        """The value of a key; :data:`NOT_GIVEN` where the model's recipe does not have it."""
        return self.known.get(key, NOT_GIVEN)

    @errors_in_one_line()
    def require(self, values: Mapping[str, Any]) -> None:
        """Go on only with the values of the model's training.

        A configuration calls it in its ``run``.

        Args:
            values: key -> value, as the running configuration has them.

        Raises:
            ConfigError: when values are missing or differ, or the configuration is of another
                bundle, has another network or was changed by hand; every one is named. From the
                command line: the text, and exit code 2.
        """
        if not self.path.is_file():
            return  # require_model reports a missing file
        model, root = self.path.name, self.bundle_root
        recipe = self.recipe or ModelRecipe("", "", {})
        if self.recipe is not None:
            require_same_bundle(model, recipe, root)
        if missing := [key for key, value in values.items() if value is NOT_GIVEN]:
            defaults = " ".join(f'--{key} "{self.defaults.get(key)}"' for key in missing)
            raise ConfigError(
                f"{model} does not say with which {', '.join(missing)} it was trained: give them; "
                f"the bundle's own are {defaults}"
            )
        self.values = json.loads(json.dumps(dict(values), default=str))
        own = own_recipe(recipe, root)
        differing = {}
        for section, trained in recipe.sections.items():
            here = own.sections.get(section)
            if here is None or (here != trained and section not in recipe.parts):
                differing[section] = f"{section} of {root} is not that of {model}"
        for key, trained in recipe.values.items():
            here = self.values.get(key, "unknown")
            if here != trained:
                differing[key] = f"{key} is {here!r} here, and {model} was trained with {trained!r}"
        running = calling()[0]
        if running is not None:
            # As the run would be without arguments of its own.
            config = read_configs(root, self.config)
            config.update(overlay_of(recipe, root, config, own))
            for section in sorted({*self.unchanged, *recipe.sections}):
                here, bundles = running.get(section), config.get(section)
                free = FREE if "inferer" in section else ()
                is_trained = digest_of(here) == recipe.sections.get(section)
                if not is_trained and digest_of(here, free) != digest_of(bundles, free):
                    differing[section] = f"{section} is not that of {root} for {model}"
        # What a part that the model brings was made of cannot be another one.
        brought = carried_sections(recipe, own)
        fixed = {key for section in brought for key in recipe.parts[section]["values"]}
        allowed = set(self.own_values) - fixed
        refused = {key: text for key, text in differing.items() if key not in allowed}
        if refused:
            raise ConfigError(
                f"{'; '.join(refused.values())}: leave out what changes it, use version "
                f"{recipe.version} of its bundle (--bundle_root) or monai-fairfl infer or "
                "evaluate; where it was trained so for this hospital alone, add "
                f'--own_values "{list(refused)}"'
            )

    def record(self, output_dir: str | Path, settings: Mapping[str, Any]) -> None:
        """Write ``model.json`` beside a run's results: the model, its recipe, and the run's values.

        Args:
            output_dir: of the run.
            settings: what may differ from run to run, such as the batch size; plain values.
        """
        content = {
            "model": str(self.path),
            "sha256": hashlib.sha256(self.path.read_bytes()).hexdigest(),
            "recipe": self.recipe.state_dict() if self.recipe else None,
            "values": self.values,
            "settings": dict(settings),
        }
        text = json.dumps(content, indent=4, default=str) + "\n"
        write_atomically(Path(output_dir) / "model.json", text.encode())


def _loader_is_disabled(parser: ConfigParser | None) -> bool:
    """Return whether MONAI's federated client disabled the evaluation's ``CheckpointLoader``."""
    handlers = parser.get("validate#handlers", []) if parser is not None else []
    for handler in handlers:
        # MONAI's client disables no handler that is given by a reference, such as "@my_handler".
        if isinstance(handler, Mapping) and "CheckpointLoader" in handler.get("_target_", ""):
            return handler.get("_disabled_") is True
    return False


# ---- the data, the network, the model's file


def check_data(
    dataset_dir: str | Path, cases: Sequence[CaseFiles] | None = None, **of_check: Any
) -> None:
    """Go on only with data without faults.

    Args:
        dataset_dir: of the site; every file is read once, see
            :func:`monai_fairfl.data.check_cases`.
        cases: see :func:`~monai_fairfl.data.check_cases`; a configuration that uses some cases of
            its data list names these.
        of_check: ``structures``, ``values``, ``stereo``, ``field_of_view`` and ``size``, see there.

    Raises:
        DataError: with the number of faults, and the first three. From the command line: the text,
            and exit code 2.

    >>> import tempfile
    >>> from pathlib import Path
    >>> from monai_fairfl.data import SITES, write_sites
    >>> with tempfile.TemporaryDirectory() as root:  # doctest: +ELLIPSIS
    ...     _ = write_sites(root, sites=SITES[:1], size=(24, 24, 6), cases=1)
    ...     check_data(f"{root}/alder")  # without faults
    ...     Path(root, "alder", "Case00_segmentation.nii.gz").unlink()
    ...     check_data(f"{root}/alder")
    Traceback (most recent call last):
        ...
    monai_fairfl.errors.DataError: ...alder: 1 problem(s)
    - ...: Case00 has 1 image(s) and 0 mask(s)...
    """
    with errors_in_one_line():
        check_cases(dataset_dir, cases=cases, **of_check)


def network_of(
    network_def: nn.Module, ckpt_path: str | Path, device: torch.device | str
) -> nn.Module:
    """The network to run; a fused model runs in copies of the configured one.

    Args:
        network_def: as configured; ``CheckpointLoader`` fills it.
        ckpt_path: of the model.
        device: that it runs on.

    >>> network_of(nn.Linear(1, 2), "no/such/model.pt", "cpu")
    Linear(in_features=1, out_features=2, bias=True)
    """
    with suppress(ConfigError):  # of a file that is missing or damaged, which require_model names
        network_def = network_for(network_def, state_of_file(ckpt_path))
    return network_def.to(device)


def require_model(ckpt_path: str | Path, network: nn.Module) -> None:
    """Go on only with a model that fits the network.

    Args:
        ckpt_path: a ``state_dict``, or a checkpoint with one under ``"model"`` as
            ``CheckpointLoader`` reads it.
        network: that it is for.

    Raises:
        ConfigError: when there is none, it cannot be read, or is of another network; it names the
            tensor and the keys. From the command line: the text, and exit code 2.

    >>> import tempfile, torch
    >>> from torch import nn
    >>> with tempfile.TemporaryDirectory() as folder:  # doctest: +ELLIPSIS
    ...     torch.save(nn.Linear(1, 4).state_dict(), f"{folder}/model.pt")
    ...     require_model(f"{folder}/model.pt", nn.Linear(1, 4))  # it fits
    ...     require_model(f"{folder}/model.pt", nn.Linear(1, 8))
    Traceback (most recent call last):
        ...
    monai_fairfl.errors.ConfigError: ...is of another network, which differs in ('bias', (4,)): ...
    """
    with errors_in_one_line():
        if not Path(ckpt_path).is_file():
            raise ConfigError(f"no model at {ckpt_path}: train first, or name one with --ckpt_path")
        shapes = []
        for state in (state_of_file(ckpt_path), network.state_dict()):
            shapes.append({(name, tuple(tensor.shape)) for name, tensor in state.items()})
        if differing := sorted(shapes[0] ^ shapes[1]):
            raise ConfigError(
                f"{ckpt_path} is of another network, which differs in {differing[0]}: give the "
                "values of its training, such as --channels '[16, 32, 64, 128]' or --norm"
            )


def placed_network(
    network: nn.Module,
    device: torch.device | str,
    memory_format: str = "preserve_format",
    compiled: bool = False,
) -> nn.Module:
    """A network where it trains, laid out and compiled as asked; its weights' names stay.

    Args:
        network: that is trained.
        device: of its weights.
        memory_format: name of PyTorch's order of values in memory, such as ``"channels_last"``.
        compiled: whether PyTorch compiles it when it first runs.

    >>> from torch import nn
    >>> placed_network(nn.Conv2d(1, 2, 3), "cpu", "channels_last").weight.stride()
    (9, 1, 3, 1)
    """
    # PyTorch knows this argument; its declared types do not.
    network.to(device, memory_format=getattr(torch, memory_format))  # type: ignore[call-overload]
    if compiled:
        # In place: a compiled copy would give the weights other names.
        network.compile()
    return network
