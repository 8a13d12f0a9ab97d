# Types of the pybind11 module of data_loader/ (see data_loader/bindings.cpp).
