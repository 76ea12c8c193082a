"""The command line: reads what was typed, hands it to its command, and tells a user's mistake in a line.

Exit codes: 0 all done, 1 some run failed, 2 usage or configuration error, 130 interrupted. What is imported at the top,
here and in commands/, costs every call.
"""

import argparse
import os
import signal
import sys
import threading
from collections.abc import Sequence
from importlib import import_module

from cpdrun.arguments import Version, with_words_after_options
from cpdrun.errors import INTERRUPTED, UserError
from cpdrun.shell.visible import visible_line

# as a user meets them
COMMANDS = (
    "search",
    "screen",
    "sweep",
    "predict",
    "work",
    "report",
    "explain",
    "status",
    "logs",
    "cancel",
    "calibrate",
    "formats",
    "vectors",
    "doctor",
)


def main(argv: Sequence[str] | None = None) -> int:
    arguments = _read(argv)
    try:
        _end_as_by_ctrl_c("SIGTERM", "SIGHUP")
        return arguments.run(arguments)
    except KeyboardInterrupt:
        # where it came while a text was executed (a dataclass's methods), `python -m` would end by SIGINT all the same
        eval("0")
        return INTERRUPTED
    except UserError as error:
        tell(error)
        return error.exit_code


def tell(error: UserError) -> None:
    """Each line of it on stderr, and its consequence behind the last."""
    lines = [f"error: {visible_line(line)}" for line in error.lines]
    if error.consequence:
        lines = [line if line.endswith((".", "?", "!")) else f"{line}." for line in lines]
        lines[-1] += f" {error.consequence}"
    print("\n".join(lines), file=sys.stderr)


def _read(argv: Sequence[str] | None) -> argparse.Namespace:
    """What was typed, and the `run` of its command. Exits with 2, and a usage line, on what cannot be read."""
    parser = argparse.ArgumentParser(
        prog="cpdrun",
        description="How many bits does this training run need?",
        epilog="Start with: cpdrun sweep exp=digits_bits, then cpdrun report",
    )
    parser.add_argument("--version", action=Version, nargs=0, help="say which cpdrun this is, and stop")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    for name in COMMANDS:
        command = import_module(f"cpdrun.commands.{name}")
        command.add(commands).set_defaults(run=command.run)
    if "_ARGCOMPLETE" in os.environ:
        import argcomplete

        argcomplete.autocomplete(parser)
    return with_words_after_options(parser, *parser.parse_known_args(argv))


def _end_as_by_ctrl_c(*names: str) -> None:
    """Until a launch handles these signals itself, they do what Ctrl-C does; one that nohup ignores stays ignored."""
    if threading.current_thread() is threading.main_thread():
        for number in (getattr(signal, name) for name in names if hasattr(signal, name)):
            if signal.getsignal(number) is signal.SIG_DFL:
                signal.signal(number, signal.default_int_handler)


if __name__ == "__main__":
    sys.exit(main())
