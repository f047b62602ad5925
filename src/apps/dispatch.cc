#include "apps/dispatch.h"

#include <fmt/format.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <system_error>

#include "apps/command_line.h"
#include "apps/settings.h"
#include "base/fatal_exit.h"
#include "base/memory_reserve.h"

namespace espalier::apps {
namespace {

void print_commands(std::string_view program, const std::vector<Command>& list) {
  fmt::print("Usage: {} COMMAND [FLAGS]\n\n", program);
  for (const Command& command : list) fmt::print("  {:<12} {}\n", command.name, command.what);
  fmt::print("\n`{} COMMAND --help` lists a command's flags.\n", program);
}

// `error_number` is errno after the failed flush; it is 0 when an earlier write failed. Without
// this error a caller could not distinguish truncated output (a full disk) from complete output.
int report_write_failure(int error_number) {
  return report(
      error(StatusCode::kUnavailable, "standard output could not be written{}{}",
            error_number != 0 ? ": " : "", error_number != 0 ? std::strerror(error_number) : ""),
      kExitFailure);
}

}  // namespace

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

int run_main(int argc, char** argv, CommandFunction run) {
  report_memory_exhaustion();
  take_memory_reserve();
  try {
    const int exit_code = run({argv + 1, argv + argc});
    errno = 0;
    if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return exit_code;
    return report_write_failure(errno);
  } catch (const std::system_error& e) {  // from fmt::print, or a thread that cannot be created
    if (std::ferror(stdout) != 0) return report_write_failure(errno);
    return report(error(StatusCode::kResourceExhausted, "{}", e.what()), kExitFailure);
  }
}

}  // namespace espalier::apps
