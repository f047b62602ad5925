// A state of the deterministic automaton is a list of groups of program states. The states of one
// group were reached by matches that begin at the same position; groups are in order of that
// position. A program state stands in its first group alone, since an earlier begin wins. So a
// transition maps the groups behind it to those before it, and positions are no part of a state.
#include "text/regex/stream_search.h"

#include <algorithm>
#include <functional>
#include <unordered_map>
#include <utility>

#include "base/rng.h"
#include "text/regex/program.h"
#include "text/unicode/utf8.h"

namespace espalier {

namespace {

// What stands before or behind a position, as assertions see it.
enum class Neighbour : uint8_t { kNone, kNewline, kWord, kOther };

bool holds(RegexAssertion assertion, Neighbour before, Neighbour behind) {
  switch (assertion) {
    case RegexAssertion::kTextBegin:
      return before == Neighbour::kNone;
    case RegexAssertion::kTextEnd:
      return behind == Neighbour::kNone;
    case RegexAssertion::kLineBegin:
      return before == Neighbour::kNone || before == Neighbour::kNewline;
    case RegexAssertion::kLineEnd:
      return behind == Neighbour::kNone || behind == Neighbour::kNewline;
    case RegexAssertion::kWordBoundary:
      return (before == Neighbour::kWord) != (behind == Neighbour::kWord);
    case RegexAssertion::kNoWordBoundary:
      return (before == Neighbour::kWord) == (behind == Neighbour::kWord);
  }
  return false;
}

constexpr uint32_t kGroupEnd = ~0u;

// The character before, then the program states of each group in ascending order and a kGroupEnd.
using StateKey = std::vector<uint32_t>;

struct KeyHash {
  size_t operator()(const StateKey& key) const {
    uint64_t hash = key.size();
    for (const uint32_t word : key) hash = mix64(hash ^ word);
    return hash;
  }
};

struct Accepted {
  static constexpr uint32_t kNone = ~0u;
  uint32_t pattern = kNone, group = 0;
};

}  // namespace

struct LazyState : std::enable_shared_from_this<LazyState> {
  static constexpr uint32_t kNewGroup = ~0u;
  struct Transition {
    LazyState* target = nullptr;  // null: not built yet
    Accepted accepted;            // by the characters before this one
    std::vector<uint32_t> from;   // [group of target] its group here, or kNewGroup
  };
  StateKey key;
  uint64_t generation = 0;
  std::vector<Transition> transitions;  // [class]
  std::optional<Accepted> at_end;       // once it was asked for
};

struct StreamRegex::Impl {
  explicit Impl(RegexProgram p) : program(std::move(p)), closed(marks()), stepped(marks()) {
    for (uint32_t c = 0; c < program.alphabet.size(); ++c)
      neighbours.push_back(neighbour_of(program.alphabet.sample(c)));
  }

  static Neighbour neighbour_of(uint32_t code) {
    if (code == '\n') return Neighbour::kNewline;
    return perl_class('w')->contains(code) ? Neighbour::kWord : Neighbour::kOther;
  }

  // A set of program states that is emptied in constant time.
  struct Marks {
    std::vector<uint32_t> rounds;
    uint32_t round = 0;
    void clear() { ++round; }
    bool insert(uint32_t state) { return std::exchange(rounds[state], round) != round; }
  };
  Marks marks() const { return {std::vector<uint32_t>(program.states.size(), 0), 0}; }

  std::shared_ptr<LazyState> intern(StateKey key);
  void add_closure(uint32_t state, Neighbour before, Neighbour behind, uint32_t group);
  Accepted close(const LazyState& state, Neighbour behind, bool with_new, int64_t& work);
  const LazyState::Transition& build(LazyState& state, uint32_t char_class, int64_t& work);

  const RegexProgram program;
  std::vector<Neighbour> neighbours;  // [class]
  std::unordered_map<StateKey, std::shared_ptr<LazyState>, KeyHash> states;
  size_t num_bytes = 0;     // of states
  uint64_t generation = 1;  // how often states were dropped

  // Scratch of close() and build().
  Marks closed, stepped;
  std::vector<uint32_t> stack;
  std::vector<std::pair<uint32_t, uint32_t>> consuming;  // (kChar state, group), in order of groups
  Accepted accepted;
};

std::shared_ptr<LazyState> StreamRegex::Impl::intern(StateKey key) {
  const auto found = states.find(key);
  if (found != states.end()) return found->second;
  const size_t bytes = 2 * key.size() * sizeof(uint32_t) + sizeof(LazyState) +
                       program.alphabet.size() * sizeof(LazyState::Transition);
  if (num_bytes + bytes > kStateBytesMax && !states.empty()) {
    states.clear();
    num_bytes = 0;
    ++generation;
  }
  num_bytes += bytes;
  auto state = std::make_shared<LazyState>();
  state->key = key;
  state->generation = generation;
  state->transitions.resize(program.alphabet.size());
  return states.emplace(std::move(key), std::move(state)).first->second;
}

void StreamRegex::Impl::add_closure(uint32_t first, Neighbour before, Neighbour behind,
                                    uint32_t group) {
  using Op = RegexProgram::Op;
  stack.assign(1, first);
  while (!stack.empty()) {
    const uint32_t index = stack.back();
    stack.pop_back();
    if (!closed.insert(index)) continue;
    const RegexProgram::State& state = program.states[index];
    if (state.op == Op::kChar) consuming.emplace_back(index, group);
    if (state.op == Op::kSplit) stack.insert(stack.end(), {state.other, state.next});
    if (state.op == Op::kAssertion && holds(state.assertion, before, behind))
      stack.push_back(state.next);
    if (state.op == Op::kMatch && (accepted.pattern == Accepted::kNone || group == accepted.group))
      accepted = {std::min(accepted.pattern, state.pattern), group};
  }
}

// All program states that consume the character to come go to `consuming`. Returns the match of the
// first group; an empty match, of the group that begins here, does not count.
Accepted StreamRegex::Impl::close(const LazyState& state, Neighbour behind, bool with_new,
                                  int64_t& work) {
  const auto before = static_cast<Neighbour>(state.key[0]);
  closed.clear();
  consuming.clear();
  accepted = {};
  uint32_t group = 0;
  for (size_t i = 1; i < state.key.size(); ++i) {
    if (state.key[i] == kGroupEnd)
      ++group;
    else
      add_closure(state.key[i], before, behind, group);
  }
  const Accepted found = accepted;
  if (with_new)
    for (const uint32_t start : program.starts) add_closure(start, before, behind, group);
  work -= static_cast<int64_t>(state.key.size() + program.starts.size() + 4 * consuming.size());
  return found;
}

const LazyState::Transition& StreamRegex::Impl::build(LazyState& state, uint32_t char_class,
                                                      int64_t& work) {
  LazyState::Transition made{.accepted = close(state, neighbours[char_class], true, work)};
  const auto num_groups =
      static_cast<uint32_t>(std::ranges::count(state.key, kGroupEnd, std::identity{}));
  StateKey key = {static_cast<uint32_t>(neighbours[char_class])};
  stepped.clear();
  size_t i = 0;
  while (i < consuming.size()) {
    const uint32_t group = consuming[i].second;
    const size_t begin = key.size();
    for (; i < consuming.size() && consuming[i].second == group; ++i) {
      const RegexProgram::State& from = program.states[consuming[i].first];
      if (program.members[from.set][char_class] && stepped.insert(from.next))
        key.push_back(from.next);
    }
    if (key.size() == begin) continue;
    std::sort(key.begin() + static_cast<std::ptrdiff_t>(begin), key.end());
    key.push_back(kGroupEnd);
    made.from.push_back(group < num_groups ? group : LazyState::kNewGroup);
  }
  work -= static_cast<int64_t>(key.size() + program.alphabet.size() / 8);
  num_bytes += made.from.size() * sizeof(uint32_t);
  const std::shared_ptr<LazyState> keep = state.shared_from_this();
  made.target = intern(std::move(key)).get();
  return state.transitions[char_class] = std::move(made);
}

StreamRegex::StreamRegex(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
StreamRegex::~StreamRegex() = default;

Result<std::shared_ptr<StreamRegex>> StreamRegex::compile(std::span<const std::string> patterns) {
  ESP_ASSIGN_OR_RETURN(RegexProgram program, compile_program(patterns));
  return std::shared_ptr<StreamRegex>(
      new StreamRegex(std::make_unique<Impl>(std::move(program))));
}

StreamSearch::StreamSearch(std::shared_ptr<StreamRegex> regex)
    : regex_(std::move(regex)),
      state_(regex_->impl_->intern({static_cast<uint32_t>(Neighbour::kNone)})) {}

size_t StreamSearch::read(std::string_view text, int64_t& work_left) {
  StreamRegex::Impl& regex = *regex_->impl_;
  size_t at = 0;
  std::shared_ptr<LazyState> state = std::move(state_);
  while (at < text.size() && work_left > 0) {
    if (state->generation != regex.generation) state = regex.intern(state->key);
    const Utf8Char c = decode_utf8(text, at);
    const uint32_t char_class = regex.program.alphabet.class_of(c.code);
    const LazyState::Transition* taken = &state->transitions[char_class];
    if (taken->target == nullptr) taken = &regex.build(*state, char_class, work_left);
    if (taken->accepted.pattern != Accepted::kNone)
      offer({begins_[taken->accepted.group], num_read_, taken->accepted.pattern});
    next_begins_.clear();
    for (const uint32_t group : taken->from)
      next_begins_.push_back(group == LazyState::kNewGroup ? num_read_ : begins_[group]);
    begins_.swap(next_begins_);
    work_left -= 1 + static_cast<int64_t>(begins_.size());
    at += c.size;
    num_read_ += c.size;
    if (taken->target != state.get()) state = taken->target->shared_from_this();
  }
  state_ = std::move(state);
  return at;
}

std::optional<StreamSearch::Match> StreamSearch::match(int64_t& work_left) {
  if (!state_->at_end)
    state_->at_end = regex_->impl_->close(*state_, Neighbour::kNone, false, work_left);
  if (state_->at_end->pattern != Accepted::kNone)
    offer({begins_[state_->at_end->group], num_read_, state_->at_end->pattern});
  return best_;
}

void StreamSearch::offer(const Match& match) {
  const bool better = !best_ || match.begin < best_->begin ||
                      (match.begin == best_->begin && match.end > best_->end);
  if (better) best_ = match;
}

}  // namespace espalier
