// The expansion of packed positions into index rows: the contract of its two operators, and the checks that hold on
// every device. The feature sets themselves are in data_loader/features/feature_sets.h: the data pipeline's CPU
// expander, the operator on CPU and the kernel on CUDA compile the same lines of code.
//
//   records        uint8 [B, 32]  positions as binpack stores them (docs/binpack.md); need not be contiguous
//   feature_set    the handle of a set's name (features/feature_set.h), which determines everything about the set
//   white, black   int32 [B, K]   active features of each perspective, then -1; K and the order depend on the set
//   counts         int16 [B]      entries per row; both rows of a position have the same number
//   black_to_move  uint8 [B]      0 white to move, 1 black
//   score          int16 [B]      engine units, side to move's view
//   result         int8 [B]       -1 loss, 0 draw, 1 win, side to move's view
//   piece_count    uint8 [B]      2 to 32
//   material       uint8 [B]      4 · min(3, queens of the side to move) + min(3, queens of the other side)
//
// These are the fields of a batch, in the order of their table (features/batch_layout.h). expand_features returns new
// tensors; expand_features_into writes to the contiguous tensors in the list `fields`, in that order.
//
// name_feature_set returns the handle of a name, uint8 [n]: a hash, the same in every process, so that graphs may keep
// it. The operators of a device have the handles of built-in sets, and of the names that they were given:
// name_cuda_feature_set does the same for CUDA.
//
// add_feature_set makes a set that was compiled from a header (features/general_set.h) known to this library; `library`
// is the path of the shared library with the set, uint8 [n] as `name` is. add_cuda_feature_set does the same for CUDA.
// The features of such a set come after those of the other parts. Only with such a set may the two rows of a position
// differ in length: `counts` is then the length of the longer one. A row that does not fit the set's own description (a
// wrong index, too many features) is an error as below; on CUDA, where the error is off, its features are left out.
//
// A record that cannot be expanded (record_scan.h: too many pieces, not one king per side, ...) is an error that names
// the row and the reason. Nothing checks whether a position is legal in chess. CUDA reports the error in the same way
// as an illegal index (cuda/index_check.cuh). With check_records = false, or with the index check off, there is no
// error: such a record gets empty rows, its count is 0, and its piece_count is clipped to 1 to 32. The CPU always
// checks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <map>
#include <mutex>
#include <stdexcept>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "checks.h"
#include "chess/fen.h"
#include "enumerations.h"
#include "features/batch_layout.h"
#include "features/feature_sets.h"
#include "features/record_scan.h"

namespace nnue::expand_features {

constexpr const char* kName = "expand_features";
constexpr int64_t kRecordBytes = sizeof(data::Record);

// The fields of a batch as expand_features returns them.
using FieldTuple = std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor>;

// FNV-1a. Handles are not negative.
inline int64_t handle_of(std::string_view name) {
    uint64_t hash = 0xcbf29ce484222325;
    for (const char letter : name) hash = (hash ^ static_cast<uint8_t>(letter)) * 0x100000001b3;
    return static_cast<int64_t>(hash >> 1);
}

// The names of the handles that this library has.
class Handles {
  public:
    Handles() {
        for (const std::string& name : data::basic_feature_sets()) add(kName, name);
    }
    int64_t add(const char* op, const std::string& name) {
        const int64_t handle = handle_of(name);
        const std::lock_guard lock(mutex_);
        const auto [known, is_new] = names_.emplace(handle, name);
        if (known->second != name) {
            fail(op, "name", "'" + name + "'", "another name: it has the handle of '" + known->second + "'");
        }
        return handle;
    }
    std::string name_of(int64_t handle) {
        const std::lock_guard lock(mutex_);
        const auto known = names_.find(handle);
        if (known != names_.end()) return known->second;
        fail(kName, "feature_set", "the unknown handle " + text(handle),
             "one that nnue_trainer.ops.feature_set_handle has returned in this process");
    }

  private:
    std::mutex mutex_;
    std::map<int64_t, std::string> names_;
};

inline Handles& handles() {
    static auto* all = new Handles;
    return *all;
}

inline const data::FeatureSet& check_feature_set(int64_t handle) {
    const std::string name = handles().name_of(handle);
    try {
        return data::feature_set(name);
    } catch (const data::FormatError& error) {
        const bool in_python = name.find(".py:") != name.npos;
        throw std::runtime_error(
            "nnue::" + std::string(kName) + ": feature_set: " +
            (in_python ? "'" + name + "' is a set in Python, which nnue_trainer.data.expand expands" : error.what()));
    }
}

inline void check_records(const Tensor& records, Device device) {
    check_device(kName, "records", records, device, records, "records");
    check_shape(kName, "records", records, {-1, kRecordBytes}, "[B, 32]");
    check_dtype(kName, "records", records, {ScalarType::Byte});
}

// The dtype of a field; torch has no arithmetic on unsigned integers other than bytes.
template <class T>
constexpr ScalarType dtype_of() {
    static_assert(sizeof(T) == 1 || (sizeof(T) <= 4 && std::is_signed_v<T>));
    if (sizeof(T) == 1) return std::is_signed_v<T> ? ScalarType::Char : ScalarType::Byte;
    return sizeof(T) == 2 ? ScalarType::Short : ScalarType::Int;
}

// `length`: K.
inline std::vector<Tensor> new_fields(const Tensor& records, int64_t length) {
    const int64_t rows = records.size(0);
    std::vector<Tensor> fields;
    const auto add = [&]<class T>(T, bool is_row) {
        fields.push_back(is_row ? torch::stable::new_empty(records, {rows, length}, dtype_of<T>())
                                : torch::stable::new_empty(records, {rows}, dtype_of<T>()));
    };
#define NNUE_FIELD(name, type, row) add(type{}, row);
    NNUE_BATCH_FIELDS(NNUE_FIELD)
#undef NNUE_FIELD
    return fields;
}

inline FieldTuple as_tuple(const std::vector<Tensor>& fields) {
    return [&]<size_t... i>(std::index_sequence<i...>) {
        return FieldTuple{fields.at(i)...};
    }
    (std::make_index_sequence<std::tuple_size_v<FieldTuple>>{});
}

inline data::BatchRows check_fields(const std::vector<Tensor>& fields, const Tensor& records, int64_t length,
                                    Device device) {
#define NNUE_FIELD(name, type, row) #name,
    constexpr const char* kNames[] = {NNUE_BATCH_FIELDS(NNUE_FIELD)};
#undef NNUE_FIELD
    static_assert(std::size(kNames) == std::tuple_size_v<FieldTuple>);
    if (fields.size() != std::size(kNames)) {
        std::string expected;
        for (const char* name : kNames) expected += (expected.empty() ? "" : ", ") + std::string(name);
        fail(kName, "fields", text(fields.size()) + " tensors", expected);
    }
    const int64_t rows = records.size(0);
    size_t next = 0;
    const auto checked = [&]<class T>(const char* name, T, bool is_row) {
        const Tensor& field = fields[next++];
        check_device(kName, name, field, device, records, "records");
        if (is_row) {
            check_shape(kName, name, field, {rows, length}, "[B, K]");
        } else {
            check_shape(kName, name, field, {rows}, "[B]");
        }
        check_dtype(kName, name, field, {dtype_of<T>()});
        if (!field.is_contiguous()) fail(kName, name, std::string("strides with gaps"), "a contiguous tensor");
        check_apart(kName, name, field, records, "records");
        for (size_t i = 0; i + 1 < next; ++i) check_apart(kName, name, field, fields[i], kNames[i]);
        return static_cast<T*>(field.mutable_data_ptr());
    };
    return {// in the order of the table, since a list in braces is evaluated from left to right
#define NNUE_FIELD(name, type, row) checked(#name, type{}, row),
            NNUE_BATCH_FIELDS(NNUE_FIELD)
#undef NNUE_FIELD
    };
}

// The error for a record that cannot be expanded, with the same words on every device.
[[noreturn]] inline void fail_record(int64_t row, data::RecordFault fault) {
    fail(kName, "records", std::string(data::fault_name(fault)) + " in row " + text(row), "a position");
}

// The error for a row that does not fit the description of its set.
[[noreturn]] inline void fail_features(const std::string& set, int64_t row, const std::string& what) {
    throw std::runtime_error("nnue::" + std::string(kName) + ": feature set '" + set + "': " + what + " in row " +
                             text(row));
}

}  // namespace nnue::expand_features
