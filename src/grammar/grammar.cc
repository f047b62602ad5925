#include "grammar/grammar.h"

#include <algorithm>
#include <atomic>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "base/check.h"
#include "grammar/automata/earley.h"
#include "grammar/automata/unicode.h"
#include "grammar/frontends/ebnf.h"
#include "grammar/frontends/free_text.h"
#include "grammar/frontends/regex.h"
#include "grammar/frontends/structural_tag.h"
#include "grammar/masks/budget_masks.h"
#include "grammar/masks/item_lookahead.h"
#include "grammar/masks/likely_sets.h"
#include "grammar/masks/mask_cache.h"
#include "grammar/schema/json_schema.h"

namespace espalier::grammar {
namespace {

// Characters of white space between a model's reasoning and its answer.
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

// A mutex that knows whether threads wait for it. A thread that takes it again and again can so let
// them go first, which std::mutex alone does not guarantee. REQUIRES and guarantees: as std::mutex.
class AwaitedMutex {
 public:
  void lock() {
    if (mutex_.try_lock()) return;
    ++waiting_;
    mutex_.lock();
    --waiting_;
  }
  void unlock() { mutex_.unlock(); }
  bool awaited() const { return waiting_ > 0; }

 private:
  std::mutex mutex_;
  std::atomic<int> waiting_ = 0;
};

struct CompiledGrammar::Impl {
  Impl(std::unique_ptr<NetworkBuilder> from, Network made, std::shared_ptr<const TokenTrie> tokens,
       const GrammarLimits& limits)
      : builder(std::move(from)),
        whole(std::move(made)),
        whole_bytes(whole.num_bytes()),
        network(builder != nullptr ? builder->network() : whole),
        trie(std::move(tokens)),
        earley(network, limits, static_cast<uint32_t>(trie->all().depth_max), builder.get()),
        masks(earley, *trie) {
    if (ItemLookahead::needed(network)) lookahead.emplace(earley, *trie);
  }

  // Takes the lock when no other thread waits for it.
  std::unique_lock<AwaitedMutex> lock_politely() {
    while (mutex.awaited()) std::this_thread::yield();
    return std::unique_lock(mutex);
  }
  size_t ahead_bytes() const { return earley.num_bytes() + masks.num_bytes(); }
  // Does work that no text needs yet, unless half of a limit is used; returns what it returns, and
  // false where it reached a limit. REQUIRES: the lock.
  template <typename Work>
  bool in_trial(Work work) {
    EarleyClosure& closure = earley.closure();
    closure.begin_call();
    if (closure.used_up() || closure.near_limit()) return false;
    closure.begin_trial();
    const bool result = work();
    if (closure.end_trial()) return result;
    masks.drop_unusable();
    return false;
  }

  // `mutex` guards every member, except what the recogniser and the masks offer to any thread.
  const std::unique_ptr<NetworkBuilder> builder;  // null when the network is complete
  const Network whole;
  const size_t whole_bytes;
  const Network& network;
  const std::shared_ptr<const TokenTrie> trie;  // shared by all grammars of the model
  AwaitedMutex mutex;
  EarleyRecogniser earley;
  MaskCache masks;
  std::optional<ItemLookahead> lookahead;  // where items of arrays are compared
  std::unique_ptr<BudgetMasks> budget;     // null until prepare_budget()
  std::atomic<size_t> budget_bytes = 0, lookahead_bytes = 0;
};

// Follows cached transitions without the lock. At the first transition that is not cached it takes
// the lock and keeps it.
class Matcher::Steps {
 public:
  explicit Steps(CompiledGrammar::Impl& impl) : impl_(impl), lock_(impl.mutex, std::defer_lock) {}

  uint32_t operator()(uint32_t from, uint8_t byte, std::string_view text) {
    const SetId known = impl_.earley.known_step(from, byte);
    if (known < EarleyRecogniser::kNeedsText) return known;
    if (!lock_.owns_lock()) {
      lock_.lock();
      impl_.earley.begin_call();
    }
    return impl_.earley.step(from, byte, text);
  }

 private:
  CompiledGrammar::Impl& impl_;
  std::unique_lock<AwaitedMutex> lock_;
};

CompiledGrammar::CompiledGrammar(std::unique_ptr<NetworkBuilder> builder,
                                 std::shared_ptr<const TokenTrie> trie, const GrammarLimits& limits)
    : impl_(std::make_unique<Impl>(std::move(builder), Network(), std::move(trie), limits)) {}
CompiledGrammar::CompiledGrammar(Network network, std::shared_ptr<const TokenTrie> trie,
                                 const GrammarLimits& limits)
    : impl_(std::make_unique<Impl>(nullptr, std::move(network), std::move(trie), limits)) {}
CompiledGrammar::~CompiledGrammar() = default;
const TokenTrie& CompiledGrammar::trie() const { return *impl_->trie; }

const Network& CompiledGrammar::network() const { return impl_->network; }

const Network& CompiledGrammar::whole_network() {
  const std::lock_guard lock(impl_->mutex);
  for (RuleId rule = 0; impl_->builder != nullptr && rule < impl_->network.starts.size(); ++rule) {
    impl_->builder->make(rule);
  }
  return impl_->network;
}

GrammarSize CompiledGrammar::size() const {
  const Network& n = impl_->network;
  const std::lock_guard lock(impl_->mutex);
  return {.num_rules = n.starts.size(),
          .num_nodes = n.nodes.size(),
          .num_byte_edges = n.byte_edges.size(),
          .num_call_edges = n.call_edges.size(),
          .num_byte_classes = n.class_sample.size(),
          .num_states = impl_->earley.num_sets(),
          .num_masks = impl_->masks.num_kept()};
}

Status CompiledGrammar::prepare_budget() {
  const std::lock_guard lock(impl_->mutex);
  if (impl_->budget != nullptr) return {};
  for (RuleId rule = 0; impl_->builder != nullptr && rule < impl_->network.starts.size(); ++rule)
    impl_->builder->make(rule);
  ESP_ASSIGN_OR_RETURN(EndDistances distances, EndDistances::compute(impl_->network));
  impl_->budget = std::make_unique<BudgetMasks>(impl_->earley, *impl_->trie, std::move(distances));
  impl_->budget_bytes = impl_->budget->num_bytes();
  return {};
}

void CompiledGrammar::build_ahead(const std::function<bool()>& stop) {
  if (impl_->builder == nullptr) return;
  NetworkBuilder& builder = *impl_->builder;
  const size_t bytes_max = builder.num_bytes() + kBuiltAheadBytesMax;
  const auto num_rules = static_cast<RuleId>(impl_->network.starts.size());  // fixed by the plan
  for (RuleId rule = 0; rule < num_rules && builder.num_bytes() < bytes_max && !stop(); ++rule) {
    const auto lock = impl_->lock_politely();
    builder.make(rule);
  }
}

void CompiledGrammar::make_masks_ahead(const std::function<bool()>& stop) {
  if (make_pattern_masks_ahead(stop)) make_likely_masks_ahead(stop);
}

// Returns whether the grammar has room for more masks.
bool CompiledGrammar::make_pattern_masks_ahead(const std::function<bool()>& stop) {
  constexpr size_t kNodesPerLock = 4096;
  const std::vector<Network::Node>& nodes = impl_->network.nodes;
  const size_t bytes_max = impl_->ahead_bytes() + kMasksAheadBytesMax;
  size_t num_made = 0;
  for (size_t node = 0; num_made < kMasksAheadMax && !stop();) {
    const auto lock = impl_->lock_politely();
    // Only what is deterministic: another mask inside a rule may take more work than all its texts.
    const size_t end = std::min(node + kNodesPerLock, nodes.size());
    while (node < end && !nodes[node].deterministic) ++node;
    if (node == nodes.size() || impl_->ahead_bytes() > bytes_max) break;
    const bool made = impl_->in_trial([&] {
      if (node < end && impl_->masks.make_ahead(static_cast<NodeId>(node++))) ++num_made;
      return true;
    });
    if (!made) return false;
  }
  return true;
}

void CompiledGrammar::make_likely_masks_ahead(const std::function<bool()>& stop) {
  const size_t bytes_max = impl_->ahead_bytes() + kMasksAheadBytesMax;
  std::optional<LikelySets> sets;
  for (size_t num_made = 0; num_made < kLikelyMasksMax && !stop(); ++num_made) {
    const auto lock = impl_->lock_politely();
    if (impl_->ahead_bytes() > bytes_max) return;
    const bool made = impl_->in_trial([&] {
      if (!sets) sets.emplace(impl_->earley, *impl_->trie, impl_->masks);
      return sets->make_next();
    });
    if (!made) return;
  }
}

bool CompiledGrammar::exhausted() const { return impl_->earley.used_up(); }
size_t CompiledGrammar::num_bytes() const {
  const size_t network =
      impl_->builder != nullptr ? impl_->builder->num_bytes() : impl_->whole_bytes;
  return sizeof(Impl) + network + impl_->earley.num_bytes() + impl_->masks.num_bytes() +
         impl_->budget_bytes + impl_->lookahead_bytes;
}

namespace {

// Lowers a spec to rules; returns the root.
Result<RuleId> lower(Ir& ir, const GrammarSpec& spec, const GrammarLimits& limits) {
  RuleId root = 0;
  const auto root_of = [&](ExprId body) {
    root = ir.rules().add("root");
    ir.rules().set_body(root, body);
  };
  switch (spec.kind) {
    case GrammarSpec::Kind::kRegex: {
      ESP_ASSIGN_OR_RETURN(const ExprId body,
                           parse_regex(ir, spec.source, {.encode = {}, .limits = limits}));
      root_of(body);
      break;
    }
    case GrammarSpec::Kind::kEbnf: {
      ESP_ASSIGN_OR_RETURN(root, parse_ebnf(ir, spec.source, "root", limits));
      break;
    }
    case GrammarSpec::Kind::kJsonSchema: {
      ESP_ASSIGN_OR_RETURN(const ExprId body,
                           parse_json_schema(ir, spec.source, spec.whitespace, spec.json, limits));
      root_of(body);
      break;
    }
    case GrammarSpec::Kind::kAnyJson: {
      root_of(JsonSyntax(ir, spec.whitespace).value());
      break;
    }
    case GrammarSpec::Kind::kChoices: {
      if (spec.choices.empty()) return fail(invalid_argument("there are no choices"));
      for (size_t i = 0; i < spec.choices.size(); ++i) {
        if (!valid_utf8(spec.choices[i]))
          return fail(invalid_argument("choice {} is not valid UTF-8", i));
      }
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
  return root;
}

}  // namespace

Result<std::shared_ptr<CompiledGrammar>> compile_grammar(const GrammarSpec& spec,
                                                         std::shared_ptr<const TokenTrie> trie,
                                                         GrammarLimits limits) {
  limits.start_budget();
  const auto ir = std::make_shared<Ir>();  // shared with the builder, which builds rules later
  ESP_ASSIGN_OR_RETURN(const RuleId root, lower(*ir, spec, limits));
  ESP_ASSIGN_OR_RETURN(auto builder, NetworkBuilder::plan(ir, root, limits));
  auto made = std::make_shared<CompiledGrammar>(std::move(builder), std::move(trie), limits);
  if (made->exceeds_limits_at_start(limits)) {
    return fail(error(StatusCode::kResourceExhausted,
                      "a text of the grammar may be at more than {} places at once; bound its "
                      "repetitions more tightly or split it",
                      limits.earley_items_max));
  }
  return made;
}

// For large networks the first byte is tried, so that a grammar whose texts cannot be followed is
// refused at compile time.
bool CompiledGrammar::exceeds_limits_at_start(const GrammarLimits& limits) {
  EarleyRecogniser& earley = impl_->earley;
  if (earley.exhausted()) return true;
  if (impl_->network.nodes.size() <= limits.earley_items_max) return false;
  for (const uint8_t byte : impl_->network.class_sample)
    earley.step_without_text(earley.start(), byte);
  return earley.exhausted();
}

Matcher::Matcher(std::shared_ptr<CompiledGrammar> grammar)
    : grammar_(std::move(grammar)), history_{grammar_->impl_->earley.start()} {}

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
  Steps step(impl);
  SetId set = history_.back();
  const bool checked = impl.earley.has_checks();
  text_.resize(text_sizes_.back());
  for (char c : bytes) {
    set = step(set, static_cast<uint8_t>(c), text_);
    if (set == EarleyRecogniser::kDead) return false;
    if (checked) text_.push_back(c);
  }
  history_.push_back(set);
  text_sizes_.push_back(static_cast<uint32_t>(text_.size()));
  return true;
}

bool Matcher::may_take(TokenId token) {
  if (!accept_token(token)) return false;
  bool leads_on = true;
  CompiledGrammar::Impl& impl = *grammar_->impl_;
  if (impl.lookahead && !ended_) {
    OpenItems items = items_.at(text_now().substr(0, text_sizes_.end()[-2]));
    items.read(text_now().substr(text_sizes_.end()[-2]));
    const std::lock_guard lock(impl.mutex);
    impl.earley.begin_call();
    leads_on = impl.lookahead->leads_on(history_.back(), items, text_now());
  }
  rollback(1);
  return leads_on;
}

bool Matcher::fill_mask(std::span<uint32_t> words) {
  ESP_CHECK(words.size() == static_cast<size_t>(words_per_mask()), "{} words", words.size());
  if (ended_) {
    std::ranges::fill(words, 0);
    return false;
  }
  CompiledGrammar::Impl& impl = *grammar_->impl_;
  if (impl.lookahead) return fill_mask_ahead(words);
  if (const auto known = impl.masks.fill_known(history_.back(), words)) return *known;
  const std::lock_guard lock(impl.mutex);
  impl.earley.begin_call();
  return impl.masks.fill(history_.back(), text_now(), words);
}

// A mask without the tokens behind which items of an array can only repeat.
bool Matcher::fill_mask_ahead(std::span<uint32_t> words) {
  CompiledGrammar::Impl& impl = *grammar_->impl_;
  const SetId set = history_.back();
  const OpenItems& items = items_.at(text_now());
  if (!items.any_complete() || items.all_differ_inside()) {
    if (const auto known = impl.masks.fill_known(set, words)) return *known;
  }
  const std::lock_guard lock(impl.mutex);
  impl.earley.begin_call();
  if (!impl.masks.fill(set, text_now(), words)) return false;
  const std::span<const TokenId> conditional = impl.masks.conditional(set);
  impl.earley.begin_call();
  impl.lookahead->restrict(set, items, text_now(), conditional, words);
  impl.lookahead_bytes = impl.lookahead->num_bytes();
  return std::ranges::any_of(words, [](uint32_t word) { return word != 0; });
}

bool Matcher::fill_mask_within(std::span<uint32_t> words, uint32_t tokens_left) {
  const bool any = fill_mask(words);
  if (!any || tokens_left > budget_check_at_) return any;
  CompiledGrammar::Impl& impl = *grammar_->impl_;
  const std::lock_guard lock(impl.mutex);
  budget_check_at_ = impl.budget->next_check(history_.back(), tokens_left);
  if (tokens_left <= budget_check_at_) {
    impl.budget->keep_within(history_.back(), text_now(), tokens_left, words);
    impl.budget_bytes = impl.budget->num_bytes();
  }
  return any;
}

uint32_t Matcher::tokens_to_end() const {
  CompiledGrammar::Impl& impl = *grammar_->impl_;
  const std::lock_guard lock(impl.mutex);
  impl.earley.begin_call();
  return impl.budget->tokens_to_end(history_.back());
}

std::string Matcher::forced_bytes(size_t bytes_max) {
  std::string out;
  if (ended_) return out;
  CompiledGrammar::Impl& impl = *grammar_->impl_;
  Steps step(impl);
  SetId set = history_.back();
  std::string text(text_now());
  while (out.size() < bytes_max) {
    const int byte = impl.earley.forced_byte(
        set, [&](SetId from, uint8_t next) { return step(from, next, text); });
    if (byte < 0) break;
    out.push_back(static_cast<char>(byte));
    set = step(set, static_cast<uint8_t>(byte), text);
    if (impl.earley.has_checks()) text.push_back(static_cast<char>(byte));
  }
  return out;
}

void Matcher::rollback(size_t steps) {
  ESP_CHECK(steps <= this->steps(), "rollback {} of {}", steps, this->steps());
  if (steps > 0) ended_ = false;
  history_.resize(history_.size() - steps);
  text_sizes_.resize(history_.size());
  items_.shrink_to(text_sizes_.back());
}

bool Matcher::can_end() const { return grammar_->impl_->earley.accepting(history_.back()); }

bool Matcher::must_end() {
  if (ended_) return true;
  CompiledGrammar::Impl& impl = *grammar_->impl_;
  Steps step(impl);
  return impl.earley.must_end(
      history_.back(), [&](SetId from, uint8_t byte) { return step(from, byte, text_now()); });
}

bool Matcher::exhausted() const { return grammar_->exhausted(); }

int32_t Matcher::words_per_mask() const { return grammar_->trie().words_per_mask(); }

}  // namespace espalier::grammar
