// Matches strings against the patterns of a schema, each compiled once. Not thread-safe.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>

#include "base/status.h"
#include "grammar/automata/earley.h"

namespace espalier::grammar {

class StringMatcher {
 public:
  // Compiles the pattern and its look-ahead within the limits. kInvalidArgument or kUnimplemented:
  // the pattern is wrong or not supported; kResourceExhausted: it is too large.
  Status add(std::string_view pattern, const GrammarLimits& limits);

  // Returns whether some part of `text` matches, compiling the pattern on first use.
  Result<bool> matches(std::string_view pattern, std::string_view text,
                       const GrammarLimits& limits);

  size_t num_bytes() const { return bytes_; }  // held by the networks of the patterns

 private:
  struct Pattern {
    Network network;
    std::unique_ptr<EarleyRecogniser> recogniser;
  };
  Result<const Pattern*> pattern_of(std::string_view pattern, const GrammarLimits& limits);

  std::unordered_map<std::string, std::unique_ptr<Pattern>> patterns_;  // null: matches nothing
  size_t bytes_ = 0;
};

// Returns whether `text` is a regular expression of ECMA-262, as far as the parser of
// regex.h decides it.
bool is_regex(std::string_view text);

}  // namespace espalier::grammar
