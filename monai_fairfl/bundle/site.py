# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The sites of a federation: which take part, the client of each, and the first model of all."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import torch
from monai.bundle import ConfigParser
from monai.utils import ensure_tuple

from monai_fairfl.bundle import configuration
from monai_fairfl.bundle.settings import SiteSettings
from monai_fairfl.bundle.shipped import TRAIN
from monai_fairfl.client import FairMonaiAlgo
from monai_fairfl.data import check_cases
from monai_fairfl.data.layouts import CaseFiles, folders_in, site_folders
from monai_fairfl.errors import (
    ConfigError,
    DataError,
    FairFLError,
    FederationError,
    did_you_mean,
    in_words,
)
from monai_fairfl.messages import ModelSpec, Weights, read_spec
from monai_fairfl.model_files.recipe import ModelRecipe, acts, digests_of_files, state_of_file
from monai_fairfl.run.resuming import FullRun
from monai_fairfl.utils.files import private_folder, safe_name
from monai_fairfl.utils.named_classes import made

EVALUATE = "configs/evaluate.json"

FEDERATED_EVALUATE = "configs/federated_evaluate.json"
"""What comes after ``evaluate.json`` in a federation, where the bundle was adopted."""

OF_FILES = ("values", "stereo", "field_of_view")
"""Keys of a training that describe a site's files, which its check must know: values of pixels,
whether pictures are two views, and what of a slice the network sees."""

HD95 = "validate#additional_metrics#hd95"
"""Key of the metric of boundaries in ``evaluate.json``."""


def evaluation_files(bundle_root: str | Path) -> list[str]:
    """The files that come after the training configuration so that test cases are scored.

    >>> from monai_fairfl.bundle.shipped import find_bundle
    >>> evaluation_files(find_bundle("prostate_mri_segmentation"))
    ['configs/evaluate.json']
    """
    files = (EVALUATE, FEDERATED_EVALUATE)
    return [file for file in files if (Path(bundle_root) / file).exists()]


def closing_measurements(bundle_root: str | Path) -> tuple[str, ...]:
    """What the bundle can measure at the end of a run, of the model that each site would use.

    These are the Dice of validation cases and of test cases, and of these the distance of the
    boundaries (HD95), where ``configs/evaluate.json`` has a metric ``hd95``.

    >>> from monai_fairfl.bundle.shipped import find_bundle
    >>> closing_measurements(find_bundle("prostate_mri_segmentation"))
    ('score', 'test_score', 'test_hd95')
    >>> closing_measurements(find_bundle("fundus_disc_cup_segmentation"))
    ('score', 'test_score')
    """
    root = Path(bundle_root)
    evaluation = evaluation_files(root)
    if not evaluation:
        return ("score",)
    has_hd95 = HD95 in configuration.read_configs(root, [*TRAIN, *evaluation])
    return ("score", "test_score", *["test_hd95"] * has_hd95)


def bundle_client(
    bundle_root: str | Path,
    site: str,
    private: str | Path,
    *,
    dataset_dir: str | Path,
    datalist_file: str | Path | None = None,
    groups: Mapping[str, Sequence[str]] | None = None,
    rounds: int = 1,
    **settings: Any,
) -> FairMonaiAlgo:
    """Make the client of one site. It is the same for every engine.

    If the bundle's configuration has the keys ``site``, ``group``, ``datalist_file``, ``ckpt_dir``,
    ``output_dir``, ``cache_dir``, ``device``, ``amp``, ``decay_epochs`` or ``dataset_dir``, the
    client sets them.

    Args:
        bundle_root: the site's copy of the bundle.
        site: the site's name.
        private: a folder that only the account of this process can read. It gets the state between
            rounds, checkpoints, evaluations and the data list.
        dataset_dir: the folder of the site's images and labels.
        datalist_file: the site's data list. By default it is in ``private``. If the file is
            missing, it is made from ``dataset_dir``.
        groups: name of a group of the federation -> its sites. The name of the site's group becomes
            the key ``group``.
        rounds: number of rounds of the federation: the learning rate decays over all its epochs.
        settings: fields of :class:`~monai_fairfl.bundle.settings.SiteSettings`: ``device``,
            ``amp``, ``local_epochs``, ``alone``, ``config`` and ``overrides``.

    Raises:
        ConfigError: if a setting is unknown, or an override names nothing in the configuration.

    >>> import tempfile
    >>> from monai_fairfl import find_bundle
    >>> bundle = find_bundle("prostate_mri_segmentation")
    >>> private = tempfile.mkdtemp()
    >>> client = bundle_client(bundle, "alder", private, dataset_dir="DATA/alder", local_epochs=2)
    >>> client.local_epochs  # client.answer(request) trains
    2
    """
    chosen: SiteSettings = made(SiteSettings, [], settings)
    root = Path(bundle_root).absolute()
    folder = private_folder(Path(private).absolute())
    known = {
        "site": site,
        "group": "".join(name for name, sites in (groups or {}).items() if site in sites),
        "datalist_file": str(Path(datalist_file or folder / "datalist.json").absolute()),
        "ckpt_dir": str(folder / "models"),
        "output_dir": str(folder / "eval"),
        "cache_dir": str(folder / "cache"),
        "device": f"$torch.device('{torch.device(chosen.device)}')",
        "amp": chosen.amp,
        "decay_epochs": rounds * chosen.local_epochs,
    }
    keys = configuration.train_config(root, chosen.overrides, chosen.config)
    arguments = {key: value for key, value in known.items() if key in keys}
    if "dataset_dir" in keys:
        arguments["dataset_dir"] = configuration.data_folder_of(keys, dataset_dir)
    arguments.update(chosen.overrides)
    return FairMonaiAlgo(
        str(root),
        folder / "state",
        alone=chosen.alone or None,
        local_epochs=chosen.local_epochs,
        config_train_filename=list(chosen.config),
        train_kwargs=arguments,
        eval_kwargs=arguments,
    )


def check_files(
    bundle_root: Path,
    dataset_dir: str | Path,
    values: Mapping[str, Any],
    cases: Sequence[CaseFiles] | None = None,
) -> Any:
    """Check a site's files as a federation does: by the ``check`` of ``federate.json``.

    Args:
        bundle_root: of the bundle; nothing is checked where it has no such key.
        dataset_dir: the site's images and labels.
        values: of the training configuration.
        cases: of a data list, with absolute paths; ``None``: all that the site has.

    Returns:
        What the check does.

    Raises:
        DataError: naming each file and fix.
    """
    keys = configuration.read_keys(bundle_root / configuration.FEDERATE)
    parser = ConfigParser({**keys, "bundle_root": str(bundle_root)})
    check = parser.get_parsed_content("check", default=None)
    if check is None:
        return None
    given = settings_of_check(check, values)
    if cases is not None:
        given["cases"] = cases
    return check(str(dataset_dir), **given)


def settings_of_check(
    check: Callable[..., Any],
    values: Mapping[str, Any],
    listed: Callable[[], Sequence[CaseFiles]] = tuple,
) -> dict[str, Any]:
    """What a check of a site's files must know of the training, and of the model that sees them.

    Args:
        check: the function.
        values: of the training configuration.
        listed: reads the site's data list, where there is one.
    """
    # A check of somebody else's may not take what ours does.
    ours = getattr(check, "func", check) is check_cases
    names = [*OF_FILES, "size", "working_size"] if ours else OF_FILES
    given = {name: values[name] for name in names if values.get(name) is not None}
    return given | ({"listed": listed()} if ours else {})


def listed_cases(
    site_dir: str | Path,
    bundle_root: str | Path,
    config: Sequence[str] = TRAIN,
    overrides: Mapping[str, Any] | None = None,
    file: Path | None = None,
    write: bool = False,
) -> dict[str, list[CaseFiles]]:
    """The cases that a bundle lists at a site, by part; none where it has no ``datalist``.

    Args:
        site_dir: the site's folder.
        bundle_root: of the bundle.
        config: its training configuration.
        overrides: of the configuration.
        file: the site's data list, which is read where it is there.
        write: whether it is made where it is missing.

    Raises:
        DataError: there are none, or too few for a split.
    """
    root = Path(bundle_root).absolute()
    parser = configuration.train_config(root, overrides or {}, config)
    if "datalist" not in parser or "dataset_dir" not in parser:
        return {}
    parser["bundle_root"] = str(root)
    parser["dataset_dir"] = configuration.data_folder_of(parser, str(site_dir))
    parser["datalist_file"] = str(file) if file and (write or file.exists()) else None
    try:
        return cast(dict[str, list[CaseFiles]], parser.get_parsed_content("datalist"))
    except Exception as error:  # whatever an expression of the bundle raises
        if isinstance(error.__cause__, FairFLError):
            raise error.__cause__ from error
        raise DataError(f"{site_dir}: its cases cannot be listed: {in_words(error)}") from error


# ---- the sites that take part


def chosen_sites(
    sites_root: str | Path,
    chosen: str | Sequence[str] | None,
    sites: Mapping[str, Mapping[str, Any]],
    any_folder: bool = False,
) -> dict[str, Path]:
    """The sites that take part, sorted -> folder of each one's images.

    Args:
        sites_root: one folder per site.
        chosen: names of those that take part, or the name of a single one; ``None``: all.
        sites: site -> its additions, such as its ``dataset_dir``.
        any_folder: every folder is a site, whatever it holds, since the bundle lists its own files;
            else those whose layout is known.

    Raises:
        ConfigError: when the folder is missing or empty, none is chosen or one twice, or a chosen
            or configured site has no data there.
    """
    root = Path(sites_root)
    known: dict[str, Path] = {}
    if any_folder:
        known = {path.name: path for path in folders_in(root)}
    elif root.is_dir():
        known = dict(site_folders(root, must=False))
    for name, additions in sites.items():
        if "dataset_dir" in additions:
            known[name] = Path(additions["dataset_dir"])
    if not known:
        raise ConfigError(f"{sites_root} holds no site: name a folder with one per hospital")
    names = ensure_tuple(known if chosen is None else chosen)
    # One that is named twice would train and weigh twice.
    if not names or len(set(names)) < len(names):
        raise ConfigError(f"site_names must name one site or more, each once, got {names}")
    for name in [*names, *sites]:
        if name not in known:
            raise ConfigError(f"{sites_root} has no site {name!r}{did_you_mean(str(name), known)}")
        safe_name(name, "the name of the hospital's folder")
    return {name: known[name].absolute() for name in sorted(names)}


# ---- the first model, and the recipe of all


def initial_model(
    bundle_root: str | Path,
    overrides: Mapping[str, Any] | None = None,
    file: str | None = None,
    config: Sequence[str] = TRAIN,
) -> tuple[Weights, ModelSpec]:
    """Build ``network_def`` of a bundle and read its specification; runs under the caller's seed.

    Args:
        bundle_root: the bundle; the example input's shape is read from its metadata, its channels
            and axes from ``network_def`` where that has them.
        overrides: of the training configuration.
        file: a ``state_dict`` whose values replace the built ones, or a checkpoint with one under
            ``"model"``.
        config: files of the training configuration.

    Raises:
        ConfigError: when the network cannot be built.
        FederationError: when ``file`` does not fit the network.

    >>> from monai_fairfl import find_bundle
    >>> root = find_bundle("prostate_mri_segmentation")
    >>> weights, spec = initial_model(root, {"channels": [2, 4, 4]})
    >>> sum(weights[name].numel() for name in spec.parameters), spec.output
    (1297, ('output_block.conv.conv', 0))
    """
    root = Path(bundle_root)
    parser = configuration.train_config(root, overrides or {}, config)
    try:
        network = parser.get_parsed_content("network_def")
    except Exception as error:  # whatever a constructor raises
        raise ConfigError(
            f"network_def of {root} cannot be built with {overrides}: {in_words(error)}"
        ) from error
    spec = read_spec(network, torch.zeros(configuration.input_shape(root, parser)))
    if file is not None:
        try:
            network.load_state_dict(state_of_file(file))
        except (ConfigError, RuntimeError) as error:
            raise FederationError(f"{file} cannot be the initial model: {error}") from error
    return spec.tensors_of(network), spec


def bundle_recipe(
    root: Path,
    everybody: SiteSettings,
    sites: Mapping[str, Mapping[str, Any]],
    full_run: Mapping[str, Any] | None,
) -> tuple[ModelRecipe | None, dict[str, str]]:
    """The recipe of the models that a federation of this bundle trains, and its files.

    Args:
        root: of the bundle; its configuration declares the recipe under the key ``recipe``.
        everybody: settings of all sites.
        sites: site -> its own overrides, and ``"config"``, its own files. The values that a site
            trains with instead of those of all go into the recipe.
        full_run: of the bundle, its ``rounds`` and ``local_epochs``; ``None``: it names none.

    Returns:
        The recipe, ``None`` where the bundle declares none; and name -> SHA-256 of the files that
        decide training and scores, for a run's ``settings.json``.

    Raises:
        ConfigError: as :func:`~monai_fairfl.bundle.configuration.train_config`.
    """
    full = None if full_run is None else made(FullRun, [], full_run)
    names: list[str] = []
    recipes: list[ModelRecipe | None] = []
    for additions in ({}, *sites.values()):
        given = everybody.for_site(additions)
        names += given.config
        parser = configuration.train_config(root, given.overrides, given.config)
        parser["bundle_root"] = str(root)
        try:
            recipes.append(parser.get_parsed_content("recipe", default=None))
        except RuntimeError as error:
            if isinstance(error.__cause__, FairFLError):
                raise error.__cause__ from error
            raise
    names = list(dict.fromkeys([*names, *evaluation_files(root)]))
    digests = digests_of_files(root, names)

    recipe = recipes[0]
    if recipe is None:
        return None, digests
    values_of_sites = {}
    for site, of_site in zip(sites, recipes[1:], strict=True):
        known = {} if of_site is None else of_site.values
        own = {key: known[key] for key in known if known[key] != recipe.values.get(key)}
        if own:
            values_of_sites[site] = own
    of_all = {name: digests[name] for name in everybody.config}
    recipe = replace(recipe, files=of_all, sites=values_of_sites)
    training: dict[str, Any] = {"local_epochs": everybody.local_epochs}
    if not recipe.values:
        # Which values decide what a model gives is not known: whatever was given may.
        by_site = {site: _given_values(additions) for site, additions in sites.items()}
        training |= {"overrides": _given_values(everybody.overrides), "overrides_of_sites": by_site}
    if full is not None:
        training["full_run"] = {"rounds": full.rounds, "local_epochs": full.local_epochs}
    return recipe.trained(**training), digests


def _given_values(overrides: Mapping[str, Any]) -> dict[str, Any]:
    """The overrides without what a split or a place is, or what a configuration would carry out."""
    names = [name for name in overrides if not name.startswith("split_")]
    of_files = ("config", "dataset_dir", "datalist_file")
    return {n: overrides[n] for n in names if n not in of_files and not acts(overrides[n])}
