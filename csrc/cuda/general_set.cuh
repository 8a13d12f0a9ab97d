// Appends the features of a set that consists of four functions (features/general_set.h) to index rows on CUDA.
// Built-in sets are compiled with expand_features.cu. Sets in a user's header are compiled at their first use, without
// torch, so nothing of torch is included here.
//
// A warp takes one position at a time, with one lane per piece. Each lane gets the partners of its piece from the set.
// The first pass over them counts and checks the features, then a prefix sum gives where each lane writes, and the
// second pass writes. White's row and Black's row may differ in length.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "features/general_set.h"
#include "features/record_scan.h"
#include "index_check.cuh"

namespace nnue::cuda {

namespace general_set {

constexpr int kLanes = 32, kWarps = 8;  // per thread block
constexpr unsigned kAll = 0xffffffffu;

__device__ inline data::Bitboard or_of_warp(data::Bitboard bits) {
    for (int distance = kLanes / 2; distance > 0; distance /= 2) bits |= __shfl_xor_sync(kAll, bits, distance);
    return bits;
}

// The number of entries of a left-packed row.
__device__ inline int row_end(const int32_t* row, int length, int lane) {
    for (int base = 0; base < length; base += kLanes) {
        const unsigned ends = __ballot_sync(kAll, base + lane >= length || row[base + lane] < 0);
        if (ends != 0) return base + __ffs(ends) - 1;
    }
    return length;
}

}  // namespace general_set

template <class Set>
__global__ void __launch_bounds__(general_set::kLanes* general_set::kWarps)
    append_features(const uint64_t* __restrict__ records, int64_t n, data::AppendRows rows, FindingSink sink) {
    using namespace general_set;
    static_cast<void>(data::GeneralSetCheck<Set>::kIs);
    const int lane = static_cast<int>(threadIdx.x);
    const int64_t stride = int64_t(gridDim.x) * kWarps;
    for (int64_t position = int64_t(blockIdx.x) * kWarps + threadIdx.y; position < n; position += stride) {
        const uint64_t* words = records + 4 * position;
        const auto* record = reinterpret_cast<const uint8_t*>(words);
        const data::Bitboard occupied = data::record_occupancy(record);
        const uint64_t first = words[1], second = words[2];
        const data::RecordScan scan = data::scan_record(occupied, first, second, data::record_result(record));
        if (scan.fault != data::RecordFault::kNone) continue;  // expand_head has reported it

        data::Bitboard left = occupied;
        for (int k = 0; k < lane && left; ++k) left &= left - 1;
        const bool has_piece = lane < scan.count;
        const int square = has_piece ? data::lowest(left) : 0;
        const unsigned nibble = static_cast<unsigned>((lane < 16 ? first : second) >> (4 * (lane & 15)) & 15);
        const int code = has_piece ? data::plain_code(static_cast<uint8_t>(nibble), static_cast<uint8_t>(square)) : 0;
        data::CodePlanes board;
        board.occupied = occupied;
        for (int k = 0; k < 4; ++k) board.bits[k] = or_of_warp(data::Bitboard{code >> k & 1u} << square);
        const data::Bitboard partners = has_piece ? data::Bitboard{Set::partners(board, code, square)} : 0;

        int longest = 0;
        for (int perspective = 0; perspective < 2; ++perspective) {
            int32_t* row = (perspective ? rows.black : rows.white) + position * rows.length;
            const int king = __shfl_sync(kAll, square, scan.king_rank[perspective]);
            const int orientation = Set::orientation(perspective, king);
            const int offset = data::general_offset<Set>(perspective, king, board);
            const auto index_of = [&](data::Bitboard all) {
                return data::general_index<Set>(board, perspective, orientation, offset, code, square,
                                                data::lowest(all));
            };
            int mine = 0, bucket = -1, wrong = -1;
            for (data::Bitboard all = partners; all; all &= all - 1) {
                const int index = index_of(all);
                if (index < 0) continue;
                ++mine;
                if (data::fault_of_index<Set>(index, bucket) != data::SetFault::kNone) wrong = index;
            }
            // All lanes must be in the bucket of the first lane that is in one.
            const unsigned bucketed = __ballot_sync(kAll, bucket >= 0);
            if (bucketed != 0) {
                const int common = __shfl_sync(kAll, bucket, __ffs(bucketed) - 1);
                if (bucket >= 0 && bucket != common) wrong = bucket * max(Set::kBucketSize, 1);
            }
            int end = mine;
            for (int distance = 1; distance < kLanes; distance *= 2) {
                const int before = __shfl_up_sync(kAll, end, distance);
                if (lane >= distance) end += before;
            }
            const int active = __shfl_sync(kAll, end, kLanes - 1);
            if (active > Set::kMaxActive && lane == 0) wrong = Set::kNumFeatures + active;
            const unsigned faults = __ballot_sync(kAll, wrong >= 0);
            const int row_begin = row_end(row, rows.length, lane);
            longest = max(longest, row_begin);
            if (faults != 0) {
                if (lane == __ffs(faults) - 1) report(sink, position, wrong);
                continue;  // the row keeps what it has
            }
            int32_t* out = row + row_begin + end - mine;
            for (data::Bitboard all = partners; all; all &= all - 1) {
                const int index = index_of(all);
                if (index >= 0) *out++ = rows.first_feature + index;
            }
            longest = max(longest, row_begin + active);
        }
        if (lane == 0) rows.counts[position] = static_cast<int16_t>(longest);
    }
}

// Queues the kernel for n records, whose address is a multiple of 8.
template <class Set>
cudaError_t launch_append(const uint8_t* records, int64_t n, const data::AppendRows& rows, const FindingSink& sink,
                          cudaStream_t stream) {
    using namespace general_set;
    if (n == 0) return cudaSuccess;
    const int64_t blocks = (n + kWarps - 1) / kWarps;
    const unsigned grid = static_cast<unsigned>(blocks < (1 << 20) ? blocks : 1 << 20);
    const auto kernel = append_features<Set>;
    kernel<<<grid, dim3(kLanes, kWarps), 0, stream>>>(reinterpret_cast<const uint64_t*>(records), n, rows, sink);
    return cudaGetLastError();
}

// The type of the function nnue_append_features, which a CUDA library made from a user's header exports.
using LaunchAppend = cudaError_t (*)(const uint8_t* records, int64_t n, const data::AppendRows& rows,
                                     const FindingSink& sink, cudaStream_t stream);

}  // namespace nnue::cuda
