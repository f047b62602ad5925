// What each command of a program takes, as data: from it completions and manual pages are made. The
// settings are those of the commands' own tables.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "apps/dispatch.h"
#include "base/status.h"

namespace espalier::apps {

struct FlagDescription {
  std::string name;        // without dashes
  std::string value_name;  // empty: a switch
  std::string help, group, default_text;
  std::vector<std::string> aliases;
  bool takes_several = false, value_may_lack = false;

  // "a", "b", "c" of a value named "a|b|c"; empty for other values.
  std::vector<std::string> choices() const;
  bool is_path() const;  // a file or a folder
};

struct CommandDescription {
  std::string name;  // "espalier grammar check"
  std::string what;  // one line, without a full stop
  std::string description, footer, positional;
  std::vector<FlagDescription> flags;
  std::vector<CommandDescription> inner;  // of a command that has commands
};

// Describes the program and all of its commands. Each command's function runs up to the parsing of
// its arguments, which gives its description and ends it.
CommandDescription describe(std::string_view program, std::string_view what,
                            const std::vector<Command>& list);

// A script that completes the program's command line in "bash", "zsh" or "fish": commands, flags,
// and values that are a choice or a path. kInvalidArgument for another shell.
Result<std::string> completion_script(const CommandDescription& program, std::string_view shell);

struct ManualPage {
  std::string file_name;  // "espalier-serve.1"
  std::string text;       // roff, with the macros of man(7)
};
// One page for the program and one for each command.
std::vector<ManualPage> manual_pages(const CommandDescription& program, std::string_view version);

// The bodies of `espalier completion` and `espalier manual`.
int run_completion(const CommandDescription& program, const std::vector<std::string>& args);
int run_manual(const CommandDescription& program, std::string_view version,
               const std::vector<std::string>& args);

}  // namespace espalier::apps
