// sglang.Engine's own interface over the engine in this process: /generate without HTTP.
#include <pybind11/stl.h>

#include "api/native_call.h"
#include "bind.h"
#include "lang/backends/engine_backend.h"

namespace espalier::python {
namespace {

using api::NativeCall;

// The call that Python holds: when it goes before the end, so do the requests.
struct Generation {
  std::unique_ptr<NativeCall> call;
  lang::Location where;
};

std::shared_ptr<Engine> engine_behind(const lang::Backend& backend) {
  auto engine = lang::engine_of(backend);
  if (engine == nullptr)
    throw_status(
        error(StatusCode::kUnimplemented, "{} is no engine of this process", backend.name()),
        here());
  return engine;
}

std::unique_ptr<Generation> generate(const lang::Backend& backend, const std::string& body) {
  const lang::Location where = here();
  auto engine = engine_behind(backend);
  auto call = unlocked([&] { return NativeCall::submit(std::move(engine), body); });
  return std::make_unique<Generation>(Generation{value_or_throw(std::move(call), where), where});
}

py::object parsed(const std::string& text) {
  return py::module_::import("json").attr("loads")(text);
}

}  // namespace

void bind_engine(py::module_& m) {
  py::class_<Generation>(m, "_Generation")
      .def("result",
           [](Generation& g) -> py::object {
             auto all = unlocked([&] { return g.call->all(); });
             py::list list;
             for (const std::string& one : value_or_throw(std::move(all), g.where))
               list.append(parsed(one));
             if (g.call->is_list()) return list;
             return list[0];
           })
      .def("__iter__", [](py::object self) { return self; })
      .def("__next__", [](Generation& g) {
        auto next = unlocked([&] { return g.call->next(); });
        const std::string one = value_or_throw(std::move(next), g.where);
        if (one.empty()) throw py::stop_iteration();
        return parsed(one);
      });
  m.attr("_body_schema") = py::str(NativeCall::body_schema());
  m.attr("_sampling_schema") = py::str(NativeCall::sampling_schema());
  m.def("_generate", generate, py::arg("backend"), py::arg("body"));
  m.def("_abort", [](const lang::Backend& backend, const std::string& rid, bool all) {
    engine_behind(backend)->abort(rid,
                                  all ? Engine::AbortScope::kAll : Engine::AbortScope::kPrefix);
  });
  m.def("_shut_down", [](const lang::Backend& backend) {
    const auto engine = engine_behind(backend);
    unlocked([&] {
      engine->drain(Duration::zero());
      (void)engine->flush_cache();  // nothing runs any more
    });
  });
}

}  // namespace espalier::python
