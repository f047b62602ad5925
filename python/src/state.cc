#include <pybind11/stl.h>

#include <optional>

#include "bind.h"

namespace espalier::python {
namespace {

// The same of a state; what interrupts the wait cancels the state: its calls end, and nobody waits
// for it at the interpreter's end.
template <typename F>
auto waited(const lang::State& state, F&& work) {
  try {
    return unlocked(work);
  } catch (const py::error_already_set&) {
    const py::gil_scoped_release release;
    lang::State(state).cancel();
    throw;
  }
}

py::object parse_json(const std::string& text) {
  return py::module_::import("json").attr("loads")(text);
}

// ---- variables ----

py::object read_variable(const State& s, const std::string& name) {
  const lang::Location where = here();
  // A program that still runs on another thread may be about to make it: this waits, too.
  const lang::Value value = waited(s.state, [&] { return s.state[lang::Name(name, where)]; });
  if (s.shared->is_traced) return py::cast(value);
  const Result<lang::Content> content = waited(s.state, [&] { return value.content(); });
  if (!content) {
    const lang::Location failed = s.state.error_place();
    throw_status(content.error(), failed.line != 0 ? failed : where);
  }
  const auto reader = s.shared->readers.find(name);
  const auto read = [&](const std::string& text) -> py::object {
    return reader == s.shared->readers.end() ? py::str(text) : reader->second(text);
  };
  if (!content->is_list) return read(content->text);
  py::list items;
  for (const std::string& item : content->items) items.append(read(item));
  return items;
}

py::object meta_info(const State& s, const std::string& name) {
  const lang::Location where = here();
  const lang::MetaInfo meta =
      waited(s.state, [&] { return s.state.meta_info(lang::Name(name, where)); });
  if (!meta.json.empty()) return parse_json(meta.json);
  py::dict fields;
  fields["id"] = meta.id;
  fields["finish_reason"] = meta.finish_reason;
  fields["prompt_tokens"] = meta.prompt_tokens;
  fields["completion_tokens"] = meta.completion_tokens;
  fields["cached_tokens"] = meta.cached_tokens;
  return fields;
}

// What is no text reads as the object that it is, and stands in a prompt as its str().
void set_variable(State& s, const std::string& name, const py::object& value) {
  const lang::Name where(name, here());
  lang::Value known;
  s.shared->readers.erase(name);
  if (py::isinstance<lang::Value>(value)) {
    known = py::cast<lang::Value>(value);
  } else {
    known = lang::Value(py::cast<std::string>(py::str(value)));
    if (!py::isinstance<py::str>(value))
      s.shared->readers[name] = py::cpp_function([value](const py::str&) { return value; });
  }
  unlocked([&] { s.state.set_var(where, std::move(known)); });
}

py::list messages(const State& s) {
  const lang::Location where = here();
  py::list all;
  for (const lang::Message& message : waited(s.state, [&] { return s.state.messages(where); })) {
    py::dict one;
    one["role"] = std::string(lang::role_name(message.role));
    one["content"] = message.text();
    all.append(one);
  }
  return all;
}

// ---- text as it is written ----

// Opened by the first next(), which waits for the program to name the variable.
struct TextIterator {
  lang::State state;
  std::optional<std::string> name;  // none: all of the state's text
  lang::Location where;
  std::optional<lang::TextStream> stream;

  std::string next() {
    std::string piece;
    const Result<bool> more = waited(state, [&] {
      if (!stream)
        stream.emplace(name ? state.stream(lang::Name(*name, where)) : state.stream(where));
      return stream->next(piece);
    });
    if (!more) {
      const lang::Location failed = state.error_place();
      throw_status(more.error(), failed.line != 0 ? failed : where);
    }
    if (!*more) throw py::stop_iteration();
    return piece;
  }
};

// Of the piece that came last, as meta_info has it; None where the back end does not tell.
py::object progress(const TextIterator& pieces) {
  const std::optional<lang::Progress> p = pieces.stream ? pieces.stream->progress() : std::nullopt;
  if (!p) return py::none();
  py::dict meta;
  meta["finish_reason"] = py::none();
  meta["prompt_tokens"] = p->prompt_tokens;
  meta["completion_tokens"] = p->completion_tokens;
  meta["cached_tokens"] = p->cached_tokens;
  if (p->num_logprobs > 0) {
    meta["output_token_logprobs"] = parse_json("[" + p->logprobs + "]");
    meta["output_token_logprobs_length"] = p->num_logprobs;
  }
  return meta;
}

TextIterator text_iterator(const State& s, std::optional<std::string> name) {
  return {s.state, std::move(name), here(), {}};
}

// ---- scopes ----

// What `with` opens and closes: a message, or the text of a variable.
struct ScopeGuard {
  using Open = std::function<lang::Scope(lang::State&)>;
  lang::State state;
  Open open;
  std::optional<lang::Scope> scope;
};

// s.user(expr) appends a message; `with s.user():` opens one.
py::object role(State& s, const py::object& content, lang::Role role,
                lang::Scope (lang::State::*open)(lang::Location)) {
  const lang::Location where = here();
  if (content.is_none())
    return py::cast(ScopeGuard{
        s.state, [open, where](lang::State& state) { return (state.*open)(where); }, {}});
  Expression made = to_expression(content);
  made.expr = lang::role(role, std::move(made.expr), where);
  const py::object message = py::cast(std::move(made));
  s.append(message);
  return message;
}

// ---- branches ----

struct Forks {
  lang::Forks forks;
  std::vector<State> branches;
  State parent;

  void join(const std::string& mode) {
    const lang::Location where = here();
    if (mode == "gather_variable") {
      forks.join(lang::JoinMode::kGatherVariables, where);
    } else if (mode == "concate_and_append" || mode == "concatenate_and_append") {
      forks.join(lang::JoinMode::kConcatenateAndAppend, where);
    } else {
      throw_status(invalid_argument(
                       "join is by \"gather_variable\" or \"concate_and_append\", not {}", mode),
                   where);
    }
    for (const State& branch : branches)
      for (const auto& reader : branch.shared->readers) parent.shared->readers.insert(reader);
  }
  // One for all, a list with one for each, or a function of the branch's index.
  void append(const py::object& what) {
    if (PyCallable_Check(what.ptr()) != 0) {
      for (size_t i = 0; i < branches.size(); ++i) branches[i].append(what(i));
    } else if (py::isinstance<py::sequence>(what) && !py::isinstance<py::str>(what)) {
      const py::sequence all = py::reinterpret_borrow<py::sequence>(what);
      if (all.size() != branches.size())
        throw_status(
            invalid_argument("{} expressions for {} branches", all.size(), branches.size()),
            here());
      for (size_t i = 0; i < branches.size(); ++i) branches[i].append(all[i]);
    } else {
      for (State& branch : branches) branch.append(what);
    }
  }
};

// SGLang's frontend takes the argument and its runtime has no use for it either.
void warn_of_offset(const py::object& offset) {
  if (offset.is_none()) return;
  if (PyErr_WarnEx(PyExc_UserWarning,
                   "position_ids_offset has no effect: a branch's tokens stand behind its prefix",
                   2) != 0)
    throw py::error_already_set();
}

Forks fork(State& s, int size, const py::object& position_ids_offset) {
  const lang::Location where = here();
  warn_of_offset(position_ids_offset);
  lang::Forks forks = unlocked([&] { return s.state.fork(size, where); });
  std::vector<State> branches;
  for (const lang::State& branch : forks) branches.push_back(branch_of(s, branch));
  return {std::move(forks), std::move(branches), s};
}

// `with s.copy() as c:` gives its variables back at the end.
struct Copy {
  Forks forks;
};

void bind_forks(py::module_& m) {
  const auto self_on_enter = [](py::object self) { return self; };
  py::class_<Forks>(m, "ProgramStateGroup", "States that went on from one, each on its own.")
      .def("__len__", [](const Forks& f) { return f.branches.size(); })
      .def("__getitem__",
           [](const Forks& f, int i) {
             const int size = static_cast<int>(f.branches.size());
             if (i < -size || i >= size) throw py::index_error("there is no such branch");
             return f.branches[static_cast<size_t>(i < 0 ? i + size : i)];
           })
      .def("__getitem__",
           [](const Forks& f, const std::string& name) {
             py::list values;
             for (const State& branch : f.branches) values.append(read_variable(branch, name));
             return values;
           })
      // What `forks[i] += ...` ends with: the branch itself.
      .def("__setitem__",
           [](const Forks& f, size_t i, const State& branch) {
             if (i >= f.branches.size() || f.branches[i].state.handle() != branch.state.handle())
               throw py::value_error("a branch cannot be replaced by another state");
           })
      .def("__iter__", [](const Forks& f) { return py::iter(py::cast(f.branches)); })
      .def("__iadd__",
           [](py::object self, const py::object& what) {
             self.cast<Forks&>().append(what);
             return self;
           })
      .def("join", &Forks::join, py::arg("mode") = "gather_variable")
      .def("__enter__", self_on_enter)
      .def("__exit__", [](Forks& f, const py::object& kind, const py::object&, const py::object&) {
        if (kind.is_none()) f.join("gather_variable");
      });
  py::class_<Copy>(m, "_Copy")
      .def("__enter__", [](const Copy& c) { return c.forks.branches.front(); })
      .def("__exit__", [](Copy& c, const py::object& kind, const py::object&, const py::object&) {
        if (kind.is_none()) c.forks.join("gather_variable");
      });
}

py::object error_object(const State& s) {
  const Status status = s.state.error();
  if (status.ok()) return py::none();
  return exception_of(lang::Error(status, s.state.error_place()));
}

}  // namespace

void State::append(const py::handle& any) {
  Expression what = to_expression(any);
  for (auto& [name, reader] : what.readers) shared->readers[name] = reader;
  state += std::move(what.expr);
  if (!shared->is_sequential || shared->is_traced) return;
  const Status done = waited(state, [&] { return state.sync(); });
  ok_or_throw(done, state.error_place());
}

State branch_of(const State& state, lang::State branch) {
  auto shared = std::make_shared<Shared>();
  shared->readers = state.shared->readers;
  shared->is_traced = state.shared->is_traced;
  shared->is_sequential = state.shared->is_sequential;
  return {std::move(branch), std::move(shared)};
}

void bind_states(py::module_& m) {
  bind_forks(m);
  py::class_<TextIterator>(m, "_TextIterator")
      .def("__iter__", [](py::object self) { return self; })
      .def("__next__", &TextIterator::next)
      .def("progress", progress);
  py::class_<ScopeGuard>(m, "_Scope")
      .def("__enter__", [](ScopeGuard& g) { g.scope.emplace(g.open(g.state)); })
      .def("__exit__", [](ScopeGuard& g, const py::args&) { g.scope.reset(); });

  py::class_<State>(m, "ProgramState", "The prompt of a program, as far as it is written.")
      .def("__iadd__",
           [](py::object self, const py::object& what) {
             self.cast<State&>().append(what);
             return self;
           })
      .def("__getitem__", read_variable)
      .def("__setitem__", set_variable)
      .def("__contains__",
           [](const State& s, const std::string& name) {
             return unlocked([&] { return s.state.has(name); });
           })
      .def("get_var", read_variable, py::arg("name"))
      .def("set_var", set_variable, py::arg("name"), py::arg("value"))
      .def("variables",
           [](const State& s) { return unlocked([&] { return s.state.variable_names(); }); })
      .def("get_meta_info", meta_info, py::arg("name"))
      .def("text",
           [](const State& s) {
             const lang::Location where = here();
             return waited(s.state, [&] { return s.state.text(where); });
           })
      .def("__str__",
           [](const State& s) {
             const lang::Location where = here();
             return "ProgramState(" + waited(s.state, [&] { return s.state.text(where); }) + ")";
           })
      .def("messages", messages)
      .def("text_iter", text_iterator, py::arg("var_name") = py::none())
      .def("fork", fork, py::arg("size") = 1, py::arg("position_ids_offset") = py::none())
      .def(
          "copy", [](State& s, const py::object& offset) { return Copy{fork(s, 1, offset)}; },
          py::arg("position_ids_offset") = py::none())
      .def(
          "system",
          [](State& s, const py::object& e) {
            return role(s, e, lang::Role::kSystem, &lang::State::system);
          },
          py::arg("expr") = py::none())
      .def(
          "user",
          [](State& s, const py::object& e) {
            return role(s, e, lang::Role::kUser, &lang::State::user);
          },
          py::arg("expr") = py::none())
      .def(
          "assistant",
          [](State& s, const py::object& e) {
            return role(s, e, lang::Role::kAssistant, &lang::State::assistant);
          },
          py::arg("expr") = py::none())
      .def(
          "var_scope",
          [](State& s, std::string name) {
            const lang::Name scope(std::move(name), here());
            return ScopeGuard{
                s.state, [scope](lang::State& state) { return state.var_scope(scope); }, {}};
          },
          py::arg("name"))
      .def("sync",
           [](const State& s) {
             const Status done = waited(s.state, [&] { return s.state.sync(); });
             ok_or_throw(done, s.state.error_place());
           })
      .def("error", error_object)
      .def("cancel", [](State& s) { unlocked([&] { s.state.cancel(); }); })
      .def_property_readonly("ret_value", [](const State& s) { return s.shared->result; });
}

}  // namespace espalier::python
