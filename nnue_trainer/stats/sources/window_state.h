// A window state: the members are the user's.
namespace {
struct Window {
#line 1
    BODY
};
#line 1 "apply"
template <class W>
concept Merges = requires(W a, const W b) {
    a.merge(b);
};
template <class T>
struct Reach {
    const T* x;
    int64_t n;
    template <class W>
    NNUE_HERE void add(W& to, int64_t& found, int64_t i) const {
        if (!observed(i)) return;
        to.add(static_cast<double>(x[i]));
        ++found;
    }
    NNUE_HERE bool observed(int64_t i) const { return i >= 0 && i < n && x[i] - x[i] == 0; }
};
template <class T, class W>
NNUE_HERE T number(W& window, int64_t found, int64_t least) {
    return static_cast<T>(found >= least ? static_cast<double>(window.value())
                                         : std::numeric_limits<double>::quiet_NaN());
}
template <class W>
struct Part {
    W window{};
    int64_t found = 0;
    // Appends what follows. The user's function gets states with observations only.
    NNUE_HERE void append(const Part& next) {
        if (next.found == 0) return;
        if (found == 0)
            window = next.window;
        else
            window.merge(next.window);
        found += next.found;
    }
};
}  // namespace
