#include "emulator.h"

#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <bit>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <thread>
#include <vector>

// Saves the registers that a call keeps, changes stacks.
extern "C" void emulator_switch(void** save, void* load);
asm(R"(
.text
.globl emulator_switch
.hidden emulator_switch
emulator_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
)");

namespace emulator {

constinit thread_local dim3 thread_index, block_index, block_size, grid_size;

namespace {

constexpr size_t kStack = 128 << 10, kDynamic = kMostShared;
constexpr auto kPatience = std::chrono::seconds(60);

// All static shared variables of a thread block lie somewhere behind or before this, in the thread's own memory.
alignas(1024) thread_local char dynamic_memory[kDynamic];
constexpr uint32_t kFirst = 1024;  // the address of its first byte

[[noreturn]] void fail(const char* what, long long x = 0, long long y = 0) {
    std::fprintf(stderr, "emulator: %s (%lld, %lld), block %u, thread %u\n", what, x, y, block_index.x, thread_index.x);
    std::abort();
}

struct Kernel {
    dim3 grid, block;
    size_t shared;
    std::function<void()> body;
    std::shared_ptr<Kernel> before;  // in the stream
    std::atomic<unsigned> next{0}, triggered{0}, done{0};
    unsigned blocks() const { return grid.x * grid.y * grid.z; }
    bool is_done() const { return done == blocks(); }
    bool is_triggered() const { return triggered == blocks(); }
};

struct Copy {
    enum Kind { kCopy, kZero, kArrive } kind;
    uint32_t to;
    const void* from;
    int bytes, group;
};

struct Fiber {
    void* stack_pointer;
    char* stack;
    bool done;
    const std::function<bool()>* ready;
    std::deque<Copy> copies;
    int groups;
};

struct Exchange {
    uint64_t values[2][32];
    int arrived;
    unsigned generation;
};

struct Warp {
    Exchange all;
    std::map<unsigned, Exchange> some;  // by the mask of their lanes
};

struct Bulk {
    uint32_t to;
    const void* from;
    uint32_t bytes, barrier;
};

// 64 bits of shared memory.
struct Barrier {
    uint16_t count, pending;
    uint32_t phase : 1;
    int32_t bytes : 31;
};
static_assert(sizeof(Barrier) == 8);

struct Block {
    Kernel* kernel;
    bool triggered;
    unsigned count;
    std::vector<Fiber> fibers;
    Warp warps[32];
    unsigned generation, arrived, counted, total;
    struct {
        int arrived;
        unsigned generation;
    } named[16];
    std::vector<Bulk> bulk;
    std::mt19937 random;
    Fiber* current;
    void* scheduler;
};

thread_local Block* block = nullptr;

std::atomic<int> blocks_at_a_time{4};
std::atomic<uint64_t> seed{1};

std::mutex stream_mutex;
std::shared_ptr<Kernel> last_kernel;
std::vector<std::thread> managers;

void complete_if(Barrier& b) {
    if (b.pending == 0 && b.bytes == 0) b.phase ^= 1, b.pending = b.count;
}

Barrier& barrier_at(uint32_t address) {
    if (address % 8 != 0) fail("a barrier is not aligned", address);
    Barrier& b = at<Barrier>(address);
    if (b.count == 0) fail("a barrier is not initialised", address);
    return b;
}

// Static variables lie outside the dynamic part.
void check_shared(uint32_t to, size_t bytes) {
    const bool is_dynamic = to >= kFirst && to < kFirst + kDynamic;
    if (is_dynamic && to + bytes > kFirst + block->kernel->shared)
        fail("a copy leaves dynamic shared memory", to, static_cast<long long>(bytes));
}

void run_first(Fiber& fiber) {
    const Copy copy = fiber.copies.front();
    fiber.copies.pop_front();
    if (copy.kind == Copy::kCopy) std::memcpy(shared_pointer(copy.to), copy.from, copy.bytes);
    if (copy.kind == Copy::kZero) std::memset(shared_pointer(copy.to), 0, copy.bytes);
    if (copy.kind == Copy::kArrive) barrier_arrive(copy.to);
}

void run_bulk(size_t i) {
    const Bulk copy = block->bulk[i];
    block->bulk[i] = block->bulk.back();
    block->bulk.pop_back();
    std::memcpy(shared_pointer(copy.to), copy.from, copy.bytes);
    Barrier& b = barrier_at(copy.barrier);
    b.bytes -= int(copy.bytes);
    complete_if(b);
}

void to_scheduler() {
    emulator_switch(&block->current->stack_pointer, block->scheduler);
}

void fiber_main() {
    block->kernel->body();
    Fiber& fiber = *block->current;
    while (!fiber.copies.empty()) run_first(fiber);
    fiber.done = true;
    to_scheduler();
    std::abort();
}

void resume(Fiber& fiber, unsigned thread) {
    thread_index = {thread % block_size.x, thread / block_size.x, 0};
    block->current = &fiber;
    emulator_switch(&block->scheduler, fiber.stack_pointer);
}

// One thread block, from its first instruction to its last.
void run_block(Kernel& kernel, unsigned number) {
    Block& b = *block;
    block_index = {number % kernel.grid.x, number / kernel.grid.x % kernel.grid.y,
                   number / kernel.grid.x / kernel.grid.y};
    block_size = kernel.block, grid_size = kernel.grid;
    b.kernel = &kernel, b.triggered = false, b.count = kernel.block.x * kernel.block.y;
    b.generation = b.arrived = b.counted = b.total = 0;
    b.random.seed(unsigned(seed.fetch_add(1) * 2654435761u));
    for (auto& named : b.named) named = {};
    for (Warp& warp : b.warps) warp = {};
    // Memory that a kernel has not written is not 0.
    for (size_t i = 0; i < kernel.shared / 4; ++i) reinterpret_cast<uint32_t*>(dynamic_memory)[i] = 0x7fc1f00d;
    if (b.fibers.size() < b.count) b.fibers.resize(b.count, Fiber{});
    for (unsigned t = 0; t < b.count; ++t) {
        Fiber& fiber = b.fibers[t];
        if (fiber.stack == nullptr) {
            fiber.stack = static_cast<char*>(
                mmap(nullptr, kStack, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
            if (fiber.stack == MAP_FAILED) fail("no memory for stacks");
        }
        void** top = reinterpret_cast<void**>(fiber.stack + kStack - 64);
        *--top = nullptr;
        *--top = reinterpret_cast<void*>(&fiber_main);
        for (int i = 0; i < 6; ++i) *--top = nullptr;
        fiber.stack_pointer = top;
        fiber.done = false, fiber.ready = nullptr, fiber.groups = 0;
    }
    unsigned left = b.count;
    auto progress = std::chrono::steady_clock::now();
    for (unsigned idle = 0; left > 0;) {
        bool any = false;
        const unsigned start = b.random() % b.count, step = b.random() % 2 ? 1 : b.count - 1;
        for (unsigned k = 0, t = start; k < b.count; ++k, t = (t + step) % b.count) {
            Fiber& fiber = b.fibers[t];
            if (fiber.done) continue;
            if (!fiber.copies.empty() && (idle > 0 || b.random() % 4 == 0)) run_first(fiber), any = true;
            if (fiber.ready != nullptr && !(*fiber.ready)()) continue;
            if (b.random() % 16 == 0 && left > 1) {
                any = true;
                continue;
            }
            fiber.ready = nullptr;
            any = true;
            resume(fiber, t);
            left -= fiber.done;
        }
        while (!b.bulk.empty() && (idle > 0 || b.random() % 2 == 0)) run_bulk(b.random() % b.bulk.size()), any = true;
        if (any) {
            idle = 0;
            progress = std::chrono::steady_clock::now();
        } else if (++idle > 4) {  // others have to do something
            usleep(20);
            if (std::chrono::steady_clock::now() - progress > kPatience) fail("nothing moves any more");
        }
    }
    if (!b.bulk.empty()) fail("copies are left", b.bulk.size());
    if (!b.triggered) ++kernel.triggered;
    ++kernel.done;
}

void run_blocks(Kernel& kernel) {
    block = new Block{};
    for (unsigned number; (number = kernel.next++) < kernel.blocks();) run_block(kernel, number);
    for (Fiber& fiber : block->fibers)
        if (fiber.stack != nullptr) munmap(fiber.stack, kStack);
    delete block;
    block = nullptr;
}

}  // namespace

void configure(int at_a_time, uint64_t new_seed) {
    blocks_at_a_time = at_a_time, seed = new_seed;
}
int multiprocessors() {
    return blocks_at_a_time;
}

void wait_until(const std::function<bool()>& ready) {
    if (block->random() % 4 != 0 && ready()) return;
    block->current->ready = &ready;
    to_scheduler();
}
void pause() {
    if (block->random() % 16 != 0) return;
    block->current->ready = nullptr;
    to_scheduler();
}

const uint64_t* exchange(uint64_t value, unsigned lanes) {
    const unsigned thread = thread_index.x + thread_index.y * block_size.x;
    Warp& warp = block->warps[thread / 32];
    Exchange& here = ~lanes == 0 ? warp.all : warp.some[lanes];
    const unsigned generation = here.generation;
    here.values[generation % 2][thread % 32] = value;
    if (++here.arrived == std::popcount(lanes)) {
        here.arrived = 0;
        ++here.generation;
    } else {
        wait_until([&] { return here.generation != generation; });
    }
    return here.values[generation % 2];
}

int block_count(bool predicate) {
    Block& b = *block;
    const unsigned generation = b.generation;
    b.counted += predicate;
    if (++b.arrived == b.count) {
        b.total = b.counted, b.arrived = b.counted = 0;
        ++b.generation;
    } else {
        wait_until([&] { return b.generation != generation; });
    }
    return int(b.total);
}
void block_barrier() {
    block_count(false);
}

void named_barrier(int number, int count) {
    auto& named = block->named[number];
    const unsigned generation = named.generation;
    if (++named.arrived == count) {
        named.arrived = 0;
        ++named.generation;
    } else {
        wait_until([&] { return named.generation != generation; });
    }
}

char* dynamic_shared() {
    return dynamic_memory;
}
void memory_fence() {
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
}
uint32_t shared_address(const void* pointer) {
    return uint32_t(static_cast<const char*>(pointer) - dynamic_memory) + kFirst;
}
void* shared_pointer(uint32_t address) {
    return dynamic_memory + int32_t(address - kFirst);
}

void copy_async(uint32_t to, const void* from, int bytes, bool valid) {
    if (to % bytes != 0 || (valid && reinterpret_cast<uintptr_t>(from) % bytes != 0)) fail("a copy is not aligned", to);
    check_shared(to, bytes);
    block->current->copies.push_back({valid ? Copy::kCopy : Copy::kZero, to, from, bytes, block->current->groups});
}
void copy_commit() {
    ++block->current->groups;
}
void copy_wait(int pending) {
    Fiber& fiber = *block->current;
    while (!fiber.copies.empty() && (pending == 0 || fiber.copies.front().group < fiber.groups - pending))
        run_first(fiber);
}
void copy_arrive(uint32_t barrier) {
    block->current->copies.push_back({Copy::kArrive, barrier, nullptr, 0, block->current->groups});
}
void copy_bulk(uint32_t to, const void* from, uint32_t bytes, uint32_t barrier) {
    if (to % 16 != 0 || reinterpret_cast<uintptr_t>(from) % 16 != 0 || bytes % 16 != 0)
        fail("a bulk copy is not aligned", to, bytes);
    check_shared(to, bytes);
    block->bulk.push_back({to, from, bytes, barrier});
}

void barrier_init(uint32_t barrier, int count) {
    at<Barrier>(barrier) = {uint16_t(count), uint16_t(count), 0, 0};
}
void barrier_arrive(uint32_t barrier, int bytes) {
    Barrier& b = barrier_at(barrier);
    if (b.pending == 0) fail("too many have arrived at a barrier", barrier, b.count);
    b.bytes += bytes;
    --b.pending;
    complete_if(b);
}
void barrier_wait(uint32_t barrier, uint32_t parity) {
    if (parity > 1) fail("no parity", parity);
    wait_until([=] { return barrier_at(barrier).phase != parity; });
}

void kernel_wait() {
    Kernel* before = block->kernel->before.get();
    if (before != nullptr) wait_until([=] { return before->is_done(); });
}
void kernel_trigger() {
    if (block->triggered) return;
    block->triggered = true;
    ++block->kernel->triggered;
}

void synchronize() {
    std::vector<std::thread> waiting;
    {
        const std::lock_guard lock(stream_mutex);
        waiting.swap(managers);
        last_kernel = nullptr;
    }
    for (std::thread& manager : waiting) manager.join();
}

void launch(dim3 grid, dim3 size, size_t shared, bool early, const std::function<void()>& body) {
    if (size.x * size.y > 1024 || shared > kDynamic || grid.x == 0)
        fail("such a launch is not possible", size.x, shared);
    if (!early) synchronize();
    auto kernel = std::make_shared<Kernel>();
    kernel->grid = grid, kernel->block = size, kernel->shared = shared, kernel->body = body;
    const std::lock_guard lock(stream_mutex);
    kernel->before = last_kernel;
    last_kernel = kernel;
    managers.emplace_back([kernel] {
        while (kernel->before != nullptr && !kernel->before->is_triggered()) usleep(20);
        std::vector<std::thread> workers;
        const unsigned count = std::min<unsigned>(blocks_at_a_time, kernel->blocks());
        for (unsigned i = 0; i < count; ++i) workers.emplace_back([kernel] { run_blocks(*kernel); });
        for (std::thread& worker : workers) worker.join();
    });
}

}  // namespace emulator

extern "C" __attribute__((visibility("default"))) void emulator_configure(int blocks_at_a_time, uint64_t seed) {
    emulator::configure(blocks_at_a_time, seed);
}

extern "C" __attribute__((visibility("default"))) uint64_t emulator_executed_atomics() {
    return executed_atomics;
}
