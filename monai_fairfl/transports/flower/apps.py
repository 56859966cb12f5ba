# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The two components of an app, what they send each other, and their simulation on one machine.

An app's ``pyproject.toml`` names ``server_app`` and ``client_app``. The server knows which site a
node is by the key of its SuperNode. SuperNodes start a process for each message. So a site reads
its files each time, and its state lies on its disk.

Plain values travel as JSON in a ``ConfigRecord``, tensors in ``ArrayRecord``s as safetensors:
Flower's own arrays are NumPy's, which has no bfloat16.
"""

from __future__ import annotations

import json
import logging
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_ssh_public_key,
)
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MessageType, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from safetensors.torch import load

from monai_fairfl.errors import ConfigError, FairFLError, FederationError, in_words
from monai_fairfl.messages import Reply, Request
from monai_fairfl.transports.engines.job import HOME, Job, folder_of_run, run_job
from monai_fairfl.transports.engines.site import Site, job_of, simulated_sites, simulation, start_of
from monai_fairfl.transports.engines.wire import Packed, packed_reply, packed_request, reply_from
from monai_fairfl.transports.flower.job import job_of_config, run_config, site_settings
from monai_fairfl.utils.files import safe_name, tensors_as_bytes
from monai_fairfl.utils.plain_values import object_of_json

logger = logging.getLogger(__name__)

PLAIN = "fairfl"
"""Name of the record with all plain values of a message, under the key ``json``."""

TENSORS = "safetensors"
"""Name of the one array of a record with tensors: all of them together, in this format."""

NO_LIMIT = 30 * 24 * 3600.0
"""Seconds that a message lives where an exchange has no time limit; Flower's own are 12 hours."""
SECONDS_BETWEEN_PULLS = 0.5
"""Over the network; a simulation names its own interval."""
SECONDS_BETWEEN_LOOKS = 1.0

Nodes = Callable[[], Mapping[str, int]]
"""Returns site -> node id of all sites that are connected now."""


# --- messages


def content_of(packed: Packed) -> RecordDict:
    """Return a request or reply as Flower carries it; tensors keep their bits and their type."""
    plain, tensors = packed
    content = RecordDict({PLAIN: ConfigRecord({"json": json.dumps(plain)})})
    for name, weights in tensors.items():
        data = tensors_as_bytes(weights)
        content[name] = ArrayRecord({TENSORS: Array("uint8", (len(data),), TENSORS, data)})
    return content


def packed_of(content: RecordDict) -> Packed:
    """Return the request or reply that Flower has brought.

    Raises:
        Exception: several kinds; a KeyError when it is not of this package.
    """
    plain = object_of_json(str(content.config_records[PLAIN]["json"]))
    tensors = {}
    for name in ("model", "buffers"):
        if name in content:
            tensors[name] = load(content.array_records[name][TENSORS].data)
    return plain, tensors


# --- the server


@dataclass
class FlowerTransport:
    """Sends each request as one message to one node.

    Replies come in any order.

    Args:
        grid: of the run.
        nodes: returns site -> node id of the sites that are connected now.
        job: whose ``min_clients`` are waited for ``timeout`` seconds, before the clients are
            counted.
    """

    grid: Grid
    nodes: Nodes
    job: Job

    @property
    def clients(self) -> Sequence[str]:
        """The sites that are connected, once they are as many as the run needs.

        A site whose SuperNode was started again connects within seconds. Where too few come in
        time, those that are there.
        """
        end = time.monotonic() + (self.job.timeout or math.inf)
        found = sorted(self.nodes())
        if len(found) < self.job.min_clients:
            logger.info("the run needs %d sites; connected: %s", self.job.min_clients, found)
        while len(found) < self.job.min_clients and time.monotonic() < end:
            time.sleep(SECONDS_BETWEEN_LOOKS)
            found = sorted(self.nodes())
        return found

    def ask(self, requests: Sequence[Request], timeout: float | None = None) -> Iterator[Reply]:
        """Send every request, and yield replies until all came or ``timeout`` seconds are over.

        A later answer is never looked at.
        """
        time_to_live = timeout or NO_LIMIT
        end = time.monotonic() + time_to_live
        nodes = self.nodes()
        sent: dict[str, Request] = {}
        for request in requests:
            numbers: list[str] = []
            if request.client in nodes:
                content = content_of(packed_request(request, self.job.num_rounds))
                node = nodes[request.client]
                message = Message(content, node, MessageType.TRAIN, ttl=time_to_live)
                numbers = [number for number in self.grid.push_messages([message]) if number]
            if numbers:
                sent[numbers[0]] = request
            else:
                yield request.reply(error="its SuperNode is not connected")

        while sent and time.monotonic() < end:
            for answer in self.grid.pull_messages(list(sent)):
                request = sent.pop(answer.metadata.reply_to_message_id)
                if answer.has_error():
                    yield request.reply(error=f"Flower reports: {answer.error.reason}")
                else:
                    yield reply_from(request, partial(packed_of, answer.content))
            time.sleep(getattr(self.grid, "pull_interval", SECONDS_BETWEEN_PULLS))

    def close(self) -> None:
        """Do nothing: Flower's nodes outlive a run."""


def sites_by_key(folder: Path) -> dict[bytes, str]:
    """Return public key -> site, of the files ``SITE.pub`` in a folder of the server.

    The SuperLink checks that a SuperNode holds the private key to the public one that it names. So
    no node can be another site, whatever it says.

    Args:
        folder: with the keys, as ``ssh-keygen -t ecdsa -b 384`` writes them.

    Raises:
        ConfigError: when there is no key, one cannot be read, or two sites have the same one.
    """
    sites: dict[bytes, str] = {}
    for file in sorted(folder.glob("*.pub")):
        site = safe_name(file.stem)
        try:
            key = load_ssh_public_key(file.read_bytes())
        except (ValueError, UnsupportedAlgorithm) as error:
            raise ConfigError(
                f"{file} is no public key ({error}): the site makes one with ssh-keygen -t "
                "ecdsa -b 384, and hands over the file that ends in .pub"
            ) from error
        # As a SuperNode sends it.
        pem = key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
        if pem in sites:
            raise ConfigError(
                f"{site} and {sites[pem]} have the same public key in {folder}: each site needs a "
                "key of its own"
            )
        sites[pem] = site
    if not sites:
        raise ConfigError(
            f"{folder} holds no public key of a site: put each site's key there as SITE.pub"
        )
    return sites


def main(grid: Grid, context: Context) -> None:
    """Run the job of an app, in the server's own folder, which no app can choose.

    Raises:
        ConfigError: when the SuperLink was started without that folder, or keys are missing there.
        FederationError: when the run cannot end; it names the reason.
    """
    logging.basicConfig(level=logging.WARNING)
    logging.getLogger("monai_fairfl").setLevel(logging.INFO)
    home = Path(os.environ.get(HOME, ""))
    if not home.is_absolute():
        raise ConfigError(
            f"{HOME} is {str(home)!r}: start flower-superlink with {HOME}=/an/absolute/folder. Its "
            "keys/ holds the public key of each site as SITE.pub, and runs go into its runs/"
        )
    sites = sites_by_key(home / "keys")

    unknown: set[int] = set()

    def nodes() -> dict[str, int]:
        found = {}
        for node in grid.get_nodes():
            if node.public_key in sites:
                found[sites[node.public_key]] = node.node_id
            elif node.node_id not in unknown:
                unknown.add(node.node_id)
                logger.warning(
                    "node %d is connected, and its key is not in %s: it takes no part. Put the "
                    "site's public key there as SITE.pub and submit the app again",
                    node.node_id,
                    home / "keys",
                )
        return found

    job = job_of_config(context.run_config)
    run = folder_of_run(home / "runs", job.name)
    try:
        run_job(run, job, start_of(job), FlowerTransport(grid, nodes, job), "Flower")
    except FairFLError as error:
        raise FederationError(f"{error}\nSubmit the app again to go on from {run}") from error


# Flower looks for a plain assignment.
server_app = ServerApp()
server_app.main()(main)


# --- a site


def answering_app(site_of: Callable[[Message, Context], Site]) -> ClientApp:
    """Return an app that answers as the site that a node is, or plays for a message.

    Args:
        site_of: returns that site; what it raises is reported in the reply.
    """
    app = ClientApp()

    def answer(message: Message, context: Context) -> Message:
        try:
            site = site_of(message, context)
            reply = site.answer(lambda: packed_of(message.content))
        except Exception as error:
            reply = Reply("", None, 0, error=in_words(error))
        return Message(content_of(packed_reply(reply)), reply_to=message)

    app.train()(answer)
    return app


def site_of_node(message: Message, context: Context) -> Site:
    """Return the site that a SuperNode is, by the hospital's own ``--node-config``.

    Raises:
        ConfigError: when it does not say which site it is, or where its folder is.
    """
    logging.basicConfig(level=logging.WARNING)
    logging.getLogger("monai_fairfl").setLevel(logging.INFO)
    name, folder = context.node_config.get("name"), context.node_config.get("folder")
    if not (isinstance(name, str) and isinstance(folder, str) and Path(folder).is_absolute()):
        raise ConfigError(
            f"this SuperNode's node-config has name {name!r} and folder {folder!r}: start "
            'flower-supernode with --node-config \'name="SITE" folder="/an/absolute/path"\''
        )
    return Site(name, folder, site_settings(context.run_config))


client_app = answering_app(site_of_node)


# --- a simulation: a server, and sites in the worker processes of Ray

MOST_SITES = 8
"""That one process has in memory."""


def simulate_job(
    workspace: str | Path,
    sites_root: str | Path,
    site_names: Sequence[str] | None = None,
    jobs: int | None = None,
    *,
    bundle: str,
    **arguments: Any,
) -> Path:
    """Run a federation in Flower's simulation, with sites in processes of this machine.

    Args:
        workspace: gets ``server/NAME``, the run, and ``sites/SITE``, the states of the sites; a run
            that did not end goes on.
        sites_root: one folder per site.
        site_names: those that take part; all by default.
        jobs: processes that train at a time; as many as the machine has processors by default.
        bundle: as for :func:`~monai_fairfl.transports.engines.site.job_of`.
        arguments: likewise.

    Returns:
        The run's folder, with models, ledger and report.

    Raises:
        ConfigError: when the sites or the settings are wrong.
        FederationError: when the run did not end; it names the reason.
    """
    # What a node imports for each message stays small.
    from flwr.simulation import run_simulation

    sites = simulated_sites(sites_root, site_names, bundle)
    given = {"min_clients": len(sites), **arguments}
    job = job_of(bundle=bundle, sites_root=sites_root, **given)
    folder = Path(workspace).absolute()
    run = folder_of_run(folder / "server", job.name)
    # Here: MONAI looks through all imported modules for each configuration, and fails while another
    # thread imports one.
    start = start_of(job)

    failures: list[BaseException] = []
    server = ServerApp()

    @server.main()
    def main(grid: Grid, context: Context) -> None:
        def nodes() -> dict[str, int]:
            return dict(zip(sites, sorted(grid.get_node_ids()), strict=False))

        # Flower prints an exception of this thread, and raises another one.
        try:
            run_job(run, job, start, FlowerTransport(grid, nodes, job), "Flower")
        except BaseException as error:
            failures.append(error)

    site_of = partial(_site_of, folder / "sites", json.dumps(site_settings(run_config(job))))
    at_a_time = min(jobs or os.cpu_count() or 1, len(sites))
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    with simulation(run):
        run_simulation(
            server_app=server,
            client_app=answering_app(site_of),
            num_supernodes=len(sites),
            backend_config={
                "init_args": {"num_cpus": at_a_time},
                "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
            },
        )
        for error in failures:
            raise RuntimeError(str(error)) from error
    return run


def _site_of(folder: Path, job: str, message: Message, context: Context) -> Site:
    """Return the site that a request is to: all nodes of a simulation are the user's own."""
    plain, _ = packed_of(message.content)
    name = safe_name(plain["site"])
    return _site(name, folder / name, job)


@lru_cache(maxsize=MOST_SITES)
def _site(name: str, folder: Path, job: str) -> Site:
    """Return a site, the same for each message that this process answers for it.

    Another process may have trained it in the meantime: its state is on disk.
    """
    return Site(name, folder, json.loads(job))
