# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""A bundle's configuration: read, overridden and checked, before anything of it is built."""

from __future__ import annotations

import inspect
import json
import logging
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from monai.bundle import ConfigParser
from monai.utils import ensure_tuple

from monai_fairfl.errors import ConfigError, FairFLError, did_you_mean, in_words

logger = logging.getLogger(__name__)


def calling_parser() -> ConfigParser | None:
    """The parser of the configuration that is running: MONAI hands it to no function that a
    configuration calls.
    """
    frame = inspect.currentframe()
    while frame is not None:
        caller = frame.f_locals.get("self")
        parser = caller if isinstance(caller, ConfigParser) else getattr(caller, "parser", None)
        if isinstance(parser, ConfigParser):
            return parser
        frame = frame.f_back
    return None


def calling_config_files() -> tuple[str, ...]:
    """The configuration files that ``python -m monai.bundle run`` merges; none where something else
    runs.
    """
    parser = calling_parser()
    frame = inspect.currentframe()
    while frame is not None:
        workflow = frame.f_locals.get("workflow")
        if parser is not None and getattr(workflow, "parser", None) is parser:
            return tuple(
                str(file) for file in ensure_tuple(frame.f_locals.get("config_file") or ())
            )
        frame = frame.f_back
    return ()


def train_config(
    bundle_root: Path, overrides: Mapping[str, Any], config: Sequence[str] = ("configs/train.json",)
) -> ConfigParser:
    """The bundle's training configuration with ``overrides``, unresolved.

    Args:
        bundle_root: the bundle.
        overrides: plain values only: MONAI builds a ``_target_`` where it is written, which here is
            the server.
        config: configuration files relative to the bundle, merged in order.

    Raises:
        ConfigError: when a file is missing, an override names nothing in them, or is not plain.
    """
    files = [bundle_root / file for file in config]
    for file in files:
        if not file.exists():
            there = [
                str(found.relative_to(bundle_root))
                for found in sorted(bundle_root.glob("configs/*"))
            ]
            hint = f"config is relative to the bundle, which has {', '.join(there)}"
            if not there:
                hint = "--bundle_root must be the folder of a MONAI bundle"
            raise ConfigError(f"{file} does not exist: {hint}")
        try:
            ConfigParser.load_config_file(str(file))
        except Exception as error:  # of JSON, of YAML
            raise ConfigError(f"{file} is not a configuration: {in_words(error)}") from error
    parser = ConfigParser()
    parser.read_config([str(file) for file in files])
    for key, value in overrides.items():
        if not _is_plain(value):
            raise ConfigError(
                f"override {key!r} is a {type(value).__name__}, built here and not at the sites: write what has a "
                "_target_ or a $ into a file, and name it after train.json in --config"
            )
        parent = key.rpartition("#")[0]
        if key not in parser and (not parent or parent not in parser):
            keys: dict[str, Any] = parser.config  # type: ignore[assignment]
            hint = did_you_mean(key.partition("#")[0], list(keys))
            raise ConfigError(f"override {key!r} names nothing in {', '.join(config)}{hint}")
        parser[key] = value
    return parser


def _is_plain(value: object) -> bool:
    if isinstance(value, Mapping):
        return all(_is_plain(item) for item in value.values())
    if isinstance(value, (list, tuple)):
        return all(_is_plain(item) for item in value)
    return value is None or isinstance(value, (str, int, float))


def input_shape(bundle_root: Path) -> tuple[int, ...]:
    """Shape of one example input, (1, C, ...), from ``metadata.json``'s network data format.

    Raises:
        ConfigError: when the metadata does not say.
    """
    from monai.bundle.scripts import _get_fake_spatial_shape

    file = bundle_root / "configs" / "metadata.json"
    try:
        image = json.loads(file.read_text())["network_data_format"]["inputs"]["image"]
        return (
            1,
            int(image["num_channels"]),
            *_get_fake_spatial_shape(image["spatial_shape"], p=4, n=4, any=64),
        )
    except (OSError, ValueError, KeyError) as error:
        raise ConfigError(
            f"{file} must give network_data_format.inputs.image with its shape: {error!r}"
        ) from error


def settings_of_files(overrides: Mapping[str, Any]) -> dict[str, Any]:
    """What overrides say of a site's files, which its check must know: ``values`` of pixels,
    ``stereo`` or not.

    >>> settings_of_files({"values": None, "stereo": False, "size": [64, 64]})
    {'stereo': False}
    """
    return {
        name: overrides[name]
        for name in ("values", "stereo")
        if overrides.get(name) not in (None, {})
    }


@contextmanager
def errors_in_one_line() -> Iterator[None]:
    """In ``python -m monai.bundle`` an error of this package ends in its own text and exit code 2,
    not a traceback.
    """
    try:
        yield
    except FairFLError as error:
        main = getattr(sys.modules["__main__"], "__spec__", None)
        if main is not None and main.name.startswith("monai.bundle"):
            logger.error("%s", error)
            print(f"{type(error).__name__}: {error}", file=sys.stderr)
            raise SystemExit(2) from error
        raise
