// The part of nnue_trainer._data for files of records: readers and writers of every format, changes of records in
// place.
#include <pybind11/stl.h>

#include <map>
#include <optional>

#include "bindings/bindings.h"
#include "bindings/blocks.h"
#include "chess/position.h"
#include "chess/record.h"
#include "formats/binpack.h"
#include "formats/reader.h"
#include "formats/writer.h"

namespace {

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

// The properties of each format.
void bind_format_lists(py::module_& m) {
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
    // The formats whose scores are evaluations in pawns or centipawns.
    m.def("formats_in_pawns", [] {
        py::list names;
        for (const DataFormat* format : formats()) {
            if (format->scores_in_pawns) names.append(format->name);
        }
        return names;
    });
    // The format of a file that begins with these bytes, all of it if `whole`; None: in none, or in several.
    m.def(
        "format_of",
        [](const py::bytes& head, bool whole) -> std::optional<std::string> {
            const auto bytes = static_cast<std::string_view>(head);
            try {
                return detect_format({{reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size()}, whole}, "")
                    .name;
            } catch (const FormatError&) {
                return std::nullopt;
            }
        },
        py::arg("head"), py::arg("whole"));
    // The formats that hold only the castling rights of standard chess.
    m.def("only_standard_castling", [] {
        py::list names;
        for (const DataFormat* format : formats()) {
            if (format->only_standard_castling) names.append(format->name);
        }
        return names;
    });
}

// Access to the chunks and chains of binpack files.
void bind_binpack(py::module_& m) {
    py::class_<BinpackFile>(m, "BinpackFile")
        .def(py::init<std::string>(), py::call_guard<py::gil_scoped_release>())
        .def_property_readonly("size", &BinpackFile::size)
        .def_property_readonly("chunks",
                               [](const BinpackFile& file) {
                                   py::list list;
                                   for (const auto& [offset, size] : file.chunks())
                                       list.append(py::make_tuple(offset, size));
                                   return list;
                               })
        .def("decode", [](const BinpackFile& file, std::size_t chunk) {
            std::vector<std::uint8_t> payload;
            RecordBuffer records;
            ChainCounts counts;
            {
                py::gil_scoped_release release;
                file.decode(chunk, payload, records, &counts);
            }
            return py::make_tuple(copy_records(records.records()), counts.chains, counts.single);
        });

    py::class_<Exclusive<BinpackWriter>>(m, "BinpackWriter")
        .def(py::init<std::string, int>(), py::arg("path"), py::arg("fd"))
        .def_property(
            "join_chains", [](Exclusive<BinpackWriter>& writer) { return writer.use()->join_chains; },
            [](Exclusive<BinpackWriter>& writer, bool join) { writer.use()->join_chains = join; })
        .def_property_readonly("positions", [](Exclusive<BinpackWriter>& writer) { return writer.use()->positions(); })
        .def_property_readonly("chains", [](Exclusive<BinpackWriter>& writer) { return writer.use()->chains(); })
        .def("write",
             [](Exclusive<BinpackWriter>& exclusive, const Array<std::uint8_t>& records) {
                 const std::span<const Record> all = record_span(records, "write");
                 const auto writer = exclusive.use();
                 py::gil_scoped_release release;
                 for (const Record& record : all) writer->add(record);
             })
        .def("finish", [](Exclusive<BinpackWriter>& exclusive) {
            const auto writer = exclusive.use();
            py::gil_scoped_release release;
            writer->finish();
        });
}

}  // namespace

void bind_formats(py::module_& m) {
    bind_format_lists(m);
    bind_binpack(m);

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
}
