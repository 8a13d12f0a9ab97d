// The part of nnue_trainer._data that evaluates positions with the integers of a net.
#include <algorithm>

#include "bindings/structs.h"
#include "chess/record.h"
#include "evaluate/evaluator.h"

namespace {

class EvaluatorHandle {
  public:
    explicit EvaluatorHandle(Forward forward) : evaluator_(std::move(forward)) {}

    py::tuple evaluate_records(const Array<std::uint8_t>& records, bool every_stack, int threads,
                               const std::string& isa) const {
        const std::span<const Record> all = record_span(records, "evaluate");
        return run(all.size(), every_stack, threads, isa, [&](const Evaluations& out, const EvaluateOptions& options) {
            evaluator_.evaluate(all, out, options);
        });
    }

    py::tuple evaluate_rows(const Array<std::int32_t>& white, const Array<std::int32_t>& black,
                            const Array<std::uint8_t>& black_to_move, const Array<std::uint8_t>& piece_count,
                            const Array<std::uint8_t>& material, bool every_stack, int threads,
                            const std::string& isa) const {
        const py::ssize_t n = piece_count.size();
        if (white.ndim() != 2 || black.ndim() != 2 || white.shape(0) != n || black.shape(0) != n ||
            white.shape(1) != black.shape(1) || black_to_move.size() != n || material.size() != n) {
            throw FormatError("evaluate: the rows of a batch have different sizes");
        }
        const IndexRows rows{white.data(),
                             black.data(),
                             black_to_move.data(),
                             piece_count.data(),
                             material.data(),
                             static_cast<std::size_t>(n),
                             static_cast<std::size_t>(white.shape(1))};
        return run(rows.n, every_stack, threads, isa, [&](const Evaluations& out, const EvaluateOptions& options) {
            evaluator_.evaluate(rows, out, options);
        });
    }

    Array<std::uint8_t> first_active(const Array<std::uint8_t>& records, int threads, const std::string& isa) const {
        const std::span<const Record> all = record_span(records, "evaluate");
        const EvaluateOptions options = options_of(threads, isa);
        Array<std::uint8_t> out({all.size(), evaluator_.columns()});
        std::uint8_t* const to = out.mutable_data();
        {
            py::gil_scoped_release release;
            evaluator_.first_active(all, to, options);
        }
        return out;
    }

  private:
    static EvaluateOptions options_of(int threads, const std::string& isa) {
        EvaluateOptions options;
        options.threads = threads;
        options.poll = check_signals;
        if (!isa.empty()) {
            for (const Kernels* kernels : all_kernels()) {
                if (isa == kernels->isa) options.kernels = kernels;
            }
            if (!options.kernels) throw FormatError("this CPU cannot run instruction set '" + isa + "'");
        }
        return options;
    }

    template <class Body>
    py::tuple run(std::size_t n, bool every_stack, int threads, const std::string& isa, Body&& body) const {
        const EvaluateOptions options = options_of(threads, isa);
        const std::size_t columns = every_stack ? static_cast<std::size_t>(evaluator_.num_stacks()) : 1;
        Array<std::int64_t> stack(n), score(n), psqt({n, columns}), positional({n, columns});
        const Evaluations out{stack.mutable_data(), psqt.mutable_data(), positional.mutable_data(),
                              score.mutable_data(), every_stack};
        {
            py::gil_scoped_release release;
            body(out, options);
        }
        return py::make_tuple(stack, psqt, positional, score);
    }

    Evaluator evaluator_;
};

// Integers as they lie in the caller's array, which is kept.
IntegerTensor tensor_of(const std::string& name, const py::array& array) {
    const bool is_float = array.dtype().kind() == 'f' && array.itemsize() == 4;
    if ((array.dtype().kind() != 'i' && !is_float) || array.itemsize() > 4 || !(array.flags() & py::array::c_style) ||
        array.dtype().byteorder() == '>' || array.ndim() < 1) {
        throw FormatError(name + ": expected a contiguous array of integers of 8, 16 or 32 bits, or fp32");
    }
    const auto columns = static_cast<std::size_t>(array.shape(array.ndim() - 1));
    const std::size_t rows = columns == 0 ? 0 : static_cast<std::size_t>(array.size()) / columns;
    const auto release = [](const void* object) {
        const py::gil_scoped_acquire acquire;
        Py_DECREF(static_cast<PyObject*>(const_cast<void*>(object)));
    };
    const std::shared_ptr<const void> owner(py::object(array).release().ptr(), release);
    return {name, array.data(), static_cast<int>(array.itemsize()), rows, columns, is_float, owner};
}

// A field whose values are words in Python.
template <class Struct, class Choice>
void bind_words(py::class_<Struct>& to, const char* name, Choice Struct::*field,
                std::vector<std::pair<std::string, Choice>> words) {
    const std::string what = py::str("{}.{}").format(to.attr("__name__"), name);
    to.def_property(
        name,
        [field, words](const Struct& s) {
            return std::ranges::find(words, s.*field, &std::pair<std::string, Choice>::second)->first;
        },
        [what, field, words](Struct& s, const std::string& word) {
            const auto found = std::ranges::find(words, word, &std::pair<std::string, Choice>::first);
            if (found == words.end()) {
                std::string expected;
                for (const auto& [one, choice] : words) expected += (expected.empty() ? "" : ", ") + one;
                throw FormatError(what + " is '" + word + "', expected one of " + expected);
            }
            s.*field = found->second;
        });
}

// The structs of evaluate/forward.h.
void bind_forward(py::module_& m) {
    py::class_<IntegerTensor>(m, "IntegerTensor").def(py::init(&tensor_of), py::arg("name"), py::arg("array"));

    auto first = bind_struct<FirstLayer>(m, "FirstLayer");
    first.def_readwrite("bias", &FirstLayer::bias)
        .def_readwrite("weights", &FirstLayer::weights)
        .def_readwrite("psqt", &FirstLayer::psqt)
        .def_readwrite("clip", &FirstLayer::clip)
        .def_readwrite("product_shift", &FirstLayer::product_shift)
        .def_readwrite("accumulator_shift", &FirstLayer::accumulator_shift);
    bind_words(first, "activation", &FirstLayer::activation,
               {{"crelu", FirstActivation::kCrelu},
                {"screlu", FirstActivation::kScrelu},
                {"pairwise", FirstActivation::kPairwise}});
    bind_words(first, "sides", &FirstLayer::sides,
               {{"both", Sides::kBoth}, {"mover", Sides::kMover}, {"white", Sides::kWhite}});

    auto layer = bind_struct<ForwardLayer>(m, "ForwardLayer");
    layer.def_readwrite("weight", &ForwardLayer::weight)
        .def_readwrite("bias", &ForwardLayer::bias)
        .def_readwrite("outputs", &ForwardLayer::outputs)
        .def_readwrite("inputs", &ForwardLayer::inputs)
        .def_readwrite("divide", &ForwardLayer::divide)
        .def_readwrite("activated", &ForwardLayer::activated)
        .def_readwrite("shift", &ForwardLayer::shift)
        .def_readwrite("square_shift", &ForwardLayer::square_shift)
        .def_readwrite("clip", &ForwardLayer::clip)
        .def_readwrite("factor", &ForwardLayer::factor);
    bind_words(layer, "activation", &ForwardLayer::activation,
               {{"crelu", LayerActivation::kCrelu},
                {"screlu", LayerActivation::kScrelu},
                {"dual", LayerActivation::kDual},
                {"none", LayerActivation::kNone}});

    bind_struct<Skip>(m, "Skip")
        .def_readwrite("layer", &Skip::layer)
        .def_readwrite("plus", &Skip::plus)
        .def_readwrite("minus", &Skip::minus)
        .def_readwrite("multiply", &Skip::multiply)
        .def_readwrite("divide", &Skip::divide)
        .def_readwrite("wraps", &Skip::wraps);

    auto forward = bind_struct<Forward>(m, "Forward");
    forward.def_readwrite("feature_set", &Forward::feature_set)
        .def_readwrite("first", &Forward::first)
        .def_readwrite("layers", &Forward::layers)
        .def_readwrite("num_stacks", &Forward::num_stacks)
        .def_readwrite("stacks", &Forward::stacks)
        .def_readwrite("feature_weights", &Forward::feature_weights)
        .def_readwrite("skips", &Forward::skips)
        .def_readwrite("multiply", &Forward::multiply)
        .def_readwrite("divide", &Forward::divide)
        .def_readwrite("score_multiply", &Forward::score_multiply)
        .def_readwrite("score_divide", &Forward::score_divide)
        .def_readwrite("score_apart", &Forward::score_apart);
    bind_words(forward, "head", &Forward::wdl, {{"value", false}, {"wdl", true}});
}

}  // namespace

void bind_evaluate(py::module_& m) {
    m.def("isas", [] {
        py::list names;
        for (const Kernels* kernels : all_kernels()) names.append(kernels->isa);
        return names;
    });
    bind_forward(m);
    py::class_<EvaluatorHandle>(m, "Evaluator")
        .def(py::init<Forward>(), py::arg("forward"))
        .def("evaluate_records", &EvaluatorHandle::evaluate_records, py::arg("records"), py::arg("every_stack"),
             py::arg("threads"), py::arg("isa") = "")
        .def("evaluate_rows", &EvaluatorHandle::evaluate_rows, py::arg("white"), py::arg("black"),
             py::arg("black_to_move"), py::arg("piece_count"), py::arg("material"), py::arg("every_stack"),
             py::arg("threads"), py::arg("isa") = "")
        .def("first_active", &EvaluatorHandle::first_active, py::arg("records"), py::arg("threads"),
             py::arg("isa") = "");

    // In place, so an array of another type or layout is refused.
    m.def(
        "set_scores",
        [](Array<std::uint8_t>& records, const Array<std::int64_t>& scores) {
            const std::span<const Record> all = record_span(records, "set_scores");
            if (!records.writeable()) throw FormatError("set_scores: the records are read-only");
            if (static_cast<std::size_t>(scores.size()) != all.size()) throw FormatError("set_scores: sizes differ");
            auto* out = reinterpret_cast<Record*>(records.mutable_data());
            // Beyond lies the number that stands for "no score".
            constexpr std::int64_t kMost = kScoreNone - 1;
            std::uint64_t cut = 0;
            for (std::size_t i = 0; i < all.size(); ++i) {
                const std::int64_t kept = std::clamp(scores.data()[i], -kMost, kMost);
                cut += kept != scores.data()[i];
                set_record_score(out[i], static_cast<int>(kept));
            }
            return cut;
        },
        py::arg("records").noconvert(), py::arg("scores"));
}
