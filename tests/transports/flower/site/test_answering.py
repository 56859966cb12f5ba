# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The ClientApp answers as its site, from the site's own files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr")

from flwr.app import Context, Message, RecordDict  # noqa: E402
from flwr.common.constant import SUPERLINK_NODE_ID  # noqa: E402
from helpers.client_requests import tiny_model  # noqa: E402
from helpers.federations import BUNDLE, SETTINGS  # noqa: E402
from helpers.flower_grid import identify  # noqa: E402

from monai_fairfl.protocol.messages import Reply, Request  # noqa: E402
from monai_fairfl.transports.flower import FlowerJob  # noqa: E402
from monai_fairfl.transports.flower.site.app import app, site_of  # noqa: E402
from monai_fairfl.transports.flower.wire import (  # noqa: E402
    plain_of,
    reply_of,
    request_content,
)

pytestmark = pytest.mark.flower

JOB = FlowerJob.of(bundle=BUNDLE, overrides=SETTINGS, device="cpu").run_config()


def request(site: str = "elm") -> Request:
    weights, _ = tiny_model()
    return Request(site, "train", weights, (), {}, run="r", round=0, seed=3)


def message(content: RecordDict, kind: str = "train") -> Message:
    identify(node=SUPERLINK_NODE_ID)
    found = Message(content, 7, kind)
    found.metadata.__dict__["_message_id"] = "1"
    return found


def ask(own: dict[str, Any], config: dict[str, Any], asked: Request) -> Reply:
    """The reply to a request of a SuperNode with a node-config, in a run of a configuration."""
    context = Context(run_id=1, node_id=7, node_config=own, state=RecordDict(), run_config=config)
    return reply_of(app(message(request_content(asked, 2)), context).content, asked)


def own_config(folder: Path, images: Path) -> dict[str, Any]:
    """The node-config of a site that names its images."""
    (folder / "local").mkdir()
    (folder / "local" / "fairfl.json").write_text(json.dumps({"dataset_dir": str(images)}))
    return {"name": "elm", "folder": str(folder)}


@pytest.mark.slow
def test_a_site_trains_its_own_images_and_stores_its_state_in_its_folder(
    hospitals: Path, tmp_path: Path
) -> None:
    found = ask(own_config(tmp_path, hospitals / "elm"), JOB, request())

    assert found.error is None and found.client == "elm" and found.num_cases == 2
    assert (tmp_path / "fairfl" / "elm" / "state" / "r-round-0000.pt").exists()


def test_what_a_site_cannot_do_it_answers_with_the_reason(hospitals: Path, tmp_path: Path) -> None:
    own = own_config(tmp_path, hospitals / "elm")
    assert "says 'elm'" in str(ask(own, JOB, request("oak")).error)
    code = {**JOB, "overrides": '{"size": "$1"}'}
    assert "must not bring code" in str(ask(own, code, request()).error)
    more = {**JOB, "local-epochs": 5000}
    assert "a job may set at most 1000" in str(ask(own, more, request()).error)
    for missing in ("name", "folder"):
        incomplete = {key: value for key, value in own.items() if key != missing}
        error = str(ask(incomplete, JOB, request()).error)
        assert f"node-config has no {missing}: start flower-supernode with" in error
    relative = {**own, "folder": "here"}
    assert "give an absolute path" in str(ask(relative, JOB, request()).error)
    assert not (tmp_path / "fairfl").exists()


def test_a_message_of_another_app_is_answered_with_the_reason(
    hospitals: Path, tmp_path: Path
) -> None:
    own = own_config(tmp_path, hospitals / "elm")
    context = Context(run_id=1, node_id=7, node_config=own, state=RecordDict(), run_config=JOB)

    found = reply_of(app(message(RecordDict()), context).content, request())

    assert "another app runs at the other end" in str(found.error)


def test_a_node_says_its_name(tmp_path: Path) -> None:
    own = {"name": "elm", "folder": str(tmp_path)}
    context = Context(run_id=1, node_id=7, node_config=own, state=RecordDict(), run_config=JOB)

    assert plain_of(app(message(RecordDict(), "query"), context).content) == {"site": "elm"}
    assert site_of(context).workspace == tmp_path
