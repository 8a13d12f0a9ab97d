// How the CPU operators over index rows prepare a batch before they sum: an order in which to visit the rows, and the
// lists (feature -> rows) of the backward.
#pragma once

#include <torch/csrc/stable/ops.h>

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "../dtypes.h"

namespace nnue {

// The rows in the order of their first index. In every king-bucketed set the features of one bucket are neighbours, so
// rows of one bucket come together and find its weights in the cache. `entries_of(row)` is the span of a row's indices.
template <class EntriesOf>
std::vector<int64_t> visiting_order(int64_t rows, int64_t num_features, const EntriesOf& entries_of) {
    std::vector<int64_t> starts(num_features + 2), order(rows);
    const auto key = [&](int64_t row) -> int64_t {
        const std::span<const int32_t> entries = entries_of(row);
        return entries.empty() ? 0 : entries[0];
    };
    for (int64_t row = 0; row < rows; ++row) ++starts[key(row) + 1];
    for (int64_t f = 0; f < num_features; ++f) starts[f + 1] += starts[f];
    for (int64_t row = 0; row < rows; ++row) order[starts[key(row)]++] = row;
    return order;
}

template <class T, class Out>
struct WeightGradientArguments {
    const int64_t* starts;   // [features + 1]
    const int64_t* rows;     // of each feature, ascending
    const sum_t<T>* values;  // in the order of `rows`, or null
    const T* source;         // the first column of row 0
    int64_t stride;          // elements from one row of `source` to the next
    Out* grad_weight;        // [features, num_outputs]
    int64_t num_outputs;
};

// Lists of rows by feature. Each thread reads all indices and stores those of its own features, so that each list is in
// the order of the rows.
template <class S>
struct FeatureLists {
    std::vector<int64_t> starts;  // [F + 1]
    std::vector<int64_t> rows;
    std::vector<S> values;

    // `entries_of(row)` is the span of a row's indices, `values_of(row)` a pointer to their values or null.
    template <class EntriesOf, class ValuesOf>
    FeatureLists(int64_t num_rows, int64_t num_features, bool has_values, const EntriesOf& entries_of,
                 const ValuesOf& values_of)
        : starts(num_features + 1) {
        std::vector<int64_t> next(num_features);
        const auto own_features = [&](const auto& visit) {
            // Every thread reads every index, so there are few and large ranges.
            const int64_t grain = std::max<int64_t>(1024, num_features / torch::stable::get_num_threads());
            torch::stable::parallel_for(0, num_features, grain, [&](int64_t begin, int64_t end) {
                for (int64_t row = 0; row < num_rows; ++row) {
                    const std::span<const int32_t> entries = entries_of(row);
                    for (size_t k = 0; k < entries.size(); ++k) {
                        if (entries[k] >= begin && entries[k] < end) visit(entries[k], row, k);
                    }
                }
            });
        };
        own_features([&](int32_t feature, int64_t, size_t) { ++next[feature]; });
        for (int64_t f = 0; f < num_features; ++f) {
            starts[f + 1] = starts[f] + next[f];
            next[f] = starts[f];
        }
        rows.resize(starts.back());
        if (has_values) values.resize(starts.back());
        own_features([&](int32_t feature, int64_t row, size_t k) {
            const int64_t slot = next[feature]++;
            rows[slot] = row;
            if (has_values) values[slot] = values_of(row)[k];
        });
    }
};

// The bounds of `count` ranges of features with about equal work, where an entry of a list is a row read and a feature
// is a row written. `starts` [features + 1] are the beginnings of their lists.
inline std::vector<int64_t> even_ranges(const std::vector<int64_t>& starts, int64_t count) {
    const int64_t num_features = static_cast<int64_t>(starts.size()) - 1;
    const auto work_before = [&](int64_t f) { return starts[f] + f; };
    std::vector<int64_t> bounds(count + 1, num_features);
    bounds[0] = 0;
    for (int64_t r = 1, f = 0; r < count; ++r) {
        const int64_t target = work_before(num_features) / count * r;
        while (f < num_features && work_before(f) < target) ++f;
        bounds[r] = f;
    }
    return bounds;
}

}  // namespace nnue
