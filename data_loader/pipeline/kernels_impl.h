// Bodies of the hot loops; included once per instruction set by kernels_*.cpp, nowhere else.
#pragma once

#if defined(__AVX2__)
#include <immintrin.h>
#endif

#include "features/feature_sets.h"
#include "formats/movetext.h"
#include "formats/replay.h"
#include "pipeline/kernels.h"
#include "pipeline/random.h"

namespace nnue::data {
inline namespace NNUE_ISA {

inline DecodeResult decode_chains(const std::uint8_t* payload, std::size_t size, std::size_t offset, Record* out,
                                  std::uint8_t* flags, std::size_t capacity) {
    constexpr std::size_t kStem = 34;
    DecodeResult result;
    result.offset = offset;
    Entry entry;
    std::size_t unscored = 0;
    while (size - result.offset >= kStem) {
        const std::uint8_t* chain = payload + result.offset;
        const std::size_t plies = load_be16(chain + 32);
        if (capacity - result.positions < plies + 1) break;
        Record* stem = out + result.positions;
        std::memcpy(stem, chain, sizeof(Record));
        if ((result.error = unpack(*stem, entry))) break;
        if (entry.position.castling && !has_standard_castling(entry.position)) {
            result.error = "a castling rook off its corner, or a king off e1 or e8: a binpack holds no Chess960";
            break;
        }
        std::uint8_t* stem_flags = flags ? flags + result.positions : nullptr;
        if (flags) *stem_flags = position_flags(entry);
        std::size_t used = 0;
        if (plies > 0) {
            const std::size_t left = size - result.offset - kStem;
            std::uint8_t* next_flags = flags ? stem_flags + 1 : nullptr;
            std::size_t found = 0;
            result.error = decode_movetext(entry, chain + kStem, left, plies, stem + 1, next_flags, used, found);
            unscored += found;
            if (result.error) break;
        }
        constexpr unsigned kNone = 2 * kScoreNone;  // as a record stores it: zig-zag
        unscored += load_be16(chain + 26) == kNone;
        result.offset += kStem + used;
        result.positions += plies + 1;
        ++result.chains;
        result.single_chains += plies == 0;
    }
    result.unscored = unscored;
    return result;
}

inline constexpr std::size_t kAhead = 16;  // hides memory latency where a shuffle buffer is larger than the caches

inline void permute(std::uint32_t n, std::uint64_t key, std::size_t first, std::size_t count, std::uint32_t* out) {
    const Permutation permutation(n, key);
    permutation.fill(static_cast<std::uint32_t>(first), count, out);
}

inline void gather(const Record* records, const std::uint32_t* order, std::size_t n, Record* out) {
    for (std::size_t i = 0; i < n; ++i) {
        if (i + kAhead < n) __builtin_prefetch(&records[order[i + kAhead]]);
        std::memcpy(&out[i], &records[order[i]], sizeof(Record));
    }
}

// Eight lanes of 64 bits. Each sums products of the halves of its words after a key was added, which depends on the
// place of the word (the hash NH): bytes that differ give the same sums with a chance of 2^-32, or 2^-32 for each lane
// that they lie in.
struct DigestLanes {
    static constexpr std::size_t kLanes = 8, kBytes = 8 * kLanes;
    static constexpr std::uint64_t kStep = 0x9e3779b97f4a7c15ULL;
    std::uint64_t products[kLanes] = {}, keys[kLanes];

    explicit DigestLanes(std::uint64_t key) {
        for (std::size_t i = 0; i < kLanes; ++i) keys[i] = mix(key ^ (i << 56));
    }
    void add(const std::uint8_t* bytes, std::size_t blocks) {
#if defined(__AVX2__)
        // What compilers make of the loop below keeps the lanes in memory, which takes three times as long.
        constexpr std::size_t kVectors = kBytes / sizeof(__m256i);
        __m256i p[kVectors], k[kVectors];
        std::memcpy(p, products, kBytes), std::memcpy(k, keys, kBytes);
        const __m256i step = _mm256_set1_epi64x(static_cast<long long>(kStep));
        for (; blocks > 0; --blocks, bytes += kBytes) {
            for (std::size_t i = 0; i < kVectors; ++i) {
                const __m256i word = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(bytes) + i);
                const __m256i keyed = _mm256_add_epi64(word, k[i]);
                p[i] = _mm256_add_epi64(p[i], _mm256_mul_epu32(keyed, _mm256_srli_epi64(keyed, 32)));
                k[i] = _mm256_add_epi64(k[i], step);
            }
        }
        std::memcpy(products, p, kBytes), std::memcpy(keys, k, kBytes);
#else
        for (; blocks > 0; --blocks, bytes += kBytes) {
            std::uint64_t words[kLanes];
            std::memcpy(words, bytes, kBytes);
            for (std::size_t i = 0; i < kLanes; ++i) {
                const std::uint64_t keyed = words[i] + keys[i];
                products[i] += (keyed & 0xffffffff) * (keyed >> 32);
                keys[i] += kStep;
            }
        }
#endif
    }
};

inline std::uint64_t digest(const std::uint8_t* bytes, std::size_t n, std::uint64_t before) {
    DigestLanes lanes(n);
    const std::size_t whole = n / DigestLanes::kBytes, rest = n % DigestLanes::kBytes;
    lanes.add(bytes, whole);
    if (rest > 0) {
        std::uint8_t last[DigestLanes::kBytes] = {};
        std::memcpy(last, bytes + n - rest, rest);
        lanes.add(last, 1);
    }
    std::uint64_t result = mix(n ^ before);
    for (const std::uint64_t sum : lanes.products) result = mix(result ^ sum);
    return result;
}

// write_rows(record, pieces, white, black) writes the rows of a position and returns how many entries they have.
template <class WriteRows>
inline void expand_batch(const Record* records, const std::uint32_t* order, std::size_t n, std::size_t max_active,
                         const BatchRows& rows, WriteRows write_rows) {
    for (std::size_t i = 0; i < n; ++i) {
        if (order && i + kAhead < n) __builtin_prefetch(&records[order[i + kAhead]]);
        const std::uint8_t* record = records[order ? order[i] : i].bytes.data();
        const Pieces p = pieces_of_record(record);
        const int count = write_rows(record, p, rows.white + i * max_active, rows.black + i * max_active);
        rows.counts[i] = static_cast<std::int16_t>(count);
        rows.score[i] = static_cast<std::int16_t>(record_score(record));
        rows.result[i] = static_cast<std::int8_t>(record_result(record));
        rows.black_to_move[i] = p.black_to_move;
        rows.piece_count[i] = static_cast<std::uint8_t>(p.count);
        rows.material[i] = static_cast<std::uint8_t>(record_material(record, p.black_to_move));
    }
}

inline void expand(const Record* records, const std::uint32_t* order, std::size_t n, const FeatureSet& set,
                   const BatchRows& rows) {
    const auto max_active = static_cast<std::size_t>(set.max_active);
    if (!set.is_single()) {
        expand_batch(records, order, n, max_active, rows,
                     [&](const std::uint8_t* record, const Pieces& p, std::int32_t* white, std::int32_t* black) {
                         return expand_rows(set, record, p, white, black);
                     });
        return;
    }
    with_set(set.parts[0], [&]<class Set>(Set one) {
        const int length = [&] {
            if constexpr (std::is_same_v<Set, DeclaredSet>) {
                return set.max_active;
            } else {
                return Set::kMaxActive;  // a constant, so that the compiler can unroll
            }
        }();
        expand_batch(records, order, n, static_cast<std::size_t>(length), rows,
                     [&](const std::uint8_t* record, const Pieces& p, std::int32_t* white, std::int32_t* black) {
                         return expand_rows(one, length, record, p, white, black);
                     });
    });
}

#define NNUE_STRING_(text) #text
#define NNUE_STRING(text) NNUE_STRING_(text)
inline constexpr Kernels kTable{NNUE_STRING(NNUE_ISA),
                                replay<detail::viriformat_move>,
                                replay<detail::montyformat_move>,
                                decode_chains,
                                expand,
                                permute,
                                gather,
                                digest};

}  // namespace NNUE_ISA
}  // namespace nnue::data
