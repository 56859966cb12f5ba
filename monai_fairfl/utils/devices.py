# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Whether this machine has a device, what it computes in, and torch's threads.

The number of threads changes the last bits of sums.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch

from monai_fairfl.errors import ConfigError


def require_device(name: str) -> None:
    """Refuse a device that torch cannot use on this machine.

    Args:
        name: such as ``"cpu"`` or ``"cuda:0"``.

    Raises:
        ConfigError: naming the device and the fix.

    >>> require_device("cpu")
    >>> require_device("cuda:99")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
        ...
    monai_fairfl.errors.ConfigError: device cuda:99: PyTorch cannot use it here; ...
    """
    try:
        device = torch.device(name)
        if device.type == "cuda":
            # Counting starts nothing on a GPU, so a worker process can still be forked.
            is_usable = (device.index or 0) < torch.cuda.device_count()
        else:
            is_usable = bool(torch.ones(1, device=device))
    except Exception:  # devices have neither a common error nor a way to ask
        is_usable = False
    if not is_usable:
        raise ConfigError(
            f"device {name}: PyTorch cannot use it here; leave it out, name another, or install a "
            "build of PyTorch for it"
        )


def best_device() -> str:
    """A GPU where torch finds one, else the CPU."""
    return "cuda:0" if torch.cuda.is_available() else "cpu"


def has_bfloat16(device: str | torch.device) -> bool:
    """Whether a device computes in bfloat16 by hardware; emulated, it is slower than float32."""
    kind = torch.device(device)
    if kind.type == "cuda" and torch.cuda.is_available():
        with torch.cuda.device(kind):
            return torch.cuda.is_bf16_supported(including_emulation=False)
    if kind.type != "cpu":
        return False
    # PyTorch 2.8 has no such account.
    known: Mapping[str, Any] = getattr(torch.cpu, "get_capabilities", dict)()
    return any(known.get(name, False) for name in ("avx512_bf16", "amx_bf16", "bf16", "sve_bf16"))


@contextmanager
def torch_threads(number: int) -> Iterator[None]:
    """Inside, torch computes with so many threads; afterwards with as many as before.

    >>> before = torch.get_num_threads()
    >>> with torch_threads(1):
    ...     torch.get_num_threads()
    1
    >>> torch.get_num_threads() == before
    True
    """
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)
