// Global functions: jinja2's, and those that transformers adds; and Python's % formatting.
#include <algorithm>
#include <cmath>
#include <ctime>

#include "text/template/interpreter.h"
#include "text/unicode/utf8.h"

namespace espalier::jinja {
namespace {

using Bound = std::vector<std::optional<Value>>;

constexpr int64_t kRangeMax = 100'000;  // the sandbox's MAX_RANGE

class Function final : public Object {
 public:
  using Body = Result<Value> (*)(Interpreter&, const Arguments&);
  explicit Function(Body body) : body_(body) {}
  std::string type_name() const override { return "function"; }
  bool callable() const override { return true; }
  Result<Value> call(Interpreter& interpreter, const Arguments& arguments) override {
    return body_(interpreter, arguments);
  }

 private:
  const Body body_;
};

Result<Value> make_range(Interpreter& interpreter, const Arguments& arguments) {
  int64_t parts[3] = {0, 0, 1};
  const size_t count = arguments.positional.size();
  if (count < 1 || count > 3 || !arguments.named.empty()) {
    return fail(template_error("range expected 1 to 3 arguments"));
  }
  for (size_t i = 0; i < count; ++i) {
    const Value& value = arguments.positional[i];
    if (value.is_undefined()) return fail(template_error(value.why_undefined()));
    if (!value.is_number() || value.is_float()) {
      return fail(template_error(
          fmt::format("'{}' object cannot be interpreted as an integer", value.type_name())));
    }
    parts[count == 1 ? 1 : i] = value.integer();
  }
  const auto [start, stop, step] = parts;
  if (step == 0) return fail(template_error("range() arg 3 must not be zero"));
  // In doubles, which cannot overflow; the count is then small or refused.
  const double exact = std::ceil((double(stop) - double(start)) / double(step));
  if (exact > double(kRangeMax)) {
    return fail(template_error(fmt::format(
        "Range too big. The sandbox blocks ranges larger than MAX_RANGE ({}).", kRangeMax)));
  }
  std::vector<Value> items;
  for (int64_t i = 0; i < static_cast<int64_t>(std::max(exact, 0.0)); ++i) {
    items.emplace_back(start + i * step);
  }
  ESP_RETURN_IF_ERROR(interpreter.charge(items.size() / 8));
  return Value(std::move(items));
}

Result<Dict> dict_of(Interpreter& interpreter, const Arguments& arguments) {
  Dict dict;
  for (const Value& value : arguments.positional) {
    if (value.is_dict()) {
      for (const auto& [key, item] : value.dict().entries) dict.set(key, item);
      continue;
    }
    ESP_ASSIGN_OR_RETURN(const std::vector<Value> pairs, interpreter.iterate(value));
    for (const Value& pair : pairs) {
      ESP_ASSIGN_OR_RETURN(const std::vector<Value> parts, interpreter.iterate(pair));
      if (parts.size() != 2) return fail(template_error("dict() wants pairs"));
      dict.set(parts[0], parts[1]);
    }
  }
  for (const auto& [name, value] : arguments.named) dict.set(Value(name), value);
  ESP_RETURN_IF_ERROR(interpreter.charge(dict.entries.size()));
  return dict;
}

Result<Value> make_dict(Interpreter& interpreter, const Arguments& arguments) {
  ESP_ASSIGN_OR_RETURN(Dict dict, dict_of(interpreter, arguments));
  return Value(std::move(dict));
}

Result<Value> make_namespace(Interpreter& interpreter, const Arguments& arguments) {
  ESP_ASSIGN_OR_RETURN(Dict dict, dict_of(interpreter, arguments));
  return interpreter.make_namespace(std::move(dict));
}

Result<Value> raise_exception(Interpreter&, const Arguments& arguments) {
  ESP_ASSIGN_OR_RETURN(const Bound bound, bind("raise_exception", arguments, {"message"}));
  return fail(template_error(bound[0].value_or(Value("")).str()));
}

Result<Value> strftime_now(Interpreter& interpreter, const Arguments& arguments) {
  ESP_ASSIGN_OR_RETURN(const Bound bound, bind("strftime_now", arguments, {"format"}));
  const std::string format = bound[0].value_or(Value("")).str();
  if (format.size() > 256) return fail(template_error("strftime_now: the format is too long"));
  std::tm local{};
  const std::time_t now = interpreter.now();
  localtime_r(&now, &local);
  char buffer[4096];
  const size_t size = std::strftime(buffer, sizeof buffer, format.c_str(), &local);
  return Value(std::string(buffer, size));
}

// joiner(", "): nothing at the first call, the separator at the others.
class Joiner final : public Object {
 public:
  explicit Joiner(std::string separator) : separator_(std::move(separator)) {}
  std::string type_name() const override { return "Joiner"; }
  bool callable() const override { return true; }
  Result<Value> call(Interpreter&, const Arguments&) override {
    return Value(std::exchange(used_, true) ? separator_ : "");
  }

 private:
  const std::string separator_;
  bool used_ = false;
};

Result<Value> make_joiner(Interpreter&, const Arguments& arguments) {
  ESP_ASSIGN_OR_RETURN(const Bound bound, bind("joiner", arguments, {"sep"}));
  return Value(
      std::shared_ptr<Object>(std::make_shared<Joiner>(bound[0].value_or(Value(", ")).str())));
}

constexpr std::pair<std::string_view, Function::Body> kFunctions[] = {
    {"range", make_range},          {"dict", make_dict},
    {"namespace", make_namespace},  {"raise_exception", raise_exception},
    {"strftime_now", strftime_now}, {"joiner", make_joiner},
};

}  // namespace

std::optional<Value> find_global(std::string_view name) {
  for (const auto& [key, body] : kFunctions) {
    if (key == name) return Value(std::shared_ptr<Object>(std::make_shared<Function>(body)));
  }
  return std::nullopt;
}

namespace {

// A conversion of a % format: "%-08.3f".
struct Conversion {
  bool left = false, zero = false, plus = false, space = false, alternate = false;
  size_t width = 0;
  int precision = -1;
  char type = 's';
};

std::string padded(const Conversion& c, std::string text, bool numeric) {
  const size_t length = length_in_characters(text);
  if (length >= c.width) return text;
  const size_t missing = c.width - length;
  if (c.left) return text + std::string(missing, ' ');
  if (c.zero && numeric) {
    const size_t sign = !text.empty() && (text[0] == '-' || text[0] == '+' || text[0] == ' ');
    return text.substr(0, sign) + std::string(missing, '0') + text.substr(sign);
  }
  return std::string(missing, ' ') + text;
}

Result<std::string> convert(const Conversion& c, const Value& value) {
  if (c.type == 's' || c.type == 'r') {
    std::string text = c.type == 's' ? value.str() : value.repr();
    if (c.precision >= 0) {
      ESP_ASSIGN_OR_RETURN(const Value cut,
                           slice(Value(text), Value(0), Value(c.precision), Value()));
      text = cut.string();
    }
    return padded(c, std::move(text), false);
  }
  if (!value.is_number()) {
    return fail(template_error(
        fmt::format("%{} format: a number is required, not {}", c.type, value.type_name())));
  }
  const std::string sign = value.number() >= 0 ? (c.plus ? "+" : c.space ? " " : "") : "";
  if (std::string_view("dixXo").find(c.type) != std::string_view::npos) {
    if (std::abs(value.number()) >= 0x1p63) return fail(template_error("a number is too large"));
    const int64_t i = value.is_float() ? static_cast<int64_t>(value.number()) : value.integer();
    const std::string text = c.type == 'x'   ? fmt::format("{:x}", i)
                             : c.type == 'X' ? fmt::format("{:X}", i)
                             : c.type == 'o' ? fmt::format("{:o}", i)
                                             : fmt::format("{}", i);
    return padded(c, sign + text, true);
  }
  const int precision = c.precision < 0 ? 6 : c.precision;
  const double d = value.number();
  const std::string text = c.type == 'e'   ? fmt::format("{:.{}e}", d, precision)
                           : c.type == 'g' ? fmt::format("{:.{}g}", d, precision)
                                           : fmt::format("{:.{}f}", d, precision);
  return padded(c, sign + text, true);
}

// Reads the conversion after a '%' at `i`, which moves behind it. No name in brackets.
Result<Conversion> parse_conversion(std::string_view format, size_t& i) {
  Conversion c;
  for (; i < format.size(); ++i) {
    bool& flag = format[i] == '-'   ? c.left
                 : format[i] == '0' ? c.zero
                 : format[i] == '+' ? c.plus
                 : format[i] == ' ' ? c.space
                                    : c.alternate;
    if (std::string_view("-0+ #").find(format[i]) == std::string_view::npos) break;
    flag = true;
  }
  const auto number = [&] {
    int value = 0;
    for (; i < format.size() && format[i] >= '0' && format[i] <= '9'; ++i) {
      value = std::min(value * 10 + (format[i] - '0'), 4096);
    }
    return value;
  };
  c.width = static_cast<size_t>(number());
  if (i < format.size() && format[i] == '.') {
    ++i;
    c.precision = std::min(number(), 300);
  }
  if (i >= format.size()) return fail(template_error("incomplete format"));
  c.type = format[i++];
  if (std::string_view("srdixXofFeg%").find(c.type) == std::string_view::npos) {
    return fail(template_error(fmt::format("unsupported format character '{}'", c.type)));
  }
  return c;
}

}  // namespace

Result<std::string> percent_format(std::string_view format, const Value& arguments) {
  const bool is_tuple = arguments.is_list() && arguments.list().is_tuple;
  const size_t num_values = is_tuple ? arguments.items().size() : 1;
  size_t next = 0;
  std::string out;
  bool by_name = false;
  for (size_t i = 0; i < format.size();) {
    if (format[i] != '%') {
      out += format[i++];
      continue;
    }
    ++i;
    const Value* value = nullptr;
    if (i < format.size() && format[i] == '(') {
      const size_t end = format.find(')', i);
      if (end == std::string_view::npos) return fail(template_error("incomplete format key"));
      if (!arguments.is_dict()) return fail(template_error("format requires a mapping"));
      value = arguments.dict().find(format.substr(i + 1, end - i - 1));
      if (value == nullptr) return fail(template_error("a format key is missing"));
      by_name = true;
      i = end + 1;
    }
    ESP_ASSIGN_OR_RETURN(const Conversion conversion, parse_conversion(format, i));
    if (conversion.type == '%') {
      out += '%';
      continue;
    }
    if (value == nullptr) {
      if (next >= num_values) {
        return fail(template_error("not enough arguments for format string"));
      }
      value = is_tuple ? &arguments.items()[next] : &arguments;
      ++next;
    }
    ESP_ASSIGN_OR_RETURN(const std::string text, convert(conversion, *value));
    out += text;
  }
  if (next < num_values && !by_name && !arguments.is_dict()) {
    return fail(template_error("not all arguments converted during string formatting"));
  }
  return out;
}

}  // namespace espalier::jinja
