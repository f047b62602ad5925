#include <pybind11/stl.h>

#include <string_view>
#include <unordered_map>

#include "bind.h"

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
void read(const py::handle& value, lang::Dtype& out) { out = dtype(value); }
void read(const py::handle& value, lang::ChoicesMethod& out) {
  out = value_or_throw(choices_method(value), here());
}

using Setter = void (*)(GenOptions&, const py::handle&);
template <auto member>
void set(GenOptions& options, const py::handle& value) {
  read(value, options.*member);
}

const std::unordered_map<std::string_view, Setter>& setters() {
  static const std::unordered_map<std::string_view, Setter> table = {
      {"max_tokens", set<&GenOptions::max_tokens>},
      {"min_tokens", set<&GenOptions::min_tokens>},
      {"n", set<&GenOptions::n>},
      {"stop", set<&GenOptions::stop>},
      {"stop_token_ids", set<&GenOptions::stop_token_ids>},
      {"stop_regex", set<&GenOptions::stop_regex>},
      {"temperature", set<&GenOptions::temperature>},
      {"top_p", set<&GenOptions::top_p>},
      {"top_k", set<&GenOptions::top_k>},
      {"min_p", set<&GenOptions::min_p>},
      {"frequency_penalty", set<&GenOptions::frequency_penalty>},
      {"presence_penalty", set<&GenOptions::presence_penalty>},
      {"ignore_eos", set<&GenOptions::ignore_eos>},
      {"return_logprob", set<&GenOptions::return_logprob>},
      {"logprob_start_len", set<&GenOptions::logprob_start_len>},
      {"top_logprobs_num", set<&GenOptions::top_logprobs_num>},
      {"return_text_in_logprobs", set<&GenOptions::return_text_in_logprobs>},
      {"dtype", set<&GenOptions::dtype>},
      {"choices", set<&GenOptions::choices>},
      {"choices_method", set<&GenOptions::choices_method>},
      {"regex", set<&GenOptions::regex>},
      {"json_schema", set<&GenOptions::json_schema>},
      {"ebnf", set<&GenOptions::ebnf>},
      {"seed", set<&GenOptions::seed>},
  };
  return table;
}

}  // namespace

Result<lang::ChoicesMethod> choices_method(const py::handle& method) {
  if (py::isinstance<lang::ChoicesMethod>(method)) return py::cast<lang::ChoicesMethod>(method);
  return lang::parse_choices_method(py::cast<std::string>(method));
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
