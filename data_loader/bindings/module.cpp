// nnue_trainer._data: the torch-free face of the data library for Python. Arrays in and out are NumPy's; whatever takes
// time releases the GIL. FormatError becomes nnue_trainer.errors.UserError.
#include "bindings/bindings.h"

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

    bind_records(m);
    bind_filters(m);
    bind_statistics(m);
    bind_games(m);
    bind_formats(m);
    bind_changes(m);
    bind_shuffle(m);
    bind_pipeline(m);
    bind_evaluate(m);
    bind_leb128(m);
}
