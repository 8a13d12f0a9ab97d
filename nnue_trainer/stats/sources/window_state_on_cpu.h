// A segment of a row is as many outputs, and begins with a new state. What its windows reach is added at the end and
// removed at the beginning. With `merge`, nothing is removed: the segments are as long as a window. Those windows
// consist of a suffix of the elements before a cut and a prefix of those behind it.
namespace {
template <class W, class T>
void merged(const Job& job, const Reach<T>& reach, int64_t begin, int64_t end, T* out) {
    constexpr int64_t kFew = std::clamp<int64_t>(512 / sizeof(Part<W>), 1, 16);  // short windows need no allocation
    Part<W> few[kFew];
    std::vector<Part<W>> many(static_cast<size_t>(end - begin > kFew ? end - begin : 0));
    Part<W>* const suffixes = many.empty() ? few : many.data();
    const int64_t cut = begin + job.first + job.length;
    Part<W> suffix, prefix;
    for (int64_t i = cut - 1; i >= begin + job.first; --i) {
        Part<W> one;
        reach.add(one.window, one.found, i);
        one.append(suffix);
        suffix = one;
        const int64_t at = i - begin - job.first;
        if (at < end - begin) suffixes[at] = suffix;
    }
    for (int64_t i = begin; i < end; ++i) {
        Part<W> both = suffixes[i - begin];
        both.append(prefix);
        out[i] = number<T>(both.window, both.found, job.min_periods);
        reach.add(prefix.window, prefix.found, cut + i - begin);
    }
}
template <class W, class T>
void slid(const Job& job, const Reach<T>& reach, int64_t begin, int64_t end, T* out) {
    W window{};
    int64_t found = 0;
    for (int64_t i = begin + job.first; i < begin + job.first + job.length; ++i) reach.add(window, found, i);
    for (int64_t i = begin; i < end; ++i) {
        out[i] = number<T>(window, found, job.min_periods);
        const int64_t old = i + job.first;
        reach.add(window, found, old + job.length);
        if (!reach.observed(old)) continue;
        window.remove(static_cast<double>(reach.x[old]));
        if (--found == 0) window = W{};
    }
}
template <class T>
void one(const Job& job, int64_t index) {
    const int64_t segments = job.segments(), row = index / segments;
    const int64_t begin = index % segments * job.segment, end = std::min(begin + job.segment, job.n);
    const Reach<T> reach{static_cast<const T*>(job.x) + row * job.n, job.n};
    T* const out = static_cast<T*>(job.out) + row * job.n;
    if constexpr (Merges<Window>) {
        merged<Window>(job, reach, begin, end, out);
    } else {
        slid<Window>(job, reach, begin, end, out);
    }
}
}  // namespace
