// jinja2's filters (jinja2/filters.py), with tojson as transformers defines it.
#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdlib>

#include "text/template/interpreter.h"
#include "text/unicode/utf8.h"

namespace espalier::jinja {
namespace {

using Bound = std::vector<std::optional<Value>>;

bool flag(const std::optional<Value>& value, bool otherwise) {
  return value ? value->truthy() : otherwise;
}

Result<int64_t> integer(std::string_view filter, const std::optional<Value>& value,
                        int64_t otherwise) {
  if (!value || value->is_none()) return otherwise;
  if (value->is_number() && !value->is_float()) return value->integer();
  return fail(template_error(
      fmt::format("the filter {} wants an integer, not {}", filter, value->type_name())));
}

Result<Value> call_method_named(Interpreter& interpreter, const Value& input, std::string_view name,
                                const Arguments& arguments) {
  if (input.is_string()) return call_method(interpreter, input, name, arguments);
  return call_method(interpreter, Value(input.str()), name, arguments);
}

// ---- attributes of items: "a.b.0" ----

Result<Value> get_path(Interpreter& interpreter, Value object, const Value& path) {
  if (!path.is_string()) return interpreter.item(object, path);
  std::string_view rest = path.string();
  for (;;) {
    const size_t dot = rest.find('.');
    const std::string_view part = rest.substr(0, dot);
    const bool is_index =
        !part.empty() && part.size() < 10 &&
        std::all_of(part.begin(), part.end(), [](char c) { return c >= '0' && c <= '9'; });
    const Value key =
        is_index ? Value(static_cast<int64_t>(std::stol(std::string(part)))) : Value(part);
    ESP_ASSIGN_OR_RETURN(object, interpreter.item(object, key));
    if (dot == std::string_view::npos) return object;
    rest.remove_prefix(dot + 1);
  }
}

// The value by which an item is sorted or compared: the requested attribute or the item itself, in
// lower case unless case matters.
Result<Value> key_of(Interpreter& interpreter, const Value& item,
                     const std::optional<Value>& attribute, bool case_sensitive) {
  Value key = item;
  if (attribute && !attribute->is_none()) {
    if (attribute->is_string() && attribute->string().find(',') != std::string::npos) {
      std::vector<Value> keys;
      std::string_view rest = attribute->string();
      while (!rest.empty()) {
        const size_t comma = rest.find(',');
        ESP_ASSIGN_OR_RETURN(
            Value part, key_of(interpreter, item, Value(rest.substr(0, comma)), case_sensitive));
        keys.push_back(std::move(part));
        if (comma == std::string_view::npos) break;
        rest.remove_prefix(comma + 1);
      }
      return Value::tuple(std::move(keys));
    }
    ESP_ASSIGN_OR_RETURN(key, get_path(interpreter, item, *attribute));
  }
  if (!case_sensitive && key.is_string()) return Value(to_lower(key.string()));
  return key;
}

struct Keyed {
  Value key, item;
};

Result<std::vector<Keyed>> keyed(Interpreter& interpreter, const Value& input,
                                 const std::optional<Value>& attribute, bool case_sensitive) {
  ESP_ASSIGN_OR_RETURN(std::vector<Value> items, interpreter.iterate(input));
  std::vector<Keyed> result;
  for (Value& item : items) {
    ESP_RETURN_IF_ERROR(interpreter.charge(1));
    ESP_ASSIGN_OR_RETURN(Value key, key_of(interpreter, item, attribute, case_sensitive));
    result.push_back({std::move(key), std::move(item)});
  }
  return result;
}

// Stable; the first pair that has no order is the error. Keys within lists, as `sort` compares
// them, need none where they are equal.
enum class Keys { kPlain, kInLists };
Status sort_keyed(Interpreter& interpreter, std::vector<Keyed>& items, bool reverse,
                  Keys keys = Keys::kPlain) {
  Status status;
  size_t num_compared = 0;
  const auto before = [&](const Keyed& a, const Keyed& b) {
    ++num_compared;
    if (keys == Keys::kInLists && equal(a.key, b.key)) return false;
    const Result<int> order = compare(a.key, b.key);
    if (!order) {
      if (status.ok()) status = order.error();
      return false;
    }
    return *order < 0;
  };
  // Insertion into place by merging keeps equal items in order, also when reversed.
  std::stable_sort(items.begin(), items.end(), [&](const Keyed& a, const Keyed& b) {
    return reverse ? before(b, a) : before(a, b);
  });
  ESP_RETURN_IF_ERROR(status);
  return interpreter.charge(num_compared);
}

std::vector<Value> items_of(std::vector<Keyed> keyed_items) {
  std::vector<Value> items;
  for (Keyed& entry : keyed_items) items.push_back(std::move(entry.item));
  return items;
}

// ---- filters ----

Result<Value> filter_default(Interpreter&, const Value& input, const Arguments& arguments) {
  ESP_ASSIGN_OR_RETURN(const Bound bound, bind("default", arguments, {"default_value", "boolean"}));
  const bool missing = input.is_undefined() || (flag(bound[1], false) && !input.truthy());
  return missing ? bound[0].value_or(Value("")) : input;
}

Result<Value> filter_tojson(Interpreter& interpreter, const Value& input,
                            const Arguments& arguments) {
  ESP_ASSIGN_OR_RETURN(
      const Bound bound,
      bind("tojson", arguments, {"ensure_ascii", "indent", "separators", "sort_keys"}));
  JsonStyle style;
  style.ensure_ascii = flag(bound[0], false);
  style.sort_keys = flag(bound[3], false);
  if (bound[1] && !bound[1]->is_none()) {
    if (bound[1]->is_string()) {
      style.indent = bound[1]->string();
    } else {
      ESP_ASSIGN_OR_RETURN(const int64_t width, integer("tojson", bound[1], 0));
      style.indent = std::string(static_cast<size_t>(std::clamp<int64_t>(width, 0, 64)), ' ');
    }
    style.item_separator = ",";
  }
  if (bound[2] && !bound[2]->is_none()) {
    const Value& pair = *bound[2];
    if (!pair.is_list() || pair.items().size() != 2 || !pair.items()[0].is_string() ||
        !pair.items()[1].is_string()) {
      return fail(template_error("tojson: separators should be two strings"));
    }
    style.item_separator = pair.items()[0].string();
    style.key_separator = pair.items()[1].string();
  }
  ESP_ASSIGN_OR_RETURN(std::string text, to_json(input, style));
  ESP_RETURN_IF_ERROR(interpreter.charge_bytes(text.size()));
  return Value(std::move(text));
}

Result<Value> filter_length(Interpreter& interpreter, const Value& input, const Arguments&) {
  if (input.is_string()) {
    ESP_RETURN_IF_ERROR(interpreter.charge_bytes(input.string().size()));
    return Value(length_in_characters(input.string()));
  }
  if (input.is_list()) return Value(input.items().size());
  if (input.is_dict()) return Value(input.dict().entries.size());
  if (input.is_undefined()) return Value(0);
  return fail(template_error(fmt::format("object of type '{}' has no len()", input.type_name())));
}

Result<Value> filter_trim(Interpreter& interpreter, const Value& input,
                          const Arguments& arguments) {
  return call_method_named(interpreter, input, "strip", arguments);
}
Result<Value> filter_upper(Interpreter& interpreter, const Value& input, const Arguments&) {
  return call_method_named(interpreter, input, "upper", {});
}
Result<Value> filter_lower(Interpreter& interpreter, const Value& input, const Arguments&) {
  return call_method_named(interpreter, input, "lower", {});
}
Result<Value> filter_capitalize(Interpreter& interpreter, const Value& input, const Arguments&) {
  return call_method_named(interpreter, input, "capitalize", {});
}
Result<Value> filter_replace(Interpreter& interpreter, const Value& input,
                             const Arguments& arguments) {
  // The texts alone, as jinja2 does where it does not escape.
  Arguments texts = arguments;
  for (size_t i = 0; i < std::min<size_t>(2, texts.positional.size()); ++i)
    texts.positional[i] = Value(texts.positional[i].str());
  for (auto& [name, value] : texts.named)
    if (name == "old" || name == "new") value = Value(value.str());
  return call_method(interpreter, Value(input.str()), "replace", texts);
}
Result<Value> filter_center(Interpreter& interpreter, const Value& input,
                            const Arguments& arguments) {
  ESP_ASSIGN_OR_RETURN(const Bound bound, bind("center", arguments, {"width"}));
  return call_method_named(interpreter, input, "center", {{bound[0].value_or(Value(80))}, {}});
}

// Words begin after white space, hyphens and opening brackets.
Result<Value> filter_title(Interpreter&, const Value& input, const Arguments&) {
  std::string out;
  bool begins = true;
  const std::string text = input.str();
  for (const std::string_view c : characters(text)) {
    out += begins ? to_upper(c) : to_lower(c);
    begins =
        c.size() == 1 && std::string_view("- \t\n\r\f\v({[<").find(c[0]) != std::string_view::npos;
  }
  return Value(std::move(out));
}

Result<Value> filter_join(Interpreter& interpreter, const Value& input,
                          const Arguments& arguments) {
  ESP_ASSIGN_OR_RETURN(const Bound bound, bind("join", arguments, {"d", "attribute"}));
  ESP_ASSIGN_OR_RETURN(const std::vector<Value> items, interpreter.iterate(input));
  const std::string separator = bound[0].value_or(Value("")).str();
  std::string out;
  for (size_t i = 0; i < items.size(); ++i) {
    if (i > 0) out += separator;
    ESP_ASSIGN_OR_RETURN(const Value item, key_of(interpreter, items[i], bound[1], true));
    out += item.str();
  }
  ESP_RETURN_IF_ERROR(interpreter.charge_bytes(out.size()));
  return Value(std::move(out));
}

Result<Value> filter_list(Interpreter& interpreter, const Value& input, const Arguments&) {
  ESP_ASSIGN_OR_RETURN(std::vector<Value> items, interpreter.iterate(input));
  return Value(std::move(items));
}

Result<Value> filter_first(Interpreter& interpreter, const Value& input, const Arguments&) {
  ESP_ASSIGN_OR_RETURN(const std::vector<Value> items, interpreter.iterate(input));
  if (items.empty()) return Value::undefined("No first item, sequence was empty.");
  return items.front();
}

Result<Value> filter_last(Interpreter& interpreter, const Value& input, const Arguments&) {
  if (is_generator(input)) {
    return fail(template_error(fmt::format("'{}' object is not reversible", input.type_name())));
  }
  ESP_ASSIGN_OR_RETURN(const std::vector<Value> items, interpreter.iterate(input));
  if (items.empty()) return Value::undefined("No last item, sequence was empty.");
  return items.back();
}

Result<Value> filter_reverse(Interpreter& interpreter, const Value& input, const Arguments&) {
  ESP_ASSIGN_OR_RETURN(std::vector<Value> items, interpreter.iterate(input));
  std::reverse(items.begin(), items.end());
  if (!input.is_string()) {
    const bool is_list = input.is_list() && !input.list().is_tuple;
    return make_generator(std::move(items), is_list           ? "list_reverseiterator"
                                            : input.is_dict() ? "dict_reversekeyiterator"
                                                              : "reversed");
  }
  std::string out;
  for (const Value& item : items) out += item.string();
  return Value(std::move(out));
}

Result<Value> filter_map(Interpreter& interpreter, const Value& input, const Arguments& arguments) {
  if (!input.truthy()) return Value(std::vector<Value>());  // as jinja2, for None too
  ESP_ASSIGN_OR_RETURN(std::vector<Value> items, interpreter.iterate(input));
  if (arguments.positional.empty()) {
    ESP_ASSIGN_OR_RETURN(const Bound bound, bind("map", arguments, {"attribute", "default"}));
    if (!bound[0]) return fail(template_error("map requires a filter argument"));
    for (Value& item : items) {
      ESP_RETURN_IF_ERROR(interpreter.charge(1));
      ESP_ASSIGN_OR_RETURN(item, get_path(interpreter, std::move(item), *bound[0]));
      if (item.is_undefined() && bound[1]) item = *bound[1];
    }
    return Value(std::move(items));
  }
  const std::string name = arguments.positional[0].str();
  const Filter filter = find_filter(name);
  if (filter == nullptr) return fail(template_error(fmt::format("No filter named '{}'.", name)));
  Arguments rest = arguments;
  rest.positional.erase(rest.positional.begin());
  for (Value& item : items) {
    ESP_RETURN_IF_ERROR(interpreter.charge(1));
    ESP_ASSIGN_OR_RETURN(item, filter(interpreter, item, rest));
  }
  return Value(std::move(items));
}

// select, reject, selectattr, rejectattr.
Result<Value> filter_items(Interpreter& interpreter, const Value& input, const Arguments& arguments,
                           bool by_attribute, bool wanted) {
  if (!input.truthy()) return Value(std::vector<Value>());  // as map
  ESP_ASSIGN_OR_RETURN(const std::vector<Value> items, interpreter.iterate(input));
  Arguments rest = arguments;
  std::optional<Value> attribute;
  if (by_attribute) {
    if (rest.positional.empty())
      return fail(template_error("Missing parameter for attribute name"));
    attribute = rest.positional[0];
    rest.positional.erase(rest.positional.begin());
  }
  Test test = nullptr;
  if (!rest.positional.empty()) {
    const std::string name = rest.positional[0].str();
    test = find_test(name);
    if (test == nullptr) return fail(template_error(fmt::format("No test named '{}'.", name)));
    rest.positional.erase(rest.positional.begin());
  }
  std::vector<Value> kept;
  for (const Value& item : items) {
    ESP_RETURN_IF_ERROR(interpreter.charge(1));
    ESP_ASSIGN_OR_RETURN(const Value value, key_of(interpreter, item, attribute, true));
    bool holds = value.truthy();
    if (test != nullptr) {
      ESP_ASSIGN_OR_RETURN(holds, test(interpreter, value, rest));
    }
    if (holds == wanted) kept.push_back(item);
  }
  return Value(std::move(kept));
}

Result<Value> filter_select(Interpreter& i, const Value& input, const Arguments& arguments) {
  return filter_items(i, input, arguments, false, true);
}
Result<Value> filter_reject(Interpreter& i, const Value& input, const Arguments& arguments) {
  return filter_items(i, input, arguments, false, false);
}
Result<Value> filter_selectattr(Interpreter& i, const Value& input, const Arguments& arguments) {
  return filter_items(i, input, arguments, true, true);
}
Result<Value> filter_rejectattr(Interpreter& i, const Value& input, const Arguments& arguments) {
  return filter_items(i, input, arguments, true, false);
}

Result<Value> filter_items_of(Interpreter& interpreter, const Value& input, const Arguments&) {
  if (input.is_undefined()) return Value(std::vector<Value>());
  if (!input.is_dict()) return fail(template_error("Can only get item pairs from a mapping."));
  return call_method(interpreter, input, "items", {});
}

Result<Value> filter_dictsort(Interpreter& interpreter, const Value& input,
                              const Arguments& arguments) {
  ESP_ASSIGN_OR_RETURN(const Bound bound,
                       bind("dictsort", arguments, {"case_sensitive", "by", "reverse"}));
  if (input.is_undefined()) return fail(template_error(input.why_undefined()));
  ESP_ASSIGN_OR_RETURN(const Value pairs, filter_items_of(interpreter, input, {}));
  const bool by_value = bound[1] && bound[1]->str() == "value";
  ESP_ASSIGN_OR_RETURN(std::vector<Keyed> items,
                       keyed(interpreter, pairs, Value(by_value ? 1 : 0), flag(bound[0], false)));
  ESP_RETURN_IF_ERROR(sort_keyed(interpreter, items, flag(bound[2], false)));
  return Value(items_of(std::move(items)));
}

Result<Value> filter_sort(Interpreter& interpreter, const Value& input,
                          const Arguments& arguments) {
  ESP_ASSIGN_OR_RETURN(const Bound bound,
                       bind("sort", arguments, {"reverse", "case_sensitive", "attribute"}));
  ESP_ASSIGN_OR_RETURN(std::vector<Keyed> items,
                       keyed(interpreter, input, bound[2], flag(bound[1], false)));
  ESP_RETURN_IF_ERROR(sort_keyed(interpreter, items, flag(bound[0], false), Keys::kInLists));
  return Value(items_of(std::move(items)));
}

Result<Value> filter_unique(Interpreter& interpreter, const Value& input,
                            const Arguments& arguments) {
  ESP_ASSIGN_OR_RETURN(const Bound bound,
                       bind("unique", arguments, {"case_sensitive", "attribute"}));
  ESP_ASSIGN_OR_RETURN(std::vector<Keyed> items,
                       keyed(interpreter, input, bound[1], flag(bound[0], false)));
  std::vector<Keyed> kept;
  for (Keyed& entry : items) {
    ESP_RETURN_IF_ERROR(interpreter.charge(kept.size() / 4));
    const bool known = std::any_of(kept.begin(), kept.end(),
                                   [&](const Keyed& other) { return equal(other.key, entry.key); });
    if (!known) kept.push_back(std::move(entry));
  }
  return Value(items_of(std::move(kept)));
}

Result<Value> filter_groupby(Interpreter& interpreter, const Value& input,
                             const Arguments& arguments) {
  ESP_ASSIGN_OR_RETURN(const Bound bound,
                       bind("groupby", arguments, {"attribute", "default", "case_sensitive"}));
  ESP_ASSIGN_OR_RETURN(std::vector<Keyed> items,
                       keyed(interpreter, input, bound[0], flag(bound[2], false)));
  for (Keyed& entry : items) {
    if (!entry.key.is_undefined() || !bound[1]) continue;
    ESP_ASSIGN_OR_RETURN(entry.key,
                         key_of(interpreter, *bound[1], std::nullopt, flag(bound[2], false)));
  }
  ESP_RETURN_IF_ERROR(sort_keyed(interpreter, items, false));
  std::vector<Value> groups, group;
  for (size_t i = 0; i < items.size(); ++i) {
    group.push_back(items[i].item);
    if (i + 1 < items.size() && equal(items[i].key, items[i + 1].key)) continue;
    ESP_ASSIGN_OR_RETURN(Value name, key_of(interpreter, group.front(), bound[0], true));
    if (name.is_undefined() && bound[1]) name = *bound[1];
    groups.push_back(Value::tuple({std::move(name), Value(std::exchange(group, {}))}));
  }
  return Value(std::move(groups));
}

Result<Value> extreme(Interpreter& interpreter, const Value& input, const Arguments& arguments,
                      int wanted) {
  ESP_ASSIGN_OR_RETURN(const Bound bound, bind("min", arguments, {"case_sensitive", "attribute"}));
  ESP_ASSIGN_OR_RETURN(std::vector<Keyed> items,
                       keyed(interpreter, input, bound[1], flag(bound[0], false)));
  if (items.empty()) return Value::undefined("No aggregated item, sequence was empty.");
  size_t best = 0;
  for (size_t i = 1; i < items.size(); ++i) {
    ESP_ASSIGN_OR_RETURN(const int order, compare(items[i].key, items[best].key));
    if (order == wanted) best = i;
  }
  return items[best].item;
}
Result<Value> filter_min(Interpreter& i, const Value& input, const Arguments& arguments) {
  return extreme(i, input, arguments, -1);
}
Result<Value> filter_max(Interpreter& i, const Value& input, const Arguments& arguments) {
  return extreme(i, input, arguments, 1);
}

Result<Value> filter_sum(Interpreter& interpreter, const Value& input, const Arguments& arguments) {
  ESP_ASSIGN_OR_RETURN(const Bound bound, bind("sum", arguments, {"attribute", "start"}));
  ESP_ASSIGN_OR_RETURN(const std::vector<Value> items, interpreter.iterate(input));
  Value total = bound[1].value_or(Value(0));
  for (const Value& item : items) {
    ESP_ASSIGN_OR_RETURN(const Value value, key_of(interpreter, item, bound[0], true));
    ESP_ASSIGN_OR_RETURN(total, binary_operation(interpreter, "+", total, value));
  }
  return total;
}

Result<Value> filter_batch(Interpreter& interpreter, const Value& input,
                           const Arguments& arguments) {
  ESP_ASSIGN_OR_RETURN(const Bound bound, bind("batch", arguments, {"linecount", "fill_with"}));
  ESP_ASSIGN_OR_RETURN(const int64_t count, integer("batch", bound[0], 0));
  ESP_ASSIGN_OR_RETURN(const std::vector<Value> items, interpreter.iterate(input));
  if (count < 1) return fail(template_error("batch wants a positive count"));
  std::vector<Value> batches, batch;
  for (size_t i = 0; i < items.size(); ++i) {
    batch.push_back(items[i]);
    if (static_cast<int64_t>(batch.size()) == count) {
      batches.emplace_back(std::exchange(batch, {}));
    }
  }
  if (!batch.empty()) {
    ESP_RETURN_IF_ERROR(interpreter.charge(static_cast<size_t>(std::min<int64_t>(count, 1 << 24))));
    while (bound[1] && !bound[1]->is_none() && static_cast<int64_t>(batch.size()) < count) {
      batch.push_back(*bound[1]);
    }
    batches.emplace_back(std::move(batch));
  }
  return Value(std::move(batches));
}

// `slice`: a given number of columns whose lengths differ by at most one, the longer ones first.
Result<Value> filter_slice(Interpreter& interpreter, const Value& input,
                           const Arguments& arguments) {
  ESP_ASSIGN_OR_RETURN(const Bound bound, bind("slice", arguments, {"slices", "fill_with"}));
  ESP_ASSIGN_OR_RETURN(const int64_t count, integer("slice", bound[0], 0));
  ESP_ASSIGN_OR_RETURN(const std::vector<Value> items, interpreter.iterate(input));
  if (count < 1) return fail(template_error("integer division or modulo by zero"));
  ESP_RETURN_IF_ERROR(interpreter.charge(static_cast<size_t>(std::min<int64_t>(count, 1 << 24))));
  const int64_t total = std::ssize(items), longer = total % count;
  std::vector<Value> columns;
  auto next = items.begin();
  for (int64_t i = 0; i < count; ++i) {
    const int64_t size = total / count + (i < longer ? 1 : 0);
    std::vector<Value> column(next, next + size);
    next += size;
    if (bound[1] && !bound[1]->is_none() && i >= longer) column.push_back(*bound[1]);
    columns.emplace_back(std::move(column));
  }
  return Value(std::move(columns));
}

std::optional<double> parse_float(const std::string& text) {
  const size_t begin = text.find_first_not_of(" \t\n\r\f\v");
  const size_t end = text.find_last_not_of(" \t\n\r\f\v");
  if (begin == std::string::npos) return std::nullopt;
  const std::string trimmed = text.substr(begin, end + 1 - begin);
  char* rest = nullptr;
  const double value = std::strtod(trimmed.c_str(), &rest);
  const bool is_hex = trimmed.find_first_of("xX") != std::string::npos;
  if (*rest != '\0' || rest == trimmed.c_str() || is_hex) return std::nullopt;
  return value;
}

std::optional<int64_t> parse_integer(const std::string& text, int base) {
  const size_t begin = text.find_first_not_of(" \t\n\r\f\v");
  const size_t end = text.find_last_not_of(" \t\n\r\f\v");
  if (begin == std::string::npos) return std::nullopt;
  const std::string trimmed = text.substr(begin, end + 1 - begin);
  char* rest = nullptr;
  errno = 0;
  const int64_t value = std::strtoll(trimmed.c_str(), &rest, base);
  if (*rest != '\0' || rest == trimmed.c_str() || errno == ERANGE) return std::nullopt;
  return value;
}

Result<Value> filter_int(Interpreter&, const Value& input, const Arguments& arguments) {
  ESP_ASSIGN_OR_RETURN(const Bound bound, bind("int", arguments, {"default", "base"}));
  ESP_ASSIGN_OR_RETURN(const int64_t base, integer("int", bound[1], 10));
  Value otherwise = bound[0].value_or(Value(0));
  std::optional<double> number;
  if (input.is_number() && !input.is_float()) return Value(input.integer());
  if (input.is_float()) number = input.number();
  if (input.is_string()) {
    const int in_range = base >= 0 && base <= 36 && base != 1 ? static_cast<int>(base) : 10;
    if (const auto value = parse_integer(input.string(), in_range)) return Value(*value);
    number = parse_float(input.string());
  }
  if (!number || !std::isfinite(*number) || std::abs(*number) >= 0x1p63) return otherwise;
  return Value(static_cast<int64_t>(*number));
}

Result<Value> filter_float(Interpreter&, const Value& input, const Arguments& arguments) {
  ESP_ASSIGN_OR_RETURN(const Bound bound, bind("float", arguments, {"default"}));
  if (input.is_number()) return Value(input.number());
  const std::optional<double> number =
      input.is_string() ? parse_float(input.string()) : std::nullopt;
  return number ? Value(*number) : bound[0].value_or(Value(0.0));
}

Result<Value> filter_round(Interpreter&, const Value& input, const Arguments& arguments) {
  ESP_ASSIGN_OR_RETURN(const Bound bound, bind("round", arguments, {"precision", "method"}));
  ESP_ASSIGN_OR_RETURN(const int64_t precision, integer("round", bound[0], 0));
  const std::string method = bound[1].value_or(Value("common")).str();
  if (!input.is_number()) {
    return fail(template_error(fmt::format("type {} doesn't define round", input.type_name())));
  }
  if (method != "common" && method != "ceil" && method != "floor") {
    return fail(template_error("method must be common, ceil or floor"));
  }
  if (precision < -300 || precision > 300) return Value(input.number());
  if (method == "common" && !input.is_float() && precision >= 0) return Value(input.integer());
  if (method == "common" && precision >= 0) {
    // The decimal that is nearest to the exact binary value, as Python's round().
    return Value(std::strtod(fmt::format("{:.{}f}", input.number(), precision).c_str(), nullptr));
  }
  const double scale = std::pow(10.0, double(precision));
  const double scaled = input.number() * scale;
  const double rounded = method == "ceil"    ? std::ceil(scaled)
                         : method == "floor" ? std::floor(scaled)
                                             : std::nearbyint(scaled);
  if (method == "common" && !input.is_float()) return Value(static_cast<int64_t>(rounded / scale));
  return Value(rounded / scale);
}

Result<Value> filter_abs(Interpreter& interpreter, const Value& input, const Arguments&) {
  if (!input.is_number()) {
    return fail(template_error(fmt::format("bad operand type for abs(): '{}'", input.type_name())));
  }
  if (input.number() >= 0) return input.is_bool() ? Value(input.integer()) : input;
  return binary_operation(interpreter, "-", Value(0), input);
}

Result<Value> filter_string(Interpreter& interpreter, const Value& input, const Arguments&) {
  if (input.is_string()) return input;
  if (input.is_string()) return input;
  std::string text = input.str();
  ESP_RETURN_IF_ERROR(interpreter.charge_bytes(text.size()));
  return Value(std::move(text));
}

Result<Value> filter_indent(Interpreter& interpreter, const Value& input,
                            const Arguments& arguments) {
  ESP_ASSIGN_OR_RETURN(const Bound bound, bind("indent", arguments, {"width", "first", "blank"}));
  std::string indentation;
  if (bound[0] && bound[0]->is_string()) {
    indentation = bound[0]->string();
  } else {
    ESP_ASSIGN_OR_RETURN(const int64_t width, integer("indent", bound[0], 4));
    indentation = std::string(static_cast<size_t>(std::clamp<int64_t>(width, 0, 4096)), ' ');
  }
  const bool blank = flag(bound[2], false);
  // The newline that is added makes a last empty line count.
  ESP_ASSIGN_OR_RETURN(const Value lines,
                       call_method(interpreter, Value(input.str() + "\n"), "splitlines", {}));
  ESP_RETURN_IF_ERROR(interpreter.charge_bytes(lines.items().size() * indentation.size()));
  std::string out = flag(bound[1], false) ? indentation : "";
  for (size_t i = 0; i < lines.items().size(); ++i) {
    const std::string& line = lines.items()[i].string();
    if (i > 0) out += '\n';
    if (i > 0 && (blank || !line.empty())) out += indentation;
    out += line;
  }
  if (input.is_markup()) return Value::markup(std::move(out));
  return Value(std::move(out));
}

Result<Value> filter_forceescape(Interpreter& interpreter, const Value& input, const Arguments&) {
  std::string out = escape_html(input.str());
  ESP_RETURN_IF_ERROR(interpreter.charge_bytes(out.size()));
  return Value::markup(std::move(out));
}

Result<Value> filter_escape(Interpreter& interpreter, const Value& input, const Arguments& a) {
  return input.is_markup() ? input : filter_forceescape(interpreter, input, a);
}

Result<Value> filter_safe(Interpreter& interpreter, const Value& input, const Arguments&) {
  std::string text = input.str();
  ESP_RETURN_IF_ERROR(interpreter.charge_bytes(text.size()));
  return Value::markup(std::move(text));
}

// A filter that is a generator in jinja2, so its result can be iterated once.
template <Filter filter>
Result<Value> lazy(Interpreter& interpreter, const Value& input, const Arguments& arguments) {
  ESP_ASSIGN_OR_RETURN(const Value list, filter(interpreter, input, arguments));
  return make_generator(list.items());
}

Result<Value> filter_attr(Interpreter& interpreter, const Value& input,
                          const Arguments& arguments) {
  ESP_ASSIGN_OR_RETURN(const Bound bound, bind("attr", arguments, {"name"}));
  const std::string name = bound[0].value_or(Value("")).str();
  // Attributes alone, no items: of data those are its methods.
  if (input.is_object() || has_method(input, name)) return interpreter.attribute(input, name);
  if (input.is_undefined()) return fail(template_error(input.why_undefined()));
  return Value::undefined(
      fmt::format("'{} object' has no attribute '{}'", input.type_name(), name));
}

Result<Value> filter_format(Interpreter&, const Value& input, const Arguments& arguments) {
  if (!arguments.named.empty()) {
    Dict named;
    for (const auto& [key, value] : arguments.named) named.set(Value(key), value);
    ESP_ASSIGN_OR_RETURN(std::string text, percent_format(input.str(), Value(std::move(named))));
    return Value(std::move(text));
  }
  ESP_ASSIGN_OR_RETURN(std::string text,
                       percent_format(input.str(), Value::tuple(arguments.positional)));
  return Value(std::move(text));
}

Result<Value> filter_wordcount(Interpreter& interpreter, const Value& input, const Arguments&) {
  ESP_ASSIGN_OR_RETURN(const Value words, call_method_named(interpreter, input, "split", {}));
  return Value(words.items().size());
}

Result<Value> filter_truncate(Interpreter& interpreter, const Value& input,
                              const Arguments& arguments) {
  ESP_ASSIGN_OR_RETURN(const Bound bound,
                       bind("truncate", arguments, {"length", "killwords", "end", "leeway"}));
  ESP_ASSIGN_OR_RETURN(const int64_t length, integer("truncate", bound[0], 255));
  ESP_ASSIGN_OR_RETURN(const int64_t leeway, integer("truncate", bound[3], 5));
  const std::string text = input.str();
  const std::string end = bound[2].value_or(Value("...")).str();
  const auto end_length = static_cast<int64_t>(length_in_characters(end));
  if (length < end_length) return fail(template_error("truncate: the length is below the end's"));
  if (static_cast<int64_t>(length_in_characters(text)) <= length + leeway) return Value(text);
  ESP_ASSIGN_OR_RETURN(const Value cut,
                       slice(Value(text), Value(0), Value(length - end_length), Value()));
  if (flag(bound[1], false)) return Value(cut.string() + end);
  ESP_ASSIGN_OR_RETURN(const Value words,
                       call_method(interpreter, cut, "rsplit", {{Value(" "), Value(1)}, {}}));
  return Value(words.items()[0].string() + end);
}

Result<Value> filter_urlencode(Interpreter& interpreter, const Value& input, const Arguments&) {
  std::string out;
  for (const char c : input.str()) {
    const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                       std::string_view("_.-~/").find(c) != std::string_view::npos;
    if (plain) {
      out += c;
    } else {
      out += fmt::format("%{:02X}", static_cast<uint8_t>(c));
    }
  }
  ESP_RETURN_IF_ERROR(interpreter.charge_bytes(out.size()));
  return Value(std::move(out));
}

constexpr std::pair<std::string_view, Filter> kFilters[] = {
    {"abs", filter_abs},
    {"attr", filter_attr},
    {"batch", lazy<filter_batch>},
    {"capitalize", filter_capitalize},
    {"center", filter_center},
    {"count", filter_length},
    {"d", filter_default},
    {"default", filter_default},
    {"dictsort", filter_dictsort},
    {"e", filter_escape},
    {"escape", filter_escape},
    {"first", filter_first},
    {"float", filter_float},
    {"forceescape", filter_forceescape},
    {"format", filter_format},
    {"groupby", filter_groupby},
    {"indent", filter_indent},
    {"int", filter_int},
    {"items", lazy<filter_items_of>},
    {"join", filter_join},
    {"last", filter_last},
    {"length", filter_length},
    {"list", filter_list},
    {"lower", filter_lower},
    {"map", lazy<filter_map>},
    {"max", filter_max},
    {"min", filter_min},
    {"reject", lazy<filter_reject>},
    {"rejectattr", lazy<filter_rejectattr>},
    {"replace", filter_replace},
    {"reverse", filter_reverse},
    {"round", filter_round},
    {"safe", filter_safe},
    {"select", lazy<filter_select>},
    {"selectattr", lazy<filter_selectattr>},
    {"slice", lazy<filter_slice>},
    {"sort", filter_sort},
    {"string", filter_string},
    {"sum", filter_sum},
    {"title", filter_title},
    {"tojson", filter_tojson},
    {"trim", filter_trim},
    {"truncate", filter_truncate},
    {"unique", lazy<filter_unique>},
    {"upper", filter_upper},
    {"urlencode", filter_urlencode},
    {"wordcount", filter_wordcount},
};

}  // namespace

Filter find_filter(std::string_view name) {
  for (const auto& [key, filter] : kFilters) {
    if (key == name) return filter;
  }
  return nullptr;
}

}  // namespace espalier::jinja
