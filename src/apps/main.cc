// espalier COMMAND: finds the command and hands its arguments over.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "apps/command_line.h"
#include "apps/commands.h"
#include "apps/describe.h"
#include "apps/dispatch.h"
#include "espalier_build_version.h"

namespace espalier::apps {
namespace {

int run_bench(const std::vector<std::string>& args);
int run_grammar(const std::vector<std::string>& args);
int run_cache(const std::vector<std::string>& args);
int run_models(const std::vector<std::string>& args);
int run_own_completion(const std::vector<std::string>& args);
int run_own_manual(const std::vector<std::string>& args);
const std::vector<Command>& benches();
const std::vector<Command>& grammar_commands();
const std::vector<Command>& cache_commands();
const std::vector<Command>& model_commands();

const std::vector<Command>& commands() {
  static const std::vector<Command> all = {
      {"serve", "serve a model over HTTP", run_serve},
      {"route", "pass requests on to several servers", run_route},
      {"generate", "continue a prompt", run_generate},
      {"chat", "talk with a model on the terminal", run_chat},
      {"run", "run a compiled program of the frontend language", run_program},
      {"grammar", "check, explain and test grammars: regex, EBNF, JSON Schema", run_grammar,
       grammar_commands()},
      {"bench", "measure a running server or an engine; `bench --help` lists how", run_bench,
       benches()},
      {"inspect", "print what a model folder contains and the memory it takes", run_inspect},
      {"tokenize", "turn texts into token ids and back", run_tokenize},
      {"template", "print the prompt that a chat template makes", run_template},
      {"models", "list, verify, convert and quantise models", run_models, model_commands()},
      {"cache", "export and import what a running server has cached", run_cache, cache_commands()},
      {"top", "watch a running server", run_top},
      {"replay", "send the requests of a log again", run_replay},
      {"doctor", "say what is wrong with this computer for serving, and what to do", run_doctor},
      {"completion", "print a completion script for bash, zsh or fish", run_own_completion},
      {"manual", "print manual pages", run_own_manual},
  };
  return all;
}

const std::vector<Command>& benches() {
  static const std::vector<Command> all = {
      {"serving", "send a workload to a running server", run_bench_serving},
      {"offline", "run a workload in an engine in this process", run_bench_offline},
      {"fleet", "simulate the router over a fleet of workers", run_bench_fleet},
  };
  return all;
}

const std::vector<Command>& grammar_commands() {
  static const std::vector<Command> all = {
      {"check", "say whether a grammar compiles, and what is refused and why", run_grammar_check},
      {"mask", "list the tokens that may come next", run_grammar_mask},
      {"explain", "show what a grammar compiles to, as SVG too", run_grammar_explain},
      {"test", "judge a file of texts", run_grammar_test},
      {"conformance", "judge a file or suite of schemas with instances", run_grammar_conformance},
  };
  return all;
}

int run_bench(const std::vector<std::string>& args) {
  constexpr std::array<std::string_view, 5> kMoved = {"grammar", "radix", "host", "overhead",
                                                      "workloads"};
  if (!args.empty() && std::ranges::count(kMoved, args[0]) > 0)
    return report(invalid_argument("this benchmark is a command of its own program now: "
                                   "espalier_bench {} (bench/README.md)",
                                   args[0]),
                  kExitUsage);
  return dispatch("espalier bench", benches(), args);
}

int run_grammar(const std::vector<std::string>& args) {
  return dispatch("espalier grammar", grammar_commands(), args);
}

const std::vector<Command>& cache_commands() {
  static const std::vector<Command> all = {
      {"export", "write what a running server has cached to a file", run_cache_export},
      {"import", "let a running server take the pages of such a file", run_cache_import},
  };
  return all;
}

int run_cache(const std::vector<std::string>& args) {
  return dispatch("espalier cache", cache_commands(), args);
}

const std::vector<Command>& model_commands() {
  static const std::vector<Command> all = {
      {"list", "list the models on this computer, and verify their files", run_models_list},
      {"convert", "write a model as GGUF, or a GGUF as a Hugging Face folder", run_models_convert},
      {"quantize", "write a model in fewer bits, as a GGUF or a folder", run_models_quantize},
  };
  return all;
}

// Without a command, models are listed: `espalier models --verify`, `espalier models org/name`.
int run_models(const std::vector<std::string>& args) {
  const bool asks_help = !args.empty() && (args[0] == "--help" || args[0] == "-h");
  const bool lists =
      args.empty() || args[0].starts_with("-") || args[0].find('/') != std::string::npos;
  if (lists && !asks_help) return run_models_list(args);
  if (args[0] != "quantise") return dispatch("espalier models", model_commands(), args);
  return run_models_quantize({args.begin() + 1, args.end()});
}

CommandDescription description() {
  return describe("espalier", "serve large language models, and programs over them", commands());
}

// Both describe their own commands too, so these end at the parsing when they are being described.
int run_own_completion(const std::vector<std::string>& args) {
  return run_completion(being_described() ? CommandDescription() : description(), args);
}
int run_own_manual(const std::vector<std::string>& args) {
  return run_manual(being_described() ? CommandDescription() : description(),
                    ESPALIER_BUILD_VERSION, args);
}

int run(const std::vector<std::string>& args) {
  if (!args.empty() && (args[0] == "--version" || args[0] == "-V" || args[0] == "version")) {
    fmt::print("espalier {}\n", ESPALIER_BUILD_VERSION);
    return kExitOk;
  }
  return dispatch("espalier", commands(), args);
}

}  // namespace
}  // namespace espalier::apps

int main(int argc, char** argv) {
  return espalier::apps::run_main(argc, argv, espalier::apps::run);
}
