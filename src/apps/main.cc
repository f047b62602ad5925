// espalier COMMAND: finds the command and hands its arguments over.
#include <fmt/format.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <string>
#include <system_error>
#include <vector>

#include "apps/command_line.h"
#include "apps/commands.h"
#include "apps/settings.h"
#include "base/fatal_exit.h"

namespace espalier::apps {
namespace {

struct Command {
  std::string name;
  std::string what;
  int (*run)(const std::vector<std::string>&);
};

int run_bench(const std::vector<std::string>& args);
int run_grammar(const std::vector<std::string>& args);

const std::vector<Command>& commands() {
  static const std::vector<Command> all = {
      {"serve", "serve a model over HTTP", run_serve},
      {"generate", "continue a prompt", run_generate},
      {"chat", "talk with a model on the terminal", run_chat},
      {"run", "run a compiled program of the frontend language", run_program},
      {"grammar", "check, explain and test grammars: regex, EBNF, JSON Schema", run_grammar},
      {"bench", "measure a server, an engine or its parts; `bench --help` lists what", run_bench},
      {"inspect", "tell what a model folder holds and the memory it takes", run_inspect},
      {"tokenize", "turn texts into token ids and back", run_tokenize},
      {"template", "print the prompt that a chat template makes", run_template},
  };
  return all;
}

const std::vector<Command>& benches() {
  static const std::vector<Command> all = {
      {"serving", "send a workload to a running server", run_bench_serving},
      {"offline", "run a workload in an engine in this process", run_bench_offline},
      {"grammar", "compile schemas and fill masks along their instances", run_bench_grammar},
      {"radix", "time the radix tree", run_bench_radix},
      {"host", "time the host's work a step, without a model", run_bench_host},
      {"overhead", "what the radix cache costs where nothing is shared", run_bench_overhead},
      {"workloads", "run the SGLang paper's programs, cache on and off", run_bench_workloads},
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

void print_commands(std::string_view program, const std::vector<Command>& list) {
  fmt::print("Usage: {} COMMAND [FLAGS]\n\n", program);
  for (const Command& command : list) fmt::print("  {:<12} {}\n", command.name, command.what);
  fmt::print("\n`{} COMMAND --help` lists a command's flags.\n", program);
}

int dispatch(std::string_view program, const std::vector<Command>& list,
             const std::vector<std::string>& args) {
  const auto is_help = [](std::string_view word) {
    return word == "--help" || word == "-h" || word == "help";
  };
  if (args.empty() || is_help(args[0])) {
    if (args.size() > 1 && !is_help(args[1])) {  // of a command, or of one in its list
      std::vector<std::string> asked(args.begin() + 1, args.end());
      asked.emplace_back("--help");
      return dispatch(program, list, asked);
    }
    print_commands(program, list);
    return args.empty() ? kExitUsage : kExitOk;
  }
  for (const Command& command : list)
    if (command.name == args[0]) return command.run({args.begin() + 1, args.end()});
  if (args[0].starts_with("-"))
    return report(
        invalid_argument("a command comes first: {} {} {} ...", program, list[0].name, args[0]),
        kExitUsage);
  std::vector<std::string> names;
  for (const Command& command : list) names.push_back(command.name);
  const std::string near = nearest(args[0], names);
  return report(
      invalid_argument("there is no command '{}'{} ({} --help lists them)", args[0],
                       near.empty() ? "" : fmt::format("; did you mean {}?", near), program),
      kExitUsage);
}

int run_bench(const std::vector<std::string>& args) {
  return dispatch("espalier bench", benches(), args);
}

int run_grammar(const std::vector<std::string>& args) {
  return dispatch("espalier grammar", grammar_commands(), args);
}

int run(const std::vector<std::string>& args) {
  if (!args.empty() && (args[0] == "--version" || args[0] == "-V" || args[0] == "version")) {
    fmt::print("espalier {}\n", ESPALIER_VERSION);
    return kExitOk;
  }
  return dispatch("espalier", commands(), args);
}

// A full disk, say: from output that is cut short nobody could tell. `why` is 0 where the write
// that failed lies back.
int not_written(int why) {
  return report(error(StatusCode::kUnavailable, "standard output could not be written{}{}",
                      why != 0 ? ": " : "", why != 0 ? std::strerror(why) : ""),
                kExitFailure);
}

}  // namespace
}  // namespace espalier::apps

int main(int argc, char** argv) {
  espalier::tell_when_memory_is_out();
  try {
    const int exit_code = espalier::apps::run({argv + 1, argv + argc});
    errno = 0;
    if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return exit_code;
    return espalier::apps::not_written(errno);
  } catch (const std::system_error& e) {  // fmt::print's, or of a thread that cannot be made
    if (std::ferror(stdout) != 0) return espalier::apps::not_written(e.code().value());
    return espalier::apps::report(
        espalier::error(espalier::StatusCode::kResourceExhausted, "{}", e.what()),
        espalier::apps::kExitFailure);
  }
}
