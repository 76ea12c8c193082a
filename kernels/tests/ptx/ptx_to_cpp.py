"""Translate NVRTC's PTX to C++. Each kernel becomes a function that calls the functions of machine.h.

An instruction `add.rn.f32 a, b, c` becomes `a = add<f32>(b, c)`. Only moves, memory accesses, jumps and
operations of several threads together are translated differently. A register becomes a variable that holds
its bits.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_ENTRY = re.compile(r"\.visible \.entry (\w+)\((.*?)\)\s*(?:\.\w+[^{]*)?\{(.*?)^\}", re.S | re.M)
_PARAMETER = re.compile(r"\.param (?:\.align \d+ )?\.(\w+) \w+(?:\[(\d+)\])?")
_REGISTERS = re.compile(r"\.reg \.(\w+)\s+%(\w+)(?:<(\d+)>)?")
_ARRAY = re.compile(r"\.(local|shared) \.align (\d+) \.b8\s+(\w+)\[(\d+)\]")
_INSTRUCTION = re.compile(r"(?:@(!?)%(\w+)\s+)?([\w.:]+)\s*(.*)", re.S)
_BYTES = {"u8": 1, "u16": 2, "u32": 4, "s32": 4, "f32": 4, "b32": 4, "u64": 8, "s64": 8, "f64": 8, "b64": 8}
_HOW = {
    "lo",
    "hi",
    "wide",
    "rz",
    "rzi",
    "bfly",
    "idx",
    "down",
}  # words that become part of a function's name; `rn`, `sync` and `uni` do not
_KINDS = {*_BYTES, "s8", "b8", "s16", "b16", "f16x2", "pred"}
_SPECIAL = {"tid.x", "ntid.x", "ctaid.x", "ctaid.y", "nctaid.x"}


@dataclass(frozen=True)
class Parameter:
    kind: str  # u32, u64, f32, or b8: bytes of a structure
    size: int  # bytes


@dataclass(frozen=True)
class Kernel:
    name: str
    parameters: tuple[Parameter, ...]
    code: str  # the function, named kernel_NAME
    meets: bool  # has barriers or shuffles
    instructions: int  # number of instructions in the text


def kernels(ptx: str, names: set[str] | None = None) -> list[Kernel]:
    """Return the kernels with these names, or all kernels, in the order of the text."""
    return [
        _kernel(name, parameters, body, ptx.count("\n", 0, found.start(3)) + 1)
        for found in _ENTRY.finditer(ptx)
        for name, parameters, body in [found.groups()]
        if names is None or name in names
    ]


def program(these: list[Kernel]) -> str:
    """Return a source file that includes blocks.h and contains the kernels."""
    entries = ",".join(f'{{"{k.name}", kernel_{k.name}, {str(k.meets).lower()}}}' for k in these)
    find = (
        "static const Entry* entry_of(const char* name) {\n"
        f"    static const Entry all[] = {{{entries}}};\n"
        "    for (const Entry& entry : all)\n        if (!std::strcmp(entry.name, name)) return &entry;\n"
        "    return nullptr;\n}\n"
    )
    return '#include "blocks.h"\n\n' + "\n".join(k.code for k in these) + find


def _kernel(name: str, parameters: str, body: str, first_line: int) -> Kernel:
    found = tuple(
        Parameter(kind, int(count or 1) * (1 if count else _BYTES[kind]))
        for kind, count in _PARAMETER.findall(parameters)
    )
    writer = _Writer(name, found)
    for number, line in enumerate(body.split("\n"), first_line):
        writer.line(line.split("//")[0].strip(), number)
    return Kernel(name, found, writer.function(), writer.meets, writer.instructions)


class _Writer:
    """Collects the declarations and statements of one kernel, and where its shared arrays begin."""

    def __init__(self, name: str, parameters: tuple[Parameter, ...]) -> None:
        self.name, self.parameters = name, parameters
        self.declared: list[str] = []
        self.written: list[str] = []
        self.run: list[str] = []  # statements that run one after the other
        self.doubles, self.instructions = 0, 0  # float64 ones in `run`; all of the kernel
        self.shared, self.frame, self.meets = 0, 0, False

    def line(self, text: str, number: int) -> None:
        text = text.removeprefix("{").removesuffix("}").strip()
        if registers := _REGISTERS.match(text):
            kind, name, count = registers.groups()
            names = [f"_{name}{i}" for i in range(int(count))] if count else [f"_{name}"]
            kind = {"pred": "pred"}.get(kind, "u" + kind[1:])
            new = [f"    {kind} {name} = 0;" for name in names]
            self.declared += [one for one in new if one not in self.declared]
            text = text.partition(";")[2].strip() if "tmp" in text else ""
        if array := _ARRAY.match(text):
            self.array(*array.groups())
        elif text.endswith(":"):
            self.close()
            self.written.append(f"  {_label(text[:-1])}:;")
        elif text and not text.startswith("."):
            self.instruction(text.rstrip(";"), number)

    def array(self, space: str, alignment: str, name: str, size: str) -> None:
        if space == "local":
            self.frame = int(size)
            self.declared.append(f"    alignas({alignment}) u8 frame[{size}];")
            self.declared.append(f"    const u64 symbol_{name} = reinterpret_cast<u64>(frame);")
        else:
            self.shared += -self.shared % int(alignment)
            self.declared.append(f"    constexpr u64 symbol_{_word(name)} = {self.shared};")
            self.shared += int(size)

    def instruction(self, text: str, number: int) -> None:
        negated, guard, operation, rest = _INSTRUCTION.fullmatch(text).groups()
        words, operands = operation.split("."), _operands(rest)
        statement = self.statement(words, operands, number)
        self.run.append(f"if ({negated}_{guard}) {{ {statement} }}" if guard else statement)
        self.doubles += "f64" in words and words[0] not in ("mov", "ld", "st")
        self.instructions += 1
        if words[0] in ("bra", "ret", "exit", "bar", "shfl"):
            self.close()

    def statement(self, words: list[str], operands: list[str], number: int) -> str:
        name, kind = words[0], words[-1]
        if name == "bra":
            return f"goto {_label(operands[0])};"
        if name in ("ret", "exit"):
            return "return;"
        if name in ("ld", "st"):
            return self.access(words, operands, number)
        if name == "bar":
            self.meets = True
            return f"barrier({number});"
        if name == "shfl":
            self.meets = True
            (to, inside), values = operands[0].split("|"), ", ".join(map(self.value, operands[1:]))
            call = f"shfl_{words[2]}(thread, {self.value(inside)}, {values}, {number})"
            return f"{self.value(to)} = {call};"
        if name == "atom":
            to, address, value = operands
            call = f"atom_{words[2]}<{kind}>({self.own('global')}, {self.address(address, 'global')}, "
            return f"{self.value(to)} = {call}{self.value(value)}, {number});"
        if name == "mov":
            return self.move(*operands)
        if name == "cvta":
            shift = "reinterpret_cast<u64>(thread.shared)" if "shared" in words else "0"
            assert "to" not in words or "shared" not in words
            return f"{self.value(operands[0])} = {self.value(operands[1])} + {shift};"
        return self.call(words, operands)

    def call(self, words: list[str], operands: list[str]) -> str:
        """Call the function of machine.h that is named after the instruction and its words in _HOW.

        For setp, the comparison is also part of the name.
        """
        to, *values = map(self.value, operands)
        kinds = [word for word in words[1:] if word in _KINDS]
        names = [w for w in words[1:] if w in _HOW or (words[0] == "setp" and w not in kinds)]
        if left := [word for word in words[1:] if word not in (*kinds, *names, "rn")]:
            raise NotImplementedError(f"{'.'.join(words)}: {left}")
        function = "_".join([words[0], *names])
        function += "_" if function in ("and", "or", "xor", "not") else ""
        return f"{to} = {function}<{', '.join(kinds)}>({', '.join(values)});"

    def move(self, to: str, source: str) -> str:
        if to.startswith("{"):
            low, high = _operands(to[1:-1])
            whole = self.value(source)
            return f"{self.value(low)} = u32({whole}); {self.value(high)} = u32({whole} >> 32);"
        if source.startswith("{"):
            low, high = map(self.value, _operands(source[1:-1]))
            return f"{self.value(to)} = u64({low}) | u64({high}) << 32;"
        return f"{self.value(to)} = {self.value(source)};"

    def access(self, words: list[str], operands: list[str], number: int) -> str:
        space = next((w for w in words if w in ("global", "local", "shared", "param")), "generic")
        where, registers = operands if words[0] == "st" else operands[::-1]
        several = _operands(registers[1:-1]) if registers.startswith("{") else [registers]
        values = ", ".join(map(self.value, several))
        call = {"ld": "load", "st": "store"}[words[0]]
        own = self.own(space, where)
        return f"{call}<{words[-1]}>({space}, {own}, {self.address(where, space)}, {number}, {values});"

    def own(self, space: str, where: str = "") -> str:
        """Return the range of memory that belongs to a state space.

        Besides global memory, a generic address may reach the frame if the kernel has one, and shared memory
        otherwise.
        """
        if space == "param":
            index = re.search(r"_param_(\d+)", where)  # otherwise, a place in the structure passed by value
            structures = [place for place, one in enumerate(self.parameters) if one.kind == "b8"]
            place = int(index[1]) if index else structures[0]
            start, size = f"thread.arguments[{place}]", self.parameters[place].size
        elif space == "shared" or (space == "generic" and not self.frame):
            start, size = "reinterpret_cast<u64>(thread.shared)", "SHARED"
        elif self.frame:
            start, size = "reinterpret_cast<u64>(frame)", self.frame
        else:
            start, size = "u64(0)", 0
        return f"Range{{{start}, {start} + {size}}}"

    def address(self, text: str, space: str) -> str:
        base, plus, offset = text[1:-1].partition("+")
        start = self.value(base)
        if space == "shared":
            start = f"reinterpret_cast<u64>(thread.shared) + {start}"
        return f"{start} + u64({offset}ll)" if plus else start

    def value(self, text: str) -> str:
        text = text.strip()
        if parameter := re.fullmatch(rf"{self.name}_param_(\d+)", text):
            return f"thread.arguments[{parameter[1]}]"
        if text[1:] in _SPECIAL:
            return "thread." + text[1:].replace(".", "_")
        if text.startswith("%"):
            return f"_{text[1:]}"
        if text[:2].lower() in ("0f", "0d") and re.fullmatch(r"[0-9A-F]+", text[2:]):
            return f"0x{text[2:]}ull"
        if re.fullmatch(r"-?\d+|0x[0-9A-Fa-f]+", text):
            return f"{text}ll"
        return f"symbol_{_word(text)}"

    def close(self) -> None:
        if self.run:
            counted = f"counts.instructions += {len(self.run)}, counts.doubles += {self.doubles};"
            self.written += [f"    {counted}", *(f"    {s}" for s in self.run)]
        self.run, self.doubles = [], 0

    def function(self) -> str:
        self.close()
        text = [*self.declared, *self.written, "}"]
        body = "\n".join(text).replace("SHARED", str(self.shared))
        return f"static void kernel_{self.name}(const Thread& thread) {{\n{body}\n"


def _operands(text: str) -> list[str]:
    """Split operands at commas that are not inside braces or brackets."""
    return [part.strip() for part in re.split(r",(?![^{\[]*[}\]])", text)] if text else []


def _label(text: str) -> str:
    return "label_" + _word(text)


def _word(text: str) -> str:
    return re.sub(r"\W", "_", text)
