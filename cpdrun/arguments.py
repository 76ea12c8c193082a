"""Arguments that several commands share, with their types and shell completion."""

import argparse
from pathlib import Path
from typing import NoReturn

from cpdrun.errors import MistypedError

# The help text of --json.
AS_JSON = "print one JSON document (docs/json.md) on stdout, and text on stderr"


class Parser(argparse.ArgumentParser):
    """An ArgumentParser that raises MistypedError instead of ending the process."""

    def error(self, message: str) -> NoReturn:
        raise MistypedError(message, self.prog)


def add_json(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help=AS_JSON)


def add_mode(parser: argparse.ArgumentParser, option: str, meaning: str) -> None:
    """Add an option that selects a mode of a command, such as `--plan`, to its help.

    A mode is a command with options of its own (`cpdrun.cli.COMMANDS`).
    """
    text = f"{meaning} (own options: {parser.prog} {option} -h)"
    parser.add_argument(option, action="store_true", help=text)


def add_overrides(parser: argparse.ArgumentParser, meaning: str) -> None:
    """Add the positional arguments `key=value ...` and the option --config-dir."""
    words = parser.add_argument("overrides", nargs="*", metavar="key=value", help=meaning)
    complete_by("overrides", words)
    add_config_dir(parser)


def add_config_dir(parser: argparse.ArgumentParser) -> None:
    text = "a folder of your own yaml files, searched before those of cpdrun"
    parser.add_argument("--config-dir", type=Path, metavar="DIR", help=text)


def add_names(
    parser: argparse.ArgumentParser, nargs: str, meaning: str, *, completions: str = "sweeps_and_runs"
) -> None:
    """Add the positional arguments that name sweeps or runs, with shell completion.

    Args:
        parser: The parser of the command.
        nargs: "*" for any number of names, or "+" for at least one.
        meaning: The help text.
        completions: The name of the function for `complete_by`.
    """
    text = f"{meaning}; results_dir=PATH names the results directory"
    names = parser.add_argument("names", nargs=nargs, metavar="NAME", help=text)
    complete_by(completions, names)


def complete_by(name: str, argument: argparse.Action) -> None:
    """Make the shell complete an argument with the function `name` in cpdrun.shell.completion.

    The module is imported only when the shell asks for completions.
    """

    def completer(**words: str) -> list[str]:
        from cpdrun.shell import completion

        return getattr(completion, name)(**words)

    argument.completer = completer  # type: ignore[attr-defined]  # argcomplete reads this attribute


def with_words_after_options(
    parser: argparse.ArgumentParser, arguments: argparse.Namespace, rest: list[str]
) -> argparse.Namespace:
    """Add overrides or names that were typed after an option to `arguments`.

    argparse accepts positional arguments in one place only, and leaves the others in `rest`.

    Raises:
        MistypedError: The command takes no overrides or names, or `rest` contains an option.
    """
    words = next((vars(arguments)[name] for name in ("overrides", "names") if name in arguments), None)
    for word in rest:
        if word.startswith("-"):
            others = [*rest, *words] if "overrides" in arguments and words is not None else None
            parser.error(_unknown_option(parser, word, others))
    if rest and words is None:
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    if words is not None:
        words += rest
    return arguments


def _unknown_option(parser: argparse.ArgumentParser, word: str, others: list[str] | None) -> str:
    """Return the message about an unknown option such as `--exp` or `--exp=digits_bits`.

    Args:
        parser: The parser of the command.
        word: The option as it was typed.
        others: The other arguments if the command accepts overrides, and otherwise None. One of them may be the value
            of the option, as in `--exp digits_bits`.
    """
    from custom_fp.suggestions import did_you_mean

    option, _, value = word.partition("=")
    key = option.lstrip("-").replace("-", "_")
    if others is not None:
        from cpdrun.shell import completion

        if f"{key}=" in completion.overrides(""):
            values = (other for other in others if "=" not in other and not other.startswith("-"))
            value = value or next(values, "NAME" if key == "exp" else "VALUE")
            return f"unknown option {option}. Settings are typed as key=value: {key}={value}"
    return f"unknown option {option}{did_you_mean(option, parser._option_string_actions)}"


class Version(argparse.Action):
    """The action of --version, which imports the version only if it is printed."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        import cpdrun

        print(f"cpdrun {cpdrun.__version__}")
        parser.exit()


def several(text: str) -> list[str]:
    return [item.strip() for item in text.split(",") if item.strip()]


def count(text: str) -> int:
    """Parse a whole number that is at least 0."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"must be a whole number, not {text!r}")
    return int(text)


def positive(text: str) -> int:
    """Parse a whole number that is at least 1."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number, at least 1, not {text!r}")
    return int(text)
