#include "grammar/schema/evaluator.h"

#include <algorithm>

#include "grammar/schema/elements.h"
#include "grammar/schema/json_values.h"
#include "grammar/schema/keywords.h"

namespace espalier::grammar {

namespace json = boost::json;

namespace {

constexpr int kEvaluationDepthMax = 400;
constexpr int64_t kStepsMax = 1'000'000;  // evaluations of schemas on parts of one instance
constexpr size_t kListSearchedMax = 32;   // longer lists of `enum` are hashed

uint8_t types_of_kind(const json::value& v) {
  if (v.is_null()) return kNull;
  if (v.is_bool()) return kBoolean;
  if (v.is_string()) return kString;
  if (v.is_array()) return kArray;
  if (is_plain_object(v)) return kObject;
  return kNumber;
}

}  // namespace

void Evaluated::add(const Evaluated& other) {
  properties.insert(other.properties.begin(), other.properties.end());
  items.insert(other.items.begin(), other.items.end());
}

bool KeywordEvaluation::holds(const json::value& subschema) const {
  return evaluator.check(&subschema, scope, instance, &evaluated);
}

bool KeywordEvaluation::holds_of_part(const json::value& subschema, const json::value& part) const {
  return evaluator.check(&subschema, scope, part, nullptr);
}

Result<bool> InstanceEvaluator::run(const json::value& instance, const json::value* schema,
                                    ScopeId scope, const GrammarLimits& limits) {
  status_ = {};
  limits_ = &limits;
  depth_ = 0;
  steps_ = 0;
  verdicts_.clear();
  names_.clear();
  const bool result = check(schema, scope, instance, nullptr);
  if (!status_.ok()) return fail(status_);
  return result;
}

bool InstanceEvaluator::failed(Status status) {
  if (status_.ok()) status_ = std::move(status);
  return false;
}

bool InstanceEvaluator::take_over(const Verdict& verdict, Evaluated* evaluated) {
  if (verdict.valid && evaluated != nullptr) evaluated->add(verdict.evaluated);
  return verdict.valid;
}

bool InstanceEvaluator::check(const json::value* schema, ScopeId scope, const json::value& instance,
                              Evaluated* evaluated) {
  const json::value* const meant = document_.meant(schema);
  if (meant != schema) return check_referred(meant, scope, instance, evaluated);
  return take_over(evaluate(schema, scope, instance), evaluated);
}

bool InstanceEvaluator::check_referred(const json::value* schema, ScopeId scope,
                                       const json::value& instance, Evaluated* evaluated) {
  schema = document_.meant(schema);
  const std::tuple key(schema, scope, &instance);
  auto known = verdicts_.find(key);
  if (known == verdicts_.end())
    known = verdicts_.emplace(key, evaluate(schema, scope, instance)).first;
  return take_over(known->second, evaluated);
}

InstanceEvaluator::Verdict InstanceEvaluator::evaluate(const json::value* schema, ScopeId scope,
                                                       const json::value& instance) {
  Verdict verdict;
  if (!status_.ok()) return verdict;
  if (schema->is_bool()) {
    verdict.valid = schema->get_bool();
  } else if (!schema->is_object()) {
    failed(invalid_argument("{}: a schema is an object, or true or false",
                            document_.pointer_of(schema)));
  } else if (depth_ >= kEvaluationDepthMax) {
    failed(error(StatusCode::kResourceExhausted, "the schema's references go too deep"));
  } else if (++steps_ > kStepsMax) {
    failed(error(StatusCode::kResourceExhausted, "the schema says too much of one value"));
  } else {
    ++depth_;
    scope = document_.entered(scope, schema);
    verdict.valid = evaluate_keywords(*schema, scope, instance, verdict.evaluated);
    --depth_;
  }
  return verdict;
}

bool InstanceEvaluator::evaluate_keywords(const json::value& schema, ScopeId scope,
                                          const json::value& instance, Evaluated& evaluated) {
  const json::object& own = schema.get_object();
  const bool only_ref = own.contains("$ref") && document_.ref_hides_siblings(&schema);
  const bool asserts = document_.asserts(&schema);
  const uint8_t types = types_of_kind(instance);
  for (const Keyword& row : keywords()) {
    if (row.validate == nullptr || !(row.types & types)) continue;
    if (row.role == Role::kAssertion && !asserts) continue;
    if (only_ref && row.name != "$ref") continue;
    const json::value* value = own.if_contains(row.name);
    if (value == nullptr) continue;
    if (!row.validate({*this, schema, own, scope, instance, evaluated, row.name, *value}))
      return false;
  }
  return status_.ok();
}

bool InstanceEvaluator::check_reference(const KeywordEvaluation& at) {
  if (!at.value.is_string()) return true;
  const auto target = document_.resolve(&at.schema, at.key, at.value.get_string(), at.scope);
  if (!target) return failed(target.error());
  return check_referred(target->schema, target->scope, at.instance, &at.evaluated);
}

bool InstanceEvaluator::matches(std::string_view pattern, std::string_view text) {
  const auto matched = strings_.matches(pattern, text, *limits_);
  return matched ? *matched : failed(matched.error());
}

bool InstanceEvaluator::is_among(const json::value& list, const json::value& v) {
  if (!list.is_array()) return false;
  const json::array& values = list.get_array();
  if (values.size() <= kListSearchedMax) {
    return std::ranges::any_of(values, [&](const json::value& w) { return equal_values(v, w); });
  }
  const auto [it, added] = lists_.try_emplace(&list);
  if (added) {
    for (const json::value& w : values) it->second.insert(canonical_text(w));
  }
  return it->second.contains(canonical_text(v));
}

const json::value& InstanceEvaluator::name_value(std::string_view name) {
  return names_.emplace_back(json::string(name));
}

}  // namespace espalier::grammar
