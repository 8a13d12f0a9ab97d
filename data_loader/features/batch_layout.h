// The memory layout of a batch of index rows: the one table of its fields.
//
// All other code takes names, types, shapes, order and offsets from here: the loops that fill a batch, the operators
// that expand (csrc/expand_features.h), and the Python module, from which Batch, page-locked memory, copies to a device
// and CUDA graphs take them (nnue_trainer/data/batch.py).
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace nnue::data {

// FIELD(name, type, row): `row` is true for index rows, max_active entries per position, and false for one entry per
// position. Scores and results are the side to move's view.
#define NNUE_BATCH_FIELDS(FIELD)                                          \
    FIELD(white, std::int32_t, true)                                      \
    FIELD(black, std::int32_t, true)                                      \
    FIELD(counts, std::int16_t, false)        /* entries of either row */ \
    FIELD(black_to_move, std::uint8_t, false) /* 0, 1 */                  \
    FIELD(score, std::int16_t, false)         /* engine units */          \
    FIELD(result, std::int8_t, false)         /* -1, 0, 1 */              \
    FIELD(piece_count, std::uint8_t, false)   /* 2 to 32 */               \
    FIELD(material, std::uint8_t, false)      /* queens: 4 · own + enemy, up to 3 each */

// The memory for a batch, which belongs to the caller.
struct BatchRows {
#define NNUE_FIELD(name, type, row) type* name = nullptr;
    NNUE_BATCH_FIELDS(NNUE_FIELD)
#undef NNUE_FIELD

    // The rows from `first` on, in rows of max_active entries.
    BatchRows from(std::size_t first, int max_active) const {
        const std::size_t entries[] = {first, first * static_cast<std::size_t>(max_active)};
        return {
#define NNUE_FIELD(name, type, row) name + entries[row],
            NNUE_BATCH_FIELDS(NNUE_FIELD)
#undef NNUE_FIELD
        };
    }
};

struct BatchField {
    const char* name;
    std::string dtype;   // as NumPy and torch call it
    std::size_t offset;  // bytes from the beginning of the batch
    bool is_row;
};

struct BatchLayout {
    std::vector<BatchField> fields;
    std::size_t size = 0;  // bytes of a batch
};

// The layout of a batch of n positions in one allocation. Every field begins at a multiple of 256 bytes.
inline BatchLayout batch_layout(std::size_t n, std::size_t max_active) {
    constexpr std::size_t kAlignment = 256;
    BatchLayout layout;
    const auto add = [&]<class T>(const char* name, T, bool is_row) {
        const std::string dtype = (static_cast<T>(-1) < 0 ? "int" : "uint") + std::to_string(8 * sizeof(T));
        layout.fields.push_back({name, dtype, layout.size, is_row});
        const std::size_t bytes = sizeof(T) * n * (is_row ? max_active : 1);
        layout.size += (bytes + kAlignment - 1) / kAlignment * kAlignment;
    };
#define NNUE_FIELD(name, type, row) add(#name, type{}, row);
    NNUE_BATCH_FIELDS(NNUE_FIELD)
#undef NNUE_FIELD
    return layout;
}

// The fields of a batch of n positions at `memory`, which has the layout of batch_layout().
inline BatchRows batch_rows(std::byte* memory, std::size_t n, std::size_t max_active) {
    const BatchLayout layout = batch_layout(n, max_active);
    auto field = layout.fields.begin();
    const auto next = [&]<class T>(T*) { return reinterpret_cast<T*>(memory + (field++)->offset); };
    BatchRows rows;
#define NNUE_FIELD(name, type, row) rows.name = next(static_cast<type*>(nullptr));
    NNUE_BATCH_FIELDS(NNUE_FIELD)
#undef NNUE_FIELD
    return rows;
}

}  // namespace nnue::data
