// The expansion of packed positions into index rows: the contract of its two operators, and the checks that hold on
// every device. The feature sets themselves are in data_loader/features/feature_sets.h: the data pipeline's CPU
// expander, the operator on CPU and the kernel on CUDA compile the same lines of code.
//
//   records        uint8 [B, 32]  positions as binpack stores them (docs/data.md); need not be contiguous
//   feature_set    the name of a set (features/feature_set.h), which determines everything about it
//   white, black   int32 [B, K]   active features of each perspective, then -1; K and the order depend on the set
//   counts         int16 [B]      entries per row; both rows of a position have the same number
//   black_to_move  uint8 [B]      0 white to move, 1 black
//   score          int16 [B]      engine units, side to move's view
//   result         int8 [B]       -1 loss, 0 draw, 1 win, side to move's view
//   piece_count    uint8 [B]      2 to 32
//
// expand_features returns new tensors; expand_features_into writes to the contiguous tensors that it is given.
//
// add_feature_set makes a set known to this library, which was compiled from a header (features/general_set.h);
// `library` is the shared library. add_cuda_feature_set does so on CUDA. Its features stand behind those of the other
// parts, and only then may the two rows of a position differ in length: `counts` is that of the longer one. A row that
// does not fit what the set says of itself (an index, too many features) is an error as below; on CUDA, where the error
// is off, its features are left out.
//
// A record that cannot be expanded (record_scan.h: too many pieces, not one king per side, ...) is an error that names
// the row and the reason. Whether a position is legal in chess is not checked. On CUDA the error is reported as that of
// an illegal index is (cuda/index_check.cuh). With check_records = false, or with the index check off, there is no
// error: such a record gets empty rows, its count is 0, and its piece_count is clipped to 1 to 32. The CPU always
// checks.
#pragma once

#include <array>
#include <stdexcept>
#include <string>
#include <tuple>

#include "checks.h"
#include "chess/fen.h"
#include "features/feature_sets.h"
#include "features/record_scan.h"

namespace nnue::expand_features {

constexpr const char* kName = "expand_features";
constexpr int64_t kRecordBytes = sizeof(data::Record);

struct Outputs {
    int32_t* white;
    int32_t* black;
    int16_t* counts;
    uint8_t* black_to_move;
    int16_t* score;
    int8_t* result;
    uint8_t* piece_count;
};

using OutputTensors = std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor>;

inline const data::FeatureSet& check_feature_set(const std::string& name) {
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

inline OutputTensors new_outputs(const Tensor& records, int64_t length) {
    const int64_t rows = records.size(0);
    return {torch::stable::new_empty(records, {rows, length}, ScalarType::Int),
            torch::stable::new_empty(records, {rows, length}, ScalarType::Int),
            torch::stable::new_empty(records, {rows}, ScalarType::Short),
            torch::stable::new_empty(records, {rows}),
            torch::stable::new_empty(records, {rows}, ScalarType::Short),
            torch::stable::new_empty(records, {rows}, ScalarType::Char),
            torch::stable::new_empty(records, {rows})};
}

template <class T>
T* check_output(const char* argument, const Tensor& tensor, ScalarType dtype, std::initializer_list<int64_t> shape,
                const char* letters, const Tensor& records, Device device) {
    check_device(kName, argument, tensor, device, records, "records");
    check_shape(kName, argument, tensor, shape, letters);
    check_dtype(kName, argument, tensor, {dtype});
    if (!tensor.is_contiguous()) fail(kName, argument, std::string("strides with gaps"), "a contiguous tensor");
    return static_cast<T*>(tensor.mutable_data_ptr());
}

inline Outputs check_outputs(const OutputTensors& tensors, const Tensor& records, int64_t length, Device device) {
    const int64_t rows = records.size(0);
    const auto& [white, black, counts, black_to_move, score, result, piece_count] = tensors;
    return {check_output<int32_t>("white", white, ScalarType::Int, {rows, length}, "[B, K]", records, device),
            check_output<int32_t>("black", black, ScalarType::Int, {rows, length}, "[B, K]", records, device),
            check_output<int16_t>("counts", counts, ScalarType::Short, {rows}, "[B]", records, device),
            check_output<uint8_t>("black_to_move", black_to_move, ScalarType::Byte, {rows}, "[B]", records, device),
            check_output<int16_t>("score", score, ScalarType::Short, {rows}, "[B]", records, device),
            check_output<int8_t>("result", result, ScalarType::Char, {rows}, "[B]", records, device),
            check_output<uint8_t>("piece_count", piece_count, ScalarType::Byte, {rows}, "[B]", records, device)};
}

// The error for a record that cannot be expanded, with the same words on every device.
[[noreturn]] inline void fail_record(int64_t row, data::RecordFault fault) {
    fail(kName, "records", std::string(data::fault_name(fault)) + " in row " + text(row), "a position");
}

// The error for a row that does not fit what its set says of itself.
[[noreturn]] inline void fail_features(const std::string& set, int64_t row, const std::string& what) {
    throw std::runtime_error("nnue::" + std::string(kName) + ": feature set '" + set + "': " + what + " in row " +
                             text(row));
}

}  // namespace nnue::expand_features
