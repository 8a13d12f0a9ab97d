// Makes a list of values per feature, in a fixed order: a stable radix sort orders pairs (feature, value), so that the
// values of a feature keep their order. Long lists are cut into pieces at fixed places; a piece is a *task* for a warp
// that adds up the values. `Place` counts the entries of all lists.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cub/device/device_radix_sort.cuh>
#include <cub/device/device_scan.cuh>

#include "carver.cuh"
#include "common.cuh"

namespace nnue::sorted_lists {

constexpr int kShortestPiece = 64;

// What is known of the lists before they are made. `places` is the number of entries of all lists, padding included.
struct Limits {
    int64_t places, num_features;

    // Entries per piece of a list: few enough to spread the lists of frequent features over the device, and enough to
    // limit the number of pieces of any batch to about 16,384.
    int64_t piece_length() const { return std::max<int64_t>(kShortestPiece, divide_up(places, 8192)); }
    // The most lists that are longer than one piece, the most pieces that these can have, and the most pieces of all.
    int64_t long_lists() const { return std::min(num_features, places / (piece_length() + 1)); }
    int64_t partials() const { return long_lists() == 0 ? 0 : places / piece_length() + long_lists(); }
    int64_t tasks() const { return num_features + partials(); }
};

// A piece of a list. A feature without entries has one empty piece.
template <class Place>
struct alignas(16) Task {
    int feature;
    Place begin, count;  // of its entries among those of all lists
    int partial;         // the number of the piece among those of longer lists; −1 for a list of one piece
};

// A list of several pieces.
struct alignas(16) LongList {
    int feature;
    int first_partial, partials;
    int unused;
};

struct Counts {
    int tasks, long_lists;
};

// How many bits the keys 0 … `last` need.
inline int key_bits(int64_t last) {
    int bits = 1;
    while ((int64_t(1) << bits) <= last) ++bits;
    return bits;
}

// Bytes of CubScratch that `sort` and `sums_before` need.
template <class Value>
size_t sort_bytes(int64_t pairs, int64_t last_key) {
    size_t bytes = 0;
    cuda::check_cuda(cub::DeviceRadixSort::SortPairs(nullptr, bytes, static_cast<int32_t*>(nullptr),
                                                     static_cast<int32_t*>(nullptr), static_cast<Value*>(nullptr),
                                                     static_cast<Value*>(nullptr), pairs, 0, key_bits(last_key)),
                     "radix sort");
    return bytes;
}
inline size_t sums_before_bytes(int64_t count) {
    size_t bytes = 0;
    cuda::check_cuda(cub::DeviceScan::ExclusiveSum(nullptr, bytes, static_cast<int64_t*>(nullptr),
                                                   static_cast<int64_t*>(nullptr), count),
                     "scan");
    return bytes;
}

// Scratch memory that cub, the library of the sort and the sums, works in.
struct CubScratch {
    void* memory;
    size_t bytes;
};

// Orders pairs by their keys, which are in [0, last_key].
template <class Value>
void sort(CubScratch scratch, const int32_t* keys, int32_t* sorted_keys, const Value* values, Value* sorted_values,
          int64_t pairs, int64_t last_key, cudaStream_t stream) {
    if (pairs == 0) return;
    cuda::check_cuda(cub::DeviceRadixSort::SortPairs(scratch.memory, scratch.bytes, keys, sorted_keys, values,
                                                     sorted_values, pairs, 0, key_bits(last_key), stream),
                     "radix sort");
}

// sums[i] = the sum of numbers[0 … i − 1].
inline void sums_before(CubScratch scratch, const int64_t* numbers, int64_t* sums, int64_t count, cudaStream_t stream) {
    cuda::check_cuda(cub::DeviceScan::ExclusiveSum(scratch.memory, scratch.bytes, numbers, sums, count, stream),
                     "scan");
}

// Called by a whole warp: gives `put` each place of a row, [0, max_active), with its key, which is its feature, or
// num_features after the end of the row and for an illegal index. Returns the number of entries.
template <class Put>
__device__ inline int for_each_key(const int32_t* row, int max_active, int num_features, int lane, const Put& put) {
    int count = 0;
    for (int base = 0; base < max_active; base += cuda::kWarp) {
        const int place = base + lane;
        const int32_t index = place < max_active && count == base ? row[place] : -1;
        const unsigned ends = __ballot_sync(cuda::kAllLanes, index == -1);
        const int here = ends == 0 ? cuda::kWarp : __ffs(static_cast<int>(ends)) - 1;
        const bool legal = lane < here && static_cast<unsigned>(index) < static_cast<unsigned>(num_features);
        if (place < max_active) put(place, legal ? index : num_features);
        count += here;
    }
    return count;
}

// The last i in [0, count) whose number at(i) is not above `wanted`; the numbers ascend, and at(0) is not above it.
template <class At>
__device__ inline int64_t last_up_to(int64_t count, int64_t wanted, const At& at) {
    int64_t low = 0;
    while (count - low > 1) {
        const int64_t middle = low + (count - low) / 2;
        (at(middle) <= wanted ? low : count) = middle;
    }
    return low;
}

// starts[f] is the first sorted place whose key is at least f, for f in [0, num_features].
template <class Start>
__global__ void start_kernel(const int32_t* __restrict__ keys, int64_t count, int64_t num_features,
                             Start* __restrict__ starts) {
    for (int64_t f = int64_t(blockIdx.x) * blockDim.x + threadIdx.x; f <= num_features;
         f += int64_t(gridDim.x) * blockDim.x) {
        int64_t low = 0, high = count;
        while (low < high) {
            const int64_t middle = (low + high) / 2;
            if (keys[middle] < f) {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        starts[f] = static_cast<Start>(low);
    }
}

// Three counts over all features before this one, packed into one number: tasks, pieces of longer lists, and longer
// lists. One prefix sum makes all three: the last two stay far below 2^16 (Limits::piece_length).
struct PieceCount {
    int64_t packed;
    __host__ __device__ int tasks() const { return static_cast<int>(packed & 0xffffffff); }
    __host__ __device__ int partials() const { return static_cast<int>(packed >> 32 & 0xffff); }
    __host__ __device__ int long_lists() const { return static_cast<int>(packed >> 48); }
};

template <class Place>
__global__ void piece_kernel(const Place* __restrict__ starts, int num_features, int64_t length,
                             int64_t* __restrict__ pieces) {
    const int64_t f = int64_t(blockIdx.x) * blockDim.x + threadIdx.x;
    if (f > num_features) return;
    const int64_t entries = f < num_features ? starts[f + 1] - starts[f] : 0, own = (entries + length - 1) / length;
    pieces[f] = f == num_features ? 0 : own <= 1 ? 1 : own | own << 32 | int64_t(1) << 48;
}

// The tasks of a batch, and scratch memory for making them.
template <class Place>
struct Tasks {
    Task<Place>* tasks;    // [Limits::tasks], by feature
    LongList* long_lists;  // [Limits::long_lists]
    Counts* counts;        // [1]
    Place* starts;         // [num_features + 1]: where the list of a feature begins
    int64_t* pieces;       // [num_features + 1]: see PieceCount
    int64_t* pieces_before;
};

// One thread per task. `visit` gets the number of each, and the task itself; null for numbers without a task.
template <class Place, class Visit>
__global__ void task_kernel(Tasks<Place> of, int num_features, int64_t length, int64_t most_tasks, Visit visit) {
    const int64_t t = int64_t(blockIdx.x) * blockDim.x + threadIdx.x;
    if (t >= most_tasks) return;
    const PieceCount all{of.pieces_before[num_features]};
    if (t == 0) *of.counts = {all.tasks(), all.long_lists()};
    if (t >= all.tasks()) return visit(t, static_cast<const Task<Place>*>(nullptr));
    const int feature = static_cast<int>(
        last_up_to(num_features, t, [&](int64_t f) { return PieceCount{of.pieces_before[f]}.tasks(); }));
    const PieceCount before{of.pieces_before[feature]};
    const Place first = of.starts[feature], entries = of.starts[feature + 1] - first;
    const int piece = static_cast<int>(t) - before.tasks();
    const bool is_long = entries > length;
    const Place begin = static_cast<Place>(piece * length), left = entries - begin;
    const Place count = left < length ? left : static_cast<Place>(length);
    const Task<Place> task{feature, first + begin, count, is_long ? before.partials() + piece : -1};
    of.tasks[t] = task;
    if (is_long && piece == 0) {
        const int partials = static_cast<int>((entries + length - 1) / length);
        of.long_lists[before.long_lists()] = {feature, before.partials(), partials, 0};
    }
    visit(t, &task);
}

// From the sorted keys of all places. There is at least one feature.
template <class Place, class Visit>
void make_tasks(CubScratch cub, const int32_t* sorted_keys, const Limits& limits, const Tasks<Place>& to,
                const Visit& visit, cudaStream_t stream) {
    constexpr int kThreads = 256;
    const int64_t places = limits.places, features = limits.num_features, tasks = limits.tasks();
    const unsigned blocks = cuda::thread_blocks_for(features + 1, kThreads);
    cuda::launch("list starts", start_kernel<Place>, blocks, kThreads, 0, stream, sorted_keys, places, features,
                 to.starts);
    cuda::launch("pieces", piece_kernel<Place>, blocks, kThreads, 0, stream, to.starts, features, limits.piece_length(),
                 to.pieces);
    sums_before(cub, to.pieces, to.pieces_before, features + 1, stream);
    cuda::launch("tasks", task_kernel<Place, Visit>, cuda::thread_blocks_for(tasks, kThreads), kThreads, 0, stream, to,
                 features, limits.piece_length(), tasks, visit);
}

}  // namespace nnue::sorted_lists
