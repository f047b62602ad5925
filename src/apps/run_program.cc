// espalier run: a program of the frontend language that was compiled and written down as JSON.
#include <boost/json.hpp>
#include <cstdio>
#include <fstream>
#include <iterator>

#include "apps/commands.h"
#include "apps/session.h"
#include "lang/backends/engine_backend.h"
#include "lang/backends/http_backends.h"
#include "lang/graph/graph.h"
#include "lang/graph/passes.h"
#include "lang/interpreter/stream.h"
#include "lang/recorder.h"
#include "seams/request_fields.h"

namespace espalier::apps {
namespace {

namespace json = boost::json;

struct RunOptions {
  std::vector<std::string> arguments;
  std::string url;
  std::filesystem::path svg, trace;
  bool json = false, tree = false, plan = false, optimize = false;
  SamplingParams sampling;
};

Result<lang::Graph> read_program(const std::string& file) {
  std::ifstream in(file, std::ios::binary);
  if (!in) return fail(error(StatusCode::kNotFound, "the program {} cannot be read", file));
  const std::string text{std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
  auto graph = lang::parse_graph(text);
  if (!graph) return fail(graph.error().with_context(file));
  return graph;
}

Result<lang::Arguments> parse_arguments(const std::vector<std::string>& words) {
  lang::Arguments arguments;
  for (const std::string& word : words) {
    const size_t equals = word.find('=');
    if (equals == std::string::npos || equals == 0)
      return fail(invalid_argument("--arg {}: write NAME=TEXT", word));
    arguments.set(word.substr(0, equals), word.substr(equals + 1));
  }
  return arguments;
}

// The command line's sampling parameters, which gens that do not state them take.
lang::GenOptions defaults_of(const SamplingParams& p) {
  lang::GenOptions o;
  for_each_request_field([&](const auto& field) {
    if constexpr (HasField<decltype(field.option), lang::GenOptions>)
      if (field.in(kInCommand)) {
        using Option = std::remove_cvref_t<decltype(field.option(o))>;
        if constexpr (std::is_same_v<Option, std::remove_cvref_t<decltype(field.param(p))>>)
          field.option(o) = field.param(p);
      }
  });
  return o;
}

void print_plan(const lang::Graph& graph) {
  const lang::Plan plan = lang::plan(graph);
  fmt::print("{}: {} nodes, {} prompt states, {} calls in {} stages, at most {} at once\n",
             graph.name, graph.nodes.size(), graph.num_streams, plan.num_calls, plan.stages.size(),
             plan.width);
  for (size_t i = 0; i < plan.stages.size(); ++i) {
    fmt::print("  stage {}:", i + 1);
    for (int32_t node : plan.stages[i]) {
      const lang::GraphNode& n = graph.nodes[static_cast<size_t>(node)];
      fmt::print(" {} (state {})", n.name.empty() ? "gen" : n.name, n.stream);
    }
    fmt::print("\n");
  }
}

void print_result(const lang::State& state, bool as_json) {
  if (!as_json) return fmt::print("{}\n", state.text());
  json::object variables;
  for (const std::string& name : state.variable_names()) {
    const lang::Value value = state[name];
    const auto content = value.content();
    if (!content) continue;
    if (content->is_list) {
      variables[name] = json::value_from(content->items);
    } else {
      variables[name] = content->text;
    }
  }
  fmt::print("{}\n", json::serialize(json::object{{"text", state.text()},
                                                  {"variables", std::move(variables)}}));
}

Result<std::shared_ptr<lang::Backend>> make_backend(const RunOptions& options, AppConfig& config) {
  if (!options.url.empty()) return lang::runtime_endpoint(options.url);
  ESP_ASSIGN_OR_RETURN(auto engine, start_engine(config));
  return lang::engine_backend(std::shared_ptr<Engine>(std::move(engine)));
}

Status run_it(const std::string& file, const RunOptions& options, AppConfig& config) {
  ESP_ASSIGN_OR_RETURN(lang::Graph graph, read_program(file));
  if (options.optimize) graph = lang::optimize(graph);
  if (!options.svg.empty()) ESP_RETURN_IF_ERROR(write_file(options.svg, lang::to_svg(graph)));
  if (options.plan) {
    print_plan(graph);
    return {};
  }
  ESP_ASSIGN_OR_RETURN(const lang::Arguments arguments, parse_arguments(options.arguments));
  ESP_ASSIGN_OR_RETURN(auto backend, make_backend(options, config));
  lang::RunOptions run{.backend = std::move(backend), .defaults = defaults_of(options.sampling)};
  if (options.tree || !options.trace.empty()) run.recorder = std::make_shared<lang::Recorder>();
  const lang::State state = lang::run_graph(graph, arguments, run);
  if (options.tree) note(run.recorder->tree());
  if (!options.trace.empty())
    ESP_RETURN_IF_ERROR(write_file(options.trace, run.recorder->chrome_trace()));
  ESP_RETURN_IF_ERROR(state.error());
  print_result(state, options.json);
  return {};
}

}  // namespace

int run_program(const std::vector<std::string>& args) {
  AppConfig config;
  config.log_level = "warning";
  RunOptions options;
  SettingTable table;
  table.group("Program");
  table.list("arg", options.arguments, "NAME=TEXT", "an argument of the program; once for each");
  table.text("url", options.url, "URL", "a running server instead of a model in this process");
  table.toggle("optimize", options.optimize,
               "remove dead branches, fold constants, hoist what branches share");
  table.group("Output");
  table.toggle("json", options.json, "{\"text\", \"variables\"} instead of the text");
  table.toggle("plan", options.plan, "print which calls can run at once, and run nothing");
  table.result_file("svg", options.svg, "draw the program's graph to this file");
  table.toggle("tree", options.tree, "what each primitive did and when, on standard error");
  table.result_file("trace", options.trace, "the same as a Chrome trace, to this file");
  add_sampling_settings(table, options.sampling);
  CommandLine command{"espalier run",
                      "Runs a compiled program of the frontend language (lang::to_json).",
                      "Examples:\n"
                      "  espalier run tips.json --arg topic=sailing --tree\n"
                      "  espalier run tips.json --plan --svg tips.svg",
                      "FILE",
                      {}};
  if (const auto exit_code = parse_engine_command(command, table, config, args)) return *exit_code;
  if (command.words.size() != 1)
    return report(invalid_argument("name one program: espalier run FILE.json"), kExitUsage);
  const Status status = run_it(command.words[0], options, config);
  if (status.ok()) return kExitOk;
  return report(status, status.code() == StatusCode::kInvalidArgument ? kExitUsage : kExitFailure);
}

}  // namespace espalier::apps
