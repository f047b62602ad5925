// The formats of tool calls, as data. Internal to the folder. Thread-safe: the table is constant
// and lives as long as the process.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "text/parse/markup_calls.h"
#include "text/parse/named_calls.h"

namespace espalier {

// How a grammar writes calls: group_begin HEAD name HEAD_END arguments TAIL separator ...
// group_end.
struct ToolCallWriting {
  std::string group_begin, group_end, separator;
  std::string head, head_end, tail;
  std::string style;              // of the arguments: "json", or a style of structural tags
  std::string trigger;            // opens a call, or a group, in free text
  std::string call_trigger = {};  // of a format with groups: opens a call without one
};

struct ToolCallFormat {
  enum class Kind {
    kJson,
    kNamed,
    kMarkup,
    kPythonic,
    kHarmony,
    kGemma,
    kNested,
    kResponseTemplate
  };
  std::string name;
  Kind kind = Kind::kJson;
  std::string begin, end;                 // marks around a call, or around all of them
  std::vector<std::string> other_begins;  // marks that mean the same as `begin`
  std::vector<std::string> ignored;       // marks that are dropped from the text around calls
  bool bare = false;                      // a call at the answer's start needs no mark
  bool names_outside = false;             // name[ARGS]{...} is understood too
  bool key_is_name = false;               // a call is {"f": {...}}
  std::string arguments = "arguments";    // the name of the member that has the arguments
  std::string name_member = "name";       // the name of the member that has the name
  NamedCallMarks named;                   // of kNamed
  MarkupSyntax markup;                    // of kMarkup
  ToolCallWriting writing;                // of kNamed and kMarkup
  std::string sign;                       // a chat template that contains it has this format

  // `begin`, then `other_begins`, then `ignored`.
  std::vector<std::string> text_marks() const;
  // All that a vocabulary may have as tokens of their own, first the one that opens calls.
  std::vector<std::string> marks() const;
};

const ToolCallFormat* find_tool_call_format(std::string_view name);  // null: there is none

// The order decides which format a template has that contains several signs: the first one matches.
const std::vector<ToolCallFormat>& tool_call_formats();

}  // namespace espalier
