// Operators, attributes, items and iteration, as Python and jinja2's sandbox define them.
#include <algorithm>
#include <cmath>

#include "text/template/interpreter.h"
#include "text/unicode/utf8.h"

namespace espalier::jinja {
namespace {

constexpr size_t kTextBytesMax = 64 << 20;
constexpr size_t kItemsMax = 1 << 22;

// jinja2's message for a missing attribute. For a dictionary: "'dict object' has no attribute 'x'".
std::string missing(const Value& object, std::string_view name) {
  if (object.is_none()) return fmt::format("'None' has no attribute '{}'", name);
  return fmt::format("'{} object' has no attribute '{}'", object.type_name(), name);
}

Status unsupported(std::string_view op, const Value& a, const Value& b) {
  if (a.is_undefined()) return template_error(a.why_undefined());
  if (b.is_undefined()) return template_error(b.why_undefined());
  if (op == "+" && a.is_string() && !a.is_markup()) {
    return template_error(
        fmt::format("can only concatenate str (not \"{}\") to str", b.type_name()));
  }
  if (op == "+" && a.is_list()) {
    return template_error(fmt::format("can only concatenate {} (not \"{}\") to {}", a.type_name(),
                                      b.type_name(), a.type_name()));
  }
  return template_error(fmt::format("unsupported operand type(s) for {}: '{}' and '{}'", op,
                                    a.type_name(), b.type_name()));
}

Status overflow() {
  return template_error("an integer grows beyond 64 bits, which is not supported");
}

Result<Value> integer_power(int64_t base, int64_t exponent) {
  if (exponent < 0) return Value(std::pow(double(base), double(exponent)));
  int64_t result = 1;
  while (exponent > 0) {
    if ((exponent & 1) != 0 && __builtin_mul_overflow(result, base, &result)) {
      return fail(overflow());
    }
    exponent >>= 1;
    if (exponent > 0 && __builtin_mul_overflow(base, base, &base)) return fail(overflow());
  }
  return Value(result);
}

Result<Value> integer_operation(std::string_view op, int64_t a, int64_t b) {
  int64_t result = 0;
  if (op == "+") {
    if (__builtin_add_overflow(a, b, &result)) return fail(overflow());
  } else if (op == "-") {
    if (__builtin_sub_overflow(a, b, &result)) return fail(overflow());
  } else if (op == "*") {
    if (__builtin_mul_overflow(a, b, &result)) return fail(overflow());
  } else if (op == "**") {
    return integer_power(a, b);
  } else {
    if (b == 0) return fail(template_error("division by zero"));
    if (op == "/") return Value(double(a) / double(b));
    if (b == -1) return op == "%" ? Result<Value>(Value(0)) : integer_operation("-", 0, a);
    // Python rounds down, and the remainder has the divisor's sign.
    const int64_t quotient = a / b - ((a % b != 0 && (a % b < 0) != (b < 0)) ? 1 : 0);
    result = op == "//" ? quotient : a - quotient * b;
  }
  return Value(result);
}

Result<Value> float_operation(std::string_view op, double a, double b) {
  if (op == "+") return Value(a + b);
  if (op == "-") return Value(a - b);
  if (op == "*") return Value(a * b);
  if (op == "**") return Value(std::pow(a, b));
  if (b == 0) return fail(template_error("float division by zero"));
  if (op == "/") return Value(a / b);
  if (op == "//") return Value(std::floor(a / b));
  const double remainder = std::fmod(a, b);
  return Value(remainder != 0 && (remainder < 0) != (b < 0) ? remainder + b : remainder);
}

// A string that is safe if `origin`, from which it is made, is safe.
Value like(const Value& origin, std::string text) {
  return origin.is_markup() ? Value::markup(std::move(text)) : Value(std::move(text));
}

Result<Value> repeat(Interpreter& interpreter, const Value& value, int64_t count) {
  const auto times = static_cast<size_t>(std::max<int64_t>(count, 0));
  const size_t size = value.is_string() ? value.string().size() : value.items().size();
  const size_t size_max = value.is_string() ? kTextBytesMax : kItemsMax;
  if (size > 0 && times > size_max / size) {
    return fail(error(StatusCode::kResourceExhausted, "a repetition makes too much"));
  }
  if (value.is_string()) {
    ESP_RETURN_IF_ERROR(interpreter.charge_bytes(size * times));
    std::string text;
    text.reserve(size * times);
    for (size_t i = 0; i < (size > 0 ? times : 0); ++i) text += value.string();
    return like(value, std::move(text));
  }
  ESP_RETURN_IF_ERROR(interpreter.charge(size * times / 8));
  std::vector<Value> items;
  items.reserve(size * times);
  for (size_t i = 0; i < (size > 0 ? times : 0); ++i) {
    items.insert(items.end(), value.items().begin(), value.items().end());
  }
  return value.list().is_tuple ? Value::tuple(std::move(items)) : Value(std::move(items));
}

}  // namespace

Result<Value> binary_operation(Interpreter& interpreter, std::string_view op, const Value& a,
                               const Value& b) {
  if (a.is_number() && b.is_number()) {
    if (a.is_float() || b.is_float()) return float_operation(op, a.number(), b.number());
    return integer_operation(op, a.integer(), b.integer());
  }
  if (op == "+" && a.is_string() && b.is_string()) {
    ESP_RETURN_IF_ERROR(interpreter.charge_bytes(a.string().size() + b.string().size()));
    if (a.is_markup() || b.is_markup()) {
      return Value::markup(escaped(a).string() + escaped(b).string());
    }
    return Value(a.string() + b.string());
  }
  if (op == "+" && a.is_list() && b.is_list() && a.list().is_tuple == b.list().is_tuple) {
    std::vector<Value> items = a.items();
    items.insert(items.end(), b.items().begin(), b.items().end());
    ESP_RETURN_IF_ERROR(interpreter.charge(items.size() / 8));
    return a.list().is_tuple ? Value::tuple(std::move(items)) : Value(std::move(items));
  }
  if (op == "*" && (a.is_string() || a.is_list()) && b.is_number() && !b.is_float()) {
    return repeat(interpreter, a, b.integer());
  }
  if (op == "*" && (b.is_string() || b.is_list()) && a.is_number() && !a.is_float()) {
    return repeat(interpreter, b, a.integer());
  }
  if (op == "%" && a.is_string()) {
    ESP_ASSIGN_OR_RETURN(std::string text,
                         percent_format(a.string(), a.is_markup() ? escaped(b) : b));
    ESP_RETURN_IF_ERROR(interpreter.charge_bytes(text.size()));
    return like(a, std::move(text));
  }
  return fail(unsupported(op, a, b));
}

Result<bool> contains(const Value& container, const Value& item) {
  if (container.is_string()) {
    if (!item.is_string()) {
      return fail(template_error(
          fmt::format("'in <string>' requires string as left operand, not {}", item.type_name())));
    }
    return container.string().find(item.string()) != std::string::npos;
  }
  if (container.is_list()) {
    return std::any_of(container.items().begin(), container.items().end(),
                       [&](const Value& candidate) { return equal(candidate, item); });
  }
  if (container.is_dict()) return container.dict().find(item) != nullptr;
  if (is_generator(container)) return contains(Value(take_generated(container)), item);
  if (container.is_undefined()) return false;
  return fail(
      template_error(fmt::format("argument of type '{}' is not iterable", container.type_name())));
}

Result<Value> slice(const Value& value, const Value& start, const Value& stop, const Value& step) {
  if (value.is_undefined()) return fail(template_error(value.why_undefined()));
  if (value.is_dict()) return fail(template_error("unhashable type: 'slice'"));
  if (!value.is_string() && !value.is_list()) {
    return fail(template_error(fmt::format("'{}' object is not subscriptable", value.type_name())));
  }
  for (const Value* part : {&start, &stop, &step}) {
    if (!part->is_none() && !(part->is_number() && !part->is_float())) {
      return fail(template_error("slice indices must be integers or None"));
    }
  }
  const std::vector<std::string_view> text =
      value.is_string() ? characters(value.string()) : std::vector<std::string_view>();
  const auto count = static_cast<int64_t>(value.is_string() ? text.size() : value.items().size());
  const int64_t stride = step.is_none() ? 1 : step.integer();
  if (stride == 0) return fail(template_error("slice step cannot be zero"));
  // The position of an index, clamped to the range that a walk in the stride's direction can reach.
  const auto place = [&](const Value& part, int64_t otherwise) {
    if (part.is_none()) return otherwise;
    int64_t i = part.integer();
    if (i < 0) i = std::max<int64_t>(i, -count - 1) + count;
    return stride > 0 ? std::clamp<int64_t>(i, 0, count) : std::clamp<int64_t>(i, -1, count - 1);
  };
  const int64_t begin = place(start, stride > 0 ? 0 : count - 1);
  const int64_t end = place(stop, stride > 0 ? count : -1);
  std::string out;
  std::vector<Value> items;
  const int64_t distance = stride > 0 ? end - begin : begin - end;
  const int64_t size = stride > 0 ? stride : -std::max(stride, -(count + 1));
  for (int64_t i = 0; i < distance; i += size) {
    const auto at = static_cast<size_t>(stride > 0 ? begin + i : begin - i);
    if (value.is_string()) {
      out += text[at];
    } else {
      items.push_back(value.items()[at]);
    }
    if (i > distance - size) break;  // the next index could overflow
  }
  if (value.is_string()) return like(value, std::move(out));
  return value.list().is_tuple ? Value::tuple(std::move(items)) : Value(std::move(items));
}

namespace {

// "".strip as a value.
class BoundMethod final : public Object {
 public:
  BoundMethod(Value self, std::string name) : self_(std::move(self)), name_(std::move(name)) {}
  std::string type_name() const override { return "builtin_function_or_method"; }
  bool callable() const override { return true; }
  Result<Value> call(Interpreter& interpreter, const Arguments& arguments) override {
    return call_method(interpreter, self_, name_, arguments);
  }

 private:
  const Value self_;
  const std::string name_;
};

}  // namespace

Result<Value> Interpreter::attribute(const Value& object, std::string_view name) {
  if (object.is_undefined()) return fail(template_error(object.why_undefined()));
  if (has_method(object, name)) {
    return Value(std::shared_ptr<Object>(std::make_shared<BoundMethod>(object, std::string(name))));
  }
  if (object.is_dict()) {
    if (const Value* value = object.dict().find(name)) return *value;
  }
  if (object.is_object()) {
    if (std::optional<Value> value = object.object()->attribute(name)) return *std::move(value);
  }
  return Value::undefined(missing(object, name));
}

Result<Value> Interpreter::item(const Value& object, const Value& key) {
  if (object.is_undefined()) return fail(template_error(object.why_undefined()));
  if (object.is_dict()) {
    if (const Value* value = object.dict().find(key)) return *value;
  }
  if ((object.is_list() || object.is_string()) && key.is_number() && !key.is_float()) {
    const std::vector<std::string_view> text =
        object.is_string() ? characters(object.string()) : std::vector<std::string_view>();
    if (object.is_string()) ESP_RETURN_IF_ERROR(charge_bytes(object.string().size()));
    const auto count =
        static_cast<int64_t>(object.is_string() ? text.size() : object.items().size());
    const int64_t i = key.integer() < 0 ? key.integer() + count : key.integer();
    if (i < 0 || i >= count) {
      return Value::undefined(
          fmt::format("{} object has no element {}", object.type_name(), key.integer()));
    }
    const auto at = static_cast<size_t>(i);
    return object.is_string() ? like(object, std::string(text[at])) : object.items()[at];
  }
  if (key.is_string()) {
    if (object.is_dict() && !has_method(object, key.string())) {
      return Value::undefined(missing(object, key.string()));
    }
    return attribute(object, key.string());
  }
  if (object.is_none()) {
    return Value::undefined(fmt::format("None has no element {}", key.str()));
  }
  return Value::undefined(
      fmt::format("{} object has no element {}", object.type_name(), key.repr()));
}

Result<std::vector<Value>> Interpreter::iterate(const Value& value) {
  std::vector<Value> items;
  if (value.is_list()) {
    items = value.items();
  } else if (value.is_dict()) {
    for (const auto& entry : value.dict().entries) items.push_back(entry.first);
  } else if (value.is_string()) {
    for (const std::string_view c : characters(value.string())) items.emplace_back(c);
  } else if (is_generator(value)) {
    items = take_generated(value);
  } else if (!value.is_undefined()) {
    return fail(template_error(fmt::format("'{}' object is not iterable", value.type_name())));
  }
  ESP_RETURN_IF_ERROR(charge(items.size() / 8));
  return items;
}

Result<std::vector<std::optional<Value>>> bind(std::string_view function,
                                               const Arguments& arguments,
                                               std::initializer_list<std::string_view> parameters) {
  std::vector<std::optional<Value>> values(parameters.size());
  if (arguments.positional.size() > parameters.size()) {
    return fail(template_error(fmt::format("{}() takes at most {} argument(s) ({} given)", function,
                                           parameters.size(), arguments.positional.size())));
  }
  for (size_t i = 0; i < arguments.positional.size(); ++i) values[i] = arguments.positional[i];
  for (const auto& [name, value] : arguments.named) {
    const auto* const at = std::find(parameters.begin(), parameters.end(), name);
    if (at == parameters.end()) {
      return fail(template_error(
          fmt::format("{}() got an unexpected keyword argument '{}'", function, name)));
    }
    values[static_cast<size_t>(at - parameters.begin())] = value;
  }
  return values;
}

}  // namespace espalier::jinja
