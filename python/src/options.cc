#include <pybind11/stl.h>

#include <string_view>
#include <unordered_map>

#include "bind.h"
#include "seams/request_fields.h"

namespace espalier::python {
namespace {

using lang::GenOptions;

lang::Strings strings(const py::handle& value) {
  if (py::isinstance<py::str>(value)) return lang::Strings(py::cast<std::string>(value));
  return lang::Strings(py::cast<std::vector<std::string>>(value));
}

lang::Dtype dtype(const py::handle& value) {
  const auto name = PyType_Check(value.ptr()) ? py::cast<std::string>(value.attr("__name__"))
                                              : py::cast<std::string>(value);
  if (name == "str" || name == "string") return lang::Dtype::kString;
  if (name == "int") return lang::Dtype::kInt;
  if (name == "float") return lang::Dtype::kFloat;
  if (name == "bool") return lang::Dtype::kBool;
  throw_status(invalid_argument("dtype is str, int, float or bool, not {}", name), here());
}

template <typename T>
void read(const py::handle& value, std::optional<T>& out) {
  out = py::cast<T>(value);
}
void read(const py::handle& value, lang::Strings& out) { out = strings(value); }
template <typename T>
void read(const py::handle& value, T& out) {
  out = py::cast<T>(value);
}
void read(const py::handle& value, std::optional<lang::EarlyStopping>& out) {
  if (py::isinstance<py::str>(value) && py::cast<std::string>(value) == "never")
    out = lang::EarlyStopping::kNever;
  else if (py::isinstance<py::bool_>(value))
    out = py::cast<bool>(value) ? lang::EarlyStopping::kYes : lang::EarlyStopping::kNo;
  else
    throw_status(invalid_argument("early_stopping is True, False or \"never\", not {}",
                                  py::cast<std::string>(py::repr(value))),
                 here());
}
void read(const py::handle& value, lang::Dtype& out) { out = dtype(value); }
void read(const py::handle& value, lang::ChoicesMethod& out) {
  out = value_or_throw(choices_method(value), here());
}

using Setter = void (*)(GenOptions&, const py::handle&);
template <auto member>
void set(GenOptions& options, const py::handle& value) {
  read(value, options.*member);
}

// The options by name: the request fields that GenOptions has, and those of the language alone.
const std::unordered_map<std::string_view, Setter>& setters() {
  static const std::unordered_map<std::string_view, Setter> table = [] {
    std::unordered_map<std::string_view, Setter> all = {
        {"dtype", set<&GenOptions::dtype>},
        {"choices", set<&GenOptions::choices>},
        {"choices_method", set<&GenOptions::choices_method>},
    };
    const auto add = [&](const auto& field) {
      using Option = std::remove_cvref_t<decltype(field.option)>;
      if constexpr (HasField<Option, GenOptions>)
        all[field.openai_name()] = [](GenOptions& options, const py::handle& value) {
          read(value, Option{}(options));
        };
    };
    for_each_request_field(add);
    for_each_logprob_field(add);
    return all;
  }();
  return table;
}

}  // namespace

Result<lang::ChoicesMethod> choices_method(const py::handle& method) {
  if (py::isinstance<lang::ChoicesMethod>(method)) return py::cast<lang::ChoicesMethod>(method);
  return lang::parse_choices_method(py::cast<std::string>(method));
}

std::vector<std::string> default_names() {
  std::vector<std::string> names;
  const auto add = [&](const auto& field) {
    if constexpr (HasField<decltype(field.option), GenOptions>)
      if (!field.is_grammar) names.emplace_back(field.openai_name());
  };
  for_each_request_field(add);
  for_each_logprob_field(add);
  return names;
}

lang::GenOptions gen_options(const py::dict& options) {
  GenOptions read_options;
  for (const auto& [key, value] : options) {
    if (value.is_none()) continue;
    const auto name = py::cast<std::string>(key);
    const auto setter = setters().find(name);
    if (setter == setters().end()) throw py::type_error("unknown option \"" + name + "\"");
    try {
      setter->second(read_options, value);
    } catch (const py::cast_error&) {
      throw py::type_error(name + " cannot be " + py::cast<std::string>(py::repr(value)));
    }
  }
  return read_options;
}

}  // namespace espalier::python
