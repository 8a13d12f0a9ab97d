// The inner loops of an optimizer step, over runs of neighbouring elements. Compiled once for every instruction set
// level by for_each_isa.h; see optimizer.cpp.

namespace {

// Σ x² in 16 sums that are added in a fixed order, in double: squares of finite floats stay finite.
template <class T>
double sum_of_squares(const T* from, int64_t count) {
    constexpr int kSums = 16;
    double sums[kSums] = {};
    int64_t i = 0;
    for (; i + kSums <= count; i += kSums) {
        for (int s = 0; s < kSums; ++s) sums[s] += static_cast<double>(from[i + s]) * static_cast<double>(from[i + s]);
    }
    for (int s = 0; i < count; ++i, ++s) sums[s] += static_cast<double>(from[i]) * static_cast<double>(from[i]);
    for (int half = kSums / 2; half > 0; half /= 2) {
        for (int s = 0; s < half; ++s) sums[s] += sums[s + half];
    }
    return sums[0];
}

template <class T>
void add_run(const T* __restrict__ from, T* __restrict__ to, int64_t count) {
    for (int64_t i = 0; i < count; ++i) to[i] += from[i];
}

template <class To, class From>
void convert_run(const From* __restrict__ from, To* __restrict__ to, int64_t count) {
    for (int64_t i = 0; i < count; ++i) to[i] = static_cast<To>(static_cast<float>(from[i]));
}

// How many gradients were not finite. `other` is `average` itself where the rule has one average only.
template <class R, class T>
int move_run(const optimizer::Common<T>& common, const T* __restrict__ gradient, const T* __restrict__ shared,
             T* __restrict__ weight, T* __restrict__ average, const T* other, T* __restrict__ square, int64_t count) {
    const optimizer::Common<T> c = common;
    int bad = 0;
    for (int64_t i = 0; i < count; ++i) {
        T w = weight[i], a = average[i], s = square[i];
        T o = 0;
        if constexpr (R::kAverages == 2) o = other[i];
        bad += !optimizer::move<R>(c, gradient[i], shared[i], w, a, o, s);
        weight[i] = w;
        average[i] = a;
        square[i] = s;
    }
    return bad;
}

// The change of virtual elements, from the sums of their gradients, in `change`.
template <class R, class T>
int move_shared_run(const optimizer::Common<T>& common, const T* __restrict__ gradient, T* __restrict__ average,
                    const T* other, T* __restrict__ square, T* __restrict__ change, int64_t count) {
    const optimizer::Common<T> c = common;
    int bad = 0;
    for (int64_t i = 0; i < count; ++i) {
        T a = average[i], s = square[i];
        T o = 0;
        if constexpr (R::kAverages == 2) o = other[i];
        bool good = true;
        change[i] = optimizer::move_shared<R>(c, gradient[i], a, o, s, good);
        bad += !good;
        average[i] = a;
        square[i] = s;
    }
    return bad;
}

template <class T>
void look_ahead_run(const optimizer::Common<T>& common, T* __restrict__ slow, T* __restrict__ weight, int64_t count) {
    const optimizer::Common<T> c = common;
    for (int64_t i = 0; i < count; ++i) weight[i] = slow[i] = optimizer::look_ahead(c, slow[i], weight[i]);
}

}  // namespace

// Columns [begin, end) of all rows of a part. `other` and `turn` say which average is this step's. Returns whether all
// gradients were finite.
template <class R, class T>
bool update_columns(const optimizer::Part& part, const optimizer::Common<T>& c, int turn, int64_t begin, int64_t end) {
    const int64_t count = end - begin;
    const auto data = [](void* from) { return static_cast<T*>(from); };
    alignas(64) T sums[optimizer::kRun], changes[optimizer::kRun], buffer[optimizer::kRun];
    // A row's gradients as T.
    const auto gradients = [&](int64_t first) -> const T* {
        switch (part.gradient_kind) {
            case optimizer::Kind::kFloat16:
                convert_run(static_cast<const Half*>(part.gradient) + first, buffer, count);
                return buffer;
            case optimizer::Kind::kBFloat16:
                convert_run(static_cast<const BFloat16*>(part.gradient) + first, buffer, count);
                return buffer;
            default:
                return static_cast<const T*>(part.gradient) + first;
        }
    };
    const int other = R::kAverages == 2 ? 1 - turn : turn;
    int bad = 0;
    for (int64_t i = 0; i < count; ++i) sums[i] = changes[i] = 0;
    if (part.shared_square != nullptr) {
        for (int64_t row = 0; row < part.rows; ++row) add_run(gradients(row * part.columns + begin), sums, count);
        bad += move_shared_run<R>(c, sums, data(part.shared_averages[turn]) + begin,
                                  data(part.shared_averages[other]) + begin, data(part.shared_square) + begin, changes,
                                  count);
    }
    for (int64_t row = 0; row < part.rows; ++row) {
        const int64_t first = row * part.columns + begin;
        T* const weight = data(part.weight) + first;
        bad += move_run<R>(c, gradients(first), changes, weight, data(part.averages[turn]) + first,
                           data(part.averages[other]) + first, data(part.square) + first, count);
        if (part.slow != nullptr && c.lookahead != 0) {
            look_ahead_run(c, data(part.slow) + first, weight, count);
        }
        if (part.copy == nullptr) continue;
        if (part.copy_kind == optimizer::Kind::kFloat16) {
            convert_run(weight, static_cast<Half*>(part.copy) + first, count);
        } else {
            convert_run(weight, static_cast<BFloat16*>(part.copy) + first, count);
        }
    }
    return bad == 0;
}

// Σ of squares of columns [begin, end) of all rows, and of what their virtual rows would have. Not finite where a
// gradient is not.
template <class T>
double squares_of_columns(const optimizer::Summand& from, int64_t begin, int64_t end) {
    using Sum = std::conditional_t<std::is_same_v<T, double>, double, float>;
    const int64_t count = end - begin;
    alignas(64) Sum sums[optimizer::kRun], buffer[optimizer::kRun];
    double total = 0;
    if (from.shares) {
        for (int64_t i = 0; i < count; ++i) sums[i] = 0;
    }
    for (int64_t row = 0; row < from.rows; ++row) {
        const T* at = static_cast<const T*>(from.gradient) + row * from.columns + begin;
        const Sum* values = buffer;
        if constexpr (std::is_same_v<T, Sum>) {
            values = at;
        } else {
            convert_run(at, buffer, count);
        }
        total += sum_of_squares(values, count);
        if (from.shares) add_run(values, sums, count);
    }
    return from.shares ? total + sum_of_squares(sums, count) : total;
}
