// A window function: the body is the user's.
namespace {
template <class T>
struct Elements {
    const T* from;
    int64_t count;
    NNUE_HERE int64_t size() const { return count; }
    NNUE_HERE double operator[](int64_t i) const { return static_cast<double>(from[i]); }
};
template <class Window>
NNUE_HERE double of_window(const Window w) {
#line 1
    BODY
}
#line 1 "apply"
template <class T>
NNUE_HERE void one(const Job& job, int64_t index) {
    const int64_t row = index / job.n, i = index % job.n;
    const int64_t first = i + job.first, last = first + job.length;
    const int64_t begin = first < 0 ? 0 : first > job.n ? job.n : first;
    const int64_t end = last < begin ? begin : last > job.n ? job.n : last;
    const Elements<T> w{static_cast<const T*>(job.x) + row * job.n + begin, end - begin};
    int64_t found = 0;
    for (int64_t j = 0; j < w.count && found < job.min_periods; ++j) found += w[j] - w[j] == 0;
    static_cast<T*>(job.out)[index] =
        static_cast<T>(found >= job.min_periods ? of_window(w) : std::numeric_limits<double>::quiet_NaN());
}
}  // namespace
