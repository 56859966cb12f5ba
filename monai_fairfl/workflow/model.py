# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The model of an inference or evaluation run: there, readable, and used as it was trained."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from monai.bundle import ConfigParser
from torch import nn

from monai_fairfl.bundle.configuration import calling_config_files, calling_parser, errors_told
from monai_fairfl.errors import ConfigError
from monai_fairfl.model_files.recipe import (
    ModelRecipe,
    is_torchscript,
    read_recipe,
    recipe_file,
    recipe_of_json,
    state_of_file,
)
from monai_fairfl.utils.files import write_atomically
from monai_fairfl.workflow.by_hand import differences

logger = logging.getLogger(__name__)

TRAIN = Path("configs", "train.json")
METADATA = Path("configs", "metadata.json")


class NotGiven:
    """Stands for a value that neither the model nor the user gave; :meth:`ModelValues.require`
    reports it.
    """

    def __repr__(self) -> str:
        return "not given"


NOT_GIVEN = NotGiven()


# ---- training: the recipe is made
# ---------------------------------------------------------------------------------


def training_recipe(
    bundle_root: str | Path, values: Mapping[str, Any], sections: Sequence[str] = ()
) -> ModelRecipe:
    """The recipe of the models that a configuration trains; ``train.json`` calls it under the key
    ``recipe``.

    Args:
        bundle_root: folder of the bundle; name, version and classes are read from its metadata.
        values: key -> value, of all that decides preprocessing, network, inference and classes.
        sections: parts of the running configuration whose content decides, too, such as
            ``"network_def"``.

    Raises:
        ConfigError: when a value is not plain (numbers, texts, lists of these): it could not be
            read again. From the command line: the text, and exit code 2.
    """
    metadata = _metadata(Path(bundle_root))
    plain = {}
    with errors_told():
        for key, value in values.items():
            plain[key] = _plain(key, value)
    parser = calling_parser()
    digests = {}
    for section in sections:
        if parser is not None and section in parser:
            digests[_as_written(section)] = digest_of_section(parser[section])
    outputs = metadata.get("network_data_format", {}).get("outputs", {}).get("pred", {})
    return ModelRecipe(
        bundle=str(metadata.get("name", Path(bundle_root).absolute().name)),
        version=str(metadata.get("version", "")),
        values=plain,
        sections=digests,
        files=_digests_of_running_files(Path(bundle_root)),
        classes={str(key): str(value) for key, value in outputs.get("channel_def", {}).items()},
    )


def _digests_of_running_files(bundle_root: Path) -> dict[str, str]:
    """SHA-256 of each file that is merged now; files of the bundle are named relative to it."""
    root = bundle_root.absolute()
    digests = {}
    for file in calling_config_files():
        path = Path(file).absolute()
        name = (
            path.name
        )  # of a file elsewhere only the name: no path of a hospital travels with a model
        if path.is_relative_to(root):
            name = path.relative_to(root).as_posix()
        digests[name] = hashlib.sha256(path.read_bytes()).hexdigest()
    return digests


def digest_of_section(section: Any) -> str:
    """SHA-256 of a part of a configuration, without its descriptions.

    >>> one = digest_of_section({"_target_": "UNet", "_desc_": "small"})
    >>> one == digest_of_section({"_target_": "UNet"})
    True
    """
    text = json.dumps(_without_descriptions(section), sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()


def _without_descriptions(section: Any) -> Any:
    if isinstance(section, Mapping):
        kept = [key for key in section if key != "_desc_"]
        return {key: _without_descriptions(section[key]) for key in kept}
    if isinstance(section, (list, tuple)):
        return [_without_descriptions(item) for item in section]
    return section


def _plain(key: str, value: Any) -> Any:
    try:
        return json.loads(json.dumps(value))
    except TypeError as error:
        raise ConfigError(
            f"{key} = {value!r} cannot be written into a model's recipe: {error}"
        ) from error


def _as_written(key: str) -> str:
    """A key as people write it; MONAI's parser has ``::`` for ``#`` in it."""
    return key.replace("::", "#")


def _in_short(content: Any) -> str:
    """A part of a configuration, for a message."""
    if isinstance(content, (list, tuple)):
        return f"a list of {len(content)}"
    return "absent" if content is None else _as_written(repr(content))


def _metadata(bundle_root: Path) -> dict[str, Any]:
    file = bundle_root / METADATA
    if not file.is_file():
        return {}
    content: dict[str, Any] = json.loads(file.read_text())
    return content


# ---- inference and evaluation: the recipe is used
# -----------------------------------------------------------------


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
            others, because its own images were trained so. A section of ``unchanged`` may be named,
            too.
        defaults: key -> value; ``None``: those of the bundle's ``train.json``.
        config: the bundle's own configuration files of this run, relative to ``bundle_root``.
        unchanged: sections that must be as in ``config``, such as ``"preprocessing"``: an argument
            such as ``--preprocessing#transforms#5#mode nearest`` changes results that no plain
            value shows.
    """

    def __init__(
        self,
        ckpt_path: str | Path,
        bundle_root: str | Path,
        own_values: Sequence[str] = (),
        defaults: Mapping[str, Any] | None = None,
        config: Sequence[str] = (),
        unchanged: Sequence[str] = (),
    ):
        self.path = Path(ckpt_path)
        self.bundle_root = Path(bundle_root)
        named = [own_values] if isinstance(own_values, str) else own_values
        self.own_values = [_as_written(key) for key in named]
        self.defaults = defaults
        self.config = [config] if isinstance(config, str) else list(config)
        self.unchanged = [_as_written(section) for section in unchanged]
        self.values: dict[str, Any] = {}  # those that the run uses, for model.json
        self.by_hand: dict[str, dict[str, Any]] = (
            {}
        )  # parts of the sections that are not the bundle's own
        self.in_a_federation = _loader_is_disabled(calling_parser())
        self.reported = False
        self.used = self.path.is_file() and not self.in_a_federation
        self.recipe: ModelRecipe | None = None
        if self.used:
            with errors_told():
                self.recipe = _read(self.path)

    def __getitem__(self, key: str) -> Any:
        """The value of a key; :data:`NOT_GIVEN` where the model does not tell it.

        Raises:
            ConfigError: when no model is used, and nothing else gives the value.
        """
        if self.used:
            return NOT_GIVEN if self.recipe is None else self.recipe.values.get(key, NOT_GIVEN)
        with errors_told():
            default = self._default(key)
            if default is NOT_GIVEN:
                raise ConfigError(
                    f"nothing tells {key}: no model is loaded from {self.path}, and {self.bundle_root / TRAIN} does "
                    "not give it. Name the bundle with --bundle_root, or a model with --ckpt_path"
                )
        if self.in_a_federation and not self.reported:
            self.reported = True  # once, not for every key
            logger.warning(
                "this evaluation has no model file: %s and other values that it is not given are those of %s. Where "
                "the training has others, give them to the evaluation, too (eval_kwargs of MonaiAlgo)",
                *(key, self.bundle_root / TRAIN),
            )
        return default

    def require(self, values: Mapping[str, Any]) -> None:
        """Go on only with the values of the model's training; called from a configuration's
        ``run``.

        Args:
            values: key -> value, as the running configuration has them.

        Raises:
            ConfigError: when values are missing or differ, or the configuration is of another
                bundle, has another network, or was changed by hand; every one is named. From the
                command line: the text, and exit code 2.
        """
        with errors_told():
            if not self.path.is_file():
                return  # require_model says so
            if self.recipe is not None:
                self._require_same_bundle(self.recipe)
            self._require_all_given(values)
            self.values = {key: _plain(key, value) for key, value in values.items()}
            if self.recipe is not None:
                self._require_same_values(self.recipe)
            self._require_unchanged()
            if self.recipe is not None:
                self._require_same_sections(self.recipe)

    def record(self, output_dir: str | Path, settings: Mapping[str, Any]) -> None:
        """Write ``model.json`` beside a run's results: which model was used, its recipe, and how it
        was run.

        Args:
            output_dir: of the run.
            settings: what may differ from run to run, such as the batch size; plain values.

        Raises:
            ConfigError: when the file cannot be written.
        """
        used = {
            "model": str(self.path),
            "sha256": hashlib.sha256(self.path.read_bytes()).hexdigest(),
            "recipe": None if self.recipe is None else self.recipe.state_dict(),
            "values": self.values,
            "settings": dict(settings),
            "by_hand": self.by_hand,
        }
        text = json.dumps(used, indent=4, ensure_ascii=False, default=str) + "\n"
        file = Path(output_dir) / "model.json"
        with errors_told():
            try:
                write_atomically(file, text.encode())
            except OSError as error:
                raise ConfigError(f"{file} cannot be written: {error}") from error

    def _require_all_given(self, values: Mapping[str, Any]) -> None:
        missing = [key for key, value in values.items() if isinstance(value, NotGiven)]
        if not missing:
            return
        examples = []
        for key in missing:
            examples.append(f'--{key} "{self._default(key)}"')
        reason = f"{self.path} does not say how it was trained (it has no recipe)"
        if self.recipe is not None:
            reason = f"the recipe of {self.path} does not give {', '.join(missing)}"
        raise ConfigError(
            f"{reason}, so nothing is guessed. Give {', '.join(missing)} as in its training; the bundle's own would be "
            f"{' '.join(examples)}"
        )

    def _require_same_values(self, recipe: ModelRecipe) -> None:
        differing = []
        for key, trained in recipe.values.items():
            if key in self.own_values:
                continue
            if key not in self.values:
                raise ConfigError(
                    f"{self.path.name} was trained with {key} {trained!r}, which this configuration does not know: use "
                    f"version {recipe.version} of the bundle, and the configuration files of the training "
                    f"({', '.join(recipe.files) or 'not recorded'})"
                )
            here = self.values[key]
            if here != trained:
                differing.append(
                    f"{key} is {here!r} here, and {self.path.name} was trained with {trained!r}"
                )
        if differing:
            raise ConfigError(
                f"{'; '.join(differing)}. Leave it out, and the model's own value is used. Only where this hospital's "
                f"images were trained with another value, name the key too: --own_values \"['KEY']\""
            )
        if recipe.sites and not self.own_values:
            of_sites = [f"{site} {dict(own)}" for site, own in recipe.sites.items()]
            logger.warning(
                "%s was trained with other values on the images of %s: these sites give them by hand, and name the "
                "keys in --own_values",
                *(self.path.name, ", ".join(of_sites)),
            )

    def _require_same_bundle(self, recipe: ModelRecipe) -> None:
        """Compared with the metadata of the folder, and with that of the configuration that runs."""
        running = calling_parser()
        descriptions = [_metadata(self.bundle_root)]
        if running is not None and "_meta_" in running:
            descriptions.append(running["_meta_"])
        for metadata in descriptions:
            name = metadata.get("name", recipe.bundle)
            if name != recipe.bundle:
                raise ConfigError(
                    f"{self.path.name} is a model of the bundle {recipe.bundle!r}, and {self.bundle_root} is "
                    f"{name!r}: use the bundle of the model"
                )

    def _require_same_sections(self, recipe: ModelRecipe) -> None:
        """The running configuration must build what was trained; preprocessing is compared with
        ``train.json``.
        """
        running = calling_parser()
        for section, digest in recipe.sections.items():
            if section in self.unchanged and section in self.own_values:
                continue  # compared with the bundle's own, and changed on purpose
            if running is not None and section in running:
                if digest_of_section(running[section]) != digest:
                    raise ConfigError(
                        f"{section} of this configuration is not what {self.path.name} was trained with (bundle "
                        f"version {recipe.version}): add the configuration file that changed it in the training, such "
                        "as --config_file \"['configs/inference.json', 'configs/MY_OVERLAY.json']\""
                    )
                continue
            trained_here = self._bundle_config([TRAIN])
            if section in trained_here and digest_of_section(trained_here[section]) != digest:
                self._report_other_preprocessing(recipe, section)

    def _report_other_preprocessing(self, recipe: ModelRecipe, section: str) -> None:
        version = _metadata(self.bundle_root).get("version", "")
        if version != recipe.version:
            raise ConfigError(
                f"{self.path.name} was trained by version {recipe.version} of the bundle, which prepared images "
                f"otherwise ({section}) than this version {version}: use that version"
            )
        logger.warning(
            "%s was trained with another %s than %s has, by a configuration file of the training. Where that file "
            "changes images that you have, give inference an overlay that does the same, and name the section that it "
            "changes in --own_values",
            *(self.path.name, section, self.bundle_root / TRAIN),
        )

    def _require_unchanged(self) -> None:
        """Sections are as the bundle has them; what may differ, such as the overlap of windows, is
        recorded.
        """
        running = calling_parser()
        if running is None or not self.config:
            return
        for name in self.config:
            if not (self.bundle_root / name).is_file():
                raise ConfigError(
                    f"{self.bundle_root} has no {name}: name the bundle with --bundle_root"
                )
        own = self._bundle_config(self.config)
        changed = []
        sections = []
        for section in self.unchanged:
            for found in differences(section, own.get(section), running.get(section)):
                self.by_hand[found.key] = {"here": found.here, "bundle": found.bundle}
                if not found.may_differ and section not in self.own_values:
                    changed.append(
                        f"{found.key} is {_in_short(found.here)} here, and {_in_short(found.bundle)}"
                    )
                    sections.append(section)
        if changed:
            more = f" ({len(changed) - 1} more such changes)" if len(changed) > 1 else ""
            raise ConfigError(
                f"{changed[0]} in {self.config[-1]} of the bundle{more}. Leave it out: so the model was not trained. "
                "Only where its training was changed in the same way, name the section: "
                f"--own_values \"['{sections[0]}']\""
            )

    def _default(self, key: str) -> Any:
        """The value of the bundle's own training configuration."""
        if self.defaults is not None:
            return self.defaults.get(key, NOT_GIVEN)
        parser = self._bundle_config([TRAIN])
        return parser.get_parsed_content(key) if key in parser else NOT_GIVEN

    def _bundle_config(self, names: Sequence[str | Path]) -> ConfigParser:
        """Configuration files of the bundle as they are on disk; those that are not there are left
        out.
        """
        files = [self.bundle_root / name for name in names]
        parser = ConfigParser()
        parser.read_config([str(file) for file in files if file.is_file()])
        parser.resolve_macro_and_relative_ids()  # as in a parser that runs
        return parser


def _read(path: Path) -> ModelRecipe | None:
    """The recipe inside a model; the file beside it is for people, and may be another model's."""
    try:
        recipe = read_recipe(path)
    except ConfigError as error:
        raise ConfigError(f"{error}: name another with --ckpt_path") from None
    beside = recipe_file(path)
    if recipe is not None and beside.is_file():
        try:
            agrees = recipe_of_json(beside.read_bytes(), beside) == recipe
        except (ConfigError, OSError):
            agrees = False
        if not agrees:
            logger.warning("%s is not the recipe inside %s, which is used", beside, path.name)
    return recipe


def _loader_is_disabled(parser: ConfigParser | None) -> bool:
    """Whether MONAI's federated client has switched the evaluation's ``CheckpointLoader`` off."""
    if parser is None or "validate#handlers" not in parser:
        return False
    for handler in parser["validate#handlers"]:
        if "CheckpointLoader" in handler["_target_"]:
            return handler.get("_disabled_") is True
    return False


def network_of(
    network_def: nn.Module, ckpt_path: str | Path, device: torch.device | str
) -> nn.Module:
    """The network to run: the configured one, or that of a TorchScript file, whose weights are in
    it.

    Args:
        network_def: as configured; ``CheckpointLoader`` fills it from other files than TorchScript.
        ckpt_path: of the model.
        device: that it runs on.
    """
    if is_torchscript(ckpt_path):
        scripted: nn.Module = torch.jit.load(str(ckpt_path), map_location=device)
        return scripted
    return network_def.to(device)


def require_model(ckpt_path: str | Path, network: nn.Module) -> None:
    """Go on only with a model that fits; from the command line it ends with the reason and exit
    code 2.

    Args:
        ckpt_path: a ``state_dict``, a checkpoint with one under ``"model"`` as ``CheckpointLoader``
            reads it, or TorchScript.
        network: that it is for.

    Raises:
        ConfigError: when there is none, it cannot be read, or is of another network; it names the
            tensor and the keys.
    """
    with errors_told():
        _check(Path(ckpt_path), network)


def _check(path: Path, network: nn.Module) -> None:
    if not path.is_file():
        raise ConfigError(
            f"No trained weights at {path}: train the bundle first, or name a checkpoint with --ckpt_path."
        )
    try:
        state = state_of_file(path)
    except ConfigError as error:
        raise ConfigError(f"{error}: name another with --ckpt_path") from None
    expected = network.state_dict()
    for name in sorted({*state, *expected}):
        here = _shape(expected, name)
        there = _shape(state, name)
        if here != there:
            raise ConfigError(
                f"{path} is of another network: {name} is {there or 'absent'} in the file and {here or 'absent'} in "
                "the network. Give the values of its training, such as --channels '[16, 32, 64, 128]' or --norm; for "
                "a federation's model they are in the overrides of its config.json"
            )


def _shape(state: Mapping[str, torch.Tensor], name: str) -> tuple[int, ...] | None:
    return tuple(state[name].shape) if name in state else None
