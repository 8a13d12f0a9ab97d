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

// Prefetches elements that will be read and written soon. The rows are scattered over memory, so the processor's own
// prefetching starts again with each of them.
template <class T>
void prefetch_run(const T* from, int64_t count) {
    constexpr int64_t kLine = kLineBytes / sizeof(T);
    for (int64_t i = 0; i < count; i += kLine) __builtin_prefetch(from + i, 1);
}

// Whether every element is +0.
template <int64_t count, class T>
bool all_zero(const T* from) {
    using Bits = std::conditional_t<sizeof(T) == 8, uint64_t, std::conditional_t<sizeof(T) == 4, uint32_t, uint16_t>>;
    Bits any = 0;
    for (int64_t i = 0; i < count; ++i) any |= std::bit_cast<Bits>(from[i]);
    return any == 0;
}

// A step of elements whose gradients are zeros: as below.
template <class R, class T>
void fade_run(const optimizer::Common<T>& common, const T* __restrict__ shared, T* __restrict__ weight,
              optimizer::average_t<R, T>* __restrict__ average, const optimizer::average_t<R, T>* other,
              T* __restrict__ square, int64_t count) {
    optimizer::Common<T> c = common;
    c.gradient = 1;  // lets the compiler assume that no gradient is bad
    for (int64_t i = 0; i < count; ++i) {
        T w = weight[i], a = optimizer::average_of(average[i]), s = 0;
        T o = 0;
        if constexpr (R::kAverages == 2) o = other[i];
        if constexpr (R::kSquares) s = square[i];
        optimizer::move<R>(c, T(0), shared[i], w, a, o, s);
        weight[i] = w;
        optimizer::keep_average(a, average[i]);
        if constexpr (R::kSquares) square[i] = s;
    }
}

// How many gradients were not finite. `other` is `average` itself where the rule has one average only, `square` null
// where it has none.
template <class R, class T>
int move_run(const optimizer::Common<T>& common, const T* __restrict__ gradient, const T* __restrict__ shared,
             T* __restrict__ weight, optimizer::average_t<R, T>* __restrict__ average,
             const optimizer::average_t<R, T>* other, T* __restrict__ square, int64_t count) {
    const optimizer::Common<T> c = common;
    int bad = 0;
    for (int64_t i = 0; i < count; ++i) {
        T w = weight[i], a = optimizer::average_of(average[i]), s = 0;
        T o = 0;
        if constexpr (R::kAverages == 2) o = other[i];
        if constexpr (R::kSquares) s = square[i];
        bad += !optimizer::move<R>(c, gradient[i], shared[i], w, a, o, s);
        weight[i] = w;
        optimizer::keep_average(a, average[i]);
        if constexpr (R::kSquares) square[i] = s;
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
        T a = average[i], s = 0;
        T o = 0;
        if constexpr (R::kAverages == 2) o = other[i];
        if constexpr (R::kSquares) s = square[i];
        bool good = true;
        change[i] = optimizer::move_shared<R>(c, gradient[i], a, o, s, good);
        bad += !good;
        average[i] = a;
        if constexpr (R::kSquares) square[i] = s;
    }
    return bad;
}

template <class T>
void look_ahead_run(const optimizer::Common<T>& common, T* __restrict__ slow, T* __restrict__ weight, int64_t count) {
    const optimizer::Common<T> c = common;
    for (int64_t i = 0; i < count; ++i) weight[i] = slow[i] = optimizer::look_ahead(c, slow[i], weight[i]);
}

}  // namespace

// Columns [begin, end) of all rows of a part. `other` and `turn` select the average of this step. Returns whether all
// gradients were finite.
template <class R, class T>
bool update_columns(const optimizer::Part& part, const optimizer::Common<T>& c, int turn, int64_t begin, int64_t end) {
    const int64_t count = end - begin;
    const auto data = [](void* from) { return static_cast<T*>(from); };
    const auto averages = [](void* from) { return static_cast<optimizer::average_t<R, T>*>(from); };
    // Null for a tensor that the rule does not have.
    const auto from = [&](void* tensor, int64_t first) { return tensor == nullptr ? nullptr : data(tensor) + first; };
    alignas(64) T sums[optimizer::kRun], changes[optimizer::kRun], buffer[optimizer::kRun];
    // A row's gradients as T.
    const auto gradients = [&](int64_t first) -> const T* {
        switch (part.gradient_type) {
            case Float::kFloat16:
                convert_run(static_cast<const Half*>(part.gradient) + first, buffer, count);
                return buffer;
            case Float::kBFloat16:
                convert_run(static_cast<const BFloat16*>(part.gradient) + first, buffer, count);
                return buffer;
            default:
                return static_cast<const T*>(part.gradient) + first;
        }
    };
    const int other = R::kAverages == 2 ? 1 - turn : turn;
    int bad = 0;
    for (int64_t i = 0; i < count; ++i) sums[i] = changes[i] = 0;
    if (part.shares) {
        for (int64_t row = 0; row < part.rows; ++row) add_run(gradients(row * part.columns + begin), sums, count);
        bad += move_shared_run<R>(c, sums, data(part.shared_averages[turn]) + begin,
                                  data(part.shared_averages[other]) + begin, from(part.shared_square, begin), changes,
                                  count);
    }
    for (int64_t row = 0; row < part.rows; ++row) {
        const int64_t first = row * part.columns + begin;
        T* const weight = data(part.weight) + first;
        bad += move_run<R>(c, gradients(first), changes, weight, averages(part.averages[turn]) + first,
                           averages(part.averages[other]) + first, from(part.square, first), count);
        if (part.slow != nullptr && c.lookahead != 0) {
            look_ahead_run(c, data(part.slow) + first, weight, count);
        }
        if (part.copy == nullptr) continue;
        const T* copied = weight;
        alignas(64) T whole[optimizer::kRun];
        if (part.steps != 0) {
            const T steps = static_cast<T>(part.steps);
            for (int64_t i = 0; i < count; ++i) whole[i] = optimizer::nearest(weight[i] * steps);
            copied = whole;
        }
        if (part.copy_type == Float::kFloat16) {
            convert_run(copied, static_cast<Half*>(part.copy) + first, count);
        } else {
            convert_run(copied, static_cast<BFloat16*>(part.copy) + first, count);
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

// The steps of one row whose gradients are zeros. `shared` [count] are the changes of its virtual row, or null if it
// has none. `first` is the row's first element in the part, `next` that of the row that will be worked on after it.
template <class R, class T>
void replay_row(const optimizer::Part& part, int64_t first, int64_t next, int64_t columns,
                const optimizer::Common<T>* steps, const int* turns, const T* const* shared, int64_t count) {
    constexpr int64_t kBlock = 64, kAhead = 4 * kBlock;
    using Average = optimizer::average_t<R, T>;
    const auto data = [&](void* from) { return static_cast<T*>(from) + first; };
    const auto average = [&](int k) {
        return k < R::kAverages ? static_cast<Average*>(part.averages[k]) + first : nullptr;
    };
    T* const weight = data(part.weight);
    T* const square = R::kSquares ? data(part.square) : nullptr;
    Average* const averages[2] = {average(0), average(1)};
    T* const slow = part.slow == nullptr ? nullptr : data(part.slow);
    // A block of columns stays in the first cache for all of the steps. The last one may be padded, in buffers.
    alignas(64) T buffers[3][kBlock];
    alignas(64) Average average_buffers[2][kBlock];
    alignas(64) const T zeros[kBlock] = {};
    for (int64_t column = 0; column < columns; column += kBlock) {
        const int64_t wide = std::min(kBlock, columns - column);
        const auto padded = [&](const auto* from, auto* to) {
            std::copy_n(from + column, wide, to);
            std::fill_n(to + wide, kBlock - wide, 0);
            return to;
        };
        const auto block = [&](auto* from, auto* buffer) {
            return wide == kBlock ? from + column : padded(from, buffer);
        };
        const auto keep = [&](const auto* block, auto* to) {
            if (wide < kBlock) std::copy_n(block, wide, to + column);
        };
        const int64_t ahead_of_it = column + kAhead, late_columns = ahead_of_it - columns;
        if (ahead_of_it < columns || late_columns < columns) {
            const int64_t soon = ahead_of_it < columns ? first + ahead_of_it : next + late_columns;
            prefetch_run(static_cast<T*>(part.weight) + soon, kBlock);
            if constexpr (R::kSquares) prefetch_run(static_cast<T*>(part.square) + soon, kBlock);
            for (int k = 0; k < R::kAverages; ++k) prefetch_run(static_cast<Average*>(part.averages[k]) + soon, kBlock);
        }
        T* const w = block(weight, buffers[0]);
        T* const s = R::kSquares ? block(square, buffers[1]) : nullptr;
        Average* const a[2] = {block(averages[0], average_buffers[0]),
                               R::kAverages == 2 ? block(averages[1], average_buffers[1]) : nullptr};
        T* const ahead = slow == nullptr ? nullptr : block(slow, buffers[2]);
        // An average of zero moves nothing, and there is no need for a root and a quotient. -0 is not among these: the
        // next step makes it 0.
        bool still = R::kRests;
        for (int k = 0; k < R::kAverages; ++k) still &= all_zero<kBlock>(a[k]);
        for (int64_t t = 0; t < count; ++t) {
            const optimizer::Common<T> c = steps[t];
            alignas(64) T copied[kBlock];
            const T* from = zeros;
            if (shared != nullptr && shared[t] != nullptr) {
                from = wide == kBlock ? shared[t] + column : padded(shared[t], copied);
            }
            if (still && c.eps > 0) {
                for (int64_t i = 0; i < kBlock; ++i) {
                    T moved = optimizer::multiply_add(-c.decay, w[i], w[i]) - from[i];
                    moved = moved < c.low ? c.low : moved;
                    w[i] = moved > c.high ? c.high : moved;
                    if constexpr (R::kSquares) s[i] = optimizer::multiply_add(c.keep2, s[i], T(0));
                }
            } else {
                const int turn = R::kAverages == 2 ? turns[t] : 0;
                fade_run<R>(c, from, w, a[turn], R::kAverages == 2 ? a[1 - turn] : nullptr, s, kBlock);
            }
            if (slow != nullptr && c.lookahead != 0) look_ahead_run(c, ahead, w, kBlock);
        }
        keep(w, weight);
        if constexpr (R::kSquares) keep(s, square);
        for (int k = 0; k < R::kAverages; ++k) keep(a[k], averages[k]);
        if (slow != nullptr) keep(ahead, slow);
    }
}

// One step for rows v, v + V, v + 2 V, … of a part, which share virtual row v. `places` [F] gives the row of the
// part's gradient is a row's; a row where it is negative does not move. `change` [columns], unless null, receives the
// change of the virtual row. Returns whether all gradients were finite.
template <class R, class T>
bool update_group(const optimizer::Part& part, const optimizer::Common<T>& c, int turn, int64_t v, int64_t virtual_rows,
                  int64_t columns, const int64_t* places, T* change) {
    constexpr int64_t kPiece = 128;  // while it is worked on, that of the next row comes from the memory
    const auto data = [](void* from) { return static_cast<T*>(from); };
    const auto averages = [](void* from) { return static_cast<optimizer::average_t<R, T>*>(from); };
    const auto at = [&](void* tensor, int64_t first) { return tensor == nullptr ? nullptr : data(tensor) + first; };
    const int other = R::kAverages == 2 ? 1 - turn : turn;
    const T* const gradient = static_cast<const T*>(part.gradient);
    const int64_t end = v + part.rows * virtual_rows;
    const auto next_row = [&](int64_t row) {
        while (row < end && places[row] < 0) row += virtual_rows;
        return row;
    };
    alignas(64) T sums[optimizer::kRun], changes[optimizer::kRun];
    int bad = 0;
    for (int64_t column = 0; column < columns; column += optimizer::kRun) {
        const int64_t count = std::min(optimizer::kRun, columns - column);
        const auto begin = [&](int64_t row) { return row * columns + column; };
        for (int64_t i = 0; i < count; ++i) sums[i] = changes[i] = 0;
        if (part.shares) {
            for (int64_t row = next_row(v), next; row < end; row = next) {
                next = next_row(row + virtual_rows);
                const T* const from = gradient + begin(places[row]);
                const T* const soon = next < end ? gradient + begin(places[next]) : nullptr;
                for (int64_t piece = 0; piece < count; piece += kPiece) {
                    const int64_t wide = std::min(kPiece, count - piece);
                    if (soon != nullptr) prefetch_run(soon + piece, wide);
                    add_run(from + piece, sums + piece, wide);
                }
            }
            bad += move_shared_run<R>(c, sums, data(part.shared_averages[turn]) + begin(v),
                                      data(part.shared_averages[other]) + begin(v), at(part.shared_square, begin(v)),
                                      changes, count);
            for (int64_t i = 0; i < count; ++i) change[column + i] = changes[i];
        }
        for (int64_t row = next_row(v), next; row < end; row = next) {
            next = next_row(row + virtual_rows);
            for (int64_t piece = 0; piece < count; piece += kPiece) {
                const int64_t wide = std::min(kPiece, count - piece), first = begin(row) + piece;
                if (next < end) {
                    const int64_t soon = begin(next) + piece;
                    prefetch_run(data(part.weight) + soon, wide);
                    if constexpr (R::kSquares) prefetch_run(data(part.square) + soon, wide);
                    for (int k = 0; k < R::kAverages; ++k) prefetch_run(averages(part.averages[k]) + soon, wide);
                }
                T* const weight = data(part.weight) + first;
                bad += move_run<R>(c, gradient + begin(places[row]) + piece, changes + piece, weight,
                                   averages(part.averages[turn]) + first, averages(part.averages[other]) + first,
                                   at(part.square, first), wide);
                if (part.slow != nullptr && c.lookahead != 0) look_ahead_run(c, data(part.slow) + first, weight, wide);
            }
        }
    }
    return bad == 0;
}
