# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Errors a user sees: each names the client, file or value, and says what to do."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable


class FairFLError(Exception):
    """Base of all errors raised on purpose by this package."""


class DataError(FairFLError, ValueError):
    """A site's images, labels or data list cannot be used as they are."""


class DataWarning(UserWarning):
    """A site's images, labels or data list can be used, but a person should know something."""


class ConfigError(FairFLError, ValueError):
    """A configuration key, argument or combination is wrong."""


class FederationError(FairFLError, RuntimeError):
    """The federation cannot go on; the text says from where and how it resumes."""


class DiskFullError(FederationError):
    """A file could not be written for want of space; what was written before it is whole."""


class TransportAborted(FederationError):
    """The engine that carries the messages ended the run; what was done can be resumed."""


def closest(word: str, known: Iterable[str]) -> str | None:
    """The known name that looks most like ``word``, if one does; upper and lower case are the
    same.

    >>> closest("FedCe", ["FedCE", "FedCI"]), closest("x", ["FedAvg", "FedCE"])
    ('FedCE', None)
    """
    by_letters = {name.lower(): name for name in known}
    found = difflib.get_close_matches(word.lower(), by_letters, n=1)
    return by_letters[found[0]] if found else None


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """The end of an error about an unknown name: the one that looks most like it, else all there
    are.

    >>> did_you_mean("fedce", ["FedAvg", "FedCE"])
    "; did you mean 'FedCE'?"
    >>> did_you_mean("x", ["FedAvg", "FedCE"])
    "; known are ['FedAvg', 'FedCE']"
    """
    names = sorted(known)
    meant = closest(word, names)
    return f"; did you mean {meant!r}?" if meant else f"; known are {names}"


def in_words(error: BaseException) -> str:
    """An error and what led to it, in one line for those who see no traceback.

    >>> try:
    ...     raise ValueError("no cases") from FileNotFoundError("/data is missing")
    ... except ValueError as error:
    ...     print(in_words(error))
    ValueError: no cases; because of FileNotFoundError: /data is missing
    >>> in_words(RuntimeError("applying transform <monai.Flip object at 0x7f>"))
    'RuntimeError: applying transform monai.Flip'
    >>> in_words(ValueError(f"{ONE_VALUE}, got input size [1, 8, 1, 1]"))[-32:]
    'give a larger batch_size or size'
    """
    words: list[str] = []
    cause: BaseException | None = error
    for _ in range(5):
        if cause is not None:
            text = AN_OBJECT.sub(r"\1", " ".join(str(cause).split()))
            text += "".join(fix for words, fix in FIXES.items() if words in text)
            if not words or text not in words[-1]:
                words.append(f"{type(cause).__name__}: {text}")
            cause = cause.__cause__
    return "; because of ".join(words)


AN_OBJECT = re.compile(r"<([\w.]+) object at 0x[0-9a-f]+>")
"""What Python writes for an object; the address differs from site to site."""

ONE_VALUE = "Expected more than 1 value per channel when training"
FIXES = {
    ONE_VALUE: ": give a larger batch_size or size",
    "Sizes of tensors must match": ": give a size that the network's strides divide",
}
"""Of what PyTorch writes: where BatchNorm gets one pixel, and where a level is cut unevenly."""
