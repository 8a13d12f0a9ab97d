// Operator ewm on CPU, threads from torch's own pool; the contract is in ewm.h.
//
// A row is cut into runs. A single run is scanned directly. Otherwise the states of all runs are computed first, then
// the state before each run, and then the outputs: the row is read twice.

#include "../../ewm.h"

#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <vector>

namespace nnue::ewm {
namespace {

constexpr int64_t kRun = 1 << 16;

// The place of the last observation in [begin, end); -1: none.
template <class T>
int64_t last_observation(const T* x, int64_t begin, int64_t end) {
    for (int64_t i = end - 1; i >= begin; --i) {
        if (x[i] - x[i] == 0) return i;
    }
    return -1;
}

template <bool kVariance, class T>
State<kVariance> scan(const Rule& rule, const T* x, int64_t begin, int64_t end, int64_t last, State<kVariance> state,
                      T* out) {
    for (int64_t i = begin; i < end; ++i) {
        const double value = static_cast<double>(x[i]);
        state = merge(state, rule.element<kVariance>(value, i, last));
        // Otherwise a long product of factors below 1 becomes a denormal number, and processors are slow with those.
        if (state.decay < 1e-290) state.decay = 0;
        if (value - value == 0) last = i;
        if (out != nullptr) out[i] = static_cast<T>(rule.finish(state));
    }
    return state;
}

template <bool kVariance, class T>
void run(const Rule& rule, const T* x, int64_t rows, int64_t n, T* out) {
    const int64_t runs = divide_up(n, kRun);
    if (runs == 1 || torch::stable::get_num_threads() == 1) {
        torch::stable::parallel_for(0, rows, divide_up(kRun, n), [&](int64_t begin, int64_t end) {
            for (int64_t row = begin; row < end; ++row) {
                scan<kVariance>(rule, x + row * n, 0, n, -1, State<kVariance>{}, out + row * n);
            }
        });
        return;
    }
    std::vector<int64_t> last(rows * runs);
    std::vector<State<kVariance>> before(rows * runs);
    const auto for_each_run = [&](const auto& body) {
        torch::stable::parallel_for(0, rows * runs, 1, [&](int64_t begin, int64_t end) {
            for (int64_t i = begin; i < end; ++i) {
                const int64_t first = i % runs * kRun;
                body(i, x + i / runs * n, first, std::min(first + kRun, n), out + i / runs * n);
            }
        });
    };
    if (rule.needs_last()) {
        for_each_run([&](int64_t i, const T* row, int64_t begin, int64_t end, T*) {
            last[i] = last_observation(row, begin, end);
        });
        for (int64_t i = 0; i < rows * runs; i += runs) {
            int64_t found = -1;
            for (int64_t r = i; r < i + runs; ++r) {
                const int64_t mine = last[r];
                last[r] = found;
                if (mine >= 0) found = mine;
            }
        }
    } else {
        std::fill(last.begin(), last.end(), -1);
    }
    for_each_run([&](int64_t i, const T* row, int64_t begin, int64_t end, T*) {
        before[i] = scan<kVariance>(rule, row, begin, end, last[i], State<kVariance>{}, static_cast<T*>(nullptr));
    });
    for (int64_t i = 0; i < rows * runs; i += runs) {
        State<kVariance> all;
        for (int64_t r = i; r < i + runs; ++r) {
            const State<kVariance> mine = before[r];
            before[r] = all;
            all = merge(all, mine);
        }
    }
    for_each_run([&](int64_t i, const T* row, int64_t begin, int64_t end, T* to) {
        scan(rule, row, begin, end, last[i], before[i], to);
    });
}

template <class T>
void ewm(const Rule& rule, const Tensor& x, const Tensor& out) {
    const int64_t n = x.size(x.dim() - 1), rows = x.numel() / n;
    rule.statistic == Statistic::mean ? run<false>(rule, const_data<T>(x), rows, n, mutable_data<T>(out))
                                      : run<true>(rule, const_data<T>(x), rows, n, mutable_data<T>(out));
}

Tensor ewm_op(const Tensor& x_in, int64_t statistic, double alpha, bool adjust, bool ignore_na, bool bias,
              int64_t min_periods) {
    const Rule rule = check_rule(x_in, Device::cpu, statistic, alpha, adjust, ignore_na, bias, min_periods);
    const Tensor x = torch::stable::contiguous(x_in);
    const Tensor out = torch::stable::new_empty(x, x.sizes());
    if (x.numel() == 0) return out;
    with_float_or_double(x.scalar_type(), [&]<class T>(T*) { ewm<T>(rule, x, out); });
    return out;
}

}  // namespace
}  // namespace nnue::ewm

STABLE_TORCH_LIBRARY_IMPL(nnue, CPU, m) {
    NNUE_IMPL(m, "ewm", &nnue::ewm::ewm_op);
}
