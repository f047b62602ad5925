// Structured generation: computes exactly which tokens may follow in a sequence. A grammar is
// compiled once for a vocabulary and shared; each sequence has a matcher.
//
//   ESP_ASSIGN_OR_RETURN(auto grammar, compile_grammar(spec, trie, limits));
//   Matcher matcher(grammar);
//   matcher.fill_mask(words);            // bit t: token t may follow
//   matcher.accept_token(token);
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "grammar/automata/transition_network.h"
#include "grammar/ir.h"
#include "grammar/masks/token_trie.h"
#include "grammar/schema/json_schema.h"
#include "grammar/schema/json_syntax.h"
#include "grammar/schema/open_items.h"

namespace espalier::grammar {

// A grammar as source text; equal specs compile to equal grammars.
struct GrammarSpec {
  enum class Kind : uint8_t { kRegex, kEbnf, kJsonSchema, kAnyJson, kChoices, kStructuralTag };
  Kind kind = Kind::kRegex;
  std::string source;  // the pattern, the EBNF text, the schema or the tags; unused for kAnyJson
  std::vector<std::string> choices;              // kChoices
  Whitespace whitespace = Whitespace::kBounded;  // of JSON
  // Free text that precedes the grammar: from reasoning_begin (empty: from the start) to the first
  // reasoning_end (empty: none), then white space. With a reasoning_begin it is optional.
  std::string reasoning_begin, reasoning_end;
  SchemaOptions json;  // kJsonSchema
  friend bool operator==(const GrammarSpec&, const GrammarSpec&) = default;
};

// Returns a cache key that is equal exactly for equal specs.
std::string key_of(const GrammarSpec& spec);

// Parses "regex", "ebnf", "json_schema", "json" (any), "choices" or "structural_tag"; else returns
// kInvalidArgument with the list.
Result<GrammarSpec::Kind> parse_grammar_kind(std::string_view name);

// What has been built of a grammar so far; rules are built on demand.
struct GrammarSize {
  size_t num_rules = 0;  // called rules; all others are inlined
  size_t num_nodes = 0, num_byte_edges = 0, num_call_edges = 0;
  size_t num_byte_classes = 0;
  size_t num_states = 0;  // Earley sets built so far
  size_t num_masks = 0;   // cached so far
};

// A compiled grammar. Thread-safe: sets and masks are built under a lock on demand and read without
// it. Immutable as seen from outside.
class CompiledGrammar {
 public:
  CompiledGrammar(Network network, std::shared_ptr<const TokenTrie> trie,
                  const GrammarLimits& limits);
  // `builder` builds rules on demand.
  CompiledGrammar(std::unique_ptr<NetworkBuilder> builder, std::shared_ptr<const TokenTrie> trie,
                  const GrammarLimits& limits);
  ~CompiledGrammar();
  const TokenTrie& trie() const;
  GrammarSize size() const;
  bool exhausted() const;  // see Matcher::exhausted(); any thread
  // The memory held, which grows with the texts: rules, automata, sets and masks. Any thread.
  size_t num_bytes() const;
  const Network& network() const;  // as far as it is built
  const Network& whole_network();  // builds all rules. REQUIRES: no matcher runs meanwhile
  // Builds all rules and what Matcher::fill_mask_within() needs, once. kInvalidArgument: the
  // grammar is too large for it. Any thread.
  Status prepare_budget();
  // Builds rules before a text reaches them, so that no mask waits for them, until all are built,
  // `stop` returns true (it is asked before each rule), or the rules built here hold
  // kBuiltAheadBytesMax. The lock is taken for one rule at a time. Any thread; `stop` is called
  // without the lock. Matchers that wait for the lock go first.
  void build_ahead(const std::function<bool()>& stop);
  static constexpr size_t kBuiltAheadBytesMax = size_t{8} << 20;
  // Makes masks before a text reaches them: first inside patterns, of the rules that are built, for
  // these take longest, then of the sets that texts are likely to reach. Each part ends when
  // kMasksAheadMax are made, `stop` returns true, or what it has made holds kMasksAheadBytesMax.
  // Locks and threads as in build_ahead().
  void make_masks_ahead(const std::function<bool()>& stop);
  static constexpr size_t kMasksAheadMax = 1000, kLikelyMasksMax = 250;
  static constexpr size_t kMasksAheadBytesMax = size_t{4} << 20;

 private:
  friend class Matcher;
  friend Result<std::shared_ptr<CompiledGrammar>> compile_grammar(const GrammarSpec&,
                                                                  std::shared_ptr<const TokenTrie>,
                                                                  GrammarLimits);
  bool exceeds_limits_at_start(const GrammarLimits& limits);
  bool make_pattern_masks_ahead(const std::function<bool()>& stop);
  void make_likely_masks_ahead(const std::function<bool()>& stop);

  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Lowers and compiles. kInvalidArgument: the source is wrong (with its position); kUnimplemented:
// an unsupported feature (by name); kResourceExhausted: it is too large.
Result<std::shared_ptr<CompiledGrammar>> compile_grammar(const GrammarSpec& spec,
                                                         std::shared_ptr<const TokenTrie> trie,
                                                         GrammarLimits limits = {});

// Follows one sequence. A copy is a fork. Not thread-safe, but matchers of one grammar may run on
// different threads. Shares ownership of the grammar.
class Matcher {
 public:
  explicit Matcher(std::shared_ptr<CompiledGrammar> grammar);

  // Advances by a token's bytes, or ends at an end-of-sequence token. Returns false, and changes
  // nothing, when the grammar does not allow it. It takes tokens that may_take() refuses.
  bool accept_token(TokenId token);
  bool accept_bytes(std::string_view bytes);

  // Returns whether a mask allows the token: accept_token() would take it, and behind it the items
  // of arrays can still differ where they must. A search that is cut short finds that they can.
  bool may_take(TokenId token);

  // Writes words_per_mask() words: bit t % 32 of word t / 32 is set when token t may follow.
  // End-of-sequence ids are set when the text may end here. Returns false when no bit is set, which
  // happens only after a limit was reached: see exhausted().
  bool fill_mask(std::span<uint32_t> words);

  // Like fill_mask(), but allows only tokens behind which `tokens_left` - 1 tokens suffice to end
  // the text; where no token does, those behind which the fewest tokens are needed. So a text whose
  // budget is at least tokens_to_end() when it begins can end within it, unless a check of a value
  // refuses the planned text. REQUIRES: prepare_budget() has succeeded.
  bool fill_mask_within(std::span<uint32_t> words, uint32_t tokens_left);
  // Returns a number of tokens that completes the text, 0 where it may end: the fewest that spell
  // one of the texts of fewest bytes. REQUIRES: as for fill_mask_within().
  uint32_t tokens_to_end() const;

  // Returns the bytes that must follow whatever the tokens, at most `bytes_max`.
  std::string forced_bytes(size_t bytes_max);

  void rollback(size_t steps);  // takes back the last `steps` accepted calls, at most steps()
  size_t steps() const { return history_.size() - 1; }
  bool can_end() const;  // whether the text so far is complete
  bool ended() const { return ended_; }
  bool must_end();  // whether nothing but the end can follow, or the text has ended
  // whether the grammar reached a limit: its masks are incomplete and the request must fail
  bool exhausted() const;
  int32_t words_per_mask() const;

  // Returns the Earley set of the text. Matchers of one grammar in the same set accept the same
  // continuations, except where checks read the text.
  uint64_t state() const { return history_.back(); }

 private:
  class Steps;
  bool fill_mask_ahead(std::span<uint32_t> words);
  std::string_view text_now() const {
    return std::string_view(text_).substr(0, text_sizes_.back());
  }

  // shared: the grammar cache and other sequences hold it too
  std::shared_ptr<CompiledGrammar> grammar_;
  std::vector<uint32_t> history_;            // [step] Earley set
  std::string text_;                         // what was read, kept where checks need it
  std::vector<uint32_t> text_sizes_ = {0};   // [step] its length
  ItemsOfText items_;                        // of text_, where items are compared
  uint32_t budget_check_at_ = ~uint32_t{0};  // with more tokens left no budget restricts a mask
  bool ended_ = false;
};

}  // namespace espalier::grammar
