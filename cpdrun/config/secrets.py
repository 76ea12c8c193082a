"""Secrets that a user typed, such as `--token hf_...` among a script's arguments.

Records contain a mask instead of secrets, and the hash of a run does not depend on them. Secrets are passed to the
processes that train in an environment variable.
"""

import json
import os
import re
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import Any

from cpdrun.errors import UserError

MASK = "***masked***"
VARIABLE = "CPDRUN_SECRETS"
_NAME = r"(?:[\w-]*[-_])?(?:token|secret|password|passwd|api[-_]?key|access[-_]?key|secret[-_]?key)"
_IS_NAME = re.compile(_NAME, re.IGNORECASE)
# `--token VALUE`, `--token=VALUE` and `token=VALUE`, and values whose beginning shows that they are secrets
_TYPED = re.compile(
    rf"(?<![\w-])(?:--?{_NAME}(?:=|\s+)|{_NAME}=)(?P<typed>\"[^\"]*\"|'[^']*'|[^\s'\"]+)"
    r"|\b(?P<known>(?:hf_|gh[pousr]_|github_pat_|glpat-|sk-|xox[abp]-)[A-Za-z0-9_-]{12,}|AKIA[0-9A-Z]{16})\b",
    re.IGNORECASE,
)
_PLAIN = re.compile(r"['\"]?(?:[<\[{$-].*|[\d.,e+-]*|true|false|null|none)['\"]?", re.IGNORECASE | re.DOTALL)


class MaskedSecretError(UserError):
    """Raised if a recorded configuration contains the mask of a secret that its run needs."""


@cache
def mask_text(text: str) -> str:
    """Return `text` with each secret replaced by MASK. Masking a masked text changes nothing."""
    return _TYPED.sub(lambda found: _replaced(found, MASK), text)


def masked(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return `config` with secrets replaced by MASK: values of keys such as `token`, and secrets in other strings."""
    return _changed(config, mask_value)


def mask_value(key: object, value: str) -> str:
    """Return the value of a (dotted) key with its secrets masked."""
    is_secret = _IS_NAME.fullmatch(str(key).rpartition(".")[2]) and not _PLAIN.fullmatch(value)
    return MASK if is_secret else mask_text(value)


def secrets_of(config: Mapping[str, Any]) -> list[str]:
    """Return the secrets in `config`, in the order of the masks that replace them in `masked(config)`."""
    found: list[str] = []

    def note(key: object, value: str) -> str:
        if mask_value(key, value) == MASK:
            found.append(value)
        else:
            found.extend(each for match in _TYPED.finditer(value) for each in _secrets(match))
        return value

    _changed(config, note)
    return [secret for secret in found if MASK not in secret]


def hand_over(config: Mapping[str, Any]) -> None:
    """Pass the secrets of `config` to the processes that this one starts, through the environment."""
    if secrets := secrets_of(config):
        os.environ[VARIABLE] = json.dumps(secrets)


def revealed(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a recorded `config` in which the masks are replaced by the secrets that `hand_over` has passed on.

    Raises MaskedSecretError if no secrets were passed on, for example in another shell.
    """
    secrets: Iterator[str] = iter(json.loads(os.environ.get(VARIABLE, "[]")))

    def reveal(_: object, value: str) -> str:
        try:
            return re.sub(re.escape(MASK), lambda _: next(secrets), value)
        except StopIteration:
            raise MaskedSecretError(
                "config.yaml contains the mask of a secret, because records contain no secrets. Type the sweep's "
                "command again with the secret, or let the script read the secret from an environment variable"
            ) from None

    return _changed(config, reveal)


def _changed(value: Any, change: Callable[[object, str], str], key: object = "") -> Any:
    if isinstance(value, str):
        return change(key, value)
    if isinstance(value, Mapping):
        return {name: _changed(item, change, name) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_changed(item, change, key) for item in value]
    return value


def _replaced(found: re.Match[str], mask: str) -> str:
    for secret in _secrets(found):
        return found[0].replace(secret, mask)
    return found[0]


def _secrets(found: re.Match[str]) -> Iterator[str]:
    secret = found["known"] or found["typed"].strip("'\"")
    if secret and (found["known"] or not _PLAIN.fullmatch(secret)):
        yield secret
