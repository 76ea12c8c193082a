// CPU kernels for codes: encode, decode, pack, unpack, accumulate_packed. See cpu/kernels.h for the interface.
//
// As dense bytes, 8 codes of k bits fill k bytes. Code j starts at bit j * k, little-endian.
#pragma once

#include "cpu/accumulate.h"

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "codes are moved as little-endian words");

namespace custom_fp {
namespace {

constexpr int64_t codes_block = 512;

template <bool is_plain, class Code>
void encode_as(const float* x, Code* codes, int64_t count, const Rounder<float>& rounder, const Coder& coder) {
    for (int64_t i = 0; i < count; ++i)
        codes[i] = static_cast<Code>(round_and_encode<is_plain>(x[i], rounder, coder));
}

template <class Code>
void encode_as(const float* x, Code* codes, int64_t count, const Rounder<float>& rounder, const Coder& coder) {
    (coder.is_plain ? encode_as<true, Code> : encode_as<false, Code>)(x, codes, count, rounder, coder);
}

template <class Code> void encode_values(const float* values, Code* codes, int64_t count, const Coder& coder) {
    for (int64_t i = 0; i < count; ++i) codes[i] = static_cast<Code>(encode(values[i], coder));
}

template <class F>
void encode_by_values(const F* x, void* codes, int code_bytes, int64_t begin, int64_t end, uint32_t packed_spec) {
    const Coder coder = make_coder(unpack_spec(packed_spec));
    const Rule rule = {packed_spec, nearest_even, infinity, 0, 0, 0};
    float values[codes_block];
    for (int64_t start = begin; start < end; start += codes_block) {
        const int64_t count = end - start < codes_block ? end - start : codes_block;
        quantize(x + start, values, 0, count, rule);
        if (code_bytes == 1) encode_values(values, static_cast<u8*>(codes) + start, count, coder);
        if (code_bytes == 4) encode_values(values, static_cast<u32*>(codes) + start, count, coder);
        if (code_bytes == 8) encode_values(values, static_cast<u64*>(codes) + start, count, coder);
    }
}

void encode_range(const void* any, bool wide, void* codes, int code_bytes, int64_t begin, int64_t end,
                  const Rule& rule) {
    const Spec spec = unpack_spec(rule.spec);
    const float* x = static_cast<const float*>(any);
    if (wide) return encode_by_values(static_cast<const double*>(any), codes, code_bytes, begin, end, rule.spec);
    if (!spec.is_signed) return encode_by_values(x, codes, code_bytes, begin, end, rule.spec);
    const Rounder<float> rounder = make_rounder<float>(spec, nearest_even, infinity);
    const Coder coder = make_coder(spec);
    if (code_bytes == 1) encode_as(x + begin, static_cast<u8*>(codes) + begin, end - begin, rounder, coder);
    if (code_bytes == 4) encode_as(x + begin, static_cast<u32*>(codes) + begin, end - begin, rounder, coder);
    if (code_bytes == 8) encode_as(x + begin, static_cast<u64*>(codes) + begin, end - begin, rounder, coder);
}

template <bool is_plain, class Code>
void decode_as(const Code* codes, float* out, int64_t count, const Coder& coder) {
    for (int64_t i = 0; i < count; ++i) out[i] = decode<is_plain>(static_cast<u32>(codes[i]), coder);
}

template <class Code> void decode_as(const Code* codes, float* out, int64_t count, const Coder& coder) {
    (coder.is_plain ? decode_as<true, Code> : decode_as<false, Code>)(codes, out, count, coder);
}

void decode_range(const void* codes, int code_bytes, float* out, int64_t begin, int64_t end, const Rule& rule) {
    const Coder coder = make_coder(unpack_spec(rule.spec));
    if (code_bytes == 1) decode_as(static_cast<const u8*>(codes) + begin, out + begin, end - begin, coder);
    if (code_bytes == 4) decode_as(static_cast<const u32*>(codes) + begin, out + begin, end - begin, coder);
    if (code_bytes == 8) decode_as(static_cast<const u64*>(codes) + begin, out + begin, end - begin, coder);
}

// ---- bits ------------------------------------------------------------------------------------------------------

constexpr u64 repeat(u64 pattern, int every) {
    u64 all = 0;
    for (int at = 0; at < 64; at += every) all |= pattern << at;
    return all;
}

// Moves the two halves of each lane together or apart, in all lanes of a word. A lane has `lane` bits. Only the low
// `used` bits of each half contain data.
struct Squeeze {
    u64 low, high;
    int distance;
    Squeeze(int lane, int used)
        : low(repeat((1ull << used) - 1, lane)), high(low << used), distance(lane / 2 - used) {}
    u64 together(u64 x) const { return (x & low) | (x >> distance & high); }
    u64 apart(u64 x) const { return (x & low) | (x & high) << distance; }
};

// `codes` contains `codes_block` codes of k bits, in bytes (k <= 8) or 32-bit words. `bytes` needs room for 8 more
// bytes.
void join(const u8* __restrict codes, u8* __restrict bytes, int k) {
    u64 words[codes_block / 8];
    std::memcpy(words, codes, sizeof words);
    if (k == 8) {
        std::memcpy(bytes, words, sizeof words);
        return;
    }
    const Squeeze a(16, k), b(32, 2 * k), c(64, 4 * k);
    for (u64& word : words) word = c.together(b.together(a.together(word)));
    for (int i = 0; i < codes_block / 8; ++i) std::memcpy(bytes + i * k, words + i, 8);
}

void split(const u8* __restrict bytes, u8* __restrict codes, int k) {
    if (k == 8) {
        std::memcpy(codes, bytes, codes_block);
        return;
    }
    u64 words[codes_block / 8];
    for (int i = 0; i < codes_block / 8; ++i) std::memcpy(words + i, bytes + i * k, 8);
    const Squeeze a(16, k), b(32, 2 * k), c(64, 4 * k);
    for (u64& word : words) word = a.apart(b.apart(c.apart(word)));
    std::memcpy(codes, words, sizeof words);
}

void join(const u32* __restrict codes, u8* __restrict bytes, int k) {
    if (k == 16) {
        uint16_t narrow[codes_block];
        for (int i = 0; i < codes_block; ++i) narrow[i] = static_cast<uint16_t>(codes[i]);
        std::memcpy(bytes, narrow, sizeof narrow);
        return;
    }
    if (k == 32) {
        std::memcpy(bytes, codes, codes_block * 4);
        return;
    }
    u64 pending = 0;
    int bits = 0;
    for (int i = 0; i < codes_block; ++i) {
        pending |= static_cast<u64>(codes[i]) << bits;
        bits += k;
        if (bits >= 32) {
            const u32 word = static_cast<u32>(pending);
            std::memcpy(bytes, &word, 4);
            bytes += 4;
            pending >>= 32;
            bits -= 32;
        }
    }
}

void split(const u8* __restrict bytes, u32* __restrict codes, int k) {
    if (k == 16) {
        uint16_t narrow[codes_block];
        std::memcpy(narrow, bytes, sizeof narrow);
        for (int i = 0; i < codes_block; ++i) codes[i] = narrow[i];
        return;
    }
    if (k == 32) {
        std::memcpy(codes, bytes, codes_block * 4);
        return;
    }
    const u64 mask = (1ull << k) - 1;
    for (int i = 0; i < codes_block; ++i) {
        u64 word;
        std::memcpy(&word, bytes + (i * k >> 3), 8);
        codes[i] = static_cast<u32>(word >> (i * k & 7) & mask);
    }
}

// ---- dense bytes -----------------------------------------------------------------------------------------------

// Packs and unpacks blocks of codes.
template <class Code> struct Codec {
    int k;
    Coder coder;
    Code codes[codes_block];
    u8 bytes[codes_block * 4 + 8];

    explicit Codec(const Spec& spec) : k(spec.bits), coder(make_coder(spec)) {}

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

    // Packs values of the format. finite: no value is infinity or NaN.
    void pack_values(const float* values, u8* out, int64_t count, bool finite) {
        const Coder c = coder;  // a local copy, because g++ assumes that stores to codes may change members
        if (finite)
            for (int64_t i = 0; i < count; ++i) codes[i] = static_cast<Code>(encode_number(values[i], c));
        else
            for (int64_t i = 0; i < count; ++i) codes[i] = static_cast<Code>(encode(values[i], c));
        write(out, count);
    }

    // Unpacks codes to values, times a power of two that float32 can represent.
    void unpack_values(const u8* in, float* __restrict values, int64_t count, float power = 1.0f) {
        read(in, count);
        const Coder c = coder;
        BlockChecks<float> checks;
        if (!c.is_plain) {
            for (int64_t i = 0; i < count; ++i) values[i] = canonical(decode<false>(static_cast<u32>(codes[i]), c) * power);
            return;
        }
        for (int64_t i = 0; i < count; ++i) values[i] = decode_number(static_cast<u32>(codes[i]), c, checks) * power;
        if (checks.largest <= static_cast<i32>(c.max_code)) return;
        for (int64_t i = 0; i < count; ++i) values[i] = canonical(decode<true>(static_cast<u32>(codes[i]), c) * power);
    }
};

// Returns whether rounding to nearest gives the same result for the float32 product as for x * 2^shift. This is the
// case if the product is exact, if it is so small that the lost digits do not matter, or if it is larger than every
// format.
inline bool float32_will_do(const Spec& spec, int shift) {
    return shift <= 127 && shift >= -126 && (shift >= 0 || spec.emin - spec.mantissa_bits > -120);
}

// Rounds x * 2^shift to nearest and packs the codes, for formats with a sign.
template <class Code> class NearestPacker {
public:
    NearestPacker(const Rule& rule, int shift)
        : codec(unpack_spec(rule.spec)), spec(unpack_spec(rule.spec)),
          exact(float32_will_do(spec, shift)),
          fast(NearRounder::allowed(spec)), power(exact ? power_of_two<float>(shift) : 1.0f),
          wide_power(power_of_two<double>(clamp_shift(shift))), near(make_near_rounder(spec, rule.overflow)),
          rounder(make_rounder<float>(spec, nearest_even, infinity)),
          wide(make_rounder<double>(spec, nearest_even, rule.overflow)), saturates(rule.overflow == saturate) {}

    void operator()(const float* x, u8* out, int64_t count) {
        if (!(exact && fast && pack_fast(x, count))) pack_slowly(x, count);
        codec.write(out, count);
    }

private:
    Codec<Code> codec;
    Spec spec;
    bool exact, fast;
    float power;
    double wide_power;
    NearRounder near;
    Rounder<float> rounder;
    Rounder<double> wide;
    bool saturates;

    bool pack_fast(const float* x, int64_t count) {
        const NearRounder r = near;
        const Coder c = codec.coder;
        const float factor = power;
        BlockChecks<float> checks;
        for (int64_t i = 0; i < count; ++i)
            codec.codes[i] = static_cast<Code>(round_and_encode_near(x[i] * factor, r, c, checks));
        if (!c.is_plain)
            for (int64_t i = 0; i < count; ++i)  // there is no -0, and its code would be that of NaN, which exceeds the limit
                codec.codes[i] = codec.codes[i] == static_cast<Code>(c.nan_code) ? 0 : codec.codes[i];
        return checks.largest <= r.limit;
    }

    void pack_slowly(const float* x, int64_t count) {
        const Coder c = codec.coder;
        if (exact && !saturates) {
            const Rounder<float> r = rounder;
            const float factor = power;
            if (c.is_plain)
                for (int64_t i = 0; i < count; ++i)
                    codec.codes[i] = static_cast<Code>(round_and_encode<true>(x[i] * factor, r, c));
            else
                for (int64_t i = 0; i < count; ++i)
                    codec.codes[i] = static_cast<Code>(round_and_encode<false>(x[i] * factor, r, c));
            return;
        }
        const Rounder<double> r = wide;
        const double factor = wide_power;
        float values[codes_block];
        for (int64_t i = 0; i < count; ++i)
            values[i] = static_cast<float>(round<nearest_even>(static_cast<double>(x[i]) * factor, r, 0));
        if (!c.is_plain)
            for (int64_t i = 0; i < count; ++i) values[i] += 0.0f;
        for (int64_t i = 0; i < count; ++i) codec.codes[i] = static_cast<Code>(encode(values[i], c));
    }
};

// Does the same for any other rounding, for other formats and for doubles, by rounding the exact product in double.
template <class Code, class F>
void pack_otherwise(const F* x, u8* bytes, int64_t begin, int64_t end, const Rule& rule, int shift) {
    Codec<Code> codec(unpack_spec(rule.spec));
    const WidePower power(shift);
    // The overflow mode propagate distinguishes values past float32's range from infinity.
    const bool narrowly = sizeof(F) == sizeof(float) && rule.mode == nearest_even && rule.overflow != propagate &&
                          float32_will_do(unpack_spec(rule.spec), shift);
    const float factor = narrowly ? power_of_two<float>(shift) : 1.0f;
    const bool in_range = sizeof(F) == sizeof(float) && shift >= -800 && shift <= 800;
    double scaled[codes_block];
    float values[codes_block];
    Rule of_block = rule;
    for (int64_t start = begin; start < end; start += codes_block) {
        const int64_t count = end - start < codes_block ? end - start : codes_block;
        of_block.offset = rule.offset + static_cast<u64>(start);
        if (shift == 0) {
            quantize(x + start, values, 0, count, of_block);
        } else if (narrowly) {
            for (int64_t i = 0; i < count; ++i) values[i] = static_cast<float>(x[start + i]) * factor;
            quantize(values, values, 0, count, of_block);
        } else {
            if (in_range)
                for (int64_t i = 0; i < count; ++i) scaled[i] = power.times(static_cast<double>(x[start + i]));
            else
                for (int64_t i = 0; i < count; ++i) scaled[i] = power.to_round(static_cast<double>(x[start + i]));
            quantize(scaled, values, 0, count, of_block);
        }
        codec.pack_values(values, bytes + start / 8 * codec.k, count, false);
    }
}

template <class Code>
void pack_as(const float* x, u8* bytes, int64_t begin, int64_t end, const Rule& rule, int shift) {
    if (rule.mode != nearest_even || rule.overflow == propagate || !unpack_spec(rule.spec).is_signed) {
        pack_otherwise<Code>(x, bytes, begin, end, rule, shift);
        return;
    }
    NearestPacker<Code> pack_block(rule, shift);
    const int k = unpack_spec(rule.spec).bits;
    for (int64_t start = begin; start < end; start += codes_block) {
        const int64_t count = end - start < codes_block ? end - start : codes_block;
        pack_block(x + start, bytes + start / 8 * k, count);
    }
}

void pack_range(const void* any, bool wide, u8* bytes, int64_t begin, int64_t end, const Rule& rule, int shift) {
    const bool in_bytes = unpack_spec(rule.spec).bits <= 8;
    const float* x = static_cast<const float*>(any);
    const double* wide_x = static_cast<const double*>(any);
    if (wide && in_bytes)
        pack_otherwise<u8>(wide_x, bytes, begin, end, rule, shift);
    else if (wide)
        pack_otherwise<u32>(wide_x, bytes, begin, end, rule, shift);
    else if (in_bytes)
        pack_as<u8>(x, bytes, begin, end, rule, shift);
    else
        pack_as<u32>(x, bytes, begin, end, rule, shift);
}

template <class Code>
void unpack_as(const u8* bytes, float* out, int64_t begin, int64_t end, const Spec& spec, int shift) {
    Codec<Code> codec(spec);
    const bool at_once = shift >= -126 && shift <= 127;
    const float power = at_once ? power_of_two<float>(shift) : 1.0f;
    for (int64_t start = begin; start < end; start += codes_block) {
        const int64_t count = end - start < codes_block ? end - start : codes_block;
        codec.unpack_values(bytes + start / 8 * codec.k, out + start, count, power);
        if (!at_once) scale_all(out, out, start, start + count, shift);
    }
}

void unpack_range(const u8* bytes, float* out, int64_t begin, int64_t end, const Rule& rule, int shift) {
    const Spec spec = unpack_spec(rule.spec);
    if (spec.bits <= 8)
        unpack_as<u8>(bytes, out, begin, end, spec, shift);
    else
        unpack_as<u32>(bytes, out, begin, end, spec, shift);
}

// Unpacks the codes of tensors, one block at a time.
template <class Code> struct Unpacker {
    Codec<Code> codec;
    const u8* const* bytes;
    int64_t at, count;
    float values[terms_per_pass][codes_block];

    static const float* unpack(void* self, int r) {
        Unpacker& u = *static_cast<Unpacker*>(self);
        float* const values = u.values[r % terms_per_pass];
        u.codec.unpack_values(u.bytes[r] + u.at, values, u.count);
        return values;
    }
};

template <class Code>
void accumulate_packed_as(const u8* const* bytes, int tensors, u8* out, int64_t begin, int64_t end, const Rule& rule,
                          bool kahan) {
    static_assert(codes_block <= sum_block, "a block of codes is a block of the sum");
    Unpacker<Code> unpacker = {Codec<Code>(unpack_spec(rule.spec)), bytes, 0, 0, {}};
    with_accumulator(rule, true, [&](auto& accumulator) {
        for (int64_t start = begin; start < end; start += codes_block) {
            unpacker.at = start / 8 * unpacker.codec.k;
            unpacker.count = end - start < codes_block ? end - start : codes_block;
            const bool finite = accumulator.sum(
                {start, unpacker.count, tensors, kahan, nullptr, nullptr, Unpacker<Code>::unpack, &unpacker});
            unpacker.codec.pack_values(accumulator.acc, out + unpacker.at, unpacker.count, finite);
        }
    });
}

void accumulate_packed_range(const u8* const* bytes, int tensors, u8* out, int64_t begin, int64_t end,
                             const Rule& rule, bool kahan) {
    if (unpack_spec(rule.spec).bits <= 8)
        accumulate_packed_as<u8>(bytes, tensors, out, begin, end, rule, kahan);
    else
        accumulate_packed_as<u32>(bytes, tensors, out, begin, end, rule, kahan);
}

}  // namespace
}  // namespace custom_fp
