"""Translate a PTX kernel without loops into terms of an SMT solver: each stored word, as a function of the parameters.

The proofs are about the arithmetic in kernels/custom_fp/csrc. NVRTC compiles the header, and this module translates the
result, so the proofs hold for the instructions that a GPU executes. Only the instructions that the header's functions
need are supported; any other raises NotImplementedError with its name. Their meaning is that of NVIDIA's PTX ISA,
section 9.7 (shifts by 32 and more give 0 or the sign; comparisons of floats are false for NaN). The NaN of an
instruction can be any NaN: it is a new unknown word, so that no proof depends on the choice of a processor.
"""

import re
from dataclasses import dataclass, field
from functools import reduce

from bitwuzla import Kind, RoundingMode, Term, TermManager

_ENTRY = re.compile(r"\.visible \.entry (\w+)\((.*?)\)\s*\{(.*?)^\}", re.S | re.M)
_GUARDED = re.compile(r"(?:@(!?)(%p\d+) )?(\S+)\s*(.*)")
_BITS = {"u32": 32, "s32": 32, "b32": 32, "u64": 64, "s64": 64, "b64": 64, "f32": 32, "f64": 64, "pred": 1}
_SAME = {
    "add": Kind.BV_ADD, "sub": Kind.BV_SUB, "mul.lo": Kind.BV_MUL, "and": Kind.BV_AND, "or": Kind.BV_OR,
    "xor": Kind.BV_XOR,
}  # fmt: skip
_COMPARE = {
    "eq": Kind.EQUAL, "ne": Kind.DISTINCT,
    "lt.u": Kind.BV_ULT, "le.u": Kind.BV_ULE, "gt.u": Kind.BV_UGT, "ge.u": Kind.BV_UGE,
    "lt.s": Kind.BV_SLT, "le.s": Kind.BV_SLE, "gt.s": Kind.BV_SGT, "ge.s": Kind.BV_SGE,
}  # fmt: skip
_COMPARE_FLOATS = {
    "eq": Kind.FP_EQUAL,
    "lt": Kind.FP_LT,
    "le": Kind.FP_LEQ,
    "gt": Kind.FP_GT,
    "ge": Kind.FP_GEQ,
}
_FLOAT = {32: (8, 24), 64: (11, 53)}


@dataclass
class Kernels:
    """The kernels of a PTX text. `facts` is what is known of the unknown results of floating-point instructions."""

    ptx: str
    terms: TermManager
    facts: list[Term] = field(default_factory=list)

    def stored(self, name: str, arguments: list[Term]) -> dict[int, Term]:
        """Return the words that a kernel stores at the address in its last parameter, by offset in bytes."""
        entry = next((found for found in _ENTRY.finditer(self.ptx) if found[1] == name), None)
        if entry is None:
            raise KeyError(f"no kernel {name}")
        run = _Run(self, [f"{name}_param_{i}" for i in range(len(arguments))], arguments)
        run.go(entry[3])
        return run.stored


class _Run:
    """The instructions of a kernel in the order of the text, each under the condition that it is executed.

    Every branch leads forward, so all branches to a label are known when the label is reached.
    """

    def __init__(self, kernels: Kernels, names: list[str], arguments: list[Term]) -> None:
        self.kernels, self.t = kernels, kernels.terms
        self.parameters = dict(zip(names, arguments, strict=True))
        self.registers: dict[str, Term] = {}
        self.stored: dict[int, Term] = {}
        self.here, self.waiting = self.t.mk_true(), dict[str, list[Term]]()
        self.passed: set[str] = set()

    def go(self, body: str) -> None:
        for line in (line.split("//")[0].strip() for line in body.splitlines()):
            if line.endswith(":"):
                label = line[:-1]
                self.here = reduce(self.any_of, self.waiting.pop(label, []), self.here)
                self.passed.add(label)
            elif line and not line.startswith("."):
                self.step(line.rstrip(";"))
        if self.waiting:
            raise NotImplementedError(
                f"a branch to {', '.join(self.waiting)}, but the kernel has no such label"
            )

    def step(self, line: str) -> None:
        negated, guard, instruction, operands = _GUARDED.fullmatch(line).groups()
        if instruction in ("bra", "bra.uni"):
            self.branch(operands, self.truth(guard, bool(negated)) if guard else self.t.mk_true())
        elif guard:
            raise NotImplementedError(line)
        elif instruction == "ret":
            self.here = self.t.mk_false()
        elif instruction.startswith("st.global"):
            address, value = operands[1:].split("], ")
            offset = int(address.partition("+")[2] or 0)
            self.stored[offset] = self.merged(self.stored.get(offset), self.word(value, 32))
        elif instruction.startswith(("ld.param", "cvta")):
            target, source = operands.split(", ", 1)
            if (
                instruction.startswith("ld.param")
                and (known := self.parameters.get(source.strip("[]"))) is not None
            ):
                self.write(target, known)
        else:
            target, *sources = operands.split(", ")
            self.write(target, self.compute(instruction.split("."), [source.strip() for source in sources]))

    def branch(self, label: str, condition: Term) -> None:
        if label in self.passed:
            raise NotImplementedError(f"a loop, to {label}")
        self.waiting.setdefault(label, []).append(self.both(self.here, condition))
        self.here = self.both(self.here, self.t.mk_term(Kind.NOT, [condition]))

    # instructions

    def compute(self, words: list[str], sources: list[str]) -> Term:
        name, kind = words[0], words[-1]
        bits, make = _BITS[kind], self.t.mk_term
        if name == "setp":
            return self.compare(words[1], kind, *[self.word(s, bits) for s in sources])
        if name == "selp":
            return make(
                Kind.ITE, [self.truth(sources[2]), self.word(sources[0], bits), self.word(sources[1], bits)]
            )
        if kind == "pred":
            return self.logic(name, [self.truth(s) for s in sources])
        if kind in ("f32", "f64") and name in ("add", "sub", "mul", "fma", "neg", "abs"):
            return self.arithmetic(name, words, bits, [self.float(s, bits) for s in sources])
        if name == "cvt":
            return self.convert(words, sources[0])
        values = [self.word(s, bits) for s in sources]
        if name == "mov":
            return values[0]
        if name in ("not", "neg"):
            return make(Kind.BV_NOT if name == "not" else Kind.BV_NEG, values)
        if name in ("shl", "shr"):
            return self.shift(name, kind, bits, values[0], self.word(sources[1], 32))
        if name in ("min", "max"):
            below = make(_COMPARE[f"lt.{kind[0]}"], values)
            return make(Kind.ITE, [below, *(values if name == "min" else values[::-1])])
        if (same := _SAME.get(name) or _SAME.get(".".join(words[:2]))) is None:
            raise NotImplementedError(".".join(words))
        return make(same, values)

    def shift(self, name: str, kind: str, bits: int, value: Term, by: Term) -> Term:
        """Return a shifted word. SMT-LIB shifts like PTX. The amount always has 32 bits."""
        operator = Kind.BV_SHL if name == "shl" else Kind.BV_ASHR if kind[0] == "s" else Kind.BV_SHR
        by = self.t.mk_term(Kind.BV_ZERO_EXTEND, [by], [bits - 32]) if bits > 32 else by
        return self.t.mk_term(operator, [value, by])

    def compare(self, how: str, kind: str, a: Term, b: Term) -> Term:
        make = self.t.mk_term
        if kind[0] != "f":
            return make(_COMPARE[how if how in ("eq", "ne") else f"{how}.{kind[0]}"], [a, b])
        floats = [self.as_float(x, _BITS[kind]) for x in (a, b)]
        if how == "nan":
            return self.any_of(*[make(Kind.FP_IS_NAN, [x]) for x in floats])
        if how in ("neu", "leu", "ltu", "geu", "gtu"):  # or unordered: not the opposite
            opposite = {"neu": "eq", "leu": "gt", "ltu": "ge", "geu": "lt", "gtu": "le"}[how]
            return make(Kind.NOT, [make(_COMPARE_FLOATS[opposite], floats)])
        return make(_COMPARE_FLOATS[how], floats)

    def logic(self, name: str, values: list[Term]) -> Term:
        kinds = {"and": Kind.AND, "or": Kind.OR, "xor": Kind.XOR, "not": Kind.NOT}
        return values[0] if name == "mov" else self.t.mk_term(kinds[name], values)

    def arithmetic(self, name: str, words: list[str], bits: int, values: list[Term]) -> Term:
        if "ftz" in words or (name in ("add", "sub", "mul", "fma") and "rn" not in words):
            raise NotImplementedError(".".join(words))
        kinds = {
            "add": Kind.FP_ADD, "sub": Kind.FP_SUB, "mul": Kind.FP_MUL, "fma": Kind.FP_FMA, "neg": Kind.FP_NEG,
            "abs": Kind.FP_ABS,
        }  # fmt: skip
        mode = [] if name in ("neg", "abs") else [self.t.mk_rm_value(RoundingMode.RNE)]
        return self.bits_of(self.t.mk_term(kinds[name], mode + values), bits)

    def convert(self, words: list[str], source: str) -> Term:
        to, of = words[-2], words[-1]
        make, wide, narrow = self.t.mk_term, _BITS[to], _BITS[of]
        if to[0] in "us" and of[0] in "us":
            value = self.word(source, narrow)
            if wide <= narrow:
                return value if wide == narrow else make(Kind.BV_EXTRACT, [value], [wide - 1, 0])
            return make(
                Kind.BV_SIGN_EXTEND if of[0] == "s" else Kind.BV_ZERO_EXTEND, [value], [wide - narrow]
            )
        if to == "s32" and of == "f32" and words[1] == "rzi":  # saturates; NaN gives 0
            x, zero = self.float(source, 32), self.t.mk_rm_value(RoundingMode.RTZ)
            inside = make(Kind.FP_TO_SBV, [zero, x], [32])
            limit = self.as_float(self.t.mk_bv_value(self.t.mk_bv_sort(32), 0x4F000000), 32)
            lowest = make(Kind.FP_NEG, [limit])
            number = self.t.mk_bv_value(self.t.mk_bv_sort(32), 0x7FFFFFFF)
            found = make(Kind.ITE, [make(Kind.FP_GEQ, [x, limit]), number, inside])
            bottom = self.t.mk_bv_value(self.t.mk_bv_sort(32), 0x80000000)
            found = make(Kind.ITE, [make(Kind.FP_LEQ, [x, lowest]), bottom, found])
            none = self.t.mk_bv_value(self.t.mk_bv_sort(32), 0)
            return make(Kind.ITE, [make(Kind.FP_IS_NAN, [x]), none, found])
        if (to, of) == ("f64", "f32") or (to == "f32" and of == "s32" and words[1] == "rn"):
            nearest = self.t.mk_rm_value(RoundingMode.RNE)  # only the second conversion rounds
            kind = Kind.FP_TO_FP_FROM_FP if of == "f32" else Kind.FP_TO_FP_FROM_SBV
            value = self.float(source, 32) if of == "f32" else self.word(source, 32)
            return self.bits_of(make(kind, [nearest, value], list(_FLOAT[wide])), wide)
        raise NotImplementedError(".".join(words))

    # values

    def word(self, text: str, bits: int) -> Term:
        if text.startswith("%"):
            return self.registers[text]
        value = int(text[2:], 16) if text.startswith(("0f", "0d")) else int(text, 0)
        return self.t.mk_bv_value(self.t.mk_bv_sort(bits), value % 2**bits)

    def truth(self, text: str, negated: bool = False) -> Term:
        if not text.startswith("%"):
            return self.t.mk_false() if int(text) == 0 else self.t.mk_true()
        value = self.registers[text]
        return self.t.mk_term(Kind.NOT, [value]) if negated else value

    def float(self, text: str, bits: int) -> Term:
        return self.as_float(self.word(text, bits), bits)

    def as_float(self, word: Term, bits: int) -> Term:
        return self.t.mk_term(Kind.FP_TO_FP_FROM_BV, [word], list(_FLOAT[bits]))

    def bits_of(self, value: Term, bits: int) -> Term:
        fresh = self.t.mk_const(self.t.mk_bv_sort(bits))
        self.kernels.facts.append(self.t.mk_term(Kind.EQUAL, [self.as_float(fresh, bits), value]))
        return fresh

    def write(self, register: str, value: Term) -> None:
        self.registers[register] = self.merged(self.registers.get(register), value)

    def merged(self, before: Term | None, value: Term) -> Term:
        if before is None or self.here.is_true():
            return value
        return self.t.mk_term(Kind.ITE, [self.here, value, before])

    def both(self, a: Term, b: Term) -> Term:
        return b if a.is_true() else a if b.is_true() else self.t.mk_term(Kind.AND, [a, b])

    def any_of(self, a: Term, b: Term) -> Term:
        return b if a.is_false() else self.t.mk_term(Kind.OR, [a, b])
