// PTX on the CPU: what each instruction does to the bits of its operands, and the memory that it reaches. ptx_to_cpp.py
// makes a function of each kernel in these words; an instruction that is not here does not compile, by its name.
//
// Meaning of each: NVIDIA's PTX ISA, section 9.7. A register is its bits: NaNs are those that the ISA says, and where it
// leaves them open (float64) one that no CPU makes. Memory: an access that is misaligned, or outside of what the launch
// was given, is noted and not done.
#pragma once
#include <cfenv>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <string>
#include <type_traits>
#include <vector>

using u8 = uint8_t;
using u16 = uint16_t;
using u32 = uint32_t;
using u64 = uint64_t;
using s8 = int8_t;
using s16 = int16_t;
using s32 = int32_t;
using s64 = int64_t;
using b8 = u8;
using b16 = u16;
using b32 = u32;
using b64 = u64;
using f32 = float;
using f64 = double;
struct f16x2 {
    _Float16 low, high;
};
using pred = bool;

template <int bytes> struct Unsigned;
template <> struct Unsigned<1> { using type = u8; };
template <> struct Unsigned<2> { using type = u16; };
template <> struct Unsigned<4> { using type = u32; };
template <> struct Unsigned<8> { using type = u64; };
template <class T> using Bits = std::conditional_t<std::is_same_v<T, bool>, bool, typename Unsigned<sizeof(T)>::type>;

template <class T> T value(Bits<T> bits) {
    T result;
    std::memcpy(&result, &bits, sizeof result);
    return result;
}
template <class T> Bits<T> bits(T value) {
    Bits<T> result;
    std::memcpy(&result, &value, sizeof result);
    return result;
}
template <> u32 bits(float value) {
    u32 result;
    std::memcpy(&result, &value, sizeof result);
    return value == value ? result : 0x7fffffffu;
}
template <> u64 bits(double value) {
    u64 result;
    std::memcpy(&result, &value, sizeof result);
    return value == value ? result : 0xfff8000000000123ull;
}
template <> u32 bits(f16x2 value) {
    const auto half = [](_Float16 x) -> u32 {
        u16 result;
        std::memcpy(&result, &x, sizeof result);
        return x == x ? result : 0x7fff;
    };
    return half(value.low) | half(value.high) << 16;
}
static f16x2 operator+(f16x2 a, f16x2 b) {
    return {static_cast<_Float16>(a.low + b.low), static_cast<_Float16>(a.high + b.high)};
}
template <class T> constexpr int width = 8 * sizeof(T);

// ---- threads and what they may touch --------------------------------------------------------------------------------

struct Thread {
    u32 tid_x, ntid_x, ctaid_x, ctaid_y, nctaid_x;
    const u64* arguments;  // addresses of them
    u8* shared;
};

struct Range {
    u64 first, end;
};

struct Counts {
    u64 instructions, doubles, loaded, stored, local, shared;  // executed, those in float64; bytes from and to global
                                                               // memory; accesses
};

static std::vector<Range> allowed;  // of global memory
static std::vector<std::string> faults;
static Counts counts;

static void fault(const char* what, u64 address, int line) {
    char text[200];
    std::snprintf(text, sizeof text, "%s at 0x%llx, line %d", what, (unsigned long long)address, line);
    if (faults.size() < 20) faults.push_back(text);
}

enum Space { global, local, shared, param, generic };

static bool inside(const std::vector<Range>& ranges, u64 address, int bytes) {
    for (const Range& range : ranges)
        if (address >= range.first && address + bytes <= range.end) return true;
    return false;
}

// own: the space of the thread that is named: its frame, the block's shared memory, the arguments
static bool may(Space space, Range own, u64 address, int bytes, bool stores, int line) {
    if (address % bytes) return fault("misaligned access", address, line), false;
    const bool in_own = address >= own.first && address + bytes <= own.end;
    if (space == global || (space == generic && !in_own)) {
        if (!inside(allowed, address, bytes)) return fault(stores ? "store out of bounds" : "load out of bounds", address, line), false;
        (stores ? counts.stored : counts.loaded) += bytes;
        return true;
    }
    counts.local += space == local, counts.shared += space == shared;
    if (!in_own) fault("access outside of its own memory", address, line);
    return in_own;
}

template <class T> auto extended(T value) { return value; }
template <> inline auto extended(float value) {
    u32 result;
    std::memcpy(&result, &value, 4);
    return result;
}
template <> inline auto extended(double value) {
    u64 result;
    std::memcpy(&result, &value, 8);
    return result;
}

template <class T, class... Registers> void load(Space space, Range own, u64 address, int line, Registers&... to) {
    if (!may(space, own, address, sizeof(T) * sizeof...(to), false, line)) return;
    const auto one = [&](auto& to) {
        T read;
        std::memcpy(&read, reinterpret_cast<void*>(address), sizeof read);
        to = extended(read);
        address += sizeof read;
    };
    (one(to), ...);
}

template <class T, class... Words> void store(Space space, Range own, u64 address, int line, Words... from) {
    if (!may(space, own, address, sizeof(T) * sizeof...(from), true, line)) return;
    const auto one = [&](auto from) {
        const Bits<T> written = static_cast<Bits<T>>(from);
        std::memcpy(reinterpret_cast<void*>(address), &written, sizeof written);
        address += sizeof written;
    };
    (one(from), ...);
}

// ---- arithmetic -------------------------------------------------------------------------------------------------------

#define PTX_BINARY(name, expression)                                                                                   \
    template <class T> Bits<T> name(Bits<T> a_bits, Bits<T> b_bits) {                                                    \
        const T a = value<T>(a_bits), b = value<T>(b_bits);                                                            \
        return bits<T>(static_cast<T>(expression));                                                                    \
    }
PTX_BINARY(add, a + b)
PTX_BINARY(sub, a - b)
template <class T> Bits<T> add_rz(Bits<T> a_bits, Bits<T> b_bits) {
    const int mode = std::fegetround();
    std::fesetround(FE_TOWARDZERO);
    const volatile T a = value<T>(a_bits), b = value<T>(b_bits);
    const volatile T sum = a + b;
    std::fesetround(mode);
    return bits<T>(sum);
}
PTX_BINARY(mul_lo, static_cast<u64>(a) * static_cast<u64>(b))
PTX_BINARY(mul, a* b)
PTX_BINARY(div, a / b)
PTX_BINARY(rem, a % b)
PTX_BINARY(and_, a& b)
PTX_BINARY(or_, a | b)
PTX_BINARY(xor_, a ^ b)

// of floats: a NaN gives way to a number, and -0 lies below +0
template <class T> Bits<T> extreme(Bits<T> a_bits, Bits<T> b_bits, bool larger) {
    const T a = value<T>(a_bits), b = value<T>(b_bits);
    if constexpr (std::is_floating_point_v<T>) {
        if (a != a) return bits<T>(b);
        if (b != b) return a_bits;
        if (a == 0 && b == 0) return larger ? a_bits & b_bits : a_bits | b_bits;
    }
    return (a > b) == larger ? a_bits : b_bits;
}
template <class T> Bits<T> max(Bits<T> a, Bits<T> b) { return extreme<T>(a, b, true); }
template <class T> Bits<T> min(Bits<T> a, Bits<T> b) { return extreme<T>(a, b, false); }

template <class T> Bits<T> neg(Bits<T> a) {
    if constexpr (std::is_floating_point_v<T>) return a ^ Bits<T>(1) << (width<T> - 1);
    else return -a;
}
template <class T> Bits<T> abs(Bits<T> a) {
    if constexpr (std::is_floating_point_v<T>) return a & ~(Bits<T>(1) << (width<T> - 1));
    else return value<T>(a) < 0 ? -a : a;
}
template <class T> Bits<T> not_(Bits<T> a) {
    if constexpr (std::is_same_v<T, bool>) return !a;
    else return ~a;
}
template <class T> Bits<T> fma(Bits<T> a, Bits<T> b, Bits<T> c) { return bits<T>(std::fma(value<T>(a), value<T>(b), value<T>(c))); }
template <class T> Bits<T> rcp(Bits<T> a) { return bits<T>(1 / value<T>(a)); }
template <class T> Bits<T> sqrt(Bits<T> a) { return bits<T>(std::sqrt(value<T>(a))); }
template <class T> Bits<T> mad_lo(Bits<T> a, Bits<T> b, Bits<T> c) { return mul_lo<T>(a, b) + c; }
template <class T> u64 mul_wide(Bits<T> a, Bits<T> b) {
    return static_cast<u64>(static_cast<s64>(value<T>(a)) * static_cast<s64>(value<T>(b)));
}
template <class T> u64 mad_wide(Bits<T> a, Bits<T> b, u64 c) { return mul_wide<T>(a, b) + c; }
template <class T> Bits<T> mul_hi(Bits<T> a, Bits<T> b) {
    return static_cast<Bits<T>>(static_cast<__int128>(value<T>(a)) * static_cast<__int128>(value<T>(b)) >> width<T>);
}

template <class T> Bits<T> shl(Bits<T> a, u32 by) { return by >= width<T> ? 0 : a << by; }
template <class T> Bits<T> shr(Bits<T> a, u32 by) {
    if (by >= width<T>) by = width<T> - 1, a = std::is_signed_v<T> ? a : Bits<T>(0);
    return bits<T>(static_cast<T>(value<T>(a) >> by));
}
template <class T> Bits<T> bfi(Bits<T> a, Bits<T> b, u32 at, u32 length) {
    at &= 255, length &= 255;
    const Bits<T> field = shl<Bits<T>>(length >= width<T> ? ~Bits<T>(0) : (Bits<T>(1) << length) - 1, at);
    return (b & ~field) | (shl<Bits<T>>(a, at) & field);
}
template <class T> Bits<T> selp(Bits<T> a, Bits<T> b, bool chosen) { return chosen ? a : b; }

// ---- comparisons ------------------------------------------------------------------------------------------------------

#define PTX_COMPARE(name, expression)                                                                                  \
    template <class T> bool setp_##name(Bits<T> a_bits, Bits<T> b_bits) {                                                \
        const T a = value<T>(a_bits), b = value<T>(b_bits);                                                            \
        const bool unordered = a != a || b != b;                                                                       \
        return expression;                                                                                             \
    }
PTX_COMPARE(eq, a == b)
PTX_COMPARE(ne, !unordered && a != b)
PTX_COMPARE(lt, a < b)
PTX_COMPARE(le, a <= b)
PTX_COMPARE(gt, a > b)
PTX_COMPARE(ge, a >= b)
PTX_COMPARE(equ, unordered || a == b)
PTX_COMPARE(neu, unordered || a != b)
PTX_COMPARE(ltu, unordered || a < b)
PTX_COMPARE(leu, unordered || a <= b)
PTX_COMPARE(gtu, unordered || a > b)
PTX_COMPARE(geu, unordered || a >= b)
PTX_COMPARE(num, !unordered)
PTX_COMPARE(nan, unordered)

// ---- conversions ------------------------------------------------------------------------------------------------------

template <class To, class From> Bits<To> cvt(Bits<From> a) { return bits<To>(static_cast<To>(value<From>(a))); }

// towards zero, to the nearest end where it does not fit; NaN gives 0, from or to 64 bits the highest bit alone
template <class To, class From> Bits<To> cvt_rzi(Bits<From> a) {
    const double x = value<From>(a), end = std::ldexp(1.0, width<To> - std::is_signed_v<To>);
    const Bits<To> top = Bits<To>(1) << (width<To> - 1);
    if (x != x) return sizeof(From) == 8 || sizeof(To) == 8 ? top : 0;
    if (x >= end) return std::is_signed_v<To> ? top - 1 : ~Bits<To>(0);
    if (x <= (std::is_signed_v<To> ? -end : 0.0)) return std::is_signed_v<To> ? top : 0;
    return bits<To>(static_cast<To>(x));
}

// ---- what threads do together -------------------------------------------------------------------------------------------

static void barrier(int line);
static u32 shuffled(u32 value, u32 from, u32 mask, int line, bool* inside);

template <class T> u32 prmt(u32 a, u32 b, u32 which) {
    const u64 bytes = u64(b) << 32 | a;
    u32 result = 0;
    for (int i = 0; i < 4; ++i) {
        const u32 one = which >> 4 * i & 15, byte = bytes >> 8 * (one & 7) & 0xff;
        result |= (one & 8 ? (byte & 0x80 ? 0xff : 0) : byte) << 8 * i;
    }
    return result;
}
static u32 shfl_bfly(const Thread& thread, bool& inside, u32 a, u32 by, u32, u32 mask, int line) {
    return shuffled(a, (thread.tid_x % 32) ^ by, mask, line, &inside);
}
static u32 shfl_idx(const Thread& thread, bool& inside, u32 a, u32 from, u32, u32 mask, int line) {
    return shuffled(a, from % 32, mask, line, &inside);
}
static u32 shfl_down(const Thread& thread, bool& inside, u32 a, u32 by, u32, u32 mask, int line) {
    return shuffled(a, thread.tid_x % 32 + by, mask, line, &inside);
}
template <class T> Bits<T> atom_max(Range own, u64 address, Bits<T> a, int line) {
    if (!may(global, own, address, sizeof(T), true, line)) return 0;
    Bits<T> before;
    std::memcpy(&before, reinterpret_cast<void*>(address), sizeof before);
    const Bits<T> after = max<T>(before, a);
    std::memcpy(reinterpret_cast<void*>(address), &after, sizeof after);
    return before;
}
