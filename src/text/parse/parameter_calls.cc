#include "text/parse/parameter_calls.h"

#include <algorithm>
#include <boost/json.hpp>
#include <set>
#include <string>
#include <utility>

#include "text/parse/mark_finder.h"

namespace espalier {
namespace {

namespace json = boost::json;

constexpr int kSchemaDepthMax = 16;     // references and choices that are followed
constexpr size_t kValueDepthMax = 500;  // of values in values

bool is_space(char c) { return c == ' ' || c == '\n' || c == '\t' || c == '\r'; }

// Which types a schema lets a value have, as far as reading it needs to know.
struct Types {
  bool stated = false, string = false, null = false, boolean = false;
};

class SchemaTypes {
 public:
  explicit SchemaTypes(const json::value& root) : root_(root) {}

  void add(const json::value& schema, Types& out, int depth = 0) {
    // Schemas may lead back to themselves, and by many ways: each is looked at once.
    if (!schema.is_object() || depth > kSchemaDepthMax || !seen_.insert(&schema).second) return;
    const json::object& keywords = schema.get_object();
    if (const json::value* type = keywords.if_contains("type")) {
      if (type->is_string()) add_type(type->get_string(), out);
      if (type->is_array())
        for (const json::value& one : type->get_array())
          if (one.is_string()) add_type(one.get_string(), out);
    }
    for (const char* name : {"anyOf", "oneOf", "allOf"})
      if (const json::value* list = keywords.if_contains(name); list != nullptr && list->is_array())
        for (const json::value& one : list->get_array()) add(one, out, depth + 1);
    if (const json::value* list = keywords.if_contains("enum"); list != nullptr && list->is_array())
      for (const json::value& one : list->get_array()) add_value(one, out);
    if (const json::value* one = keywords.if_contains("const")) add_value(*one, out);
    const json::value* ref = keywords.if_contains("$ref");
    if (ref == nullptr || !ref->is_string() || !ref->get_string().starts_with("#")) return;
    json::error_code failed;
    const json::value* target = root_.find_pointer(ref->get_string().subview(1), failed);
    if (target != nullptr) add(*target, out, depth + 1);
  }

 private:
  static void add_type(const json::string& name, Types& out) {
    out.stated = true;
    out.string |= name == "string";
    out.null |= name == "null";
    out.boolean |= name == "boolean";
  }
  static void add_value(const json::value& value, Types& out) {
    out.stated = true;
    out.string |= value.is_string();
    out.null |= value.is_null();
    out.boolean |= value.is_bool();
  }

  const json::value& root_;
  std::set<const json::value*> seen_;
};

class ParameterCalls final : public ToolCallParser {
 public:
  explicit ParameterCalls(std::shared_ptr<const json::value> tools)
      : tools_(std::move(tools)),
        begins_({"<tool_call>", "<function="}),
        inside_({"<parameter=", "</function>", "</tool_call>"}),
        value_end_({"</parameter>"}),
        ends_({"</tool_call>", "<function="}) {}

 private:
  enum class Place {
    kText,
    kOpened,   // <tool_call> was read
    kName,     // <function=...
    kBetween,  // parameters
    kKey,      // <parameter=...
    kValue,    //
    kBehind,   // </function> was read: an end or the next call
  };

  void take(char c) override {
    switch (place_) {
      case Place::kText:
      case Place::kOpened:
        return take_text(c);
      case Place::kName:
        return take_name(c);
      case Place::kBetween: {
        std::string text;  // of no meaning here
        const auto mark = inside_.take(c, text);
        if (!mark) return;
        if (*mark == 0) {
          key_.clear();
          place_ = Place::kKey;
          return;
        }
        emit_arguments(num_parameters_ == 0 ? "{}" : "}");
        place_ = *mark == 1 ? Place::kBehind : Place::kText;
        return;
      }
      case Place::kKey:
        if (c == '>') return begin_value();
        key_ += c;
        return;
      case Place::kValue: {
        std::string text;
        const auto mark = value_end_.take(c, text);
        for (const char each : text) take_value(each);
        if (mark) end_value();
        return;
      }
      case Place::kBehind:
        return take_behind(c);
    }
  }

  void take_text(char c) {
    std::string text;
    const auto mark = begins_.take(c, text);
    if (place_ == Place::kOpened) {
      raw_ += text;
      if (!std::all_of(text.begin(), text.end(), is_space)) no_call();
    } else {
      emit_text(text);
    }
    if (!mark) return;
    if (*mark == 0) {
      no_call();  // what another mark had opened
      raw_ = "<tool_call>";
      place_ = Place::kOpened;
    } else {
      raw_ += "<function=";
      name_.clear();
      place_ = Place::kName;
    }
  }

  void take_name(char c) {
    raw_ += c;
    const bool fits = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                      c == '_' || c == '.' || c == '-';
    if (fits) {
      name_ += c;
    } else if (c != '>' || name_.empty()) {
      no_call();
    } else {
      raw_.clear();
      begin_call(name_);
      num_parameters_ = 0;
      place_ = Place::kBetween;
    }
  }

  void begin_value() {
    types_ = types_of(name_, key_);
    emit_arguments(num_parameters_++ == 0 ? "{" : ", ");
    emit_arguments(json::serialize(json::string(key_)) + ": ");
    value_.clear();
    at_start_ = true;
    pending_line_ = false;
    // Strings come as they are written, unless they may turn out to be null.
    streams_ = (types_.string && !types_.null) || !types_.known;
    if (streams_) emit_arguments("\"");
    place_ = Place::kValue;
  }

  // The line breaks behind the mark and before the end's are no part of the value.
  void take_value(char c) {
    if (std::exchange(at_start_, false) && c == '\n') return;
    if (std::exchange(pending_line_, false)) add_value('\n');
    if (c == '\n') {
      pending_line_ = true;
    } else {
      add_value(c);
    }
  }

  void add_value(char c) {
    if (!streams_) {
      value_ += c;
    } else if (static_cast<unsigned char>(c) < 0x20 || c == '"' || c == '\\') {
      const std::string quoted = json::serialize(json::string(1, c));
      emit_arguments(std::string_view(quoted).substr(1, quoted.size() - 2));
    } else {
      emit_arguments({&c, 1});
    }
  }

  void end_value() {
    emit_arguments(streams_ ? "\"" : as_json());
    place_ = Place::kBetween;
  }

  std::string as_json() const {
    if (types_.boolean && (value_ == "True" || value_ == "False"))
      return value_ == "True" ? "true" : "false";
    json::error_code failed;
    const json::value parsed = json::parse(value_, failed, {}, {.max_depth = kValueDepthMax});
    const bool as_it_is = !failed && (!types_.string || (types_.null && parsed.is_null()));
    return as_it_is ? value_ : json::serialize(json::string(value_));
  }

  void take_behind(char c) {
    std::string text;
    const auto mark = ends_.take(c, text);
    if (mark && *mark == 1) {
      raw_ = "<function=";
      name_.clear();
      place_ = Place::kName;
    } else if (mark) {
      place_ = Place::kText;
    } else if (!std::all_of(text.begin(), text.end(), is_space)) {
      place_ = Place::kText;
      text += ends_.flush();
      for (const char each : text) take_text(each);
    }
  }

  // What looked like a call is text, and so is what follows.
  void no_call() {
    emit_text(std::exchange(raw_, {}));
    place_ = Place::kText;
  }

  void end() override {
    if (place_ == Place::kText || place_ == Place::kOpened || place_ == Place::kName) {
      emit_text(raw_ + begins_.flush());
    } else if (place_ == Place::kValue) {
      for (const char each : value_end_.flush()) take_value(each);
      if (!streams_) emit_arguments(value_);
    }
  }

  struct Known : Types {
    bool known = false;  // the parameter is declared
  };
  Known types_of(const std::string& tool, const std::string& parameter) const {
    Known out;
    if (tools_ == nullptr || !tools_->is_array()) return out;
    for (const json::value& one : tools_->get_array()) {
      const json::object& function = one.at("function").get_object();
      if (function.at("name").get_string() != tool) continue;
      const json::value* schema = function.if_contains("parameters");
      if (schema == nullptr || !schema->is_object()) continue;
      const json::value* properties = schema->get_object().if_contains("properties");
      const json::value* declared = properties != nullptr && properties->is_object()
                                        ? properties->get_object().if_contains(parameter)
                                        : nullptr;
      if (declared == nullptr) {  // then what is said of all others
        declared = schema->get_object().if_contains("additionalProperties");
        if (declared == nullptr || !declared->is_object()) continue;
      }
      out.known = true;
      SchemaTypes(*schema).add(*declared, out);
      return out;
    }
    return out;
  }

  const std::shared_ptr<const json::value> tools_;
  MarkFinder begins_, inside_, value_end_, ends_;
  Place place_ = Place::kText;
  std::string raw_;  // since the mark, while it is not certain that this is a call
  std::string name_, key_, value_;
  int num_parameters_ = 0;
  Known types_;
  bool streams_ = false, at_start_ = false, pending_line_ = false;
};

}  // namespace

std::unique_ptr<ToolCallParser> make_parameter_calls(std::shared_ptr<const json::value> tools) {
  return std::make_unique<ParameterCalls>(std::move(tools));
}

}  // namespace espalier
