// Tool calls written with markup, argument by argument:
//   <tool_call><function=f><parameter=city>Paris</parameter></function></tool_call>
// and its kin of other model families. Internal to the folder.
#pragma once

#include <boost/json/fwd.hpp>
#include <memory>
#include <string>
#include <vector>

#include "text/parse/tool_call_parser.h"

namespace espalier {

// The marks of one family. A name or a key is bare, between two marks, or an attribute of a tag:
// <invoke name="f">, <parameter name="city" string="true">.
struct MarkupSyntax {
  std::vector<std::string> opens, closes;  // marks around calls, which mean nothing themselves
  std::string call;                        // begins a call
  std::vector<std::string> name_ends;      // of a bare name; empty: the name is an attribute
  std::vector<std::string> call_ends;      // the first one is the regular one
  std::string key, key_end;                // around a bare key; key_end empty: it is an attribute
  std::string value, value_end;            // around the value; value empty: it follows the key
  std::string tag_end = ">";               // ends a tag that has attributes
  bool is_xml = false;                     // values have entities and CDATA sections
  std::vector<std::string> ignored;        // marks that are dropped from the text around calls

  // Whether a bare name ends by its mark alone; else the arguments or the call's end may follow it.
  bool closes_names() const { return name_ends.size() == 1 && name_ends[0] == tag_end; }
};

// Values are written as JSON by the types that the tools' schemas, or the attributes "string" and
// "type", state; without any a value is a string. Arguments may also be one JSON object in place of
// the markup. Thread-safe. `tools`: a checked list, or null.
std::unique_ptr<ToolCallParser> make_markup_calls(MarkupSyntax syntax,
                                                  std::shared_ptr<const boost::json::value> tools);

}  // namespace espalier
