// The text of a value between marks, and the attributes of a tag. Internal to the folder.
#pragma once

#include <initializer_list>
#include <string>
#include <string_view>

#include "text/parse/mark_finder.h"

namespace espalier {

// Characters of tool names; what has others is no name.
bool is_tool_name_char(char c);

// The value of the first of `names` that a tag's text has, as in ` name="f" string='true'`; quotes
// may be missing, and &amp; and &quot; are decoded. "" where it has none. Pure.
std::string markup_attribute(std::string_view tag, std::initializer_list<std::string_view> names);

// Reads text up to `end`. With `is_xml` the five entities of XML are decoded and CDATA sections are
// read as they are. Not thread-safe.
class MarkupText {
 public:
  MarkupText(std::string end, bool is_xml);

  // Appends to `text` the characters that are certain; true when `end` is complete.
  bool take(char c, std::string& text);
  std::string flush();  // the characters that could still have become a mark or an entity

 private:
  void add(char c, std::string& text);

  const bool is_xml_;
  MarkFinder marks_;  // the end, and with is_xml the begin of a CDATA section
  MarkFinder cdata_end_;
  bool in_cdata_ = false;
  std::string entity_;  // from its '&' on
};

}  // namespace espalier
