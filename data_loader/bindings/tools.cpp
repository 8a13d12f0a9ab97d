// The part of nnue_trainer._data for the data tools: readers and writers of every format, shuffling, splitting,
// interleaving, duplicates, validation.
#include <pybind11/stl.h>

#include <map>
#include <optional>

#include "bindings/bindings.h"
#include "chess/position.h"
#include "chess/record.h"
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
        if (n > out.size()) throw FormatError("readinto() returned more bytes than its buffer holds");
        return n;
    }

  private:
    py::object readinto_;
};

// The next block of a reader, as a new array of at most `capacity` records, and their bytes in the file as uint8
// [n, original_size]; None where that is 0. `read` fills both.
template <class Read>
py::tuple read_block(std::size_t capacity, std::size_t original_size, Read&& read) {
    constexpr std::size_t kMost = std::size_t{1} << 32;
    if (capacity > kMost)
        throw FormatError("a block of " + std::to_string(capacity) + " records, expected at most 2^32");
    auto block = make_records(capacity);
    auto* out = reinterpret_cast<Record*>(block.mutable_data());
    py::object originals = py::none();
    std::uint8_t* bytes = nullptr;
    if (original_size) {
        Array<std::uint8_t> array({capacity, original_size});
        bytes = array.mutable_data();
        originals = std::move(array);
    }
    std::size_t n = 0;
    {
        py::gil_scoped_release release;
        n = read(std::span(out, capacity), bytes);
    }
    if (n == capacity) return py::make_tuple(block, originals);
    const py::slice head(0, static_cast<py::ssize_t>(n), 1);
    return py::make_tuple(block[head], original_size ? py::object(originals[head]) : originals);
}

// The original bytes of n records, None for none.
const std::uint8_t* originals_of(const std::optional<Array<std::uint8_t>>& array, std::size_t n, std::size_t size) {
    if (!array) return nullptr;
    if (array->ndim() != 2 || static_cast<std::size_t>(array->shape(0)) != n ||
        static_cast<std::size_t>(array->shape(1)) != size) {
        throw FormatError("original bytes have shape " + py::str(array->attr("shape")).cast<std::string>() +
                          ", expected [" + std::to_string(n) + ", " + std::to_string(size) + "]");
    }
    return array->data();
}

// Copies what is read of a source to an open file.
class CopyingSource final : public ByteSource {
  public:
    CopyingSource(std::unique_ptr<ByteSource> source, const std::string& path, int fd)
        : source_(std::move(source)), out_(path, fd) {}

    std::size_t read(std::span<std::uint8_t> out) override {
        const std::size_t n = source_->read(out);
        out_.write(out.first(n));
        return n;
    }

  private:
    std::unique_ptr<ByteSource> source_;
    OutputFile out_;
};

// Ends with an error once `cancelled` is set: a file may go on for hours without a position in it.
class CancellableSource final : public ByteSource {
  public:
    CancellableSource(std::unique_ptr<ByteSource> source, const std::atomic<bool>& cancelled)
        : source_(std::move(source)), cancelled_(cancelled) {}

    std::size_t read(std::span<std::uint8_t> out) override {
        if (cancelled_) throw FormatError("reading was cancelled");
        return source_->read(out);
    }

  private:
    std::unique_ptr<ByteSource> source_;
    const std::atomic<bool>& cancelled_;
};

// A reader that one thread reads from while another reads its progress.
class ReaderHandle {
  public:
    // `copy_to`, unless it is negative: an open file that gets all bytes that are read.
    ReaderHandle(const std::string& path, const py::object& readinto, const std::string& format, bool skip_bad,
                 int copy_to, const std::map<std::string, std::string>& settings)
        : reader_([&] {
              // Needs the interpreter's lock: if this throws, the Python object is freed here.
              std::unique_ptr<ByteSource> source;
              if (readinto.is_none()) {
                  source = open_file_source(path);
              } else {
                  source = std::make_unique<PythonSource>(readinto);
              }
              if (copy_to >= 0) source = std::make_unique<CopyingSource>(std::move(source), path, copy_to);
              ByteStream stream(path, std::make_unique<CancellableSource>(std::move(source), cancelled_));
              ReadOptions options(skip_bad ? OnBad::kSkip : OnBad::kError);
              options.settings = settings;
              return format.empty() ? open_reader(std::move(stream), options)
                                    : find_format(format).open_reader(std::move(stream), options);
          }()),
          format_(reader_.use()->get()->format()) {}

    py::object read(std::size_t capacity) { return read_originals(capacity, 0)[0]; }

    py::tuple read_originals(std::size_t capacity) { return read_originals(capacity, format_.original_size); }

    py::tuple read_originals(std::size_t capacity, std::size_t original_size) {
        const auto reader = reader_.use();
        // As it is after this block, or what is wrong with it; with the interpreter's lock.
        struct Look {
            ReaderHandle& handle;
            const PositionReader& reader;
            ~Look() {
                handle.offset_ = reader.offset();
                handle.chunks_ = reader.chunks();
                handle.chains_ = reader.chains();
                handle.skipped_ = reader.skipped();
                handle.first_skipped_ = reader.first_skipped();
                handle.notes_ = reader.notes();
            }
        } const look{*this, **reader};
        return read_block(capacity, original_size, [&](std::span<Record> out, std::uint8_t* originals) {
            return originals ? (*reader)->read_originals(out, originals) : (*reader)->read(out);
        });
    }

    void cancel() { cancelled_ = true; }
    const char* format() const { return format_.name; }
    std::uint64_t offset() const { return offset_; }
    std::uint64_t chunks() const { return chunks_; }
    ChainCounts chains() const { return chains_; }
    std::uint64_t skipped() const { return skipped_; }
    const std::string& first_skipped() const { return first_skipped_; }
    const std::vector<std::string>& notes() const { return notes_; }

  private:
    std::atomic<bool> cancelled_ = false;
    Exclusive<std::unique_ptr<PositionReader>> reader_;
    const DataFormat& format_;
    std::uint64_t offset_ = 0, chunks_ = 0, skipped_ = 0;
    ChainCounts chains_;
    std::string first_skipped_;
    std::vector<std::string> notes_;
};

py::dict losses_dict(const Losses& losses) {
    py::dict d;
    for (const LossRow& row : loss_rows()) d[row.name] = losses.*row.count;
    return d;
}

}  // namespace

void bind_tools(py::module_& m) {
    // (name, suffix, one line of documentation) of each format that is written, and of each that is only read.
    const auto rows = [](bool written) {
        py::list list;
        for (const DataFormat* format : formats()) {
            if ((format->open_writer != nullptr) == written) {
                list.append(py::make_tuple(format->name, format->suffix, format->about));
            }
        }
        return list;
    };
    m.def("formats", [rows] { return rows(true); });
    m.def("read_only_formats", [rows] { return rows(false); });
    // {format: (bytes of a position in a file that its record does not hold all of, first and end of those that are
    // free)}; only formats that have such bytes.
    m.def("original_bytes", [] {
        py::dict sizes;
        for (const DataFormat* format : formats()) {
            if (!format->original_size) continue;
            sizes[format->name] = py::make_tuple(format->original_size, format->spare_begin, format->spare_end);
        }
        return sizes;
    });
    // {name: what happened to N positions} of what formats may have no room for.
    m.def("losses", [] {
        py::dict words;
        for (const LossRow& row : loss_rows()) words[row.name] = row.words;
        return words;
    });

    py::class_<ReaderHandle>(m, "PositionReader")
        .def(py::init<const std::string&, const py::object&, const std::string&, bool, int,
                      const std::map<std::string, std::string>&>(),
             py::arg("path"), py::arg("readinto"), py::arg("format"), py::arg("skip_bad"), py::arg("copy_to") = -1,
             py::arg("settings") = std::map<std::string, std::string>())
        .def("read", &ReaderHandle::read)
        .def("read_originals", py::overload_cast<std::size_t>(&ReaderHandle::read_originals))
        .def("cancel", &ReaderHandle::cancel)
        .def_property_readonly("format", &ReaderHandle::format)
        .def_property_readonly("offset", &ReaderHandle::offset)
        .def_property_readonly("chunks", &ReaderHandle::chunks)
        .def_property_readonly("chains", [](const ReaderHandle& r) { return r.chains().chains; })
        .def_property_readonly("single_chains", [](const ReaderHandle& r) { return r.chains().single; })
        .def_property_readonly("skipped", &ReaderHandle::skipped)
        .def_property_readonly("first_skipped", [](const ReaderHandle& r) { return text_of(r.first_skipped()); })
        .def_property_readonly("notes", &ReaderHandle::notes);

    using Writer = Exclusive<std::unique_ptr<PositionWriter>>;
    py::class_<Writer>(m, "PositionWriter")
        .def(py::init(
                 [](const std::string& path, int fd, const std::string& format, bool join_chains, bool shredder_fens) {
                     return std::make_unique<Writer>(open_writer(format, path, fd, {join_chains, shredder_fens}));
                 }),
             py::arg("path"), py::arg("fd"), py::arg("format"), py::arg("join_chains"),
             py::arg("shredder_fens") = false)
        .def(
            "write",
            [](Writer& exclusive, const Array<std::uint8_t>& records,
               const std::optional<Array<std::uint8_t>>& originals) {
                const std::span<const Record> all = record_span(records, "write");
                const auto writer = exclusive.use();
                const std::size_t size = (*writer)->format().original_size;
                const std::uint8_t* bytes = originals_of(originals, all.size(), size);
                py::gil_scoped_release release;
                if (bytes) {
                    (*writer)->write_originals(all, bytes);
                } else {
                    (*writer)->write(all);
                }
            },
            py::arg("records"), py::arg("originals") = py::none())
        .def("finish",
             [](Writer& exclusive) {
                 const auto writer = exclusive.use();
                 py::gil_scoped_release release;
                 (*writer)->finish();
             })
        .def_property_readonly("positions", [](Writer& w) { return (*w.use())->positions(); })
        .def_property_readonly("losses", [](Writer& w) { return losses_dict((*w.use())->losses()); });

    // What a format in Python has read, held to what compiled readers accept, in place: sound records move to the
    // front, and en-passant squares that the en-passant rule does not keep are dropped. Returns (how many are sound,
    // number of the first that is not, what is wrong with it).
    m.def(
        "import_records",
        [](Array<std::uint8_t>& array) {
            const std::span<const Record> all = record_span(array, "import_records");
            if (!array.writeable()) throw FormatError("import_records: the records are read-only");
            const std::span<Record> records{const_cast<Record*>(all.data()), all.size()};
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
        },
        py::arg("records").noconvert());

    // Which formats hold the castling rights of standard chess alone.
    m.def("only_standard_castling", [] {
        py::list names;
        for (const DataFormat* format : formats()) {
            if (format->only_standard_castling) names.append(format->name);
        }
        return names;
    });
    // Takes the castling rights of Chess960 out of records, in place. Returns (bool [n]: which had some, in how many
    // the move went with them).
    m.def(
        "drop_chess960",
        [](Array<std::uint8_t>& array) {
            const std::span<const Record> all = record_span(array, "drop_chess960");
            if (!array.writeable()) throw FormatError("drop_chess960: the records are read-only");
            const std::span<Record> records{const_cast<Record*>(all.data()), all.size()};
            py::array_t<bool> found(static_cast<py::ssize_t>(all.size()));
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
        },
        py::arg("records").noconvert());

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
    m.def(
        "turn_view",
        [](Array<std::uint8_t>& records, bool results, bool white, bool black) {
            const std::span<const Record> all = record_span(records, "turn_view");
            if (!records.writeable()) throw FormatError("turn_view: the records are read-only");
            py::gil_scoped_release release;
            return turn_view({const_cast<Record*>(all.data()), all.size()},
                             results ? Viewed::kResults : Viewed::kScores, white, black);
        },
        py::arg("records").noconvert(), py::arg("results"), py::arg("white"), py::arg("black"));

    struct ShuffleHandle {
        Exclusive<ExternalShuffle> shuffle;
        std::size_t original_size;
        ShuffleHandle(std::uint64_t seed, std::size_t memory, const std::string& folder, std::size_t size)
            : shuffle(seed, memory, folder, size), original_size(size) {}
        auto use() { return shuffle.use(); }
    };
    using Shuffle = ShuffleHandle;
    py::class_<Shuffle>(m, "ExternalShuffle")
        .def(py::init([](std::uint64_t seed, std::size_t memory, const std::string& folder, std::size_t original_size) {
                 auto shuffle = std::make_unique<Shuffle>(seed, memory, folder, original_size);
                 shuffle->use()->poll = [] {
                     py::gil_scoped_acquire acquire;
                     if (PyErr_CheckSignals() != 0) throw py::error_already_set();
                 };
                 return shuffle;
             }),
             py::arg("seed"), py::arg("memory"), py::arg("folder"), py::arg("original_size") = 0)
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
        .def(py::init<std::uint64_t, double>(), py::arg("seed"), py::arg("validation_share"))
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

    using Duplicates = Exclusive<DuplicateEstimator>;
    py::class_<Duplicates>(m, "DuplicateEstimator")
        .def(py::init<>())
        .def("add", &add_records<DuplicateEstimator>)
        .def_property_readonly("exact", [](Duplicates& d) { return d.use()->exact(); })
        .def_property_readonly("distinct", [](Duplicates& d) { return d.use()->distinct(); })
        .def_property_readonly("duplicate_share", [](Duplicates& d) { return d.use()->duplicate_share(); });
}
