"""The command line: parse what was typed, run the command, and report a user's mistake in one line.

The exit codes are 0 if all runs are done, 1 if a run failed, 2 for a usage or configuration error, and 130 if the
command was interrupted. With --json, exactly one document goes to stdout (`cpdrun.shell.output`).

Imports at the top of this file and of the files in commands/ slow down every call.

To add a command, add a file with the functions `add` and `run` to commands/, and add its name to COMMANDS.
"""

import argparse
import os
import signal
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from importlib import import_module

from cpdrun import script_line
from cpdrun.arguments import Parser, Version, with_words_after_options
from cpdrun.errors import INTERRUPTED, USAGE, MistypedError, UserError
from cpdrun.process_tree import own_age_s
from cpdrun.shell.output import Output, print_document
from cpdrun.shell.sanitize import visible_line

# Commands in the order of the help. The file commands/NAME.py defines the parser and the function of each command.
COMMANDS = (
    "sweep",
    "search",
    "predict",
    "judge",
    "report",
    "status",
    "logs",
    "cancel",
    "formats",
    "init",
    "doctor",
)

# Options that turn a command into another command with its own options, and the file in commands/ that defines it.
MODES = {
    "search --plan": "search_plan",
    "search --allocate": "search_allocate",
    "sweep --join": "sweep_join",
    "formats --vectors": "formats_vectors",
    "init --schema": "init_schema",
    "doctor --calibrate": "doctor_calibrate",
}

# Former names of commands, which keep working for one release.
FORMER = {
    "next": "search --plan",
    "screen": "search --allocate",
    "work": "sweep --join",
    "explain": "report",
    "vectors": "formats --vectors",
    "schema": "init --schema",
    "calibrate": "doctor --calibrate",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command that was typed and return its exit code.

    Args:
        argv: The words after `cpdrun`. By default, they are taken from sys.argv.

    Raises:
        SystemExit: The words cannot be parsed.
    """
    typed = sys.argv[1:] if argv is None else list(argv)
    # A cancellation in another shell after this time also stops this command (`cpdrun.commands.launching`).
    began = time.monotonic() - (own_age_s() if argv is None else 0.0)
    try:
        arguments = read(typed)
        arguments.began = began
    except MistypedError as error:
        print(f"{error.usage}error: {visible_line(error.lines[0])}", file=sys.stderr)
        if "--json" in typed:
            print_document(Output(typed[0], as_json=True).document(USAGE, error))
        raise SystemExit(USAGE) from None
    output = arguments.output = Output(arguments.command, as_json=arguments.json)
    if typed and typed[0] in FORMER:
        output.print_progress(f"note: `cpdrun {typed[0]}` is now `cpdrun {FORMER[typed[0]]}`")
    code, failure = _run(arguments)
    if failure is not None:
        tell(failure)
    if arguments.json:
        print_document(output.document(code, failure))
    return code


def _run(arguments: argparse.Namespace) -> tuple[int, UserError | None]:
    """Run the command. Return its exit code, and the error that ended it, if any."""
    try:
        _end_as_by_ctrl_c("SIGTERM", "SIGHUP")
        return arguments.run(arguments), None
    except KeyboardInterrupt:
        # If the signal arrived while Python executed code from a string, such as the methods of a dataclass, then
        # `python -m` would end with SIGINT instead of this exit code. Executing another string prevents that.
        eval("0")
        return INTERRUPTED, None
    except UserError as error:
        return error.exit_code, error


def tell(error: UserError) -> None:
    """Print the lines of an error to stderr."""
    print("\n".join(f"error: {visible_line(line)}" for line in error.told()), file=sys.stderr)


def read(typed: Sequence[str]) -> argparse.Namespace:
    """Parse the typed words.

    Returns:
        The arguments of the command. Their attribute `run` is the function of the command.

    Raises:
        MistypedError: The words cannot be parsed.
    """
    parser, commands = _parser()
    if "_ARGCOMPLETE" in os.environ:
        import argcomplete

        argcomplete.autocomplete(parser)
    if not typed:
        parser.error("name a command; cpdrun --help says what each does")
    words = [*FORMER.get(typed[0], typed[0]).split(), *typed[1:]]
    if not words[0].startswith("-") and words[0] not in COMMANDS:
        from custom_fp.words import did_you_mean

        near = did_you_mean(words[0], COMMANDS)
        parser.error(f"no command {words[0]!r}{near}; there are: {', '.join(COMMANDS)}")
    if words[0] in script_line.COMMANDS:
        words = script_line.with_settings(words, commands[words[0]]._option_string_actions)
    return with_words_after_options(parser, *parser.parse_known_args(_with_mode(words)))


def _with_mode(words: list[str]) -> list[str]:
    """Return the words with a command and its mode, such as `search` and `--plan`, joined into one word."""
    for word in words[1:]:
        if (mode := f"{words[0]} {word}") in MODES:
            rest = words[1:]
            rest.remove(word)
            return [mode, *rest]
    return words


def parsers() -> Mapping[str, argparse.ArgumentParser]:
    """Return the parser of each command and of each mode."""
    return _parser()[1]


def _parser() -> tuple[Parser, Mapping[str, argparse.ArgumentParser]]:
    parser = Parser(
        prog="cpdrun",
        description="How many bits does this training run need?",
        epilog="Start with: cpdrun search exp=digits_search --report. For the options of a command: cpdrun COMMAND -h",
    )
    parser.add_argument("--version", action=Version, nargs=0, help="print the version and exit")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    for file in (*COMMANDS, *MODES.values()):
        module = import_module(f"cpdrun.commands.{file}")
        module.add(commands).set_defaults(run=module.run, command=next(iter(module.DOCUMENTS)))
    return parser, commands.choices


def _end_as_by_ctrl_c(*names: str) -> None:
    """Treat these signals as Ctrl-C until a launch handles them itself. Signals that nohup ignores stay ignored."""
    if threading.current_thread() is threading.main_thread():
        for number in (getattr(signal, name) for name in names if hasattr(signal, name)):
            if signal.getsignal(number) is signal.SIG_DFL:
                signal.signal(number, signal.default_int_handler)


if __name__ == "__main__":
    sys.exit(main())
