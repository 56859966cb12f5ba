# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The recipe that the running configuration gives to the models that it trains."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Container, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from monai.bundle import ConfigParser

from monai_fairfl.bundle.configuration import (
    calling_config_files,
    calling_parser,
    errors_in_one_line,
    read_metadata,
)
from monai_fairfl.errors import ConfigError
from monai_fairfl.model_files.parts import OF_FILES, acts, refused_in
from monai_fairfl.model_files.recipe import ModelRecipe
from monai_fairfl.utils.files import sha256_of
from monai_fairfl.workflow.section_changes import DESCRIPTION


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
    root = Path(bundle_root)
    with errors_in_one_line():
        metadata = read_metadata(root)
        plain = plain_values(values)
    parser = calling_parser()
    digests = {}
    for section in sections:
        if parser is not None and section in parser:
            digests[key_as_written(section)] = digest_of_section(parser[section])
    # What each output channel means.
    outputs = metadata.get("network_data_format", {}).get("outputs", {})
    channels = outputs.get("pred", {}).get("channel_def", {})
    return ModelRecipe(
        bundle=str(metadata.get("name", root.absolute().name)),
        version=str(metadata.get("version", "")),
        values=plain,
        sections=digests,
        parts=parts_of(parser, sections, values, unlabelled),
        files=_digests_of_running_files(root),
        classes={str(channel): str(meaning) for channel, meaning in channels.items()},
    )


def parts_of(
    parser: ConfigParser | None,
    sections: Iterable[str],
    values: Container[str],
    unlabelled: Mapping[str, Any] | None = None,
) -> dict[str, dict[str, Any]]:
    """Resolve sections of a configuration to what a model may carry.

    Args:
        parser: of the configuration; ``None``: there is none, and no parts.
        sections: names; one that holds more than a model may carry is left out.
        values: keys of the recipe's values.
        unlabelled: as of :func:`training_recipe`.

    Returns:
        Section -> its ``content`` and the ``values`` that it follows from.
    """
    if parser is None:
        return {}
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
            parts[key_as_written(section)] = {"content": content, "values": keys}
    return parts


_DISABLED = object()


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
        key = key_as_written(reference)
        if key in values:
            found.add(key)
        elif key not in seen and key in parser:
            seen.add(key)
            found |= _values_under(parser, key, values, seen)
    return found


def plain_values(values: Mapping[str, Any]) -> dict[str, Any]:
    """Turn values into what JSON gives back, such as lists for tuples.

    Raises:
        ConfigError: when JSON cannot hold a value, such as NaN or a list that contains itself; it
            names the key and the value.

    >>> plain_values({"size": (64, 64)})
    {'size': [64, 64]}
    """
    plain = {}
    for key, value in values.items():
        try:
            plain[key] = json.loads(json.dumps(value))
        except (TypeError, ValueError) as error:  # of a value that contains itself
            raise ConfigError(
                f"{key} = {value!r} cannot be written into a model's recipe: {error}"
            ) from error
        _require_finite(key, plain[key])
    return plain


def _require_finite(key: str, value: Any) -> None:
    """Refuse NaN and infinity, also within a value.

    Python writes them, but they are no JSON; and NaN, which equals nothing, would never again be
    the value of the training.
    """
    if isinstance(value, Mapping):
        for name, part in value.items():
            _require_finite(f"{key}#{name}", part)
    elif isinstance(value, list):
        for position, part in enumerate(value):
            _require_finite(f"{key}#{position}", part)
    elif isinstance(value, float) and not math.isfinite(value):
        raise ConfigError(
            f"{key} = {value!r} cannot be written into a model's recipe: give a finite number, or "
            "null (None) for no number"
        )


def digest_of_section(section: Any) -> str:
    """Compute the SHA-256 of a part of a configuration, without its descriptions.

    >>> one = digest_of_section({"_target_": "UNet", "_desc_": "small"})
    >>> one == digest_of_section({"_target_": "UNet"})
    True
    """
    text = json.dumps(_without_descriptions(section), sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()


def key_as_written(key: str) -> str:
    """Spell a key as people write it: MONAI's parser replaces ``#`` by ``::``.

    >>> key_as_written("validate::inferer")
    'validate#inferer'
    """
    return key.replace("::", "#")


def _without_descriptions(section: Any) -> Any:
    if isinstance(section, Mapping):
        remaining = {}
        for key, content in section.items():
            if key != DESCRIPTION:
                remaining[key] = _without_descriptions(content)
        return remaining
    if isinstance(section, (list, tuple)):
        return [_without_descriptions(item) for item in section]
    return section


def _digests_of_running_files(bundle_root: Path) -> dict[str, str]:
    """Compute the SHA-256 of each file that the running configuration merges.

    Files of the bundle are named relative to it. Of a file elsewhere only the name is recorded: no
    path of a hospital travels with a model.
    """
    root = bundle_root.absolute()
    digests = {}
    for file in calling_config_files():
        path = Path(file).absolute()
        name = path.name
        if path.is_relative_to(root):
            name = path.relative_to(root).as_posix()
        digests[name] = sha256_of(path)
    return digests
