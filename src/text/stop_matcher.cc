// Stop strings are found by an Aho-Corasick automaton. Its state is the longest suffix of the text
// that begins a stop string, which is the text that must stay pending. Regexes are found by PCRE2's
// partial matching.
#include <algorithm>
#include <queue>
#include <unordered_map>

#include "text/detokenizer.h"
#include "text/regex/pcre.h"
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
  Impl(std::vector<std::string> stop_strings, std::vector<std::string> patterns,
       std::vector<PcreRegex> compiled)
      : stops(std::move(stop_strings)),
        regex_patterns(std::move(patterns)),
        regexes(std::move(compiled)),
        automaton(stops),
        num_failures(regexes.size()) {}

  struct Hit {
    size_t begin = 0, end = 0;  // in buffer
    const std::string* what = nullptr;
    bool better_than(const Hit& other) const {
      if (other.what == nullptr) return what != nullptr;
      return begin != other.begin ? begin < other.begin : end > other.end;
    }
  };

  Hit find_stop(size_t new_begin);
  // Narrows `hold_begin` to where a match could begin.
  Hit find_regex(size_t& hold_begin);

  const std::vector<std::string> stops, regex_patterns;
  const std::vector<PcreRegex> regexes;
  const StopAutomaton automaton;
  std::vector<int> num_failures;  // of each regex: searches that took too many steps
  uint32_t state = 0;
  std::string buffer;  // text that was shown and is kept for the expressions, then what is pending
  size_t shown = 0;    // bytes of buffer that were shown
  bool ended = false;
};

StopMatcher::StopMatcher(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
StopMatcher::StopMatcher(StopMatcher&&) noexcept = default;
StopMatcher& StopMatcher::operator=(StopMatcher&&) noexcept = default;
StopMatcher::~StopMatcher() = default;

Result<StopMatcher> StopMatcher::create(std::vector<std::string> stops,
                                        std::vector<std::string> stop_regexes) {
  if (stops.size() > kStopsMax || stop_regexes.size() > kStopsMax) {
    return fail(invalid_argument("at most {} stop strings and {} stop expressions are accepted",
                                 kStopsMax, kStopsMax));
  }
  std::erase(stops, "");
  std::erase(stop_regexes, "");
  for (const std::string& stop : stops) {
    if (stop.size() > kStopBytesMax) {
      return fail(invalid_argument("a stop string has {} bytes; at most {} are accepted",
                                   stop.size(), kStopBytesMax));
    }
    if (!is_valid_utf8(stop)) return fail(invalid_argument("a stop string is not valid UTF-8"));
  }
  std::vector<PcreRegex> regexes;
  const auto count = static_cast<uint32_t>(stop_regexes.size());
  const uint32_t steps = std::max(kRegexStepsMin, kRegexStepsMax / std::max(count, 1u));
  for (const std::string& pattern : stop_regexes) {
    ESP_ASSIGN_OR_RETURN(PcreRegex regex,
                         PcreRegex::compile(pattern, {.match_steps_max = steps, .partial = true}));
    regexes.push_back(std::move(regex));
  }
  return StopMatcher(
      std::make_unique<Impl>(std::move(stops), std::move(stop_regexes), std::move(regexes)));
}

StopMatcher::Impl::Hit StopMatcher::Impl::find_stop(size_t new_begin) {
  Hit best;
  for (size_t i = new_begin; i < buffer.size(); ++i) {
    state = automaton.next(state, buffer[i]);
    const int stop = automaton.longest_stop(state);
    if (stop < 0) continue;
    const std::string& text = stops[static_cast<size_t>(stop)];
    const Hit hit{i + 1 - text.size(), i + 1, &text};
    if (hit.better_than(best)) best = hit;
  }
  return best;
}

StopMatcher::Impl::Hit StopMatcher::Impl::find_regex(size_t& hold_begin) {
  Hit best;
  const size_t window_begin = tail_begin(buffer, kRegexWindow);
  for (size_t i = 0; i < regexes.size(); ++i) {
    if (num_failures[i] >= kRegexFailuresMax) continue;
    PcreRegex::Search search(regexes[i], buffer);
    const PcreRegex::Search::Found found = search.find_or_partial(0);
    num_failures[i] += search.limit_hit() ? 1 : 0;
    if (found.match) {
      const Hit hit{found.match->begin, found.match->end, &regex_patterns[i]};
      if (hit.better_than(best)) best = hit;
    } else if (found.partial_begin) {
      hold_begin = std::min(hold_begin, std::max(*found.partial_begin, window_begin));
    }
  }
  return best;
}

StopMatcher::Output StopMatcher::push(std::string_view text) {
  Impl& impl = *impl_;
  if (impl.ended || text.empty()) return {};
  const size_t new_begin = impl.buffer.size();
  impl.buffer += text;
  Impl::Hit hit = impl.find_stop(new_begin);
  size_t hold_begin = impl.buffer.size() - impl.automaton.depth(impl.state);
  const Impl::Hit regex_hit = impl.find_regex(hold_begin);
  if (regex_hit.what != nullptr && (hit.what == nullptr || regex_hit.begin < hit.begin)) {
    hit = regex_hit;
  }
  Output output;
  if (hit.what != nullptr) {
    impl.ended = true;
    if (hit.begin > impl.shown) {
      output.text = impl.buffer.substr(impl.shown, hit.begin - impl.shown);
    }
    output.matched = *hit.what;
    output.matched_text = impl.buffer.substr(hit.begin, hit.end - hit.begin);
    return output;
  }
  hold_begin = std::max(hold_begin, impl.shown);  // shown text cannot become pending
  output.text = impl.buffer.substr(impl.shown, hold_begin - impl.shown);
  impl.shown = hold_begin;
  const size_t window_begin =
      impl.regexes.empty() ? impl.shown : tail_begin(impl.buffer, kRegexWindow);
  const size_t drop = std::min(impl.shown, window_begin);
  impl.buffer.erase(0, drop);
  impl.shown -= drop;
  return output;
}

std::string StopMatcher::flush() {
  Impl& impl = *impl_;
  if (impl.ended) return {};
  impl.ended = true;
  return impl.buffer.substr(impl.shown);
}

}  // namespace espalier
