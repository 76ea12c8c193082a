// Bindings of the kernels for codebooks and affine integers.
#include <mutex>

#include "bindings.h"
#include "scaled/kernels.h"

namespace custom_fp::bindings {
namespace {

// The addresses of a codebook's tables, in the order of scaled/search.py.
struct TableParts {
    uintptr_t cell_thresholds, cell_values, cell_codes;
    int shift, first, half;
    uintptr_t thresholds, ascending, codes;
    int size;

    CodebookTables tables() const {
        return {{at<float>(cell_thresholds), at<float>(cell_values), at<i32>(cell_codes), shift, first, half},
                at<float>(thresholds), at<float>(ascending), at<i32>(codes), size};
    }
};

// Processes `rows` rows of n elements in blocks of `block`. Several threads call short_run(begin, count, number) for
// `count` elements from `begin` on. These are whole blocks of one row, and `number` is the index of the first one among
// all blocks. If blocks are longer than the share of a thread, long_block(begin, count, number) is called for one block
// after another instead.
template <class ShortRun, class LongBlock>
void over_blocks(int64_t rows, int64_t n, int64_t block, int threads, const ShortRun& short_run,
                 const LongBlock& long_block) {
    const int64_t per_row = (n + block - 1) / block;
    if (block > grain) {
        for (int64_t number = 0; number < rows * per_row; ++number) {
            const int64_t row = number / per_row, first = (number - row * per_row) * block;
            long_block(row * n + first, std::min(block, n - first), number);
        }
        return;
    }
    parallel(rows * per_row, threads, std::max<int64_t>(1, grain / block), 1, [&](int64_t begin, int64_t end) {
        for (int64_t number = begin; number < end;) {
            const int64_t row = number / per_row, place = number - row * per_row;
            const int64_t blocks = std::min(end - number, per_row - place);
            short_run(row * n + place * block, std::min(blocks * block, n - place * block), number);
            number += blocks;
        }
    });
}

float scale_of_long_block(const float* x, int64_t n, int threads) {
    std::atomic<uint32_t> largest(0);
    parallel(n, threads, grain, [&](int64_t begin, int64_t end) {
        const uint32_t here = kernels<ScaledKernels>().largest_bits(x + begin, end - begin);
        for (uint32_t seen = largest; seen < here && !largest.compare_exchange_weak(seen, here);) {
        }
    });
    return codebook_scale(largest);
}

void codebook_quantize(uintptr_t x, uintptr_t out, int64_t rows, int64_t n, int64_t block, const TableParts& parts,
                       int threads) {
    const CodebookTables t = parts.tables();
    over_blocks(
        rows, n, block, threads,
        [&](int64_t begin, int64_t count, int64_t) {
            kernels<ScaledKernels>().codebook_quantize(at<float>(x) + begin, at<float>(out) + begin, count, block, nullptr, t);
        },
        [&](int64_t first, int64_t count, int64_t) {
            const float *from = at<float>(x) + first, scale = scale_of_long_block(from, count, threads);
            parallel(count, threads, grain, [&](int64_t begin, int64_t end) {
                kernels<ScaledKernels>().codebook_quantize(from + begin, at<float>(out) + first + begin, end - begin, block, &scale, t);
            });
        });
}

// Calls one(first, rows, columns) for parts of (outer, length, inner): blocks along the middle dimension, for some
// columns.
template <class One>
void over_columns(int64_t outer, int64_t length, int64_t inner, int64_t block, int threads, const One& one) {
    const int64_t per_length = (length + block - 1) / block, per_row = (inner + columns_per_pass - 1) / columns_per_pass;
    const int64_t values = block * std::min(inner, columns_per_pass);
    parallel(outer * per_length * per_row, threads, std::max<int64_t>(1, grain / values), 1,
             [&](int64_t begin, int64_t end) {
                 for (int64_t number = begin; number < end; ++number) {
                     const int64_t column = number % per_row * columns_per_pass, of_all = number / per_row;
                     const int64_t plane = of_all / per_length, row = of_all % per_length * block;
                     one((plane * length + row) * inner + column, std::min(block, length - row),
                         std::min(columns_per_pass, inner - column));
                 }
             });
}

void codebook_columns(uintptr_t x, uintptr_t out, int64_t outer, int64_t length, int64_t inner, int64_t block,
                      const TableParts& parts, int threads) {
    const CodebookTables t = parts.tables();
    over_columns(outer, length, inner, block, threads, [&](int64_t first, int64_t rows, int64_t columns) {
        kernels<ScaledKernels>().codebook_columns(at<float>(x) + first, at<float>(out) + first, rows, inner, columns, t);
    });
}

void codebook_encode(uintptr_t x, uintptr_t codes, uintptr_t scales, int64_t rows, int64_t n, int64_t block,
                     const TableParts& parts, int threads) {
    const CodebookTables t = parts.tables();
    over_blocks(
        rows, n, block, threads,
        [&](int64_t begin, int64_t count, int64_t number) {
            kernels<ScaledKernels>().codebook_encode(at<float>(x) + begin, at<u8>(codes) + begin, at<float>(scales) + number, count, block,
                                 nullptr, t);
        },
        [&](int64_t first, int64_t count, int64_t number) {
            const float *from = at<float>(x) + first, scale = scale_of_long_block(from, count, threads);
            at<float>(scales)[number] = scale;
            parallel(count, threads, grain, [&](int64_t begin, int64_t end) {
                kernels<ScaledKernels>().codebook_encode(from + begin, at<u8>(codes) + first + begin, nullptr, end - begin, block, &scale,
                                     t);
            });
        });
}

// Writes codes of at most 4 bits, two to a byte. The size of a block must be even unless there is only one block.
void codebook_pack_halves(uintptr_t x, uintptr_t bytes, uintptr_t scales, int64_t n, int64_t block,
                          const TableParts& parts, int threads) {
    const CodebookTables t = parts.tables();
    const int64_t most = 4096;
    const auto pack = [&](int64_t first, int64_t count, float* found, const float* given) {
        const int64_t step = given ? most : block * std::max<int64_t>(1, most / block);
        std::vector<u8> codes(static_cast<size_t>(step));
        for (int64_t begin = 0; begin < count; begin += step) {
            const int64_t here = std::min(count - begin, step);
            kernels<ScaledKernels>().codebook_encode(at<float>(x) + first + begin, codes.data(), found ? found + begin / block : nullptr,
                                 here, block, given, t);
            kernels<ScaledKernels>().join_halves(codes.data(), at<u8>(bytes) + (first + begin) / 2, here);
        }
    };
    over_blocks(
        1, n, block, threads,
        [&](int64_t begin, int64_t count, int64_t number) { pack(begin, count, at<float>(scales) + number, nullptr); },
        [&](int64_t first, int64_t count, int64_t number) {
            const float scale = scale_of_long_block(at<float>(x) + first, count, threads);
            at<float>(scales)[number] = scale;
            parallel(count, threads, grain, [&](int64_t begin, int64_t end) {
                pack(first + begin, end - begin, nullptr, &scale);
            });
        });
}

// Packs n codes of 4 bits, two to a byte, and unpacks them.
void join_halves(uintptr_t codes, uintptr_t bytes, int64_t n, int threads) {
    parallel(n, threads, grain, [&](int64_t begin, int64_t end) {
        kernels<ScaledKernels>().join_halves(at<u8>(codes) + begin, at<u8>(bytes) + begin / 2, end - begin);
    });
}

void split_halves(uintptr_t bytes, uintptr_t codes, int64_t n, int threads) {
    parallel(n, threads, grain, [&](int64_t begin, int64_t end) {
        kernels<ScaledKernels>().split_halves(at<u8>(bytes) + begin / 2, at<u8>(codes) + begin, end - begin);
    });
}

// values: the value of each of 256 codes.
void codebook_decode(uintptr_t codes, uintptr_t scales, uintptr_t out, int64_t rows, int64_t n, int64_t block,
                     uintptr_t values, int threads) {
    over_blocks(
        rows, n, block, threads,
        [&](int64_t begin, int64_t count, int64_t number) {
            kernels<ScaledKernels>().codebook_decode(at<u8>(codes) + begin, at<float>(scales) + number, at<float>(out) + begin, count, block,
                                 at<float>(values));
        },
        [&](int64_t first, int64_t count, int64_t number) {
            parallel(count, threads, grain, [&](int64_t begin, int64_t end) {
                kernels<ScaledKernels>().codebook_decode(at<u8>(codes) + first + begin, at<float>(scales) + number,
                                     at<float>(out) + first + begin, end - begin, block, at<float>(values));
            });
        });
}

AffineScale scale_of_long_affine(const float* x, int64_t n, float levels, int threads) {
    std::mutex lock;
    Range all = {0.0f, 0.0f, 0};
    parallel(n, threads, grain, [&](int64_t begin, int64_t end) {
        const Range here = kernels<ScaledKernels>().affine_range(x + begin, end - begin);
        const std::lock_guard<std::mutex> held(lock);
        all = {std::min(all.low, here.low), std::max(all.high, here.high), std::max(all.largest, here.largest)};
    });
    FpEnvironment environment;
    return affine_scale(all.low, all.high, all.largest, levels);
}

void affine_quantize(uintptr_t x, uintptr_t out, int64_t rows, int64_t n, int64_t block, int levels, int threads) {
    over_blocks(
        rows, n, block, threads,
        [&](int64_t begin, int64_t count, int64_t) {
            kernels<ScaledKernels>().affine_quantize(at<float>(x) + begin, at<float>(out) + begin, count, block, levels, nullptr);
        },
        [&](int64_t first, int64_t count, int64_t) {
            const float* from = at<float>(x) + first;
            const AffineScale scale = scale_of_long_affine(from, count, levels, threads);
            parallel(count, threads, grain, [&](int64_t begin, int64_t end) {
                kernels<ScaledKernels>().affine_quantize(from + begin, at<float>(out) + first + begin, end - begin, block, levels, &scale);
            });
        });
}

void affine_columns(uintptr_t x, uintptr_t out, int64_t outer, int64_t length, int64_t inner, int64_t block, int levels,
                    int threads) {
    over_columns(outer, length, inner, block, threads, [&](int64_t first, int64_t rows, int64_t columns) {
        kernels<ScaledKernels>().affine_columns(at<float>(x) + first, at<float>(out) + first, rows, inner, columns, levels);
    });
}

void affine_encode(uintptr_t x, uintptr_t codes, uintptr_t scales, uintptr_t zeros, int64_t rows, int64_t n,
                   int64_t block, int levels, int threads) {
    over_blocks(
        rows, n, block, threads,
        [&](int64_t begin, int64_t count, int64_t number) {
            kernels<ScaledKernels>().affine_encode(at<float>(x) + begin, at<u8>(codes) + begin, at<float>(scales) + number,
                               at<u8>(zeros) + number, count, block, levels, nullptr);
        },
        [&](int64_t first, int64_t count, int64_t number) {
            const float* from = at<float>(x) + first;
            const AffineScale scale = scale_of_long_affine(from, count, levels, threads);
            at<float>(scales)[number] = scale.scale;
            at<u8>(zeros)[number] = static_cast<u8>(scale.zero);
            parallel(count, threads, grain, [&](int64_t begin, int64_t end) {
                kernels<ScaledKernels>().affine_encode(from + begin, at<u8>(codes) + first + begin, nullptr, nullptr, end - begin, block,
                                   levels, &scale);
            });
        });
}

// Calls one(first, high, wide, number) for the tiles of height x width in `planes` matrices.
template <class One>
void over_tiles(int64_t planes, int64_t rows, int64_t columns, int64_t height, int64_t width, int threads,
                const One& one) {
    const int64_t down = (rows + height - 1) / height, across = (columns + width - 1) / width;
    parallel(planes * down * across, threads, std::max<int64_t>(1, grain / (height * width)), 1,
             [&](int64_t begin, int64_t end) {
                 for (int64_t number = begin; number < end; ++number) {
                     const int64_t band = number / across, plane = band / down;
                     const int64_t row = (band - plane * down) * height, column = (number - band * across) * width;
                     one((plane * rows + row) * columns + column, std::min(height, rows - row),
                         std::min(width, columns - column), number);
                 }
             });
}

// Writes either values to `out`, or codes, scales and zeros. The addresses of the others must be 0.
void affine_tiles(uintptr_t x, uintptr_t out, uintptr_t codes, uintptr_t scales, uintptr_t zeros, int64_t planes,
                  int64_t rows, int64_t columns, int64_t height, int64_t width, int levels, int threads) {
    over_tiles(planes, rows, columns, height, width, threads, [&](int64_t first, int64_t high, int64_t wide, int64_t number) {
        const AffineScale of = kernels<ScaledKernels>().affine_tile(at<float>(x) + first, out ? at<float>(out) + first : nullptr,
                                                at<u8>(codes) + first, high, wide, columns, levels);
        if (out) return;
        at<float>(scales)[number] = of.scale;
        at<u8>(zeros)[number] = static_cast<u8>(of.zero);
    });
}

void affine_decode_tiles(uintptr_t codes, uintptr_t scales, uintptr_t zeros, uintptr_t out, int64_t planes, int64_t rows,
                         int64_t columns, int64_t height, int64_t width, int threads) {
    over_tiles(planes, rows, columns, height, width, threads, [&](int64_t first, int64_t high, int64_t wide, int64_t number) {
        for (int64_t row = 0; row < high; ++row)
            kernels<ScaledKernels>().affine_decode(at<u8>(codes) + first + row * columns, at<float>(scales) + number,
                               at<u8>(zeros) + number, at<float>(out) + first + row * columns, wide, wide);
    });
}

void affine_decode(uintptr_t codes, uintptr_t scales, uintptr_t zeros, uintptr_t out, int64_t rows, int64_t n,
                   int64_t block, int threads) {
    const auto decode = [&](int64_t begin, int64_t count, int64_t number) {
        kernels<ScaledKernels>().affine_decode(at<u8>(codes) + begin, at<float>(scales) + number, at<u8>(zeros) + number,
                           at<float>(out) + begin, count, block);
    };
    over_blocks(rows, n, block, threads, decode, [&](int64_t first, int64_t count, int64_t number) {
        parallel(count, threads, grain,
                 [&](int64_t begin, int64_t end) { decode(first + begin, end - begin, number); });
    });
}

}  // namespace

void define_scaled(nb::module_& m) {
    nb::class_<TableParts>(m, "CodebookTables")
        .def("__init__", [](TableParts* parts, uintptr_t cell_thresholds, uintptr_t cell_values, uintptr_t cell_codes,
                            int shift, int first, int half, uintptr_t thresholds, uintptr_t ascending, uintptr_t codes,
                            int size) {
            new (parts) TableParts{cell_thresholds, cell_values, cell_codes, shift, first,
                                   half,            thresholds,  ascending,  codes, size};
        });
    m.def("codebook_quantize", &codebook_quantize);
    m.def("codebook_columns", &codebook_columns);
    m.def("codebook_encode", &codebook_encode);
    m.def("codebook_pack_halves", &codebook_pack_halves);
    m.def("join_halves", &join_halves);
    m.def("split_halves", &split_halves);
    m.def("codebook_decode", &codebook_decode);
    m.def("affine_quantize", &affine_quantize);
    m.def("affine_columns", &affine_columns);
    m.def("affine_encode", &affine_encode);
    m.def("affine_decode", &affine_decode);
    m.def("affine_tiles", &affine_tiles);
    m.def("affine_decode_tiles", &affine_decode_tiles);
}

}  // namespace custom_fp::bindings
