# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Which site a node is: by the key of its SuperNode, or, in a simulation, by its own answer."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_pem_public_key,
    load_ssh_public_key,
)
from flwr.app import Message, MessageType, RecordDict
from flwr.serverapp import Grid

from monai_fairfl.errors import ConfigError
from monai_fairfl.transports.flower.wire import plain_of
from monai_fairfl.utils.names import safe_name

logger = logging.getLogger(__name__)

KEY_SUFFIX = ".pub"
SECONDS_TO_ANSWER = 600.0
"""For which a simulated site is waited for: it imports MONAI first."""


class Names(Protocol):
    """Says which sites are connected."""

    def nodes(self) -> Mapping[str, int]:
        """Return site -> node id of all sites that are connected now."""


class NamesByKey:
    """Sites by the public keys in a folder of the server, one file ``SITE.pub`` a site.

    The SuperLink checks that a SuperNode holds the private key to the public one that it names. So
    no node can be another site, whatever it says.

    Args:
        grid: of the run.
        folder: with the keys, as ``ssh-keygen -t ecdsa -b 384`` writes them.

    Raises:
        ConfigError: when there is no key, one cannot be read, or two sites have the same one.
    """

    def __init__(self, grid: Grid, folder: Path):
        self.grid = grid
        self.folder = folder
        self._sites = keys_in(folder)
        self._unknown: set[int] = set()

    def nodes(self) -> Mapping[str, int]:
        """Return site -> node id of all sites that are connected now."""
        found = {}
        for node in self.grid.get_nodes():
            site = self._sites.get(_comparable(node.public_key))
            if site is not None:
                found[site] = node.node_id
            elif node.node_id not in self._unknown:
                self._unknown.add(node.node_id)
                logger.warning(
                    "node %d is connected, and its key is not in %s: it takes no part. Put the "
                    "site's public key there as SITE%s and submit the app again",
                    node.node_id,
                    self.folder,
                    KEY_SUFFIX,
                )
        return found


class NamesByAnswer:
    """Sites by what each node says: for a simulation, whose nodes are all the user's own.

    Args:
        grid: of the run.
    """

    def __init__(self, grid: Grid):
        self.grid = grid
        self._sites: dict[int, str] = {}

    def nodes(self) -> Mapping[str, int]:
        """Return site -> node id of all nodes; a node is asked once."""
        connected = list(self.grid.get_node_ids())
        questions = []
        for node in connected:
            if node not in self._sites:
                questions.append(Message(RecordDict(), node, MessageType.QUERY))
        if questions:
            for answer in self.grid.send_and_receive(questions, timeout=SECONDS_TO_ANSWER):
                if answer.has_content():
                    site = str(plain_of(answer.content)["site"])
                    self._sites[answer.metadata.src_node_id] = site
        return {self._sites[node]: node for node in connected if node in self._sites}


def keys_in(folder: Path) -> dict[bytes, str]:
    """Return key -> site of the files ``SITE.pub`` in a folder.

    Raises:
        ConfigError: when there is none, one cannot be read, or two sites have the same one.
    """
    sites: dict[bytes, str] = {}
    for file in sorted(folder.glob(f"*{KEY_SUFFIX}")):
        site = safe_name(file.stem)
        try:
            key = load_ssh_public_key(file.read_bytes())
        except (ValueError, UnsupportedAlgorithm) as error:
            raise ConfigError(
                f"{file} is no public key ({error}): the site makes one with ssh-keygen -t ecdsa "
                "-b 384, and hands over the file that ends in .pub"
            ) from error
        pem = key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
        if pem in sites:
            raise ConfigError(
                f"{site} and {sites[pem]} have the same public key in {folder}: each site needs a "
                "key of its own"
            )
        sites[pem] = site
    if not sites:
        raise ConfigError(
            f"{folder} holds no public key of a site: put each site's key there as SITE{KEY_SUFFIX}"
        )
    return sites


def _comparable(pem: bytes) -> bytes:
    """Return a key as :func:`keys_in` writes it; empty where it is none."""
    try:
        key = load_pem_public_key(pem)
    except (ValueError, UnsupportedAlgorithm):
        return b""
    return key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
