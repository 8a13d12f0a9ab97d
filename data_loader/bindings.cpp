// nnue_trainer._data: the torch-free face of the data library for Python. Arrays in and out are NumPy's; whatever takes
// time releases the GIL. FormatError becomes nnue_trainer.errors.UserError.
#include "bindings.h"

#include <pybind11/stl.h>

#include <thread>

#include "chess/fen.h"
#include "chess/game.h"
#include "chess/position.h"
#include "chess/record.h"
#include "features/registry.h"
#include "filters/filters.h"
#include "formats/binpack.h"
#include "formats/statistics.h"
#include "formats/validation.h"
#include "pipeline/kernels.h"
#include "pipeline/parallel.h"
#include "pipeline/pipeline.h"

namespace {

Entry unpack_or_throw(const Record& record, std::size_t index) {
    Entry entry;
    if (const char* error = unpack(record, entry)) {
        throw FormatError("record " + std::to_string(index) + ": " + error);
    }
    return entry;
}

Array<std::uint8_t> records_from_fens(const std::vector<std::string>& fens) {
    auto records = make_records(fens.size());
    auto* out = reinterpret_cast<Record*>(records.mutable_data());
    for (std::size_t i = 0; i < fens.size(); ++i) {
        try {
            Entry entry;
            entry.position = parse_fen(fens[i]);
            out[i] = pack(entry);
        } catch (const FormatError& error) {
            throw FormatError("FEN '" + fens[i] + "': " + error.what());
        }
    }
    return records;
}

std::vector<std::string> fens_from_records(const Array<std::uint8_t>& records) {
    const Record* in = records_of(records, "fens_from_records");
    std::vector<std::string> fens;
    for (py::ssize_t i = 0; i < records.shape(0); ++i) {
        fens.push_back(format_fen(unpack_or_throw(in[i], static_cast<std::size_t>(i)).position));
    }
    return fens;
}

// A writable pointer to a caller's array of exactly this many elements.
template <class T>
T* output(const py::array& array, std::size_t size, const char* name) {
    if (!py::isinstance<py::array_t<T>>(array) || !(array.flags() & py::array::c_style) || !array.writeable() ||
        static_cast<std::size_t>(array.size()) != size) {
        throw FormatError(std::string("array '") + name + "' must be a writable contiguous " +
                          py::str(py::dtype::of<T>()).cast<std::string>() + " array of " + std::to_string(size) +
                          " elements");
    }
    return static_cast<T*>(const_cast<void*>(array.data()));
}

BatchRows output_rows(const py::dict& arrays, std::size_t n, const FeatureSetInfo& set) {
    const std::size_t indices = n * static_cast<std::size_t>(set.max_active);
    return {output<std::int32_t>(arrays["white"], indices, "white"),
            output<std::int32_t>(arrays["black"], indices, "black"),
            output<std::int16_t>(arrays["counts"], n, "counts"),
            output<std::int16_t>(arrays["score"], n, "score"),
            output<std::int8_t>(arrays["result"], n, "result"),
            output<std::uint8_t>(arrays["black_to_move"], n, "black_to_move"),
            output<std::uint8_t>(arrays["piece_count"], n, "piece_count")};
}

void expand_into(const Array<std::uint8_t>& records, const std::string& set_name, const py::dict& arrays, int threads) {
    const FeatureSetInfo& set = feature_set(set_name);
    const Record* in = records_of(records, "expand");
    const auto n = static_cast<std::size_t>(records.shape(0));
    const BatchRows rows = output_rows(arrays, n, set);
    py::gil_scoped_release release;
    parallel_for(n, threads, [&](std::size_t begin, std::size_t end) {
        for (std::size_t i = begin; i < end; ++i) unpack_or_throw(in[i], i);
        kernels().expand(in + begin, nullptr, end - begin, set.id, rows.from(begin, set.max_active));
    });
}

FilterOptions filter_options(const py::dict& d) {
    FilterOptions o;
    o.no_score = d["no_score"].cast<bool>();
    o.max_score = d["max_score"].cast<int>();
    o.placeholder_zero = d["placeholder_zero"].cast<bool>();
    o.min_ply = d["min_ply"].cast<int>();
    o.random_skip = d["random_skip"].cast<double>();
    o.quiet = d["quiet"].cast<bool>();
    o.wdl = d["wdl"].cast<bool>();
    o.min_material = d["min_material"].cast<int>();
    o.soft_ply = d["soft_ply"].cast<int>();
    o.piece_counts = d["piece_counts"].cast<bool>();
    return o;
}

py::dict to_dict(const FilterCounts& counts) {
    py::dict d;
    d["read"] = counts.read;
    d["kept"] = counts.kept;
    py::dict dropped;
    for (int i = 0; i < kNumFilters; ++i) {
        if (counts.dropped[static_cast<std::size_t>(i)])
            dropped[kFilterNames[i]] = counts.dropped[static_cast<std::size_t>(i)];
    }
    d["dropped"] = dropped;
    return d;
}

// Keeps the records where mask [n] is true, in place; returns how many.
std::size_t keep(std::span<Record> records, const py::object& mask_object) {
    const auto mask = py::array_t<bool, py::array::c_style>::ensure(mask_object);
    if (!mask || mask.ndim() != 1 || static_cast<std::size_t>(mask.shape(0)) != records.size()) {
        throw FormatError("user filter: expected a bool array of " + std::to_string(records.size()) + " elements");
    }
    std::size_t kept = 0;
    for (std::size_t i = 0; i < records.size(); ++i) {
        if (mask.data()[i]) records[kept++] = records[i];
    }
    return kept;
}

using PlaceTuple = std::tuple<std::uint64_t, std::uint64_t, std::uint64_t, std::uint64_t>;

// The pipeline with the Python arrays that its slots point into.
class PipelineHandle {
  public:
    PipelineHandle(const py::dict& options, const py::list& arrays, const std::vector<PlaceTuple>& start)
        : arrays_(arrays) {
        PipelineOptions o;
        for (const auto& [path, fd] : options["files"].cast<std::vector<std::pair<std::string, int>>>()) {
            o.files.emplace_back(path, fd);
        }
        o.batch_size = options["batch_size"].cast<std::size_t>();
        o.seed = options["seed"].cast<std::uint64_t>();
        o.shuffle = options["shuffle"].cast<bool>();
        o.window = options["window"].cast<std::size_t>();
        o.drop_last = options["drop_last"].cast<bool>();
        o.threads = options["threads"].cast<int>();
        o.rank = options["rank"].cast<std::size_t>();
        o.world_size = options["world_size"].cast<std::size_t>();
        o.shards = options["shards"].cast<std::size_t>();
        o.weights = options["weights"].cast<std::vector<double>>();
        o.skip_bad_chunks = options["skip_bad_chunks"].cast<bool>();
        if (!options["filters"].is_none()) o.filters = filter_options(options["filters"].cast<py::dict>());
        if (const py::object filter = options["user_filter"]; !filter.is_none()) {
            // Held by this object, so that workers never touch the reference count without the interpreter's lock.
            user_filter_ = filter;
            o.user_filter = [this](std::span<Record> records) {
                const py::gil_scoped_acquire acquire;
                const Array<std::uint8_t> view({records.size(), sizeof(Record)},
                                               reinterpret_cast<const std::uint8_t*>(records.data()));
                try {
                    return keep(records, user_filter_(view));
                } catch (const py::error_already_set& error) {
                    throw FormatError("user filter: " + std::string(error.what()));
                }
            };
        }
        if (!options["features"].is_none()) o.features = feature_set(options["features"].cast<std::string>()).id;
        const std::size_t n = o.batch_size / std::max<std::size_t>(o.world_size, 1);
        std::vector<Slot> slots;
        for (const py::handle item : arrays) {
            Slot slot;
            if (o.features) {
                slot.rows = output_rows(item.cast<py::dict>(), n, feature_set(*o.features));
            } else {
                slot.records = reinterpret_cast<Record*>(
                    output<std::uint8_t>(item.cast<py::array>(), n * sizeof(Record), "records"));
            }
            slots.push_back(slot);
        }
        std::vector<StreamPosition> places;
        for (const auto& [epoch, chunk, skip, batch] : start) places.push_back({epoch, chunk, skip, batch});
        py::gil_scoped_release release;
        pipeline_ = std::make_unique<Pipeline>(std::move(o), std::move(slots), places);
    }

    ~PipelineHandle() { close(); }

    // (slot, size, places behind it); slot −1 marks the end of an epoch.
    py::tuple next() {
        if (!pipeline_) throw FormatError("the loader is closed");
        std::optional<Output> output;
        while (true) {
            {
                py::gil_scoped_release release;
                output = pipeline_->next(std::chrono::milliseconds(100));
            }
            if (output) break;
            if (PyErr_CheckSignals() != 0) throw py::error_already_set();
        }
        std::vector<PlaceTuple> places;
        for (const StreamPosition& p : output->after) places.emplace_back(p.epoch, p.chunk, p.skip, p.batch);
        const int slot = output->end_of_epoch ? -1 : static_cast<int>(output->slot);
        return py::make_tuple(slot, output->size, places);
    }

    void release(std::size_t slot) {
        if (pipeline_) pipeline_->release(slot);
    }

    void close() {
        py::gil_scoped_release release;
        pipeline_.reset();
    }

    py::dict filter_counts() const { return to_dict(pipeline_ ? pipeline_->filter_counts() : FilterCounts{}); }

    py::tuple bad_chunks() const {
        const BadChunks bad = pipeline_ ? pipeline_->bad_chunks() : BadChunks{};
        return py::make_tuple(bad.count, bad.first);
    }

    std::size_t num_chunks() const { return pipeline_ ? pipeline_->num_chunks() : 0; }

  private:
    py::list arrays_;
    py::object user_filter_;
    std::unique_ptr<Pipeline> pipeline_;
};

py::dict statistics_dict(const Statistics& s) {
    py::dict d;
    const auto ints = [](const auto& values) {
        return py::cast(std::vector<std::uint64_t>(values.begin(), values.end()));
    };
#define NNUE_FIELD(name) d[#name] = s.name
    NNUE_FIELD(positions);
    NNUE_FIELD(castlings);
    NNUE_FIELD(en_passants);
    NNUE_FIELD(promotions);
    NNUE_FIELD(null_moves);
    NNUE_FIELD(captures);
    NNUE_FIELD(in_check);
    NNUE_FIELD(quiet);
    NNUE_FIELD(score_none);
    NNUE_FIELD(score_zero);
    NNUE_FIELD(wins);
    NNUE_FIELD(draws);
    NNUE_FIELD(losses);
    NNUE_FIELD(black_to_move);
    NNUE_FIELD(ep_squares);
    NNUE_FIELD(sum_score);
    NNUE_FIELD(sum_result);
    NNUE_FIELD(sum_ply);
    NNUE_FIELD(sum_pieces);
    NNUE_FIELD(sum_rule50);
    NNUE_FIELD(sum_move);
    NNUE_FIELD(min_score);
    NNUE_FIELD(max_score);
    NNUE_FIELD(max_ply);
    NNUE_FIELD(max_rule50);
#undef NNUE_FIELD
    d["castling_rights"] = ints(s.castling_rights);
    d["score_histogram"] = ints(s.score_histogram);
    d["ply_histogram"] = ints(s.ply_histogram);
    d["piece_histogram"] = ints(s.piece_histogram);
    d["white_king_squares"] = ints(s.king_squares[kWhite]);
    d["black_king_squares"] = ints(s.king_squares[kBlack]);
    return d;
}

Array<std::uint8_t> copy_records(std::span<const Record> records) {
    auto array = make_records(records.size());
    std::memcpy(array.mutable_data(), records.data(), records.size_bytes());
    return array;
}

// Board after the record's move and what `nnue data` prints: FEN, UCI move, score, ply, result.
py::list describe(const Array<std::uint8_t>& records) {
    py::list list;
    const Record* in = records_of(records, "describe");
    for (py::ssize_t i = 0; i < records.shape(0); ++i) {
        const Entry e = unpack_or_throw(in[i], static_cast<std::size_t>(i));
        list.append(py::make_tuple(format_fen(e.position), format_uci(e.move), e.score, e.position.ply, e.result));
    }
    return list;
}

}  // namespace

PYBIND11_MODULE(_data, m) {
    py::register_exception_translator([](std::exception_ptr error) {
        try {
            if (error) std::rethrow_exception(error);
        } catch (const FormatError& e) {
            // A message may quote bytes of a file that are no UTF-8.
            const auto text = py::reinterpret_steal<py::object>(
                PyUnicode_DecodeUTF8(e.what(), static_cast<Py_ssize_t>(std::strlen(e.what())), "backslashreplace"));
            PyErr_SetObject(py::module_::import("nnue_trainer.errors").attr("UserError").ptr(), text.ptr());
        }
    });

    m.def("isa", [] { return kernels().isa; });
    m.def("feature_sets", [] {
        py::list list;
        for (const FeatureSetInfo& s : feature_sets()) {
            list.append(py::make_tuple(s.name, s.num_features, s.max_active, s.num_virtual));
        }
        return list;
    });
    m.def("records_from_fens", &records_from_fens);
    m.def("fens_from_records", &fens_from_records);
    m.def("expand_into", &expand_into, py::arg("records"), py::arg("feature_set"), py::arg("arrays"),
          py::arg("threads"));
    m.def("describe", &describe);
    m.def("filter_records", [](const Array<std::uint8_t>& records, const py::dict& options, std::uint64_t seed) {
        const FilterOptions o = filter_options(options);
        const Record* in = records_of(records, "filter");
        const auto n = static_cast<std::size_t>(records.shape(0));
        std::vector<Record> copy(in, in + n);
        FilterCounts counts;
        {
            py::gil_scoped_release release;
            for (std::size_t i = 0; i < n; ++i) unpack_or_throw(copy[i], i);
            std::vector<std::uint8_t> flags(o.needs_flags() ? n : 0);
            if (o.needs_flags()) compute_flags(copy, flags.data());
            copy.resize(filter_records(o, seed, copy, flags.data(), counts));
        }
        return py::make_tuple(copy_records(copy), to_dict(counts));
    });
    m.def("wdl_model", [](int score, int ply) {
        const auto [loss, draw, win] = wdl_model(score, ply);
        return py::make_tuple(loss, draw, win);
    });

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

    py::class_<BinpackWriter>(m, "BinpackWriter")
        .def(py::init<std::string>())
        .def_readwrite("join_chains", &BinpackWriter::join_chains)
        .def_property_readonly("positions", &BinpackWriter::positions)
        .def_property_readonly("chains", &BinpackWriter::chains)
        .def("write",
             [](BinpackWriter& writer, const Array<std::uint8_t>& records) {
                 const Record* in = records_of(records, "write");
                 const auto n = static_cast<std::size_t>(records.shape(0));
                 py::gil_scoped_release release;
                 for (std::size_t i = 0; i < n; ++i) writer.add(in[i]);
             })
        .def("finish", &BinpackWriter::finish, py::call_guard<py::gil_scoped_release>());

    py::class_<PipelineHandle>(m, "Pipeline")
        .def(py::init<const py::dict&, const py::list&, const std::vector<PlaceTuple>&>(), py::arg("options"),
             py::arg("arrays"), py::arg("start"))
        .def("next", &PipelineHandle::next)
        .def("release", &PipelineHandle::release)
        .def("close", &PipelineHandle::close)
        .def("filter_counts", &PipelineHandle::filter_counts)
        .def("bad_chunks", &PipelineHandle::bad_chunks)
        .def_property_readonly("num_chunks", &PipelineHandle::num_chunks);

    py::class_<Statistics>(m, "Statistics")
        .def(py::init<>())
        .def("add",
             [](Statistics& statistics, const Array<std::uint8_t>& records) {
                 const Record* in = records_of(records, "statistics");
                 const auto n = static_cast<std::size_t>(records.shape(0));
                 py::gil_scoped_release release;
                 statistics.add({in, n});
             })
        .def("to_dict", &statistics_dict);

    py::class_<Validator>(m, "Validator")
        .def(py::init<>())
        .def("add",
             [](Validator& validator, const Array<std::uint8_t>& records) {
                 const Record* in = records_of(records, "validate");
                 const auto n = static_cast<std::size_t>(records.shape(0));
                 py::gil_scoped_release release;
                 validator.add({in, n});
             })
        .def_property_readonly("positions", &Validator::positions)
        .def_property_readonly("result_changes",
                               [](const Validator& validator) {
                                   const Problem& p = validator.result_changes();
                                   return py::make_tuple(p.name, p.count, p.first);
                               })
        .def_property_readonly("problems", [](const Validator& validator) {
            py::list list;
            for (const Problem& p : validator.problems()) list.append(py::make_tuple(p.name, p.count, p.first));
            return list;
        });

    py::class_<Game>(m, "Game")
        .def(py::init<std::string_view>())
        .def_property_readonly("fen", [](const Game& game) { return format_fen(game.position()); })
        .def_property_readonly("white_to_move", [](const Game& game) { return game.position().side_to_move == kWhite; })
        .def_property_readonly("ply", [](const Game& game) { return game.position().ply; })
        .def("legal_moves",
             [](const Game& game) {
                 std::vector<std::string> moves;
                 for (const Move move : legal_moves(game.position())) moves.push_back(format_uci(move));
                 return moves;
             })
        .def("play", &Game::play)
        .def("record", &Game::record)
        .def("outcome", &Game::outcome)
        .def("records", [](const Game& game, int result) { return copy_records(game.records(result)); });

    bind_tools(m);
}
