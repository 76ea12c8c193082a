"""Evaluate a netlist of Yosys's gates for many inputs at once. Each word of a numpy array contains 64 inputs.

The checks therefore apply to the gates after synthesis, which are counted, and not only to the Verilog.
"""

import json
from pathlib import Path

import numpy as np

ONES = np.uint64(0xFFFFFFFFFFFFFFFF)
GATES = {
    "$_NOT_": lambda a: ~a,
    "$_BUF_": lambda a: a,
    "$_AND_": lambda a, b: a & b,
    "$_NAND_": lambda a, b: ~(a & b),
    "$_OR_": lambda a, b: a | b,
    "$_NOR_": lambda a, b: ~(a | b),
    "$_XOR_": lambda a, b: a ^ b,
    "$_XNOR_": lambda a, b: ~(a ^ b),
    "$_ANDNOT_": lambda a, b: a & ~b,
    "$_ORNOT_": lambda a, b: a | ~b,
    "$_MUX_": lambda a, b, s: a ^ ((a ^ b) & s),
    "$_NMUX_": lambda a, b, s: ~(a ^ ((a ^ b) & s)),
    "$_AOI3_": lambda a, b, c: ~((a & b) | c),
    "$_OAI3_": lambda a, b, c: ~((a | b) & c),
    "$_AOI4_": lambda a, b, c, d: ~((a & b) | (c & d)),
    "$_OAI4_": lambda a, b, c, d: ~((a | b) & (c | d)),
}


class Netlist:
    """The single module in a file that Yosys's `write_json` wrote. Gates are sorted so that they can be evaluated."""

    def __init__(self, file: Path):
        (module,) = json.loads(file.read_text(encoding="utf-8"))["modules"].values()
        self.ports = {name: port["bits"] for name, port in module["ports"].items()}
        self.output = next(n for n, port in module["ports"].items() if port["direction"] == "output")
        self.gates = _in_order(
            module["cells"].values(), [b for n, p in self.ports.items() if n != self.output for b in p]
        )
        self.last_use = {}
        for place, (_, inputs, _) in enumerate(self.gates):
            for bit in inputs:
                self.last_use[bit] = place

    def __call__(self, **codes: np.ndarray) -> np.ndarray:
        """Return the codes of the output, shape (n,) and uint64, from the codes of each input, shape (n,)."""
        n = len(next(iter(codes.values())))
        zero = np.zeros(-(-n // 64), np.uint64)
        wires = {"0": zero, "1": ~zero, "x": zero}
        for name, values in codes.items():
            wires |= dict(zip(self.ports[name], _slices(values, len(self.ports[name])), strict=True))
        kept = set(self.ports[self.output])
        for place, (kind, inputs, output) in enumerate(self.gates):
            wires[output] = GATES[kind](*(wires[bit] for bit in inputs))
            for bit in inputs:
                if self.last_use[bit] == place and bit not in kept and not isinstance(bit, str):
                    wires.pop(bit, None)
        return _joined([wires[bit] for bit in self.ports[self.output]], n)


def _in_order(cells: list[dict], known: list) -> list[tuple[str, list, int]]:
    waiting: dict = {}
    gates, done, ready = [], {*known, "0", "1", "x"}, []
    for cell in cells:
        pins = cell["connections"]
        inputs = [pins[name][0] for name in ("A", "B", "C", "D", "S") if name in pins]
        gate = (cell["type"], inputs, pins["Y"][0])
        missing = {bit for bit in inputs if bit not in done}
        entry = [len(missing), gate]
        if not missing:
            ready.append(gate)
        for bit in missing:
            waiting.setdefault(bit, []).append(entry)
    while ready:
        gates.append(gate := ready.pop())
        for entry in waiting.pop(gate[2], ()):
            entry[0] -= 1
            if entry[0] == 0:
                ready.append(entry[1])
    return gates


def _slices(values: np.ndarray, bits: int) -> list[np.ndarray]:
    """Return, for each bit k, an array of words. Each word contains bit k of 64 values."""
    found = []
    for k in range(bits):
        packed = np.packbits(((values >> k) & 1).astype(np.uint8), bitorder="little")
        found.append(np.pad(packed, (0, -len(packed) % 8)).view(np.uint64))
    return found


def _joined(slices: list[np.ndarray], n: int) -> np.ndarray:
    codes = np.zeros(n, np.uint64)
    for k, words in enumerate(slices):
        codes |= np.unpackbits(words.view(np.uint8), count=n, bitorder="little").astype(
            np.uint64
        ) << np.uint64(k)
    return codes
