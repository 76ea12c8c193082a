"""Arguments that several commands share, types of arguments, and completion in the shell."""

import argparse
from pathlib import Path
from typing import NoReturn

from cpdrun.errors import MistypedError

AS_JSON = "print one JSON document (docs/json.md) on stdout, and text on stderr"


class Parser(argparse.ArgumentParser):
    """An ArgumentParser that raises MistypedError instead of ending the process."""

    def error(self, message: str) -> NoReturn:
        raise MistypedError(message, f"{self.format_usage()}{self.prog}: ")


def add_json(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help=AS_JSON)


def add_mode(parser: argparse.ArgumentParser, option: str, meaning: str) -> None:
    """Show an option that turns the command into another one (`cpdrun.cli.MODES`) in its help."""
    text = f"{meaning} (own options: {parser.prog} {option} -h)"
    parser.add_argument(option, action="store_true", help=text)


def add_overrides(parser: argparse.ArgumentParser, meaning: str) -> None:
    """Add `key=value ...`, and the directory of the user's own configuration."""
    words = parser.add_argument("overrides", nargs="*", metavar="key=value", help=meaning)
    complete_by("overrides", words)
    parser.add_argument(
        "--config-dir", type=Path, metavar="DIR", help="a directory of your own yaml, searched before conf/"
    )


def add_names(parser: argparse.ArgumentParser, nargs: str, meaning: str) -> None:
    """Add names of sweeps (any number, none for the latest) or, with nargs="+", also of runs."""
    text = f"{meaning}; results_dir=PATH names the results directory"
    names = parser.add_argument("names", nargs=nargs, metavar="NAME", help=text)
    complete_by("sweeps" if nargs == "*" else "sweeps_and_runs", names)


def complete_by(name: str, argument: argparse.Action) -> None:
    """Let the function cpdrun.shell.completion.<name> complete `argument`. It is imported when needed."""

    def completer(**words: str) -> list[str]:
        from cpdrun.shell import completion

        return getattr(completion, name)(**words)

    argument.completer = completer  # type: ignore[attr-defined]  # argcomplete looks there


def with_words_after_options(
    parser: argparse.ArgumentParser, arguments: argparse.Namespace, rest: list[str]
) -> argparse.Namespace:
    """Accept words after options, too: argparse takes the words of a command only in one place."""
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
