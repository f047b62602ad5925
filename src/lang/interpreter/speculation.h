// API speculation (section 5 of the SGLang paper): an API's call runs past its stop, and what
// it wrote too much answers the primitives that follow, as far as it agrees with them. Pure text;
// lang/interpreter/live_stream.h makes the calls.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/status.h"
#include "lang/options.h"

namespace espalier::lang {

// What a completion API wrote beyond what was asked. One for each prompt state.
class Lookahead {
 public:
  // A call's whole text and what its gen takes of it: all before the first of `stops`. Nothing when
  // no stop is in it, and more may follow (`complete`: the model ended by itself).
  std::optional<std::string> split(std::string_view text, const Strings& stops, bool complete);
  // The gen's text out of what is left, nothing when it is not (wholly) there.
  std::optional<std::string> take(const Strings& stops);
  // Constant text comes next: what is left must begin with it, or it is dropped.
  void expect(std::string_view constant);
  void clear() { left_.clear(), complete_ = false; }
  bool empty() const { return left_.empty() && !complete_; }

 private:
  std::string left_;
  bool complete_ = false;  // nothing follows `left_`
};

// One message of a chat API: constants and holes in order.
struct TemplateItem {
  bool is_hole = false;
  std::string text;  // of a constant
  Strings stops;     // of a hole
};
// The holes' texts when `text` reads as the template: each hole goes up to the constant that
// follows it or, where none does, to its first stop or the end. Nothing when a constant is missing.
std::optional<std::vector<std::string>> match_template(const std::vector<TemplateItem>& items,
                                                       std::string_view text);

// Before the first of `stops`; npos when none is there.
size_t find_stop(std::string_view text, const Strings& stops);

}  // namespace espalier::lang
