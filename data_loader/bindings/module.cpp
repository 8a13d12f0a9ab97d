// nnue_trainer._data: the torch-free face of the data library for Python. Arrays in and out are NumPy's; whatever takes
// time releases the GIL. FormatError becomes nnue_trainer.errors.UserError.
#include <pybind11/stl.h>

#include <thread>

#include "bindings/bindings.h"
#include "chess/fen.h"
#include "chess/game.h"
#include "chess/match_game.h"
#include "chess/position.h"
#include "chess/record.h"
#include "chess/san.h"
#include "chess/texts.h"
#include "features/feature_set.h"
#include "filters/filters.h"
#include "filters/piece_counts.h"
#include "formats/binpack.h"
#include "formats/profile.h"
#include "formats/statistics.h"
#include "formats/validation.h"
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

void expand_into(const Array<std::uint8_t>& records, const std::string& set_name, const py::dict& arrays, int threads) {
    const FeatureSet& set = feature_set(set_name);
    const std::span<const Record> in = record_span(records, "expand");
    const BatchRows rows = output_rows(arrays, in.size(), set);
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

// The blocks as arrays with a row for each, and what is counted over the whole file.
py::dict profile_dict(const Profile& profile) {
    const auto& blocks = profile.blocks();
    const auto n = blocks.size();
    py::dict d;
    const auto column = [&]<class T>(const char* name, T Profile::Block::*member) {
        Array<T> values(static_cast<py::ssize_t>(n));
        for (std::size_t i = 0; i < n; ++i) values.mutable_data()[i] = blocks[i].*member;
        d[name] = values;
    };
    column("positions", &Profile::Block::positions);
    column("scored", &Profile::Block::scored);
    column("proven", &Profile::Block::proven);
    column("sum_score", &Profile::Block::sum_score);
    column("sum_magnitude", &Profile::Block::sum_magnitude);
    column("sum_score_squared", &Profile::Block::sum_score_squared);
    column("sum_ply", &Profile::Block::sum_ply);
    column("sum_ply_squared", &Profile::Block::sum_ply_squared);
    column("sum_pieces", &Profile::Block::sum_pieces);
    column("sum_pieces_squared", &Profile::Block::sum_pieces_squared);
    column("looked_at", &Profile::Block::looked_at);
    column("repeated", &Profile::Block::repeated);
    const auto rows = [&]<class T, std::size_t size>(const char* name, std::array<T, size> Profile::Block::*member) {
        Array<T> values({n, size});
        for (std::size_t i = 0; i < n; ++i) {
            std::copy((blocks[i].*member).begin(), (blocks[i].*member).end(), values.mutable_data() + i * size);
        }
        d[name] = values;
    };
    rows("results", &Profile::Block::results);
    rows("scores", &Profile::Block::scores);
    rows("plies", &Profile::Block::plies);
    rows("pieces", &Profile::Block::pieces);
    Array<std::uint64_t> calibration({std::size_t{Profile::kPhases}, std::size_t{Profile::kScoreBins}, std::size_t{3}});
    std::memcpy(calibration.mutable_data(), profile.calibration().data(), sizeof profile.calibration());
    d["calibration"] = calibration;
    d["block_size"] = profile.block_size();
    d["distinct"] = profile.duplicates().distinct();
    d["duplicate_share"] = profile.duplicates().duplicate_share();
    d["duplicates_exact"] = profile.duplicates().exact();
    return d;
}

Array<std::uint8_t> copy_records(std::span<const Record> records) {
    auto array = make_records(records.size());
    std::memcpy(array.mutable_data(), records.data(), records.size_bytes());
    return array;
}

// What `nnue data` prints of each record: FEN of its position, before the move; UCI move, score, ply, result.
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

}  // namespace

PYBIND11_MODULE(_data, m) {
    // Imported now and kept: a translator that runs Python may have to release the interpreter's lock, and a thread
    // that requests it again while the interpreter ends is ended too, in the middle of this library.
    static PyObject* const user_error =
        py::object(py::module_::import("nnue_trainer.errors").attr("UserError")).release().ptr();
    py::register_exception_translator([](std::exception_ptr error) {
        try {
            if (error) std::rethrow_exception(error);
        } catch (const FormatError& e) {
            PyErr_SetObject(user_error, text_of(e.what()).ptr());
        }
    });

    m.def("isa", [] { return kernels().isa; });
    m.def("basic_feature_sets", &basic_feature_sets);
    // The fields of FeaturePart (nnue_trainer/data/features.py).
    m.def("describe_feature_set", [](const std::string& name) {
        const FeatureSet& set = feature_set(name);
        py::list parts;
        for (const FeaturePart& part : set.parts) {
            py::list states;
            for (const StateCounter& counter : part.tables.counters) {
                if (counter.most > 0) states.append(py::make_tuple(counter.codes[0], counter.most));
            }
            parts.append(py::make_tuple(part.name, part.first_feature, part.num_features, part.max_active,
                                        part.bucket_size, part.num_virtual, part.virtual_span, py::tuple(states)));
        }
        for (const AppendedPart& part : set.appended) {
            parts.append(py::make_tuple(part.name, part.first_feature, part.is.num_features, part.is.max_active,
                                        part.is.bucket_size, part.is.num_virtual, part.is.num_features, py::tuple()));
        }
        return parts;
    });
    m.def("add_python_feature_set", &add_python_feature_set, py::arg("name"), py::arg("sizes"), py::arg("append"));
    m.def("add_compiled_feature_set", &add_compiled_feature_set, py::arg("name"), py::arg("library"));
    m.def("records_from_fens", &records_from_fens, py::arg("fens"),
          "Records uint8 [n, 32] of n FENs, with score, result and ply 0. UserError names the FEN and what is wrong.");
    m.def("fens_from_records", &fens_from_records, py::arg("records"), "The FENs of records uint8 [n, 32].");
    m.def("expand_into", &expand_into, py::arg("records"), py::arg("feature_set"), py::arg("arrays"),
          py::arg("threads"));
    m.def("describe", &describe, py::arg("records"), py::arg("shredder") = false);
    // ((name, dtype, offset in bytes, shape) of each field, bytes in all) of a batch of index rows.
    m.def("batch_layout", [](std::size_t size, std::size_t max_active) {
        const BatchLayout layout = batch_layout(size, max_active);
        py::list fields;
        for (const BatchField& field : layout.fields) {
            py::tuple shape = py::make_tuple(size);
            if (field.is_row) shape = py::make_tuple(size, max_active);
            fields.append(py::make_tuple(field.name, field.dtype, field.offset, shape));
        }
        return py::make_tuple(fields, layout.size);
    });
    // {name: (byte of its big-endian u16, shift, bits, is it zig-zag?)} of what stands after the board of a record.
    m.def("record_fields", [] {
        py::dict fields;
        for (const RecordField& f : kRecordFields)
            fields[f.name] = py::make_tuple(f.byte, f.shift, f.bits, f.is_zigzag);
        return fields;
    });
    // (name, type, value that switches it off, default of recipes, least, most, documentation) of each filter.
    m.def("filters", [] {
        py::list rows;
        for (const FilterRow& row : filters()) {
            const auto value = [&](double number) -> py::object {
                switch (row.type) {
                    case FilterType::kBool:
                        return py::bool_(number != 0);
                    case FilterType::kInt:
                        return py::int_(static_cast<std::int64_t>(number));
                    default:
                        return py::float_(number);
                }
            };
            rows.append(py::make_tuple(row.name, py::type::of(value(row.off)), value(row.off), value(row.preset),
                                       value(row.least), value(row.most), row.doc));
        }
        return rows;
    });
    m.def("filter_records", [](const Array<std::uint8_t>& records, const py::dict& options, std::uint64_t seed) {
        const FilterOptions o = filter_options(options);
        const Record* in = records_of(records, "filter");
        const auto n = static_cast<std::size_t>(records.shape(0));
        std::vector<Record> copy(in, in + n);
        FilterCounts counts;
        py::array_t<bool> mask(static_cast<py::ssize_t>(n));
        auto* kept = reinterpret_cast<std::uint8_t*>(mask.mutable_data());
        {
            py::gil_scoped_release release;
            for (std::size_t i = 0; i < n; ++i) entry_from_record(copy[i], i);
            std::vector<std::uint8_t> flags(o.needs_flags() ? n : 0);
            if (o.needs_flags()) compute_flags(copy, flags.data());
            copy.resize(filter_records(o, seed, copy, flags.data(), counts, kept));
        }
        return py::make_tuple(copy_records(copy), to_dict(counts), mask);
    });
    // Applies piece_counts to one chunk. The state is that after the chunk before; an empty one begins.
    m.def("filter_piece_counts", [](const Array<std::uint8_t>& records, const py::dict& options, std::uint64_t seed,
                                    const std::vector<double>& numbers) {
        const FilterOptions o = filter_options(options);
        const std::span<const Record> in = record_span(records, "filter");
        std::vector<Record> copy(in.begin(), in.end());
        PieceCountState state = numbers.empty() ? PieceCountState() : PieceCountState(numbers);
        py::array_t<bool> mask(static_cast<py::ssize_t>(in.size()));
        auto* kept = reinterpret_cast<std::uint8_t*>(mask.mutable_data());
        {
            py::gil_scoped_release release;
            copy.resize(filter_piece_counts(o.curve(kPieceCountsCurve), seed, copy, state, kept));
        }
        return py::make_tuple(copy_records(copy), state.numbers(), mask);
    });
    m.def("check_piece_counts",
          [](const std::vector<double>& numbers) { static_cast<void>(PieceCountState(numbers)); });
    // (name, numbers in a group, default of recipes, documentation) of each list of numbers.
    m.def("filter_curves", [] {
        py::list rows;
        for (const FilterCurveRow& row : filter_curves()) {
            rows.append(py::make_tuple(row.name, row.group,
                                       py::list(py::cast(std::vector<double>(row.preset.begin(), row.preset.end()))),
                                       row.doc));
        }
        return rows;
    });
    m.def("soft_ply_chance",
          [](const std::vector<double>& knots, int ply, double full) { return soft_ply_chance(knots, ply, full); });
    m.def("piece_count_weights", [](const std::vector<double>& curve) {
        const PieceCountWeights made(curve);
        return std::vector<double>(made.weights.begin(), made.weights.end());
    });
    // The probability of each position to be kept, and α after it.
    m.def("piece_count_chances", [](const std::vector<double>& curve, const std::vector<std::size_t>& pieces) {
        const PieceCountWeights weights(curve);
        PieceCountState state;
        std::vector<double> chances, alphas;
        for (const std::size_t n : pieces) {
            if (n >= kNumPieceCounts) throw FormatError("a position with more than 32 pieces");
            chances.push_back(state.accept(n, weights));
            alphas.push_back(state.alpha());
        }
        return py::make_tuple(chances, alphas);
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

    py::class_<Exclusive<Statistics>>(m, "Statistics")
        .def(py::init<>())
        .def("add", &add_records<Statistics>)
        .def("to_dict", [](Exclusive<Statistics>& statistics) { return statistics_dict(*statistics.use()); });

    py::class_<Exclusive<Profile>>(m, "Profile")
        .def(py::init<>())
        .def("add", &add_records<Profile>)
        .def("to_dict", [](Exclusive<Profile>& profile) { return profile_dict(*profile.use()); });

    py::class_<Exclusive<Validator>>(m, "Validator")
        .def(py::init<>())
        .def("add", &add_records<Validator>)
        .def_property_readonly("positions",
                               [](Exclusive<Validator>& validator) { return validator.use()->positions(); })
        .def_property_readonly("result_changes",
                               [](Exclusive<Validator>& exclusive) {
                                   const Problem p = exclusive.use()->result_changes();
                                   return py::make_tuple(p.name, p.count, p.first);
                               })
        .def_property_readonly("problems", [](Exclusive<Validator>& exclusive) {
            const auto validator = exclusive.use();
            py::list list;
            for (const Problem& p : validator->problems()) list.append(py::make_tuple(p.name, p.count, p.first));
            return list;
        });

    py::class_<Game>(m, "Game")
        .def(py::init<std::string_view, bool>(), py::arg("fen"), py::arg("chess960") = false)
        .def_property_readonly("fen", &Game::fen)
        .def_property_readonly("white_to_move", [](const Game& game) { return game.position().side_to_move == kWhite; })
        .def_property_readonly("ply", [](const Game& game) { return game.position().ply; })
        .def_property_readonly("rule50", [](const Game& game) { return game.position().rule50; })
        .def("legal_moves",
             [](const Game& game) {
                 std::vector<std::string> moves;
                 for (const Move move : game.legal_moves()) moves.push_back(game.uci(move));
                 return moves;
             })
        .def("play", &Game::play)
        .def("record", &Game::record)
        .def("outcome", &Game::outcome)
        .def("san_moves", &Game::san_moves)
        .def("parse_san",
             [](const Game& game, std::string_view san) { return game.uci(parse_san(game.position(), san)); })
        .def("records", [](const Game& game, int result) { return copy_records(game.records(result)); });

    // Verdicts are (result, reason) or None.
    const auto verdict = [](const std::optional<Verdict>& found) -> std::optional<std::pair<int, std::string>> {
        if (!found) return {};
        return std::pair(found->result, found->reason);
    };
    py::class_<Adjudication>(m, "Adjudication")
        .def(py::init([](int resign_score, int resign_moves, bool resign_two_sided, int draw_score, int draw_moves,
                         int draw_from_move, int max_moves) {
                 return Adjudication{resign_score, resign_moves,   resign_two_sided, draw_score,
                                     draw_moves,   draw_from_move, max_moves};
             }),
             py::kw_only(), py::arg("resign_score"), py::arg("resign_moves"), py::arg("resign_two_sided"),
             py::arg("draw_score"), py::arg("draw_moves"), py::arg("draw_from_move"), py::arg("max_moves"));
    py::class_<Adjudicator>(m, "Adjudicator")
        .def(py::init<const Adjudication&>())
        .def("after",
             [verdict](Adjudicator& judge, int side, std::string_view kind, int value, int rule50, int move_number) {
                 if (side != kWhite && side != kBlack) throw py::value_error("side: expected 0 or 1");
                 return verdict(judge.after(side, {kind, value}, rule50, move_number));
             });
    py::class_<MatchGame>(m, "MatchGame")
        .def(py::init<std::string_view, bool, const std::vector<std::string>&, const Adjudication&>())
        .def_property_readonly("white_to_move", &MatchGame::white_to_move)
        .def("play",
             [](MatchGame& game, std::string_view uci, std::string_view kind, int value, int depth) {
                 game.play(uci, {kind, value, depth});
             })
        .def("play_answer",
             [](MatchGame& game, const py::bytes& answer) { return game.play_answer(std::string_view(answer)); })
        .def_property_readonly("verdict", [verdict](const MatchGame& game) { return verdict(game.verdict()); })
        .def("request",
             [](const MatchGame& game, const std::string& command) {
                 return py::bytes(game.position_command() + "\n" + command + "\n");
             })
        .def_property_readonly("moves", &MatchGame::moves)
        .def_property_readonly("scores", &MatchGame::scores);

    bind_pipeline(m);
    bind_tools(m);
    bind_evaluate(m);
    bind_leb128(m);
}
