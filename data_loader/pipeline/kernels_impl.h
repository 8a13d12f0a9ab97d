// Bodies of the hot loops; included once per instruction set by kernels_*.cpp, nowhere else.
#pragma once

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

// A lane q = lane + word continues as its halves exchanged plus their product. Words whose halves differ in one place
// give different lanes, and lanes that differ stay so except for one chance in 2^64.
inline void digest(DigestLanes& lanes, const std::uint8_t* bytes, std::size_t blocks) {
    constexpr std::size_t kBytes = sizeof(DigestLanes);
#if defined(NNUE_AVX2)
    constexpr std::size_t kVectors = kBytes / sizeof(__m256i);
    __m256i v[kVectors];
    std::memcpy(v, &lanes, kBytes);
    for (; blocks > 0; --blocks, bytes += kBytes) {
        for (std::size_t i = 0; i < kVectors; ++i) {
            const __m256i word = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(bytes) + i);
            const __m256i q = _mm256_add_epi64(v[i], word), swapped = _mm256_shuffle_epi32(q, 0b10110001);
            v[i] = _mm256_add_epi64(swapped, _mm256_mul_epu32(q, swapped));
        }
    }
    std::memcpy(&lanes, v, kBytes);
#else
    for (std::size_t i = 0; i < lanes.size(); ++i) {
        std::uint64_t lane = lanes[i];
        for (std::size_t block = 0; block < blocks; ++block) {
            std::uint64_t word;
            std::memcpy(&word, bytes + block * kBytes + i * sizeof word, sizeof word);
            const std::uint64_t q = lane + word, low = q & 0xffffffff, high = q >> 32;
            lane = (low << 32 | high) + low * high;
        }
        lanes[i] = lane;
    }
#endif
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
                                detail::marlinformat_head,
                                replay<detail::viriformat_move>,
                                replay<detail::montyformat_move>,
                                decode_chains,
                                expand,
                                permute,
                                gather,
                                digest};

}  // namespace NNUE_ISA
}  // namespace nnue::data
