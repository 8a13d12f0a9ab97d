# find_package(nnue_trainer CONFIG REQUIRED) with nnue_trainer_DIR as nnue_trainer.cmake_dir() in Python gives it:
#
#   nnue::data         the data library; the shared one with BUILD_SHARED_LIBS, else the static one
#   nnue::data_static, nnue::data_shared
#   nnue::operators    nnue/operators.h and where the operator libraries are; link torch as well, with find_package(Torch)
cmake_minimum_required(VERSION 3.18)
include(CMakeFindDependencyMacro)
find_dependency(Threads)

get_filename_component(_nnue_package "${CMAKE_CURRENT_LIST_DIR}" DIRECTORY)
set(_nnue_include "${_nnue_package}/include")
if(NOT EXISTS "${_nnue_include}/chess/types.h") # a checkout, built in place
  list(APPEND _nnue_include "${_nnue_package}/../data_loader" "${_nnue_package}/../csrc")
endif()

file(STRINGS "${_nnue_package}/__init__.py" _nnue_version REGEX "^__version__ = ")
string(REGEX REPLACE ".*\"([0-9]+\\.[0-9]+).*" "\\1" _nnue_version "${_nnue_version}")
set(_nnue_soname "libnnue_data.so.${_nnue_version}")
if(APPLE)
  set(_nnue_soname "libnnue_data.${_nnue_version}.dylib")
endif()

foreach(kind static shared)
  set(_nnue_file "${_nnue_package}/lib/${_nnue_soname}")
  if(kind STREQUAL "static")
    set(_nnue_file "${_nnue_package}/lib/libnnue_data.a")
  endif()
  if(NOT EXISTS "${_nnue_file}")
    set(nnue_trainer_FOUND FALSE)
    set(nnue_trainer_NOT_FOUND_MESSAGE "${_nnue_file} is missing: build the package first, with pip or `make build`")
    return()
  endif()
  if(NOT TARGET nnue::data_${kind})
    string(TOUPPER ${kind} _nnue_kind)
    add_library(nnue::data_${kind} ${_nnue_kind} IMPORTED)
    set_target_properties(
      nnue::data_${kind}
      PROPERTIES IMPORTED_LOCATION "${_nnue_file}" INTERFACE_INCLUDE_DIRECTORIES "${_nnue_include}"
                 INTERFACE_COMPILE_FEATURES cxx_std_20 INTERFACE_LINK_LIBRARIES "Threads::Threads;${CMAKE_DL_LIBS}")
  endif()
endforeach()
set_target_properties(nnue::data_shared PROPERTIES IMPORTED_SONAME "${_nnue_soname}")

if(NOT TARGET nnue::data)
  add_library(nnue::data INTERFACE IMPORTED)
  set(_nnue_kind static)
  if(BUILD_SHARED_LIBS)
    set(_nnue_kind shared)
  endif()
  set_target_properties(nnue::data PROPERTIES INTERFACE_LINK_LIBRARIES nnue::data_${_nnue_kind})
endif()

if(NOT TARGET nnue::operators)
  add_library(nnue::operators INTERFACE IMPORTED)
  set_target_properties(
    nnue::operators
    PROPERTIES INTERFACE_INCLUDE_DIRECTORIES "${_nnue_include}" INTERFACE_COMPILE_FEATURES cxx_std_20
               INTERFACE_COMPILE_DEFINITIONS "NNUE_OPERATORS_FOLDER=\"${_nnue_package}\""
               INTERFACE_LINK_LIBRARIES "${CMAKE_DL_LIBS}")
endif()
