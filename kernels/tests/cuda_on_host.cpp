// The CUDA kernels as host functions, which conftest.py compiles and calls for one thread at a time. This defines the few
// names of CUDA that they use. Shared memory is one thread block's, and barriers do nothing.
#define __global__
#define __shared__ static
#define __launch_bounds__(...)
#define __align__(bytes)

struct alignas(16) float4 {
    float x, y, z, w;
};
struct alignas(16) double2 {
    double x, y;
};
struct alignas(16) uint4 {
    unsigned x, y, z, w;
};
struct alignas(8) uint2 {
    unsigned x, y;
};
static uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
static float fmaxf(float a, float b) { return __builtin_fmaxf(a, b); }
static float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }

static struct {
    int x, y;
} threadIdx, blockIdx, blockDim = {1, 1}, gridDim = {1, 1};

static void __syncthreads() {}
static unsigned long long __shfl_down_sync(unsigned, unsigned long long, int) { return 0; }
static int __shfl_xor_sync(unsigned, int value, int) { return value; }
static int __shfl_sync(unsigned, int value, int) { return value; }
static void* __cvta_global_to_generic(unsigned long long address) { return reinterpret_cast<void*>(address); }
static void atomicMax(unsigned long long* at, unsigned long long value) { *at = value > *at ? value : *at; }

// A GPU's conversion of float64 to float32: a NaN loses its sign and payload to this pattern (PTX ISA, cvt).
static float gpu_cast(double x) { return x == x ? static_cast<float>(x) : __builtin_bit_cast(float, 0x7fffffffu); }
#define CFP_CAST(x) gpu_cast(x)

static float __fadd_rz(float a, float b) {
    const float sum = a + b, added = sum - a, error = (a - (sum - added)) + (b - added);  // exactly (TwoSum)
    const bool is_larger = sum > 0 ? error < 0 : error > 0;  // than the exact sum, in magnitude
    return is_larger ? __builtin_nextafterf(sum, 0) : sum;
}

static unsigned add_halves(unsigned a, unsigned b) {
    struct Halves {
        _Float16 low, high;
    };
    const auto x = __builtin_bit_cast(Halves, a), y = __builtin_bit_cast(Halves, b);
    const Halves sum = {static_cast<_Float16>(x.low + y.low), static_cast<_Float16>(x.high + y.high)};
    return __builtin_bit_cast(unsigned, sum);
}
#define CFP_ADD_HALVES(a, b) add_halves(a, b)

#include "custom_fp.cu"

extern "C" void be_thread(int thread, int threads_in_block) {
    threadIdx.x = thread;
    blockDim.x = threads_in_block;
}
