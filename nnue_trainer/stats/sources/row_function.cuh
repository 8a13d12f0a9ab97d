// Short rows are read together by a thread block, through shared memory, and a thread computes each. If the function
// has sums, some threads of a warp compute a longer row together, then all of them, those of a block where there are
// few rows, or of several blocks where there are very few: all of them run the function, and each adds its share of the
// elements of a sum.
namespace {

constexpr int kRowThreads = 128;
constexpr int kTileBytes = 1 << 14;  // about what a thread block reads at a time
constexpr int kLongestInTile = 256;  // bytes of all inputs of a row, and of those that rows share
constexpr int kTogether = 256;       // threads of a block that computes one row
constexpr int kShortForTeam = 16;    // elements of a row, fewer than which one thread computes it,
constexpr int kShortForWarp = 256;   // fewer than which kFewLanes do,
constexpr int kLongForWarp = 4096;   // and more than which a block computes it, if there are few rows
constexpr int kFewLanes = 8;
constexpr int kFewRows = 4096;
constexpr int kSplitThreads = 256;       // of each of several blocks that compute one row
constexpr int64_t kLeastOfBlock = 8192;  // elements of a row for each of them, at least
constexpr int kBlocksAtATime = 4;        // of a multiprocessor, of those
constexpr int64_t kEnoughBlocks = 512;
constexpr unsigned kAllLanes = 0xffffffffu;

// Elements in shared memory, with a gap behind each 128 bytes against bank conflicts.
template <class T>
__device__ __forceinline__ int padded(int i) {
    return i + i / (128 / static_cast<int>(sizeof(T)));
}
template <class T>
struct TileRow : Sums<TileRow<T>> {
    const T* tile;
    int first, count;
    __device__ TileRow(const T* tile_, int first_, int count_) : tile(tile_), first(first_), count(count_) {}
    __device__ __forceinline__ int64_t size() const { return count; }
    __device__ __forceinline__ double operator[](int64_t i) const {
        return static_cast<double>(tile[padded<T>(first + static_cast<int>(i))]);
    }
};

// A row that several threads compute together. All of them call `sum` at the same places with the same function. A sum
// inside the function of another one is every thread's own.
struct Team {
    double* parts;  // of each warp
    bool inside;
    // Where several blocks compute a row: their sums, twice, as a block may be one sum ahead of another one; and how
    // many sums have been stored. All blocks of a row run at the same time: see rows_split.
    int blocks = 1, block = 0;
    double* sums = nullptr;
    unsigned *stored = nullptr, turn = 0;

    __device__ double of_blocks(double total) {
        double* const here = sums + turn % 2 * blocks;
        if (threadIdx.x == 0) {
            __stcg(here + block, total);
            __threadfence();
            atomicAdd(stored, 1u);
            const unsigned all = (turn + 1) * static_cast<unsigned>(blocks);
            while (static_cast<int>(atomicAdd(stored, 0u) - all) < 0) {
            }
            __threadfence();
        }
        ++turn;
        __syncthreads();
        total = 0;
        for (int b = threadIdx.x % 32; b < blocks; b += 32) total += __ldcg(here + b);
#pragma unroll
        for (int by = 16; by > 0; by /= 2) total += __shfl_xor_sync(kAllLanes, total, by);
        return total;
    }
};
template <class T, int kThreads>
struct TeamRow {
    const T* from;
    int64_t count;
    Team* team;
    __device__ __forceinline__ int64_t size() const { return count; }
    __device__ __forceinline__ double operator[](int64_t i) const { return static_cast<double>(from[i]); }

    template <class F>
    __device__ __forceinline__ double sum(F f) const {
        if (team->inside) return Row<T>{{}, from, count}.sum(f);
        team->inside = true;
        double total = 0;
        const int step = kThreads * team->blocks;
#pragma unroll 8
        for (int64_t i = threadIdx.x % kThreads + kThreads * team->block; i < count; i += step) total += f((*this)[i]);
        team->inside = false;
        constexpr int kLanes = std::min(kThreads, 32);
        const unsigned lanes = kAllLanes >> (32 - kLanes) << threadIdx.x % 32 / kLanes * kLanes;
#pragma unroll
        for (int by = kLanes / 2; by > 0; by /= 2) total += __shfl_xor_sync(lanes, total, by);
        if constexpr (kThreads > 32) {
            __syncthreads();
            if (threadIdx.x % 32 == 0) team->parts[threadIdx.x / 32] = total;
            __syncthreads();
            total = 0;
#pragma unroll
            for (int w = 0; w < kThreads / 32; ++w) total += team->parts[w];
            if (team->blocks > 1) return team->of_blocks(total);
        }
        return total;
    }
};

// The inputs in a tile: a row for each of the block's rows, or one row that all share.
struct Tile {
    int rows, places[8], elements[8];
};
template <class T>
__global__ void __launch_bounds__(kRowThreads) tiled_rows(const Job job, const Tile tile) {
    extern __shared__ double memory[];
    T* const elements = reinterpret_cast<T*>(memory);
    for (int64_t first = blockIdx.x * static_cast<int64_t>(tile.rows); first < job.rows;
         first += gridDim.x * static_cast<int64_t>(tile.rows)) {
        const int rows = static_cast<int>(std::min<int64_t>(tile.rows, job.rows - first));
#pragma unroll
        for (int k = 0; k < kInputs; ++k) {
            const T* const from = static_cast<const T*>(job.in[k].from) + first * job.in[k].stride;
            T* const to = elements + tile.places[k];
            const int count = job.in[k].stride == 0 ? tile.elements[k] : rows * tile.elements[k];
            int i = threadIdx.x;
            for (; i + 7 * kRowThreads < count; i += 8 * kRowThreads) {
                T found[8];
#pragma unroll
                for (int u = 0; u < 8; ++u) found[u] = from[i + u * kRowThreads];
#pragma unroll
                for (int u = 0; u < 8; ++u) to[padded<T>(i + u * kRowThreads)] = found[u];
            }
            for (; i < count; i += kRowThreads) to[padded<T>(i)] = from[i];
        }
        __syncthreads();
        for (int r = threadIdx.x; r < rows; r += kRowThreads) {
            const auto row = [&](int k) {
                const int size = tile.elements[k];
                return TileRow<T>(elements + tile.places[k], job.in[k].stride == 0 ? 0 : r * size, size);
            };
            static_cast<T*>(job.out)[first + r] = static_cast<T>(of_row<TileRow<T>>(ARGUMENTS));
        }
        __syncthreads();
    }
}

template <class T>
__global__ void __launch_bounds__(kRowThreads) rows_alone(const Job job) {
    const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x;
    for (int64_t r = blockIdx.x * static_cast<int64_t>(blockDim.x) + threadIdx.x; r < job.rows; r += step) {
        one<T>(job, r);
    }
}

template <class T, int kThreads>
__global__ void __launch_bounds__(kTogether) rows_together(const Job job) {
    __shared__ double parts[kTogether / 32];
    Team team{parts, false};
    const int64_t step = static_cast<int64_t>(gridDim.x) * (kTogether / kThreads);
    for (int64_t r = blockIdx.x * static_cast<int64_t>(kTogether / kThreads) + threadIdx.x / kThreads; r < job.rows;
         r += step) {
        const auto row = [&](int k) {
            return TeamRow<T, kThreads>{static_cast<const T*>(job.in[k].from) + r * job.in[k].stride, job.in[k].size,
                                        &team};
        };
        const double found = of_row<TeamRow<T, kThreads>>(ARGUMENTS);
        if (threadIdx.x % kThreads == 0) static_cast<T*>(job.out)[r] = static_cast<T>(found);
    }
}

// The blocks of a row wait for each other in `sum`. They are numbered as they start: the blocks that have started then
// include all of the first unfinished row, as a row has no more of them than the GPU runs at a time.
struct Split {
    int blocks;  // of a row
    __host__ __device__ int64_t bytes(int64_t rows) const {
        return rows * (2 * blocks * sizeof(double) + sizeof(unsigned)) + sizeof(unsigned);
    }
};
template <class T>
__global__ void __launch_bounds__(kSplitThreads, kBlocksAtATime) rows_split(const Job job, const Split split) {
    __shared__ double parts[kSplitThreads / 32];
    __shared__ unsigned number;
    double* const sums = static_cast<double*>(job.space);
    unsigned* const counts = reinterpret_cast<unsigned*>(sums + job.rows * 2 * split.blocks);  // one more at the end
    if (threadIdx.x == 0) number = atomicAdd(counts + job.rows, 1u);
    __syncthreads();
    const int64_t r = number / split.blocks;
    const int block = static_cast<int>(number % split.blocks);
    Team team{parts, false, split.blocks, block, sums + r * 2 * split.blocks, counts + r};
    const auto row = [&](int k) {
        return TeamRow<T, kSplitThreads>{static_cast<const T*>(job.in[k].from) + r * job.in[k].stride, job.in[k].size,
                                         &team};
    };
    const double found = of_row<TeamRow<T, kSplitThreads>>(ARGUMENTS);
    if (block == 0 && threadIdx.x == 0) static_cast<T*>(job.out)[r] = static_cast<T>(found);
}

int64_t longest_of(const Job& job) {
    int64_t longest = 0;
    for (int k = 0; k < kInputs; ++k) longest = std::max(longest, job.in[k].size);
    return longest;
}
// How many blocks compute a row together, if each row has more than kLongForWarp elements.
Split split_of(const Job& job) {
    int device = 0, multiprocessors = 1;
    cudaGetDevice(&device);
    cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device);
    const int64_t most = int64_t{kBlocksAtATime} * multiprocessors;
    return {static_cast<int>(std::clamp<int64_t>(std::min(most / job.rows, longest_of(job) / kLeastOfBlock), 1, most))};
}
bool is_split(const Job& job) {
    return kHasSums && job.rows > 0 && longest_of(job) > kLongForWarp && split_of(job).blocks > 1;
}
// Of job.space, which is zero at the start.
int64_t bytes_of(const Job& job) {
    return is_split(job) ? split_of(job).bytes(job.rows) : 0;
}

// The tile, and its bytes, or 0 if the rows are too long for one.
template <class T>
size_t tile_of(const Job& job, Tile& tile) {
    int64_t own = 0, shared = 0;
    for (int k = 0; k < kInputs; ++k) {
        if (job.in[k].size > kLongestInTile) return 0;
        (job.in[k].stride == 0 ? shared : own) += job.in[k].size * static_cast<int64_t>(sizeof(T));
    }
    if (own > kLongestInTile || shared > kLongestInTile) return 0;
    const int64_t most = std::min<int64_t>(kTileBytes / (own + 1), job.rows / kEnoughBlocks) / kRowThreads;
    tile.rows = static_cast<int>(std::clamp<int64_t>(most, 1, 16)) * kRowThreads;
    int place = 0;
    for (int k = 0; k < kInputs; ++k) {
        tile.elements[k] = static_cast<int>(job.in[k].size), tile.places[k] = place;
        const int count = job.in[k].stride == 0 ? tile.elements[k] : tile.rows * tile.elements[k];
        place += count + count / (128 / static_cast<int>(sizeof(T))) + 1;
    }
    return static_cast<size_t>(place) * sizeof(T);
}

template <class T>
void launch(const Job& job, cudaStream_t stream) {
    const auto blocks = [&](int64_t each) {
        return static_cast<unsigned>(std::min<int64_t>((job.rows + each - 1) / each, INT32_MAX));
    };
    const int64_t longest = longest_of(job);
    Tile tile{};
    const size_t bytes = tile_of<T>(job, tile);
    if (bytes > 0) {
        tiled_rows<T><<<blocks(tile.rows), kRowThreads, bytes, stream>>>(job, tile);
    } else if (!kHasSums || longest < kShortForTeam) {
        rows_alone<T><<<blocks(kRowThreads), kRowThreads, 0, stream>>>(job);
    } else if (is_split(job)) {
        const Split split = split_of(job);
        rows_split<T><<<static_cast<unsigned>(job.rows * split.blocks), kSplitThreads, 0, stream>>>(job, split);
    } else if (job.rows <= kFewRows && longest > kLongForWarp) {
        rows_together<T, kTogether><<<blocks(1), kTogether, 0, stream>>>(job);
    } else if (longest < kShortForWarp) {
        rows_together<T, kFewLanes><<<blocks(kTogether / kFewLanes), kTogether, 0, stream>>>(job);
    } else {
        rows_together<T, 32><<<blocks(kTogether / 32), kTogether, 0, stream>>>(job);
    }
}
}  // namespace
