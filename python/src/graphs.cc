// Programs as data, and what a run recorded.
#include <pybind11/stl.h>

#include "bind.h"

namespace espalier::python {
namespace {

lang::Arguments arguments_of(const std::map<std::string, std::string>& named) {
  lang::Arguments arguments;
  for (const auto& [name, value] : named) arguments.set(name, value);
  return arguments;
}

State run_graph(const lang::Graph& graph, const py::dict& defaults, const py::dict& how,
                const std::map<std::string, std::string>& named) {
  const lang::RunOptions options = run_options(defaults, how);
  const lang::Arguments arguments = arguments_of(named);
  return {unlocked([&] { return lang::run_graph(graph, arguments, options); }),
          std::make_shared<Shared>()};
}

py::dict span_of(const lang::Span& span) {
  py::dict one;
  one["stream"] = span.stream;
  one["parent_stream"] = span.parent_stream;
  one["kind"] = span.kind;
  one["name"] = span.name;
  one["file"] = std::string(span.where.file);
  one["line"] = span.where.line;
  one["wait_seconds"] =
      span.submitted == TimePoint{} ? 0.0 : to_seconds(span.begin - span.submitted);
  one["seconds"] = to_seconds(span.end - span.begin);
  one["prompt_tokens"] = span.prompt_tokens;
  one["cached_tokens"] = span.cached_tokens;
  one["completion_tokens"] = span.completion_tokens;
  one["error"] = span.status.ok() ? std::string() : span.status.to_string();
  return one;
}

}  // namespace

void bind_graphs(py::module_& m) {
  using lang::Graph;
  using Known = std::map<std::string, std::string>;
  py::class_<lang::Plan>(m, "Plan", "Which calls of a graph can run at once.")
      .def_readonly("stages", &lang::Plan::stages)
      .def_readonly("num_calls", &lang::Plan::num_calls)
      .def_readonly("width", &lang::Plan::width)
      .def_property_readonly("parallelism", &lang::Plan::parallelism);
  py::class_<Graph>(m, "Graph", "A traced program as data; runs without its function.")
      .def("to_json", [](const Graph& graph) { return lang::to_json(graph); })
      .def_static(
          "from_json",
          [](const std::string& json) { return value_or_throw(lang::parse_graph(json), here()); },
          py::arg("json"))
      .def("to_svg", [](const Graph& graph) { return lang::to_svg(graph); })
      .def_readonly("name", &Graph::name)
      .def_readonly("parameters", &Graph::parameters)
      .def("__len__", [](const Graph& graph) { return graph.nodes.size(); })
      .def("plan", [](const Graph& graph) { return lang::plan(graph); })
      .def("_fold_constants",
           [](const Graph& graph, const Known& known) {
             return lang::fold_constants(graph, arguments_of(known));
           })
      .def(
          "eliminate_dead",
          [](const Graph& graph, const std::optional<std::vector<std::string>>& outputs) {
            return lang::eliminate_dead(graph, outputs);
          },
          py::arg("outputs") = py::none())
      .def("hoist_common_prefixes",
           [](const Graph& graph) { return lang::hoist_common_prefixes(graph).graph; })
      .def("_optimize",
           [](const Graph& graph, const Known& known) {
             return lang::optimize(graph, arguments_of(known));
           })
      .def("_run", run_graph);
  py::class_<lang::Recorder, std::shared_ptr<lang::Recorder>>(
      m, "Recorder", "What the primitives of a run did and when; pass it as recorder=.")
      .def(py::init<>())
      .def("spans",
           [](const lang::Recorder& recorder) {
             py::list all;
             for (const lang::Span& span : recorder.spans()) all.append(span_of(span));
             return all;
           })
      .def("chrome_trace", &lang::Recorder::chrome_trace)
      .def("tree", &lang::Recorder::tree);
}

}  // namespace espalier::python
