// Structs of the library as classes of Python. Fields are listed once, with def_readwrite or def_property; the
// constructor takes them as keyword arguments.
#pragma once

#include <pybind11/stl.h>

#include <memory>
#include <string>
#include <utility>

#include "bindings/bindings.h"

// A value for an error message; only its type if it is long.
inline std::string shown(const py::handle& value) {
    std::string text = py::repr(value);
    if (text.size() > 80) text = py::str(py::type::handle_of(value).attr("__name__"));
    return text;
}

// The type of a property, parsed from the signature that pybind11 gives its setter: "(arg0: Class, arg1: type) ->
// None".
inline std::string type_of_setter(const py::object& property) {
    py::str text = property.attr("fset").attr("__doc__");
    for (const auto& [from, to] : {std::pair{"typing.SupportsInt | typing.SupportsIndex", "int"},
                                   std::pair{"typing.SupportsFloat | typing.SupportsIndex", "float"},
                                   std::pair{"collections.abc.Sequence", "Sequence"}}) {
        text = text.attr("replace")(from, to);
    }
    const std::string signature = text;
    const auto end = signature.rfind(") -> "), begin = signature.rfind(": ", end);
    if (end == std::string::npos || begin == std::string::npos) return "another type";
    return signature.substr(begin + 2, end - begin - 2);
}

// Sets fields of an object. TypeError: there is no such field, or the value has another type; the message names both.
inline void set_fields(const py::object& object, const py::kwargs& fields) {
    const py::handle type = py::type::handle_of(object);
    for (const auto& [name, value] : fields) {
        if (PyObject_SetAttr(object.ptr(), name.ptr(), value.ptr()) == 0) continue;
        const py::error_already_set error;
        const std::string field = py::str("{}.{}").format(type.attr("__name__"), name);
        if (!py::hasattr(type, name)) throw py::type_error(field + ": there is no such field");
        if (!error.matches(PyExc_TypeError)) throw error;
        const char* const range = PyLong_Check(value.ptr()) ? " in its range" : "";
        throw py::type_error(field + " is " + shown(value) + ", expected " + type_of_setter(type.attr(name)) + range);
    }
}

// "Class(field=value, …)" with all properties, in the order in which they were defined.
inline std::string repr_of(const py::object& object) {
    const py::handle type = py::type::handle_of(object);
    std::string text = py::str(type.attr("__name__"));
    text += '(';
    const py::object property = py::module_::import("builtins").attr("property");
    for (const auto& [name, value] : py::cast<py::dict>(py::dict(type.attr("__dict__")))) {
        if (!py::isinstance(value, property)) continue;
        if (text.back() != '(') text += ", ";
        const std::string field = py::str(name);
        text += field + '=' + std::string(py::str(py::repr(object.attr(name))));
    }
    return text + ')';
}

// A class with a constructor that takes fields; those that are not given have the defaults of the struct.
template <class T>
py::class_<T> bind_struct(py::module_& m, const char* name) {
    return py::class_<T>(m, name)
        .def(py::init([](const py::kwargs& fields) {
            auto made = std::make_unique<T>();
            set_fields(py::cast(made.get(), py::return_value_policy::reference), fields);
            return made;
        }))
        .def("__repr__", &repr_of);
}
