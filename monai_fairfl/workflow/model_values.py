# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The values of a model's training, for the inference or evaluation that uses the model."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from monai.bundle import ConfigParser

from monai_fairfl.bundle.configuration import (
    INFERENCE,
    TRAIN,
    calling_parser,
    errors_in_one_line,
    parsed_value,
    read_configs,
    require_same_bundle,
)
from monai_fairfl.errors import ConfigError
from monai_fairfl.model_files.recipe import ModelRecipe, read_recipe, recipe_file, recipe_of_json
from monai_fairfl.utils.files import sha256_of, write_atomically
from monai_fairfl.workflow.carried import carried_sections, evaluation_overlay, inference_overlay
from monai_fairfl.workflow.recipe_comparison import (
    require_carried,
    require_same_sections,
    require_same_values,
)
from monai_fairfl.workflow.running_recipe import key_as_written, plain_values
from monai_fairfl.workflow.section_changes import changes_of

logger = logging.getLogger(__name__)


class NotGiven:
    """Stands for a value that neither the model nor the user gave.

    :meth:`ModelValues.require` reports it.
    """

    def __repr__(self) -> str:
        return "not given"


NOT_GIVEN = NotGiven()


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
        own_values: Sequence[str] = (),
        defaults: Mapping[str, Any] | None = None,
        config: Sequence[str] = (),
        unchanged: Sequence[str] = (),
    ):
        self.path = Path(ckpt_path)
        self.bundle_root = Path(bundle_root)
        # On the command line one key may be given without the brackets of a list.
        if isinstance(own_values, str):
            own_values = [own_values]
        if isinstance(config, str):
            config = [config]
        self.own_values = [key_as_written(key) for key in own_values]
        self.defaults = defaults
        self.config = list(config)
        self.unchanged = [key_as_written(section) for section in unchanged]

        # What the run uses, for model.json: its values, and the changed parts of its sections.
        self.values: dict[str, Any] = {}
        self.by_hand: dict[str, dict[str, Any]] = {}

        self.in_a_federation = _loader_is_disabled(calling_parser())
        self.defaults_reported = False
        self.used = self.path.is_file() and not self.in_a_federation
        self.recipe: ModelRecipe | None = None
        if self.used:
            with errors_in_one_line():
                self.recipe = _read_recipe(self.path)

    def __getitem__(self, key: str) -> Any:
        """Return the value of a key; :data:`NOT_GIVEN` where the model's recipe does not have it.

        Raises:
            ConfigError: when no model is used, and nothing else gives the value.
        """
        if self.used:
            if self.recipe is None:
                return NOT_GIVEN
            return self.recipe.values.get(key, NOT_GIVEN)
        with errors_in_one_line():
            default = self._default(key)
            if default is NOT_GIVEN:
                raise ConfigError(
                    f"nothing gives {key}: no model is loaded from {self.path}, and "
                    f"{self.bundle_root / TRAIN[0]} does not have it. Name the bundle with "
                    "--bundle_root, or a model with --ckpt_path"
                )
        self._warn_of_defaults(key)
        return default

    def require(self, values: Mapping[str, Any]) -> None:
        """Go on only with the values of the model's training.

        A configuration calls it in its ``run``.

        Args:
            values: key -> value, as the running configuration has them.

        Raises:
            ConfigError: when values are missing or differ, or the configuration is of another
                bundle, has another network, or was changed by hand; every one is named. From the
                command line: the text, and exit code 2.
        """
        with errors_in_one_line():
            if not self.path.is_file():
                return  # require_model reports a missing file
            name = self.path.name
            if self.recipe is not None:
                require_same_bundle(name, self.recipe, self.bundle_root)
            self._require_all_given(values)
            self.values = plain_values(values)
            if self.recipe is None:
                self._require_unchanged(self._own_files())
                return
            own = self._own_files()
            if own is not None:
                carried = carried_sections(self.recipe, self.bundle_root)
                is_inference = str(INFERENCE) in self.config
                overlay_of = inference_overlay if is_inference else evaluation_overlay
                overlay = overlay_of(self.recipe, self.bundle_root)
                require_carried(name, self.recipe, carried, overlay, self.values, self.own_values)
                own.update(overlay)
            require_same_values(name, self.recipe, self.values, self.own_values)
            self._require_unchanged(own)
            # These were compared with the bundle's own files, and changed on purpose.
            skipped = set(self.unchanged) & set(self.own_values)
            require_same_sections(name, self.recipe, self.bundle_root, skipped, own)

    def record(self, output_dir: str | Path, settings: Mapping[str, Any]) -> None:
        """Write ``model.json`` beside a run's results: the model, its recipe, and the run's values.

        Args:
            output_dir: of the run.
            settings: what may differ from run to run, such as the batch size; plain values.

        Raises:
            ConfigError: when the file cannot be written.
        """
        recipe = None
        if self.recipe is not None:
            recipe = self.recipe.state_dict()
        content = {
            "model": str(self.path),
            "sha256": sha256_of(self.path),
            "recipe": recipe,
            "values": self.values,
            "settings": dict(settings),
            "by_hand": self.by_hand,
        }
        text = json.dumps(content, indent=4, ensure_ascii=False, default=str) + "\n"
        file = Path(output_dir) / "model.json"
        with errors_in_one_line():
            try:
                # In JSON, this is an escape, for a byte of a path that is not UTF-8.
                write_atomically(file, text.encode(errors="backslashreplace"))
            except OSError as error:
                raise ConfigError(f"{file} cannot be written: {error}") from error

    def _default(self, key: str) -> Any:
        """Return the value of ``defaults``, or of the bundle's own training configuration."""
        if self.defaults is not None:
            return self.defaults.get(key, NOT_GIVEN)
        return parsed_value(read_configs(self.bundle_root, TRAIN), key, NOT_GIVEN)

    def _warn_of_defaults(self, key: str) -> None:
        """Warn, once and not for every key, that a federation's evaluation uses defaults."""
        if not self.in_a_federation or self.defaults_reported:
            return
        self.defaults_reported = True
        logger.warning(
            "this evaluation has no model file: %s and other values that it is not given are those "
            "of %s. Where the training has others, give them to the evaluation, too (eval_kwargs "
            "of MonaiAlgo)",
            key,
            self.bundle_root / TRAIN[0],
        )

    def _require_all_given(self, values: Mapping[str, Any]) -> None:
        """Refuse values that neither the model nor the user gave; list those of the bundle."""
        missing = [key for key, value in values.items() if isinstance(value, NotGiven)]
        if not missing:
            return
        names = ", ".join(missing)
        reason = f"{self.path} does not record how it was trained (it has no recipe)"
        if self.recipe is not None:
            reason = f"the recipe of {self.path} does not give {names}"
        examples = [f'--{key} "{self._default(key)}"' for key in missing]
        raise ConfigError(
            f"{reason}, so nothing is guessed. Give {names} as in its training; the bundle's own "
            f"would be {' '.join(examples)}"
        )

    def _own_files(self) -> ConfigParser | None:
        """The bundle's own configuration of this run; ``None`` where it is not named.

        Raises:
            ConfigError: when the bundle has no such file.
        """
        if calling_parser() is None or not self.config:
            return None
        for name in self.config:
            if not (self.bundle_root / name).is_file():
                raise ConfigError(
                    f"{self.bundle_root} has no {name}: name the bundle with --bundle_root"
                )
        return read_configs(self.bundle_root, self.config)

    def _require_unchanged(self, own: ConfigParser | None) -> None:
        """Refuse changed sections; record what may differ, such as the overlap of windows.

        Args:
            own: the bundle's own configuration with what the model brings; ``None``: not known.
        """
        if own is None:
            return
        running = calling_parser()
        assert running is not None
        refused = []
        for section in self.unchanged:
            for change in changes_of(section, own.get(section), running.get(section)):
                self.by_hand[change.key] = {"here": change.here, "bundle": change.bundle}
                if not change.may_differ and section not in self.own_values:
                    refused.append((section, change))
        if refused:
            section, first = refused[0]
            raise ConfigError(
                f"{first.key} is {_in_short(first.here)} here, and {_in_short(first.bundle)} in "
                f"{self.config[-1]} of the bundle ({len(refused)} such change(s)). Leave it out: "
                "so the model was not trained. Only where its training was changed in the same "
                f"way, name the section: --own_values \"['{section}']\""
            )


def _in_short(content: Any) -> str:
    """Describe a part of a configuration in a few words.

    >>> _in_short([16, 16]), _in_short(None), _in_short("@size")
    ('a list of 2', 'absent', "'@size'")
    """
    if content is None:
        return "absent"
    if isinstance(content, (list, tuple)):
        return f"a list of {len(content)}"
    return key_as_written(repr(content))


def _read_recipe(path: Path) -> ModelRecipe | None:
    """Read the recipe inside a model, and compare it with the file beside the model.

    The file beside it is for people, and may be another model's: it is never used.
    """
    try:
        recipe = read_recipe(path)
    except ConfigError as error:
        raise ConfigError(f"{error}: name another with --ckpt_path") from None
    beside = recipe_file(path)
    if recipe is not None and beside.is_file() and not _file_holds(beside, recipe):
        logger.warning("%s is not the recipe inside %s, which is used", beside, path.name)
    return recipe


def _file_holds(file: Path, recipe: ModelRecipe) -> bool:
    try:
        return recipe_of_json(file.read_bytes(), file) == recipe
    except (ConfigError, OSError):
        return False


def _loader_is_disabled(parser: ConfigParser | None) -> bool:
    """Return whether MONAI's federated client disabled the evaluation's ``CheckpointLoader``."""
    if parser is None or "validate#handlers" not in parser:
        return False
    for handler in parser["validate#handlers"]:
        # MONAI's client disables no handler that is given by a reference, such as "@my_handler".
        if isinstance(handler, Mapping) and "CheckpointLoader" in handler.get("_target_", ""):
            return handler.get("_disabled_") is True
    return False
