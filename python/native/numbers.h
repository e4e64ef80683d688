#pragma once

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <string>

#include <nanobind/nanobind.h>

// Python's numbers, which are of any size and may be none: each is held to its range where it comes in, and
// an error names the argument.
namespace carillon::python {

// An argument that is to be a number. Whatever comes is taken, so that the error is ours.
struct Real {
  nanobind::object value;
};
struct Whole {
  nanobind::object value;
};

[[noreturn]] inline void refuse_value(const char* name, nanobind::handle value, const std::string& right) {
  const std::string shown = nanobind::repr(value).c_str();
  throw nanobind::value_error(
      (std::string(name) + " is " + shown.substr(0, 80) + "; it must be " + right).c_str());
}
[[noreturn]] inline void refuse_type(const char* name, nanobind::handle value, const char* right) {
  const std::string shown = nanobind::repr(value).c_str();
  throw nanobind::type_error(
      (std::string(name) + " is " + shown.substr(0, 80) + "; it must be " + right).c_str());
}

inline std::string shown(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%g", value);
  return text;
}

enum class Least { included, excluded };

inline double real(const Real& number, const char* name, double least, double most,
                   Least ends = Least::included) {
  const double value = PyFloat_AsDouble(number.value.ptr());
  if (PyErr_Occurred() != nullptr) {
    const bool too_large = PyErr_ExceptionMatches(PyExc_OverflowError) != 0;
    PyErr_Clear();
    if (!too_large) refuse_type(name, number.value, "a number");
  } else if (ends == Least::included ? value >= least && value <= most : value > least && value <= most) {
    return value;
  }
  refuse_value(name, number.value,
               (ends == Least::included ? "from " : "above ") + shown(least) +
                   (ends == Least::included ? " to " : " and at most ") + shown(most));
}

inline std::uint64_t whole(const Whole& number, const char* name, std::uint64_t least, std::uint64_t most) {
  const nanobind::object index = nanobind::steal(PyNumber_Index(number.value.ptr()));
  if (!index.is_valid()) {
    PyErr_Clear();
    refuse_type(name, number.value, "a whole number");
  }
  const unsigned long long value = PyLong_AsUnsignedLongLong(index.ptr());
  const bool wrong = PyErr_Occurred() != nullptr;
  if (wrong) PyErr_Clear();
  if (wrong || value < least || value > most)
    refuse_value(name, number.value, "from " + std::to_string(least) + " to " + std::to_string(most));
  return value;
}

}  // namespace carillon::python

namespace nanobind::detail {

template <>
struct type_caster<carillon::python::Real> {
  NB_TYPE_CASTER(carillon::python::Real, const_name("float"))
  bool from_python(handle source, std::uint32_t, cleanup_list*) noexcept {
    value.value = borrow(source);
    return true;
  }
};
template <>
struct type_caster<carillon::python::Whole> {
  NB_TYPE_CASTER(carillon::python::Whole, const_name("int"))
  bool from_python(handle source, std::uint32_t, cleanup_list*) noexcept {
    value.value = borrow(source);
    return true;
  }
};

}  // namespace nanobind::detail
