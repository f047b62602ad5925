#include "grammar/grammar.h"

#include <algorithm>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <utility>

#include "base/check.h"
#include "grammar/ebnf.h"
#include "grammar/free_text.h"
#include "grammar/json_schema.h"
#include "grammar/machine.h"
#include "grammar/regex.h"
#include "grammar/structural_tag.h"

namespace espalier::grammar {
namespace {

// Masks kept by one grammar, bytes; beyond it the masks are dropped and made again.
constexpr size_t kMaskBytesMax = size_t{64} << 20;

// White space between a model's reasoning and its answer, characters.
constexpr int32_t kReasoningSpaceMax = 4;

Result<ExprId> with_reasoning(Ir& ir, const GrammarSpec& spec, ExprId body) {
  ESP_ASSIGN_OR_RETURN(const ExprId text,
                       free_text(ir, {{spec.reasoning_end, ir.empty(), TextTrigger::After::kEnds}},
                                 {.may_end = false}));
  ByteSet space;
  space.set(' ').set('\n');
  const ExprId thoughts = ir.sequence(
      {ir.literal(spec.reasoning_begin), text, ir.repeat(ir.bytes(space), 0, kReasoningSpaceMax)});
  return ir.sequence({spec.reasoning_begin.empty() ? thoughts : ir.optional(thoughts), body});
}

}  // namespace

struct CompiledGrammar::Impl {
  Impl(Network made, std::shared_ptr<const TokenTrie> tokens, const GrammarLimits& limits)
      : network(std::move(made)),
        trie(std::move(tokens)),
        machine(network, limits, static_cast<uint32_t>(trie->all().depth_max)) {
    path.resize(static_cast<size_t>(trie->all().depth_max) + 1);
    other_path.resize(path.size());
  }

  // All under `mutex`.
  // `text`: what was read so far; used where the grammar has checks.
  const std::vector<uint32_t>& mask(SetId set, std::string_view text);
  void walk(const TrieWalk& walk, SetId from, std::vector<uint32_t>& words);
  void walk_checked(const TrieWalk& walk, SetId from, std::string_view text,
                    std::vector<uint32_t>& words);
  SetId after_string_inside(SetId set);
  bool fill_inside_string(SetId set, std::vector<uint32_t>& words);
  bool fill_by_difference(SetId set, std::vector<uint32_t>& words);

  const Network network;
  const std::shared_ptr<const TokenTrie> trie;  // shared by all grammars of the model
  std::mutex mutex;
  Machine machine;
  std::unordered_map<SetId, std::vector<uint32_t>> masks;
  std::vector<SetId> other_path;  // of the state that is followed beside it
  std::vector<SetId> path;        // [depth]: states along the walk
  std::vector<uint32_t> unkept;   // a mask that depended on the text
};

// One scan of the trie: a refused byte skips its subtree.
void CompiledGrammar::Impl::walk(const TrieWalk& walk, SetId from, std::vector<uint32_t>& words) {
  path[0] = from;
  const TrieWalk::Node* const nodes = walk.nodes.data();
  const size_t end = walk.nodes.size() - 1;
  for (size_t i = 0; i < end;) {
    const TrieWalk::Node& node = nodes[i];
    const SetId to = machine.step(path[node.depth], node.byte);
    if (to == Machine::kDead) {
      i = node.skip;
      continue;
    }
    path[node.depth + 1] = to;
    for (uint32_t t = node.tokens_begin; t < nodes[i + 1].tokens_begin; ++t) {
      const auto token = static_cast<uint32_t>(walk.token_ids[t]);
      words[token / 32] |= 1u << (token % 32);
    }
    ++i;
  }
}

// The same where checks look at the text.
void CompiledGrammar::Impl::walk_checked(const TrieWalk& walk, SetId from, std::string_view text,
                                         std::vector<uint32_t>& words) {
  // No check looks further back than the value that it judges; the whole text is kept for it.
  std::string read(text);
  path[0] = from;
  const size_t end = walk.nodes.size() - 1;
  for (size_t i = 0; i < end;) {
    const TrieWalk::Node& node = walk.nodes[i];
    read.resize(text.size() + node.depth);
    const SetId to = machine.step(path[node.depth], node.byte, read);
    if (to == Machine::kDead) {
      i = node.skip;
      continue;
    }
    read.push_back(static_cast<char>(node.byte));
    path[node.depth + 1] = to;
    for (uint32_t t = node.tokens_begin; t < walk.nodes[i + 1].tokens_begin; ++t) {
      const auto token = static_cast<uint32_t>(walk.token_ids[t]);
      words[token / 32] |= 1u << (token % 32);
    }
    ++i;
  }
}

// Whether every character that may stand in a JSON string's inside leads from `set` to one state:
// then that state, else kDead.
SetId CompiledGrammar::Impl::after_string_inside(SetId set) {
  const SetId next = machine.step(set, 'a');
  if (next == Machine::kDead) return Machine::kDead;
  for (int b = 0x20; b < 0x80; ++b) {
    if (b == '"' || b == '\\') continue;
    if (machine.step(set, static_cast<uint8_t>(b)) != next) return Machine::kDead;
  }
  struct Tail {
    int lead_low, lead_high, low, high,
        more;  // lead bytes, the second byte's range, bytes after it
  };
  constexpr Tail kTails[] = {{0xc2, 0xdf, 0x80, 0xbf, 0}, {0xe0, 0xe0, 0xa0, 0xbf, 1},
                             {0xe1, 0xec, 0x80, 0xbf, 1}, {0xed, 0xed, 0x80, 0x9f, 1},
                             {0xee, 0xef, 0x80, 0xbf, 1}, {0xf0, 0xf0, 0x90, 0xbf, 2},
                             {0xf1, 0xf3, 0x80, 0xbf, 2}, {0xf4, 0xf4, 0x80, 0x8f, 2}};
  const auto trails_on = [&](auto&& self, SetId from, int low, int high, int more) -> bool {
    SetId last = Machine::kDead;
    for (int b = low; b <= high; ++b) {
      const SetId to = machine.step(from, static_cast<uint8_t>(b));
      if (more == 0 ? to != next : to == Machine::kDead) return false;
      if (more > 0 && to != last && !self(self, to, 0x80, 0xbf, more - 1)) return false;
      last = to;
    }
    return true;
  };
  for (const Tail& tail : kTails) {
    SetId last = Machine::kDead;
    for (int lead = tail.lead_low; lead <= tail.lead_high; ++lead) {
      const SetId to = machine.step(set, static_cast<uint8_t>(lead));
      if (to == Machine::kDead) return Machine::kDead;
      if (to != last && !trails_on(trails_on, to, tail.low, tail.high, tail.more)) {
        return Machine::kDead;
      }
      last = to;
    }
  }
  return next;
}

// Where a string's inside goes on as it was, or counts: its tokens at once, and the rests of the
// others. False where it does neither, or a check asks for the text.
bool CompiledGrammar::Impl::fill_inside_string(SetId set, std::vector<uint32_t>& words) {
  const SetId next = after_string_inside(set);
  if (next == Machine::kDead) return false;
  const uint64_t checks_before = machine.checks_made();
  if (next == set || machine.canonical(next) == set) {
    std::ranges::copy(trie->string_inside_mask(), words.begin());
    walk(trie->rests(), set, words);
  } else if (machine.same_but_counts(set, next)) {
    const std::vector<TrieWalk>& rests = trie->rests_after();
    const size_t longest = std::max(trie->inside_characters_max(), rests.size());
    SetId now = set;
    size_t characters = 0;
    while (true) {
      if (characters < rests.size()) walk(rests[characters], now, words);
      if (characters >= longest) break;
      now = machine.step(now, 'a');
      if (now == Machine::kDead) break;
      ++characters;
    }
    trie->add_string_inside(characters, words);
  } else {
    return false;
  }
  if (machine.checks_made() == checks_before) return true;
  std::ranges::fill(words, 0);
  return false;
}

// Where most characters lead to a state that a string's inside leaves as it is (a key that is none
// of those declared so far), the mask is that state's but for what goes on differently: both are
// followed side by side, and left where they meet.
bool CompiledGrammar::Impl::fill_by_difference(SetId set, std::vector<uint32_t>& words) {
  constexpr int kMost = 48;  // of the 93 characters that are looked at
  std::vector<std::pair<SetId, int>> counts;
  for (int b = 0x20; b < 0x7f; ++b) {
    if (b == '"' || b == '\\') continue;
    const SetId to = machine.step(set, static_cast<uint8_t>(b));
    const auto known = std::ranges::find(counts, to, &std::pair<SetId, int>::first);
    if (known == counts.end()) {
      counts.emplace_back(to, 1);
    } else {
      ++known->second;
    }
  }
  const auto [other, count] = *std::ranges::max_element(counts, {}, &std::pair<SetId, int>::second);
  if (count < kMost || other == Machine::kDead || other == set || machine.accepting(other) ||
      after_string_inside(other) != other) {
    return false;
  }
  const uint64_t checks_before = machine.checks_made();
  if (!masks.contains(other)) {
    std::vector<uint32_t> made(words.size(), 0);
    if (!fill_inside_string(other, made)) return false;
    masks.emplace(other, std::move(made));
  }
  words = masks.at(other);
  const TrieWalk& tokens = trie->all();
  path[0] = set;
  other_path[0] = other;
  const size_t end = tokens.nodes.size() - 1;
  const auto assign = [&](uint32_t from, uint32_t to, bool allowed) {
    for (uint32_t t = from; t < to; ++t) {
      const auto token = static_cast<uint32_t>(tokens.token_ids[t]);
      const uint32_t bit = 1u << (token % 32);
      words[token / 32] = allowed ? words[token / 32] | bit : words[token / 32] & ~bit;
    }
  };
  for (size_t i = 0; i < end;) {
    const TrieWalk::Node& node = tokens.nodes[i];
    const SetId here = machine.step(path[node.depth], node.byte);
    const SetId there = machine.step(other_path[node.depth], node.byte);
    if (here == there) {
      i = node.skip;
      continue;
    }
    if (here == Machine::kDead) {
      assign(node.tokens_begin, tokens.nodes[node.skip].tokens_begin, false);
      i = node.skip;
      continue;
    }
    path[node.depth + 1] = here;
    other_path[node.depth + 1] = there;
    assign(node.tokens_begin, tokens.nodes[i + 1].tokens_begin, true);
    ++i;
  }
  if (machine.checks_made() == checks_before) return true;
  std::ranges::fill(words, 0);
  return false;
}

const std::vector<uint32_t>& CompiledGrammar::Impl::mask(SetId exact, std::string_view text) {
  const SetId set = machine.canonical(exact);
  if (const auto it = masks.find(set); it != masks.end()) return it->second;
  const auto words_count = static_cast<size_t>(trie->words_per_mask());
  if ((masks.size() + 1) * words_count * sizeof(uint32_t) > kMaskBytesMax) masks.clear();
  std::vector<uint32_t> words(words_count, 0);
  bool depends = false;  // on the text
  if (set != Machine::kDead) {
    if (fill_inside_string(set, words) || fill_by_difference(set, words)) {
      // Done.
    } else if (machine.has_checks()) {
      const uint64_t checks_now = machine.checks_made();
      walk_checked(trie->all(), set, text, words);
      depends = machine.checks_made() != checks_now;
    } else {
      walk(trie->all(), set, words);
    }
    if (machine.accepting(set)) {
      for (TokenId id : trie->eos_ids()) {
        if (id >= 0 && id < trie->vocab_size()) {
          words[static_cast<size_t>(id) / 32] |= 1u << (id % 32);
        }
      }
    }
  }
  if (depends) return unkept = std::move(words);
  return masks.emplace(set, std::move(words)).first->second;
}

CompiledGrammar::CompiledGrammar(Network network, std::shared_ptr<const TokenTrie> trie,
                                 const GrammarLimits& limits)
    : impl_(std::make_unique<Impl>(std::move(network), std::move(trie), limits)) {}
CompiledGrammar::~CompiledGrammar() = default;
const TokenTrie& CompiledGrammar::trie() const { return *impl_->trie; }
const Network& CompiledGrammar::network() const { return impl_->network; }

GrammarSize CompiledGrammar::size() const {
  const Network& n = impl_->network;
  const std::lock_guard lock(impl_->mutex);
  return {.num_rules = n.starts.size(),
          .num_nodes = n.nodes.size(),
          .num_byte_edges = n.byte_edges.size(),
          .num_call_edges = n.call_edges.size(),
          .num_byte_classes = n.class_sample.size(),
          .num_states = impl_->machine.num_sets(),
          .num_masks = impl_->masks.size()};
}

Result<GrammarSpec::Kind> parse_grammar_kind(std::string_view name) {
  using Kind = GrammarSpec::Kind;
  constexpr std::pair<std::string_view, Kind> kKinds[] = {{"regex", Kind::kRegex},
                                                          {"ebnf", Kind::kEbnf},
                                                          {"json_schema", Kind::kJsonSchema},
                                                          {"json", Kind::kAnyJson},
                                                          {"choices", Kind::kChoices},
                                                          {"structural_tag", Kind::kStructuralTag}};
  std::string all;
  for (const auto& [known, kind] : kKinds) {
    if (known == name) return kind;
    all += (all.empty() ? "" : ", ") + std::string(known);
  }
  return fail(invalid_argument("'{}' is no kind of grammar; it must be one of {}", name, all));
}

Result<Network> compile_network(const GrammarSpec& spec, GrammarLimits limits) {
  if (limits.deadline == TimePoint{}) {
    limits.deadline =
        SteadyClock().now() + std::chrono::duration_cast<Duration>(
                                  std::chrono::duration<double>(limits.compile_seconds_max));
  }
  Ir ir;
  RuleId root = 0;
  const auto root_of = [&](ExprId body) {
    root = ir.add_rule("root");
    ir.set_body(root, body);
  };
  switch (spec.kind) {
    case GrammarSpec::Kind::kRegex: {
      ESP_ASSIGN_OR_RETURN(const ExprId body, parse_regex(ir, spec.source));
      root_of(body);
      break;
    }
    case GrammarSpec::Kind::kEbnf: {
      ESP_ASSIGN_OR_RETURN(root, parse_ebnf(ir, spec.source));
      break;
    }
    case GrammarSpec::Kind::kJsonSchema: {
      ESP_ASSIGN_OR_RETURN(const ExprId body,
                           parse_json_schema(ir, spec.source, spec.whitespace, spec.json, limits));
      root_of(body);
      break;
    }
    case GrammarSpec::Kind::kAnyJson: {
      root_of(JsonPieces(ir, spec.whitespace).value());
      break;
    }
    case GrammarSpec::Kind::kChoices: {
      if (spec.choices.empty()) return fail(invalid_argument("there are no choices"));
      root_of(ir.literals(spec.choices));
      break;
    }
    case GrammarSpec::Kind::kStructuralTag: {
      ESP_ASSIGN_OR_RETURN(const ExprId body,
                           parse_structural_tag(ir, spec.source, spec.whitespace, limits));
      root_of(body);
      break;
    }
  }
  if (!spec.reasoning_end.empty()) {
    ESP_ASSIGN_OR_RETURN(const ExprId whole, with_reasoning(ir, spec, ir.rule(root)));
    root_of(whole);
  }
  return build_network(ir, root, limits);
}

Result<std::shared_ptr<CompiledGrammar>> compile_grammar(const GrammarSpec& spec,
                                                         std::shared_ptr<const TokenTrie> trie,
                                                         const GrammarLimits& limits) {
  ESP_ASSIGN_OR_RETURN(Network network, compile_network(spec, limits));
  return std::make_shared<CompiledGrammar>(std::move(network), std::move(trie), limits);
}

Matcher::Matcher(std::shared_ptr<CompiledGrammar> grammar)
    : grammar_(std::move(grammar)), history_{grammar_->impl_->machine.start()} {}

bool Matcher::accept_token(TokenId token) {
  if (ended_) return false;
  const TokenTrie& trie = grammar_->trie();
  if (trie.is_eos(token)) {
    if (!can_end()) return false;
    ended_ = true;
    history_.push_back(history_.back());
    text_sizes_.push_back(text_sizes_.back());
    return true;
  }
  const std::string_view bytes = trie.bytes(token);
  return !bytes.empty() && accept_bytes(bytes);
}

bool Matcher::accept_bytes(std::string_view bytes) {
  if (ended_) return false;
  CompiledGrammar::Impl& impl = *grammar_->impl_;
  const std::lock_guard lock(impl.mutex);
  SetId set = history_.back();
  const bool checked = impl.machine.has_checks();
  text_.resize(text_sizes_.back());
  for (char c : bytes) {
    set = impl.machine.step(set, static_cast<uint8_t>(c), text_);
    if (set == Machine::kDead) return false;
    if (checked) text_.push_back(c);
  }
  history_.push_back(set);
  text_sizes_.push_back(static_cast<uint32_t>(text_.size()));
  return true;
}

bool Matcher::fill_mask(std::span<uint32_t> words) {
  ESP_CHECK(words.size() == static_cast<size_t>(words_per_mask()), "{} words", words.size());
  if (ended_) {
    std::ranges::fill(words, 0);
    return false;
  }
  CompiledGrammar::Impl& impl = *grammar_->impl_;
  const std::lock_guard lock(impl.mutex);
  const std::vector<uint32_t>& mask = impl.mask(history_.back(), text_now());
  std::ranges::copy(mask, words.begin());
  return std::ranges::any_of(words, [](uint32_t w) { return w != 0; });
}

std::string Matcher::forced_bytes(size_t bytes_max) {
  std::string out;
  if (ended_) return out;
  CompiledGrammar::Impl& impl = *grammar_->impl_;
  const std::lock_guard lock(impl.mutex);
  SetId set = history_.back();
  std::string text(text_now());
  while (out.size() < bytes_max) {
    const int byte = impl.machine.forced_byte(set, text);
    if (byte < 0) break;
    out.push_back(static_cast<char>(byte));
    set = impl.machine.step(set, static_cast<uint8_t>(byte), text);
    if (impl.machine.has_checks()) text.push_back(static_cast<char>(byte));
  }
  return out;
}

void Matcher::rollback(size_t steps) {
  ESP_CHECK(steps <= this->steps(), "rollback {} of {}", steps, this->steps());
  if (steps > 0) ended_ = false;
  history_.resize(history_.size() - steps);
  text_sizes_.resize(history_.size());
}

bool Matcher::can_end() const {
  CompiledGrammar::Impl& impl = *grammar_->impl_;
  const std::lock_guard lock(impl.mutex);
  return impl.machine.accepting(history_.back());
}

bool Matcher::must_end() {
  if (ended_) return true;
  CompiledGrammar::Impl& impl = *grammar_->impl_;
  const std::lock_guard lock(impl.mutex);
  return impl.machine.must_end(history_.back(), text_now());
}

bool Matcher::exhausted() const {
  CompiledGrammar::Impl& impl = *grammar_->impl_;
  const std::lock_guard lock(impl.mutex);
  return impl.machine.exhausted();
}

int32_t Matcher::words_per_mask() const { return grammar_->trie().words_per_mask(); }

}  // namespace espalier::grammar
