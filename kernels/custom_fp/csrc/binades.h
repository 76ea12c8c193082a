// Exact integer sums over a float32 array, for each binade and for each spacing that a format's values can have in it.
// From these sums, the counts, errors and squared errors of rounding can be computed without reading the elements
// again.
//
// An element is |x| = u 2^k with 1 <= u < 2. Its *cell* is determined by the first 11 bits of the fraction of u, and by
// whether any other bit is set (the sticky bit). low is the lower end of the cell in units of 2^-11 (2048 to 4095), and
// d is the rest of u, in units of 2^-23. An argument, q, has the results of rounding the cells to nearest for the
// spacings 2^-m, m = 10 to -1, in units of 2^-11. This file does not round. It only counts. Each wider spacing needs
// only half as many cells: a cell with bits (b, b') and its sticky bit is merged into (b, b' or sticky). The sums of
// all spacings therefore cost at most twice as much as those of the first spacing.
//
// The sums are below 2^63 for up to 2^27 elements, and exact in float64 for up to 2^22. Zeros, infinity and NaN are not
// part of any sum. Subnormals are only counted, because their exponent field does not determine their binade.
#pragma once

#include <cstdint>
#include <cstring>
#include <vector>

namespace custom_fp {

struct Binades {
    static constexpr int fields = 256, cells = 1 << 12, dropped = 12, spacings = 12;
    static constexpr int of_binade = 6;   // n, low, low^2, d, low d, d^2
    static constexpr int of_spacing = 8;  // q, q^2, low q, d q, up, sum of their u, last, sum of their u (in 2^-23)
    static constexpr int columns = of_binade + of_spacing * spacings;

    // counts: (256,), the number of elements with each exponent field, without zeros.
    // rows: (number of fields from 1 to 254 that have elements, columns), ordered by field. m = 10 comes first.
    // q: the results for all 4096 cells of m = 10, then for the 2048 cells of m = 9, and so on down to 2 cells.
    // In a row, `up` counts the elements that are rounded to the next binade. `last` counts those that are rounded to
    // the last value of the binade, 2 - 2^-m, or up.
    void count(const float* x, int64_t size, const int32_t* q, int64_t* counts, int64_t* rows) {
        int64_t squares[fields] = {};
        std::memset(counts, 0, fields * sizeof(int64_t));
        int least = fields, most = 0;
        for (int64_t i = 0; i < size; ++i) {
            const int field = static_cast<int>(magnitude(x[i]) >> 23);
            if (field == 0 || field == 255) continue;
            least = field < least ? field : least;
            most = field > most ? field : most;
        }
        if (least <= most && table_.size() < static_cast<size_t>(most - least + 1) * cells)
            table_.resize(static_cast<size_t>(most - least + 1) * cells);
        for (int64_t i = 0; i < size; ++i) {
            const uint32_t bits = magnitude(x[i]), field = bits >> 23, low = bits & ((1u << dropped) - 1);
            counts[field] += bits != 0;
            if (field == 0 || field == 255) continue;
            const uint32_t cell = ((bits & 0x7fffffu) >> dropped << 1) | (low != 0);
            Cell& one = table_[static_cast<size_t>(field - least) * cells + cell];
            one.n += 1;
            one.d += low;
            squares[field] += static_cast<int64_t>(low) * low;
        }
        for (int field = least; field <= most; ++field)
            if (counts[field]) {
                sum(&table_[static_cast<size_t>(field - least) * cells], q, rows);
                rows[5] = squares[field];
                rows += columns;
            }
    }

private:
    struct Cell {
        int64_t n, d;
    };
    struct Group {  // elements that are rounded to the same value
        int32_t cell;
        int64_t n, low, d;
    };

    static uint32_t magnitude(float x) {
        uint32_t bits;
        std::memcpy(&bits, &x, sizeof bits);
        return bits & 0x7fffffffu;
    }

    // Writes the row of one binade, and clears its cells.
    void sum(Cell* cell, const int32_t* q, int64_t* row) {
        std::memset(row, 0, columns * sizeof(int64_t));
        groups_.clear();
        for (int32_t c = 0; c < cells; ++c) {
            if (!cell[c].n) continue;
            const int64_t n = cell[c].n, d = cell[c].d, low = (1 << 11) + (c >> 1);
            groups_.push_back({c, n, n * low, d});
            const int64_t terms[] = {n, n * low, n * low * low, d, d * low};
            for (int i = 0; i < 5; ++i) row[i] += terms[i];
            cell[c] = {0, 0};
        }
        row += of_binade;
        for (int m = 10; m >= -1; --m, row += of_spacing) {
            const int64_t up = 2 << 11, last = up - (1 << (11 - m));
            for (const Group& s : groups_) {
                const int64_t to = q[s.cell], u = (s.low << dropped) + s.d;
                const int64_t is_up = to >= up, is_last = to >= last;
                row[0] += s.n * to;
                row[1] += s.n * to * to;
                row[2] += s.low * to;
                row[3] += s.d * to;
                row[4] += s.n & -is_up;
                row[5] += u & -is_up;
                row[6] += s.n & -is_last;
                row[7] += u & -is_last;
            }
            q += 1 << (m + 2);
            merge();
        }
    }

    // Merges cells for the next wider spacing. Cells that become one are adjacent in the list.
    void merge() {
        size_t kept = 0;
        for (size_t i = 0; i < groups_.size(); ++i) {
            Group s = groups_[i];
            s.cell = (s.cell >> 2 << 1) | ((s.cell & 3) != 0);
            if (kept && groups_[kept - 1].cell == s.cell) {
                Group& before = groups_[kept - 1];
                before.n += s.n, before.low += s.low, before.d += s.d;
            } else {
                groups_[kept++] = s;
            }
        }
        groups_.resize(kept);
    }

    std::vector<Cell> table_;  // cleared after each call and reused, because new memory costs more than counting
    std::vector<Group> groups_;
};

}  // namespace custom_fp
