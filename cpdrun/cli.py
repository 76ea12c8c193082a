"""The command line: reads what was typed, hands it to its command, and tells a user's mistake in a line.

Exit codes: 0 all done, 1 some run failed, 2 usage or configuration error, 130 interrupted. With --json one document
goes to stdout, in any case (`cpdrun.shell.telling`). What is imported at the top, here and in commands/, costs every
call.
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
from cpdrun.shell.telling import Telling, print_document
from cpdrun.shell.visible import visible_line

# as a user meets them
COMMANDS = (
    "search",
    "next",
    "screen",
    "sweep",
    "predict",
    "judge",
    "work",
    "report",
    "explain",
    "status",
    "logs",
    "cancel",
    "calibrate",
    "formats",
    "vectors",
    "init",
    "schema",
    "doctor",
)


def main(argv: Sequence[str] | None = None) -> int:
    typed = sys.argv[1:] if argv is None else list(argv)
    # whatever is typed in another shell from here on means this command: see `cpdrun.commands.launching`
    began = time.monotonic() - (own_age_s() if argv is None else 0.0)
    try:
        arguments = read(typed)
        arguments.began = began
    except MistypedError as error:
        print(f"{error.usage}error: {visible_line(error.lines[0])}", file=sys.stderr)
        if "--json" in typed:
            print_document(Telling(typed[0], as_json=True).document(USAGE, error))
        raise SystemExit(USAGE) from None
    telling = arguments.telling = Telling(arguments.command, as_json=arguments.json)
    code, failure = _run(arguments)
    if failure is not None:
        tell(failure)
    if arguments.json:
        print_document(telling.document(code, failure))
    return code


def _run(arguments: argparse.Namespace) -> tuple[int, UserError | None]:
    try:
        _end_as_by_ctrl_c("SIGTERM", "SIGHUP")
        return arguments.run(arguments), None
    except KeyboardInterrupt:
        # where it came while a text was executed (a dataclass's methods), `python -m` would end by SIGINT all the same
        eval("0")
        return INTERRUPTED, None
    except UserError as error:
        return error.exit_code, error


def tell(error: UserError) -> None:
    """Each line of it on stderr, and its consequence behind the last."""
    print("\n".join(f"error: {visible_line(line)}" for line in error.told()), file=sys.stderr)


def read(typed: Sequence[str]) -> argparse.Namespace:
    """Return what was typed, with the `run` of its command. Raises MistypedError for what cannot be read."""
    parser, commands = _parser()
    if "_ARGCOMPLETE" in os.environ:
        import argcomplete

        argcomplete.autocomplete(parser)
    if not typed:
        parser.error("name a command; cpdrun --help says what each does")
    if not typed[0].startswith("-") and typed[0] not in COMMANDS:
        from custom_fp.words import did_you_mean

        near = did_you_mean(typed[0], COMMANDS)
        parser.error(f"no command {typed[0]!r}{near}; there are: {', '.join(COMMANDS)}")
    if typed[0] in script_line.COMMANDS:
        typed = script_line.with_settings(typed, commands[typed[0]]._option_string_actions)
    return with_words_after_options(parser, *parser.parse_known_args(typed))


def parsers() -> Mapping[str, argparse.ArgumentParser]:
    """Of each command."""
    return _parser()[1]


def _parser() -> tuple[Parser, Mapping[str, argparse.ArgumentParser]]:
    parser = Parser(
        prog="cpdrun",
        description="How many bits does this training run need?",
        epilog="Start with: cpdrun sweep exp=digits_bits, then cpdrun report",
    )
    parser.add_argument("--version", action=Version, nargs=0, help="say which cpdrun this is, and stop")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    for name in COMMANDS:
        command = import_module(f"cpdrun.commands.{name}")
        command.add(commands).set_defaults(run=command.run, command=name)
    return parser, commands.choices


def _end_as_by_ctrl_c(*names: str) -> None:
    """Until a launch handles these signals itself, they do what Ctrl-C does; one that nohup ignores stays ignored."""
    if threading.current_thread() is threading.main_thread():
        for number in (getattr(signal, name) for name in names if hasattr(signal, name)):
            if signal.getsignal(number) is signal.SIG_DFL:
                signal.signal(number, signal.default_int_handler)


if __name__ == "__main__":
    sys.exit(main())
