# A program that asks for version 0.2 gets 0.2 or a later 0.2.x; from 1.0 on, any later version of the same major number.
# Before 1.0 the interface may change with the second number.
file(STRINGS "${CMAKE_CURRENT_LIST_DIR}/../__init__.py" _nnue_line REGEX "^__version__ = ")
string(REGEX REPLACE ".*\"([0-9.]*[0-9]).*\"" "\\1" PACKAGE_VERSION "${_nnue_line}")
string(REGEX MATCH "^[0-9]+" _nnue_major "${PACKAGE_VERSION}")
string(REGEX MATCH "^[0-9]+\\.[0-9]+" _nnue_series "${PACKAGE_VERSION}")
string(REGEX MATCH "^[0-9]+\\.[0-9]+" _nnue_wanted "${PACKAGE_FIND_VERSION}")
if(NOT _nnue_major EQUAL 0 OR PACKAGE_FIND_VERSION_COUNT LESS 2)
  set(_nnue_series "${_nnue_major}")
  string(REGEX MATCH "^[0-9]+" _nnue_wanted "${PACKAGE_FIND_VERSION}")
endif()
if(PACKAGE_FIND_VERSION_COUNT EQUAL 0)
  set(PACKAGE_VERSION_COMPATIBLE TRUE)
elseif(PACKAGE_FIND_VERSION_RANGE)
  if(PACKAGE_VERSION VERSION_GREATER_EQUAL PACKAGE_FIND_VERSION_MIN
     AND (PACKAGE_VERSION VERSION_LESS PACKAGE_FIND_VERSION_MAX
          OR (PACKAGE_FIND_VERSION_RANGE_MAX STREQUAL "INCLUDE" AND PACKAGE_VERSION VERSION_EQUAL
                                                                    PACKAGE_FIND_VERSION_MAX)))
    set(PACKAGE_VERSION_COMPATIBLE TRUE)
  endif()
elseif(_nnue_wanted VERSION_EQUAL _nnue_series AND NOT PACKAGE_FIND_VERSION VERSION_GREATER PACKAGE_VERSION)
  set(PACKAGE_VERSION_COMPATIBLE TRUE)
endif()
if(PACKAGE_FIND_VERSION VERSION_EQUAL PACKAGE_VERSION)
  set(PACKAGE_VERSION_EXACT TRUE)
endif()
