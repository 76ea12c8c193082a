// csrc/narrow.h held to the double that it stands in for; what test_narrow.py compiles and calls. Each function gives back
// how many results differ, NaN aside.
#include "narrow.h"

using namespace custom_fp;

static bool differ(float a, float b) { return !(a != a && b != b) && to_bits(a) != to_bits(b); }

// Every `step`-th float32, times 2^shift.
extern "C" i64 wrong_powers(int shift, i64 step) {
    const PowerOfTwo power(shift);
    const double wide = power_of_two<double>(shift);
    i64 wrong = 0;
    for (i64 bits = 0; bits < 1ll << 32; bits += step) {
        const float x = from_bits(static_cast<u32>(bits));
        wrong += differ(power.times(x), scale(x, wide));
        wrong += differ(power.times_to_odd(x), to_odd_float32(static_cast<double>(x) * wide));
    }
    return wrong;
}

extern "C" i64 wrong_pairs(const float* a, const float* b, i64 n) {
    i64 wrong = 0;
    for (i64 i = 0; i < n; ++i) {
        const double x = a[i], y = b[i];
        wrong += differ(add_to_odd_narrow(a[i], b[i]), to_odd_float32(add_to_odd(x, y)));
        wrong += differ(multiply_to_odd_narrow(a[i], b[i]), to_odd_float32(x * y));
    }
    return wrong;
}
