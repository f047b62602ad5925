// What a tokenizer.json's "normalizer" does to text before it is cut into words.
#pragma once

#include <boost/json/fwd.hpp>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace espalier {

// Immutable; thread-safe.
class Normalizer {
 public:
  Normalizer() = default;  // changes nothing
  // `value`: a normalizer object of tokenizer.json, at `path` in it. kUnimplemented names a type
  // that is not supported.
  static Result<Normalizer> parse(const boost::json::value& value, const std::string& path);

  bool empty() const { return steps_.empty(); }
  // Unicode's normal forms and nothing else (or nothing at all): a text can then be normalised in
  // parts that begin with letters after line ends.
  bool unicode_form_only() const { return unicode_form_only_; }
  // `text` is valid UTF-8, and so is the result.
  std::string apply(std::string_view text) const;

 private:
  using Step = std::function<std::string(std::string)>;
  std::vector<Step> steps_;
  bool unicode_form_only_ = true;
};

enum class UnicodeForm { kNfc, kNfd, kNfkc, kNfkd };
// Unicode normalisation in O(n log n), runs of combining marks of any length included; characters
// that came after Unicode 9 stay as they are, as in the reference. `text` is valid UTF-8.
std::string normalize_unicode(std::string text, UnicodeForm form);

// Replaces every match; pieces of tokenizer.json's Replace, which decoders share.
Result<std::function<std::string(std::string)>> parse_replace(const boost::json::value& value,
                                                              const std::string& path);

}  // namespace espalier
