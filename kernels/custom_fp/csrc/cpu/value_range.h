// The digits and exponents of factors, which determine the fast path that is correct for them, and the width of a panel
// of columns.
#pragma once

#include "custom_fp.h"

#include <cstdint>

namespace custom_fp {
namespace {

constexpr int panel = 64;

// The number of significant digits of some values, the exponents of the nonzero values, and the largest magnitude.
struct ValueRange {
    int digits = 1, least = 1000, most = -1000;
    float largest = 0;
    bool finite = true;
};

CFP_FN ValueRange value_range(const float* x, int64_t n) {
    u32 mantissas = 0, least = 0x7f800000u, most = 0;
    for (int64_t i = 0; i < n; ++i) {
        const u32 magnitude = to_bits(x[i]) & 0x7fffffffu;
        const u32 counted = magnitude - 1 < 0x7f800000u ? magnitude : 0x7f800000u;
        mantissas |= magnitude & 0x7fffffu;
        most = most > magnitude ? most : magnitude;
        least = least < counted ? least : counted;
    }
    ValueRange range;
    range.finite = most < 0x7f800000u;
    if (most == 0 || !range.finite) return range;
    range.largest = from_bits(most);
    range.digits = mantissas ? 24 - __builtin_ctz(mantissas) : 1;
    range.least = least >> 23 ? static_cast<int>(least >> 23) - 127 : -1000;  // no fast path supports subnormals
    range.most = static_cast<int>(most >> 23) - 127;
    return range;
}

}  // namespace
}  // namespace custom_fp
