// Regular expressions by PCRE2, compiled to machine code: those of a model's own files, which the
// operator chose. What a client sends is compiled by text/regex/stream_search.h and never by this.
// A search takes a bounded number of steps, whatever the expression and the text.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"

namespace espalier {

// Immutable after compiling; thread-safe (each search makes its own scratch).
class PcreRegex {
 public:
  struct Limits {
    uint32_t match_steps_max = 10'000'000;  // PCRE2's match limit
    uint32_t heap_kib_max = 64 * 1024;
    bool growing = false;  // find_growing() is to be fast too
  };
  // PCRE2 syntax, UTF-8, \w and the like by Unicode. kInvalidArgument states where and why.
  static Result<PcreRegex> compile(std::string_view pattern) { return compile(pattern, Limits()); }
  static Result<PcreRegex> compile(std::string_view pattern, Limits limits);

  PcreRegex(PcreRegex&&) noexcept;
  PcreRegex& operator=(PcreRegex&&) noexcept;
  ~PcreRegex();

  struct Match {
    size_t begin = 0, end = 0;  // bytes
  };
  // Searches one text again and again. `text` must be valid UTF-8 and outlive the object.
  class Search {
   public:
    Search(const PcreRegex& regex, std::string_view text);
    Search(Search&&) noexcept;
    ~Search();
    // The first match at or after `position` (a character's start). None also when a limit is hit;
    // limit_hit() is true then.
    std::optional<Match> find(size_t position);
    // The same in a text that may go on: with `may_change`, what follows could make another match
    // of it, none, or one that begins at `begin` and is not complete yet.
    struct Growing {
      Match match;
      bool may_change = false;
    };
    std::optional<Growing> find_growing(size_t position);
    void set_text(std::string_view text);
    // The named groups that took part in the last match, and their texts.
    std::vector<std::pair<std::string, std::string>> named_groups() const;
    bool limit_hit() const { return limit_hit_; }

   private:
    struct Impl;
    std::unique_ptr<Impl> impl_;
    bool limit_hit_ = false;
  };

 private:
  struct Impl;
  explicit PcreRegex(std::unique_ptr<const Impl> impl);
  std::unique_ptr<const Impl> impl_;
};

// An expression in the dialect of Hugging Face's tokenizers (Oniguruma) in PCRE2's, where the two
// read the same letters differently: \s and \w by Unicode's properties, \h a hexadecimal digit.
// kUnimplemented for sets within sets and intersections ("&&"), which PCRE2 does not have.
Result<std::string> oniguruma_to_pcre2(std::string_view pattern);
// `text` as an expression that matches it alone.
std::string escape_regex(std::string_view text);

}  // namespace espalier
