#include "grammar/masks/char_classes.h"

#include "base/check.h"
#include "grammar/automata/nfa.h"
#include "grammar/automata/unicode.h"

namespace espalier::grammar {
namespace {

// White space beyond ASCII, as \s defines it.
const std::vector<CodeRange>& other_spaces() {
  static const std::vector<CodeRange> kSpaces = [] {
    std::vector<CodeRange> made = {{0x85, 0x85}};
    for (const CodeRange& range : space_chars()) {
      if (range.low >= 0x80) made.push_back(range);
    }
    return normalized(std::move(made));
  }();
  return kSpaces;
}

constexpr std::string_view kSingle = "_-./";  // classes of one character each
constexpr int kFirstSingle = 4;
constexpr std::string_view kInAddresses = "!#$&'()*+,:;=?@~";
constexpr int kOther = kNumCharClasses - 2, kOtherSpace = kNumCharClasses - 1;

int class_of(uint32_t code) {
  if (code >= 'a' && code <= 'z') return 0;
  if (code >= 'A' && code <= 'Z') return 1;
  if (code >= '0' && code <= '9') return 2;
  if (code == ' ') return 3;
  if (code == '"' || code == '\\' || code < 0x20) return kNumCharClasses;
  if (code < 0x80) {
    const auto c = static_cast<char>(code);
    if (const size_t at = kSingle.find(c); at != std::string_view::npos)
      return kFirstSingle + static_cast<int>(at);
    return kInAddresses.find(c) != std::string_view::npos ? kOther - 2 : kOther - 1;
  }
  for (const CodeRange& range : other_spaces()) {
    if (range.low <= code && code <= range.high) return kOtherSpace;
  }
  return kOther;
}

std::vector<CodeRange> ranges_of(int kind) {
  if (kind == kOtherSpace) return other_spaces();
  std::vector<CodeRange> ranges;
  if (kind == kOther) {
    ranges = other_spaces();
    ranges.push_back({0, 0x7f});
    return complement(normalized(std::move(ranges)));
  }
  for (uint32_t code = 0; code < 0x80; ++code) {
    if (class_of(code) == kind) ranges.push_back({code, code});
  }
  return ranges;
}

CharClassAutomaton make_automaton(int kind) {
  Ir ir;
  const Nfa nfa = nfa_of(ir, ir.chars(ranges_of(kind)), [](RuleId) { return kInlineRule; }, {});
  const std::optional<Nfa> dfa = determinised(nfa, 4096, {});
  ESP_CHECK(dfa.has_value());
  const Ir::Graph graph = graph_of(minimised(*dfa, {}));
  CharClassAutomaton made;
  made.next.resize(graph.num_states);
  for (auto& row : made.next) row.fill(CharClassAutomaton::kDead);
  for (const Ir::Arc& arc : graph.arcs) {
    const bool whole = arc.to == graph.finals[0];
    for (size_t b = arc.low; b <= arc.high; ++b) {
      made.next[arc.from][b] = whole ? CharClassAutomaton::kWhole : static_cast<uint8_t>(arc.to);
    }
  }
  return made;
}

// The kinds: of letters and digits, the rest of ASCII, and the two classes beyond it.
struct CharKinds {
  std::array<int, 128> of_ascii{};
  std::array<int, kNumCharKinds> classes{};
  std::array<std::vector<uint8_t>, kNumCharKinds> ascii;
};
CharKinds make_kinds() {
  constexpr int kNumAlphanumeric = 3;
  CharKinds made;
  int next = kNumAlphanumeric;
  for (uint8_t code = 0x20; code < 0x80; ++code) {
    const int char_class = class_of(code);
    if (char_class == kNumCharClasses) continue;
    const int kind = char_class < kNumAlphanumeric ? char_class : next++;
    made.of_ascii[code] = kind;
    made.classes[static_cast<size_t>(kind)] = char_class;
    made.ascii[static_cast<size_t>(kind)].push_back(code);
  }
  ESP_CHECK(next == kNumCharKinds - 2, "{} kinds", next);
  made.classes[kNumCharKinds - 2] = kOther;
  made.classes[kNumCharKinds - 1] = kOtherSpace;
  return made;
}
const CharKinds& kinds() {
  static const CharKinds kMade = make_kinds();
  return kMade;
}

}  // namespace

int char_class_of_kind(int kind) { return kinds().classes[static_cast<size_t>(kind)]; }

const std::vector<uint8_t>& ascii_of_kind(int kind) {
  return kinds().ascii[static_cast<size_t>(kind)];
}

int take_char_kind(std::string_view& text) {
  std::string_view rest = text;
  const auto code = take_code_point(rest);
  const int char_class = code ? class_of(*code) : kNumCharClasses;
  if (char_class == kNumCharClasses) return kNumCharKinds;
  text = rest;
  return *code < 0x80 ? kinds().of_ascii[*code] : char_class - kOther + kNumCharKinds - 2;
}

CharClassSet char_classes_of(std::string_view text) {
  CharClassSet kinds = 0;
  while (!text.empty()) {
    const auto code = take_code_point(text);
    if (!code) return kinds | kOtherBytes;
    kinds |= static_cast<CharClassSet>(1 << class_of(*code));
  }
  return kinds;
}

const CharClassAutomaton& char_class_automaton(int kind) {
  static const auto kMade = [] {
    std::array<CharClassAutomaton, kNumCharClasses> all;
    for (int k = 0; k < kNumCharClasses; ++k) all[static_cast<size_t>(k)] = make_automaton(k);
    return all;
  }();
  return kMade[static_cast<size_t>(kind)];
}

}  // namespace espalier::grammar
