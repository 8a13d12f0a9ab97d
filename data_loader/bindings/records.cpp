// The part of nnue_trainer._data for feature sets, and for records: from and to FENs, expanded into index rows, their
// layout.
#include <pybind11/stl.h>

#include <tuple>

#include "bindings/bindings.h"
#include "chess/fen.h"
#include "chess/record.h"
#include "chess/texts.h"
#include "features/feature_set.h"
#include "pipeline/expand.h"
#include "pipeline/kernels.h"

namespace {

Array<std::uint8_t> records_from_fens(const std::vector<std::string>& fens) {
    auto records = make_records(fens.size());
    auto* out = reinterpret_cast<Record*>(records.mutable_data());
    for (std::size_t i = 0; i < fens.size(); ++i) out[i] = record_from_fen(fens[i]);
    return records;
}

std::vector<std::string> fens_from_records(const Array<std::uint8_t>& records) {
    const Record* in = records_of(records, "fens_from_records");
    std::vector<std::string> fens;
    for (py::ssize_t i = 0; i < records.shape(0); ++i) {
        fens.push_back(fen_from_record(in[i], static_cast<std::size_t>(i)));
    }
    return fens;
}

void expand_into(const Array<std::uint8_t>& records, const std::string& set_name, const py::object& memory,
                 int threads) {
    const FeatureSet& set = feature_set(set_name);
    const std::span<const Record> in = record_span(records, "expand");
    const BatchRows rows = slot_in_array(memory, &set, in.size()).rows;
    py::gil_scoped_release release;
    expand_records(in, set, rows, threads);
}

// A set in Python: `append(records, white, black, counts, first_feature)` gets arrays that are views of the pipeline's
// memory, valid until it returns.
void add_python_feature_set(const std::string& name, const std::tuple<int, int, int, int>& sizes,
                            const py::object& append) {
    const auto [num_features, max_active, bucket_size, num_virtual] = sizes;
    // Never freed: a thread may be inside it for as long as the program runs.
    const py::handle function = py::object(append).release();
    add_feature_set(
        name, {num_features, max_active, bucket_size, num_virtual},
        [name, function](const std::uint8_t* records, std::size_t n, const AppendRows& rows) {
            const py::gil_scoped_acquire acquire;
            const py::capsule owner(records, [](void*) {});  // an array with an owner does not copy
            const auto length = static_cast<std::size_t>(rows.length);
            const Array<std::uint8_t> positions({n, sizeof(Record)}, records, owner);
            const Array<std::int32_t> white({n, length}, rows.white, owner), black({n, length}, rows.black, owner);
            const Array<std::int16_t> counts(static_cast<py::ssize_t>(n), rows.counts, owner);
            positions.attr("flags").attr("writeable") = false;
            try {
                function(positions, white, black, counts, rows.first_feature);
            } catch (const py::error_already_set& error) {
                // Its own words, without the traceback that what() has. A UserError is one line for the user already.
                const std::string kind = py::str(error.type().attr("__name__"));
                throw FormatError("feature set '" + name + "': " + (kind == "UserError" ? std::string() : kind + ": ") +
                                  std::string(py::str(error.value())));
            }
        });
}

// The columns of `nnue data` for each record: FEN of its position, before the move; UCI move, score, ply, result.
py::list describe(const Array<std::uint8_t>& records, bool shredder) {
    const CastlingStyle style = shredder ? CastlingStyle::kShredder : CastlingStyle::kXFen;
    py::list list;
    const Record* in = records_of(records, "describe");
    for (py::ssize_t i = 0; i < records.shape(0); ++i) {
        const Entry e = entry_from_record(in[i], static_cast<std::size_t>(i));
        list.append(py::make_tuple(format_fen(e.position, style), format_uci(e.move, shredder), e.score, e.position.ply,
                                   e.result));
    }
    return list;
}

// The fields of FeaturePart (nnue_trainer/data/features.py).
py::list describe_feature_set(const std::string& name) {
    const FeatureSet& set = feature_set(name);
    py::list parts;
    for (const FeaturePart& part : set.parts) {
        py::list states;
        for (const StateCounter& counter : part.tables.counters) {
            if (counter.most > 0) states.append(py::make_tuple(counter.codes[0], counter.most));
        }
        parts.append(py::make_tuple(part.name, part.first_feature, part.num_features, part.max_active, part.bucket_size,
                                    part.num_virtual, part.virtual_span, py::tuple(states)));
    }
    for (const AppendedPart& part : set.appended) {
        parts.append(py::make_tuple(part.name, part.first_feature, part.is.num_features, part.is.max_active,
                                    part.is.bucket_size, part.is.num_virtual, part.is.num_features, py::tuple()));
    }
    return parts;
}

// offset [2, 64], plane [2, 12] and orientation [2, 64] of a set that is one piece-square part; None for any other.
py::object piece_square_tables(const std::string& name) {
    const FeatureSet& set = feature_set(name);
    if (!set.is_single() || !set.parts[0].is_piece_square()) return py::none();
    const PieceSquareTables& tables = set.parts[0].tables;
    return py::make_tuple(py::array_t<std::int32_t>({2, 64}, tables.offset[0]),
                          py::array_t<std::int32_t>({2, 12}, tables.plane[0]),
                          py::array_t<std::uint8_t>({2, 64}, tables.orientation[0]));
}

// int32 [12, 64, 12, 64] by attacker, its square, victim and its square; None for any other set than Full_Threats.
py::object threat_features_array(const std::string& name) {
    const std::vector<std::int32_t> features = threat_features(name);
    if (features.empty()) return py::none();
    return py::array_t<std::int32_t>({12, 64, 12, 64}, features.data());
}

// ((name, dtype, offset in bytes, shape) of each field, bytes in all) of a batch of index rows.
py::tuple batch_layout_rows(std::size_t size, std::size_t max_active) {
    const BatchLayout layout = batch_layout(size, max_active);
    py::list fields;
    for (const BatchField& field : layout.fields) {
        py::tuple shape = py::make_tuple(size);
        if (field.is_row) shape = py::make_tuple(size, max_active);
        fields.append(py::make_tuple(field.name, field.dtype, field.offset, shape));
    }
    return py::make_tuple(fields, layout.size);
}

// {name: (byte of its big-endian u16, shift, bits, is it zig-zag?)} of what stands after the board of a record.
py::dict record_fields() {
    py::dict fields;
    for (const RecordField& f : kRecordFields) fields[f.name] = py::make_tuple(f.byte, f.shift, f.bits, f.is_zigzag);
    return fields;
}

}  // namespace

void bind_records(py::module_& m) {
    m.def("isa", [] { return kernels().isa; });
    m.def("basic_feature_sets", &basic_feature_sets);
    m.def("describe_feature_set", &describe_feature_set);
    m.def("piece_square_tables", &piece_square_tables);
    m.def("threat_features", &threat_features_array);
    m.def("add_python_feature_set", &add_python_feature_set, py::arg("name"), py::arg("sizes"), py::arg("append"));
    m.def("add_compiled_feature_set", &add_compiled_feature_set, py::arg("name"), py::arg("library"));
    m.def(
        "records_from_fens", &records_from_fens, py::arg("fens"),
        "Records uint8 [n, 32] of n FENs, with score and result 0 and no move. The ply is 2 · (move number − 1), plus "
        "1 if black is to move. UserError names the FEN and what is wrong.");
    m.def("fens_from_records", &fens_from_records, py::arg("records"), "The FENs of records uint8 [n, 32].");
    m.def("expand_into", &expand_into, py::arg("records"), py::arg("feature_set"), py::arg("memory"),
          py::arg("threads"));
    m.def("describe", &describe, py::arg("records"), py::arg("shredder") = false);
    m.def("batch_layout", &batch_layout_rows);
    m.def("record_fields", &record_fields);
}
