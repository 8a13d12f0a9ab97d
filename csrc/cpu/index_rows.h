// The first step of every CPU operator over index rows: it finds the lengths of the rows and checks their indices.
#pragma once

#include <torch/csrc/stable/ops.h>

#include <atomic>
#include <cstdint>
#include <vector>

#include "../checks.h"

namespace nnue {

// The number of entries before the first -1, for each row of indices [rows, max_active]. Throws if an index is outside
// the contract, for the first such index in row order.
inline std::vector<int64_t> checked_row_lengths(const char* op, const int32_t* indices, int64_t rows,
                                                int64_t max_active, int64_t num_features) {
    std::vector<int64_t> lengths(rows);
    std::atomic<int64_t> first_bad{rows};
    torch::stable::parallel_for(0, rows, 1024, [&](int64_t begin, int64_t end) {
        for (int64_t b = begin; b < end; ++b) {
            const int32_t* row = indices + b * max_active;
            int64_t length = 0;
            bool bad = false;
            while (length < max_active && row[length] != -1) {
                bad = bad || row[length] < 0 || row[length] >= num_features;
                ++length;
            }
            lengths[b] = length;
            if (bad) {
                int64_t seen = first_bad.load();
                while (b < seen && !first_bad.compare_exchange_weak(seen, b)) {
                }
                return;  // later rows of this range cannot be the first
            }
        }
    });
    const int64_t bad_row = first_bad.load();
    if (bad_row < rows) {
        const int32_t* row = indices + bad_row * max_active;
        while (*row >= 0 && *row < num_features) ++row;
        fail_index(op, bad_row, *row, num_features);
    }
    return lengths;
}

}  // namespace nnue
