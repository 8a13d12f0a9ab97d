// The part of nnue_trainer._data that counts what data files contain: statistics, profiles, faults, duplicates.
#include "formats/statistics.h"

#include <pybind11/stl.h>

#include "bindings/bindings.h"
#include "formats/duplicates.h"
#include "formats/profile.h"
#include "formats/validation.h"

namespace {

// The counts as properties of Python: each field is listed once.
template <class Field>
void bind_counts(py::class_<Exclusive<Statistics>>& statistics, const char* name, Field Statistics::*field) {
    statistics.def_property_readonly(name, [field](Exclusive<Statistics>& s) { return (*s.use()).*field; });
}

template <class Part>
void join_part(Exclusive<Part>& exclusive, Exclusive<Part>& part) {
    const auto object = exclusive.use();
    object->join(*part.use());
}

// Makes a block of the profile a row of a structured array. It imports numpy, which takes longer than all of the
// module, so this waits until a profile is read.
void describe_block() {
    PYBIND11_CONSTINIT static py::gil_safe_call_once_and_store<bool> done;
    done.call_once_and_store_result([] {
        PYBIND11_NUMPY_DTYPE(Profile::Block, positions, scored, proven, sum_score, sum_magnitude, sum_score_squared,
                             sum_ply, sum_ply_squared, sum_pieces, sum_pieces_squared, looked_at, repeated, results,
                             scores, plies, pieces);
        return true;
    });
}

void bind_profile(py::module_& m) {
    py::class_<Exclusive<Profile>>(m, "Profile")
        .def(py::init<>())
        .def("add", &add_records<Profile>)
        .def(
            "add_part",
            [](Exclusive<Profile>& exclusive, const Array<std::uint8_t>& records, std::uint64_t block_size) {
                const std::span<const Record> all = record_span(records, "add_part");
                const auto profile = exclusive.use();
                py::gil_scoped_release release;
                profile->add_part(all, block_size);
            },
            py::arg("records"), py::arg("block_size"))
        .def(
            "join",
            [](Exclusive<Profile>& exclusive, Exclusive<Profile>& part, const Array<std::uint8_t>& records) {
                const std::span<const Record> all = record_span(records, "join");
                const auto profile = exclusive.use(), counted = part.use();
                py::gil_scoped_release release;
                profile->join(*counted, all);
            },
            py::arg("part"), py::arg("records"))
        .def_property_readonly("blocks",
                               [](Exclusive<Profile>& profile) {
                                   describe_block();
                                   const auto p = profile.use();
                                   const auto& blocks = p->blocks();
                                   return Array<Profile::Block>(static_cast<py::ssize_t>(blocks.size()), blocks.data());
                               })
        .def_property_readonly(
            "calibration",
            [](Exclusive<Profile>& profile) {
                const auto p = profile.use();
                return Array<std::uint64_t>({Profile::kPhases, Profile::kScoreBins, 3}, p->calibration()[0][0].data());
            })
        .def_property_readonly("block_size", [](Exclusive<Profile>& p) { return p.use()->block_size(); })
        .def_property_readonly("distinct",
                               [](Exclusive<Profile>& p) {
                                   const DuplicateEstimator* duplicates = p.use()->duplicates();
                                   return duplicates ? duplicates->distinct() : 0;
                               })
        .def_property_readonly("duplicate_share",
                               [](Exclusive<Profile>& p) {
                                   const DuplicateEstimator* duplicates = p.use()->duplicates();
                                   return duplicates ? duplicates->duplicate_share() : 0;
                               })
        .def_property_readonly("duplicates_exact", [](Exclusive<Profile>& p) {
            const DuplicateEstimator* duplicates = p.use()->duplicates();
            return !duplicates || duplicates->exact();
        });
}

}  // namespace

void bind_statistics(py::module_& m) {
    py::class_<Exclusive<Statistics>> statistics(m, "Statistics");
    statistics.def(py::init<>()).def("add", &add_records<Statistics>).def("join", &join_part<Statistics>);
#define NNUE_FIELD(name) bind_counts(statistics, #name, &Statistics::name)
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
    NNUE_FIELD(castling_rights);
    NNUE_FIELD(score_histogram);
    NNUE_FIELD(ply_histogram);
    NNUE_FIELD(piece_histogram);
#undef NNUE_FIELD
    statistics
        .def_property_readonly("white_king_squares",
                               [](Exclusive<Statistics>& s) { return s.use()->king_squares[kWhite]; })
        .def_property_readonly("black_king_squares",
                               [](Exclusive<Statistics>& s) { return s.use()->king_squares[kBlack]; });

    bind_profile(m);

    py::class_<Exclusive<Validator>>(m, "Validator")
        .def(py::init<>())
        .def("add", &add_records<Validator>)
        .def("join", &join_part<Validator>)
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
