"""Generate the Verilog of a multiplier, an adder and a multiply-accumulate unit without state. Yosys counts the gates.

    multiply   q = Q(a b)            mac   r = Q(c + Q(a b))            add   r = Q(c + d)

Q rounds to the format of the accumulator as custom_fp.quantize does: to nearest even, with subnormals and -0. Values
past the largest value become infinity, and inf and NaN propagate (IEEE 754-2019). If every product of the operands'
formats is a value of the accumulator, the first Q needs no rounding and is omitted. This is what custom_fp.matmul
computes with an accumulator: it rounds the product and then the sum. A fused unit, which rounds once, is another unit.

Formats without a -0 (fnuz) or a sign (ue5m3) raise ValueError. Tables and other roundings are not supported.

The design is that of textbooks (Ercegovac and Lang, Digital Arithmetic, 2004, chapter 8): significands have their
hidden bit, and subnormals are normalized by counting leading zeros. The smaller operand of a sum is shifted to the
larger one with guard, round and sticky bits. After one carry-propagating addition, the result is normalized, and
rounded by an increment that may carry into the exponent. There is no pipeline, no register, and no second path for near
operands.

Symbols: e, m exponent and mantissa bits of an operand; E, M those of the accumulator, K = M + 1; f field of an
exponent.
"""

from custom_fp.formats.scalar import Format


def significands(bits_a: int, bits_b: int) -> str:
    """Return module `unit`: r = a b, for unsigned integers."""
    return _module([("a", bits_a, ""), ("b", bits_b, "")], ("r", bits_a + bits_b, ""), ["assign r = a * b;"])


def integer_multiply(bits_a: int, bits_b: int) -> str:
    """Return module `unit`: r = a b in two's complement."""
    lines = [*_signed_product(bits_a, bits_b), "assign r = p;"]
    return _module([("a", bits_a, ""), ("b", bits_b, "")], ("r", bits_a + bits_b, ""), lines)


def integer_mac(bits_a: int, bits_b: int, accumulator_bits: int) -> str:
    """Return module `unit`: r = c + a b in two's complement, modulo 2^accumulator_bits."""
    inputs = [("a", bits_a, ""), ("b", bits_b, ""), ("c", accumulator_bits, "")]
    extended = f"{{{{{accumulator_bits - bits_a - bits_b}{{p[{bits_a + bits_b - 1}]}}}}, p}}"
    lines = [*_signed_product(bits_a, bits_b), f"assign r = c + {extended};"]
    return _module(inputs, ("r", accumulator_bits, ""), lines)


def integer_add(bits: int) -> str:
    """Return module `unit`: r = c + d modulo 2^bits."""
    return _module([("c", bits, ""), ("d", bits, "")], ("r", bits, ""), ["assign r = c + d;"])


def multiply(a: Format, b: Format, accumulator: Format) -> str:
    """Return module `unit`: from the codes a and b to the code r of Q(a b)."""
    _refuse_others(a, b, accumulator)
    lines = [*_product("a", a, "b", b, accumulator), "assign r = q;"]
    return _module([("a", a.bits, ""), ("b", b.bits, "")], ("r", accumulator.bits, ""), lines)


def add(accumulator: Format) -> str:
    """Return module `unit`: from the codes c and d to the code r of Q(c + d)."""
    _refuse_others(accumulator)
    size = accumulator.bits
    return _module([("c", size, ""), ("d", size, "")], ("r", size, ""), _sum("c", "d", accumulator))


def mac(a: Format, b: Format, accumulator: Format) -> str:
    """Return module `unit`: from the codes a, b and c to the code r of Q(c + Q(a b))."""
    _refuse_others(a, b, accumulator)
    lines = [*_product("a", a, "b", b, accumulator), *_sum("c", "q", accumulator)]
    inputs = [("a", a.bits, ""), ("b", b.bits, ""), ("c", accumulator.bits, "")]
    return _module(inputs, ("r", accumulator.bits, ""), lines)


def is_exact(a: Format, b: Format, accumulator: Format) -> bool:
    """Return whether every product of finite values is a finite value of the accumulator."""
    quantum = a.emin - a.mantissa_bits + b.emin - b.mantissa_bits
    fits = a.mantissa_bits + b.mantissa_bits + 2 <= accumulator.mantissa_bits + 1
    return (
        fits and quantum >= accumulator.emin - accumulator.mantissa_bits and a.max * b.max <= accumulator.max
    )


def _refuse_others(*formats: object) -> None:
    for fmt in formats:
        is_binary = isinstance(fmt, Format) and fmt.exponent_bits is not None
        if not (is_binary and fmt.is_signed and fmt.has_negative_zero):
            raise ValueError(f"{fmt}: only formats with a sign and a -0 have units, such as e4m3 or e4m3fn")


def _module(inputs: list[tuple[str, int, str]], output: tuple[str, int, str], lines: list[str]) -> str:
    ports = [f"input {kind}[{size - 1}:0] {name}" for name, size, kind in inputs]
    name, size, kind = output
    head = f"module unit({', '.join([*ports, f'output {kind}[{size - 1}:0] {name}'])});"
    return "\n".join([head, *(f"  {line}" for line in lines), "endmodule", ""])


def _signed_product(bits_a: int, bits_b: int) -> list[str]:
    """Return the lines of wire p, a b in two's complement.

    They follow Baugh and Wooley (IEEE Transactions on Computers C-22, 1973): partial products with inverted signs, and
    ones. `keep` prevents Yosys from adding the accumulator among the partial products, each of which it would extend to
    the accumulator's width.
    """
    size = bits_a + bits_b
    rows = []
    for i in range(bits_b):
        last = i == bits_b - 1
        rest, sign = f"(a[{bits_a - 2}:0] & {{{bits_a - 1}{{b[{i}]}}}})", f"(a[{bits_a - 1}] & b[{i}])"
        bits = f"{{{sign}, ~{rest}}}" if last else f"{{~{sign}, {rest}}}"
        rows.append(f"{{{size - bits_a - i}'b0, {bits}{f', {i}' + chr(39) + 'b0' if i else ''}}}")
    ones = (1 << (bits_a - 1)) + (1 << (bits_b - 1)) + (1 << (size - 1))
    return [f"(* keep *) wire [{size - 1}:0] p = {' + '.join(rows)} + {size}'d{ones};"]


def _parts(x: str, fmt: Format) -> list[str]:
    """Return the parts of code x: sign, f (1 for subnormals), significand with its hidden bit, inf, nan."""
    e, m = fmt.exponent_bits, fmt.mantissa_bits
    field, mantissa = f"{x}[{m + e - 1}:{m}]", f"{x}[{m - 1}:0]"
    upper = f"{x}[{m + e - 1}:{m + 1}], " if e > 1 else ""
    some = f"|{mantissa}" if m else "1'b0"
    if fmt.has_inf:
        inf, nan = f"&{field} & ~({some})", f"&{field} & ({some})"
    else:
        inf, nan = "1'b0", f"&{x}[{m + e - 1}:0]" if fmt.has_nan else "1'b0"
    return [
        f"wire {x}_s = {x}[{m + e}], {x}_n = |{field}, {x}_inf = {inf}, {x}_nan = {nan};",
        f"wire [{e - 1}:0] {x}_f = {{{upper}{x}[{m}] | ~{x}_n}};",
        f"wire [{m}:0] {x}_m = {{{x}_n{f', {mantissa}' if m else ''}}};",
    ]


def _product(a: str, fa: Format, b: str, fb: Format, to: Format) -> list[str]:
    """Return the lines of wire q, the code of Q(a b)."""
    E, M = to.exponent_bits, to.mantissa_bits
    W = fa.mantissa_bits + fb.mantissa_bits + 2
    # If the top bit of the product is set, its field in the accumulator is f_a + f_b + offset.
    offset = 1 - fa.bias - fb.bias + to.bias
    most = (1 << fa.exponent_bits) + (1 << fb.exponent_bits) + offset
    least = 2 + offset - (W - 1)
    X = max(abs(most), abs(least), 1 << E).bit_length() + 1  # bits of a field in two's complement
    lines = [*_parts(a, fa), *_parts(b, fb)]
    lines += [f"wire y_s = {a}_s ^ {b}_s;", f"wire [{W - 1}:0] p_m = {a}_m * {b}_m;"]
    lines += _leading_zeros("p_z", "p_m", W)
    lines += [f"wire [{W - 1}:0] p_l = p_m << p_z;"]
    lines += [f"wire signed [{X - 1}:0] p_x = $signed({{1'b0, {a}_f}}) + $signed({{1'b0, {b}_f}})"]
    lines[-1] += f" + ({offset}) - $signed({{1'b0, p_z}});"
    size = max(W, M + 1) if is_exact(fa, fb, to) else M + 3
    lines.append(f"wire [{size - 1}:0] p_k = {_cut('p_l', W, size)};")
    if least < 1:  # some products are subnormal in the accumulator
        right = (1 << (M + 3).bit_length()) - 1
        S = right.bit_length()
        lines += ["wire p_d = p_x < 1;", f"wire signed [{X - 1}:0] p_u = 1 - p_x;"]
        wide = f"(p_u > {right} ? {S}'d{right} : p_u[{S - 1}:0])" if X > S else "p_u"
        lines += [f"wire [{S - 1}:0] p_r = p_d ? {wide} : {S}'d0;"]
        lines += _shift_right("p_j", "p_k", size, "p_r", S, jam=not is_exact(fa, fb, to))
    else:
        lines += ["wire p_d = 1'b0;", f"wire [{size - 1}:0] p_j = p_k;"]
    field = f"(p_d ? {E}'d0 : p_x[{E - 1}:0])"
    mantissa = f", p_j[{size - 2}:{size - 1 - M}]" if M else ""
    inc = "1'b0" if is_exact(fa, fb, to) else _increment("p_j", size, M)
    top = (1 << E) - 1
    over = f"p_x >= {top}" if most >= top else "1'b0"
    lines += [f"wire [{E + M - 1}:0] p_c = {{{field}{mantissa}}} + {inc};"]
    zero, inf = f"{E + M}'d0", f"{{{{{E}{{1'b1}}}}, {{{M}{{1'b0}}}}}}" if M else f"{{{E}{{1'b1}}}}"
    lines += [
        f"wire y_z = ~|{a}_m | ~|{b}_m;",
        f"wire y_nan = {a}_nan | {b}_nan | ({a}_inf & ~|{b}_m) | ({b}_inf & ~|{a}_m);",
        f"wire y_inf = {a}_inf | {b}_inf | (~y_z & ({over}));",
        f"wire [{E + M - 1}:0] y_c = y_nan ? {_nan(to)} : y_inf ? {inf} : y_z ? {zero} : p_c;",
        f"wire [{E + M}:0] q = {{y_s, y_c}};",
    ]
    return lines


def _sum(c: str, d: str, fmt: Format) -> list[str]:
    """Return the lines of r, the code of Q(c + d)."""
    E, M = fmt.exponent_bits, fmt.mantissa_bits
    K, size, top = M + 1, M + 5, (1 << E) - 1  # size: carry, K bits, guard, round, sticky
    S = (K + 3).bit_length()
    bits = E + M
    shift = f"(s_d > {(1 << S) - 1} ? {S}'d{(1 << S) - 1} : s_d[{S - 1}:0])" if E > S else "s_d"
    lines = [
        *_parts(c, fmt),
        *_parts(d, fmt),
        f"wire s_w = {c}[{bits - 1}:0] < {d}[{bits - 1}:0];",  # the first is the larger one
        f"wire [{E - 1}:0] s_f = s_w ? {d}_f : {c}_f, t_f = s_w ? {c}_f : {d}_f, s_d = s_f - t_f;",
        f"wire [{K - 1}:0] s_m = s_w ? {d}_m : {c}_m, t_m = s_w ? {c}_m : {d}_m;",
        f"wire s_s = s_w ? {d}_s : {c}_s, s_t = {c}_s ^ {d}_s;",
        f"wire [{K + 2}:0] t_e = {{t_m, 3'b0}};",
        f"wire [{S - 1}:0] t_r = {shift};",
        *_shift_right("t_j", "t_e", K + 3, "t_r", S, jam=True),
        f"wire [{size - 1}:0] s_a = {{1'b0, s_m, 3'b0}} + ({{1'b0, t_j}} ^ {{{size}{{s_t}}}}) + s_t;",
        # Normalize. After a carry, shift right by one bit. Otherwise, shift left, but stop if the result is subnormal.
        f"wire [{size - 2}:0] s_b = s_a[{size - 2}:0];",
        *_leading_zeros("s_z", "s_b", size - 1),
        f"wire [{E - 1}:0] s_y = s_f - 1;",
    ]
    Z = (size - 1).bit_length()
    width = max(E, Z)
    lines += [
        f"wire s_u = {_wide('s_z', Z, width)} > {_wide('s_y', E, width)};",
        f"wire [{Z - 1}:0] s_l = s_u ? {_fit('s_y', E, Z)} : s_z;",
        f"wire [{size - 2}:0] s_n = s_a[{size - 1}] ? {{s_a[{size - 1}:2], s_a[1] | s_a[0]}} : s_b << s_l;",
        f"wire [{E}:0] s_x = s_a[{size - 1}] ? {{1'b0, s_f}} + 1"
        f" : s_n[{size - 2}] ? {{1'b0, s_f}} - {_fit('s_l', Z, E)} : 0;",
    ]
    mantissa = f", s_n[{size - 3}:{size - 2 - M}]" if M else ""
    inf = f"{{{{{E}{{1'b1}}}}, {{{M}{{1'b0}}}}}}" if M else f"{{{E}{{1'b1}}}}"
    lines += [
        f"wire [{bits}:0] s_c = {{s_x{mantissa}}} + {_increment('s_n', size - 1, M)};",
        f"wire s_nan = {c}_nan | {d}_nan | ({c}_inf & {d}_inf & s_t);",
        f"wire s_inf = {c}_inf | {d}_inf | (s_c[{bits}:{M}] >= {top});",
        "wire s_0 = ~|s_a;",
        f"wire r_s = s_0 ? {c}_s & {d}_s : s_s;",
        f"assign r = s_nan ? {{1'b0, {_nan(fmt)}}} : s_inf ? {{s_s, {inf}}} : {{r_s, s_c[{bits - 1}:0]}};",
    ]
    return lines


def _cut(x: str, size: int, to: int) -> str:
    """Return the first bits of x, followed by zeros or by one sticky bit for the rest."""
    if size <= to:
        return f"{{{x}, {to - size}'b0}}" if to > size else x
    return f"{{{x}[{size - 1}:{size - to + 1}], |{x}[{size - to}:0]}}"


def _increment(x: str, size: int, M: int) -> str:
    """Return the bit that is 1 if x is rounded up to its top K bits: ties to even, or away from zero if M = 0."""
    guard, rest = f"{x}[{size - 2 - M}]", f"|{x}[{size - 3 - M}:0]"
    return f"({guard} & ({rest} | {x}[{size - 1 - M}]))" if M else guard


def _nan(fmt: Format) -> str:
    if not fmt.has_nan:  # Infinity is then used instead of NaN.
        return f"{{{fmt.exponent_bits + fmt.mantissa_bits}{{1'b1}}}}"
    return f"{fmt.exponent_bits + fmt.mantissa_bits}'d{fmt.nan_code}"


def _leading_zeros(name: str, x: str, size: int) -> list[str]:
    """Return the lines of wire `name`, the number of leading zeros of x. If x is 0, the number is arbitrary.

    The bits are halved repeatedly. In each step, one bit of the count is whether the upper half is 0.
    """
    Z = (size - 1).bit_length()
    lines, bits = [f"wire [{(1 << Z) - 1}:0] {name}_{Z} = {_followed(x, (1 << Z) - size)};"], []
    for k in reversed(range(Z)):
        half, source = 1 << k, f"{name}_{k + 1}"
        upper, lower = f"{source}[{2 * half - 1}:{half}]", f"{source}[{half - 1}:0]"
        lines.append(f"wire {name}b{k} = ~|{upper};")
        lines.append(f"wire [{half - 1}:0] {name}_{k} = {name}b{k} ? {lower} : {upper};")
        bits.append(f"{name}b{k}")
    return [*lines, f"wire [{Z - 1}:0] {name} = {{{', '.join(bits)}}};"]


def _followed(x: str, ones: int) -> str:
    return f"{{{x}, {{{ones}{{1'b1}}}}}}" if ones else x


def _shift_right(name: str, x: str, size: int, by: str, bits: int, jam: bool) -> list[str]:
    """Return the lines of wire `name`, x shifted right. With `jam`, its last bit includes the discarded bits."""
    lines, last = [], x
    for k in range(bits):
        step, here = 1 << k, f"{name}_{k}"
        kept = max(size - step - jam, 0)  # bits that are only moved
        parts = [f"{size - kept - jam}'b0"] if size > kept + jam else []
        parts += [f"{last}[{size - 1}:{step + jam}]"] if kept else []
        parts += [f"|{last}[{min(step, size - 1)}:0]"] if jam else []
        lines.append(f"wire [{size - 1}:0] {here} = {by}[{k}] ? {{{', '.join(parts)}}} : {last};")
        last = here
    return [*lines, f"wire [{size - 1}:0] {name} = {last};"]


def _wide(x: str, size: int, to: int) -> str:
    return f"{{{to - size}'b0, {x}}}" if to > size else x


def _fit(x: str, size: int, to: int) -> str:
    """Return x with `to` bits. Discarded bits are known to be 0."""
    return _wide(x, size, to) if size <= to else f"{x}[{to - 1}:0]"
