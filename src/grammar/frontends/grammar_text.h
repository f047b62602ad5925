// What the parsers of grammar texts share: a cursor that knows its line, characters with escapes,
// and the table of named rules.
//
// Thread safety: none. Ownership: the text is borrowed, as is the Ir.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "base/status.h"
#include "grammar/ir.h"

namespace espalier::grammar {

// A grammar's text and how far it has been read. REQUIRES: the text is valid UTF-8.
class GrammarText {
 public:
  static constexpr int kRepeatMax = 1 << 20;  // the largest bound of a repetition

  explicit GrammarText(std::string_view text) : text_(text), rest_(text) {}

  std::string_view rest() const { return rest_; }
  void set_rest(std::string_view rest) { rest_ = rest; }
  void skip(size_t bytes) { rest_.remove_prefix(bytes); }
  bool done() const { return rest_.empty(); }
  char next() const { return rest_.empty() ? '\0' : rest_[0]; }  // the next byte, or 0 at the end
  bool take(std::string_view text);
  std::string_view take_while(bool (*wanted)(char));
  // Skips to the end of the line, for comments.
  void skip_line();

  int line() const;  // of the next byte, from 1
  Status wrong(std::string_view what) const;

  // Takes a decimal number, saturating above kRepeatMax; nothing where no digit is next.
  std::optional<int32_t> number();
  // Takes {m}, {m,}, {,n} or {m,n} after the opening brace; kUnbounded: no maximum. `space` skips
  // white space.
  template <typename Space>
  Result<std::pair<int32_t, int32_t>> bounds(Space space);
  Status check_bounds(int32_t min, int32_t max) const;
  // Takes one character, or the escape that stands for one: \n \t \r \b \f \\ \" \' \[ \] \- \^
  // \/ \xHH \uHHHH \UHHHHHHHH; \uHHHH\uHHHH is one character above U+FFFF. REQUIRES: not done().
  Result<uint32_t> character();
  // Takes what follows an opening double quote, to the closing one.
  Result<std::string> quoted();

 private:
  Result<uint32_t> hex(size_t digits);
  Result<uint32_t> code_point(size_t digits);
  Result<uint32_t> utf16();

  const std::string_view text_;
  std::string_view rest_;
  mutable size_t lines_read_ = 0, lines_ = 0;  // bytes counted so far, and their lines
};

// Rules by name; a rule may be used before it is defined.
class NamedRules {
 public:
  explicit NamedRules(Ir& ir) : ir_(ir) {}

  RuleId use(std::string_view name, const GrammarText& text);
  Result<RuleId> define(std::string_view name, const GrammarText& text);
  // Returns the rule with which texts begin, or an error where a rule is missing.
  Result<RuleId> root(std::string_view name) const;

 private:
  struct Entry {
    RuleId id = 0;
    bool defined = false;
    int line = 0;  // where the rule was first named
  };
  Entry& entry(std::string_view name, const GrammarText& text);

  Ir& ir_;
  std::map<std::string, Entry, std::less<>> rules_;
};

template <typename Space>
Result<std::pair<int32_t, int32_t>> GrammarText::bounds(Space space) {
  space();
  const auto low = number();
  space();
  auto high = low;
  if (take(",")) {
    space();
    high = number();
    space();
    if (!high) high = kUnbounded;
  } else if (!low) {
    return fail(wrong("a repetition needs a number"));
  }
  if (!take("}")) return fail(wrong("a repetition does not end: '}' is expected"));
  ESP_RETURN_IF_ERROR(check_bounds(low.value_or(0), *high));
  return std::pair(low.value_or(0), *high);
}

}  // namespace espalier::grammar
