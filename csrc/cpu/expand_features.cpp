// The expansion of packed positions on CPU. It serves users without a data pipeline, and is the reference of the CUDA
// kernel. Training on a CPU does not use it: there the data pipeline expands, with its own threads.

#include "../expand_features.h"

#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <atomic>
#include <cstdint>
#include <cstring>
#include <mutex>
#include <optional>

namespace nnue::expand_features {
namespace {

data::RecordFault fault_of(const uint8_t* record) {
    uint64_t nibbles[2];
    std::memcpy(nibbles, record + 8, sizeof nibbles);
    return data::scan_record(data::record_occupancy(record), nibbles[0], nibbles[1], data::record_result(record)).fault;
}

void expand(const data::FeatureSet& set, const uint8_t* records, int64_t rows, const data::BatchRows& out) {
    std::atomic<int64_t> first_bad{rows};
    std::mutex mutex;
    std::optional<data::BadFeatures> bad_features;
    torch::stable::parallel_for(0, rows, 1024, [&](int64_t begin, int64_t end) {
        for (int64_t b = begin; b < end; ++b) {
            const uint8_t* record = records + b * kRecordBytes;
            if (fault_of(record) != data::RecordFault::kNone) {
                int64_t seen = first_bad.load();
                while (b < seen && !first_bad.compare_exchange_weak(seen, b)) {
                }
                return;  // later rows of this range cannot be the first
            }
            const data::Pieces pieces = data::pieces_of_record(record);
            const int count =
                data::expand_rows(set, record, pieces, out.white + b * set.max_active, out.black + b * set.max_active);
            out.counts[b] = static_cast<int16_t>(count);
            out.black_to_move[b] = pieces.black_to_move;
            out.score[b] = static_cast<int16_t>(data::record_score(record));
            out.result[b] = static_cast<int8_t>(data::record_result(record));
            out.piece_count[b] = static_cast<uint8_t>(pieces.count);
            out.material[b] = static_cast<uint8_t>(data::record_material(record, pieces.black_to_move));
        }
        if (set.appended.empty()) return;
        const int64_t first_index = begin * set.max_active;
        try {
            set.append(records + begin * kRecordBytes, static_cast<size_t>(end - begin),
                       {out.white + first_index, out.black + first_index, out.counts + begin, set.max_active, 0});
        } catch (data::BadFeatures& bad) {
            bad.position += begin;
            const std::lock_guard lock(mutex);
            if (!bad_features || bad.position < bad_features->position) bad_features = bad;
        }
    });
    const int64_t bad = first_bad.load();
    if (bad < rows) fail_record(bad, fault_of(records + bad * kRecordBytes));
    if (bad_features) fail_features(set.name, bad_features->position, bad_features->text);
}

void expand_into_op(const Tensor& records_in, int64_t feature_set, std::vector<Tensor> fields,
                    bool /*check_records: always*/) {
    check_records(records_in, Device::cpu);
    const data::FeatureSet& set = check_feature_set(feature_set);
    const data::BatchRows out = check_fields(fields, records_in, set.max_active, Device::cpu);
    const Tensor records = torch::stable::contiguous(records_in);
    expand(set, static_cast<const uint8_t*>(records.const_data_ptr()), records.size(0), out);
}

FieldTuple expand_op(const Tensor& records, int64_t feature_set, bool check) {
    check_records(records, Device::cpu);
    const std::vector<Tensor> fields = new_fields(records, check_feature_set(feature_set).max_active);
    expand_into_op(records, feature_set, fields, check);
    return as_tuple(fields);
}

int64_t name_feature_set_op(const Tensor& name) {
    constexpr const char* kName = "name_feature_set";
    return handles().add(kName, check_text(kName, "name", name));
}

void add_feature_set_op(const Tensor& name, const Tensor& library) {
    constexpr const char* kName = "add_feature_set";
    try {
        data::add_compiled_feature_set(check_text(kName, "name", name), check_text(kName, "library", library));
    } catch (const data::FormatError& error) {
        throw std::runtime_error(std::string("nnue::add_feature_set: ") + error.what());
    }
}

}  // namespace
}  // namespace nnue::expand_features

STABLE_TORCH_LIBRARY_IMPL(nnue, CompositeExplicitAutograd, m) {
    NNUE_IMPL(m, "name_feature_set", &nnue::expand_features::name_feature_set_op);
    NNUE_IMPL(m, "add_feature_set", &nnue::expand_features::add_feature_set_op);
}

STABLE_TORCH_LIBRARY_IMPL(nnue, CPU, m) {
    NNUE_IMPL(m, "expand_features", &nnue::expand_features::expand_op);
    NNUE_IMPL(m, "expand_features_into", &nnue::expand_features::expand_into_op);
}
