// The plan of a batch for the portable kernels: its rows in an order in which neighbours read the same weights, and for
// every feature the list of the rows that have it.
//
// A *row* is one perspective of one position; rows [0, B) are White's. Rows are ordered by their first feature, as on
// the CPU: in sets with king buckets that puts the rows of a bucket side by side. The place of a row in this order is
// its *slot*. The list of a feature has the slots of its rows, ascending; a row that has it twice is there twice. A
// list is cut into pieces (sorted_lists.cuh), and a piece is a *task* of the backward. Tasks are ordered by their first
// slot, so that a multiprocessor which takes neighbouring tasks reads the same row gradients again and again. A feature
// without rows has one empty task, which writes its zeros.
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

struct IndexRows {
    const int32_t* white;  // [positions, max_active]
    const int32_t* black;
    const uint8_t* black_to_move;  // [positions]; only for the plan
    int positions, max_active, num_features;

    __host__ __device__ int64_t rows() const { return 2 * int64_t(positions); }
    __host__ __device__ int64_t places() const { return rows() * max_active; }
    sorted_lists::Limits lists() const { return {places(), num_features}; }
};

struct alignas(16) Slot {
    int row;
    int target;  // 2 · position + (0 for the side to move, 1 for the other side)
    int count;   // of entries
    int unused;
};

using sorted_lists::Counts;
using sorted_lists::LongList;
using Task = sorted_lists::Task<int>;

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
    sorted_lists::Tasks<int> tasks;                // its long_lists and counts are those of the plan
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
    s.tasks.starts = carver.take<int32_t>("starts", in.num_features + 1);
    s.tasks.pieces = carver.take<int64_t>("pieces", in.num_features + 1);
    s.tasks.pieces_before = carver.take<int64_t>("pieces_before", in.num_features + 1);
    s.cost = carver.take<int64_t>("cost", std::max(rows, tasks) + 1);
    s.tasks.tasks = carver.take<Task>("tasks", tasks);
    s.cub.bytes = std::max({sorted_lists::sort_bytes<int32_t>(rows, in.num_features),
                            sorted_lists::sort_bytes<int32_t>(in.places(), in.num_features),
                            sorted_lists::sort_bytes<int32_t>(tasks, rows + 1),
                            sorted_lists::sums_before_bytes(in.num_features + 1),
                            sorted_lists::sums_before_bytes(std::max(rows, tasks) + 1)});
    s.cub.memory = carver.take<char>("cub", s.cub.bytes);
    return s;
}

constexpr int kPlanThreads = 256, kPlanWarps = kPlanThreads / cuda::kWarp;
// What a slot or a task costs beside its entries, measured in entries. Only the division of the work depends on it.
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

// The keys for the order of the tasks are their first slots; those of empty tasks come after all slots, and those of
// places without a task last.
struct TaskKeys {
    const int32_t* list;
    int rows;
    int32_t *keys, *values;
    __device__ void operator()(int64_t t, const Task* task) const {
        values[t] = static_cast<int32_t>(t);
        keys[t] = task == nullptr ? rows + 1 : task->count > 0 ? list[task->begin] : rows;
    }
};

__global__ void __launch_bounds__(kPlanThreads) order_tasks_kernel(Plan plan, PlanScratch scratch, int most_tasks) {
    const int64_t t = int64_t(blockIdx.x) * kPlanThreads + threadIdx.x;
    if (t > most_tasks) return;
    const bool is_task = t < plan.counts->tasks;
    if (is_task) plan.tasks[t] = scratch.tasks.tasks[scratch.order[t]];
    scratch.cost[t] = is_task ? plan.tasks[t].count + kTaskCost : 0;
}

inline void make_plan(const IndexRows& in, const Plan& plan, const PlanScratch& scratch, cudaStream_t stream) {
    const int64_t rows = in.rows(), places = in.places(), features = in.num_features, tasks = in.lists().tasks();
    sorted_lists::Tasks<int> by_feature = scratch.tasks;
    by_feature.long_lists = plan.long_lists;
    by_feature.counts = plan.counts;
    const auto blocks = [](int64_t threads) { return cuda::thread_blocks_for(threads, kPlanThreads); };
    cuda::launch("row keys", row_key_kernel, blocks(rows), kPlanThreads, 0, stream, in, scratch.keys, scratch.values);
    sorted_lists::sort(scratch.cub, scratch.keys, scratch.sorted_keys, scratch.values, scratch.order, rows, features,
                       stream);
    cuda::launch("slots", slot_kernel, cuda::thread_blocks_for(rows, kPlanWarps), kPlanThreads, 0, stream, in,
                 scratch.order, plan, scratch.keys, scratch.values, scratch.cost);
    sorted_lists::sums_before(scratch.cub, scratch.cost, plan.slot_cost, rows + 1, stream);
    sorted_lists::sort(scratch.cub, scratch.keys, scratch.sorted_keys, scratch.values, plan.list, places, features,
                       stream);
    sorted_lists::make_tasks(scratch.cub, scratch.sorted_keys, in.lists(), by_feature,
                             TaskKeys{plan.list, static_cast<int>(rows), scratch.keys, scratch.values}, stream);
    sorted_lists::sort(scratch.cub, scratch.keys, scratch.sorted_keys, scratch.values, scratch.order, tasks, rows + 1,
                       stream);
    cuda::launch("task order", order_tasks_kernel, blocks(tasks + 1), kPlanThreads, 0, stream, plan, scratch,
                 static_cast<int>(tasks));
    sorted_lists::sums_before(scratch.cub, scratch.cost, plan.task_cost, tasks + 1, stream);
}

}  // namespace nnue::portable
