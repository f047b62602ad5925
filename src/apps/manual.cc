// Manual pages, made from the commands' tables of settings.
#include <fmt/format.h>

#include <algorithm>

#include "apps/describe.h"
#include "apps/settings.h"

namespace espalier::apps {
namespace {

// Text for roff: backslashes and dashes as they are, no line that begins as a request does, and
// alternatives that may stand on several lines.
std::string roff(std::string_view text) {
  std::string out;
  bool begins = true;
  for (const char c : text) {
    if (begins && (c == '.' || c == '\'')) out += "\\&";
    if (c == '\\')
      out += "\\e";
    else if (c == '-')
      out += "\\-";
    else
      out += c;
    if (c == '|') out += "\\:";
    begins = c == '\n';
  }
  return out;
}

std::string page_name(std::string name) {
  std::ranges::replace(name, ' ', '-');
  return name;
}

void add_flag_entry(std::string& out, const FlagDescription& flag) {
  out += ".TP\n\\fB\\-\\-" + roff(flag.name) + "\\fR";
  if (!flag.value_name.empty())
    out += fmt::format("{}\\fI{}\\fR{}", flag.value_may_lack ? " [" : " ", roff(flag.value_name),
                       flag.value_may_lack ? "]" : "");
  out += "\n" + roff(flag.help);
  if (!flag.default_text.empty()) out += "\n[" + roff(flag.default_text) + "]";
  out += fmt::format("\nEnvironment: {}.", roff(environment_name(flag.name)));
  for (const std::string& alias : flag.aliases) out += " Also \\-\\-" + roff(alias) + ".";
  out += "\n";
}

std::string head(const CommandDescription& command, std::string_view version) {
  return fmt::format(".TH \"{}\" 1 \"\" \"Espalier {}\" \"Espalier\"\n.SH NAME\n{} \\- {}\n",
                     page_name(command.name), roff(version), roff(page_name(command.name)),
                     roff(command.what));
}

std::string list_page(const CommandDescription& command, std::string_view version) {
  std::string out = head(command, version);
  out += fmt::format(".SH SYNOPSIS\n\\fB{}\\fR \\fICOMMAND\\fR [\\fIFLAGS\\fR]\n.SH COMMANDS\n",
                     roff(command.name));
  for (const CommandDescription& each : command.inner)
    out += fmt::format(".TP\n\\fB{}\\fR(1)\n{}\n", roff(page_name(each.name)), roff(each.what));
  return out;
}

std::string command_page(const CommandDescription& command, std::string_view version) {
  std::string out = head(command, version);
  out += fmt::format(".SH SYNOPSIS\n\\fB{}\\fR [\\fIFLAGS\\fR]", roff(command.name));
  if (!command.positional.empty()) out += fmt::format(" [\\fI{}\\fR]", roff(command.positional));
  out += "\n.SH DESCRIPTION\n" + roff(command.description) + "\n.SH OPTIONS\n";
  std::vector<std::string> groups;
  for (const FlagDescription& flag : command.flags)
    if (std::ranges::find(groups, flag.group) == groups.end()) groups.push_back(flag.group);
  for (const std::string& group : groups) {
    out += ".SS " + roff(group) + "\n";
    for (const FlagDescription& flag : command.flags)
      if (flag.group == group) add_flag_entry(out, flag);
  }
  if (!command.footer.empty()) out += ".SH EXAMPLES\n.nf\n" + roff(command.footer) + "\n.fi\n";
  out +=
      ".SH CONFIGURATION\nEach setting may stand in the file of \\-\\-config (JSON or TOML) by its "
      "name, or in the environment. A flag wins over the environment, the environment over the "
      "file.\n"
      ".SH EXIT STATUS\n0: success; 1: failure; 2: wrong usage.\n"
      ".SH SEE ALSO\n\\fBespalier\\fR(1)\n";
  return out;
}

void add_pages(std::vector<ManualPage>& pages, const CommandDescription& command,
               std::string_view version) {
  pages.push_back({page_name(command.name) + ".1", command.inner.empty()
                                                       ? command_page(command, version)
                                                       : list_page(command, version)});
  for (const CommandDescription& each : command.inner) add_pages(pages, each, version);
}

}  // namespace

std::vector<ManualPage> manual_pages(const CommandDescription& program, std::string_view version) {
  std::vector<ManualPage> pages;
  add_pages(pages, program, version);
  return pages;
}

}  // namespace espalier::apps
