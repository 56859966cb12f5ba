# Copyright (c) MONAI FairFL contributors
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#     http://www.apache.org/licenses/LICENSE-2.0
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS,
# WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
# See the License for the specific language governing permissions and
# limitations under the License.
"""What a client keeps between rounds: whose files they are, and that they stay in its folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from monai_fairfl.client_state import ClientState, Past
from monai_fairfl.errors import ConfigError


@pytest.mark.parametrize("run", ["", "../other", "a/b", "/tmp/a", ".hidden", "-a", "lr=0.01", "a*", "a\n", "a" * 129])
def test_a_run_whose_name_is_no_file_name_is_refused_wherever_it_is_used(run: str, tmp_path: Path) -> None:
    states = ClientState(tmp_path / "private")
    for use in (
        lambda: states.save(run, 0, {}),
        lambda: states.save_cases(run, "score-0-0", {"Case00": {"dice": 0.5}}),
        lambda: states.path(run, "own.pt"),
        lambda: Past(states, run, 0),
    ):
        with pytest.raises(ConfigError, match="run name .* cannot be used: give it 1 to 128 letters"):
            use()
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


@pytest.mark.parametrize("run", ["r", "fedce-2", "FedCE 3T.v1", "a" * 128])
def test_states_are_found_again_by_run_and_round(run: str, tmp_path: Path) -> None:
    states = ClientState(tmp_path)
    for number in range(4):
        states.save(run, number, {"round": number})
    assert states.before(run, 3) == [2, 1] and states.before(f"other{run}"[:128], 3) == []
    assert states.load(run, 2) == {"round": 2}
