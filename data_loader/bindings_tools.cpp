// The part of nnue_trainer._data for the data tools: readers and writers of every format, shuffling, splitting,
// interleaving, duplicates, validation.
#include <pybind11/stl.h>

#include "bindings.h"
#include "formats/duplicates.h"
#include "formats/interleave.h"
#include "formats/reader.h"
#include "formats/shuffle.h"
#include "formats/split.h"
#include "formats/writer.h"

namespace {

// Bytes from a Python object with readinto(), such as a decompressor. Its exceptions pass through.
class PythonSource final : public ByteSource {
  public:
    explicit PythonSource(py::object readinto) : readinto_(std::move(readinto)) {}

    std::size_t read(std::span<std::uint8_t> out) override {
        py::gil_scoped_acquire acquire;
        const auto view = py::memoryview::from_memory(out.data(), static_cast<py::ssize_t>(out.size()));
        const auto n = readinto_(view).cast<std::size_t>();
        if (n > out.size()) throw FormatError("readinto() returned more bytes than it was given room for");
        return n;
    }

  private:
    py::object readinto_;
};

// A reader whose blocks are new arrays of at most `capacity` records.
py::object read_block(auto& reader, std::size_t capacity) {
    auto block = make_records(capacity);
    auto* out = reinterpret_cast<Record*>(block.mutable_data());
    std::size_t n = 0;
    {
        py::gil_scoped_release release;
        n = reader.read({out, capacity});
    }
    return n == capacity ? py::object(block) : block[py::slice(0, static_cast<py::ssize_t>(n), 1)];
}

template <class T>
void add_records(T& object, const Array<std::uint8_t>& records) {
    const std::span<const Record> all = record_span(records, "add");
    py::gil_scoped_release release;
    object.add(all);
}

py::dict losses_dict(const Losses& losses) {
    py::dict d;
    d["moves"] = losses.moves;
    d["castling"] = losses.castling;
    d["en_passant"] = losses.en_passant;
    d["rule50"] = losses.rule50;
    d["ply"] = losses.ply;
    d["black_to_move"] = losses.black_to_move;
    d["scores"] = losses.scores;
    return d;
}

}  // namespace

void bind_tools(py::module_& m) {
    m.def("formats", [] {
        py::list names;
        for (const FormatInfo& info : formats()) names.append(info.name);
        return names;
    });

    py::class_<PositionReader>(m, "PositionReader")
        .def(
            py::init([](const std::string& path, const py::object& readinto, const std::string& format, bool skip_bad) {
                // With the GIL: if this throws, the Python object goes here.
                std::unique_ptr<ByteSource> source;
                if (readinto.is_none()) {
                    source = open_file_source(path);
                } else {
                    source = std::make_unique<PythonSource>(readinto);
                }
                ByteStream stream(path, std::move(source));
                const OnBad on_bad = skip_bad ? OnBad::kSkip : OnBad::kError;
                return format.empty() ? open_reader(std::move(stream), on_bad)
                                      : open_reader(format_info(format).id, std::move(stream), on_bad);
            }),
            py::arg("path"), py::arg("readinto"), py::arg("format"), py::arg("skip_bad"))
        .def("read", &read_block<PositionReader>)
        .def_property_readonly("format", [](const PositionReader& r) { return format_info(r.format()).name; })
        .def_property_readonly("offset", &PositionReader::offset)
        .def_property_readonly("chunks", &PositionReader::chunks)
        .def_property_readonly("chains", [](const PositionReader& r) { return r.chains().chains; })
        .def_property_readonly("single_chains", [](const PositionReader& r) { return r.chains().single; })
        .def_property_readonly("skipped", &PositionReader::skipped)
        .def_property_readonly("first_skipped", &PositionReader::first_skipped);

    py::class_<PositionWriter>(m, "PositionWriter")
        .def(py::init([](const std::string& path, const std::string& format, bool join_chains) {
                 return open_writer(format_info(format).id, path, join_chains);
             }),
             py::arg("path"), py::arg("format"), py::arg("join_chains"))
        .def("write",
             [](PositionWriter& writer, const Array<std::uint8_t>& records) {
                 const std::span<const Record> all = record_span(records, "write");
                 py::gil_scoped_release release;
                 writer.write(all);
             })
        .def("finish", &PositionWriter::finish, py::call_guard<py::gil_scoped_release>())
        .def_property_readonly("positions", &PositionWriter::positions)
        .def_property_readonly("losses", [](const PositionWriter& w) { return losses_dict(w.losses()); });

    // In place, so an array of another type or layout is no input.
    m.def(
        "scale_scores",
        [](Array<std::uint8_t>& records, double factor) {
            const std::span<const Record> all = record_span(records, "scale_scores");
            if (!records.writeable()) throw FormatError("scale_scores: the records are read-only");
            py::gil_scoped_release release;
            return scale_scores({const_cast<Record*>(all.data()), all.size()}, factor);
        },
        py::arg("records").noconvert(), py::arg("factor"));

    py::class_<ExternalShuffle>(m, "ExternalShuffle")
        .def(py::init([](std::uint64_t seed, std::size_t memory, const std::string& folder) {
                 auto shuffle = std::make_unique<ExternalShuffle>(seed, memory, folder);
                 shuffle->poll = [] {
                     py::gil_scoped_acquire acquire;
                     if (PyErr_CheckSignals() != 0) throw py::error_already_set();
                 };
                 return shuffle;
             }),
             py::arg("seed"), py::arg("memory"), py::arg("folder"))
        .def("add", &add_records<ExternalShuffle>)
        .def("read", &read_block<ExternalShuffle>)
        .def_property_readonly("positions", &ExternalShuffle::positions)
        .def_property_readonly("spilled_bytes", &ExternalShuffle::spilled_bytes);

    py::class_<GameSplitter>(m, "GameSplitter")
        .def(py::init<std::uint64_t, double>(), py::arg("seed"), py::arg("validation_share"))
        .def("start_stream", &GameSplitter::start_stream)
        .def("split",
             [](GameSplitter& splitter, const Array<std::uint8_t>& records) {
                 const std::span<const Record> all = record_span(records, "split");
                 Array<std::uint8_t> validation(static_cast<py::ssize_t>(all.size()));
                 const std::span<std::uint8_t> out{validation.mutable_data(), all.size()};
                 {
                     py::gil_scoped_release release;
                     splitter.split(all, out);
                 }
                 return validation;
             })
        .def_property_readonly("games", &GameSplitter::games)
        .def_property_readonly("validation_games", &GameSplitter::validation_games);

    py::class_<Interleaver>(m, "Interleaver")
        .def(py::init<std::vector<std::string>, std::string, std::uint64_t>(), py::arg("inputs"), py::arg("output"),
             py::arg("seed"))
        .def("step", &Interleaver::step, py::call_guard<py::gil_scoped_release>())
        .def("finish", &Interleaver::finish, py::call_guard<py::gil_scoped_release>())
        .def_property_readonly("size", &Interleaver::size)
        .def_property_readonly("chunks", &Interleaver::chunks);

    py::class_<DuplicateEstimator>(m, "DuplicateEstimator")
        .def(py::init<>())
        .def("add", &add_records<DuplicateEstimator>)
        .def_property_readonly("exact", &DuplicateEstimator::exact)
        .def_property_readonly("distinct", &DuplicateEstimator::distinct)
        .def_property_readonly("duplicate_share", &DuplicateEstimator::duplicate_share);
}
