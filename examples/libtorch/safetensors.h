// Writes float32 tensors as a safetensors file: a JSON header with names, shapes and offsets, and then the numbers.
#pragma once

#include <torch/types.h>

#include <cstdio>
#include <fstream>
#include <map>
#include <sstream>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace safetensors {

inline std::string quoted(const std::string& text) {
    std::string out = "\"";
    for (const char c : text) {
        if (c == '"' || c == '\\') out += '\\';
        out += c;
    }
    return out + "\"";
}

// Writes beside `path`, then moves the file there. `metadata` and names must not have control characters.
inline void save(const std::string& path, const std::map<std::string, std::string>& metadata,
                 const std::vector<std::pair<std::string, torch::Tensor>>& tensors) {
    std::ostringstream header;
    header << "{\"__metadata__\": {";
    const char* comma = "";
    for (const auto& [key, value] : metadata)
        header << std::exchange(comma, ", ") << quoted(key) << ": " << quoted(value);
    header << "}";
    std::vector<torch::Tensor> kept;
    size_t offset = 0;
    for (const auto& [name, tensor] : tensors) {
        kept.push_back(tensor.detach().to(torch::kCPU, torch::kFloat).contiguous());
        header << ", " << quoted(name) << ": {\"dtype\": \"F32\", \"shape\": [";
        for (int64_t i = 0; i < tensor.dim(); ++i) header << (i ? ", " : "") << tensor.size(i);
        header << "], \"data_offsets\": [" << offset << ", " << offset + kept.back().nbytes() << "]}";
        offset += kept.back().nbytes();
    }
    std::string text = header.str() + "}";
    text.append((8 - text.size() % 8) % 8, ' ');
    const std::string temporary = path + ".tmp";
    {
        std::ofstream file(temporary, std::ios::binary);
        const uint64_t size = text.size();  // little-endian, as the machine is
        file.write(reinterpret_cast<const char*>(&size), sizeof size) << text;
        for (const torch::Tensor& tensor : kept) {
            file.write(static_cast<const char*>(tensor.const_data_ptr()),
                       static_cast<std::streamsize>(tensor.nbytes()));
        }
        if (!file.flush()) throw std::runtime_error(path + ": cannot be written");
    }
    if (std::rename(temporary.c_str(), path.c_str()) != 0) throw std::runtime_error(path + ": cannot be replaced");
}

}  // namespace safetensors
