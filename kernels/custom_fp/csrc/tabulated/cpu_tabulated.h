// CPU kernels for formats that are tables of values. See cpu/kernels.h for the interface.
//
// `Exact` is the type of exact numbers (tabulated_rounding.h): float, or double if rounding needs the distance to a
// value.
#pragma once

#include <cstring>
#include <optional>

#include "cpu/codes.h"
#include "tabulated/cpu_lanes.h"

namespace custom_fp {
namespace {

// ---- rounding by steps, a register at a time ------------------------------------------------------------------------

CFP_FN void store_partial(u8* codes, IntLanes values, int64_t left) { store_bytes(codes, values, left); }
CFP_FN void store_partial(u32* codes, IntLanes values, int64_t left) {
    if (left >= lanes)
        std::memcpy(codes, &values, sizeof values);
    else
        std::memcpy(codes, &values, static_cast<size_t>(left) * sizeof(u32));
}
CFP_FN void store_partial(float* out, IntLanes values, int64_t left) { store_partial(out, (FloatLanes)values, left); }

// Rounds by adding and subtracting, which is faster than looking up cells by octave.
void lift_all(const float* x, float* out, int64_t n, const LaneRounder to) {
    for (int64_t i = 0; i < n; i += lanes) {
        __builtin_prefetch(x + i + ahead);
        store_partial(out + i, to.of(load_partial(x + i, n - i)), n - i);
    }
}

// results: the values or codes on each side of a threshold.
template <bool by_octave, class To>
void step_all(const float* x, To* out, int64_t n, const Table table, const i32* results) {
    for (int64_t i = 0; i < n; i += lanes) {
        __builtin_prefetch(x + i + ahead);
        store_partial(out + i, gather(results, sides_of<by_octave>(load_partial(x + i, n - i), table)), n - i);
    }
}

template <class To> void step_all(const float* x, To* out, int64_t n, const Table& t, const i32* results) {
    (t.by_octave ? step_all<true, To> : step_all<false, To>)(x, out, n, t, results);
}

// ---- rounding blocks of at most codes_block exact numbers ---------------------------------------------------------

template <class Exact> struct TableRounder;

template <> struct TableRounder<float> {
    Table t;
    explicit TableRounder(const i32* table) : t(open_table(table)) {}

    void values(const float* x, float* out, int64_t n, u64, u32) const {
        if (t.kind == table_steps && t.by_octave && t.lifts[lift_use]) return lift_all(x, out, n, LaneRounder(t));
        if (t.kind == table_steps) return step_all(x, out, n, t, t.values);
        for (int64_t i = 0; i < n; ++i) out[i] = value_in(x[i], t, 0);
    }
    template <class Code> void codes(const float* x, Code* out, int64_t n, u64) const {
        if (t.kind == table_steps) return step_all(x, out, n, t, t.codes);
        for (int64_t i = 0; i < n; ++i) out[i] = static_cast<Code>(code_in(x[i], t, 0));
    }
};

template <> struct TableRounder<double> {
    Table t;
    u64 seed;
    u32 mask;
    explicit TableRounder(const Rule& rule) : t(open_table(rule.table)), seed(rule.seed), mask(rule.mask) {}

    // Draws the random bits of elements index to index + n - 1. Returns a pointer into `words` to those of `index`.
    const u32* draw(u32* words, int64_t n, u64 index, u32 stream) const {
        u32 rest[group];
        const u64 first = index / group * group;
        for (u64 at = first; at < index + static_cast<u64>(n); at += group) {
            fill_half(words + (at - first), at, stream, 0, seed, mask);
            fill_half(rest, at, stream, 1, seed, mask);
            join_halves(words + (at - first), rest, mask);
        }
        return words + (index - first);
    }
    // Writes to places[i] the index of the result for x[i]. n must be at most codes_block.
    void settle(const double* x, i32* places, int64_t n, u64 index, u32 stream) const {
        u32 words[codes_block + 2 * group];
        float keys[codes_block];
        const u32* random = draw(words, n, index, stream);
        for (int64_t i = 0; i < n; ++i) keys[i] = to_odd_float32(x[i]);
        step_all(keys, reinterpret_cast<u32*>(places), n, t, t.places);
        const double *lows = t.lows, *gaps = t.gaps;
        for (int64_t i = 0; i < n; ++i) places[i] += goes_up(x[i], lows[places[i]], gaps[places[i]], random[i]);
    }
    void values(const double* x, float* out, int64_t n, u64 index, u32 stream) const {
        i32 places[codes_block];
        settle(x, places, n, index, stream);
        const i32* results = t.place_values;
        for (int64_t i = 0; i < n; ++i) out[i] = from_bits(static_cast<u32>(results[places[i]]));
    }
    template <class Code> void codes(const double* x, Code* out, int64_t n, u64 index) const {
        i32 places[codes_block];
        settle(x, places, n, index, 0);
        const i32* results = t.place_codes;
        for (int64_t i = 0; i < n; ++i) out[i] = static_cast<Code>(results[places[i]]);
    }
};

// Calls body(rounder) with the rounder for the kind of table.
template <class Body> void with_rounder(const Rule& rule, const Body& body) {
    if (rule.table[0] == table_random)
        body(TableRounder<double>(rule));
    else
        body(TableRounder<float>(rule.table));
}
template <class Exact> Exact exact_of(const TableRounder<Exact>&);

// Calls body(start, count) for each block of the elements begin to end - 1.
template <class Body> CFP_FN void in_blocks(int64_t begin, int64_t end, const Body& body) {
    for (int64_t start = begin; start < end; start += codes_block)
        body(start, smaller(codes_block, end - start));
}

// Returns n numbers as the exact type: x itself, or copies in `room`.
const float* exactly(const float* x, float*, int64_t) { return x; }
const double* exactly(const double* x, double*, int64_t) { return x; }
const float* exactly(const double* x, float* room, int64_t n) {
    for (int64_t i = 0; i < n; ++i) room[i] = to_odd_float32(x[i]);
    return room;
}
const double* exactly(const float* x, double* room, int64_t n) {
    for (int64_t i = 0; i < n; ++i) room[i] = x[i];
    return room;
}

// Returns the same numbers, times a power of two. A product is zero or infinite only if the number is.
template <class F, class Exact>
const Exact* exactly(const F* x, Exact* room, int64_t n, const WidePower& power) {
    for (int64_t i = 0; i < n; ++i) {
        const double number = x[i], product = power.times(number);
        const u64 bits = to_bits(product), magnitude = bits & ~Bits<double>::sign;
        const u64 lost = static_cast<u64>(magnitude == 0) & static_cast<u64>(number < 0 || number > 0);
        const u64 past = static_cast<u64>(magnitude == Bits<double>::infinity) &
                         static_cast<u64>((to_bits(number) & ~Bits<double>::sign) < Bits<double>::infinity);
        const double kept = from_bits((bits | lost) - past);
        if constexpr (sizeof(Exact) == sizeof(float))
            room[i] = to_odd_float32(kept);
        else
            room[i] = kept;
    }
    return room;
}

template <class F, class Exact>
void table_quantize(const F* x, float* out, int64_t begin, int64_t end, u64 offset, const TableRounder<Exact>& to) {
    Exact room[codes_block];
    if constexpr (sizeof(F) == sizeof(Exact) && sizeof(F) == sizeof(float))
        return to.values(x + begin, out + begin, end - begin, 0, 0);
    in_blocks(begin, end, [&](int64_t start, int64_t count) {
        to.values(exactly(x + start, room, count), out + start, count, offset + static_cast<u64>(start), 0);
    });
}

// Calls body(x) with x as a pointer to its actual type.
template <class Body> CFP_FN void as_it_is(const void* x, bool wide, const Body& body) {
    if (wide)
        body(static_cast<const double*>(x));
    else
        body(static_cast<const float*>(x));
}

void table_quantize_range(const void* x, bool wide, float* out, int64_t begin, int64_t end, const Rule& rule) {
    with_rounder(rule, [&](const auto& to) {
        as_it_is(x, wide, [&](auto from) { table_quantize(from, out, begin, end, rule.offset, to); });
    });
}

// ---- codes ---------------------------------------------------------------------------------------------------------

void table_encode_range(const void* x, bool wide, void* codes, int code_bytes, int64_t begin, int64_t end,
                        const Rule& rule) {
    const TableRounder<float> to(rule.nearest);
    float room[codes_block];
    as_it_is(x, wide, [&](auto from) {
        in_blocks(begin, end, [&](int64_t start, int64_t count) {
            const float* keys = exactly(from + start, room, count);
            if (code_bytes == 1)
                to.codes(keys, static_cast<u8*>(codes) + start, count, 0);
            else
                to.codes(keys, static_cast<u32*>(codes) + start, count, 0);
        });
    });
}

template <class Code> void decode_some(const Code* codes, float* out, int64_t n, const Table& table) {
    typedef Code CodeLanes __attribute__((vector_size(lanes * sizeof(Code))));
    const Table t = table;
    const IntLanes known = IntLanes{} + ((1 << t.bits) - 1);
    int64_t i = 0;
    for (; i + lanes <= n; i += lanes) {
        CodeLanes some;
        std::memcpy(&some, codes + i, sizeof some);
        store(out + i, (FloatLanes)gather(t.decoded, __builtin_convertvector(some, IntLanes) & known));
    }
    for (; i < n; ++i) out[i] = decoded_in(static_cast<u32>(codes[i]), t);
}

void table_decode_range(const void* codes, int code_bytes, float* out, int64_t begin, int64_t end, const Rule& rule) {
    const Table t = open_table(rule.nearest);
    if (code_bytes == 1) decode_some(static_cast<const u8*>(codes) + begin, out + begin, end - begin, t);
    if (code_bytes == 4) decode_some(static_cast<const u32*>(codes) + begin, out + begin, end - begin, t);
    if (code_bytes == 8) decode_some(static_cast<const u64*>(codes) + begin, out + begin, end - begin, t);
}

// Blocks of codes as dense bytes.
template <class Code> struct DenseCodes {
    int k;
    Code codes[codes_block];
    u8 bytes[codes_block * 4 + 8];
    explicit DenseCodes(int bits) : k(bits) {}
    size_t size(int64_t count) const { return static_cast<size_t>((count + 7) / 8 * k); }
    void write(u8* out, int64_t count) {
        std::memset(codes + count, 0, static_cast<size_t>(codes_block - count) * sizeof(Code));
        join(codes, bytes, k);
        std::memcpy(out, bytes, size(count));
    }
    void read(const u8* in, int64_t count) {
        std::memcpy(bytes, in, size(count));
        split(bytes, codes, k);
    }
};

template <class Body> void with_codes(int bits, const Body& body) {
    if (bits <= 8)
        body(DenseCodes<u8>(bits));
    else
        body(DenseCodes<u32>(bits));
}

void table_pack_range(const void* x, bool wide, uint8_t* bytes, int64_t begin, int64_t end, const Rule& rule,
                      int shift) {
    const WidePower power(shift);
    with_rounder(rule, [&](const auto& to) {
        decltype(exact_of(to)) room[codes_block];
        with_codes(to.t.bits, [&](auto dense) {
            as_it_is(x, wide, [&](auto from) {
                in_blocks(begin, end, [&](int64_t start, int64_t count) {
                    const auto* numbers = shift ? exactly(from + start, room, count, power)
                                                : exactly(from + start, room, count);
                    to.codes(numbers, dense.codes, count, rule.offset + static_cast<u64>(start));
                    dense.write(bytes + start / 8 * dense.k, count);
                });
            });
        });
    });
}

void table_unpack_range(const uint8_t* bytes, float* out, int64_t begin, int64_t end, const Rule& rule, int shift) {
    const Table t = open_table(rule.nearest);
    with_codes(t.bits, [&](auto dense) {
        in_blocks(begin, end, [&](int64_t start, int64_t count) {
            dense.read(bytes + start / 8 * dense.k, count);
            decode_some(dense.codes, out + start, count, t);
            if (shift) scale_all(out, out, start, start + count, shift);
        });
    });
}

// ---- sums ----------------------------------------------------------------------------------------------------------

// Computes acc = Q(acc + g), or Kahan's version, for blocks of terms, as in reference.py.
template <class Exact> struct TableSum {
    const TableRounder<Exact>& to;
    float acc[codes_block], c[codes_block], y[codes_block], t[codes_block];
    Exact exact[codes_block];
    std::optional<LaneRounder> in_lanes;

    explicit TableSum(const TableRounder<Exact>& rounder) : to(rounder) {
        if (to.t.kind == table_steps) in_lanes.emplace(to.t);
    }

    template <class G> void sum(const G* a, const float* b, float sign, float* out, int64_t n, u64 index, u32 stream) {
        const Table table = to.t;
        for (int64_t i = 0; i < n; ++i) add_exactly(a[i], sign * b[i], table, exact[i]);
        to.values(exact, out, n, index, stream);
    }

    void begin() {
        std::memset(acc, 0, sizeof acc);
        std::memset(c, 0, sizeof c);
    }

    template <class G> void add(const G* g, int64_t n, bool kahan, u64 index, int r) {
        if constexpr (sizeof(G) == sizeof(float))
            if (in_lanes) return (kahan ? add_all<true> : add_all<false>)(g, acc, c, n, *in_lanes);
        const u32 stream = static_cast<u32>(4 * r);
        if (!kahan) return sum(g, acc, 1.0f, acc, n, index, stream);
        sum(g, c, -1.0f, y, n, index, stream);
        sum(acc, y, 1.0f, t, n, index, stream + 1);
        sum(t, acc, -1.0f, c, n, index, stream + 2);
        sum(c, y, -1.0f, c, n, index, stream + 3);
        for (int64_t i = 0; i < n; ++i) {
            const u32 finite = static_cast<u32>((to_bits(t[i]) & 0x7fffffffu) < 0x7f800000u);
            c[i] = from_bits(to_bits(c[i]) & (0u - finite));
        }
        std::memcpy(acc, t, static_cast<size_t>(n) * sizeof(float));
    }
};

void table_accumulate_range(const void* const* x, const uint8_t* is_wide, int count, float* out, int64_t begin,
                            int64_t end, const Rule& rule, bool kahan) {
    with_rounder(rule, [&](const auto& to) {
        TableSum<decltype(exact_of(to))> sum(to);
        in_blocks(begin, end, [&](int64_t start, int64_t n) {
            sum.begin();
            for (int r = 0; r < count; ++r)
                as_it_is(x[r], is_wide && is_wide[r], [&](auto from) {
                    sum.add(from + start, n, kahan, rule.offset + static_cast<u64>(start), r);
                });
            std::memcpy(out + start, sum.acc, static_cast<size_t>(n) * sizeof(float));
        });
    });
}

void table_accumulate_packed_range(const uint8_t* const* bytes, int count, uint8_t* out, int64_t begin, int64_t end,
                                   const Rule& rule, bool kahan) {
    const TableRounder<float> coder(rule.nearest);
    float values[codes_block];
    with_rounder(rule, [&](const auto& to) {
        TableSum<decltype(exact_of(to))> sum(to);
        with_codes(to.t.bits, [&](auto dense) {
            in_blocks(begin, end, [&](int64_t start, int64_t n) {
                sum.begin();
                for (int r = 0; r < count; ++r) {
                    dense.read(bytes[r] + start / 8 * dense.k, n);
                    decode_some(dense.codes, values, n, to.t);
                    sum.add(values, n, kahan, rule.offset + static_cast<u64>(start), r);
                }
                coder.codes(sum.acc, dense.codes, n, 0);
                dense.write(out + start / 8 * dense.k, n);
            });
        });
    });
}

}  // namespace
}  // namespace custom_fp
