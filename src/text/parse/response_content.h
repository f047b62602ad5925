// What stands between the delimiters of a response template's field, as a value. Internal to the
// folder.
#pragma once

#include <boost/json/value.hpp>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"
#include "text/regex/pcre.h"

namespace espalier {

// How a field's text is read. Immutable; thread-safe.
struct ResponseContent {
  enum class Kind { kText, kInt, kFloat, kBool, kJson, kXmlInline, kKvLines };
  Kind kind = Kind::kText;
  bool strip = true;            // kText, kKvLines: white space around a text is not part of it
  bool unquoted_keys = false;   // kJson: {key: 1}
  bool allow_non_json = false;  // kJson: what is none is a text
  std::vector<std::pair<std::string, std::string>> string_delims;  // kJson: around strings
  std::optional<PcreRegex> tag;   // kXmlInline: one member, with the groups `key` and `value`
  bool merge_duplicates = false;  // kXmlInline: a key that comes again makes a list
  std::string line_separator = "\n", key_separator = ":";  // kKvLines
  std::shared_ptr<const ResponseContent> value;            // of members; null: texts as they are

  // Of "content" and "content_args". kInvalidArgument states the member and the reason.
  static Result<ResponseContent> parse(std::string_view kind, const boost::json::value* arguments);

  // kInvalidArgument: the text is no such value.
  Result<boost::json::value> read(std::string_view text) const;
  // Whether a string among the values was written as one.
  bool states_strings() const {
    return kind == Kind::kJson || (value != nullptr && value->kind == Kind::kJson);
  }
};

// An expression of Python's `regex` as PCRE2 has it; "." is any character.
Result<PcreRegex> compile_template_regex(std::string_view pattern);

using ResponseScope = std::vector<std::pair<std::string, boost::json::value>>;

// `shape` with each string "{name}" or "{name.key}" replaced by what `scope` has there.
// kInvalidArgument: it has nothing there.
Result<boost::json::value> apply_transform(const boost::json::value& shape,
                                           const ResponseScope& scope);
// kInvalidArgument: a string mixes a placeholder with other text.
Status check_transform(const boost::json::value& shape);

std::string_view without_space_around(std::string_view text);

}  // namespace espalier
