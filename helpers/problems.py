"""Errors that are meant for the reader: one sentence that names the input, the reason and the way out."""

import difflib
from collections.abc import Iterable


class Problem(RuntimeError):
    """What a reader can act on; a command prints it and ends with `exit_code`."""

    exit_code = 1


class Refused(Problem, ValueError):
    """Input that cannot be used; nothing was started or changed."""

    exit_code = 2


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """ " Did you mean X?" for the nearest name there is; empty where none is near."""
    near = difflib.get_close_matches(name, list(known), n=1)
    return f" Did you mean {near[0]}?" if near else ""


def one_line(error: BaseException) -> str:
    """What an exception says, on one line."""
    return " ".join(str(error).split()) or type(error).__name__
