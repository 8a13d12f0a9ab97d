// Operators transpose and row_norms on CUDA; the contracts are in matrix.h.

#include <torch/csrc/stable/accelerator.h>
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <bit>

#include "../../matrix.h"
#include "../common.cuh"
#include "scan.cuh"

namespace nnue::cuda::stats {
namespace {

using matrix::Matrices;

// Small elements are transposed as words of four bytes. The words of kJoined rows hold a square of elements, which a
// thread transposes in its registers.
template <class T>
constexpr int kJoined = sizeof(T) < 4 ? 4 / sizeof(T) : 1;
template <class T>
using Word = std::conditional_t<sizeof(T) == 8, uint64_t, uint32_t>;

// The words in a row of a tile, before (across) and after (down) the transposition: 128 bytes or more. Rows of bytes
// may begin anywhere in the output, so that a run of them cuts a sector of 32 bytes at either end; long runs waste
// less.
template <class T>
constexpr int kAcross = sizeof(T) == 2 || sizeof(T) == 4 ? 64 : 32;
template <class T>
constexpr int kDown = sizeof(T) == 8 ? 32 : 64;
template <class T>
constexpr int kTransposeThreads = sizeof(T) <= 2 ? 512 : 256;
// Threads that a multiprocessor should be able to hold; limits the registers.
constexpr int kResident = ptx::kTuring ? 1024 : 1536;

constexpr int64_t kMostMatrices = 65535;  // of one launch: the second dimension of a grid

// 32 bits of the 64 that two words make, beginning with this bit.
__device__ inline uint32_t joined(uint32_t low, uint32_t high, int bit) {
    return static_cast<uint32_t>((uint64_t{high} << 32 | low) >> bit);
}

// The word of elements from[0], from[1], …, of which `inside` are in the matrix; kWhole: all of them.
template <bool kWide, bool kWhole, class T>
__device__ Word<T> load_word(const T* from, int inside) {
    if constexpr (kWide) return kWhole || inside > 0 ? *reinterpret_cast<const Word<T>*>(from) : Word<T>(0);
    if constexpr (kWhole && sizeof(T) == 1) {
        // Two loads instead of four: of the one or two aligned words that have these bytes. They may have bytes outside
        // the tensor, too, which are dropped.
        const int skipped = reinterpret_cast<uintptr_t>(from) % 4;
        const uint32_t* const words = reinterpret_cast<const uint32_t*>(from - skipped);
        return joined(words[0], skipped == 0 ? 0 : words[1], 8 * skipped);
    }
    Pack<T, kJoined<T>> elements{};
#pragma unroll
    for (int i = 0; i < kJoined<T>; ++i) {
        if (kWhole || i < inside) elements.at[i] = from[i];
    }
    return std::bit_cast<Word<T>>(elements);
}

// Transposes a square of which each word is a row.
template <class T>
__device__ void transpose_square(Word<T> (&rows)[kJoined<T>]) {
    const auto halves = [](uint32_t& a, uint32_t& b) {
        const uint32_t low = __byte_perm(a, b, 0x5410);
        b = __byte_perm(a, b, 0x7632), a = low;
    };
    const auto bytes = [](uint32_t& a, uint32_t& b) {
        const uint32_t even = __byte_perm(a, b, 0x6240);
        b = __byte_perm(a, b, 0x7351), a = even;
    };
    if constexpr (kJoined<T> == 2) halves(rows[0], rows[1]);
    if constexpr (kJoined<T> == 4) {
        halves(rows[0], rows[2]), halves(rows[1], rows[3]);
        bytes(rows[0], rows[1]), bytes(rows[2], rows[3]);
    }
}

// Stores a whole tile to rows of the output that may begin inside a word. A word in memory then has elements of two
// neighbouring words of the tile. The elements before a row's first whole word and after its last one, together one
// word, are stored one by one at the end.
template <class T>
__device__ void store_shifted(const Word<T> (&tile)[kAcross<T> * kJoined<T>][kDown<T> + 1], T* out, int64_t rows) {
    constexpr int kSide = kJoined<T>, kHeight = kDown<T> * kSide, kThreads = kTransposeThreads<T>;
    const auto row_of = [&](int place) { return out + (place % kAcross<T> * kSide + place / kAcross<T>)*rows; };
    const auto elements_before = [](const T* row) {
        return static_cast<int>(reinterpret_cast<uintptr_t>(row) % 4 / sizeof(T));
    };
    const int r = threadIdx.x % kDown<T>;
#pragma unroll 4
    for (int place = threadIdx.x / kDown<T>; place < kAcross<T> * kSide; place += kThreads / kDown<T>) {
        T* const to = row_of(place);
        const int skipped = elements_before(to);
        const uint32_t previous = tile[place][(r + kDown<T> - 1) % kDown<T>];
        const uint32_t word = joined(previous, tile[place][r], 32 - 8 * sizeof(T) * skipped);
        if (r > 0 || skipped == 0) *reinterpret_cast<uint32_t*>(to + r * kSide - skipped) = word;
    }
    for (int i = threadIdx.x; i < kAcross<T> * kSide * kSide; i += kThreads) {
        T* const to = row_of(i / kSide);
        const int skipped = elements_before(to), element = i % kSide;
        const int at = element < kSide - skipped ? element : kHeight - kSide + element;
        if (skipped > 0) to[at] = reinterpret_cast<const T*>(tile[i / kSide])[at];
    }
}

// A thread block transposes one tile of one matrix: blockIdx.y. `across`: tiles in a row of tiles. kWideIn, kWideOut:
// all rows of x, or of the output, begin with a whole word. Otherwise elements are read or written one by one, but in
// whole tiles single bytes are read, and all small elements are stored, by shifted words.
template <class T, bool kWideIn, bool kWideOut>
__global__ void __launch_bounds__(kTransposeThreads<T>, kResident / kTransposeThreads<T>)
    transpose(const T* x, T* __restrict__ out, int64_t rows, int64_t columns, unsigned across) {
    ptx::wait_for_kernels_before();
    ptx::let_next_kernel_start();
    constexpr int kSide = kJoined<T>, kThreads = kTransposeThreads<T>;
    constexpr int kWidth = kAcross<T> * kSide, kHeight = kDown<T> * kSide;
    // Row c + kAcross * i is column c * kSide + i of x. So neighbouring threads store to neighbouring rows, and the odd
    // pitch puts these words into different banks.
    __shared__ Word<T> tile[kWidth][kDown<T> + 1];
    // The tiles of the last rows come first: some are cut off, which is slower, and they should not run last.
    const unsigned number = gridDim.x - 1 - blockIdx.x;
    const int64_t row = int64_t{number / across} * kHeight, column = int64_t{number % across} * kWidth;
    const int height = static_cast<int>(min(rows - row, int64_t{kHeight}));
    const int width = static_cast<int>(min(columns - column, int64_t{kWidth}));
    x += blockIdx.y * rows * columns + row * columns + column;
    out += blockIdx.y * rows * columns + column * rows + row;

    using Out = std::conditional_t<kWideOut, Word<T>, T>;
    constexpr int kElements = sizeof(Out) / sizeof(T), kInColumn = kHeight / kElements;
    constexpr int kStepIn = kThreads / kAcross<T>, kStepOut = kThreads / kInColumn;
    constexpr int kStores = kWidth / kStepOut, kBatch = std::min(kStores, 16);
    static_assert(kDown<T> % kStepIn == 0 && kAcross<T> % kStepOut == 0 && kBatch % kSide == 0);
    const int across_in = threadIdx.x % kAcross<T>, down_in = threadIdx.x / kAcross<T>;
    const int down_out = threadIdx.x % kInColumn, across_out = threadIdx.x / kInColumn;
    const auto transpose_tile = [&](auto is_whole) {
        Word<T> squares[kDown<T> / kStepIn][kSide];
        const T* from = x + down_in * kSide * columns + across_in * kSide;
#pragma unroll
        for (int s = 0; s < kDown<T> / kStepIn; ++s, from += (kStepIn - 1) * kSide * columns) {
#pragma unroll
            for (int i = 0; i < kSide; ++i, from += columns) {
                const bool has_row = (down_in + s * kStepIn) * kSide + i < height;
                const int inside = has_row ? width - across_in * kSide : 0;
                squares[s][i] = load_word<kWideIn, is_whole>(from, inside);
            }
        }
#pragma unroll
        for (int s = 0; s < kDown<T> / kStepIn; ++s) {
            transpose_square<T>(squares[s]);
#pragma unroll
            for (int i = 0; i < kSide; ++i) tile[across_in + kAcross<T> * i][down_in + s * kStepIn] = squares[s][i];
        }
        __syncthreads();
        if constexpr (is_whole && !kWideOut) return store_shifted<T>(tile, out, rows);
        T* to = out + across_out * kSide * rows + down_out * kElements;
#pragma unroll 1
        for (int word = across_out; word < kAcross<T>; word += kBatch / kSide * kStepOut) {
            Out found[kBatch];
#pragma unroll
            for (int b = 0; b < kBatch; ++b) {
                const int place = word + b / kSide * kStepOut + b % kSide * kAcross<T>;
                found[b] = reinterpret_cast<const Out*>(tile[place])[down_out];
            }
#pragma unroll
            for (int b = 0; b < kBatch; ++b, to += b % kSide == 0 ? ((kStepOut - 1) * kSide + 1) * rows : rows) {
                const int c = (word + b / kSide * kStepOut) * kSide + b % kSide;
                if (is_whole || (c < width && down_out * kElements < height)) *reinterpret_cast<Out*>(to) = found[b];
            }
        }
    };
    if (height < kHeight || width < kWidth)
        transpose_tile(std::false_type());
    else
        transpose_tile(std::true_type());
}

Tensor transpose_op(const Tensor& x_in) {
    const Matrices m = matrix::check_matrices(x_in, Device::cuda);
    const torch::stable::accelerator::DeviceGuard guard(x_in.get_device_index());
    const Tensor x = torch::stable::contiguous(x_in);
    const Tensor out = torch::stable::new_empty(x, matrix::transposed_shape(x));
    if (m.count == 0) return out;
    matrix::dispatch_bytes(m.bytes, [&]<class T>(T*) {
        const int64_t down = divide_up(m.rows, kDown<T> * kJoined<T>);
        const int64_t across = divide_up(m.columns, kAcross<T> * kJoined<T>);
        const auto run = [&](auto wide_in, auto wide_out) {
            for (int64_t first = 0; first < m.count; first += kMostMatrices) {
                const dim3 grid(thread_blocks_for(down * across, 1), std::min(m.count - first, kMostMatrices));
                const int64_t begin = first * m.rows * m.columns;
                launch_behind(true, "transpose", transpose<T, wide_in, wide_out>, grid, kTransposeThreads<T>, 0,
                              current_stream(x), const_data<T>(x) + begin, mutable_data<T>(out) + begin, m.rows,
                              m.columns, static_cast<unsigned>(across));
            }
        };
        constexpr std::true_type yes;
        if constexpr (kJoined<T> == 1) {
            run(yes, yes);
        } else {
            constexpr std::false_type no;
            const bool in = m.columns % kJoined<T> == 0 && reinterpret_cast<uintptr_t>(x.const_data_ptr()) % 4 == 0;
            const bool to = m.rows % kJoined<T> == 0;
            in ? to ? run(yes, yes) : run(yes, no) : to ? run(no, yes) : run(no, no);
        }
    });
    return out;
}

// Threads of a block of row_norms, shared by one or more rows.
constexpr int kNormThreads = 256;
constexpr int kNormBlocks = 4;  // thread blocks of a multiprocessor; limits the registers
// 16-byte loads that a thread has in flight, and about how many it has in all.
constexpr int kLoads = 4, kLoadsOfThread = 16;
// Fewer rows than this are split, so that there is work for all multiprocessors, but not into parts of fewer bytes.
constexpr int64_t kEnoughParts = 512, kLeastBytes = 1 << 15;

// Squares of numbers that double holds with room to spare.
struct PlainSquares {
    double sum;

    __device__ void add(double magnitude) { sum += magnitude * magnitude; }
    __device__ void add(const PlainSquares& b) { sum += b.sum; }
    __device__ double root() const { return sqrt(sum); }
};

// Sums and largest of the elements read so far. A struct of numbers of 8 bytes.
template <class T>
struct Sums {
    using Number = sum_t<T>;
    using Bits = unsigned long long;

    double sum;
    std::conditional_t<std::is_same_v<T, double>, matrix::Squares, PlainSquares> squares;
    Bits largest;  // without its sign. Such bits have the order of the numbers, and NaN comes last.

    __device__ void add(T x) {
        const Number number = to_sum(x);
        const double magnitude = fabs(static_cast<double>(number));
        sum += magnitude;
        squares.add(magnitude);
        using NumberBits = std::conditional_t<sizeof(Number) == 8, unsigned long long, unsigned>;
        constexpr NumberBits kSign = NumberBits{1} << (8 * sizeof(NumberBits) - 1);
        largest = max(largest, Bits{std::bit_cast<NumberBits>(number) & ~kSign});
    }
    __device__ void add(const Sums& b) {
        sum += b.sum;
        squares.add(b.squares);
        largest = max(largest, b.largest);
    }
    __device__ Number largest_number() const {
        using NumberBits = std::conditional_t<sizeof(Number) == 8, unsigned long long, unsigned>;
        return std::bit_cast<Number>(static_cast<NumberBits>(largest));
    }
    // Adds the sums of all lanes in groups of this many.
    __device__ void add_lanes(int lanes) {
#pragma unroll 1
        for (int by = lanes / 2; by > 0; by /= 2) {
            add(of_lane(*this, (threadIdx.y * blockDim.x + threadIdx.x) ^ by));
        }
    }
};

template <class T>
struct NormsOut {
    T *sums, *roots, *largest;

    __device__ void put(int64_t row, const Sums<T>& found) const {
        const auto rounded = [](auto x) { return from_sum<T>(static_cast<sum_t<T>>(x)); };
        if (sums != nullptr) sums[row] = rounded(found.sum);
        if (roots != nullptr) roots[row] = rounded(found.squares.root());
        if (largest != nullptr) largest[row] = rounded(found.largest_number());
    }
};

// threadIdx.y is a row of the thread block. Its threads are a power of two, and enough for the single elements on
// either side of the packs. With `parts`, blockIdx.y is a part of the row, of `length` elements, and its sums go there.
template <class T>
__global__ void __launch_bounds__(kNormThreads, kNormBlocks)
    row_norms(const T* x, int64_t count, int64_t n, int64_t length, Sums<T>* parts, const NormsOut<T> out) {
    __shared__ Sums<T> of_warps[kNormThreads / kWarp];
    const int threads = blockDim.x, thread = threadIdx.x;
    const int64_t row = int64_t{blockIdx.x} * blockDim.y + threadIdx.y, begin = blockIdx.y * length;
    Sums<T> mine{};
    if (row < count) {
        const T* const from = x + row * n + begin;
        const int64_t size = min(length, n - begin);
        // Single elements up to a multiple of 16 bytes, packs of 16 bytes, and single elements.
        const int64_t head = min(size, static_cast<int64_t>(-reinterpret_cast<uintptr_t>(from) % 16 / sizeof(T)));
        const int64_t packs = (size - head) / kWide<T>, tail = head + packs * kWide<T>;
        if (thread < head) mine.add(from[thread]);
        if (tail + thread < size) mine.add(from[tail + thread]);
        for (int64_t i = thread; i < packs; i += kLoads * threads) {
            Pack<T, kWide<T>> pack[kLoads];
#pragma unroll
            for (int k = 0; k < kLoads; ++k) {
                if (i + k * threads < packs) pack[k] = load<kWide<T>>(from + head + (i + k * threads) * kWide<T>);
            }
#pragma unroll
            for (int k = 0; k < kLoads; ++k) {
                if (i + k * threads >= packs) break;
#pragma unroll
                for (int e = 0; e < kWide<T>; ++e) mine.add(pack[k].at[e]);
            }
        }
    }
    mine.add_lanes(min(threads, kWarp));
    if (threads > kWarp) {
        const int warp = (threadIdx.y * threads + thread) / kWarp;
        if (thread % kWarp == 0) of_warps[warp] = mine;
        __syncthreads();
        if (thread == 0) {
#pragma unroll 1
            for (int w = 1; w < threads / kWarp; ++w) mine.add(of_warps[warp + w]);
        }
    }
    if (thread != 0 || row >= count) return;
    parts == nullptr ? out.put(row, mine) : void(parts[row * gridDim.y + blockIdx.y] = mine);
}

// Short rows: a thread block reads a tile of them together, and each thread adds up whole rows of it.
constexpr int kShortThreads = 128, kShortBytes = 128;  // threads of a block; of the longest row
constexpr int kTileBytes = 1 << 14, kMostRounds = 16;  // of a tile, about; of rows for each thread
constexpr int64_t kEnoughTiles = 512;

// The place of an element in a tile, with a gap of a word behind each 128 bytes against bank conflicts.
template <class T>
__device__ inline int place_in_tile(int i) {
    constexpr int kLine = 128 / sizeof(T), kGap = sizeof(T) < 4 ? 4 / sizeof(T) : 1;
    return i + i / kLine * kGap;
}

template <class T>
__global__ void __launch_bounds__(kShortThreads)
    short_row_norms(const T* x, int64_t count, int n, int rows_of_tile, const NormsOut<T> out) {
    __shared__ T tile[(kTileBytes + kTileBytes / 16) / sizeof(T)];
    const int64_t step = int64_t{gridDim.x} * rows_of_tile;
    for (int64_t first = int64_t{blockIdx.x} * rows_of_tile; first < count; first += step) {
        const int rows = static_cast<int>(min(count - first, int64_t{rows_of_tile})), elements = rows * n;
        const T* const from = x + first * n;
        int i = threadIdx.x;
        for (; i + 7 * kShortThreads < elements; i += 8 * kShortThreads) {
            T found[8];
#pragma unroll
            for (int u = 0; u < 8; ++u) found[u] = from[i + u * kShortThreads];
#pragma unroll
            for (int u = 0; u < 8; ++u) tile[place_in_tile<T>(i + u * kShortThreads)] = found[u];
        }
        for (; i < elements; i += kShortThreads) tile[place_in_tile<T>(i)] = from[i];
        __syncthreads();
        for (int row = threadIdx.x; row < rows; row += kShortThreads) {
            Sums<T> mine{};
#pragma unroll 4
            for (int e = row * n; e < (row + 1) * n; ++e) mine.add(tile[place_in_tile<T>(e)]);
            out.put(first + row, mine);
        }
        __syncthreads();
    }
}

// One warp per row.
template <class T>
__global__ void __launch_bounds__(kWarp) join_parts(const Sums<T>* parts, int count, const NormsOut<T> out) {
    Sums<T> mine{};
#pragma unroll 1
    for (int i = threadIdx.x; i < count; i += kWarp) mine.add(parts[int64_t{blockIdx.x} * count + i]);
    mine.add_lanes(kWarp);
    if (threadIdx.x == 0) out.put(blockIdx.x, mine);
}

void row_norms_op(const Tensor& x_in, const std::optional<Tensor>& sums, const std::optional<Tensor>& roots,
                  const std::optional<Tensor>& largest) {
    const int64_t count = matrix::check_norms(x_in, sums, roots, largest, Device::cuda);
    if (count == 0) return;
    const torch::stable::accelerator::DeviceGuard guard(x_in.get_device_index());
    const Tensor x = torch::stable::contiguous(x_in);
    const int64_t n = x.size(x.dim() - 1);
    dispatch_weight_dtype<__half, __nv_bfloat16>(x.scalar_type(), [&]<class T>(T*) {
        const auto pointer = [](const std::optional<Tensor>& to) { return to ? mutable_data<T>(*to) : nullptr; };
        const NormsOut<T> out{pointer(sums), pointer(roots), pointer(largest)};
        if (n * sizeof(T) <= kShortBytes) {
            const int64_t most = std::min<int64_t>(kTileBytes / (n * sizeof(T) + 1), count / kEnoughTiles);
            const int64_t rows = std::clamp<int64_t>(most / kShortThreads, 1, kMostRounds) * kShortThreads;
            return launch("short_row_norms", short_row_norms<T>, thread_blocks_for(count, rows), kShortThreads, 0,
                          current_stream(x), const_data<T>(x), count, static_cast<int>(n), static_cast<int>(rows), out);
        }
        const int64_t wanted = std::clamp<int64_t>(n * sizeof(T) / kLeastBytes, 1, divide_up(kEnoughParts, count));
        // A part begins with a pack if its row does.
        const int64_t length = divide_up(divide_up(n, wanted), kWide<T>) * kWide<T>;
        const int64_t parts = std::max<int64_t>(divide_up(n, std::max<int64_t>(length, 1)), 1);
        int threads = 8;  // of a row; a pack has no more elements
        while (threads < kNormThreads && threads * kLoadsOfThread * kWide<T> < length) threads *= 2;
        const dim3 block(threads, kNormThreads / threads), grid(thread_blocks_for(count, block.y), parts);
        const auto run = [&](Sums<T>* of_parts) {
            launch("row_norms", row_norms<T>, grid, block, 0, current_stream(x), const_data<T>(x), count, n, length,
                   of_parts, out);
        };
        if (parts == 1) return run(nullptr);
        constexpr int kNumbers = sizeof(Sums<T>) / sizeof(double);
        const Tensor scratch = torch::stable::new_empty(x, {count * parts * kNumbers}, ScalarType::Double);
        Sums<T>* const of_parts = reinterpret_cast<Sums<T>*>(mutable_data<double>(scratch));
        run(of_parts);
        launch("join_parts", join_parts<T>, thread_blocks_for(count, 1), kWarp, 0, current_stream(x), of_parts,
               static_cast<int>(parts), out);
    });
}

}  // namespace
}  // namespace nnue::cuda::stats

STABLE_TORCH_LIBRARY_IMPL(nnue, CUDA, m) {
    NNUE_IMPL(m, "transpose", &nnue::cuda::stats::transpose_op);
    NNUE_IMPL(m, "row_norms", &nnue::cuda::stats::row_norms_op);
}
