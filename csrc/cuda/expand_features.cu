// The expansion of packed positions on CUDA. Its speed is limited by memory: it writes 256 bytes or more per position.
//
// A warp takes several positions. One lane per position does what concerns the whole position (kings, score), for all
// positions at once. Then the warp goes through the positions with one lane per piece, one part of the set after the
// other, and writes each row with coalesced stores. To find the square of the k-th piece, each lane reads two
// squares and stores those that hold a piece; the place is the number of pieces before them. Piece-square parts are
// looked up in tables in shared memory.
//
// For sets of pairs the lanes find the pairs of their pieces and list them in shared memory, each lane after the pairs
// of the pieces before its own. Then the warp goes through that list with one lane per pair, whatever piece the pair
// came from.

#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <type_traits>

#include "../expand_features.h"
#include "common.cuh"
#include "features/general_sets.h"
#include "general_set.cuh"
#include "index_check.cuh"

namespace nnue::expand_features {
namespace {

using namespace nnue::cuda;

// The most pairs that one part can have: threats of this version, or pawn pairs.
template <class Version>
constexpr int kMaxPairs = std::max(data::PP3Wide::kMaxActive, Version::kMaxThreats);
template <>
constexpr int kMaxPairs<void> = data::PP3Wide::kMaxActive;

// The cases that the kernel is compiled for: one piece-square set (`Single`), with or without states, a sum of several,
// or a sum with sets of pairs. `Version` is the version of Full_Threats, of which a sum has at most one, or void.
// Everything else about the set is known at run time.
template <class V, bool Pairs, bool Single = false, bool States = false>
struct Shape {
    using Version = V;
    static constexpr bool kPairs = Pairs;
    static constexpr bool kSingle = Single;
    static constexpr bool kStates = States;  // of a single set
    // Both are small enough that a batch of 16,384 positions occupies every multiprocessor.
    static constexpr int kWarps = Pairs ? 8 : 4;       // per thread block; with pairs they share tables
    static constexpr int kPositions = Pairs ? 8 : 16;  // per warp
};

constexpr int kMaxParts = 8, kMaxTables = 4;

// A feature set as the kernel takes it, by value.
struct DeviceSet {
    struct Part {
        data::SetKind kind;
        int first_feature;
        int tables;  // of a piece-square part: its index in `tables`
    };
    int num_parts = 0;
    int max_active = 0;
    int num_tables = 0;
    Part parts[kMaxParts];
    data::PieceSquareTables tables[kMaxTables];
};

// The part of a position that the lanes of its pieces read.
struct Head {
    uint8_t king[2];
    uint8_t count;  // 0 if it has no rows; then kings are 0, too
};

// The position that a warp is working on, in the form from which pairs of pieces are made.
template <int MaxPairs>
struct PairStage {
    data::Bitboard victims[6];
    uint8_t codes[64];         // by square
    uint16_t pairs[MaxPairs];  // squares: first, second << 8
};

// Shared memory of one warp.
template <class Shape>
struct Stage {
    uint4 records[Shape::kPositions][2];
    uint8_t squares[Shape::kPositions][kWarp];
    Head heads[Shape::kPositions];
    std::conditional_t<Shape::kPairs, PairStage<kMaxPairs<typename Shape::Version>>, char> pairs;
};

template <class Version>
__device__ const data::ThreatTables<Version> kThreatTables{};

// A thread block's copy of the tables of its version, in shared memory because lanes look up different entries at once.
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

// Called by the lane that owns the position; `record` and `squares` belong to it.
__device__ void expand_head(const uint4 (&record)[2], const uint8_t (&squares)[kWarp], int64_t row,
                            const data::BatchRows& out, const FindingSink& sink, Head& head) {
    const auto* bytes = reinterpret_cast<const uint8_t*>(&record[0]);
    const uint64_t first = uint64_t{record[0].w} << 32 | record[0].z;
    const uint64_t second = uint64_t{record[1].y} << 32 | record[1].x;
    const int result = data::record_result(bytes);
    const data::RecordScan scan = data::scan_record(occupied(record), first, second, result);
    head = {};
    if (scan.fault == data::RecordFault::kNone) {
        head.count = static_cast<uint8_t>(scan.count);
        for (int perspective = 0; perspective < 2; ++perspective) {
            head.king[perspective] = squares[scan.king_rank[perspective]];
        }
    } else {
        report(sink, row, static_cast<int64_t>(scan.fault));
    }
    out.black_to_move[row] = scan.black_to_move;
    out.score[row] = static_cast<int16_t>(data::record_score(bytes));
    out.result[row] = static_cast<int8_t>(result);
    out.piece_count[row] = static_cast<uint8_t>(min(max(scan.count, 1), data::kMaxPieces));
    out.material[row] = static_cast<uint8_t>(data::material_of(first, second, scan.black_to_move));
}

// The code of this lane's piece; 0 in lanes without one.
__device__ inline int piece_code(const uint4 (&record)[2], Head head, int lane, uint8_t square) {
    const uint8_t nibble = reinterpret_cast<const uint8_t*>(&record[0])[8 + lane / 2] >> (lane % 2 * 4) & 15;
    const int code = data::plain_code(nibble, square);
    return lane < head.count ? code : 0;
}

// A position as the lanes of its warp see it, and the piece of this lane.
struct Position {
    data::CodePlanes board;  // for pairs
    int king[2];
    int lane, count;
    int code, square;  // of the piece; lanes from `count` on have none, and code 0
};

// Offset of a perspective's features by the pieces on the board. Called by a whole warp, one lane per piece.
__device__ inline int state_offset(const data::PieceSquareTables& tables, int perspective, int code, bool is_piece) {
    int offset = 0;
    for (int k = 0; k < data::kMaxCounters; ++k) {
        const data::StateCounter& counter = tables.counters[k];
        const unsigned counted = __ballot_sync(kAllLanes, is_piece && (counter.codes[perspective] >> code & 1));
        offset += counter.stride * min(__popc(counted), int(counter.most));
    }
    return offset;
}

// Writes the features of a piece-square part to the rows, from entry `count` on. If the part is the whole set, it also
// fills the rows, which have at most 32 entries then, with −1; without a branch, so that the compiler can interleave
// several positions. Called by a whole warp, one lane per piece. Returns the number of entries afterwards.
template <class Shape>
__device__ inline int write_piece_squares(const data::PieceSquareTables& tables, int first_feature, int max_active,
                                          const Position& p, int count, int32_t* white, int32_t* black) {
    const bool is_piece = p.lane < p.count, listed = is_piece && tables.plane[0][p.code] >= 0;
    const unsigned all = __ballot_sync(kAllLanes, listed);
    const int before = __popc(all & ((1u << p.lane) - 1)), end = count + __popc(all);
    const int slot = listed ? count + before : end + p.lane - before;
    int32_t* const rows[2] = {white, black};
    // The same in all lanes.
    const bool has_states = Shape::kSingle ? Shape::kStates : tables.counters[0].most > 0;
    for (int perspective = 0; perspective < 2; ++perspective) {
        const int king = p.king[perspective];
        const int state = has_states ? state_offset(tables, perspective, p.code, is_piece) : 0;
        const int index = first_feature + tables.offset[perspective][king] + state + tables.plane[perspective][p.code] +
                          (p.square ^ tables.orientation[perspective][king]);
        if (Shape::kSingle ? slot < max_active : listed) rows[perspective][slot] = listed ? index : -1;
    }
    return end;
}

// ---- sets of pairs --------------------------------------------------------------------------------------------------

// Lists pairs of squares in the order of the lanes' pieces: each lane's pairs go after those of the lanes before it.
// Returns how many there are; no valid record has more than kMaxActive.
__device__ int list_pairs(const Position& p, data::Bitboard partners, uint16_t* pairs) {
    const int mine = data::popcount(partners);
    int end = mine;
    for (int distance = 1; distance < kWarp; distance *= 2) {
        const int before = __shfl_up_sync(kAllLanes, end, distance);
        if (p.lane >= distance) end += before;
    }
    for (int slot = end - mine; partners; partners &= partners - 1, ++slot) {
        pairs[slot] = static_cast<uint16_t>(p.square | data::lowest(partners) << 8);
    }
    __syncwarp();
    return __shfl_sync(kAllLanes, end, kWarp - 1);
}

// Writes the features of a part that consists of pairs, from entry `count` on: threats of a version, or pawn pairs (if
// Version is void). Called by a whole warp. Returns the number of entries afterwards.
template <class Version, class Pairs, class Tables>
__device__ int write_pairs(const DeviceSet::Part& part, const Position& p, Pairs& stage, const Tables& tables,
                           int count, int32_t* white, int32_t* black) {
    constexpr bool kThreats = !std::is_void_v<Version>;
    const int orientation[2] = {data::threat_orientation(0, p.king[0]), data::threat_orientation(1, p.king[1])};
    data::Bitboard partners = 0;
    if constexpr (kThreats) {
        if (p.lane < 6) stage.victims[p.lane] = data::victims_of<Version>(p.board, p.lane);
        __syncwarp();
        if (p.lane < p.count) {
            partners = data::threats_of(tables.tables(), p.board, stage.victims[p.code >> 1], p.code, p.square);
        }
    } else {
        const data::Bitboard pawns = p.board.pawns();
        if (p.lane < p.count && pawns >> p.square & 1) partners = data::pawn_partners(pawns, p.square);
    }
    const int pairs = list_pairs(p, partners, stage.pairs);
    int32_t* const rows[2] = {white, black};
    for (int i = p.lane; i < pairs; i += kWarp) {
        const int one = stage.pairs[i] & 255, other = stage.pairs[i] >> 8;
        for (int perspective = 0; perspective < 2; ++perspective) {
            const int o = orientation[perspective];
            int index;
            if constexpr (kThreats) {
                index = data::threat_index(tables.tables(), o, perspective, stage.codes[one], one, stage.codes[other],
                                           other);
            } else {
                index = data::pawn_pair_index(data::pawn_number(o, stage.codes[one] != perspective, one),
                                              data::pawn_number(o, stage.codes[other] != perspective, other));
            }
            rows[perspective][count + i] = part.first_feature + index;
        }
    }
    __syncwarp();  // the next part lists its own pairs in the same memory
    return count + pairs;
}

// Called by a whole warp: expands both rows of a position. Returns how many entries they have.
template <class Shape, class Tables>
__device__ int expand_rows(const uint4 (&record)[2], const uint8_t (&squares)[kWarp], Head head, int lane,
                           const DeviceSet& set, const data::PieceSquareTables* piece_squares, Stage<Shape>& warp_stage,
                           const Tables& tables, int32_t* white, int32_t* black) {
    int count = 0;
    if (Shape::kSingle || head.count > 0) {
        const uint8_t square = squares[lane];  // any value in lanes without a piece
        const int code = piece_code(record, head, lane, square);
        Position p{{}, {head.king[0], head.king[1]}, lane, head.count, code, square};
        if constexpr (Shape::kSingle) {
            return write_piece_squares<Shape>(piece_squares[0], 0, set.max_active, p, 0, white, black);
        }
        if constexpr (Shape::kPairs) {
            auto& stage = warp_stage.pairs;
            if (lane < head.count) stage.codes[square] = static_cast<uint8_t>(code);
            __syncwarp();
            const data::Bitboard all = occupied(record);
            p.board.occupied = all;
            const int low = all >> lane & 1 ? stage.codes[lane] : 0;
            const int high = all >> (32 + lane) & 1 ? stage.codes[32 + lane] : 0;
            for (int k = 0; k < 4; ++k) {
                p.board.bits[k] = data::Bitboard{__ballot_sync(kAllLanes, high >> k & 1)} << 32 |
                                  __ballot_sync(kAllLanes, low >> k & 1);
            }
        }
        for (int i = 0; i < set.num_parts; ++i) {
            const DeviceSet::Part& part = set.parts[i];
            if (part.kind == data::SetKind::kPieceSquare) {
                count = write_piece_squares<Shape>(piece_squares[part.tables], part.first_feature, set.max_active, p,
                                                   count, white, black);
            } else if constexpr (Shape::kPairs) {
                if (part.kind == data::SetKind::kPawnPairs) {
                    count = write_pairs<void>(part, p, warp_stage.pairs, tables, count, white, black);
                } else if constexpr (!std::is_void_v<typename Shape::Version>) {
                    count =
                        write_pairs<typename Shape::Version>(part, p, warp_stage.pairs, tables, count, white, black);
                }
            }
        }
    }
    for (int i = count + lane; i < set.max_active; i += kWarp) white[i] = black[i] = -1;
    return count;
}

// ---- the kernel -----------------------------------------------------------------------------------------------------

template <class Shape>
__global__ void __launch_bounds__(Shape::kWarps* kWarp)
    expand(const uint4* __restrict__ records, int64_t rows, data::BatchRows out, FindingSink sink,
           const __grid_constant__ DeviceSet set) {
    static_assert(Shape::kSingle || !Shape::kStates);
    constexpr int kPositions = Shape::kPositions, kThreads = Shape::kWarps * kWarp;
    __shared__ Stage<Shape> stages[Shape::kWarps];
    __shared__ TableStage<typename Shape::Version> tables;
    __shared__ data::PieceSquareTables piece_squares[kMaxTables];
    const int thread = static_cast<int>(threadIdx.y * kWarp + threadIdx.x);
    constexpr int kWords = sizeof(data::PieceSquareTables) / sizeof(int32_t);
    for (int i = thread; i < set.num_tables * kWords; i += kThreads) {
        reinterpret_cast<int32_t*>(piece_squares)[i] = reinterpret_cast<const int32_t*>(set.tables)[i];
    }
    tables.fill(thread, kThreads);
    __syncthreads();
    Stage<Shape>& stage = stages[threadIdx.y];
    const int lane = threadIdx.x;
    const int64_t stride = int64_t(gridDim.x) * Shape::kWarps * kPositions;
    for (int64_t first = (int64_t(blockIdx.x) * Shape::kWarps + threadIdx.y) * kPositions; first < rows;
         first += stride) {
        const int positions = static_cast<int>(min(rows - first, int64_t{kPositions}));
        uint4* staged = &stage.records[0][0];
        for (int i = lane; i < 2 * kPositions; i += kWarp) {
            if (i < 2 * positions) staged[i] = records[2 * first + i];
        }
        __syncwarp();
#pragma unroll 4
        for (int p = 0; p < positions; ++p) {
            const data::Bitboard all = occupied(stage.records[p]);
            const unsigned low = static_cast<unsigned>(all), high = static_cast<unsigned>(all >> 32);
            const unsigned before = (1u << lane) - 1;
            const int low_rank = __popc(low & before), high_rank = __popc(low) + __popc(high & before);
            if (low >> lane & 1) stage.squares[p][low_rank] = static_cast<uint8_t>(lane);
            // A record with more than 32 pieces is faulty; expand_head reports it.
            if ((high >> lane & 1) && high_rank < kWarp) stage.squares[p][high_rank] = static_cast<uint8_t>(32 + lane);
        }
        __syncwarp();
        if (lane < positions) {
            expand_head(stage.records[lane], stage.squares[lane], first + lane, out, sink, stage.heads[lane]);
        }
        __syncwarp();
        int32_t* white = out.white + first * set.max_active;
        int32_t* black = out.black + first * set.max_active;
        int own_count = 0;  // of the position that belongs to this lane
#pragma unroll(Shape::kPairs ? 1 : 4)
        for (int p = 0; p < positions; ++p) {
            const int count =
                expand_rows<Shape>(stage.records[p], stage.squares[p], stage.heads[p], lane, set, piece_squares, stage,
                                   tables, white + p * set.max_active, black + p * set.max_active);
            if (lane == p) own_count = count;
        }
        if (lane < positions) out.counts[first + lane] = static_cast<int16_t>(own_count);
        __syncwarp();
    }
}

// ---- what the operators launch --------------------------------------------------------------------------------------

DeviceSet device_set(const data::FeatureSet& set) {
    DeviceSet result;
    result.max_active = set.max_active;
    for (const data::FeaturePart& part : set.parts) {
        const bool has_tables = part.is_piece_square();
        if (result.num_parts == kMaxParts || (has_tables && result.num_tables == kMaxTables)) {
            fail(kName, "feature_set", "'" + set.name + "'",
                 "no more than " + text(kMaxParts) + " parts, of which " + text(kMaxTables) + " piece-square sets");
        }
        DeviceSet::Part& own = result.parts[result.num_parts++];
        own = {data::SetKind::kPieceSquare, part.first_feature, result.num_tables};
        if (has_tables) {
            result.tables[result.num_tables++] = part.tables;
        } else {
            data::BasicSets::with(part.basic, [&]<class Set>(Set) { own.kind = Set::kKind; });
        }
    }
    return result;
}

// Calls visit.template operator()<Shape>() with the shape of the kernel that expands the set.
template <class Visit>
void with_shape(const data::FeatureSet& set, Visit&& visit) {
    const data::FeaturePart* threats = nullptr;
    bool pairs = false;
    for (const data::FeaturePart& part : set.parts) {
        if (part.is_piece_square()) continue;
        pairs = true;
        data::BasicSets::with(part.basic, [&]<class Set>(Set) {
            if (Set::kKind != data::SetKind::kThreats) return;
            if (threats) fail(kName, "feature_set", "'" + set.name + "'", "one version of Full_Threats on CUDA");
            threats = &part;
        });
    }
    if (threats) {
        data::BasicSets::with(threats->basic, [&]<class Set>(Set) {
            if constexpr (Set::kKind == data::SetKind::kThreats) {
                visit.template operator()<Shape<typename Set::Version, true>>();
            }
        });
    } else if (pairs) {
        visit.template operator()<Shape<void, true>>();
    } else if (!set.is_single()) {
        visit.template operator()<Shape<void, false>>();
    } else if (set.parts[0].tables.has_states()) {
        visit.template operator()<Shape<void, false, true, true>>();
    } else {
        visit.template operator()<Shape<void, false, true>>();
    }
}

// ---- appended parts -------------------------------------------------------------------------------------------------

struct Appenders {
    std::mutex mutex;
    std::map<std::string, LaunchAppend> by_name;
};

Appenders& appenders() {
    static Appenders& all = *[] {
        auto* made = new Appenders;
        data::GeneralSets::for_each([&]<class Set>() { made->by_name[Set::kName] = launch_append<Set>; });
        return made;
    }();
    return all;
}

LaunchAppend appender_of(const data::FeatureSet& set, const data::AppendedPart& part) {
    const std::lock_guard lock(appenders().mutex);
    const auto found = appenders().by_name.find(part.name);
    if (found != appenders().by_name.end()) return found->second;
    fail(kName, "feature_set", "'" + set.name + "', without code for CUDA of '" + part.name + "'",
         "a set that nvcc has compiled; expand it on the CPU");
}

void append_parts(const data::FeatureSet& set, const uint8_t* records, int64_t rows, const data::BatchRows& out,
                  FindingSink sink, cudaStream_t stream) {
    // The finding's value is the index. If there are too many features, it is their number plus the set's number of
    // features.
    sink.raise = [](const Finding& found) {
        if (found.value > found.num_features) {
            fail_features("from outside", found.row,
                          text(found.value - found.num_features) + " features, more than the set declares");
        }
        fail_features(
            "from outside", found.row,
            "feature " + text(found.value) + ", expected one king bucket and 0 to " + text(found.num_features - 1));
    };
    for (const data::AppendedPart& part : set.appended) {
        sink.num_features = part.is.num_features;
        check_cuda(
            appender_of(set, part)(
                records, rows, {out.white, out.black, out.counts, set.max_active, part.first_feature}, sink, stream),
            part.name.c_str());
    }
}

int64_t name_feature_set_op(const Tensor& name) {
    constexpr const char* kName = "name_cuda_feature_set";
    return handles().add(kName, check_text(kName, "name", name));
}

void add_feature_set_op(const Tensor& name_in, const Tensor& library_in, const Tensor& cuda_library_in) {
    constexpr const char* kName = "add_cuda_feature_set";
    const std::string name = check_text(kName, "name", name_in), library = check_text(kName, "library", library_in);
    const std::string cuda_library = check_text(kName, "cuda_library", cuda_library_in);
    try {
        data::add_compiled_feature_set(name, library);
        const auto launch_it =
            reinterpret_cast<LaunchAppend>(data::symbol_of_library(cuda_library, "nnue_append_features", name));
        const std::lock_guard lock(appenders().mutex);
        appenders().by_name[name] = launch_it;
    } catch (const data::FormatError& error) {
        throw std::runtime_error(std::string("nnue::add_cuda_feature_set: ") + error.what());
    }
}

void expand_into_op(const Tensor& records_in, int64_t feature_set, std::vector<Tensor> fields, bool check) {
    check_records(records_in, Device::cuda);
    const data::FeatureSet& set = check_feature_set(feature_set);
    const data::BatchRows out = check_fields(fields, records_in, set.max_active, Device::cuda);
    const torch::stable::accelerator::DeviceGuard guard(records_in.get_device_index());
    Tensor records = torch::stable::contiguous(records_in);
    // A view may start at any byte, but the kernel reads 16 bytes at a time.
    if (reinterpret_cast<uintptr_t>(records.const_data_ptr()) % 16 != 0) records = torch::stable::clone(records);
    const int64_t rows = records.size(0);
    const cudaStream_t stream = current_stream(records);
    std::optional<Check> checked;
    if (check && rows > 0) {
        checked.emplace(kName, records.get_device_index(), stream, [](const Finding& found) {
            fail_record(found.row, static_cast<data::RecordFault>(found.value));
        });
    }
    with_shape(set, [&]<class Shape>() {
        launch("expand_features", expand<Shape>, thread_blocks_for(rows, Shape::kWarps * Shape::kPositions),
               dim3(kWarp, Shape::kWarps), 0, stream, static_cast<const uint4*>(records.const_data_ptr()), rows, out,
               checked ? checked->sink() : FindingSink{}, device_set(set));
    });
    append_parts(set, static_cast<const uint8_t*>(records.const_data_ptr()), rows, out,
                 checked ? checked->sink() : FindingSink{}, stream);
    if (checked) checked->finish();
}

FieldTuple expand_op(const Tensor& records, int64_t feature_set, bool check) {
    check_records(records, Device::cuda);
    const torch::stable::accelerator::DeviceGuard guard(records.get_device_index());
    const std::vector<Tensor> fields = new_fields(records, check_feature_set(feature_set).max_active);
    expand_into_op(records, feature_set, fields, check);
    return as_tuple(fields);
}

}  // namespace
}  // namespace nnue::expand_features

STABLE_TORCH_LIBRARY_IMPL(nnue, CompositeExplicitAutograd, m) {
    NNUE_IMPL(m, "name_cuda_feature_set", &nnue::expand_features::name_feature_set_op);
    NNUE_IMPL(m, "add_cuda_feature_set", &nnue::expand_features::add_feature_set_op);
}

STABLE_TORCH_LIBRARY_IMPL(nnue, CUDA, m) {
    NNUE_IMPL(m, "expand_features", &nnue::expand_features::expand_op);
    NNUE_IMPL(m, "expand_features_into", &nnue::expand_features::expand_into_op);
}
