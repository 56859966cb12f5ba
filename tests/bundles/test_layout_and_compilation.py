# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Both bundles' settings for a GPU: another layout of the weights, and a compiled network.

Neither touches the weights' names, and what is sent lies in memory as without them.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from helpers.client_requests import after, same, stored_state, tiny_client, tiny_model, train
from helpers.shipped_bundles import BUNDLES, TRAIN, Bundle


def of_bundle(bundle: Bundle) -> str:
    return bundle.name


@pytest.mark.slow
@pytest.mark.parametrize("bundle", BUNDLES, ids=of_bundle)
def test_a_training_has_the_layout_that_is_chosen_and_is_compiled_when_asked(
    bundle: Bundle, tmp_path: Path
) -> None:
    site = bundle.write(tmp_path)[0]
    settings: dict[str, object] = {"memory_format": "preserve_format"}
    plain = bundle.workflow(TRAIN, tmp_path / site, tmp_path / "plain", **settings).parser
    network = plain.get_parsed_content("network")
    assert all(tensor.is_contiguous() for tensor in network.state_dict().values())
    assert network._compiled_call_impl is None

    settings = {"memory_format": "channels_last", "compiled": True}
    chosen = bundle.workflow(TRAIN, tmp_path / site, tmp_path / "chosen", **settings).parser
    other = chosen.get_parsed_content("network")
    kernels = [tensor for tensor in other.parameters() if tensor.ndim == 4]
    assert kernels
    assert all(tensor.is_contiguous(memory_format=torch.channels_last) for tensor in kernels)
    assert other._compiled_call_impl is not None
    assert chosen.get_parsed_content("train#trainer").network is other
    assert list(other.state_dict()) == list(network.state_dict())


@pytest.mark.slow
def test_what_a_client_of_another_layout_sends_lies_as_usual(
    hospitals: Path, tmp_path: Path
) -> None:
    weights, _ = tiny_model()
    client = tiny_client(hospitals, tmp_path, memory_format="channels_last")
    model = weights
    for number in range(2):
        reply = train(client, model, number)
        sent = {**(reply.update or {}), **(reply.buffers or {})}
        assert set(sent) == set(weights)
        assert all(tensor.is_contiguous() for tensor in sent.values())
        model = after(model, reply)

    # A new process goes on from the file, to the bit.
    again = tiny_client(hospitals, tmp_path, memory_format="channels_last")
    third = train(client, model, 2).update
    assert same(train(again, model, 2).update, third)
    stored = stored_state(tmp_path, 2)["local"]
    for name, tensor in after(model, train(again, model, 2)).items():
        torch.testing.assert_close(stored[name], tensor)
