// Tasks for the threads of torch's own pool. A free thread takes the next task, so no thread waits for one that has
// more work or was late to wake up.
#pragma once

#include <torch/csrc/stable/ops.h>

#include <algorithm>
#include <atomic>
#include <cstdint>

namespace nnue {

// Calls body(task) once for each task in [0, count), several at a time. Which thread takes which task is chance, so
// every task must write to places of its own.
template <class Body>
void parallel_tasks(int64_t count, const Body& body) {
    const int64_t threads = std::min<int64_t>(torch::stable::get_num_threads(), count);
    if (threads <= 1) {
        for (int64_t task = 0; task < count; ++task) body(task);
        return;
    }
    std::atomic<int64_t> next{0};
    torch::stable::parallel_for(0, threads, 1, [&](int64_t, int64_t) {
        for (int64_t task = next++; task < count; task = next++) body(task);
    });
}

// The same for ranges [begin, end) of `size` items, the last one perhaps shorter: body(begin, end).
template <class Body>
void parallel_ranges(int64_t items, int64_t size, const Body& body) {
    parallel_tasks((items + size - 1) / size,
                   [&](int64_t task) { body(task * size, std::min((task + 1) * size, items)); });
}

}  // namespace nnue
