// The fp32 forward where all features lie in king buckets: every row adds up its features' weights from shared memory.
//
// A *unit* is one slab of one bucket: 32 columns of each half. Four warps copy the slab of the bucket's `kNearFeatures`
// most frequent features to shared memory, and make the sums of teams of them (`kPlaces`), while the other warps work
// on the unit before. A quarter of a warp takes a row. Its eight lanes read 128 bytes at a time without a bank
// conflict, and add them in the order of the row's list. Far features are read from the L2 cache, the first one while
// the near ones are added. Which features are frequent changes only the order of the additions.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>

#include "irregular_rows.cuh"
#include "one_hot_product.cuh"

namespace nnue::forward_gather {

using namespace one_hot_product;

constexpr int kSlabBytes = 256, kUnitBytes = kPlaces * kSlabBytes;
constexpr int kUnitCost = 1276;                          // of starting a unit, in the units of kNearCost; measured
constexpr int kSlab = kSlabBytes / 2 / 4, kColumns = 4;  // columns of each half: of a slab, of a lane
constexpr int kProducers = 4, kConsumers = 28, kThreads = 32 * (kConsumers + kProducers);
constexpr int kSharedBytes = 2 * kUnitBytes;
constexpr int kBiasPlace = team_place(kBiasTeam, 0);
static_assert(kProducers == kFours && 2 * kProducers == kTeams);

// The sums of one row. Each lane has 4 columns of either half.
struct Sums {
    float sum[2][kColumns];

    __device__ explicit Sums(uint32_t first) {
        for (int i = 0; i < 2; ++i) {
            const uint4 piece = load_shared_16(first + i * 128);
            sum[i][0] = __uint_as_float(piece.x), sum[i][1] = __uint_as_float(piece.y);
            sum[i][2] = __uint_as_float(piece.z), sum[i][3] = __uint_as_float(piece.w);
        }
    }
    __device__ __forceinline__ void add(const uint4 (&halves)[2]) {
        for (int i = 0; i < 2; ++i) {
            sum[i][0] += __uint_as_float(halves[i].x), sum[i][1] += __uint_as_float(halves[i].y);
            sum[i][2] += __uint_as_float(halves[i].z), sum[i][3] += __uint_as_float(halves[i].w);
        }
    }
    // Adds what is at these addresses: 16 bytes per lane; those of the other half are 128 bytes further on.
    template <int kCount>
    __device__ __forceinline__ void add(const uint32_t (&from)[kCount]) {
        uint4 pieces[2 * kCount];
        for (int i = 0; i < 2 * kCount; ++i) pieces[i] = load_shared_16(from[i / 2] + i % 2 * 128);
        for (int i = 0; i < kCount; ++i) add({pieces[2 * i], pieces[2 * i + 1]});
    }
    // Adds kWords words of a near list. A word has two entries; dp2a gives base + 128 · an entry, which is twice a
    // place.
    template <int kWords>
    __device__ __forceinline__ void add_listed(const uint32_t (&words)[kWords], uint32_t base) {
        for (const uint32_t word : words) add<2>({__dp2a_lo(word, 0x0080u, base), __dp2a_lo(word, 0x8000u, base)});
    }
};

// For one warp: makes all sums of kCount features. Feature i is at place 1 << i from `first` on, and sum v goes to
// place v. If kMore, `more` is added to every sum, and sum 0 is `more`. Each lane has two columns.
template <int kCount, bool kMore = false>
__device__ __forceinline__ void add_up(uint32_t first, float2 more = {}) {
    const uint32_t at = first + threadIdx.x % 32 * 8;
    float2 sums[1 << kCount], feature;
    sums[0] = more;
    if (kMore) store_shared_8(at, more.x, more.y);
    for (int sum = 1; sum < 1 << kCount; ++sum) {
        // The number of the sum of all features but the last one.
        const int others = sum & (sum >= 8 ? 7 : sum >= 4 ? 3 : sum >= 2 ? 1 : 0);
        static_assert(kCount <= 4);
        if (others == 0) {
            const uint2 words = load_shared_8(at + sum * kSlabBytes);
            feature = {__uint_as_float(words.x), __uint_as_float(words.y)};
        }
        sums[sum] = feature;
        if (others != 0 || kMore) {
            sums[sum].x += sums[others].x, sums[sum].y += sums[others].y;
            store_shared_8(at + sum * kSlabBytes, sums[sum].x, sums[sum].y);
        }
    }
}

// Where a worker's stretch of units begins or ends.
struct Cut {
    long long at;    // the cost of what comes before in this slab
    int slab, tile;  // its slab; how many tiles of its unit come before
};

// Where stretch number `worker` begins; all stretches cost the same. Every thread block computes the same answer, so
// rounding does no harm.
__device__ __forceinline__ Cut cut_before(int worker, const int32_t* tile_begin, const long long* prefix,
                                          int num_buckets, int slabs) {
    const long long each = prefix[num_buckets], cost = even_begin(each * slabs, worker);
    Cut cut;
    cut.slab = int(double(cost) / double(each));
    cut.at = cost - cut.slab * each;
    if (cut.at < 0) cut.at += each, --cut.slab;
    if (cut.at >= each) cut.at -= each, ++cut.slab;
    const int bucket = last_begun(prefix, num_buckets, cut.at), tiles = tile_begin[bucket + 1] - tile_begin[bucket];
    const float share = float(cut.at - prefix[bucket]) / float(prefix[bucket + 1] - prefix[bucket]);
    cut.tile = min(int(ceilf(share * float(tiles))), tiles);
    return cut;
}

// The stretch of units, or pieces of units, that a worker takes, with the slab as the outermost loop. It is a function
// of the batch alone.
struct Work {
    const int32_t* tile_begin;  // in shared memory, like `prefix`
    const long long* prefix;    // the cost, per slab, of the buckets before
    int num_buckets, first_tile, last_tile;
    long long at, left;
    int column, bucket, lo, hi;  // the slab's first column; tiles lo … hi − 1 of the bucket

    __device__ Work(const int32_t* tile_begin_, const long long* prefix_, int num_buckets_, const Cut& first,
                    const Cut& last)
        : tile_begin(tile_begin_),
          prefix(prefix_),
          num_buckets(num_buckets_),
          first_tile(first.tile),
          last_tile(last.tile),
          at(first.at),
          left(last.at - first.at + (last.slab - first.slab) * prefix_[num_buckets_]),
          column(first.slab * kSlab) {}

    __device__ bool next() {
        while (left > 0) {
            if (at == prefix[num_buckets]) at = 0, column += kSlab;
            bucket = last_begun(prefix, num_buckets, at);
            const long long to = min(prefix[bucket + 1], at + left);
            lo = at == prefix[bucket] ? 0 : first_tile;
            hi = to == prefix[bucket + 1] ? tile_begin[bucket + 1] - tile_begin[bucket] : last_tile;
            left -= to - at;
            at = to;
            if (lo < hi) return true;
        }
        return false;
    }
    __device__ int tickets() const { return (hi - lo) * (kTileRows / kGatherRows); }
};

// Stores four values from column `column` on in row `row`, where rows have `width` columns.
__device__ __forceinline__ void store_four(void* base, int row, int width, int column, const float (&v)[kColumns],
                                           Float type) {
    const size_t at = size_t(unsigned(row)) * unsigned(width) + column;
    if (type == Float::kFloat32)
        *reinterpret_cast<float4*>(static_cast<float*>(base) + at) = {v[0], v[1], v[2], v[3]};
    else
        *reinterpret_cast<uint2*>(static_cast<uint16_t*>(base) + at) = {pack(v[0], v[1], type), pack(v[2], v[3], type)};
}

__device__ __forceinline__ void finish_row(const ForwardProblem& p, float (&first)[kColumns], float (&second)[kColumns],
                                           int column, int slot, int target) {
    const int half = p.num_outputs / 2;
    if (p.saved != nullptr) {  // as saved_at(slot, 0, column, p.num_outputs), and the same for the second half
        store_four(p.saved, slot, p.num_outputs, column, first, Float::kFloat32);
        store_four(p.saved, slot, p.num_outputs, half + column, second, Float::kFloat32);
    }
    if (p.activation != Activation::kIdentity) {
        for (int i = 0; i < kColumns; ++i) first[i] = clip(first[i], p.bound), second[i] = clip(second[i], p.bound);
    }
    if (p.activation == Activation::kPairwise) {
        for (int i = 0; i < kColumns; ++i) first[i] = finished(p, first[i] * (second[i] * p.scale));
        store_four(p.out, target, half, column, first, p.out_type);
        return;
    }
    for (int i = 0; i < kColumns; ++i) {
        first[i] = finished(p, first[i] * (p.activation == Activation::kSCReLU ? first[i] * p.scale : p.scale));
        second[i] = finished(p, second[i] * (p.activation == Activation::kSCReLU ? second[i] * p.scale : p.scale));
    }
    store_four(p.out, target, p.num_outputs, column, first, p.out_type);
    store_four(p.out, target, p.num_outputs, half + column, second, p.out_type);
}

// Adds one to a number in shared memory and returns its old value.
__device__ __forceinline__ int fetch_increment(uint32_t address) {
    int before;
    asm volatile("atom.shared.add.u32 %0, [%1], 1;" : "=r"(before) : "r"(address) : "memory");
    return before;
}

// long: the warps that copy and those that add share stages, barriers and tickets.
__global__ void __launch_bounds__(kThreads, 1) gather_kernel(ForwardProblem p) {
    extern __shared__ __align__(128) char shared[];
    __shared__ uint64_t barriers[4];
    __shared__ int next_ticket;
    __shared__ long long prefix[kMaxBuckets + 1];
    __shared__ int32_t tile_begin[kMaxBuckets + 1];
    __shared__ Cut cuts[2];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, half = p.num_outputs / 2;
    const uint32_t full = shared_address(barriers), empty = full + 16;  // two barriers each, 8 bytes apart
    if (threadIdx.x < 2 * kSlabBytes / 16)
        *reinterpret_cast<uint4*>(shared + threadIdx.x / 16 * kUnitBytes + threadIdx.x % 16 * 16) = {0, 0, 0, 0};
    if (threadIdx.x == 0) {
        next_ticket = 0;
        for (int i = 0; i < 2; ++i) {
            barrier_init(full + 8 * i, 2 * kProducers * 32);  // each thread arrives for its copies and for its sums
            barrier_init(empty + 8 * i, kConsumers * 32);
        }
    }
    wait_for_kernels_before();
    let_next_kernel_start();
    const int num_buckets = p.in.num_buckets;
    const float* weights = static_cast<const float*>(p.weight);
    const unsigned row_bytes = unsigned(p.num_outputs) * sizeof(float);
    if (warp == 0) {
        for (int b = lane; b <= num_buckets; b += 32) tile_begin[b] = p.plan.tile_begin[b];
        sums_before(prefix, num_buckets, [&](int bucket) {
            const long long cost = (long long)p.plan.bucket_cost[bucket];
            return cost > 0 ? cost + kUnitCost : 0;
        });
        __syncwarp();
        if (lane < 2)
            cuts[lane] = cut_before(blockIdx.x + lane, tile_begin, prefix, num_buckets, (half + kSlab - 1) / kSlab);
    }
    __syncthreads();
    Work work(tile_begin, prefix, num_buckets, cuts[0], cuts[1]);
    int buffer = 0;
    uint32_t phase = 0;

    if (warp >= kConsumers) {  // copies weights: 16 lanes per feature, eight for each half
        // Feature j of this warp has rank 16 (j / 4) + 4 producer + j % 4, so its first eight features are two teams.
        const int producer = warp - kConsumers, sixteenth = lane % 16, upper = lane / 16;
        int features[3], next_features[3] = {-1, -1, -1}, of_bucket = -1;  // feature 32 i + lane
        const auto look_ahead = [&] {
            const bool more = work.next();
            if (more && work.bucket != of_bucket) {
                of_bucket = work.bucket;
                const int32_t* ranked =
                    p.plan.ranked + of_bucket * kBucketFeatures + lane / 4 * 16 + producer * 4 + lane % 4;
                for (int i = 0; i < 3; ++i) next_features[i] = __ldg(ranked + 128 * i);
            }
            return more;
        };
        bool more = look_ahead();
        while (more) {
            const int column = work.column + sixteenth % 8 * kColumns;
            const bool exists = column < half;
            const char* from = reinterpret_cast<const char*>(
                weights + size_t(work.bucket) * p.in.bucket_size * p.num_outputs + column + (sixteenth < 8 ? 0 : half));
            for (int i = 0; i < 3; ++i) features[i] = next_features[i];
            float2 bias{};  // + 0.0f, so that no sum is −0
            if (producer == 0) {
                const int two = work.column + lane % 16 * 2;
                const float* at = p.bias + (lane < 16 ? two : two + half);
                if (two < half) bias = {__ldg(at) + 0.0f, __ldg(at + 1) + 0.0f};
            }
            barrier_wait(empty + 8 * buffer,
                         phase ^ 1);  // a new barrier does not block a wait for this parity
            const uint32_t unit = shared_address(shared) + buffer * kUnitBytes;
            const uint32_t four = unit + team_place(producer, 0) * kSlabBytes,
                           three = unit + team_place(kFours + producer, 0) * kSlabBytes,
                           fourth = unit + single_place(16 + 4 * producer) * kSlabBytes,
                           singles = bucket_plan::keep(unit + (4 * producer + upper) * kSlabBytes + sixteenth * 16);
            const uint32_t teams[4] = {four + (kSlabBytes << upper), four + (4 * kSlabBytes << upper),
                                       three + (kSlabBytes << upper), upper ? fourth : three + 4 * kSlabBytes};
            for (int i = 0; i < 3; ++i) {
                if (!__any_sync(~0u, features[i] >= 0)) break;
                for (int batch = 0; batch < 16; batch += 8) {  // shuffles have a long latency, so eight are in flight
                    int feature[8];
                    for (int j = 0; j < 8; ++j) feature[j] = __shfl_sync(~0u, features[i], 2 * (batch + j) + upper);
                    for (int j = 0; j < 8; ++j) {
                        const int pair = batch + j;
                        const uint32_t to =
                            i == 0 && pair < 4
                                ? teams[pair] + sixteenth * 16
                                : singles + single_place(i * 128 + pair / 2 * 16 + pair % 2 * 2) * kSlabBytes;
                        if (feature[j] >= 0 && exists) copy_async_16(to, row_of(from, feature[j], row_bytes), true);
                        if (i == 0 && pair == 3) copy_async_commit();  // the teams
                    }
                }
            }
            barrier_arrive_copied(full + 8 * buffer);
            copy_async_commit();
            more = look_ahead();
            copy_async_wait<1>();
            __syncwarp();
            add_up<4>(four);
            if (producer > 0)
                add_up<3>(three);
            else
                add_up<3, true>(three, bias);
            barrier_arrive(full + 8 * buffer);
            buffer ^= 1;
            if (buffer == 0) phase ^= 1;
        }
        copy_async_wait_all();
        return;
    }

    // Warps take kGatherRows rows per ticket. `ticket` counts these through all units of this thread block.
    const unsigned pitch = p.plan.pitch;
    const int eighth = lane % 8;
    const uint32_t tickets = shared_address(&next_ticket);
    const auto take = [&] {
        int ticket = 0;
        if (lane == 0) ticket = fetch_increment(tickets);
        return __shfl_sync(~0u, ticket, 0);
    };
    int ticket = take(), first_ticket = 0;
    while (work.next()) {
        const int end_ticket = first_ticket + work.tickets();
        const int first_row = (tile_begin[work.bucket] + work.lo) * kTileRows + lane / 8 - first_ticket * kGatherRows;
        const uint32_t base = shared_address(shared) + buffer * kUnitBytes + eighth * 16;
        const int column = work.column + eighth * kColumns;
        const bool exists = column < half;
        const char* first_weight =
            reinterpret_cast<const char*>(weights + size_t(work.bucket) * p.in.bucket_size * p.num_outputs + column);
        uint4 rarer[2] = {};
        const auto bring = [&](int feature) {
            if (!exists) return;
            const char* from = row_of(first_weight, feature, row_bytes);
            rarer[0] = __ldg(reinterpret_cast<const uint4*>(from));
            rarer[1] = __ldg(reinterpret_cast<const uint4*>(from + half * sizeof(float)));
        };
        const auto near_list = [&](int row) {
            return reinterpret_cast<const uint4*>(p.plan.near) + unsigned(row) * (pitch / 8);
        };
        int next_row;
        RowEntry next_entry;
        uint4 next_list;
        const auto prepare = [&] {  // for the next ticket; not used if the unit has no more
            next_row = first_row + min(ticket, end_ticket - 1) * kGatherRows;
            const int4 entry = __ldg(reinterpret_cast<const int4*>(p.plan.entries + next_row));
            next_entry = {entry.x, entry.y, entry.z, entry.w};
            next_list = __ldg(near_list(next_row));
        };
        prepare();
        barrier_wait(full + 8 * buffer, phase);
        while (ticket < end_ticket) {
            const uint4* near = near_list(next_row);
            const RowEntry entry = next_entry;
            uint4 eight = next_list;
            ticket = take();
            prepare();
            int longest = __shfl_sync(~0u, entry.counts, 0);  // rows come longest first
            if (longest < 0) continue;
            longest &= 511;
            const uint16_t* far =
                p.plan.far + (size_t(unsigned(entry.slot) / kTileRows * kTileRows) * pitch + unsigned(entry.far_begin));
            const int rare = entry.counts < 0 ? 0 : entry.counts >> 9 & 511;
            int next_far = entry.counts >> 18 & 1023;
            if (rare > 0) bring(next_far);
            if (rare > 1) next_far = __ldg(far + 1);

            Sums sums(base + (kBiasPlace + (entry.counts >> 28 & 7)) * kSlabBytes);
            for (int k = 8; k <= longest; k += 8) {
                const uint4 now = eight;
                if (k < longest) eight = __ldg(++near);
                sums.add_listed<4>({now.x, now.y, now.z, now.w}, base);
            }
            if (longest & 4) {
                sums.add_listed<2>({eight.x, eight.y}, base);
                eight.x = eight.z, eight.y = eight.w;
            }
            if (longest & 2) {
                sums.add_listed<1>({eight.x}, base);
                eight.x = eight.y;
            }
            if (longest & 1) sums.add<1>({__dp2a_lo(eight.x, 0x0080u, base)});
            for (int i = 0; i < rare; ++i) {
                if (i > 0) {
                    bring(next_far);
                    if (i + 1 < rare) next_far = __ldg(far + i + 1);
                }
                sums.add(rarer);
            }
            __syncwarp();
            if (exists && entry.target >= 0) finish_row(p, sums.sum[0], sums.sum[1], column, entry.slot, entry.target);
        }
        barrier_arrive(empty + 8 * buffer);
        buffer ^= 1;
        if (buffer == 0) phase ^= 1;
        first_ticket = end_ticket;
    }
}

inline void forward(const ForwardProblem& p, int workers, cudaStream_t stream) {
    start("gather_kernel", gather_kernel, kSharedBytes, workers, kThreads, kSharedBytes, stream, p);
    start("irregular_forward_kernel", irregular_forward_kernel<float>, -1, kIrregularGrid, 256, 0, stream, p);
}

}  // namespace nnue::forward_gather
