// JSON Schema of the naive matcher: what most real schemas are made of, and nothing else.
// Properties come in the order of their declaration, required ones that none declares behind them,
// undeclared ones last.
#include <algorithm>
#include <map>
#include <set>

#include "naive.h"

namespace espalier::naive {
namespace {

namespace json = boost::json;

struct Unknown {};  // thrown where the schema is not of the subset; caught in this file

// Keywords that this reading does not know; whatever is not a keyword says nothing.
const std::set<std::string_view>& refused() {
  static const std::set<std::string_view> names = {"format",
                                                   "allOf",
                                                   "oneOf",
                                                   "not",
                                                   "if",
                                                   "then",
                                                   "else",
                                                   "patternProperties",
                                                   "propertyNames",
                                                   "dependencies",
                                                   "dependentRequired",
                                                   "dependentSchemas",
                                                   "multipleOf",
                                                   "contains",
                                                   "minContains",
                                                   "maxContains",
                                                   "prefixItems",
                                                   "additionalItems",
                                                   "minProperties",
                                                   "maxProperties",
                                                   "unevaluatedProperties",
                                                   "unevaluatedItems",
                                                   "$dynamicRef",
                                                   "$recursiveRef",
                                                   "$anchor",
                                                   "$dynamicAnchor",
                                                   "$recursiveAnchor",
                                                   "$vocabulary",
                                                   "extends",
                                                   "disallow"};
  return names;
}
bool restricts(std::string_view key) {
  static const std::set<std::string_view> names = {"type",
                                                   "properties",
                                                   "required",
                                                   "additionalProperties",
                                                   "items",
                                                   "enum",
                                                   "const",
                                                   "minLength",
                                                   "maxLength",
                                                   "pattern",
                                                   "minItems",
                                                   "maxItems",
                                                   "uniqueItems",
                                                   "minimum",
                                                   "maximum",
                                                   "exclusiveMinimum",
                                                   "exclusiveMaximum",
                                                   "anyOf",
                                                   "$ref"};
  return names.contains(key);
}

class Schema {
 public:
  Schema(Naive& naive, const json::value& root, Space space)
      : n_(naive), root_(root), space_(space) {}

  Expr whole() {
    const Expr out = value(root_, true);
    n_.settle();
    return out;
  }

 private:
  Expr space_inside() {
    if (space_ == Space::kCompact) return kEmpty;
    if (space_ == Space::kAny)
      return n_.repeat(n_.either({n_.text(" "), n_.text("\t"), n_.text("\n"), n_.text("\r")}), 0,
                       kNoEnd);
    return n_.either(
        {kEmpty, n_.text(" "), n_.sequence({n_.text("\n"), n_.repeat(n_.text(" "), 0, 20)})});
  }
  Expr mark(const char* text) {
    return n_.sequence(
        {space_ == Space::kAny ? space_inside() : kEmpty, n_.text(text), space_inside()});
  }
  // open, nothing or what `inner` is, close
  Expr bracketed(const char* open, Expr inner, bool may_be_empty, const char* close) {
    const Expr some = n_.sequence({space_inside(), inner, space_inside()});
    return n_.sequence(
        {n_.text(open), may_be_empty ? n_.either({space_inside(), some}) : some, n_.text(close)});
  }
  Expr digits(int32_t min) {
    return n_.repeat(n_.one_of({{'0', '9'}}, Writing::kPlain), min, kNoEnd);
  }
  Expr whole_number() {
    return n_.sequence(
        {n_.maybe(n_.text("-")),
         n_.either(
             {n_.text("0"), n_.sequence({n_.one_of({{'1', '9'}}, Writing::kPlain), digits(0)})})});
  }
  Expr number() {
    return n_.sequence(
        {whole_number(), n_.maybe(n_.sequence({n_.text("."), digits(1)})),
         n_.maybe(n_.sequence({n_.either({n_.text("e"), n_.text("E")}),
                               n_.either({kEmpty, n_.text("+"), n_.text("-")}),
                               n_.repeat(n_.one_of({{'0', '9'}}, Writing::kPlain), 1, 3)}))});
  }
  Expr quoted(Expr inside) { return n_.sequence({n_.text("\""), inside, n_.text("\"")}); }
  Expr characters(Writing writing, int32_t min, int32_t max) {
    return n_.repeat(n_.one_of({{0, 0x10ffff}}, writing), min, max);
  }
  Expr any_string() {
    if (string_ == kNever) string_ = quoted(characters(Writing::kJson, 0, kNoEnd));
    return string_;
  }

  Expr anything() {
    if (any_ != kNever) return any_;
    any_ = n_.new_rule();
    object_ = n_.new_rule();
    array_ = n_.new_rule();
    const Expr pair = n_.sequence({any_string(), mark(":"), any_});
    const auto list = [&](Expr item) {
      return n_.sequence({item, n_.repeat(n_.sequence({mark(","), item}), 0, kNoEnd)});
    };
    n_.set_rule(object_, bracketed("{", list(pair), true, "}"));
    n_.set_rule(array_, bracketed("[", list(any_), true, "]"));
    n_.set_rule(any_, n_.either({any_string(), number(), n_.text("true"), n_.text("false"),
                                 n_.text("null"), object_, array_}));
    return any_;
  }
  Expr any_object() { return anything(), object_; }
  Expr any_array() { return anything(), array_; }

  static bool has(const json::object& o, std::string_view key) { return o.contains(key); }

  static std::vector<std::string> types_of(const json::object& o) {
    static const std::vector<std::string> all = {"null",   "boolean", "integer", "number",
                                                 "string", "array",   "object"};
    const json::value* type = o.if_contains("type");
    if (type == nullptr) return {"null", "boolean", "number", "string", "array", "object"};
    std::vector<std::string> out;
    const auto add = [&](const json::value& name) {
      if (!name.is_string() || std::find(all.begin(), all.end(), name.as_string()) == all.end())
        throw Unknown();
      out.emplace_back(name.as_string());
    };
    if (type->is_array()) {
      for (const json::value& name : type->get_array()) add(name);
    } else {
      add(*type);
    }
    if (out.empty()) throw Unknown();
    return out;
  }

  Expr value(const json::value& schema, bool is_root = false) {
    if (schema.is_bool()) return schema.get_bool() ? anything() : kNever;
    if (!schema.is_object()) throw Unknown();
    const json::object& o = schema.get_object();
    const auto known = rules_.find(&schema);
    if (known != rules_.end()) return known->second;
    const Expr rule = rules_[&schema] = n_.new_rule();
    if (!is_root) {
      for (const char* key : {"$id", "id"})
        if (has(o, key) && o.at(key).is_string()) throw Unknown();
    }
    size_t restricting = 0;
    for (const auto& [key, inner] : o) {
      if (refused().contains(key)) throw Unknown();
      restricting += restricts(key);
    }
    n_.set_rule(rule, restricting == 0 ? anything() : restricted(o, restricting));
    return rule;
  }

  Expr restricted(const json::object& o, size_t num_keywords) {
    if (has(o, "$ref")) {
      if (num_keywords != 1 || !o.at("$ref").is_string()) throw Unknown();
      return value(target(std::string(o.at("$ref").as_string())));
    }
    if (has(o, "anyOf")) {
      if (num_keywords != 1 || !o.at("anyOf").is_array()) throw Unknown();
      std::vector<Expr> ways;
      for (const json::value& way : o.at("anyOf").get_array()) ways.push_back(value(way));
      return n_.either(ways);
    }
    const std::vector<std::string> types = types_of(o);
    if (has(o, "enum") || has(o, "const")) {
      if (num_keywords != (has(o, "type") ? 2u : 1u)) throw Unknown();
      return listed(o, types);
    }
    std::vector<Expr> ways;
    for (const std::string& type : types) {
      if (type == "null") ways.push_back(n_.text("null"));
      if (type == "boolean") ways.insert(ways.end(), {n_.text("true"), n_.text("false")});
      if (type == "integer" || type == "number") ways.push_back(of_numbers(o, type, types));
      if (type == "string") ways.push_back(of_strings(o));
      if (type == "array") ways.push_back(of_arrays(o));
      if (type == "object") ways.push_back(of_objects(o));
    }
    return n_.either(ways);
  }

  const json::value& target(const std::string& reference) {
    if (!reference.starts_with('#')) throw Unknown();
    if (reference.find_first_of("%~") != std::string::npos) throw Unknown();
    if (reference.size() > 1 && reference[1] != '/') throw Unknown();
    if (reference == "#/") throw Unknown();
    const json::value* at = &root_;
    for (size_t begin = 1; begin < reference.size();) {
      const size_t end = std::min(reference.find('/', begin + 1), reference.size());
      const std::string name = reference.substr(begin + 1, end - begin - 1);
      at = at->is_object() ? at->get_object().if_contains(name) : nullptr;
      if (at == nullptr) throw Unknown();
      begin = end;
    }
    return *at;
  }

  Expr listed(const json::object& o, const std::vector<std::string>& types) {
    if (has(o, "enum") && has(o, "const")) throw Unknown();
    json::array one;
    if (has(o, "const")) one.push_back(o.at("const"));
    if (has(o, "enum") && !o.at("enum").is_array()) throw Unknown();
    const json::array& values = has(o, "enum") ? o.at("enum").get_array() : one;
    const auto asked = [&](const char* a, const char* b = "") {
      return std::any_of(types.begin(), types.end(),
                         [&](const std::string& t) { return t == a || t == b; });
    };
    std::vector<Expr> ways;
    for (const json::value& v : values) {
      if (v.is_structured() || v.is_double()) throw Unknown();
      const bool fits = v.is_null()     ? asked("null")
                        : v.is_bool()   ? asked("boolean")
                        : v.is_string() ? asked("string")
                                        : asked("integer", "number");
      if (fits) ways.push_back(n_.text(json::serialize(v)));
    }
    return n_.either(ways);
  }

  static std::optional<int64_t> integer(const json::object& o, std::string_view key) {
    const json::value* v = o.if_contains(key);
    if (v == nullptr) return std::nullopt;
    if (!v->is_int64() || std::abs(v->get_int64()) > 1'000'000'000'000) throw Unknown();
    return v->get_int64();
  }

  Expr of_numbers(const json::object& o, const std::string& type,
                  const std::vector<std::string>& types) {
    std::optional<int64_t> low = integer(o, "minimum"), high = integer(o, "maximum");
    if (const auto over = integer(o, "exclusiveMinimum"))
      low = low ? std::max(*low, *over + 1) : *over + 1;
    if (const auto under = integer(o, "exclusiveMaximum"))
      high = high ? std::min(*high, *under - 1) : *under - 1;
    if (!low && !high) return type == "integer" ? whole_number() : number();
    const bool fractions = std::find(types.begin(), types.end(), "number") != types.end();
    if (fractions || type != "integer") throw Unknown();
    return n_.integer_between(low, high);
  }

  static std::pair<int32_t, int32_t> counts(const json::object& o, const char* least,
                                            const char* most) {
    const int64_t min = integer(o, least).value_or(0);
    const int64_t max = integer(o, most).value_or(kNoEnd);
    if (min < 0 || min > 1'000'000 || max > 100'000'000 || (has(o, most) && max < 0))
      throw Unknown();
    return {static_cast<int32_t>(min), static_cast<int32_t>(max)};
  }

  Expr of_strings(const json::object& o) {
    const auto [min, max] = counts(o, "minLength", "maxLength");
    if (max != kNoEnd && max < min) return kNever;
    if (!has(o, "pattern")) {
      if (min == 0 && max == kNoEnd) return any_string();
      return quoted(characters(Writing::kJson, min, max));
    }
    if (!o.at("pattern").is_string()) throw Unknown();
    const auto inside =
        regex(n_, std::string_view(o.at("pattern").get_string()), Writing::kJsonCanonical, true);
    if (!inside) throw Unknown();
    if (min == 0 && max == kNoEnd) return quoted(*inside);
    return quoted(n_.both(*inside, characters(Writing::kJsonCanonical, min, max)));
  }

  Expr of_arrays(const json::object& o) {
    const auto [min, max] = counts(o, "minItems", "maxItems");
    if (has(o, "uniqueItems") && o.at("uniqueItems") != false) throw Unknown();
    if (has(o, "items") && o.at("items").is_array()) throw Unknown();
    if (max != kNoEnd && max < min) return kNever;
    if (min == 0 && max == kNoEnd && !has(o, "items")) return any_array();
    const Expr item = has(o, "items") ? value(o.at("items")) : anything();
    const Expr empty = bracketed("[", kNever, true, "]");
    if (max == 0) return empty;
    const Expr more = n_.repeat(n_.sequence({mark(","), item}), std::max(min - 1, 0),
                                max == kNoEnd ? kNoEnd : max - 1);
    return bracketed("[", n_.sequence({item, more}), min == 0, "]");
  }

  Expr of_objects(const json::object& o) {
    std::vector<std::pair<std::string, Expr>> properties;
    std::set<std::string> required;
    if (has(o, "required")) {
      if (!o.at("required").is_array()) throw Unknown();
      for (const json::value& name : o.at("required").get_array()) {
        if (!name.is_string()) throw Unknown();
        required.emplace(name.get_string());
      }
    }
    const bool asks = has(o, "properties") || has(o, "additionalProperties") || !required.empty();
    if (!asks) return any_object();
    const Expr others =
        has(o, "additionalProperties") ? value(o.at("additionalProperties")) : anything();
    std::set<std::string> names;
    if (has(o, "properties")) {
      if (!o.at("properties").is_object()) throw Unknown();
      for (const auto& [name, schema] : o.at("properties").get_object()) {
        properties.emplace_back(name, value(schema));
        names.emplace(name);
      }
    }
    if (has(o, "required"))
      for (const json::value& name : o.at("required").get_array())
        if (names.emplace(name.get_string()).second)
          properties.emplace_back(name.get_string(), others);
    std::vector<Expr> known;
    for (const std::string& name : names)
      known.push_back(n_.text(json::serialize(json::string(name))));
    const Expr other_key =
        n_.minus(quoted(characters(Writing::kJsonCanonical, 0, kNoEnd)), n_.either(known));
    const Expr other = n_.sequence({other_key, mark(":"), others});
    // From the last property to the first: what may follow when nothing has come yet, or something.
    const Expr more_others = n_.repeat(n_.sequence({mark(","), other}), 0, kNoEnd);
    Expr first = n_.sequence({other, more_others});  // at least one, and it is the first
    Expr later = more_others;                        // any number, each behind a comma
    bool may_be_empty = true;
    for (size_t i = properties.size(); i-- > 0;) {
      const auto& [name, expr] = properties[i];
      const Expr pair =
          n_.sequence({n_.text(json::serialize(json::string(name))), mark(":"), expr});
      const Expr here = n_.sequence({pair, later});
      const bool must = required.contains(name);
      may_be_empty = may_be_empty && !must;
      first = must ? here : n_.either({here, first});
      later = must ? n_.sequence({mark(","), here})
                   : n_.either({n_.sequence({mark(","), here}), later});
    }
    return bracketed("{", first, may_be_empty, "}");
  }

  Naive& n_;
  const json::value& root_;
  const Space space_;
  Expr string_ = kNever, any_ = kNever, object_ = kNever, array_ = kNever;
  std::map<const json::value*, Expr> rules_;
};

}  // namespace

std::optional<Expr> json_schema(Naive& naive, const json::value& schema, Space space) {
  try {
    return Schema(naive, schema, space).whole();
  } catch (const Unknown&) {
    return std::nullopt;
  }
}

}  // namespace espalier::naive
