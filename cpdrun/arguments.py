"""What commands say alike of what may be typed: words of a kind, numbers, and how the shell completes them."""

import argparse
from pathlib import Path
from typing import NoReturn

from cpdrun.errors import MistypedError

AS_JSON = "one JSON document on stdout, for programs (docs/json.md); words go to stderr"


class Parser(argparse.ArgumentParser):
    """Raises MistypedError where argparse would end the process."""

    def error(self, message: str) -> NoReturn:
        raise MistypedError(message, f"{self.format_usage()}{self.prog}: ")


def add_json(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help=AS_JSON)


def add_overrides(parser: argparse.ArgumentParser, meaning: str) -> None:
    """`key=value ...` and the folder of yaml that they may come from."""
    words = parser.add_argument("overrides", nargs="*", metavar="key=value", help=meaning)
    complete_by("overrides", words)
    parser.add_argument("--config-dir", type=Path, metavar="DIR", help="a folder of yaml in front of conf/")


def add_names(parser: argparse.ArgumentParser, nargs: str, meaning: str) -> None:
    """Names of sweeps (any number, none for the latest) or, with nargs="+", of runs too."""
    text = f"{meaning}; results_dir=PATH says where names lie"
    names = parser.add_argument("names", nargs=nargs, metavar="NAME", help=text)
    complete_by("sweeps" if nargs == "*" else "sweeps_and_runs", names)


def complete_by(name: str, argument: argparse.Action) -> None:
    """The shell's completion of `argument` is cpdrun.shell.completion.<name>, imported when asked."""

    def completer(**words: str) -> list[str]:
        from cpdrun.shell import completion

        return getattr(completion, name)(**words)

    argument.completer = completer  # type: ignore[attr-defined]  # argcomplete looks there


def with_words_after_options(
    parser: argparse.ArgumentParser, arguments: argparse.Namespace, rest: list[str]
) -> argparse.Namespace:
    """argparse takes a command's words together, before its options or after them; people type both."""
    words = next((vars(arguments)[name] for name in ("overrides", "names") if name in arguments), None)
    if words is None or any(word.startswith("-") for word in rest):
        if rest:
            parser.error(f"unrecognized arguments: {' '.join(rest)}")
    else:
        words += rest
    return arguments


class Version(argparse.Action):
    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        import cpdrun

        print(f"cpdrun {cpdrun.__version__}")
        parser.exit()


def several(text: str) -> list[str]:
    return [item.strip() for item in text.split(",") if item.strip()]


def count(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"must be a whole number, not {text!r}")
    return int(text)


def positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number, at least 1, not {text!r}")
    return int(text)
