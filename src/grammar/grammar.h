// Structured generation: what a request may say next, exactly. A grammar is compiled once for a
// vocabulary and shared; each sequence has a matcher that follows its text.
//
//   ESP_ASSIGN_OR_RETURN(auto grammar, compile_grammar(spec, trie, limits));
//   Matcher matcher(grammar);
//   matcher.fill_mask(words);            // bit t: token t may come
//   matcher.accept_token(token);
#pragma once

#include <cstdint>
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

namespace espalier::grammar {

// What a user asks for, as text; equal specs compile to the same grammar.
struct GrammarSpec {
  enum class Kind : uint8_t { kRegex, kEbnf, kJsonSchema, kAnyJson, kChoices, kStructuralTag };
  Kind kind = Kind::kRegex;
  std::string source;  // the pattern, the EBNF text, the schema, the tags; unused for kAnyJson
  std::vector<std::string> choices;              // kChoices
  Whitespace whitespace = Whitespace::kBounded;  // of JSON
  // Free text that comes before: from reasoning_begin (empty: from the start) to the first
  // reasoning_end (empty: there is none), and white space. With a beginning it may be left out.
  std::string reasoning_begin, reasoning_end;
  SchemaOptions json;  // kJsonSchema
  friend bool operator==(const GrammarSpec&, const GrammarSpec&) = default;
};

// A text that is the same exactly for equal specs: compiled grammars are cached under it.
std::string key_of(const GrammarSpec& spec);

// "regex", "ebnf", "json_schema", "json" (any), "choices" or "structural_tag"; else
// kInvalidArgument with the list.
Result<GrammarSpec::Kind> parse_grammar_kind(std::string_view name);

// What a grammar has become so far: rules are made when texts reach them.
struct GrammarSize {
  size_t num_rules = 0;  // those that are called; all others are inlined
  size_t num_nodes = 0, num_byte_edges = 0, num_call_edges = 0;
  size_t num_byte_classes = 0;
  size_t num_states = 0;  // of the recogniser, made so far
  size_t num_masks = 0;   // kept so far
};

// Immutable from outside, thread-safe: its states and masks are made under a lock as texts need
// them; what is made is read without it.
class CompiledGrammar {
 public:
  CompiledGrammar(Network network, std::shared_ptr<const TokenTrie> trie,
                  const GrammarLimits& limits);
  // Of a network whose rules are made when texts reach them.
  CompiledGrammar(std::unique_ptr<NetworkBuilder> builder, std::shared_ptr<const TokenTrie> trie,
                  const GrammarLimits& limits);
  ~CompiledGrammar();
  const TokenTrie& trie() const;
  GrammarSize size() const;
  bool exhausted() const;          // see Matcher::exhausted(); for any thread
  size_t num_bytes() const;        // what the states and masks made so far take; for any thread
  const Network& network() const;  // as far as it is made
  const Network& whole_network();  // all rules made; REQUIRES: no matcher is used meanwhile

 private:
  friend class Matcher;
  friend Result<std::shared_ptr<CompiledGrammar>> compile_grammar(const GrammarSpec&,
                                                                  std::shared_ptr<const TokenTrie>,
                                                                  GrammarLimits);
  bool exceeds_limits_at_start(const GrammarLimits& limits);

  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Lowers and compiles. kInvalidArgument: the source is wrong (says where); kUnimplemented: it asks
// for what is not supported (says what); kResourceExhausted: it is too large.
Result<std::shared_ptr<CompiledGrammar>> compile_grammar(const GrammarSpec& spec,
                                                         std::shared_ptr<const TokenTrie> trie,
                                                         GrammarLimits limits = {});

// The same without a vocabulary: what texts the grammar has.
Result<Network> compile_network(const GrammarSpec& spec, GrammarLimits limits = {});

// Follows one sequence. Copyable: a copy is a fork. Not thread-safe itself; matchers of one grammar
// may be used from different threads.
class Matcher {
 public:
  explicit Matcher(std::shared_ptr<CompiledGrammar> grammar);

  // Goes on by a token's bytes, or ends at an end-of-sequence token. False, and nothing changed,
  // when the grammar does not allow it.
  bool accept_token(TokenId token);
  bool accept_bytes(std::string_view bytes);

  // Writes words_per_mask() words: bit t % 32 of word t / 32 is set when token t may come next.
  // End-of-sequence ids are set when the text may end here. False when no bit is set (only after
  // limits were reached: see exhausted()).
  bool fill_mask(std::span<uint32_t> words);

  // The bytes that must come next, whatever the tokens: at most `bytes_max`.
  std::string forced_bytes(size_t bytes_max);

  void rollback(size_t steps);  // takes back that many accepted calls; at most steps() of them
  size_t steps() const { return history_.size() - 1; }
  bool can_end() const;  // the text so far is complete
  bool ended() const { return ended_; }
  bool must_end();         // nothing but the end can follow (or it has ended)
  bool exhausted() const;  // the grammar's limit on states was reached; the mask is not to be
                           // trusted and the request fails
  int32_t words_per_mask() const;

  // The state that its text has led to: matchers of one grammar that are in the same one take the
  // same texts from here, but for what checks say of the text before.
  uint64_t state() const { return history_.back(); }

 private:
  class Steps;
  std::string_view text_now() const {
    return std::string_view(text_).substr(0, text_sizes_.back());
  }

  std::shared_ptr<CompiledGrammar> grammar_;  // shared: the cache and other sequences hold it too
  std::vector<uint32_t> history_;             // recogniser states, one a step
  std::string text_;                          // what was read, where checks look at it
  std::vector<uint32_t> text_sizes_ = {0};    // its length after each step
  bool ended_ = false;
};

}  // namespace espalier::grammar
