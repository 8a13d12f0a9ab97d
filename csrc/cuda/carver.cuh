// Cuts a workspace into pieces, each aligned to 256 bytes. With a null base it only counts the bytes.
#pragma once

#include <cstddef>
#include <functional>

namespace nnue {

struct Carver {
    char* base;
    size_t used = 0;
    std::function<void(const char* name, size_t begin, size_t bytes)> each = nullptr;  // called with every piece
    template <typename T>
    T* take(const char* name, size_t count) {
        used = (used + 255) / 256 * 256;
        T* piece = base == nullptr ? nullptr : reinterpret_cast<T*>(base + used);
        if (each) each(name, used, count * sizeof(T));
        used += count * sizeof(T);
        return piece;
    }
};

}  // namespace nnue
