// The part of nnue_trainer._data that counts what data files contain: statistics, profiles, faults, duplicates.
#include "formats/statistics.h"

#include <pybind11/stl.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "bindings/bindings.h"
#include "formats/duplicates.h"
#include "formats/profile.h"
#include "formats/validation.h"

namespace {

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

}  // namespace

void bind_statistics(py::module_& m) {
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

    using Duplicates = Exclusive<DuplicateEstimator>;
    py::class_<Duplicates>(m, "DuplicateEstimator")
        .def(py::init<>())
        .def("add", &add_records<DuplicateEstimator>)
        .def_property_readonly("exact", [](Duplicates& d) { return d.use()->exact(); })
        .def_property_readonly("distinct", [](Duplicates& d) { return d.use()->distinct(); })
        .def_property_readonly("duplicate_share", [](Duplicates& d) { return d.use()->duplicate_share(); });
}
