// Shared by all CUDA kernels of the library: launches with checked limits, the current stream, properties of a device,
// conversions to and from the type that weights are summed in, 16-byte vectors, and the loop of a warp over an index
// row.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <torch/csrc/inductor/aoti_torch/c/shim.h>
#include <torch/csrc/stable/accelerator.h>
#include <torch/headeronly/util/shim_utils.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <stdexcept>
#include <string>

#include "../dtypes.h"
#include "ptx.cuh"

namespace nnue::cuda {

inline void check_cuda(cudaError_t error, const char* what) {
    if (error == cudaSuccess) return;
    (void)cudaGetLastError();  // clears it, or torch's next check would report it again
    throw std::runtime_error(std::string("nnue: ") + what + ": CUDA error " + cudaGetErrorName(error) + ": " +
                             cudaGetErrorString(error));
}

// Torch's current stream on the tensor's device.
inline cudaStream_t current_stream(const Tensor& tensor) {
    void* stream = nullptr;
    TORCH_ERROR_CODE_CHECK(aoti_torch_get_current_cuda_stream(tensor.get_device_index(), &stream));
    return static_cast<cudaStream_t>(stream);
}

inline int current_device() {
    int device = 0;
    check_cuda(cudaGetDevice(&device), "current device");
    return device;
}
inline int device_attribute(cudaDeviceAttr attribute, int device) {
    int value = 0;
    check_cuda(cudaDeviceGetAttribute(&value, attribute, device), "attribute of the device");
    return value;
}
inline int multiprocessors(int device) {
    return device_attribute(cudaDevAttrMultiProcessorCount, device);
}

// The compute capability, times ten, that this kernel's code for the current device was compiled for; 0 if the library
// has none for it. The same for all kernels that run on a device (hopper/ is built along with 9.0), so one query per
// device is enough, usually before any capture of a CUDA graph.
inline int code_version(const void* kernel) {
    static std::array<std::atomic<int>, 64> known{};
    const int device = current_device();
    const bool has_place = device < static_cast<int>(known.size());
    if (has_place && known[device] != 0) return known[device];
    cudaFuncAttributes found{};
    if (cudaFuncGetAttributes(&found, kernel) != cudaSuccess) {
        (void)cudaGetLastError();
        return 0;
    }
    if (has_place) known[device] = found.ptxVersion;
    return found.ptxVersion;
}

// Launches `kernel`, and names it with its grid in any error. An empty grid is not an error: nothing is launched. If
// `early`, it starts while the kernel before it is still finishing; then it must call ptx::wait_for_kernels_before
// before it reads or writes what other kernels may have in hand. Where the code was compiled for less than 9.0, it
// cannot wait, and starts when that kernel is done.
template <class... Parameters, class... Arguments>
void launch_behind(bool early, const char* name, void (*kernel)(Parameters...), dim3 grid, dim3 block,
                   size_t shared_bytes, cudaStream_t stream, const Arguments&... arguments) {
    if (grid.x == 0 || grid.y == 0 || grid.z == 0) return;
    if (early && code_version(reinterpret_cast<const void*>(kernel)) >= 90) {
        (void)ptx::launch_early(kernel, grid, block, shared_bytes, stream, static_cast<Parameters>(arguments)...);
    } else {
        kernel<<<grid, block, shared_bytes, stream>>>(arguments...);
    }
    const cudaError_t error = cudaGetLastError();
    if (error == cudaSuccess) return;
    const auto triple = [](const dim3& d) { return "(" + text(d.x) + ", " + text(d.y) + ", " + text(d.z) + ")"; };
    const std::string what = std::string("kernel ") + name + " <<<" + triple(grid) + ", " + triple(block) + ", " +
                             text(static_cast<int64_t>(shared_bytes)) + ">>>";
    check_cuda(error, what.c_str());
}
template <class... Parameters, class... Arguments>
void launch(const char* name, void (*kernel)(Parameters...), dim3 grid, dim3 block, size_t shared_bytes,
            cudaStream_t stream, const Arguments&... arguments) {
    launch_behind(false, name, kernel, grid, block, shared_bytes, stream, arguments...);
}

constexpr int kWarp = 32;
constexpr unsigned kAllLanes = 0xffffffffu;

// The number of thread blocks for `items` items, `per_thread_block` each, but no more than a grid may have. So kernels
// loop over their items with the grid as the stride.
inline unsigned thread_blocks_for(int64_t items, int64_t per_thread_block) {
    return static_cast<unsigned>(std::min<int64_t>(divide_up(items, per_thread_block), INT32_MAX));
}

// One of the items that share a launch, and the number of its first thread block.
template <class Of>
struct Placed {
    Of of;
    unsigned first_block;
};

// The item that this thread block works for. An item that several kernels work on has a `first_block` for each.
template <class Item>
__device__ inline const Item& item_of_block(const Item* items, int count,
                                            unsigned Item::*first_block = &Item::first_block) {
    int i = 0;
    while (i + 1 < count && blockIdx.x >= items[i + 1].*first_block) ++i;
    return items[i];
}

template <class T>
__device__ inline sum_t<T> to_sum(T x) {
    if constexpr (std::is_same_v<T, __half>)
        return __half2float(x);
    else if constexpr (std::is_same_v<T, __nv_bfloat16>)
        return __bfloat162float(x);
    else
        return x;
}
template <class T>
__device__ inline T from_sum(sum_t<T> x) {
    if constexpr (std::is_same_v<T, __half>)
        return __float2half_rn(x);
    else if constexpr (std::is_same_v<T, __nv_bfloat16>)
        return __float2bfloat16_rn(x);
    else
        return x;
}

// V elements that are loaded or stored with one instruction. V is kWide (16 bytes), or 1 where N or an address rules
// that out; some kernels use other sizes.
template <class T, int V>
struct alignas(V * sizeof(T)) Pack {
    T at[V];
};
template <class T>
constexpr int kWide = 16 / static_cast<int>(sizeof(T));

template <int V, class T>
__device__ inline Pack<T, V> load(const T* from) {
    return *reinterpret_cast<const Pack<T, V>*>(from);
}

// V elements, at most 16 bytes with one instruction.
template <int V, class T>
__device__ __forceinline__ void load_sums(const T* from, sum_t<T> (&to)[V]) {
    constexpr int kStep = std::min(V, kWide<T>);
    for (int k = 0; k < V; k += kStep) {
        const Pack<T, kStep> pack = load<kStep>(from + k);
        for (int i = 0; i < kStep; ++i) to[k + i] = to_sum(pack.at[i]);
    }
}

template <int V, class T>
__device__ __forceinline__ void store_sums(T* to, const sum_t<T> (&from)[V]) {
    constexpr int kStep = std::min(V, kWide<T>);
    for (int k = 0; k < V; k += kStep) {
        Pack<T, kStep> pack;
        for (int i = 0; i < kStep; ++i) pack.at[i] = from_sum<T>(from[k + i]);
        *reinterpret_cast<Pack<T, kStep>*>(to + k) = pack;
    }
}

// Whether rows of `columns` elements of `bytes` each can be read 16 bytes at a time from all of these addresses.
template <class... Pointers>
bool is_wide(int64_t columns, int64_t bytes, const Pointers*... pointers) {
    return columns * bytes % 16 == 0 && ((reinterpret_cast<uintptr_t>(pointers) % 16 == 0) && ...);
}

// Calls body.operator()<V>() with kWide elements of T per access, or with 1.
template <class T, class Body>
auto with_width(bool wide, const Body& body) {
    return wide ? body.template operator()<kWide<T>>() : body.template operator()<1>();
}

// Calls visit(index, value) for every entry of one index row up to the first -1, in order, with all lanes together.
// Indices outside [0, num_features) are left out, so that none of them leads outside the weights. `values` may be null.
template <class S, class Visit>
__device__ inline void for_each_entry(const int32_t* row, const S* values, int max_active, int num_features, int lane,
                                      const Visit& visit) {
    for (int base = 0; base < max_active; base += kWarp) {
        const bool inside = base + lane < max_active;
        const int32_t mine = inside ? row[base + lane] : -1;
        const S my_value = inside && values != nullptr ? values[base + lane] : S(1);
        const unsigned ends = __ballot_sync(kAllLanes, mine == -1);
        const int count = ends == 0 ? kWarp : __ffs(ends) - 1;
#pragma unroll 4
        for (int e = 0; e < count; ++e) {
            const int32_t index = __shfl_sync(kAllLanes, mine, e);
            const S value = __shfl_sync(kAllLanes, my_value, e);
            if (static_cast<unsigned>(index) < static_cast<unsigned>(num_features)) visit(index, value);
        }
        if (count < kWarp) return;
    }
}

}  // namespace nnue::cuda
