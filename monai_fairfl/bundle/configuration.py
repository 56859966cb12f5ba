# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""A bundle's configuration: read, overridden and checked, before anything of it is built."""

from __future__ import annotations

import copy
import inspect
import json
import sys
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from monai.bundle import ConfigParser
from monai.bundle.utils import merge_kv
from monai.utils import ensure_tuple

from monai_fairfl.bundle.shipped import TRAIN
from monai_fairfl.errors import ConfigError, FairFLError, did_you_mean, in_words
from monai_fairfl.model_files import ModelRecipe

FEDERATE = Path("configs", "federate.json")
"""The configuration of a federation, in the folder of its bundle."""

METADATA = Path("configs", "metadata.json")
"""What a bundle says of itself, in its folder."""

LEAST_DEPTH = 32
"""Length of an axis that the metadata do not have: networks halve it at most five times."""

INFERENCE = Path("configs", "inference.json")
"""The configuration of a bundle's inference, in its folder."""

_contents: dict[tuple[Path, int, int], dict[str, Any]] = {}
"""File, the time of its last change, and its size -> what it holds."""


def calling() -> tuple[ConfigParser | None, tuple[str, ...]]:
    """The parser of the configuration that is running, and the files that its command merges.

    There are none where something else runs. MONAI gives a function that a configuration calls no
    way to it: an expression sees the objects that are built already, and a reference gives one of
    them. So the parser is looked for among the callers, the innermost first. It has the content of
    the files and not their names: only MONAI's function that made the workflow knows these.
    """
    parser = None
    for frame, _ in traceback.walk_stack(inspect.currentframe()):
        if parser is None:
            caller = frame.f_locals.get("self")
            # A workflow has a parser. One must not be asked itself: its attributes are its keys.
            if not isinstance(caller, ConfigParser):
                caller = getattr(caller, "parser", None)
            parser = caller if isinstance(caller, ConfigParser) else None
        elif getattr(frame.f_locals.get("workflow"), "parser", None) is parser:
            return parser, tuple(map(str, ensure_tuple(frame.f_locals.get("config_file") or ())))
    return parser, ()


def train_config(
    bundle_root: Path, overrides: Mapping[str, Any], config: Sequence[str] = TRAIN
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
    root = str(bundle_root.absolute())
    # As `monai.bundle run` does: MONAI's client builds the engines without running the workflow.
    if (bundle_root / "scripts").is_dir() and root not in sys.path:
        sys.path.insert(1, root)
    parser = ConfigParser({})
    for name in config:
        for key, value in read_keys(bundle_root / name, must=True).items():
            merge_kv(parser, key, value)
    for key, value in overrides.items():
        try:
            json.dumps(value)
        except (TypeError, ValueError) as error:
            raise ConfigError(
                f"override {key!r} is a {type(value).__name__}: write it into a file of --config"
            ) from error
        # A key may be added to a section that is there.
        if (key.rpartition("#")[0] or key) not in parser:
            hint = did_you_mean(key.partition("#")[0], parser.get())
            raise ConfigError(f"override {key!r} names nothing in {', '.join(config)}{hint}")
        is_text = isinstance(value, str) and not value.startswith(("$", "@"))
        if is_text and type(parser.get(key)) in (int, float):
            raise ConfigError(f"override {key!r} is the text {value!r}: give a number")
        parser[key] = value
    return parser


def read_keys(file: Path, must: bool = False) -> dict[str, Any]:
    """What a configuration file holds, which the caller may change; it is read once.

    Args:
        file: to read.
        must: whether there must be such a file; else there are no keys.

    Raises:
        ConfigError: there is no such file, or it is damaged.
    """
    if not must and not file.is_file():
        return {}
    try:
        found = file.stat()
        version = (file, found.st_mtime_ns, found.st_size)
        if version not in _contents:
            content = ConfigParser.load_config_file(str(file))
            if not isinstance(content, dict):
                raise ValueError("it holds no object")
            _contents[version] = content
        return copy.deepcopy(_contents[version])
    except Exception as error:  # of the disk, of JSON, of YAML
        raise ConfigError(f"{file} is no configuration file: {in_words(error)}") from error


def read_configs(bundle_root: Path, names: Sequence[str]) -> ConfigParser:
    """Merge those of these files that the bundle has, and resolve their macros.

    A parser that runs has done this, too, so that both can be compared.
    """
    parser = train_config(bundle_root, {}, [n for n in names if (bundle_root / n).is_file()])
    parser.resolve_macro_and_relative_ids()
    return parser


def data_folder_of(config: ConfigParser, folder: str | Path) -> str:
    """The absolute path of a site's images, as a bundle's configuration writes ``dataset_dir``.

    Where the bundle's own value ends with a slash, its expressions may need it.

    >>> data_folder_of(ConfigParser({"dataset_dir": "/workspace/data/"}), "/hospitals/A")
    '/hospitals/A/'
    """
    path = str(Path(folder).absolute())
    return f"{path}/" if str(config["dataset_dir"]).endswith("/") else path


def require_same_bundle(model: str, recipe: ModelRecipe, bundle_root: Path) -> None:
    """Compare the recipe's bundle with the folder's metadata.

    Args:
        model: name of the model's file, for messages.
        recipe: inside the model.
        bundle_root: folder of the bundle.

    Raises:
        ConfigError: when the model is of another bundle.
    """
    name = read_keys(bundle_root / METADATA).get("name", recipe.bundle)
    if name != recipe.bundle:
        raise ConfigError(f"{model} is of {recipe.bundle!r}, not of {name!r}: use its bundle")


def input_shape(bundle_root: Path, parser: ConfigParser) -> tuple[int, ...]:
    """Shape of one example input, (1, C, ...), from ``metadata.json``'s network data format.

    The network of a recipe may take neighbouring slices, or volumes: channels and axes are those of
    the ``network_def`` of the configuration, where that has them.

    Raises:
        ConfigError: when the metadata lacks it.
    """
    from monai.bundle.scripts import _get_fake_spatial_shape

    try:
        image = read_keys(bundle_root / METADATA)["network_data_format"]["inputs"]["image"]
        spatial = list(_get_fake_spatial_shape(image["spatial_shape"], p=4, n=4, any=64))
        channels = int(image["num_channels"])
    except (ValueError, KeyError) as error:
        raise ConfigError(
            f"{bundle_root / METADATA} must give network_data_format.inputs.image: {error!r}"
        ) from error
    channels = int(parser.get_parsed_content("network_def#in_channels", default=channels))
    axes = int(parser.get_parsed_content("network_def#spatial_dims", default=len(spatial)))
    return (1, channels, *[*spatial, *[LEAST_DEPTH] * axes][:axes])


@contextmanager
def errors_in_one_line() -> Iterator[None]:
    """An error of this package ends ``python -m monai.bundle`` in its text, without a traceback.

    The text goes to standard error once, and to no log, which may be shown in the same place. The
    exit code is then 2. Anywhere else the error is raised.
    """
    try:
        yield
    except FairFLError as error:
        main = getattr(sys.modules["__main__"], "__spec__", None)
        if main is not None and main.name.startswith("monai.bundle"):
            print(f"{type(error).__name__}: {error}", file=sys.stderr)
            raise SystemExit(2) from error
        raise
