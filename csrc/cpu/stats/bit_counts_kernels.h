// Population counts of a & b, compiled once for every instruction set level (for_each_isa.h). Carry-save adders (Harley
// and Seal) add eight vectors of bits into one vector of weight 8, and only those are counted.

using Word = VectorOf<uint64_t, NNUE_VECTOR_BYTES>::type;
using WordInMemory = VectorOf<uint64_t, NNUE_VECTOR_BYTES>::InMemory;
constexpr int64_t kWordLanes = NNUE_VECTOR_BYTES / 8;

// a + b + c of each bit: the sum stays in a, and the carry is returned.
[[gnu::always_inline]] inline Word add_bits(Word& a, Word b, Word c) {
    const Word half = a ^ b, carry = (a & b) | (half & c);
    a = half ^ c;
    return carry;
}

// The set bits of each byte.
[[gnu::always_inline]] inline Word bytes_of(Word x) {
    x -= x >> 1 & 0x5555555555555555u;
    x = (x & 0x3333333333333333u) + (x >> 2 & 0x3333333333333333u);
    return (x + (x >> 4)) & 0x0f0f0f0f0f0f0f0fu;
}

// The sum of all bytes of a vector.
[[gnu::always_inline]] inline int64_t sum_of_bytes(Word x) {
    x = (x & 0x00ff00ff00ff00ffu) + (x >> 8 & 0x00ff00ff00ff00ffu);
    x = (x & 0x0000ffff0000ffffu) + (x >> 16 & 0x0000ffff0000ffffu);
    int64_t sum = 0;
    for (int64_t lane = 0; lane < kWordLanes; ++lane)
        sum += static_cast<int64_t>((x[lane] >> 32) + (x[lane] & 0xffffffffu));
    return sum;
}

inline int64_t count_shared_bits(const uint64_t* a, const uint64_t* b, int64_t words) {
    const auto both = [&](int64_t i) {
        return *reinterpret_cast<const WordInMemory*>(a + i) & *reinterpret_cast<const WordInMemory*>(b + i);
    };
    constexpr int64_t kGroup = 8 * kWordLanes;
    Word ones = {}, twos = {}, fours = {};
    int64_t total = 0, i = 0;
    while (i + kGroup <= words) {
        Word bytes = {};  // at most 31 times 8
        for (int group = 0; group < 31 && i + kGroup <= words; ++group, i += kGroup) {
            const auto pair = [&](int64_t k) {
                const Word x = both(i + k * kWordLanes), y = both(i + (k + 1) * kWordLanes);
                return add_bits(ones, x, y);
            };
            const Word t0 = pair(0), t1 = pair(2);
            const Word f0 = add_bits(twos, t0, t1);
            const Word t2 = pair(4), t3 = pair(6);
            const Word f1 = add_bits(twos, t2, t3);
            bytes += bytes_of(add_bits(fours, f0, f1));
        }
        total += 8 * sum_of_bytes(bytes);
    }
    if (i > 0)
        total += 4 * sum_of_bytes(bytes_of(fours)) + 2 * sum_of_bytes(bytes_of(twos)) + sum_of_bytes(bytes_of(ones));
    for (; i < words; ++i) total += std::popcount(a[i] & b[i]);
    return total;
}

// Adds the counts of words [begin, end) to rows [i0, i1) and columns [j0, j1); where b is a, only of those with j >= i.
inline void add_counts(const graph::CountJob& job, int64_t i0, int64_t i1, int64_t j0, int64_t j1, int64_t begin,
                       int64_t end) {
    for (int64_t i = i0; i < i1; ++i) {
        for (int64_t j = job.symmetric ? std::max(i, j0) : j0; j < j1; ++j) {
            job.out[i * job.columns + j] += static_cast<int32_t>(
                count_shared_bits(job.a + i * job.words + begin, job.b + j * job.words + begin, end - begin));
        }
    }
}
