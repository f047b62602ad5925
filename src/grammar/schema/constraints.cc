#include "grammar/schema/constraints.h"

#include <algorithm>
#include <functional>
#include <tuple>
#include <unordered_set>

#include "grammar/schema/json_values.h"
#include "grammar/schema/keywords.h"

namespace espalier::grammar {

namespace json = boost::json;

Result<Constraints> collect_constraints(const SchemaDocument& document,
                                        const Conjunction& elements) {
  Constraints out;
  for (const Element& element : elements) {
    const json::object* object = element.schema->if_object();
    if (object == nullptr) continue;
    const bool only_ref = document.ref_hides_siblings(element.schema) && object->contains("$ref");
    if (only_ref && (element.done & kDoneRef)) continue;
    const bool asserts = document.asserts(element.schema);
    const bool alone = elements.size() == 1 && evaluates_alone(element);
    for (const auto& [key, value] : *object) {
      const Keyword* keyword = find_keyword(key);
      if (keyword == nullptr || keyword->lower == nullptr) continue;
      if (!asserts && keyword->role == Role::kAssertion) continue;
      ESP_RETURN_IF_ERROR(keyword->lower({document, element, key, value, alone, out}));
    }
  }
  // The order of elements is arbitrary, and the size of intersections depends on their order.
  for (auto* patterns : {&out.patterns, &out.not_patterns}) std::ranges::sort(*patterns);
  for (auto* divisors : {&out.divisors, &out.not_divisors}) {
    std::ranges::sort(*divisors, std::greater(), [](const Decimal& d) {
      return std::tuple(d.whole.size(), d.whole, d.fraction);
    });
  }
  std::ranges::sort(out.required);
  out.required.erase(std::unique(out.required.begin(), out.required.end()), out.required.end());
  return out;
}

std::optional<std::vector<const json::value*>> allowed_values(const Constraints& constraints) {
  std::optional<std::vector<const json::value*>> allowed;
  const auto meet = [&](const std::vector<const json::value*>& list) {
    if (!allowed) {
      allowed = list;
      return;
    }
    std::unordered_set<std::string> texts;
    for (const json::value* w : list) texts.insert(canonical_text(*w));
    std::erase_if(*allowed,
                  [&](const json::value* v) { return !texts.contains(canonical_text(*v)); });
  };
  for (const json::value* constant : constraints.constants) meet({constant});
  for (const json::value* values : constraints.enums) {
    std::vector<const json::value*> list;
    for (const json::value& v : values->get_array()) list.push_back(&v);
    meet(list);
  }
  return allowed;
}

}  // namespace espalier::grammar
