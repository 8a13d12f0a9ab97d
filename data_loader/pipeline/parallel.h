// A loop over [0, n) in equal parts on several threads; the first exception is rethrown in the caller.
#pragma once

#include <algorithm>
#include <cstddef>
#include <exception>
#include <system_error>
#include <thread>
#include <vector>

namespace nnue::data {

// One for each CPU that this process may run on, and no more than the quota of its container.
int default_threads();

// Calls body(begin, end) for disjoint ranges that cover [0, n). threads ≤ 0: one per CPU. Small loops stay on one
// thread. Where the system gives no more threads, the calling thread does their parts itself.
template <class Body>
void parallel_for(std::size_t n, int threads, Body&& body) {
    constexpr std::size_t kGrain = 4096;
    if (threads <= 0) threads = default_threads();
    const std::size_t parts = std::clamp<std::size_t>(n / kGrain, 1, static_cast<std::size_t>(threads));
    std::vector<std::exception_ptr> errors(parts);
    std::vector<std::jthread> workers;
    const auto run = [&](std::size_t part) {
        try {
            body(n * part / parts, n * (part + 1) / parts);
        } catch (...) {
            errors[part] = std::current_exception();
        }
    };
    std::size_t started = 1;
    try {
        for (; started < parts; ++started) workers.emplace_back(run, started);
    } catch (const std::system_error&) {
    }
    run(0);
    for (std::size_t part = started; part < parts; ++part) run(part);
    workers.clear();  // joins
    for (const std::exception_ptr& error : errors) {
        if (error) std::rethrow_exception(error);
    }
}

}  // namespace nnue::data
