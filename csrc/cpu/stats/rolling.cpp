// Operators rolling and rolling_quantile on CPU, threads from torch's own pool; the contracts are in rolling.h.

#include "../../rolling.h"

#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <memory>
#include <new>
#include <numeric>
#include <string>
#include <type_traits>
#include <vector>

namespace nnue::rolling {

constexpr double kNoObservation = std::numeric_limits<double>::quiet_NaN();

// The states of a tile's suffixes, for eight tiles at a time, have to stay in the second-level cache.
constexpr int64_t kMostTile = 1024;

template <class T>
struct Job {
    Windows windows;
    const T *x, *y;
    Finish finish;
    T* out;
    double* sums = nullptr;           // [rows, summed tiles] states of tiles
    const double* between = nullptr;  // [rows, tiles] states of the whole tiles after each tile; null: there are none
    std::atomic<bool>* marked = nullptr;  // becomes true if an output is marked
};

}  // namespace nnue::rolling

#define NNUE_KERNELS "stats/rolling_kernels.h"
#include "../for_each_isa.h"

namespace nnue::rolling {
namespace {

// A thread should have at least this many elements.
constexpr int64_t kGrain = 1 << 15;

// The merged states of the tiles t + 1 ... t + whole - 1, for each tile t, by doubling: [rows, tiles].
template <class M>
std::vector<double> between(const Windows& w, std::vector<double> sums) {
    constexpr int N = M::kNumbers;
    using One = State<double, N>;
    const int64_t count = w.summed, wanted = w.whole - 1;
    std::vector<double> found(w.rows * w.tiles * N), doubled(sums.size());
    const auto at = [](std::vector<double>& states, int64_t i) {
        return reinterpret_cast<One*>(states.data() + i * N);
    };
    for (int64_t i = 0; i < w.rows * w.tiles; ++i) *at(found, i) = M::template identity<double>();
    int64_t offset = 1;
    for (int64_t size = 1; size <= wanted; size *= 2) {
        const bool more = size * 2 <= wanted;
        torch::stable::parallel_for(0, w.rows * count, kGrain, [&](int64_t begin, int64_t end) {
            for (int64_t i = begin; i < end; ++i) {
                const int64_t row = i / count, t = i % count;
                if ((wanted & size) != 0 && t < w.tiles && t + offset < count) {
                    One* const to = at(found, row * w.tiles + t);
                    *to = M::merge(*to, *at(sums, i + offset));
                }
                if (more)
                    *at(doubled, i) = t + size < count ? M::merge(*at(sums, i), *at(sums, i + size)) : *at(sums, i);
            }
        });
        if ((wanted & size) != 0) offset += size;
        if (more) sums.swap(doubled);
    }
    return found;
}

template <class M, class T>
void roll(Job<T> job) {
    Windows& w = job.windows;
    // Neighbouring lanes of a vector read addresses that are one tile apart. At a distance that is a power of two, all
    // of them would fall into the same set of the cache.
    const int64_t tile = even_tile(w.length, kMostTile);
    w.cut(tile > 64 && tile % 64 == 0 ? tile - 1 : tile);
    const int64_t lanes = NNUE_CALL_BEST_ISA(groups_of, 1 << 10), grain = divide_up(kGrain * lanes, w.tile << 10);
    std::vector<double> middle;
    if (w.whole > 1) {
        std::vector<double> sums(w.rows * w.summed * M::kNumbers);
        job.sums = sums.data();
        torch::stable::parallel_for(
            0, NNUE_CALL_BEST_ISA(groups_of, w.rows * w.summed), grain,
            [&](int64_t begin, int64_t end) { NNUE_CALL_BEST_ISA(template sum_tiles<M>, job, begin, end); });
        middle = between<M>(w, std::move(sums));
        job.between = middle.data();
    }
    std::atomic<bool> marked = false;
    job.marked = &marked;
    torch::stable::parallel_for(
        0, NNUE_CALL_BEST_ISA(groups_of, w.rows * w.tiles), grain,
        [&](int64_t begin, int64_t end) { NNUE_CALL_BEST_ISA(template roll_tiles<M>, job, begin, end); });
    if constexpr (std::is_same_v<T, double>) {
        if (!marked) return;
        torch::stable::parallel_for(0, w.rows * w.n, divide_up(kGrain, w.length), [&](int64_t begin, int64_t end) {
            for (int64_t i = begin; i < end; ++i) {
                const int64_t row = i / w.n * w.n;
                job.out[i] = mended<M>(job.out[i], job.finish, job.x + row, job.y + (M::kPair ? row : 0), w.n, w.first,
                                       w.length, i - row);
            }
        });
    }
}

template <class T>
void rolling(const Tensor& x, const std::optional<Tensor>& y, const Windows& w, const Finish& finish, Tensor& out) {
    Job<T> job{w, const_data<T>(x), const_data<T>(y), finish, mutable_data<T>(out)};
    if (w.length == 0) {
        std::fill_n(job.out, w.rows * w.n, static_cast<T>(finish(Sum::identity<double>())));
        return;
    }
    with_monoid(finish.statistic, [&]<class M>() { roll<M>(job); });
}

Tensor rolling_op(const Tensor& x_in, const std::optional<Tensor>& y_in, int64_t statistic, int64_t first,
                  int64_t length, int64_t min_periods, double ddof) {
    const Windows w = check_windows(kName, x_in, Device::cpu, first, length, min_periods);
    const Finish finish(check_enumeration<Statistic>(kName, "statistic", statistic), min_periods, ddof);
    check_second(x_in, y_in, finish.statistic, Device::cpu);
    const Tensor x = torch::stable::contiguous(x_in);
    const std::optional<Tensor> y = contiguous(y_in);
    Tensor out = torch::stable::new_empty(x, x.sizes());
    if (w.rows * w.n == 0) return out;
    with_float_or_double(x.scalar_type(), [&]<class T>(T*) { rolling<T>(x, y, w, finish, out); });
    return out;
}

// ---- quantiles --------------------------------------------------------------------------------------------------

// A set of numbers 0 ... size - 1 that finds its k-th smallest member: one bit per number, and a Fenwick tree over the
// counts of 64 bits each.
class OrderedSet {
  public:
    explicit OrderedSet(int64_t size) : bits_(divide_up(size, 64)), counts_(bits_.size() + 1), top_(1) {
        while (top_ * 2 <= static_cast<int64_t>(bits_.size())) top_ *= 2;
    }

    void insert(int64_t number) {
        bits_[number / 64] |= uint64_t{1} << number % 64;
        add(number / 64, 1);
    }
    void erase(int64_t number) {
        bits_[number / 64] &= ~(uint64_t{1} << number % 64);
        add(number / 64, -1);
    }
    // k from 0 on, below the number of members.
    int64_t at(int64_t k) const {
        int64_t word = 0;
        for (int64_t step = top_; step > 0; step /= 2) {
            if (word + step < static_cast<int64_t>(counts_.size()) && counts_[word + step] <= k) {
                word += step;
                k -= counts_[word];
            }
        }
        uint64_t bits = bits_[word];
        for (; k > 0; --k) bits &= bits - 1;
        return word * 64 + std::countr_zero(bits);
    }

  private:
    void add(int64_t word, int32_t change) {
        for (int64_t i = word + 1; i < static_cast<int64_t>(counts_.size()); i += i & -i) counts_[i] += change;
    }

    std::vector<uint64_t> bits_;
    std::vector<int32_t> counts_;  // counts_[i] is the sum of the words (i - lowest bit of i, i]
    int64_t top_;
};

// Outputs [begin, end) of one row. The observations that their windows reach are sorted once; the set then holds the
// ranks of those in the window.
template <class T>
void quantiles(const Windows& w, const T* x, int64_t begin, int64_t end, const Quantile& quantile, T* out) {
    const int64_t low = std::clamp<int64_t>(begin + w.first, 0, w.n);
    const int64_t high = std::clamp<int64_t>(end - 1 + w.first + w.length, low, w.n);
    std::vector<int32_t> order, rank(high - low, -1);
    for (int64_t i = low; i < high; ++i) {
        if (std::isfinite(x[i])) order.push_back(static_cast<int32_t>(i - low));
    }
    std::sort(order.begin(), order.end(),
              [&](int32_t a, int32_t b) { return x[low + a] < x[low + b] || (x[low + a] == x[low + b] && a < b); });
    for (size_t r = 0; r < order.size(); ++r) rank[order[r]] = static_cast<int32_t>(r);
    OrderedSet set(std::max<int64_t>(static_cast<int64_t>(order.size()), 1));
    int64_t from = low, to = low, count = 0;
    for (int64_t i = begin; i < end; ++i) {
        const int64_t window_end = std::clamp(i + w.first + w.length, low, high);
        const int64_t window_begin = std::clamp(i + w.first, low, window_end);
        for (; to < window_end; ++to) {
            if (rank[to - low] >= 0) set.insert(rank[to - low]), ++count;
        }
        for (; from < window_begin; ++from) {
            if (rank[from - low] >= 0) set.erase(rank[from - low]), --count;
        }
        out[i] =
            static_cast<T>(quantile(count, [&](int64_t k) { return static_cast<double>(x[low + order[set.at(k)]]); }));
    }
}

template <class T>
void all_quantiles(const Tensor& x, const Windows& w, const Quantile& quantile, Tensor& out) {
    // Each segment has to sort one extra window, so a segment is at least as long as the window. But there should be
    // enough segments for all threads.
    const int64_t segment = std::clamp<int64_t>(std::max<int64_t>(w.length, 1 << 13), 1, w.n);
    const int64_t segments = divide_up(w.n, segment);
    torch::stable::parallel_for(0, w.rows * segments, divide_up(1 << 12, segment), [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) {
            const int64_t row = i / segments, first = i % segments * segment;
            quantiles(w, const_data<T>(x) + row * w.n, first, std::min(first + segment, w.n), quantile,
                      mutable_data<T>(out) + row * w.n);
        }
    });
}

Tensor rolling_quantile_op(const Tensor& x_in, int64_t first, int64_t length, int64_t min_periods, double quantile,
                           int64_t interpolation) {
    const Windows w = check_windows(kQuantileName, x_in, Device::cpu, first, length, min_periods);
    const Quantile q = check_quantile(min_periods, quantile, interpolation);
    if (w.length > INT32_MAX / 2)
        fail(kQuantileName, "length", w.length, "at most 2^30 elements that a window reaches");
    const Tensor x = torch::stable::contiguous(x_in);
    Tensor out = torch::stable::new_empty(x, x.sizes());
    if (w.rows * w.n == 0) return out;
    with_float_or_double(x.scalar_type(), [&]<class T>(T*) { all_quantiles<T>(x, w, q, out); });
    return out;
}

}  // namespace
}  // namespace nnue::rolling

STABLE_TORCH_LIBRARY_IMPL(nnue, CPU, m) {
    NNUE_IMPL(m, "rolling", &nnue::rolling::rolling_op);
    NNUE_IMPL(m, "rolling_quantile", &nnue::rolling::rolling_quantile_op);
}
