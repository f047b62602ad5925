// Completion scripts for bash, zsh and fish. They hold every command and flag, so that completing
// starts no program.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "apps/describe.h"

namespace espalier::apps {
namespace {

// Calls visit(command) for the program and all below it.
template <typename Visit>
void for_each_command(const CommandDescription& command, Visit&& visit) {
  visit(command);
  for (const CommandDescription& each : command.inner) for_each_command(each, visit);
}

std::string last_word(const std::string& name) { return name.substr(name.rfind(' ') + 1); }

std::string inner_names(const CommandDescription& command) {
  std::string out;
  for (const CommandDescription& each : command.inner)
    out += (out.empty() ? "" : " ") + last_word(each.name);
  return out;
}

// For use between single quotes of a POSIX shell.
std::string in_single_quotes(std::string_view text) {
  std::string out;
  for (const char c : text) out += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return out;
}

std::string summary_of(std::string_view text) {
  return std::string(text.substr(0, text.find('\n')));
}

std::string bash_words(const CommandDescription& command) {
  std::string words = inner_names(command);
  for (const FlagDescription& flag : command.flags) words += " --" + flag.name;
  return words + (command.inner.empty() ? " --help" : " --help help");
}

std::string bash_script(const CommandDescription& program) {
  std::string paths, words, values, files;
  for_each_command(program, [&](const CommandDescription& command) {
    for (const CommandDescription& each : command.inner)
      paths += fmt::format("{}'{}'", paths.empty() ? "" : "|", each.name);
    words += fmt::format("    '{}') words='{}' ;;\n", command.name, bash_words(command));
    for (const FlagDescription& flag : command.flags) {
      if (!flag.choices().empty())
        values += fmt::format("    '{} --{}') values='{}' ;;\n", command.name, flag.name,
                              fmt::join(flag.choices(), " "));
      else if (flag.is_path())
        files += fmt::format("{}'{} --{}'", files.empty() ? "" : "|", command.name, flag.name);
      else if (!flag.value_name.empty() && !flag.value_may_lack)
        values += fmt::format("    '{} --{}') values=' ' ;;\n", command.name, flag.name);
    }
  });
  return fmt::format(R"(# Completion of `{0}` for bash, made by `{0} completion bash`.
_{0}() {{
  local current=${{COMP_WORDS[COMP_CWORD]}} before=${{COMP_WORDS[COMP_CWORD-1]}}
  local command={0} words='' values='' i
  for ((i = 1; i < COMP_CWORD; i++)); do
    case "$command ${{COMP_WORDS[i]}}" in
    {1}) command="$command ${{COMP_WORDS[i]}}" ;;
    esac
  done
  if [[ $before == '=' ]]; then before=${{COMP_WORDS[COMP_CWORD-2]}}; fi
  if [[ $current == '=' ]]; then before=${{COMP_WORDS[COMP_CWORD-1]}} current=''; fi
  case "$command $before" in
    {2}) COMPREPLY=($(compgen -f -- "$current")); compopt -o filenames; return ;;
{3}  esac
  if [[ -n $values ]]; then COMPREPLY=($(compgen -W "$values" -- "$current")); return; fi
  case "$command" in
{4}  esac
  COMPREPLY=($(compgen -W "$words" -- "$current"))
}}
complete -o default -F _{0} {0}
)",
                     program.name, paths, files, values, words);
}

std::string zsh_action(const FlagDescription& flag) {
  if (flag.value_name.empty()) return "";
  std::string action = " ";
  if (!flag.choices().empty())
    action = fmt::format("({})", fmt::join(flag.choices(), " "));
  else if (flag.is_path())
    action = "_files";
  // Two colons: the value may lack.
  return fmt::format("{}{}:{}", flag.value_may_lack ? "::" : ":",
                     flag.choices().empty() ? last_word(flag.value_name) : "value", action);
}

// In a spec of _arguments, brackets and colons have a meaning.
std::string zsh_escaped(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '[' || c == ']' || c == ':' || c == '\\') out += '\\';
    out += c;
  }
  return in_single_quotes(out);
}

std::string zsh_function(const std::string& name) {
  std::string out = "_" + name;
  std::ranges::replace(out, ' ', '_');
  return out;
}

std::string zsh_command(const CommandDescription& command) {
  std::string out = fmt::format("{}() {{\n", zsh_function(command.name));
  if (command.inner.empty()) {
    out += "  _arguments -s \\\n    '--help[print the flags]'";
    for (const FlagDescription& flag : command.flags)
      out += fmt::format(" \\\n    '{}--{}[{}]{}'", flag.takes_several ? "*" : "", flag.name,
                         zsh_escaped(summary_of(flag.help)), zsh_action(flag));
    if (!command.positional.empty()) out += " \\\n    '*:argument:_files'";
    return out + "\n}\n\n";
  }
  out += "  local -a commands=(\n";
  for (const CommandDescription& each : command.inner)
    out += fmt::format("    '{}:{}'\n", last_word(each.name), zsh_escaped(each.what));
  out +=
      "  )\n  if (( CURRENT == 2 )); then _describe command commands; return; fi\n"
      "  shift words; (( CURRENT-- ))\n  case $words[1] in\n";
  for (const CommandDescription& each : command.inner)
    out += fmt::format("    {}) {} ;;\n", last_word(each.name), zsh_function(each.name));
  return out + "  esac\n}\n\n";
}

std::string zsh_script(const CommandDescription& program) {
  std::string out =
      fmt::format("#compdef {0}\n# Completion of `{0}` for zsh, made by `{0} completion zsh`.\n\n",
                  program.name);
  for_each_command(program,
                   [&](const CommandDescription& command) { out += zsh_command(command); });
  return out +
         fmt::format("if [ \"$funcstack[1]\" = _{0} ]; then _{0}; else compdef _{0} {0}; fi\n",
                     program.name);
}

// Whether a fish command line has come to this command, and to none of those below it.
std::string fish_condition(const CommandDescription& command) {
  std::string seen;
  for (size_t begin = command.name.find(' '); begin != std::string::npos;) {
    const size_t end = command.name.find(' ', begin + 1);
    seen += fmt::format("{}__fish_seen_subcommand_from {}", seen.empty() ? "" : "; and ",
                        command.name.substr(begin + 1, end - begin - 1));
    begin = end;
  }
  if (seen.empty()) return "__fish_use_subcommand";
  if (!command.inner.empty())
    seen += "; and not __fish_seen_subcommand_from " + inner_names(command);
  return seen;
}

std::string fish_script(const CommandDescription& program) {
  std::string out =
      fmt::format("# Completion of `{0}` for fish, made by `{0} completion fish`.\n", program.name);
  for_each_command(program, [&](const CommandDescription& command) {
    const std::string condition = fish_condition(command);
    for (const CommandDescription& each : command.inner)
      out += fmt::format("complete -c {} -f -n '{}' -a {} -d '{}'\n", program.name, condition,
                         last_word(each.name), in_single_quotes(each.what));
    for (const FlagDescription& flag : command.flags) {
      out += fmt::format("complete -c {} -n '{}' -l {} -d '{}'", program.name, condition, flag.name,
                         in_single_quotes(summary_of(flag.help)));
      if (!flag.choices().empty())
        out += fmt::format(" -x -a '{}'", fmt::join(flag.choices(), " "));
      else if (flag.is_path())
        out += " -r -F";
      else if (!flag.value_name.empty() && !flag.value_may_lack)
        out += " -x";
      out += "\n";
    }
  });
  return out;
}

}  // namespace

Result<std::string> completion_script(const CommandDescription& program, std::string_view shell) {
  if (shell == "bash") return bash_script(program);
  if (shell == "zsh") return zsh_script(program);
  if (shell == "fish") return fish_script(program);
  return fail(invalid_argument("there is no completion for '{}': bash, zsh or fish", shell));
}

}  // namespace espalier::apps
