// The expansion of packed positions on CUDA: bound by the 256 bytes and more that it writes for each position.
//
// A warp takes 32 positions. What concerns a whole position (kings, their offsets, counts, score) is done by one lane
// each, for all 32 at once; then the warp goes through the positions with a lane for each piece, and writes each row
// with one coalesced store. The square of the k-th piece comes the other way round: each lane owns two squares, and
// puts them where the number of pieces before them says.

#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <optional>

#include "../expand_features.h"
#include "common.cuh"
#include "index_check.cuh"

namespace nnue::expand_features {
namespace {

using namespace nnue::cuda;

constexpr int kWarps = 4;  // few: a batch of 16,384 positions then occupies every multiprocessor

// What the pieces of a position need to know of it.
struct alignas(16) Head {
    int32_t offset[2];  // by perspective
    uint8_t orientation[2];
    uint8_t count;  // 0: no rows
};

// Shared memory of one warp.
struct Stage {
    uint4 records[kWarp][2];
    uint8_t squares[kWarp][kWarp];
    Head heads[kWarp];
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
            head.orientation[perspective] = static_cast<uint8_t>(Set::orientation(perspective, king));
            head.offset[perspective] = Set::offset(perspective, king);
        }
    } else {
        report(sink, row, static_cast<int32_t>(scan.fault));
    }
    out.black_to_move[row] = scan.black_to_move;
    out.score[row] = static_cast<int16_t>(data::record_score(bytes));
    out.result[row] = static_cast<int8_t>(result);
    out.piece_count[row] = static_cast<uint8_t>(min(max(scan.count, 1), data::kMaxPieces));
}

// By a whole warp, a lane a piece.
template <class Set>
__device__ void expand_rows(const uint8_t* record, const uint8_t (&squares)[kWarp], Head head, int lane, int32_t* white,
                            int32_t* black) {
    const uint8_t square = squares[lane];  // of lanes without a piece: anything
    const uint8_t nibble = record[8 + lane / 2] >> (lane % 2 * 4) & 15;
    const int code = data::plain_code(nibble, square);
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

template <class Set>
__global__ void __launch_bounds__(kWarps* kWarp)
    expand(const uint4* __restrict__ records, int64_t rows, Outputs out, FindingSink sink) {
    __shared__ Stage stages[kWarps];
    Stage& stage = stages[threadIdx.y];
    const int lane = threadIdx.x;
    const int64_t stride = int64_t(gridDim.x) * kWarps * kWarp;
    for (int64_t first = (int64_t(blockIdx.x) * kWarps + threadIdx.y) * kWarp; first < rows; first += stride) {
        const int group = static_cast<int>(min(rows - first, int64_t{kWarp}));
        uint4* staged = &stage.records[0][0];
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int i = half * kWarp + lane;
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
#pragma unroll 4
        for (int p = 0; p < group; ++p) {
            expand_rows<Set>(reinterpret_cast<const uint8_t*>(&stage.records[p][0]), stage.squares[p], stage.heads[p],
                             lane, white + p * Set::kMaxActive, black + p * Set::kMaxActive);
        }
        __syncwarp();
    }
}

void expand_into_op(const Tensor& records_in, int64_t feature_set, const Tensor& white, const Tensor& black,
                    const Tensor& black_to_move, const Tensor& score, const Tensor& result, const Tensor& piece_count,
                    bool check) {
    check_records(records_in, Device::cuda);
    const data::FeatureSetId set = check_feature_set(feature_set);
    const Outputs out = check_outputs({white, black, black_to_move, score, result, piece_count}, records_in,
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
    data::visit_feature_set(set, [&]<class Set>() {
        launch("expand_features", expand<Set>, blocks_for(rows, kWarps * kWarp), dim3(kWarp, kWarps), 0, stream,
               static_cast<const uint4*>(records.const_data_ptr()), rows, out,
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
