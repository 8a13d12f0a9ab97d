// The loop of _to_integers and its way back over neighbouring elements. Compiled once for every instruction set level
// by for_each_isa.h; see integers.cpp.

namespace {

template <class T>
void run_of(const integers::Range& range, int64_t begin, int64_t end) {
    const T scale = static_cast<T>(range.scale), limit = static_cast<T>(range.limit);
    const float* const __restrict__ from = range.from;
    const float* const __restrict__ gradient = range.gradient;
    float* const __restrict__ to = range.to;
    if (gradient == nullptr) {
        for (int64_t i = begin; i < end; ++i) to[i] = integers::to_integer(from[i], scale, limit);
    } else {
        for (int64_t i = begin; i < end; ++i) to[i] = integers::ste_gradient(from[i], gradient[i], scale, limit);
    }
}

}  // namespace

void integers_of(const integers::Range& range, int64_t begin, int64_t end) {
    range.wide ? run_of<double>(range, begin, end) : run_of<float>(range, begin, end);
}
