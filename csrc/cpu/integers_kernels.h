// The loop over neighbouring elements of _to_integers and of its backward. Compiled once for every instruction set
// level by for_each_isa.h; see integers.cpp.

namespace {

template <class T>
void convert_elements(const integers::Range& range, int64_t begin, int64_t end) {
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

void convert_range(const integers::Range& range, int64_t begin, int64_t end) {
    range.wide ? convert_elements<double>(range, begin, end) : convert_elements<float>(range, begin, end);
}
