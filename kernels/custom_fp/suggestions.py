"""Suggestions for misspelled names. This module uses only the standard library."""

import difflib
from collections.abc import Iterable


def did_you_mean(given: str, known: Iterable[str]) -> str:
    """Return ` (did you mean 'x'?)` for the known name that is most similar to `given`, or "" if none is similar.

    Case is ignored. Whole names are compared first, and then the parts after their last dots.
    """
    known = list(map(str, known))  # converts members of a StrEnum to plain strings
    given, by_name = given.lower(), {key.lower(): key for key in reversed(known)}
    near = [by_name[name] for name in difflib.get_close_matches(given, by_name, n=1, cutoff=0.75)]
    if not near:
        by_last_part = {name.rsplit(".", 1)[-1]: key for name, key in by_name.items()}
        last = difflib.get_close_matches(given.rsplit(".", 1)[-1], by_last_part, n=1, cutoff=0.75)
        near = [by_last_part[part] for part in last]
    return f" (did you mean {near[0]!r}?)" if near else ""
