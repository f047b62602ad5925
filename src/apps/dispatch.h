// A program of several commands: finds the one that the arguments name and runs it. Used by
// `espalier` and by bench/'s `espalier_bench`.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace espalier::apps {

// Takes the arguments behind the command's name and returns an exit code of command_line.h.
using CommandFunction = int (*)(const std::vector<std::string>& args);

struct Command {
  std::string name;
  std::string what;  // one line of the program's help
  CommandFunction run;
  std::vector<Command> inner = {};  // of a command that has commands: those that `run` dispatches
};

// Runs the command of `list` that args[0] names. `PROGRAM --help` lists the commands and
// `PROGRAM help COMMAND` prints the help of one. An unknown name is a usage error that suggests
// the nearest one. `list` must not be empty.
int dispatch(std::string_view program, const std::vector<Command>& list,
             const std::vector<std::string>& args);

// The body of main(): calls `run` with the arguments and returns its exit code, or kExitFailure
// when standard output could not be written or the system refused a thread. It installs the
// handler that reports exhausted memory (base/fatal_exit.h).
int run_main(int argc, char** argv, CommandFunction run);

}  // namespace espalier::apps
