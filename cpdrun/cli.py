"""The command line: parse arguments, run the command, report errors in one line.

The exit codes are 0 if all runs are done, 1 if a run failed, 2 for a usage or configuration error, and 130 if the
command was interrupted. With --json, exactly one document goes to stdout (`cpdrun.shell.output`).

To add a command, add a file to commands/ (see commands/__init__.py) and a line to COMMANDS.
"""

import argparse
import os
import signal
import sys
import threading
import time
from collections.abc import Sequence
from importlib import import_module

from cpdrun import script_line
from cpdrun.arguments import Parser, Version, with_words_after_options
from cpdrun.errors import INTERRUPTED, OK, USAGE, MistypedError, UserError
from cpdrun.process_tree import own_age_s
from cpdrun.shell.output import Output, print_document
from cpdrun.shell.sanitize import visible_line

# The commands in the order in which the help lists them. Each has its former name, which keeps working for one release,
# or None. A command with an option, such as `search --plan`, is a mode: another command with its own options. This mode
# is defined in commands/search_plan.py.
COMMANDS: dict[str, str | None] = {
    "sweep": None,
    "sweep --join": "work",
    "search": None,
    "search --plan": "next",
    "search --allocate": "screen",
    "predict": None,
    "judge": None,
    "report": "explain",
    "status": None,
    "logs": None,
    "cancel": None,
    "formats": None,
    "formats --vectors": "vectors",
    "init": None,
    "init --schema": "schema",
    "doctor": None,
    "doctor --calibrate": "calibrate",
}
FORMER = {former: name for name, former in COMMANDS.items() if former}
HELP = """\
usage: cpdrun [--version] COMMAND ...

How many bits does this training run need?

{commands}

For the options of a command: cpdrun COMMAND -h
Start with: cpdrun search exp=digits_search --report
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command that was typed, and return its exit code.

    Args:
        argv: The arguments after `cpdrun`. By default, those of sys.argv.

    Raises:
        SystemExit: The arguments cannot be parsed, or help or the version was printed.
    """
    typed = sys.argv[1:] if argv is None else list(argv)
    # If a sweep is canceled in another shell after this time, this command stops, too (see
    # `cpdrun.commands.launching`).
    began = time.monotonic() - (own_age_s() if argv is None else 0.0)
    try:
        arguments = read(typed)
        arguments.began = began
    except MistypedError as error:
        print_error(error)
        if error.command:
            print(f"For the options: {error.command} -h", file=sys.stderr)
        if "--json" in typed:
            print_document(Output(typed[0], as_json=True).document(USAGE, error))
        raise SystemExit(USAGE) from None
    output = arguments.output = Output(arguments.command, as_json=arguments.json)
    if typed and typed[0] in FORMER:
        output.print_progress(f"note: `cpdrun {typed[0]}` is now `cpdrun {FORMER[typed[0]]}`")
    code, failure = _run(arguments)
    if failure is not None:
        print_error(failure)
    if arguments.json:
        print_document(output.document(code, failure))
    return code


def _run(arguments: argparse.Namespace) -> tuple[int, UserError | None]:
    """Run the command, and return its exit code and the error that ended it, if any."""
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


def print_error(error: UserError) -> None:
    print("\n".join(f"error: {visible_line(line)}" for line in error.full_lines()), file=sys.stderr)


def read(typed: Sequence[str]) -> argparse.Namespace:
    """Parse the arguments after `cpdrun`.

    Returns:
        The parsed arguments. The attribute `run` is the function of the command.

    Raises:
        MistypedError: The arguments cannot be parsed.
        SystemExit: Help or the version was printed, or the shell asked for completions.
    """
    if "_ARGCOMPLETE" in os.environ:
        import argcomplete

        argcomplete.autocomplete(_parser_to_complete())
    if not typed or typed[0] in ("-h", "--help"):
        print(_help(), end="")
        raise SystemExit(OK)
    words = [*FORMER.get(typed[0], typed[0]).split(), *typed[1:]]
    if words[0].startswith("-") and words[0] != "--version":
        raise MistypedError(f"unknown option {words[0]}. Options follow the command", "cpdrun")
    if words[0] not in COMMANDS and words[0] != "--version":
        raise MistypedError(f"no command {words[0]!r}{_nearest(words[0])}")
    name, words = _with_mode(words)
    parser, commands = _parser([name] if name in COMMANDS else [])
    if name in script_line.COMMANDS:
        words = script_line.with_settings(words, commands.choices[name]._option_string_actions)
    arguments, rest = parser.parse_known_args(words)
    return with_words_after_options(commands.choices[name], arguments, rest)


def _help() -> str:
    commands = _parser([name for name in COMMANDS if "--" not in name])[1]
    lines = [f"  {action.dest:9} {action.help}" for action in commands._choices_actions]
    return HELP.format(commands="\n".join(lines))


def _nearest(name: str) -> str:
    """Suggest a command similar to `name`, or list all commands."""
    from custom_fp.suggestions import did_you_mean

    names = [command for command in COMMANDS if "--" not in command]
    return did_you_mean(name, names) or f"; there are: {', '.join(names)}"


def _with_mode(words: list[str]) -> tuple[str, list[str]]:
    """Return the name of the command or mode, and the arguments with this name first."""
    for word in words[1:]:
        if (name := f"{words[0]} {word}") in COMMANDS:
            rest = words[1:]
            rest.remove(word)
            return name, [name, *rest]
    return words[0], words


def _parser_to_complete() -> Parser:
    """Return a parser of the command in the line to complete, or of all commands."""
    words = os.environ.get("COMP_LINE", "").split()[1:]
    if not words or words[0] not in COMMANDS:
        return _parser([name for name in COMMANDS if "--" not in name])[0]
    name, _ = _with_mode(words)
    parser, commands = _parser([name])
    if name != words[0]:
        # argcomplete reads the line as it was typed, so the mode must be an option.
        mode = commands.choices[words[0]] = commands.choices.pop(name)
        mode.add_argument(name.partition(" ")[2], action="store_true")
    return parser


def parser_of(name: str) -> argparse.ArgumentParser:
    """Return the parser of a command or mode, such as `search --plan`."""
    return _parser([name])[1].choices[name]


def _parser(names: Sequence[str]) -> "tuple[Parser, argparse._SubParsersAction]":
    """Return a parser of the given commands, and the action that holds their parsers."""
    parser = Parser(prog="cpdrun", usage="cpdrun COMMAND ...")
    parser.add_argument("--version", action=Version, nargs=0, help="print the version and exit")
    commands = parser.add_subparsers(required=True, metavar="COMMAND", prog="cpdrun")
    for name in names:
        module = import_module(f"cpdrun.commands.{name.replace(' --', '_')}")
        module.add(commands).set_defaults(run=module.run, command=next(iter(module.DOCUMENTS)))
    return parser, commands


def _end_as_by_ctrl_c(*names: str) -> None:
    """Treat the named signals as Ctrl-C until a launch handles them itself.

    Signals that are already ignored, for example by nohup, stay ignored.
    """
    if threading.current_thread() is threading.main_thread():
        for number in (getattr(signal, name) for name in names if hasattr(signal, name)):
            if signal.getsignal(number) is signal.SIG_DFL:
                signal.signal(number, signal.default_int_handler)


if __name__ == "__main__":
    sys.exit(main())
