// The part of nnue_trainer._data that reorders files of records: shuffling, splitting, interleaving.
#include "formats/shuffle.h"

#include <pybind11/stl.h>

#include <optional>

#include "bindings/bindings.h"
#include "bindings/blocks.h"
#include "formats/interleave.h"
#include "formats/split.h"

namespace {

struct Shuffle {
    Exclusive<ExternalShuffle> shuffle;
    std::size_t original_size;
    Shuffle(std::uint64_t seed, std::size_t memory, const std::string& folder, std::size_t size, bool by_game,
            std::uint64_t part, std::uint64_t parts)
        : shuffle(seed, memory, folder, size, by_game, part, parts), original_size(size) {}
    auto use() { return shuffle.use(); }
};

}  // namespace

void bind_shuffle(py::module_& m) {
    py::class_<Shuffle>(m, "ExternalShuffle")
        .def(py::init([](std::uint64_t seed, std::size_t memory, const std::string& folder, std::size_t original_size,
                         bool by_game, std::uint64_t part, std::uint64_t parts) {
                 auto shuffle = std::make_unique<Shuffle>(seed, memory, folder, original_size, by_game, part, parts);
                 shuffle->use()->poll = check_signals;
                 return shuffle;
             }),
             py::arg("seed"), py::arg("memory"), py::arg("folder"), py::arg("original_size") = 0,
             py::arg("by_game") = false, py::arg("part") = 0, py::arg("parts") = 1)
        .def("start_stream", [](Shuffle& shuffle) { shuffle.use()->start_stream(); })
        .def(
            "add",
            [](Shuffle& handle, const Array<std::uint8_t>& records,
               const std::optional<Array<std::uint8_t>>& originals) {
                const std::span<const Record> all = record_span(records, "add");
                const std::uint8_t* bytes = originals_of(originals, all.size(), handle.original_size);
                const auto shuffle = handle.use();
                py::gil_scoped_release release;
                shuffle->add(all, bytes);
            },
            py::arg("records"), py::arg("originals") = py::none())
        .def("read",
             [](Shuffle& handle, std::size_t capacity) {
                 const auto shuffle = handle.use();
                 return py::object(read_block(
                     capacity, 0, [&](std::span<Record> out, std::uint8_t*) { return shuffle->read(out); })[0]);
             })
        .def("read_originals",
             [](Shuffle& handle, std::size_t capacity) {
                 const auto shuffle = handle.use();
                 return read_block(capacity, handle.original_size, [&](std::span<Record> out, std::uint8_t* bytes) {
                     return shuffle->read(out, bytes);
                 });
             })
        .def_property_readonly("positions", [](Shuffle& shuffle) { return shuffle.use()->positions(); })
        .def_property_readonly("spilled_bytes", [](Shuffle& shuffle) { return shuffle.use()->spilled_bytes(); });

    using Splitter = Exclusive<GameSplitter>;
    py::class_<Splitter>(m, "GameSplitter")
        .def(py::init<std::uint64_t, double, std::uint64_t>(), py::arg("seed"), py::arg("validation_share"),
             py::arg("block") = 0)
        .def_property_readonly_static("short_game", [](const py::object&) { return GameSplitter::kShort; })
        .def_property_readonly("alone", [](Splitter& splitter) { return splitter.use()->alone(); })
        .def_property_readonly("in_short_games", [](Splitter& splitter) { return splitter.use()->in_short_games(); })
        .def("start_stream", [](Splitter& splitter) { splitter.use()->start_stream(); })
        .def("split",
             [](Splitter& exclusive, const Array<std::uint8_t>& records) {
                 const std::span<const Record> all = record_span(records, "split");
                 Array<std::uint8_t> validation(static_cast<py::ssize_t>(all.size()));
                 const std::span<std::uint8_t> out{validation.mutable_data(), all.size()};
                 const auto splitter = exclusive.use();
                 {
                     py::gil_scoped_release release;
                     splitter->split(all, out);
                 }
                 return validation;
             })
        .def_property_readonly("games", [](Splitter& splitter) { return splitter.use()->games(); })
        .def_property_readonly("validation_games",
                               [](Splitter& splitter) { return splitter.use()->validation_games(); });

    using Mixer = Exclusive<Interleaver>;
    py::class_<Mixer>(m, "Interleaver")
        .def(py::init<std::vector<std::string>, std::string, int, std::uint64_t, std::vector<double>>(),
             py::arg("inputs"), py::arg("output"), py::arg("fd"), py::arg("seed"),
             py::arg("weights") = std::vector<double>())
        .def("step",
             [](Mixer& exclusive) {
                 const auto mixer = exclusive.use();
                 py::gil_scoped_release release;
                 return mixer->step();
             })
        .def_property_readonly("size", [](Mixer& mixer) { return mixer.use()->size(); })
        .def_property_readonly("chunks", [](Mixer& mixer) { return mixer.use()->chunks(); });
}
