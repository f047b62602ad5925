// What a tokenizer.json's "pre_tokenizer" does: cuts normalised text into the words within which
// byte pairs are merged.
#pragma once

#include <boost/json/fwd.hpp>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "text/tokenizer/splitter.h"

namespace espalier {

// Immutable; thread-safe.
class PreTokenizer {
 public:
  PreTokenizer() = default;  // one word
  // `value`: a pre_tokenizer object of tokenizer.json, at `path` in it. kUnimplemented names what
  // is not supported.
  static Result<PreTokenizer> parse(const boost::json::value& value, const std::string& path);

  // Whether words are bytes (a ByteLevel step): the vocabulary then spells bytes as characters.
  bool byte_level() const { return byte_level_; }
  // Whether words of invalid UTF-8 come out byte for byte.
  bool keeps_invalid_utf8() const;

  // Whether a word always ends before a line that begins with a letter, whatever stands before it.
  bool cuts_at_lines() const;

  // Calls fn(word) for each word of `text`, in order. `at_start`: the text begins the input.
  template <typename Fn>
  void for_each_word(std::string_view text, bool at_start, Fn&& fn) const {
    if (steps_.size() == 1 && steps_[0].rules && steps_[0].covers_all) {
      const SplitRules& rules = *steps_[0].rules;
      for (size_t begin = 0; begin < text.size();) {
        const size_t end = next_word_end(rules, text, begin);
        fn(text.substr(begin, end - begin));
        begin = end;
      }
    } else {
      run(0, text, at_start, std::function<void(std::string_view)>(std::ref(fn)));
    }
  }

 private:
  using FindParts = std::function<void(std::string_view, std::vector<SplitPart>&)>;
  struct Step {
    // A step that changes text: what it makes of it (`at_start` as above); else a split.
    std::function<std::optional<std::string>(std::string_view, bool at_start)> transform;
    std::optional<SplitRules> rules;  // cut by hand
    bool covers_all = false;          // with rules: every word is kept as it is
    FindParts find_parts;             // any other way to find delimiters
    SplitBehavior behavior = SplitBehavior::kIsolated;
    bool invert = false;
  };

  Status add(const boost::json::value& value, const std::string& path);
  Status add_split(const boost::json::value& value, const std::string& path);
  Status add_byte_level(const boost::json::value& value, const std::string& path);
  Status add_metaspace(const boost::json::value& value, const std::string& path);
  void add_known(const SplitRules& rules, SplitBehavior behavior, bool invert);
  void add_predicate(std::function<bool(char32_t)> is_delimiter, SplitBehavior behavior);
  Status add_regex(std::string_view pcre_pattern, SplitBehavior behavior, bool invert);
  void run(size_t step, std::string_view text, bool at_start,
           const std::function<void(std::string_view)>& fn) const;

  std::vector<Step> steps_;
  bool byte_level_ = false;
};

}  // namespace espalier
