"""Words of bits of an SMT solver, with Python's operators.

Arithmetic is modulo 2**width, shifts by the width or more give 0, and comparisons are those of two's complement. A
Python integer is converted to a word of the same width.
"""

from __future__ import annotations

from bitwuzla import Kind, Term, TermManager

TERMS = TermManager()
Truth = Term


class Word:
    def __init__(self, term: Term) -> None:
        self.term = term
        self.width = term.sort().bv_size()

    @classmethod
    def unknown(cls, width: int, name: str) -> Word:
        return cls(TERMS.mk_const(TERMS.mk_bv_sort(width), name))

    @classmethod
    def number(cls, width: int, value: int) -> Word:
        return cls(TERMS.mk_bv_value(TERMS.mk_bv_sort(width), value % 2**width))

    def like(self, other: Word | int) -> Word:
        return other if isinstance(other, Word) else Word.number(self.width, other)

    def __add__(self, other: Word | int) -> Word:
        return self._with(Kind.BV_ADD, other)

    def __sub__(self, other: Word | int) -> Word:
        return self._with(Kind.BV_SUB, other)

    def __and__(self, other: Word | int) -> Word:
        return self._with(Kind.BV_AND, other)

    def __or__(self, other: Word | int) -> Word:
        return self._with(Kind.BV_OR, other)

    def __lshift__(self, other: Word | int) -> Word:
        return self._with(Kind.BV_SHL, other)

    def __rshift__(self, other: Word | int) -> Word:
        return self._with(Kind.BV_SHR, other)

    def __lt__(self, other: Word | int) -> Truth:
        return self._is(Kind.BV_SLT, other)

    def __le__(self, other: Word | int) -> Truth:
        return self._is(Kind.BV_SLE, other)

    def __gt__(self, other: Word | int) -> Truth:
        return self._is(Kind.BV_SGT, other)

    def __ge__(self, other: Word | int) -> Truth:
        return self._is(Kind.BV_SGE, other)

    def equals(self, other: Word | int) -> Truth:
        return self._is(Kind.EQUAL, other)

    def differs(self, other: Word | int) -> Truth:
        return self._is(Kind.DISTINCT, other)

    def bit(self, index: int | Word) -> Truth:
        return ((self >> index) & 1).equals(1)

    def widened(self, width: int) -> Word:
        return Word(TERMS.mk_term(Kind.BV_ZERO_EXTEND, [self.term], [width - self.width]))

    def low(self, width: int) -> Word:
        return Word(TERMS.mk_term(Kind.BV_EXTRACT, [self.term], [width - 1, 0]))

    def highest_one(self) -> Word:
        """Return the index of the highest set bit, or 0 for zero."""
        rest, found, step = self, self.like(0), self.width // 2
        while step:
            upper = rest >> step
            is_there = upper.differs(0)
            rest, found = where(is_there, upper, rest), where(is_there, found + step, found)
            step //= 2
        return found

    def _with(self, kind: Kind, other: Word | int) -> Word:
        return Word(TERMS.mk_term(kind, [self.term, self.like(other).term]))

    def _is(self, kind: Kind, other: Word | int) -> Truth:
        return TERMS.mk_term(kind, [self.term, self.like(other).term])


def where(condition: Truth, yes: Word | int, no: Word | int) -> Word:
    """Return `yes` or `no`. Two Python integers become words of 32 bits."""
    wide = next((each for each in (yes, no) if isinstance(each, Word)), Word.number(32, 0))
    return Word(TERMS.mk_term(Kind.ITE, [condition, wide.like(yes).term, wide.like(no).term]))


def all_of(*conditions: Truth) -> Truth:
    return TERMS.mk_term(Kind.AND, [TERMS.mk_true(), TERMS.mk_true(), *conditions])


def any_of(*conditions: Truth) -> Truth:
    return TERMS.mk_term(Kind.OR, [TERMS.mk_false(), TERMS.mk_false(), *conditions])


def no(condition: Truth) -> Truth:
    return TERMS.mk_term(Kind.NOT, [condition])
