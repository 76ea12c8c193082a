// custom_fp._codebook: csrc/codebook.h behind addresses and sizes. scaled/ checks what it is given.
#include <nanobind/nanobind.h>

#include "codebook.h"
#include "parallel.h"

namespace nb = nanobind;

namespace custom_fp::bindings {
namespace {

template <class T> T* at(uintptr_t address) { return reinterpret_cast<T*>(address); }

CodebookTables tables_at(uintptr_t first, uintptr_t thresholds, uintptr_t codes, uintptr_t ascending, int steps) {
    return {at<uint8_t>(first), at<float>(thresholds), at<uint8_t>(codes), at<float>(ascending), steps};
}

// `rows` tensors of n elements, one after the other, each in blocks of `block`: one_block(begin, count, number, alone) for
// each block, several at a time, or where they are longer than a thread's share one after the other, `alone`.
template <class OneBlock>
void each_block(int64_t rows, int64_t n, int64_t block, int threads, const OneBlock& one_block) {
    const int64_t per_row = (n + block - 1) / block, blocks = rows * per_row;
    const auto run = [&](int64_t begin, int64_t end, bool alone) {
        for (int64_t number = begin; number < end; number++) {
            const int64_t row = number / per_row, first = (number - row * per_row) * block;
            one_block(row * n + first, std::min(block, n - first), number, alone);
        }
    };
    if (block > grain)
        run(0, blocks, true);
    else
        parallel(blocks, threads, std::max<int64_t>(1, grain / block), 1,
                 [&](int64_t begin, int64_t end) { run(begin, end, false); });
}

// body(begin, end) over a block's elements, on several threads where the block is `alone`.
template <class Body> void over_elements(int64_t count, bool alone, int threads, const Body& body) {
    if (alone)
        parallel(count, threads, grain, body);
    else
        body(int64_t(0), count);
}

float scale_of_block(const float* x, int64_t count, bool alone, int threads) {
    if (!alone) return scale_of(largest_bits(x, count));
    std::atomic<uint32_t> largest(0);
    parallel(count, threads, grain, [&](int64_t begin, int64_t end) {
        const uint32_t here = largest_bits(x + begin, end - begin);
        for (uint32_t seen = largest; seen < here && !largest.compare_exchange_weak(seen, here);) {
        }
    });
    return scale_of(largest);
}

void quantize(uintptr_t x, uintptr_t out, int64_t rows, int64_t n, int64_t block, uintptr_t first, uintptr_t thresholds,
              uintptr_t codes, uintptr_t ascending, int steps, int threads) {
    const CodebookTables t = tables_at(first, thresholds, codes, ascending, steps);
    each_block(rows, n, block, threads, [&](int64_t at_element, int64_t count, int64_t, bool alone) {
        const float* from = at<float>(x) + at_element;
        float* values = at<float>(out) + at_element;
        const float scale = scale_of_block(from, count, alone, threads);
        over_elements(count, alone, threads, [&](int64_t begin, int64_t end) {
            each_nearest(from, begin, end, scale, t,
                         [&](int64_t i, uint32_t index) { values[i] = t.ascending[index] * scale; });
        });
    });
}

void encode(uintptr_t x, uintptr_t out, uintptr_t scales, int64_t n, int64_t block, uintptr_t first,
            uintptr_t thresholds, uintptr_t codes, uintptr_t ascending, int steps, int threads) {
    const CodebookTables t = tables_at(first, thresholds, codes, ascending, steps);
    each_block(1, n, block, threads, [&](int64_t at_element, int64_t count, int64_t number, bool alone) {
        const float* from = at<float>(x) + at_element;
        uint8_t* written = at<uint8_t>(out) + at_element;
        const float scale = scale_of_block(from, count, alone, threads);
        at<float>(scales)[number] = scale;
        over_elements(count, alone, threads, [&](int64_t begin, int64_t end) {
            each_nearest(from, begin, end, scale, t, [&](int64_t i, uint32_t index) { written[i] = t.codes[index]; });
        });
    });
}

// values: [256] by code
void decode(uintptr_t codes, uintptr_t scales, uintptr_t out, int64_t n, int64_t block, uintptr_t values, int threads) {
    each_block(1, n, block, threads, [&](int64_t at_element, int64_t count, int64_t number, bool alone) {
        const float scale = at<float>(scales)[number];
        const float* table = at<float>(values);
        const uint8_t* read = at<uint8_t>(codes) + at_element;
        float* written = at<float>(out) + at_element;
        over_elements(count, alone, threads, [&](int64_t begin, int64_t end) {
            for (int64_t i = begin; i < end; i++) written[i] = table[read[i]] * scale;
        });
    });
}

}  // namespace
}  // namespace custom_fp::bindings

NB_MODULE(_codebook, m) {
    m.def("quantize", &custom_fp::bindings::quantize);
    m.def("encode", &custom_fp::bindings::encode);
    m.def("decode", &custom_fp::bindings::decode);
}
