// The shared memory of a thread block that computes a tile of positions (cuda/stacks/tile.cuh). It is here, in host
// code, because capabilities.h decides with it which layers fit a GPU.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "layer_stacks.h"

namespace nnue::layer_stacks {

constexpr int kTileThreads = 256, kTileWarps = kTileThreads / 32;
constexpr int kPitch = 68;      // floats per channel of a tile: 64 positions, and 4 that prevent bank conflicts
constexpr int kInputTile = 16;  // N must be a multiple of it

// Bytes that every GPU of this capability, or later, gives a thread block.
constexpr size_t most_shared_bytes(int64_t capability) {
    return (capability < 80 ? 64 : 99) * 1024;
}

// The warps of a thread block divide a tile for layer 0: each takes kPositionBlocks · 16 positions and one of kShares
// shares of the inputs, and computes the outputs in blocks of 8. The sums of all shares take share_floats floats.
constexpr int kPositionBlocks = 2, kShares = kTileWarps * kPositionBlocks / 4;

constexpr int output_blocks(int outputs) {
    return outputs <= 8 ? 1 : outputs <= 16 ? 2 : 4;
}

constexpr int share_floats(int outputs) {
    return kShares * output_blocks(outputs) * 8 * kPitch;
}

// The positions of a tile, in shared memory.
struct TilePositions {
    int positions[kTile];  // slots without a position repeat the first one
    int count, stack;
};

// All data of a tile that its thread block shares.
struct Tile : TilePositions {
    float gradient[kTile];
    float quarter[4][kTile];
    float totals[2][2];  // of warps 0 and 1, whose threads have a position each: Σ weight · loss and Σ weight
    bool is_last;        // this thread block is the last one that reports its totals
};

constexpr size_t kDeclaredBytes = sizeof(Tile) + 64;  // what rest_kernel has declared itself

constexpr int round4(int n) {
    return (n + 3) / 4 * 4;
}

// Where a layer's parameters and values lie in shared memory, as offsets in floats. A channel is one value of all 64
// positions. The activated values take `width` channels: `padded`, or twice as many for `dual`, where `padded` is their
// number filled up with zeros to a multiple of 4. The next layer's weights have the same columns. Behind the activated
// values lies a channel of ones: with it the gradient of the next layer's bias is one more column of the gradient of
// its weight.
struct Places {
    int weight;  // [round4(outputs)][width of the layer before]
    int bias;    // [round4(outputs)]
    int sums;    // y, in the backward its gradient: round4(outputs) channels
    int values;  // width + 1 channels
    int padded, width;
    int output_weight;  // the last layer's weights for these values; -1 if it does not see them
};

struct TileLayout {
    Places at[kMostHidden + 1];
    int floats;
};

inline TileLayout tile_layout(const Layers& layers) {
    TileLayout t{};
    int place = 0;
    const auto take = [&place](int floats) {
        const int begin = place;
        place += round4(floats);
        return begin;
    };
    const int last = layers.count - 1;
    for (int l = 0; l < layers.count; ++l) {
        const Layer& layer = layers.at[l];
        Places& at = t.at[l];
        at.bias = take(layer.outputs);
        if (l == last) break;
        at.padded = round4(layer.activated);
        at.width = layer.values / layer.activated * at.padded;
        if (l > 0) at.weight = take(round4(layer.outputs) * t.at[l - 1].width);
        at.output_weight = layer.output_offset < 0 ? -1 : take(at.width);
    }
    t.at[0].sums = take(round4(layers.at[0].outputs) * kPitch);
    for (int l = 0; l < last; ++l) {
        if (l > 0) t.at[l].sums = take(round4(layers.at[l].outputs) * kPitch);
        t.at[l].values = take((t.at[l].width + 1) * kPitch);
    }
    t.floats = std::max(place, 4 * kTileThreads);  // the latter for add_totals
    return t;
}

}  // namespace nnue::layer_stacks
