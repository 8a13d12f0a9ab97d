"""Errors: the one exception for what a user can correct, and how messages quote foreign text."""

from __future__ import annotations

import re
from typing import NamedTuple


class UserError(Exception):
    """An error that the user can correct, in one line: the file, offset, tensor or key, what was found and what was
    expected."""

    exit_status = 1
    """of a command that it ends (`base.status`)"""


def shown(text: object) -> str:
    """Text from outside (a file's name or content, an engine's answer) as it may be printed: on one line, and unable to
    move the cursor, to change colours or to look like a message of ours.

    What is not printable becomes an escape: `\\n`, `\\x1b`, `\\u202e`, and `\\xff` for a byte of a file name that is
    not UTF-8. Everything else, spaces and all scripts included, stays as it is.
    """
    text = str(text)
    return text if text.isprintable() else "".join(c if c.isprintable() else _escape(c) for c in text)


def quoted(text: object, limit: int = 80) -> str:
    """`shown`, in quotes, and cut in the middle if it is longer than `limit` characters."""
    text = str(text)
    if len(text) > limit:
        text = f"{text[: limit - limit // 3]}…{text[-(limit // 3) :]}"
    return f"'{shown(text)}'"


def bounded(message: str) -> str:
    """A message in which what is quoted, and each word, is cut in the middle if it is longer than any that helps."""

    def cut(match: re.Match[str]) -> str:
        text = match[0]
        return f"{text[:100]}…{text[-50:]}"

    return re.sub(r"\S{400,}", cut, re.sub(r"'[^']{200,}'", cut, message))


_LONGEST_REASON = 300


def first_line(text: object) -> str:
    """The first line that is not blank: the part of a library's message that names the cause.

    Of a long line only the first sentence: torch adds the names of all its backends.
    """
    line = next((line for line in str(text).splitlines() if line.strip()), "")
    if len(line) <= _LONGEST_REASON:
        return line
    sentence = re.match(rf".{{20,{_LONGEST_REASON}}}?[.;](?= )", line)
    return sentence[0] if sentence else f"{line[:_LONGEST_REASON]}…"


class OutOfMemory(NamedTuple):
    """`wanted` is what could not be had, "20.00 GiB" or "36028797018963968 bytes"; "" where that is unknown."""

    wanted: str
    on_gpu: bool


def out_of_memory(error: BaseException) -> OutOfMemory | None:
    """Whether Python, C++ or torch, on the CPU or on a GPU, raised `error` for lack of memory; None if not."""
    text = str(error)
    by_name = type(error).__name__ == "OutOfMemoryError"  # torch's; the name spares importing torch here
    on_gpu = by_name or ("CUDA" in text and "out of memory" in text)
    if isinstance(error, RuntimeError):
        if not (on_gpu or "DefaultCPUAllocator" in text or "std::bad_alloc" in text):
            return None
    elif not isinstance(error, MemoryError):
        return None
    wanted = re.search(r"allocate ([\d.]+ \w+)", text)
    return OutOfMemory(wanted[1] if wanted else "", on_gpu)


def _escape(character: str) -> str:
    code = ord(character)
    if 0xDC80 <= code <= 0xDCFF:  # how Python carries a byte that is not UTF-8
        return f"\\x{code - 0xDC00:02x}"
    return repr(character)[1:-1]
