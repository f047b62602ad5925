// Grammars as source text: their keys and the names of their kinds.
#include <string>
#include <string_view>
#include <utility>

#include "grammar/grammar.h"

namespace espalier::grammar {
namespace {

// Serialises fields without ambiguity, so that different lists of fields give different keys.
class KeyWriter {
 public:
  template <typename... Fields>
  void add_all(const Fields&... fields) {
    (add(fields), ...);
  }
  std::string take() { return std::move(key_); }

 private:
  void add(const std::string& text) {
    add_number(text.size());
    key_ += text;
  }
  void add(bool flag) { key_ += flag ? '1' : '0'; }
  void add(GrammarSpec::Kind kind) { add_number(static_cast<uint64_t>(kind)); }
  void add(Whitespace whitespace) { add_number(static_cast<uint64_t>(whitespace)); }
  template <typename T>
  void add(const std::vector<T>& list) {
    add_number(list.size());
    for (const T& item : list) add(item);
  }
  // The structured bindings make a new field that is missing here fail to compile.
  void add(const SchemaText& document) {
    const auto& [uri, text] = document;
    add_all(uri, text);
  }
  void add(const SchemaOptions& options) {
    const auto& [any_order, whole_fractions, formats_annotate, draft, documents] = options;
    add_all(any_order, whole_fractions, formats_annotate, draft, documents);
  }
  void add_number(uint64_t number) { key_ += std::to_string(number) + ' '; }

  std::string key_;
};

}  // namespace

std::string key_of(const GrammarSpec& spec) {
  const auto& [kind, source, choices, whitespace, reasoning_begin, reasoning_end, json] = spec;
  KeyWriter key;
  key.add_all(kind, source, choices, whitespace, reasoning_begin, reasoning_end, json);
  return key.take();
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

}  // namespace espalier::grammar
