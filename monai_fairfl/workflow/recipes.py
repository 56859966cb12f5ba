# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""How a model was trained: recorded where it is trained, compared and used where it is used.

``train.json`` calls :func:`training_recipe`, and ``inference.json`` and ``evaluate.json`` have the
values of a :class:`ModelValues`.
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
import warnings
from collections.abc import Collection, Container, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from monai.bundle import ConfigParser

from monai_fairfl.bundle.configuration import (
    TRAIN,
    calling_config_files,
    calling_parser,
    errors_in_one_line,
    parsed_value,
    read_configs,
    read_metadata,
    require_same_bundle,
)
from monai_fairfl.errors import ConfigError
from monai_fairfl.model_files.parts import OF_FILES, acts, refused_in
from monai_fairfl.model_files.recipe import ModelRecipe, read_recipe
from monai_fairfl.utils.files import sha256_of, write_atomically

DESCRIPTION = "_desc_"
TRANSFORMS = "train#deterministic_transforms"
INFERER = "validate#inferer"

OF_EACH_KEY = ("mode", "padding_mode", "align_corners", "anti_aliasing", "dtype")
"""Arguments of MONAI's transforms with a value for each of several keys."""

FREE_INFERER_ARGUMENTS = frozenset(
    {"mirror_axes", "overlap", "mode", "sw_batch_size", "sw_device", "device", "progress"}
)
"""Arguments of an inferer that may differ from run to run."""

NOT_GIVEN = ...
"""Stands for a value that neither the model nor the user gave; ``require`` reports it."""

_DISABLED = object()

logger = logging.getLogger(__name__)


# ---- the recipe of a training


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
            be read again; or when the metadata is damaged. From the command line: the text, and
            exit code 2.

    >>> from monai_fairfl.bundle import find_bundle
    >>> recipe = training_recipe(find_bundle("prostate_mri_segmentation"), {"size": (64, 64)})
    >>> recipe.bundle, recipe.values, recipe.classes
    ('Prostate MRI segmentation', {'size': [64, 64]}, {'0': 'background', '1': 'prostate'})
    """
    root = Path(bundle_root).absolute()
    with errors_in_one_line():
        metadata = read_metadata(root)
        plain = _plain_values(values)
    parser = calling_parser() or ConfigParser({})
    files = {}
    for file in map(Path, calling_config_files()):
        # Of a file elsewhere only the name: no path of a hospital travels with a model.
        path = file.absolute()
        name = path.relative_to(root).as_posix() if path.is_relative_to(root) else path.name
        files[name] = sha256_of(path)
    outputs = metadata.get("network_data_format", {}).get("outputs", {})
    # What each output channel means.
    channels = outputs.get("pred", {}).get("channel_def", {})
    return ModelRecipe(
        bundle=str(metadata.get("name", root.name)),
        version=str(metadata.get("version", "")),
        values=plain,
        sections={_key(name): digest_of(parser[name]) for name in sections if name in parser},
        parts=_parts_of(parser, sections, values, unlabelled),
        files=files,
        classes={str(channel): str(meaning) for channel, meaning in channels.items()},
    )


def _plain_values(values: Mapping[str, Any]) -> dict[str, Any]:
    """What JSON gives back of values, such as lists for tuples.

    Raises:
        ConfigError: when JSON cannot hold a value, such as NaN or a list that contains itself.

    >>> _plain_values({"size": (64, 64)})
    {'size': [64, 64]}
    """
    plain = {}
    for key, value in values.items():
        try:
            plain[key] = json.loads(json.dumps(value, allow_nan=False))
        except (TypeError, ValueError) as error:
            raise ConfigError(
                f"{key} = {value!r} cannot be written into a model's recipe ({error}): give finite "
                "numbers, texts, or lists of these"
            ) from error
    return plain


def _parts_of(
    parser: ConfigParser,
    sections: Iterable[str],
    values: Container[str],
    unlabelled: Mapping[str, Any] | None,
) -> dict[str, dict[str, Any]]:
    """Section -> its resolved ``content`` and the ``values`` that it follows from.

    A section that holds more than a model may carry is left out.
    """
    # Another parser: what was built of the running one stays.
    alone = ConfigParser({**parser.get(), **(unlabelled or {})})
    parts = {}
    for section in sections:
        if section not in parser:
            continue
        try:
            content = _resolved(alone, section)
        except Exception:  # whatever an expression raises, or JSON of what it gives
            continue
        if not refused_in(content):
            keys = sorted(_values_under(parser, section, values, set()))
            parts[_key(section)] = {"content": content, "values": keys}
    return parts


def _resolved(parser: ConfigParser, place: str) -> Any:
    """The content of a place, with references and expressions replaced by their plain values."""
    content = parser[place]
    if isinstance(content, Mapping):
        if "_disabled_" in content and parser.get_parsed_content(f"{place}#_disabled_"):
            return _DISABLED
        names = [name for name in content if name not in (DESCRIPTION, "_disabled_")]
        entries = {name: _resolved(parser, f"{place}#{name}") for name in names}
        return {name: entry for name, entry in entries.items() if entry is not _DISABLED}
    if isinstance(content, list):
        items = [_resolved(parser, f"{place}#{number}") for number in range(len(content))]
        return [item for item in items if item is not _DISABLED]
    if content in OF_FILES:
        return content
    if isinstance(content, str) and content.startswith("@"):
        return _resolved(parser, content[1:])
    value = parser.get_parsed_content(place) if acts(content) else content
    return json.loads(json.dumps(value, allow_nan=False))


def _values_under(
    parser: ConfigParser, place: str, values: Container[str], seen: set[str]
) -> set[str]:
    """The keys among ``values`` that a place refers to, also by way of others."""
    found = set()
    for reference in re.findall(r"@([\w:#]+)", json.dumps(parser.get(place), default=str)):
        key = _key(reference)
        if key in values:
            found.add(key)
        elif key not in seen and key in parser:
            seen.add(key)
            found |= _values_under(parser, key, values, seen)
    return found


def _key(key: str) -> str:
    """Spell a key as people write it: MONAI's parser replaces ``#`` by ``::``."""
    return key.replace("::", "#")


def digest_of(section: Any) -> str:
    """Compute the SHA-256 of a part of a configuration, without its descriptions.

    >>> digest_of({"_target_": "UNet", "_desc_": "small"}) == digest_of({"_target_": "UNet"})
    True
    """
    plain = json.loads(json.dumps(section, default=str), object_hook=_undescribed)
    return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()


def _undescribed(part: dict[str, Any]) -> dict[str, Any]:
    return {key: content for key, content in part.items() if key != DESCRIPTION}


# ---- what a model brings: sections that a configuration file of the training changed


def carried_sections(recipe: ModelRecipe, bundle_root: Path) -> dict[str, Any]:
    """Section -> content as trained, where the bundle would build another from the same values."""
    training = read_configs(bundle_root, TRAIN)
    # The bundle says what models bring: a model may replace nothing else.
    declared = map(_key, parsed_value(training, "recipe#sections") or ())
    sections = [section for section in declared if section in recipe.parts]
    for key, value in recipe.values.items():
        if key.isidentifier() and key != "recipe" and key in training:
            training[key] = value
    unlabelled = parsed_value(training, "recipe#unlabelled")
    own = _parts_of(training, sections, recipe.values, unlabelled)
    carried = {}
    for section in sections:
        content = recipe.parts[section]["content"]
        if section not in own or own[section]["content"] != content:
            carried[section] = content
    return carried


def overlay_of(recipe: ModelRecipe, bundle_root: Path, config: ConfigParser) -> dict[str, Any]:
    """What comes after a bundle's configuration for a model: often nothing.

    Args:
        recipe: of the model.
        bundle_root: the bundle that uses it.
        config: of its evaluation, which has the sections of the training; or of its inference,
            which has the transforms in ``preprocessing`` and the inferer in ``inferer``.

    Raises:
        ConfigError: when the configuration has no place for what the model brings.
    """
    overlay: dict[str, Any] = {}
    for section, content in carried_sections(recipe, bundle_root).items():
        key = section
        if section == TRANSFORMS and section not in config:
            key, content = "preprocessing#transforms", _of_images(content)
        elif section == INFERER and section not in config:
            key = "inferer#inferer" if "inferer#inferer" in config else "inferer"
        if key not in config:
            raise ConfigError(
                f"a configuration of {bundle_root} has no {key}, which this model's training "
                "changed: add it there"
            )
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
        keys = transform.get("keys", ())
        keys = [keys] if isinstance(keys, str) else list(keys)
        if "image" not in keys:
            continue
        of_image = {**transform, "keys": "image"}
        for name in OF_EACH_KEY:
            value = transform.get(name)
            if isinstance(value, list) and len(value) == len(keys):
                of_image[name] = value[keys.index("image")]
        found.append(of_image)
    return found


def require_same_sections(
    model: str,
    recipe: ModelRecipe,
    bundle_root: Path,
    config: ConfigParser,
    own_values: Collection[str] = (),
) -> None:
    """Refuse a configuration that builds another network, or prepares images otherwise.

    Sections that it does not have are compared with the bundle's ``train.json``.

    Args:
        model: name of the model's file, for messages.
        recipe: inside the model.
        bundle_root: folder of the bundle.
        config: that uses the model.
        own_values: sections that were changed on purpose.

    Raises:
        ConfigError: naming the section.
    """
    brought = overlay_of(recipe, bundle_root, config)
    training = read_configs(bundle_root, TRAIN)
    for key in [*recipe.sections, *[key for key in brought if key in config]]:
        present = config if key in config else training
        if key not in present or key in own_values or key.partition("#")[0] in own_values:
            continue
        # As the configuration of the training, or a file of it, has it.
        trained = [recipe.sections.get(key)]
        if key in brought:
            trained.append(digest_of(brought[key]))
        elif key in recipe.parts:
            # The bundle's has the same content, or it is brought to another place.
            trained.append(digest_of(training.get(key)))
        if digest_of(present[key]) not in trained:
            raise ConfigError(
                f"{model} was trained with another {key} than {bundle_root} has here (version "
                f"{recipe.version} of the bundle). monai-fairfl infer, evaluate and export use "
                "what a model brings; else use the bundle of the training, or name the section in "
                "--own_values"
            )


def changes_of(key: str, own: Any, here: Any) -> Iterator[tuple[str, Any, Any]]:
    """The smallest parts in which two contents of a key differ, without descriptions.

    Yields:
        The part's key, its content in the one, and in the other; ``None``: absent.

    >>> own = {"_target_": "SliceInferer", "roi_size": "@size"}
    >>> for change in changes_of("inferer", own, {**own, "roi_size": [16, 16], "overlap": 0.5}):
    ...     print(*change)
    inferer#overlap None 0.5
    inferer#roi_size @size [16, 16]
    """
    if isinstance(own, list) and isinstance(here, list) and len(own) == len(here):
        own, here = dict(enumerate(own)), dict(enumerate(here))
    if isinstance(own, Mapping) and isinstance(here, Mapping):
        for name in sorted({*own, *here} - {DESCRIPTION}):
            yield from changes_of(f"{key}#{name}", own.get(name), here.get(name))
    elif own != here:
        yield key, own, here


def _may_differ(key: str) -> bool:
    """Whether a part is within a setting of an inferer that every run may choose."""
    names = key.split("#")
    return any(
        before.endswith("inferer") and name in FREE_INFERER_ARGUMENTS
        for before, name in zip(names, names[1:])
    )


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
        defaults: key -> value; ``None``: those of the bundle's ``train.json``.
        config: the bundle's own configuration files of this run, relative to ``bundle_root``.
        unchanged: sections that must be as in ``config``, such as ``"preprocessing"``: an argument
            such as ``--preprocessing#transforms#5#mode nearest`` changes results that no plain
            value shows.

    Raises:
        ConfigError: when the model file or its recipe cannot be read.

    >>> import tempfile
    >>> from torch import nn
    >>> from monai_fairfl import ModelRecipe
    >>> from monai_fairfl.workflow import save_model
    >>> folder = tempfile.TemporaryDirectory()
    >>> file = f"{folder.name}/model.pt"
    >>> save_model(file, nn.Linear(1, 1), ModelRecipe("Prostate", "0.1.0", {"channel": 1}))
    >>> values = ModelValues(file, folder.name)
    >>> values["channel"]
    1
    >>> values.require({"channel": 0})  # doctest: +ELLIPSIS
    Traceback (most recent call last):
        ...
    monai_fairfl.errors.ConfigError: channel is 0 here, and model.pt was trained with 1. ...
    >>> folder.cleanup()
    """

    def __init__(
        self,
        ckpt_path: str | Path,
        bundle_root: str | Path,
        own_values: Sequence[str] | str = (),
        defaults: Mapping[str, Any] | None = None,
        config: Sequence[str] = (),
        unchanged: Sequence[str] = (),
    ):
        self.path = Path(ckpt_path)
        self.bundle_root = Path(bundle_root)
        # On the command line one key may be given without the brackets of a list.
        keys = [own_values] if isinstance(own_values, str) else own_values
        self.own_values = [_key(key) for key in keys]
        self.defaults = defaults
        self.config = list(config)
        self.unchanged = [_key(section) for section in unchanged]
        # What the run uses, for model.json: its values, and the changed parts of its sections.
        self.values: dict[str, Any] = {}
        self.by_hand: dict[str, dict[str, Any]] = {}
        self.in_a_federation = _loader_is_disabled(calling_parser())
        self.used = self.path.is_file() and not self.in_a_federation
        self.recipe: ModelRecipe | None = None
        if self.used:
            with errors_in_one_line():
                try:
                    self.recipe = read_recipe(self.path)
                except ConfigError as error:
                    raise ConfigError(f"{error}: name another with --ckpt_path") from None

    def __getitem__(self, key: str) -> Any:
        """Return the value of a key; :data:`NOT_GIVEN` where the model's recipe does not have it.

        Raises:
            ConfigError: when no model is used, and nothing else gives the value.
        """
        if self.used:
            return self.recipe.values.get(key, NOT_GIVEN) if self.recipe else NOT_GIVEN
        if self.in_a_federation:
            warnings.warn(
                "this evaluation has no model file: values that it is not given are those of "
                f"{self.bundle_root}. Where the training has others, give them to the evaluation, "
                "too (eval_kwargs of MonaiAlgo)",
                stacklevel=2,
            )
        with errors_in_one_line():
            default = self._default(key)
            if default is NOT_GIVEN:
                raise ConfigError(
                    f"nothing gives {key}: no model is loaded from {self.path}, and "
                    f"{self.bundle_root / TRAIN[0]} does not have it. Name the bundle with "
                    "--bundle_root, or a model with --ckpt_path"
                )
        return default

    def _default(self, key: str) -> Any:
        if self.defaults is not None:
            return self.defaults.get(key, NOT_GIVEN)
        return parsed_value(read_configs(self.bundle_root, TRAIN), key, NOT_GIVEN)

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
        with errors_in_one_line():
            if self.recipe is not None:
                require_same_bundle(self.path.name, self.recipe, self.bundle_root)
            if missing := [key for key, value in values.items() if value is NOT_GIVEN]:
                names = ", ".join(missing)
                examples = [f'--{key} "{self._default(key)}"' for key in missing]
                raise ConfigError(
                    f"the recipe of {self.path} does not give {names}, so nothing is guessed. Give "
                    f"them as in its training; the bundle's own would be {' '.join(examples)}"
                )
            self.values = _plain_values(values)
            running = calling_parser()
            if running is not None and not (self.bundle_root / TRAIN[0]).is_file():
                raise ConfigError(
                    f"{self.bundle_root} has no {TRAIN[0]}: name the bundle with --bundle_root"
                )
            if self.recipe is not None:
                self._compare(self.recipe)
            if running is not None and self.unchanged:
                self._require_unchanged(running)
            if self.recipe is not None:
                require_same_sections(
                    self.path.name,
                    self.recipe,
                    self.bundle_root,
                    running or ConfigParser({}),
                    self.own_values,
                )

    def _require_unchanged(self, running: ConfigParser) -> None:
        """Refuse changed sections; note what may differ, such as the overlap of windows."""
        own = read_configs(self.bundle_root, self.config)
        brought = overlay_of(self.recipe, self.bundle_root, own) if self.recipe is not None else {}
        own.update(brought)
        refused = []
        for section in self.unchanged:
            for key, bundle, here in changes_of(section, own.get(section), running.get(section)):
                self.by_hand[key] = {"here": here, "bundle": bundle}
                if not _may_differ(key) and section not in self.own_values:
                    refused.append((section, key, here, bundle))
        if refused:
            section, key, here, bundle = refused[0]
            fix = "Leave it out: so the model was not trained"
            if brought:
                fix = "monai-fairfl infer, evaluate and export use what the model brings"
            raise ConfigError(
                f"{key} is {_key(repr(here)):.80} here, and {_key(repr(bundle)):.80} in "
                f"{self.config[-1]} of the bundle ({len(refused)} such change(s)). {fix}. Only "
                "where its training was changed in the same way, name the section: "
                f"--own_values \"['{section}']\""
            )

    def _compare(self, recipe: ModelRecipe) -> None:
        """Refuse values that differ from those of the training."""
        model = self.path.name
        differing = {}
        for key, trained in recipe.values.items():
            if key in self.own_values:
                continue
            if key not in self.values:
                raise ConfigError(
                    f"{model} was trained with {key} {trained!r}, which this configuration does "
                    f"not know: use version {recipe.version} of the bundle, and the configuration "
                    f"files of the training ({', '.join(recipe.files) or 'not recorded'})"
                )
            if self.values[key] != trained:
                here = self.values[key]
                differing[key] = f"{key} is {here!r} here, and {model} was trained with {trained!r}"
        if differing:
            raise ConfigError(
                f"{'; '.join(differing.values())}. Leave it out, and the model's own value is used."
                " Only where this hospital's images were trained with another value, name the key "
                f'too: --own_values "{list(differing)}"'
            )
        if recipe.sites and not self.own_values:
            logger.warning(
                "%s was trained with other values on the images of %s: these sites give them by "
                "hand, and name the keys in --own_values",
                model,
                ", ".join(f"{site} {dict(own)}" for site, own in recipe.sites.items()),
            )
        for section in carried_sections(recipe, self.bundle_root):
            for key in recipe.parts[section]["values"]:
                if self.values.get(key) != recipe.values[key]:
                    raise ConfigError(
                        f"{key} is {self.values.get(key)!r} here, and {model} brings its own "
                        f"{section} for {recipe.values[key]!r}: leave {key} out"
                    )

    def record(self, output_dir: str | Path, settings: Mapping[str, Any]) -> None:
        """Write ``model.json`` beside a run's results: the model, its recipe, and the run's values.

        Args:
            output_dir: of the run.
            settings: what may differ from run to run, such as the batch size; plain values.

        Raises:
            ConfigError: when the file cannot be written.
        """
        content = {
            "model": str(self.path),
            "sha256": sha256_of(self.path),
            "recipe": self.recipe.state_dict() if self.recipe else None,
            "values": self.values,
            "by_hand": self.by_hand,
            "settings": dict(settings),
        }
        text = json.dumps(content, indent=4, ensure_ascii=False, default=str) + "\n"
        file = Path(output_dir) / "model.json"
        with errors_in_one_line():
            try:
                # In JSON, this is an escape, for a byte of a path that is not UTF-8.
                write_atomically(file, text.encode(errors="backslashreplace"))
            except OSError as error:
                raise ConfigError(f"{file} cannot be written: {error}") from error


def _loader_is_disabled(parser: ConfigParser | None) -> bool:
    """Return whether MONAI's federated client disabled the evaluation's ``CheckpointLoader``."""
    handlers = parser.get("validate#handlers", []) if parser is not None else []
    for handler in handlers:
        # MONAI's client disables no handler that is given by a reference, such as "@my_handler".
        if isinstance(handler, Mapping) and "CheckpointLoader" in handler.get("_target_", ""):
            return handler.get("_disabled_") is True
    return False
