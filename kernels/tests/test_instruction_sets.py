"""The environment variable CUSTOM_FP_ISA selects the instruction set of the CPU kernels.

test_backends.py compares the results of all instruction sets.
"""

import os
import subprocess
import sys


def run_python(isa: str, code: str) -> subprocess.CompletedProcess:
    environ = os.environ | {"CUSTOM_FP_ISA": isa}
    return subprocess.run(
        [sys.executable, "-c", code], env=environ, capture_output=True, text=True, check=False
    )


def test_the_variable_restricts_the_instruction_sets():
    code = "from custom_fp import _native, backends; print(_native.isas(), _native.isa(), backends.instruction_set())"
    assert run_python("baseline", code).stdout == "['baseline'] baseline baseline\n"


def test_an_unknown_instruction_set_is_an_error():
    """The reference implementation does not silently run instead."""
    ended = run_python("mmx", "import custom_fp; print(custom_fp.backend())")
    assert ended.returncode == 1 and ended.stdout == ""
    message = "ValueError: CUSTOM_FP_ISA is 'mmx'; this processor supports baseline"
    assert ended.stderr.splitlines()[-1].startswith(message)
