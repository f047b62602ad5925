// What the parts of the extension share: expressions and states as Python sees them, options read
// from a dict, the line of the user's program. All of it is called with the interpreter lock held,
// unless it says otherwise.
#pragma once

#include <pybind11/pybind11.h>

#include <map>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "lang/lang.h"
#include "lang/waiting.h"

namespace espalier::python {

namespace py = pybind11;

// ---- place.cc: lines and errors ----

// The innermost line of Python that is not the package's own: the user's.
lang::Location here();
// What a program threw, with the user's line that threw it.
lang::Error error_of(const py::error_already_set& thrown);
// The same the other way: an espalier.Error.
py::object exception_of(const lang::Error& error);
[[noreturn]] void throw_status(Status status, const lang::Location& where);

template <typename T>
T value_or_throw(Result<T> result, const lang::Location& where) {
  if (!result) throw_status(std::move(result).error(), where);
  return std::move(*result);
}
inline void ok_or_throw(Status status, const lang::Location& where) {
  if (!status.ok()) throw_status(std::move(status), where);
}

// Does `work` without the interpreter lock: it may wait for the model. Ctrl-C breaks the wait off
// and is thrown once `work` has ended.
template <typename F>
auto unlocked(F&& work) {
  const auto run = [&] {
    const py::gil_scoped_release release;
    const lang::Interruptible interruptible([] {
      const py::gil_scoped_acquire acquire;
      return PyErr_CheckSignals() != 0;
    });
    return work();
  };
  const auto throw_what_came = [] {
    if (PyErr_Occurred() != nullptr) throw py::error_already_set();
  };
  try {
    if constexpr (std::is_void_v<decltype(work())>) {
      run();
      throw_what_came();
    } else {
      auto result = run();
      throw_what_came();
      return result;
    }
  } catch (const lang::Error&) {
    throw_what_came();
    throw;
  }
}

// ---- options.cc: dicts whose absent and None members mean "not said" ----

// By SGLang's names. TypeError names what is unknown or of a wrong type.
// The request fields that a program can set for all its gens: no grammars, no dtype.
std::vector<std::string> default_names();
lang::GenOptions gen_options(const py::dict& options);
Result<lang::ChoicesMethod> choices_method(const py::handle& method);

// ---- programs.cc ----

// `how`: backend, stream, recorder and the like; run() in _programs.py names them. Error without a
// back end.
lang::RunOptions run_options(const py::dict& defaults, const py::dict& how);

// ---- expr.cc ----

// How the text of a variable is read: json.loads, or a model's own. From text to object.
using Readers = std::map<std::string, py::object>;

struct Expression {
  lang::Expr expr;
  Readers readers;  // of the variables that it fills
};
// Of text, an expression, a value. TypeError for others.
Expression to_expression(const py::handle& any);

// ---- state.cc ----

// What the handles of one prompt state share.
struct Shared {
  Readers readers;
  py::object result = py::none();  // what the program returned
  bool is_traced = false;          // variables are values that cannot be read
  bool is_sequential = false;      // use_thread=False: appending waits, and throws what failed
};

struct State {
  lang::State state;
  std::shared_ptr<Shared> shared;  // by the wrapper that a thread writes and the one that is read

  void append(const py::handle& any);
};
// A copy of what `state` knows of its variables, for states that go on from it.
State branch_of(const State& state, lang::State branch);

void bind_expressions(py::module_& m);
void bind_states(py::module_& m);
void bind_backends(py::module_& m);
void bind_engine(py::module_& m);
void bind_graphs(py::module_& m);
void bind_programs(py::module_& m);
void bind_places(py::module_& m);

}  // namespace espalier::python
