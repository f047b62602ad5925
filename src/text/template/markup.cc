// Strings that are safe HTML, as in markupsafe. A chat template that uses the filter `safe` gets
// such a string, and text that is added to it is escaped.
#include <algorithm>

#include "text/template/interpreter.h"

namespace espalier::jinja {
namespace {

// Methods whose arguments become text of the result.
constexpr std::string_view kInserting[] = {"join", "replace", "format"};

Value as_markup(const Value& made) {
  if (made.is_string()) return Value::markup(made.string());
  if (!made.is_list()) return made;
  std::vector<Value> items;
  for (const Value& item : made.items()) items.push_back(as_markup(item));
  return made.list().is_tuple ? Value::tuple(std::move(items)) : Value(std::move(items));
}

}  // namespace

std::string escape_html(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (const char c : text) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&#34;";
        break;
      case '\'':
        out += "&#39;";
        break;
      default:
        out += c;
    }
  }
  return out;
}

Value escaped(const Value& value) {
  if (value.is_string()) {
    return value.is_markup() ? value : Value::markup(escape_html(value.string()));
  }
  if (value.is_list()) {
    std::vector<Value> items;
    for (const Value& item : value.items()) items.push_back(escaped(item));
    return value.list().is_tuple ? Value::tuple(std::move(items)) : Value(std::move(items));
  }
  if (!value.is_dict()) return value;
  Dict dict;
  for (const auto& [key, item] : value.dict().entries) dict.set(key, escaped(item));
  return Value(std::move(dict));
}

Result<Value> call_markup_method(Interpreter& interpreter, const Value& self, std::string_view name,
                                 const Arguments& arguments) {
  Arguments taken = arguments;
  if (std::ranges::find(kInserting, name) != std::end(kInserting)) {
    for (size_t i = 0; i < taken.positional.size(); ++i) {
      // The searched string does not become part of the result, so it is not escaped.
      if (name == "replace" && i == 0) continue;
      if (name == "join") {
        ESP_ASSIGN_OR_RETURN(std::vector<Value> items, interpreter.iterate(taken.positional[i]));
        taken.positional[i] = Value(std::move(items));
      }
      taken.positional[i] = escaped(taken.positional[i]);
    }
    for (auto& [key, value] : taken.named) value = escaped(value);
  }
  ESP_ASSIGN_OR_RETURN(const Value made,
                       call_method(interpreter, Value(self.string()), name, taken));
  return as_markup(made);
}

}  // namespace espalier::jinja
