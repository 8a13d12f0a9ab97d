// The plan of a batch for the portable kernels: its rows in an order in which neighbours read the same weights, and for
// every feature the list of the rows that have it.
//
// A *row* is one perspective of one position; rows [0, B) are White's. Rows are ordered by their first feature, as on
// the CPU: in sets with king buckets that puts the rows of a bucket side by side. The place of a row in this order is
// its *slot*. The list of a feature has the slots of its rows, ascending; a row that has it twice is there twice. A
// long list is cut into pieces at fixed places, and a piece is a *task* of the backward. Tasks are ordered by their
// first slot, so that a multiprocessor which takes neighbouring tasks reads the same row gradients again and again. A
// feature without rows has one empty task, which writes its zeros.
//
// Any rows will do: nothing here depends on king buckets, and features may come in any order and more than once. The
// plan is a function of the batch alone.
#pragma once

#include <algorithm>
#include <cstdint>

#include "../carver.cuh"
#include "../common.cuh"
#include "../sorted_lists.cuh"

namespace nnue::portable {

constexpr int kShortestPiece = 64;

// Sizes of the lists before the lists are made. `places` is the number of entries of all lists, padding included.
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
struct alignas(16) Task {
    int feature;
    int begin, count;  // of its entries among those of all lists
    int partial;       // the number of the piece among those of longer lists; −1 for a list of one piece
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

struct IndexRows {
    const int32_t* white;  // [positions, max_active]
    const int32_t* black;
    const uint8_t* black_to_move;  // [positions]; only for the plan
    int positions, max_active, num_features;

    __host__ __device__ int64_t rows() const { return 2 * int64_t(positions); }
    __host__ __device__ int64_t places() const { return rows() * max_active; }
    Limits lists() const { return {places(), num_features}; }
};

struct alignas(16) Slot {
    int row;
    int target;  // 2 · position + (0 for the side to move, 1 for the other side)
    int count;   // of entries
    int unused;
};

struct Plan {
    Slot* slots;           // [rows]
    int64_t* slot_cost;    // [rows + 1]: the work of all slots before
    uint8_t* black_first;  // [positions]: whether Black is to move
    int32_t* list;         // [places]: the slots of feature 0, then those of feature 1, …
    Task* tasks;           // [lists().tasks]
    int64_t* task_cost;    // [lists().tasks + 1]: the work of all tasks before
    LongList* long_lists;  // [lists().long_lists]
    Counts* counts;        // [1]
};

inline Plan carve_plan(Carver& carver, const IndexRows& in) {
    Plan plan{};
    plan.slots = carver.take<Slot>("slots", in.rows());
    plan.slot_cost = carver.take<int64_t>("slot_cost", in.rows() + 1);
    plan.black_first = carver.take<uint8_t>("black_first", in.positions);
    plan.list = carver.take<int32_t>("list", in.places());
    plan.tasks = carver.take<Task>("tasks", in.lists().tasks());
    plan.task_cost = carver.take<int64_t>("task_cost", in.lists().tasks() + 1);
    plan.long_lists = carver.take<LongList>("long_lists", in.lists().long_lists());
    plan.counts = carver.take<Counts>("counts", 1);
    return plan;
}

// Scratch memory for making the plan.
struct PlanScratch {
    int32_t *keys, *sorted_keys, *values, *order;  // of the rows, then of the places, then of the tasks
    int64_t* starts;                               // [num_features + 1]: where the list of a feature begins
    int64_t *pieces, *pieces_before;               // [num_features + 1]: see PieceCount
    Task* tasks;                                   // by feature
    int64_t* cost;
    sorted_lists::CubScratch cub;
};

inline PlanScratch carve_plan_scratch(Carver& carver, const IndexRows& in) {
    const int64_t rows = in.rows(), tasks = in.lists().tasks(), pairs = std::max({rows, in.places(), tasks});
    PlanScratch s{};
    s.keys = carver.take<int32_t>("keys", pairs);
    s.sorted_keys = carver.take<int32_t>("sorted_keys", pairs);
    s.values = carver.take<int32_t>("values", pairs);
    s.order = carver.take<int32_t>("order", std::max(rows, tasks));
    for (int64_t** array : {&s.starts, &s.pieces, &s.pieces_before})
        *array = carver.take<int64_t>("of_lists", in.num_features + 1);
    s.cost = carver.take<int64_t>("cost", std::max(rows, tasks) + 1);
    s.tasks = carver.take<Task>("tasks", tasks);
    s.cub.bytes = std::max({sorted_lists::sort_bytes<int32_t>(rows, in.num_features),
                            sorted_lists::sort_bytes<int32_t>(in.places(), in.num_features),
                            sorted_lists::sort_bytes<int32_t>(tasks, rows + 1),
                            sorted_lists::sums_before_bytes(in.num_features + 1),
                            sorted_lists::sums_before_bytes(std::max(rows, tasks) + 1)});
    s.cub.memory = carver.take<char>("cub", s.cub.bytes);
    return s;
}

constexpr int kPlanThreads = 256, kPlanWarps = kPlanThreads / cuda::kWarp;
// Cost of a slot and of a task beside their entries, measured in entries. Only the division of the work depends on it.
constexpr int kSlotCost = 6, kTaskCost = 4;

__device__ inline const int32_t* row_pointer(const IndexRows& in, int row) {
    const bool black = row >= in.positions;
    return (black ? in.black : in.white) + size_t(black ? row - in.positions : row) * in.max_active;
}

// The key of a row is its first feature.
__global__ void __launch_bounds__(kPlanThreads)
    row_key_kernel(IndexRows in, int32_t* __restrict__ keys, int32_t* __restrict__ rows) {
    const int64_t row = int64_t(blockIdx.x) * kPlanThreads + threadIdx.x;
    if (row >= in.rows()) return;
    const int32_t first = in.max_active > 0 ? row_pointer(in, static_cast<int>(row))[0] : -1;
    keys[row] = static_cast<unsigned>(first) < static_cast<unsigned>(in.num_features) ? first : in.num_features;
    rows[row] = static_cast<int32_t>(row);
}

// One warp per slot: its record, and the pairs (feature, slot) of its entries.
__global__ void __launch_bounds__(kPlanThreads)
    slot_kernel(IndexRows in, const int32_t* __restrict__ order, Plan plan, int32_t* __restrict__ keys,
                int32_t* __restrict__ values, int64_t* __restrict__ cost) {
    const int64_t slot = int64_t(blockIdx.x) * kPlanWarps + threadIdx.x / cuda::kWarp;
    if (slot >= in.rows()) return;
    const int lane = threadIdx.x % cuda::kWarp, row = order[slot];
    const int count = sorted_lists::for_each_key(row_pointer(in, row), in.max_active, in.num_features, lane,
                                                 [&](int place, int32_t key) {
                                                     keys[slot * in.max_active + place] = key;
                                                     values[slot * in.max_active + place] = static_cast<int32_t>(slot);
                                                 });
    if (lane != 0) return;
    const bool black = row >= in.positions;
    const int position = black ? row - in.positions : row;
    const bool black_first = in.black_to_move[position] != 0;
    plan.slots[slot] = {row, 2 * position + (black == black_first ? 0 : 1), count, 0};
    cost[slot] = count + kSlotCost;
    if (slot == 0) cost[in.rows()] = 0;
    if (!black) plan.black_first[position] = black_first;
}

// Three counts over all features before this one, packed into one number: tasks, pieces of longer lists, and longer
// lists. One prefix sum makes all three: the last two stay far below 2^16 (Limits::piece_length).
struct PieceCount {
    int64_t packed;
    __host__ __device__ int tasks() const { return static_cast<int>(packed & 0xffffffff); }
    __host__ __device__ int partials() const { return static_cast<int>(packed >> 32 & 0xffff); }
    __host__ __device__ int long_lists() const { return static_cast<int>(packed >> 48); }
};

__global__ void __launch_bounds__(kPlanThreads)
    piece_kernel(const int64_t* __restrict__ starts, int num_features, int64_t length, int64_t* __restrict__ pieces) {
    const int64_t f = int64_t(blockIdx.x) * kPlanThreads + threadIdx.x;
    if (f > num_features) return;
    const int64_t entries = f < num_features ? starts[f + 1] - starts[f] : 0, own = (entries + length - 1) / length;
    pieces[f] = f == num_features ? 0 : own <= 1 ? 1 : own | own << 32 | int64_t(1) << 48;
}

// Writes the tasks by feature, one thread per task, and the keys for their order. These are their first slots; those of
// empty tasks come after all slots, and those of numbers without a task last.
__global__ void __launch_bounds__(kPlanThreads)
    task_kernel(Plan plan, PlanScratch s, int num_features, int rows, int length, int most_tasks) {
    const int64_t t = int64_t(blockIdx.x) * kPlanThreads + threadIdx.x;
    if (t >= most_tasks) return;
    const PieceCount all{s.pieces_before[num_features]};
    if (t == 0) *plan.counts = {all.tasks(), all.long_lists()};
    s.values[t] = static_cast<int32_t>(t);
    s.keys[t] = rows + 1;
    if (t >= all.tasks()) return;
    int feature = 0, end = num_features;  // the last feature with no more than t tasks before it
    while (end - feature > 1) {
        const int middle = feature + (end - feature) / 2;
        (PieceCount{s.pieces_before[middle]}.tasks() <= t ? feature : end) = middle;
    }
    const PieceCount before{s.pieces_before[feature]};
    const int begin = static_cast<int>(s.starts[feature]), entries = static_cast<int>(s.starts[feature + 1]) - begin;
    const int piece = static_cast<int>(t) - before.tasks(), skipped = piece * length;
    const bool is_long = entries > length;
    const Task task{feature, begin + skipped, min(entries - skipped, length), is_long ? before.partials() + piece : -1};
    s.tasks[t] = task;
    s.keys[t] = task.count > 0 ? plan.list[task.begin] : rows;
    if (is_long && piece == 0)
        plan.long_lists[before.long_lists()] = {feature, before.partials(), (entries + length - 1) / length, 0};
}

__global__ void __launch_bounds__(kPlanThreads) order_tasks_kernel(Plan plan, PlanScratch scratch, int most_tasks) {
    const int64_t t = int64_t(blockIdx.x) * kPlanThreads + threadIdx.x;
    if (t > most_tasks) return;
    const bool is_task = t < plan.counts->tasks;
    if (is_task) plan.tasks[t] = scratch.tasks[scratch.order[t]];
    scratch.cost[t] = is_task ? plan.tasks[t].count + kTaskCost : 0;
}

inline void make_plan(const IndexRows& in, const Plan& plan, const PlanScratch& scratch, cudaStream_t stream) {
    const int64_t rows = in.rows(), places = in.places(), features = in.num_features, tasks = in.lists().tasks();
    const auto blocks = [](int64_t threads) { return cuda::thread_blocks_for(threads, kPlanThreads); };
    cuda::launch("row keys", row_key_kernel, blocks(rows), kPlanThreads, 0, stream, in, scratch.keys, scratch.values);
    sorted_lists::sort(scratch.cub, scratch.keys, scratch.sorted_keys, scratch.values, scratch.order, rows, features,
                       stream);
    cuda::launch("slots", slot_kernel, cuda::thread_blocks_for(rows, kPlanWarps), kPlanThreads, 0, stream, in,
                 scratch.order, plan, scratch.keys, scratch.values, scratch.cost);
    sorted_lists::sums_before(scratch.cub, scratch.cost, plan.slot_cost, rows + 1, stream);
    sorted_lists::sort(scratch.cub, scratch.keys, scratch.sorted_keys, scratch.values, plan.list, places, features,
                       stream);
    sorted_lists::find_starts(scratch.sorted_keys, places, features, scratch.starts, stream);
    const int length = static_cast<int>(in.lists().piece_length());
    cuda::launch("pieces", piece_kernel, blocks(features + 1), kPlanThreads, 0, stream, scratch.starts, in.num_features,
                 length, scratch.pieces);
    sorted_lists::sums_before(scratch.cub, scratch.pieces, scratch.pieces_before, features + 1, stream);
    cuda::launch("tasks", task_kernel, blocks(tasks), kPlanThreads, 0, stream, plan, scratch, in.num_features,
                 static_cast<int>(rows), length, static_cast<int>(tasks));
    sorted_lists::sort(scratch.cub, scratch.keys, scratch.sorted_keys, scratch.values, scratch.order, tasks, rows + 1,
                       stream);
    cuda::launch("task order", order_tasks_kernel, blocks(tasks + 1), kPlanThreads, 0, stream, plan, scratch,
                 static_cast<int>(tasks));
    sorted_lists::sums_before(scratch.cub, scratch.cost, plan.task_cost, tasks + 1, stream);
}

}  // namespace nnue::portable
