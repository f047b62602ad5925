#include <pybind11/stl.h>

#include "bind.h"

namespace espalier::python {
namespace {

Expression add(Expression left, Expression right) {
  left.expr += std::move(right.expr);
  left.readers.merge(right.readers);
  return left;
}

// The dict's member, which goes out of it; None when there is none.
py::object take(py::dict& options, const char* name) {
  return options.attr("pop")(name, py::none());
}

using Maker = lang::Expr (*)(std::string, lang::GenOptions, lang::Location);

// A gen of a dict of SGLang's arguments, and "reader", how its text is read.
Expression make_gen(const py::dict& given, Maker make) {
  py::dict options(given.attr("copy")());
  const py::object name = take(options, "name"), reader = take(options, "reader");
  const auto text = name.is_none() ? std::string() : py::cast<std::string>(name);
  Expression made{make(text, gen_options(options), here()), {}};
  if (!reader.is_none()) made.readers[text] = reader;
  return made;
}

Expression in_role(lang::Role role, const py::object& content) {
  Expression made = to_expression(content);
  made.expr = lang::role(role, std::move(made.expr), here());
  return made;
}

using RoleMark = lang::Expr (*)(lang::Location);

void bind_role(py::module_& m, const char* name, lang::Role role, RoleMark begin, RoleMark end) {
  m.def(name, [role](const py::object& content) { return in_role(role, content); });
  m.def((std::string(name) + "_begin").c_str(), [begin] { return Expression{begin(here()), {}}; });
  m.def((std::string(name) + "_end").c_str(), [end] { return Expression{end(here()), {}}; });
}

}  // namespace

Expression to_expression(const py::handle& any) {
  if (py::isinstance<Expression>(any)) return py::cast<Expression>(any);
  if (py::isinstance<py::str>(any)) return {lang::Expr(py::cast<std::string>(any), here()), {}};
  if (py::isinstance<lang::Value>(any)) return {lang::Expr(py::cast<lang::Value>(any), here()), {}};
  const auto kind = py::cast<std::string>(py::type::handle_of(any).attr("__name__"));
  throw py::type_error("a prompt is made of text and primitives (gen, select, ...), not of " +
                       kind);
}

void bind_expressions(py::module_& m) {
  py::enum_<lang::ChoicesMethod>(m, "ChoicesMethod")
      .value("token_length_normalized", lang::ChoicesMethod::kTokenLengthNormalized)
      .value("greedy_token_selection", lang::ChoicesMethod::kGreedyTokenSelection)
      .value("unconditional_likelihood_normalized",
             lang::ChoicesMethod::kUnconditionalLikelihoodNormalized)
      .value("exact_likelihood", lang::ChoicesMethod::kExact);

  py::class_<Expression>(m, "Expr", "Text and primitives in order; + puts two behind each other.")
      .def("__add__",
           [](const Expression& a, const py::object& b) { return add(a, to_expression(b)); })
      .def("__radd__",
           [](const Expression& a, const py::object& b) { return add(to_expression(b), a); });

  // Of programs that are traced; a running one reads its variables as they are.
  const auto read = [](const lang::Value& value) { return value.str(); };
  py::class_<lang::Value>(m, "Value", "An argument or variable of a program that is traced.")
      .def("__add__", [](const py::object& a,
                         const py::object& b) { return add(to_expression(a), to_expression(b)); })
      .def("__radd__", [](const py::object& a,
                          const py::object& b) { return add(to_expression(b), to_expression(a)); })
      .def("__str__", read)
      .def("__format__", [](const lang::Value& v, const std::string&) { return v.str(); })
      .def("__eq__", [](const lang::Value& v,
                        const py::object& other) { return py::cast(v.str()).equal(other); })
      .def("__bool__", [](const lang::Value& v) { return !v.str().empty(); });

  m.def("default_names", default_names);
  m.def("gen", [](const py::dict& o) { return make_gen(o, lang::gen); });
  m.def("gen_int", [](const py::dict& o) { return make_gen(o, lang::gen_int); });
  m.def("gen_string", [](const py::dict& o) { return make_gen(o, lang::gen_string); });
  m.def("select", [](std::string name, std::vector<std::string> choices, const py::object& method) {
    const lang::Location where = here();
    return Expression{lang::select(std::move(name), std::move(choices),
                                   value_or_throw(choices_method(method), where), where),
                      {}};
  });
  m.def("image", [](std::string path) {
    return Expression{lang::image(std::move(path), here()), {}};
  });
  m.def("video", [](std::string path, int32_t num_frames) {
    return Expression{lang::video(std::move(path), num_frames, here()), {}};
  });
  m.def("separate_reasoning", [](const py::object& content, std::string model_type) {
    Expression made = to_expression(content);
    made.expr = lang::separate_reasoning(std::move(made.expr), std::move(model_type), here());
    return made;
  });
  bind_role(m, "system", lang::Role::kSystem, lang::system_begin, lang::system_end);
  bind_role(m, "user", lang::Role::kUser, lang::user_begin, lang::user_end);
  bind_role(m, "assistant", lang::Role::kAssistant, lang::assistant_begin, lang::assistant_end);
}

}  // namespace espalier::python
