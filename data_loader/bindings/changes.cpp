// The part of nnue_trainer._data that changes records in place.
#include <pybind11/stl.h>

#include "bindings/bindings.h"
#include "chess/position.h"
#include "chess/record.h"
#include "formats/writer.h"

namespace {

// The records of an array that a function changes in place. An array of another type or layout would be a copy, so
// the functions take none (noconvert).
std::span<Record> writable_records(Array<std::uint8_t>& array, const char* what) {
    const std::span<const Record> all = record_span(array, what);
    if (!array.writeable()) throw FormatError(std::string(what) + ": the records are read-only");
    return {const_cast<Record*>(all.data()), all.size()};
}

// Checks positions from a format in Python by the rules of compiled readers, in place: sound records move to the
// front, and en-passant squares that the en-passant rule does not keep are dropped. Returns (how many are sound,
// number of the first that is not, what is wrong with it).
py::tuple import_records(Array<std::uint8_t>& array) {
    const std::span<Record> records = writable_records(array, "import_records");
    std::size_t kept = 0, first_bad = 0;
    std::string why;
    {
        const py::gil_scoped_release release;
        for (std::size_t i = 0; i < records.size(); ++i) {
            Entry e;
            const char* error = unpack(records[i], e);
            std::string message = error ? error : "";
            Position& p = e.position;
            if (!error && !e.move.is_null() && !is_pseudo_legal(p, e.move)) {
                message = "move " + format_uci(e.move) + " is not possible in " + format_fen(p);
            }
            if (!message.empty()) {
                if (why.empty()) first_bad = i, why = message;
                continue;
            }
            if (p.ep_square != kNoSquare && !ep_square_counts(p, p.ep_square, p.side_to_move)) {
                p.ep_square = kNoSquare;
                records[kept++] = pack(e);
            } else {
                records[kept++] = records[i];
            }
        }
    }
    return py::make_tuple(kept, first_bad, why);
}

// Takes the castling rights of Chess960 out of records, in place. Returns (bool [n]: which had some, in how many
// the move went with them).
py::tuple drop_chess960(Array<std::uint8_t>& array) {
    const std::span<Record> records = writable_records(array, "drop_chess960");
    py::array_t<bool> found(static_cast<py::ssize_t>(records.size()));
    bool* out = found.mutable_data();
    std::size_t moves = 0;
    {
        const py::gil_scoped_release release;
        Entry e;
        for (std::size_t i = 0; i < records.size(); ++i) {
            out[i] = !unpack(records[i], e) && !has_standard_castling(e.position);
            if (!out[i]) continue;
            e.position.castling = 0;
            if (e.move.kind() == kCastling) e.move = {}, ++moves;
            records[i] = pack(e);
        }
    }
    return py::make_tuple(found, moves);
}

}  // namespace

void bind_changes(py::module_& m) {
    py::class_<ScoreChanges>(m, "ScoreChanges")
        .def(py::init<double, bool, bool, bool, bool>(), py::kw_only(), py::arg("scale") = 1.0,
             py::arg("turn_white_scores") = false, py::arg("turn_black_scores") = false,
             py::arg("turn_white_results") = false, py::arg("turn_black_results") = false)
        .def(
            "apply",
            [](const ScoreChanges& changes, Array<std::uint8_t>& records) {
                const std::span<Record> all = writable_records(records, "ScoreChanges");
                py::gil_scoped_release release;
                return changes.apply(all);
            },
            py::arg("records").noconvert());
    m.def("import_records", &import_records, py::arg("records").noconvert());
    m.def("drop_chess960", &drop_chess960, py::arg("records").noconvert());
    m.def(
        "scale_scores",
        [](Array<std::uint8_t>& records, double factor) {
            const std::span<Record> all = writable_records(records, "scale_scores");
            py::gil_scoped_release release;
            return scale_scores(all, factor);
        },
        py::arg("records").noconvert(), py::arg("factor"));
    m.def(
        "turn_view",
        [](Array<std::uint8_t>& records, bool results, bool white, bool black) {
            const std::span<Record> all = writable_records(records, "turn_view");
            py::gil_scoped_release release;
            return turn_view(all, results ? Viewed::kResults : Viewed::kScores, white, black);
        },
        py::arg("records").noconvert(), py::arg("results"), py::arg("white"), py::arg("black"));
}
