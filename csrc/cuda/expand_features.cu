// The expansion of packed positions on CUDA: bound by the 256 bytes and more that it writes for each position.
//
// A warp takes several positions. What concerns a whole position (kings, their offsets, counts, score) is done by one
// lane each, for all at once; then the warp goes through the positions with a lane for each piece, and writes each row
// with coalesced stores. The square of the k-th piece comes the other way round: each lane owns two squares, and puts
// them where the number of pieces before them says.
//
// Sets of pairs: the lanes find the pairs of their pieces and list them in shared memory, each behind those of the
// pieces before it; then the warp goes through that list with a lane for each pair, whatever piece it came from.

#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <optional>
#include <type_traits>

#include "../expand_features.h"
#include "common.cuh"
#include "index_check.cuh"

namespace nnue::expand_features {
namespace {

using namespace nnue::cuda;

template <class Set>
constexpr bool kHasPairs = Set::kKind != data::SetKind::kPieceSquare;

// Both few enough that a batch of 16,384 positions occupies every multiprocessor.
template <class Set>
constexpr int kWarps = kHasPairs<Set> ? 8 : 4;  // of a block; with pairs they share tables
template <class Set>
constexpr int kGroup = kHasPairs<Set> ? 8 : kWarp;  // positions of a warp

// What the pieces of a position need to know of it.
struct alignas(16) Head {
    int32_t offset[2];  // by perspective
    uint8_t orientation[2];
    uint8_t king[2];
    uint8_t count;  // 0: no rows
};

// What pairs of pieces are made from: the position that a warp is at.
struct PairStage {
    data::Bitboard victims[6];
    uint8_t codes[64];                                 // by square
    uint16_t pairs[data::FullThreatsV16::kMaxActive];  // squares: first, second << 8
};
static_assert(data::FullThreatsV16::kMaxActive >= data::PP3Wide::kMaxActive);

// Shared memory of one warp.
template <class Set>
struct Stage {
    uint4 records[kGroup<Set>][2];
    uint8_t squares[kGroup<Set>][kWarp];
    Head heads[kGroup<Set>];
    std::conditional_t<kHasPairs<Set>, PairStage, char> pairs;
};

template <class Version>
__device__ const data::ThreatTables<Version> kThreatTables{};

// A block's copy of the tables of its version: lanes look up different entries at once.
template <class Version>
struct TableStage {
    uint4 words[sizeof(data::ThreatTables<Version>) / sizeof(uint4)];

    __device__ void fill(int thread, int threads) {
        const auto* from = reinterpret_cast<const uint4*>(&kThreatTables<Version>);
        for (int i = thread; i < static_cast<int>(std::size(words)); i += threads) words[i] = from[i];
        __syncthreads();
    }
    __device__ const data::ThreatTables<Version>& tables() const {
        return *reinterpret_cast<const data::ThreatTables<Version>*>(words);
    }
};
template <>
struct TableStage<void> {
    __device__ void fill(int, int) {}
};

__device__ inline data::Bitboard occupied(const uint4 (&record)[2]) {
    const uint2 words = *reinterpret_cast<const uint2*>(&record[0]);
    const unsigned high = __byte_perm(words.x, 0, 0x0123), low = __byte_perm(words.y, 0, 0x0123);
    return data::Bitboard{high} << 32 | low;
}

// By the lane that owns the position: `record` and `squares` are its own.
template <class Set>
__device__ void expand_head(const uint4 (&record)[2], const uint8_t (&squares)[kWarp], int64_t row, const Outputs& out,
                            const FindingSink& sink, Head& head) {
    const auto* bytes = reinterpret_cast<const uint8_t*>(&record[0]);
    const uint64_t first = uint64_t{record[0].w} << 32 | record[0].z;
    const uint64_t second = uint64_t{record[1].y} << 32 | record[1].x;
    const int result = data::record_result(bytes);
    const data::RecordScan scan = data::scan_record(occupied(record), first, second, result);
    head.count = 0;
    if (scan.fault == data::RecordFault::kNone) {
        head.count = static_cast<uint8_t>(scan.count);
#pragma unroll
        for (int perspective = 0; perspective < 2; ++perspective) {
            const int king = squares[scan.king_rank[perspective]];
            head.king[perspective] = static_cast<uint8_t>(king);
            if constexpr (!kHasPairs<Set>) {
                head.orientation[perspective] = static_cast<uint8_t>(Set::orientation(perspective, king));
                head.offset[perspective] = Set::offset(perspective, king);
            }
        }
    } else {
        report(sink, row, static_cast<int32_t>(scan.fault));
    }
    if constexpr (!kHasPairs<Set>) {
        out.counts[row] = static_cast<int16_t>(Set::kHasKings ? head.count : max(head.count - 2, 0));
    }
    out.black_to_move[row] = scan.black_to_move;
    out.score[row] = static_cast<int16_t>(data::record_score(bytes));
    out.result[row] = static_cast<int8_t>(result);
    out.piece_count[row] = static_cast<uint8_t>(min(max(scan.count, 1), data::kMaxPieces));
}

__device__ inline int piece_code(const uint8_t* record, int piece, uint8_t square) {
    const uint8_t nibble = record[8 + piece / 2] >> (piece % 2 * 4) & 15;
    return data::plain_code(nibble, square);
}

// By a whole warp, a lane a piece.
template <class Set>
__device__ void expand_rows(const uint8_t* record, const uint8_t (&squares)[kWarp], Head head, int lane, int32_t* white,
                            int32_t* black) {
    const uint8_t square = squares[lane];  // of lanes without a piece: anything
    const int code = piece_code(record, lane, square);
    int32_t* const rows[2] = {white, black};
    if constexpr (Set::kHasKings) {
        static_assert(Set::kMaxActive == kWarp);
#pragma unroll
        for (int perspective = 0; perspective < 2; ++perspective) {
            const int index = data::feature_index<Set>(code, square, perspective, head.orientation[perspective],
                                                       head.offset[perspective]);
            rows[perspective][lane] = lane < head.count ? index : -1;
        }
    } else {
        static_assert(Set::kMaxActive == kWarp - 2);
        const bool listed = lane < head.count && code < 2 * data::kKing;
        const unsigned all = __ballot_sync(kAllLanes, listed);
        const int slot = __popc(all & ((1u << lane) - 1));
#pragma unroll
        for (int perspective = 0; perspective < 2; ++perspective) {
            const int index = data::feature_index<Set>(code, square, perspective, head.orientation[perspective],
                                                       head.offset[perspective]);
            if (listed) rows[perspective][slot] = index;
            if (lane >= __popc(all) && lane < Set::kMaxActive) rows[perspective][lane] = -1;
        }
    }
}

// ---- sets of pairs --------------------------------------------------------------------------------------------------

// A position as the lanes of its warp see it: what it is, and what piece is the lane's own.
struct Position {
    data::CodePlanes board;
    int king[2];
    int lane, count;
    int code, square;  // of the piece; lanes from `count` on have none
};

// The squares of one board in the order of the lanes' bitboards, from those of the first piece on: each lane's pieces
// go behind those of the lanes before it. Returns how many there are, at most `limit`.
__device__ int list_pairs(const Position& p, data::Bitboard partners, int limit, uint16_t* pairs) {
    const int mine = data::popcount(partners);
    int end = mine;
#pragma unroll
    for (int distance = 1; distance < kWarp; distance *= 2) {
        const int before = __shfl_up_sync(kAllLanes, end, distance);
        if (p.lane >= distance) end += before;
    }
    for (int slot = end - mine; partners && slot < limit; partners &= partners - 1, ++slot) {
        pairs[slot] = static_cast<uint16_t>(p.square | data::lowest(partners) << 8);
    }
    __syncwarp();
    return min(__shfl_sync(kAllLanes, end, kWarp - 1), limit);
}

// Writes what `part` adds to the rows, from entry `count` on, by a whole warp. Returns the entries there are then.
template <class Part, class Tables>
__device__ int write_part(Part /*part*/, int first_feature, const Position& p, PairStage& stage, const Tables& tables,
                          int count, int32_t* white, int32_t* black) {
    if constexpr (Part::kKind == data::SetKind::kPieceSquare) {
        static_assert(Part::kHasKings);
        int32_t* const rows[2] = {white, black};
#pragma unroll
        for (int perspective = 0; perspective < 2; ++perspective) {
            const int orientation = Part::orientation(perspective, p.king[perspective]);
            const int offset = first_feature + Part::offset(perspective, p.king[perspective]);
            const int index = data::feature_index<Part>(p.code, p.square, perspective, orientation, offset);
            if (p.lane < p.count) rows[perspective][count + p.lane] = index;
        }
        return count + p.count;
    } else {
        const int orientation[2] = {data::threat_orientation(0, p.king[0]), data::threat_orientation(1, p.king[1])};
        data::Bitboard partners = 0;
        if constexpr (Part::kKind == data::SetKind::kThreats) {
            using Version = typename Part::Version;
            if (p.lane < 6) stage.victims[p.lane] = data::victims_of<Version>(p.board, p.lane);
            __syncwarp();
            if (p.lane < p.count) {
                partners = data::threats_of(tables.tables(), p.board, stage.victims[p.code >> 1], p.code, p.square);
            }
        } else {
            const data::Bitboard pawns = p.board.pawns();
            if (p.lane < p.count && pawns >> p.square & 1) partners = data::pawn_partners(pawns, p.square);
        }
        const int pairs = list_pairs(p, partners, Part::kMaxActive, stage.pairs);
        for (int i = p.lane; i < pairs; i += kWarp) {
            const int one = stage.pairs[i] & 255, other = stage.pairs[i] >> 8;
            int32_t* const rows[2] = {white, black};
#pragma unroll
            for (int perspective = 0; perspective < 2; ++perspective) {
                const int o = orientation[perspective];
                int index;
                if constexpr (Part::kKind == data::SetKind::kThreats) {
                    index = data::threat_index(tables.tables(), o, perspective, stage.codes[one], one,
                                               stage.codes[other], other);
                } else {
                    index = data::pawn_pair_index(data::pawn_number(o, stage.codes[one] != perspective, one),
                                                  data::pawn_number(o, stage.codes[other] != perspective, other));
                }
                rows[perspective][count + i] = first_feature + index;
            }
        }
        __syncwarp();  // the next part lists its own pairs
        return count + pairs;
    }
}

// By a whole warp: both rows of a position. Returns how many entries they have.
template <class Set, class Tables>
__device__ int expand_pairs(const uint4 (&record)[2], const uint8_t (&squares)[kWarp], Head head, int lane,
                            PairStage& stage, const Tables& tables, int32_t* white, int32_t* black) {
    int count = 0;
    if (head.count > 0) {
        const auto* bytes = reinterpret_cast<const uint8_t*>(&record[0]);
        const uint8_t square = squares[lane];
        const int code = piece_code(bytes, lane, square);
        if (lane < head.count) stage.codes[square] = static_cast<uint8_t>(code);
        __syncwarp();
        const data::Bitboard all = occupied(record);
        Position p{{all, {}}, {head.king[0], head.king[1]}, lane, head.count, code, square};
        const int low = all >> lane & 1 ? stage.codes[lane] : 0;
        const int high = all >> (32 + lane) & 1 ? stage.codes[32 + lane] : 0;
#pragma unroll
        for (int k = 0; k < 4; ++k) {
            p.board.bits[k] =
                data::Bitboard{__ballot_sync(kAllLanes, high >> k & 1)} << 32 | __ballot_sync(kAllLanes, low >> k & 1);
        }
        if constexpr (Set::kKind == data::SetKind::kCombined) {
            Set::for_each_part([&](auto part, int first_feature) {
                count = write_part(part, first_feature, p, stage, tables, count, white, black);
            });
        } else {
            count = write_part(Set{}, 0, p, stage, tables, count, white, black);
        }
    }
    for (int i = count + lane; i < Set::kMaxActive; i += kWarp) white[i] = black[i] = -1;
    return count;
}

// ---- the kernel -----------------------------------------------------------------------------------------------------

template <class Set>
__global__ void __launch_bounds__(kWarps<Set>* kWarp)
    expand(const uint4* __restrict__ records, int64_t rows, Outputs out, FindingSink sink) {
    __shared__ Stage<Set> stages[kWarps<Set>];
    __shared__ TableStage<typename Set::Version> tables;
    tables.fill(static_cast<int>(threadIdx.y * kWarp + threadIdx.x), kWarps<Set> * kWarp);
    Stage<Set>& stage = stages[threadIdx.y];
    const int lane = threadIdx.x;
    const int64_t stride = int64_t(gridDim.x) * kWarps<Set> * kGroup<Set>;
    for (int64_t first = (int64_t(blockIdx.x) * kWarps<Set> + threadIdx.y) * kGroup<Set>; first < rows;
         first += stride) {
        const int group = static_cast<int>(min(rows - first, int64_t{kGroup<Set>}));
        uint4* staged = &stage.records[0][0];
#pragma unroll
        for (int i = lane; i < 2 * kGroup<Set>; i += kWarp) {
            if (i < 2 * group) staged[i] = records[2 * first + i];
        }
        __syncwarp();
#pragma unroll 4
        for (int p = 0; p < group; ++p) {
            const data::Bitboard all = occupied(stage.records[p]);
            const unsigned low = static_cast<unsigned>(all), high = static_cast<unsigned>(all >> 32);
            const unsigned before = (1u << lane) - 1;
            const int low_rank = __popc(low & before), high_rank = __popc(low) + __popc(high & before);
            if (low >> lane & 1) stage.squares[p][low_rank] = static_cast<uint8_t>(lane);
            // More than 32 pieces: a fault, found below.
            if ((high >> lane & 1) && high_rank < kWarp) stage.squares[p][high_rank] = static_cast<uint8_t>(32 + lane);
        }
        __syncwarp();
        if (lane < group) {
            expand_head<Set>(stage.records[lane], stage.squares[lane], first + lane, out, sink, stage.heads[lane]);
        }
        __syncwarp();
        int32_t* white = out.white + first * Set::kMaxActive;
        int32_t* black = out.black + first * Set::kMaxActive;
        if constexpr (kHasPairs<Set>) {
            int own_count = 0;  // of the position that is this lane's
#pragma unroll 1
            for (int p = 0; p < group; ++p) {
                const int count =
                    expand_pairs<Set>(stage.records[p], stage.squares[p], stage.heads[p], lane, stage.pairs, tables,
                                      white + p * Set::kMaxActive, black + p * Set::kMaxActive);
                if (lane == p) own_count = count;
            }
            if (lane < group) out.counts[first + lane] = static_cast<int16_t>(own_count);
        } else {
#pragma unroll 4
            for (int p = 0; p < group; ++p) {
                expand_rows<Set>(reinterpret_cast<const uint8_t*>(&stage.records[p][0]), stage.squares[p],
                                 stage.heads[p], lane, white + p * Set::kMaxActive, black + p * Set::kMaxActive);
            }
        }
        __syncwarp();
    }
}

void expand_into_op(const Tensor& records_in, int64_t feature_set, const Tensor& white, const Tensor& black,
                    const Tensor& counts, const Tensor& black_to_move, const Tensor& score, const Tensor& result,
                    const Tensor& piece_count, bool check) {
    check_records(records_in, Device::cuda);
    const data::FeatureSetId set = check_feature_set(feature_set);
    const Outputs out = check_outputs({white, black, counts, black_to_move, score, result, piece_count}, records_in,
                                      row_length(set), Device::cuda);
    const torch::stable::accelerator::DeviceGuard guard(records_in.get_device_index());
    Tensor records = torch::stable::contiguous(records_in);
    // A view may start at any byte; the kernel reads 16 at a time.
    if (reinterpret_cast<uintptr_t>(records.const_data_ptr()) % 16 != 0) records = torch::stable::clone(records);
    const int64_t rows = records.size(0);
    const cudaStream_t stream = current_stream(records);
    std::optional<Check> checked;
    if (check && rows > 0) {
        checked.emplace(kName, records.get_device_index(), stream, [](const Finding& found) {
            fail_record(found.row, static_cast<data::RecordFault>(found.value));
        });
    }
    data::FeatureSets::visit(set, [&]<class Set>() {
        launch("expand_features", expand<Set>, blocks_for(rows, kWarps<Set> * kGroup<Set>), dim3(kWarp, kWarps<Set>), 0,
               stream, static_cast<const uint4*>(records.const_data_ptr()), rows, out,
               checked ? checked->sink() : FindingSink{});
    });
    if (checked) checked->finish();
}

OutputTensors expand_op(const Tensor& records, int64_t feature_set, bool check) {
    check_records(records, Device::cuda);
    const torch::stable::accelerator::DeviceGuard guard(records.get_device_index());
    const OutputTensors out = new_outputs(records, row_length(check_feature_set(feature_set)));
    std::apply([&](const auto&... tensors) { expand_into_op(records, feature_set, tensors..., check); }, out);
    return out;
}

}  // namespace
}  // namespace nnue::expand_features

STABLE_TORCH_LIBRARY_IMPL(nnue, CUDA, m) {
    m.impl("expand_features", TORCH_BOX(&nnue::expand_features::expand_op));
    m.impl("expand_features_into", TORCH_BOX(&nnue::expand_features::expand_into_op));
}
