#include "grammar/schema/validator.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <tuple>

#include "grammar/automata/earley.h"
#include "grammar/automata/unicode.h"
#include "grammar/frontends/regex.h"
#include "grammar/schema/formats.h"
#include "grammar/schema/number_ranges.h"

namespace espalier::grammar {

namespace json = boost::json;

namespace {

constexpr int kDepthMax = 400;
constexpr int64_t kStepsMax = 1'000'000;  // schemas that are asked of one value's parts

std::optional<int64_t> count_of(const json::value* bound) {
  if (bound == nullptr) return std::nullopt;
  const auto decimal = Decimal::of(*bound);
  if (!decimal || decimal->negative || !decimal->fraction.empty()) return std::nullopt;
  if (decimal->whole.size() > 15) return int64_t{1} << 50;
  return decimal->whole.empty() ? 0 : std::stoll(decimal->whole);
}

int64_t characters(std::string_view text) {
  return std::ranges::count_if(text, [](char c) { return (c & 0xc0) != 0x80; });
}

bool is_multiple(const Decimal& value, const Decimal& divisor) {
  // Both scaled to integers; the remainder digit by digit.
  const size_t places = std::max(value.fraction.size(), divisor.fraction.size());
  const auto scaled = [&](const Decimal& d) {
    return d.whole + d.fraction + std::string(places - d.fraction.size(), '0');
  };
  constexpr uint64_t kUnitMax = 100'000'000'000'000'000;  // ten of them fit
  uint64_t unit = 0;
  for (char c : scaled(divisor)) {
    unit = unit * 10 + static_cast<uint64_t>(c - '0');
    if (unit > kUnitMax) return value.zero();  // a divisor beyond anything that is written
  }
  if (unit == 0) return false;
  uint64_t rest = 0;
  for (char c : scaled(value)) rest = (rest * 10 + static_cast<uint64_t>(c - '0')) % unit;
  return rest == 0;
}

bool has_type(const json::value& v, std::string_view type, Draft draft) {
  const auto whole = [&] {
    if (v.is_int64() || v.is_uint64()) return true;
    if (!v.is_double()) return false;
    // Beyond 64 bits an integer is read as a double; whether a point was written is not known then.
    if (std::abs(v.get_double()) >= 0x1p63) return true;
    const auto decimal = Decimal::of(v);
    return draft != Draft::k4 && decimal && decimal->fraction.empty();
  };
  if (type == "null") return v.is_null();
  if (type == "boolean") return v.is_bool();
  if (type == "string") return v.is_string();
  if (type == "array") return v.is_array();
  if (type == "object") return v.is_object();
  if (type == "number") return v.is_number();
  if (type == "integer") return whole();
  if (type == kFractionType) return v.is_number() && !whole();
  return false;
}

// What is not supported is a pattern all the same.
bool is_regex(std::string_view text) {
  Ir ir;
  const auto parsed = parse_regex(ir, text);
  return parsed || parsed.error().message().find("not supported") != std::string::npos;
}

constexpr size_t kPatternBytesMax = size_t{128} << 20;

size_t bytes_of(const Network& network) {
  return network.nodes.size() * sizeof(Network::Node) +
         network.byte_edges.size() * sizeof(Network::ByteEdge) +
         network.call_edges.size() * sizeof(Network::CallEdge);
}

constexpr size_t kListSearchedMax = 32;  // longer ones are looked up

void append_canonical(const json::value& v, std::string& out) {
  if (const json::array* items = v.if_array()) {
    out += '[';
    for (const json::value& item : *items) append_canonical(item, out);
    out += ']';
  } else if (const json::object* members = v.if_object()) {
    std::vector<std::pair<std::string_view, const json::value*>> sorted;
    for (const auto& [key, value] : *members) sorted.emplace_back(key, &value);
    std::ranges::sort(sorted);
    out += '{';
    for (const auto& [key, value] : sorted) {
      out += json::serialize(json::string(key));
      append_canonical(*value, out);
    }
    out += '}';
  } else if (const auto decimal = Decimal::of(v)) {
    out += decimal->negative && !decimal->zero() ? '-' : '+';
    out += decimal->whole + '.' + decimal->fraction;
  } else {
    out += json::serialize(v);
  }
}

}  // namespace

std::string canonical_text(const json::value& v) {
  std::string out;
  append_canonical(v, out);
  return out;
}

bool equal_values(const json::value& a, const json::value& b) {
  if (a.is_number() && b.is_number()) {
    if (a.kind() == b.kind()) return a == b;
    const auto x = Decimal::of(a), y = Decimal::of(b);
    return x && y && compare(*x, *y) == 0;
  }
  if (a.kind() != b.kind()) return false;
  if (const json::array* x = a.if_array()) {
    return std::ranges::equal(*x, b.get_array(), equal_values);
  }
  if (const json::object* x = a.if_object()) {
    const json::object& y = b.get_object();
    return x->size() == y.size() && std::ranges::all_of(*x, [&](const auto& entry) {
             const json::value* other = y.if_contains(entry.key());
             return other != nullptr && equal_values(entry.value(), *other);
           });
  }
  return a == b;
}

struct SchemaValidator::Pattern {
  Network network;
  std::unique_ptr<EarleyRecogniser> earley;
};

SchemaValidator::SchemaValidator(SchemaDocument& document) : document_(document) {}
SchemaValidator::~SchemaValidator() = default;

void SchemaValidator::Seen::add(const Seen& other) {
  properties.insert(other.properties.begin(), other.properties.end());
  items.insert(other.items.begin(), other.items.end());
}

bool SchemaValidator::failed(Status status) {
  if (status_.ok()) status_ = std::move(status);
  return false;
}

Result<bool> SchemaValidator::valid(const Value& instance, const Value* schema, ScopeId scope,
                                    const GrammarLimits& limits) {
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

// References chain without end: what is still to be looked at waits in a list, not on the stack.
Status SchemaValidator::admits(const Value* schema, ScopeId scope, const GrammarLimits& limits) {
  std::vector<std::pair<const Value*, ScopeId>> waiting;
  const auto add = [&](const Value* inner, ScopeId inner_scope) {
    inner = document_.meant(inner);
    inner_scope = document_.entered(inner_scope, inner);
    if (admitted_.insert({inner, inner_scope}).second && inner->is_object())
      waiting.emplace_back(inner, inner_scope);
  };
  add(schema, scope);
  while (!waiting.empty()) {
    std::tie(schema, scope) = waiting.back();
    waiting.pop_back();
    for (const auto& [key, value] : schema->get_object()) {
      const std::string_view name = key;
      if (name == "$ref" || name == "$dynamicRef" || name == "$recursiveRef") {
        if (!value.is_string()) continue;
        ESP_ASSIGN_OR_RETURN(const auto target,
                             document_.resolve(schema, name, value.get_string(), scope));
        add(target.schema, target.scope);
      } else if ((name == "pattern" || name == kNotPattern) && value.is_string()) {
        ESP_RETURN_IF_ERROR(make_patterns(value.get_string(), limits));
      } else if (name == "patternProperties" && value.is_object()) {
        for (const auto& [pattern, inner] : value.get_object()) {
          ESP_RETURN_IF_ERROR(make_patterns(pattern, limits));
          add(&inner, scope);
        }
      } else if (name != "enum" && name != "const" && name != "default" && name != "examples") {
        const bool map =
            name == "properties" || name == "dependentSchemas" || name == "dependencies";
        if (value.is_object() && !map) add(&value, scope);
        if (value.is_object() && map) {
          for (const auto& [inner_name, inner] : value.get_object()) add(&inner, scope);
        }
        if (value.is_array()) {
          for (const Value& inner : value.get_array()) add(&inner, scope);
        }
      }
    }
  }
  return {};
}

bool SchemaValidator::is_among(const Value& list, const Value& v) {
  if (!list.is_array()) return false;
  const json::array& values = list.get_array();
  if (values.size() <= kListSearchedMax) {
    return std::ranges::any_of(values, [&](const Value& w) { return equal_values(v, w); });
  }
  const auto [it, added] = lists_.try_emplace(&list);
  if (added) {
    for (const Value& w : values) it->second.insert(canonical_text(w));
  }
  return it->second.contains(canonical_text(v));
}

bool SchemaValidator::check(const Value* schema, ScopeId scope, const Value& instance, Seen* seen) {
  const Value* const meant = document_.meant(schema);
  if (meant != schema) return check_referred(meant, scope, instance, seen);
  return told(judge(schema, scope, instance), seen);
}

bool SchemaValidator::check_referred(const Value* schema, ScopeId scope, const Value& instance,
                                     Seen* seen) {
  schema = document_.meant(schema);
  const std::tuple key(schema, scope, &instance);
  auto known = verdicts_.find(key);
  if (known == verdicts_.end())
    known = verdicts_.emplace(key, judge(schema, scope, instance)).first;
  return told(known->second, seen);
}

bool SchemaValidator::told(const Verdict& verdict, Seen* seen) {
  if (verdict.valid && seen != nullptr) seen->add(verdict.seen);
  return verdict.valid;
}

SchemaValidator::Verdict SchemaValidator::judge(const Value* schema, ScopeId scope,
                                                const Value& instance) {
  Verdict verdict;
  if (!status_.ok()) return verdict;
  if (schema->is_bool()) {
    verdict.valid = schema->get_bool();
  } else if (!schema->is_object()) {
    failed(invalid_argument("{}: a schema is an object, or true or false",
                            document_.pointer_of(schema)));
  } else if (depth_ >= kDepthMax) {
    failed(error(StatusCode::kResourceExhausted, "the schema's references go too deep"));
  } else if (++steps_ > kStepsMax) {
    failed(error(StatusCode::kResourceExhausted, "the schema says too much of one value"));
  } else {
    ++depth_;
    scope = document_.entered(scope, schema);
    verdict.valid = check_keywords({*schema, schema->get_object(), scope, instance, verdict.seen});
    --depth_;
  }
  return verdict;
}

bool SchemaValidator::check_keywords(const Context& c) {
  if (c.keywords.contains("$ref")) {
    if (!check_reference(c, "$ref")) return false;
    if (document_.ref_hides_siblings(&c.schema)) return true;
  }
  if (!check_reference(c, "$dynamicRef") || !check_reference(c, "$recursiveRef")) return false;
  if (!check_any_type(c)) return false;
  if (c.instance.is_number() && !check_number(c)) return false;
  if (c.instance.is_string() && !check_string(c)) return false;
  if (!check_applicators(c)) return false;
  if (c.instance.is_array()) return check_array(c);
  if (c.instance.is_object()) return check_object(c);
  return true;
}

bool SchemaValidator::check_reference(const Context& c, std::string_view keyword) {
  const Value* reference = c.keywords.if_contains(keyword);
  if (reference == nullptr || !reference->is_string()) return true;
  const auto target = document_.resolve(&c.schema, keyword, reference->get_string(), c.scope);
  if (!target) return failed(target.error());
  return check_referred(target->schema, target->scope, c.instance, &c.seen);
}

bool SchemaValidator::check_any_type(const Context& c) {
  if (const Value* banned = c.keywords.if_contains(kNotEnum)) {
    if (is_among(*banned, c.instance)) return false;
  }
  if (!document_.asserts(&c.schema)) return true;
  if (const Value* type = c.keywords.if_contains("type")) {
    const Draft draft = document_.draft_of(&c.schema);
    const auto fits = [&](const Value& name) {
      return name.is_string() && has_type(c.instance, name.get_string(), draft);
    };
    if (type->is_array() ? std::ranges::none_of(type->get_array(), fits) : !fits(*type)) {
      return false;
    }
  }
  if (const Value* values = c.keywords.if_contains("enum")) {
    if (!is_among(*values, c.instance)) return false;
  }
  const Value* constant = c.keywords.if_contains("const");
  return constant == nullptr || equal_values(*constant, c.instance);
}

bool SchemaValidator::check_applicators(const Context& c) {
  const auto holds = [&](const Value& schema) {
    return check(&schema, c.scope, c.instance, &c.seen);
  };
  if (const Value* all = c.keywords.if_contains("allOf"); all != nullptr && all->is_array()) {
    for (const Value& schema : all->get_array()) {
      if (!holds(schema)) return false;
    }
  }
  if (const Value* any = c.keywords.if_contains("anyOf"); any != nullptr && any->is_array()) {
    bool found = false;
    for (const Value& schema : any->get_array()) {
      found |= holds(schema);
      if (found && !document_.has_unevaluated()) break;
    }
    if (!found) return false;
  }
  if (const Value* one = c.keywords.if_contains("oneOf"); one != nullptr && one->is_array()) {
    int found = 0;
    for (const Value& schema : one->get_array()) found += holds(schema);
    if (found != 1) return false;
  }
  if (const Value* negated = c.keywords.if_contains("not")) {
    if (check(negated, c.scope, c.instance, nullptr)) return false;
  }
  if (const Value* condition = c.keywords.if_contains("if");
      condition != nullptr && document_.has_conditions(&c.schema)) {
    const Value* next = c.keywords.if_contains(holds(*condition) ? "then" : "else");
    if (next != nullptr && !holds(*next)) return false;
  }
  return status_.ok();
}

bool SchemaValidator::check_number(const Context& c) {
  if (!document_.asserts(&c.schema)) return true;
  const auto value = Decimal::of(c.instance);
  if (!value) return true;
  NumberBounds bounds;
  const auto bound = [&](const char* key, const char* exclusive_key, bool low) {
    const Value* limit = c.keywords.if_contains(key);
    const Value* exclusive = c.keywords.if_contains(exclusive_key);
    const auto apply = [&](const Value& v, bool open) {
      const auto d = Decimal::of(v);
      if (!d) return;
      if (low) {
        bounds.at_least(*d, open);
      } else {
        bounds.at_most(*d, open);
      }
    };
    const bool open = exclusive != nullptr && exclusive->is_bool() && exclusive->get_bool();
    if (limit != nullptr) apply(*limit, open);
    if (exclusive != nullptr && exclusive->is_number()) apply(*exclusive, true);
  };
  bound("minimum", "exclusiveMinimum", true);
  bound("maximum", "exclusiveMaximum", false);
  if (!bounds.contains(*value)) return false;
  for (const std::string_view key :
       {std::string_view("multipleOf"), std::string_view("divisibleBy"), kNotMultipleOf}) {
    const Value* unit = c.keywords.if_contains(key);
    const auto divisor = unit == nullptr ? std::nullopt : Decimal::of(*unit);
    if (divisor && is_multiple(*value, *divisor) == (key == kNotMultipleOf)) return false;
  }
  return true;
}

// Null: it matches nothing.
Result<const SchemaValidator::Pattern*> SchemaValidator::pattern_of(std::string_view pattern,
                                                                    const GrammarLimits& limits) {
  const auto known = patterns_.find(std::string(pattern));
  if (known != patterns_.end()) return known->second.get();
  Ir ir;
  const auto body = parse_regex(ir, pattern, {.search = true, .encode = {}});
  if (!body) return fail(body.error().with_context("pattern"));
  const RuleId root = ir.add_rule("pattern");
  ir.set_body(root, *body);
  std::unique_ptr<Pattern> made;
  if (auto network = build_network(ir, root, limits)) {
    made = std::make_unique<Pattern>();
    made->network = std::move(*network);
    made->earley = std::make_unique<EarleyRecogniser>(made->network, limits);
    pattern_bytes_ += bytes_of(made->network);
    if (pattern_bytes_ > kPatternBytesMax) {
      return fail(error(StatusCode::kResourceExhausted,
                        "the schema's patterns need more than {} MiB where values are judged by "
                        "them; bound their repetitions more tightly",
                        kPatternBytesMax >> 20));
    }
  } else if (network.error().code() != StatusCode::kInvalidArgument) {
    return fail(network.error());
  }
  return patterns_.emplace(pattern, std::move(made)).first->second.get();
}

Status SchemaValidator::make_patterns(std::string_view pattern, const GrammarLimits& limits) {
  if (const auto parts = split_lookahead(pattern)) {
    ESP_RETURN_IF_ERROR(make_patterns(parts->rest, limits));
    return make_patterns(parts->ahead, limits);
  }
  const auto made = pattern_of(pattern, limits);
  return made ? Status() : made.error();
}

bool SchemaValidator::matches(std::string_view pattern, std::string_view text) {
  if (const auto parts = split_lookahead(pattern)) {
    return matches(parts->rest, text) && matches(parts->ahead, text) == parts->wanted;
  }
  const auto found = pattern_of(pattern, *limits_);
  if (!found) return failed(found.error());
  if (*found == nullptr) return false;
  EarleyRecogniser& earley = *(*found)->earley;
  SetId set = earley.start();
  for (char ch : text) set = earley.step(set, static_cast<uint8_t>(ch));
  return earley.accepting(set);
}

bool SchemaValidator::check_string(const Context& c) {
  if (!document_.asserts(&c.schema)) return true;
  const std::string_view text = c.instance.get_string();
  const int64_t length = characters(text);
  if (const auto low = count_of(c.keywords.if_contains("minLength")); low && length < *low) {
    return false;
  }
  if (const auto high = count_of(c.keywords.if_contains("maxLength")); high && length > *high) {
    return false;
  }
  const auto pattern_holds = [&](std::string_view key, bool wanted) {
    const Value* pattern = c.keywords.if_contains(key);
    if (pattern == nullptr || !pattern->is_string()) return true;
    return matches(pattern->get_string(), text) == wanted;
  };
  if (!pattern_holds("pattern", true) || !pattern_holds(kNotPattern, false)) return false;
  const auto format_holds = [&](std::string_view key, bool wanted) {
    const Value* format = c.keywords.if_contains(key);
    if (format == nullptr || !format->is_string() || document_.formats_annotate()) return true;
    if (format->get_string() == "regex") return is_regex(text) == wanted;
    const auto pattern = format_pattern(format->get_string());
    return (pattern ? matches(*pattern, text) : true) == wanted;
  };
  return format_holds("format", true) && format_holds(kNotFormat, false) && status_.ok();
}

bool SchemaValidator::check_array(const Context& c) {
  const json::array& items = c.instance.get_array();
  const auto all_of = [&](const Value& schema, size_t from) {
    for (size_t i = from; i < items.size(); ++i) {
      if (!check(&schema, c.scope, items[i], nullptr)) return false;
      c.seen.items.insert(i);
    }
    return true;
  };
  const Value* list = c.keywords.if_contains("prefixItems");
  const Value* rest = c.keywords.if_contains("items");
  if (rest != nullptr && rest->is_array()) {
    list = rest;
    rest = c.keywords.if_contains("additionalItems");
  }
  size_t prefix = 0;
  if (list != nullptr && list->is_array()) {
    for (; prefix < std::min(items.size(), list->get_array().size()); ++prefix) {
      if (!check(&list->get_array()[prefix], c.scope, items[prefix], nullptr)) return false;
      c.seen.items.insert(prefix);
    }
  }
  if (rest != nullptr && !all_of(*rest, prefix)) return false;
  if (const Value* contains = c.keywords.if_contains("contains")) {
    if (!check_contains(c, *contains)) return false;
  }
  if (document_.asserts(&c.schema)) {
    const auto size = std::ssize(items);
    if (const auto low = count_of(c.keywords.if_contains("minItems")); low && size < *low) {
      return false;
    }
    if (const auto high = count_of(c.keywords.if_contains("maxItems")); high && size > *high) {
      return false;
    }
    const Value* unique = c.keywords.if_contains("uniqueItems");
    if (unique != nullptr && unique->is_bool() && unique->get_bool()) {
      for (size_t i = 0; i < items.size(); ++i) {
        for (size_t j = 0; j < i; ++j) {
          if (equal_values(items[i], items[j])) return false;
        }
      }
    }
  }
  if (const Value* unseen = c.keywords.if_contains("unevaluatedItems")) {
    for (size_t i = 0; i < items.size(); ++i) {
      if (c.seen.items.contains(i)) continue;
      if (!check(unseen, c.scope, items[i], nullptr)) return false;
      c.seen.items.insert(i);
    }
  }
  return true;
}

bool SchemaValidator::check_contains(const Context& c, const Value& contains) {
  const json::array& items = c.instance.get_array();
  const bool counts = document_.asserts(&c.schema) && document_.draft_of(&c.schema) >= Draft::k2019;
  const int64_t low = counts ? count_of(c.keywords.if_contains("minContains")).value_or(1) : 1;
  const auto high = counts ? count_of(c.keywords.if_contains("maxContains")) : std::nullopt;
  int64_t found = 0;
  for (size_t i = 0; i < items.size(); ++i) {
    if (!check(&contains, c.scope, items[i], nullptr)) continue;
    ++found;
    if (document_.draft_of(&c.schema) == Draft::k2020) c.seen.items.insert(i);
  }
  return found >= low && (!high || found <= *high) && status_.ok();
}

bool SchemaValidator::check_object(const Context& c) {
  const json::object& object = c.instance.get_object();
  if (document_.asserts(&c.schema)) {
    if (const Value* names = c.keywords.if_contains("required"); names && names->is_array()) {
      for (const Value& name : names->get_array()) {
        if (name.is_string() && !object.contains(name.get_string())) return false;
      }
    }
    const auto size = static_cast<int64_t>(object.size());
    if (const auto low = count_of(c.keywords.if_contains("minProperties")); low && size < *low) {
      return false;
    }
    if (const auto high = count_of(c.keywords.if_contains("maxProperties")); high && size > *high) {
      return false;
    }
  }
  if (const Value* names = c.keywords.if_contains("propertyNames")) {
    for (const auto& [key, value] : object) {
      if (!check(names, c.scope, names_.emplace_back(json::string(key)), nullptr)) return false;
    }
  }
  if (!check_members(c) || !check_dependencies(c)) return false;
  if (const Value* unseen = c.keywords.if_contains("unevaluatedProperties")) {
    for (const auto& [key, value] : object) {
      if (c.seen.properties.contains(key)) continue;
      if (!check(unseen, c.scope, value, nullptr)) return false;
      c.seen.properties.insert(key);
    }
  }
  return status_.ok();
}

bool SchemaValidator::check_members(const Context& c) {
  const Value* properties = c.keywords.if_contains("properties");
  const Value* patterns = c.keywords.if_contains("patternProperties");
  const Value* additional = c.keywords.if_contains("additionalProperties");
  for (const auto& [key, value] : c.instance.get_object()) {
    bool known = false;
    const auto apply = [&](const Value& schema) {
      known = true;
      return check(&schema, c.scope, value, nullptr);
    };
    if (properties != nullptr && properties->is_object()) {
      const Value* schema = properties->get_object().if_contains(key);
      if (schema != nullptr && !apply(*schema)) return false;
    }
    if (patterns != nullptr && patterns->is_object()) {
      for (const auto& [pattern, schema] : patterns->get_object()) {
        if (matches(pattern, key) && !apply(schema)) return false;
      }
    }
    if (!known && additional != nullptr && !apply(*additional)) return false;
    if (known) c.seen.properties.insert(key);
  }
  return status_.ok();
}

bool SchemaValidator::check_dependencies(const Context& c) {
  const json::object& object = c.instance.get_object();
  for (const char* keyword : {"dependencies", "dependentRequired", "dependentSchemas"}) {
    const Value* all = c.keywords.if_contains(keyword);
    if (all == nullptr || !all->is_object()) continue;
    for (const auto& [name, needed] : all->get_object()) {
      if (!object.contains(name)) continue;
      if (const json::array* names = needed.if_array()) {
        for (const Value& n : *names) {
          if (n.is_string() && !object.contains(n.get_string())) return false;
        }
      } else if (needed.is_string()) {
        if (!object.contains(needed.get_string())) return false;
      } else if (!check(&needed, c.scope, c.instance, &c.seen)) {
        return false;
      }
    }
  }
  return true;
}

}  // namespace espalier::grammar
