// Stop strings are found by an Aho-Corasick automaton. Its state is the longest suffix of the text
// that begins a stop string, which is the text that must stay pending. Regexes are found by a
// StreamSearch, which may lag behind where its work is bounded.
#include <algorithm>
#include <queue>
#include <unordered_map>

#include "text/detokenizer.h"
#include "text/regex/stream_search.h"
#include "text/unicode/utf8.h"

namespace espalier {
namespace {

// Aho, Corasick 1975. Node 0 is the empty prefix.
class StopAutomaton {
 public:
  explicit StopAutomaton(const std::vector<std::string>& stops) {
    nodes_.emplace_back();
    for (size_t i = 0; i < stops.size(); ++i) add(stops[i], static_cast<int>(i));
    link();
  }

  // The state after `byte`.
  uint32_t next(uint32_t node, char byte) const {
    for (;; node = nodes_[node].fail) {
      if (const uint32_t child = child_of(node, byte); child != 0) return child;
      if (node == 0) return 0;
    }
  }
  size_t depth(uint32_t node) const { return nodes_[node].depth; }
  // The stop strings that end in this state, the longest first: -1 at the end.
  int longest_stop(uint32_t node) const {
    const uint32_t ending = nodes_[node].stop >= 0 ? node : nodes_[node].shorter;
    return ending == 0 ? -1 : nodes_[ending].stop;
  }

 private:
  struct Node {
    uint32_t fail = 0;     // the longest proper suffix that is a prefix of a stop string
    uint32_t shorter = 0;  // the longest proper suffix that is a stop string
    uint32_t depth = 0;
    int stop = -1;  // the stop string that ends here
  };

  void add(std::string_view stop, int index) {
    uint32_t node = 0;
    for (const char byte : stop) {
      uint32_t child = child_of(node, byte);
      if (child == 0) {
        child = static_cast<uint32_t>(nodes_.size());
        children_[key_of(node, byte)] = child;
        nodes_.push_back({0, 0, nodes_[node].depth + 1, -1});
      }
      node = child;
    }
    if (nodes_[node].stop < 0) nodes_[node].stop = index;
  }

  void link() {
    std::vector<std::pair<uint64_t, uint32_t>> edges(children_.begin(), children_.end());
    std::sort(edges.begin(), edges.end(), [&](const auto& a, const auto& b) {
      return nodes_[a.second].depth < nodes_[b.second].depth;
    });
    for (const auto& [key, child] : edges) {  // shallow first: a node's fail is shallower
      const auto parent = static_cast<uint32_t>(key >> 8);
      const char byte = static_cast<char>(key & 0xFF);
      Node& node = nodes_[child];
      node.fail = parent == 0 ? 0 : next(nodes_[parent].fail, byte);
      node.shorter = nodes_[node.fail].stop >= 0 ? node.fail : nodes_[node.fail].shorter;
    }
  }

  static uint64_t key_of(uint32_t node, char byte) {
    return (static_cast<uint64_t>(node) << 8) | static_cast<uint8_t>(byte);
  }
  uint32_t child_of(uint32_t node, char byte) const {
    const auto it = children_.find(key_of(node, byte));
    return it == children_.end() ? 0 : it->second;
  }

  std::vector<Node> nodes_;
  std::unordered_map<uint64_t, uint32_t> children_;
};

// Where the last `count` characters of `text` begin.
size_t tail_begin(std::string_view text, size_t count) {
  size_t begin = text.size();
  while (begin > 0 && count > 0) {
    --begin;
    if ((static_cast<uint8_t>(text[begin]) & 0xC0) != 0x80) --count;
  }
  return begin;
}

}  // namespace

struct StopMatcher::Impl {
  // What all siblings share; `regex` is null without stop expressions.
  struct Stops {
    Stops(std::vector<std::string> stops, std::vector<std::string> regexes)
        : strings(std::move(stops)), patterns(std::move(regexes)), automaton(strings) {}
    const std::vector<std::string> strings, patterns;
    const StopAutomaton automaton;
    std::shared_ptr<StreamRegex> regex;
  };
  struct Hit {
    size_t begin = 0, end = 0;  // in the stream
    const std::string* what = nullptr;
    bool better_than(const Hit& other) const {
      if (other.what == nullptr) return what != nullptr;
      return begin != other.begin ? begin < other.begin : end > other.end;
    }
  };

  explicit Impl(std::shared_ptr<const Stops> s) : stops(std::move(s)) {
    if (stops->regex != nullptr) search.emplace(stops->regex);
  }

  size_t end() const { return buffer_begin + buffer.size(); }
  std::string cut(size_t begin, size_t end) const {
    return buffer.substr(begin - buffer_begin, end - begin);
  }
  void search_strings(size_t new_begin);
  void search_regexes(int64_t& step_work_left);
  Hit best_hit() const;
  size_t hold_begin() const;
  Output finish(const Hit& hit);
  Output show_safe();

  const std::shared_ptr<const Stops> stops;  // shared by the siblings
  uint32_t state = 0;                        // of stops->automaton
  std::optional<StreamSearch> search;
  int64_t work_credit = 0;
  Hit string_hit, regex_hit;
  // Positions count bytes of the stream. `buffer` is its end: what is pending, and what the search
  // has not read.
  std::string buffer;
  size_t buffer_begin = 0;
  bool ended = false;
};

StopMatcher::StopMatcher(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
StopMatcher::StopMatcher(StopMatcher&&) noexcept = default;
StopMatcher& StopMatcher::operator=(StopMatcher&&) noexcept = default;
StopMatcher::~StopMatcher() = default;

Result<StopMatcher> StopMatcher::create(std::vector<std::string> stops,
                                        std::vector<std::string> stop_regexes) {
  if (stops.size() > kStopsMax || stop_regexes.size() > kStopsMax) {
    return fail(invalid_argument(
        "stop and stop_regex: at most {} stop strings and {} stop expressions are accepted",
        kStopsMax, kStopsMax));
  }
  std::erase(stops, "");
  std::erase(stop_regexes, "");
  for (const std::string& stop : stops) {
    if (stop.size() > kStopBytesMax) {
      return fail(invalid_argument("stop: a stop string has {} bytes; at most {} are accepted",
                                   stop.size(), kStopBytesMax));
    }
    if (!is_valid_utf8(stop)) return fail(invalid_argument("a stop string is not valid UTF-8"));
  }
  auto shared = std::make_shared<Impl::Stops>(std::move(stops), std::move(stop_regexes));
  if (!shared->patterns.empty()) {
    auto compiled = StreamRegex::compile(shared->patterns);
    if (!compiled) return fail(compiled.error().with_context("stop_regex"));
    shared->regex = *std::move(compiled);
  }
  return StopMatcher(std::make_unique<Impl>(std::move(shared)));
}

StopMatcher StopMatcher::sibling() const {
  return StopMatcher(std::make_unique<Impl>(impl_->stops));
}

StopMatcher StopMatcher::fork() const { return StopMatcher(std::make_unique<Impl>(*impl_)); }

void StopMatcher::Impl::search_strings(size_t new_begin) {
  for (size_t i = new_begin; i < end(); ++i) {
    state = stops->automaton.next(state, buffer[i - buffer_begin]);
    const int stop = stops->automaton.longest_stop(state);
    if (stop < 0) continue;
    const std::string& text = stops->strings[static_cast<size_t>(stop)];
    const Hit hit{i + 1 - text.size(), i + 1, &text};
    if (hit.better_than(string_hit)) string_hit = hit;
  }
}

// Takes the work of this push from its own credit first.
void StopMatcher::Impl::search_regexes(int64_t& step_work_left) {
  if (!search) return;
  work_credit = std::min(work_credit + kWorkPerPush, kWorkPerPush);
  const int64_t budget = std::max<int64_t>(step_work_left, 0);
  int64_t work_left = work_credit + budget;
  search->read(std::string_view(buffer).substr(search->num_read() - buffer_begin), work_left);
  const auto found = search->match(work_left);
  const int64_t used = work_credit + budget - work_left;
  const int64_t from_budget =
      std::clamp<int64_t>(used - std::max<int64_t>(work_credit, 0), 0, budget);
  step_work_left -= from_budget;
  work_credit -= used - from_budget;
  if (found) regex_hit = {found->begin, found->end, &stops->patterns[found->pattern]};
}

// A stop string's hit counts once the expressions have been searched as far.
StopMatcher::Impl::Hit StopMatcher::Impl::best_hit() const {
  if (regex_hit.what != nullptr &&
      (string_hit.what == nullptr || regex_hit.begin < string_hit.begin))
    return regex_hit;
  return search && search->num_read() < end() ? Hit() : string_hit;
}

// From where on text stays pending.
size_t StopMatcher::Impl::hold_begin() const {
  size_t hold = end() - stops->automaton.depth(state);
  if (string_hit.what != nullptr) hold = std::min(hold, string_hit.begin);
  if (!search) return hold;
  const size_t unsearched = search->num_read();
  const size_t window = buffer_begin + tail_begin(buffer, kRegexWindow);
  return std::min(
      {hold, unsearched, std::max(search->pending_begin().value_or(unsearched), window)});
}

StopMatcher::Output StopMatcher::Impl::finish(const Hit& hit) {
  ended = true;
  const size_t shown = std::max(hit.begin, buffer_begin);  // what was shown cannot be taken back
  return {
      .text = cut(buffer_begin, shown), .matched = *hit.what, .matched_text = cut(shown, hit.end)};
}

StopMatcher::Output StopMatcher::Impl::show_safe() {
  const size_t hold = hold_begin();
  Output output{.text = cut(buffer_begin, hold)};
  buffer.erase(0, hold - buffer_begin);
  buffer_begin = hold;
  output.overloaded = search && end() - search->num_read() > kUnsearchedBytesMax;
  ended = output.overloaded;
  return output;
}

StopMatcher::Output StopMatcher::push(std::string_view text, int64_t& step_work_left) {
  Impl& impl = *impl_;
  if (impl.ended || text.empty()) return {};
  const size_t new_begin = impl.end();
  impl.buffer += text;
  impl.search_strings(new_begin);
  impl.search_regexes(step_work_left);
  const Impl::Hit hit = impl.best_hit();
  return hit.what != nullptr ? impl.finish(hit) : impl.show_safe();
}

std::string StopMatcher::flush() {
  Impl& impl = *impl_;
  if (impl.ended) return {};
  impl.ended = true;
  return impl.string_hit.what != nullptr
             ? impl.cut(impl.buffer_begin, std::max(impl.string_hit.begin, impl.buffer_begin))
             : impl.buffer;
}

}  // namespace espalier
