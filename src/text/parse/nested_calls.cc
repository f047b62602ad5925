#include "text/parse/nested_calls.h"

#include <algorithm>
#include <boost/json.hpp>
#include <set>
#include <utility>
#include <vector>

#include "text/parse/json_space.h"
#include "text/parse/mark_finder.h"
#include "text/parse/markup_text.h"

namespace espalier {
namespace {

namespace json = boost::json;

constexpr int kNestedDepthMax = 32;     // of elements, and of references and alternatives
constexpr size_t kNestedNameMax = 512;  // bytes

// Follows a tool's schema down the elements of a call. Null stands for a schema that says nothing.
// Borrows the schema. Not thread-safe.
class NestedSchema {
 public:
  explicit NestedSchema(const json::value* root) : root_(root) {}

  // The names of the types that a schema allows: those of its references and alternatives too.
  std::set<std::string> types(const json::value* schema) const {
    std::set<std::string> found;
    visit(schema, [&](const json::object& keywords) {
      const json::value* type = keywords.if_contains("type");
      if (type != nullptr && type->is_string()) found.emplace(type->get_string());
      if (type != nullptr && type->is_array())
        for (const json::value& one : type->get_array())
          if (one.is_string()) found.emplace(one.get_string());
      if (keywords.contains("properties")) found.emplace("object");
      if (keywords.contains("items") || keywords.contains("prefixItems")) found.emplace("array");
    });
    return found;
  }
  const json::value* member(const json::value* schema, std::string_view name) const {
    const json::value* found = nullptr;
    visit(schema, [&](const json::object& keywords) {
      const json::value* all = keywords.if_contains("properties");
      if (found == nullptr && all != nullptr && all->is_object())
        found = all->get_object().if_contains(name);
      if (found == nullptr) found = object_in(keywords, "additionalProperties");
    });
    return found;
  }
  const json::value* item(const json::value* schema, size_t index) const {
    const json::value* found = nullptr;
    visit(schema, [&](const json::object& keywords) {
      const json::value* first = keywords.if_contains("prefixItems");
      if (found == nullptr && first != nullptr && first->is_array())
        found = first->get_array().if_contains(index);
      if (found == nullptr) found = object_in(keywords, "items");
    });
    return found;
  }

 private:
  static const json::value* object_in(const json::object& keywords, json::string_view name) {
    const json::value* found = keywords.if_contains(name);
    return found != nullptr && found->is_object() ? found : nullptr;
  }
  // Each schema once, so that recursive ones end.
  template <typename Visit>
  void visit(const json::value* schema, const Visit& one) const {
    std::set<const json::value*> seen;
    visit(schema, 0, seen, one);
  }
  template <typename Visit>
  void visit(const json::value* schema, int depth, std::set<const json::value*>& seen,
             const Visit& one) const {
    if (schema == nullptr || !schema->is_object() || depth > kNestedDepthMax) return;
    if (!seen.insert(schema).second) return;
    const json::object& keywords = schema->get_object();
    one(keywords);
    for (const char* name : {"anyOf", "oneOf", "allOf"})
      if (const json::value* list = keywords.if_contains(name); list != nullptr && list->is_array())
        for (const json::value& each : list->get_array()) visit(&each, depth + 1, seen, one);
    const json::value* ref = keywords.if_contains("$ref");
    if (ref == nullptr || !ref->is_string() || !ref->get_string().starts_with("#")) return;
    json::error_code failed;
    visit(root_->find_pointer(ref->get_string().subview(1), failed), depth + 1, seen, one);
  }

  const json::value* const root_;
};

struct NestedElement {
  std::string name, text;
  std::vector<NestedElement> children;
};

json::value nested_literal(const std::string& text, const std::set<std::string>& types) {
  const auto may_be = [&](const char* type) { return types.contains(type); };
  json::error_code failed;
  json::value value = json::parse(text, failed);
  if (may_be("null") && (text.empty() || text == "null")) return nullptr;
  if (failed) {
    if (text.empty() && may_be("array")) return json::array();
    if (text.empty() && may_be("object")) return json::object();
    if (may_be("boolean") && (text == "True" || text == "False")) return text == "True";
    return json::string(text);
  }
  if (may_be("string")) return json::string(text);
  const bool fits = types.empty()
                        ? value.is_bool() || value.is_null()
                        : (value.is_number() && (may_be("integer") || may_be("number"))) ||
                              (value.is_bool() && may_be("boolean")) ||
                              (value.is_array() && may_be("array")) ||
                              (value.is_object() && may_be("object"));
  return fits ? value : json::value(json::string(text));
}

// Of a schema that is followed with the elements.
class NestedValue {
 public:
  explicit NestedValue(const json::value* schema) : schema_(schema) {}

  json::value of(const NestedElement& element, const json::value* schema) const {
    const std::set<std::string> types = schema_.types(schema);
    if (element.children.empty()) return nested_literal(element.text, types);
    const bool items = std::ranges::all_of(
        element.children, [](const NestedElement& child) { return child.name == "item"; });
    const bool is_list = items && (types.contains("array") || !types.contains("object"));
    return is_list ? list_of(element, schema) : object_of(element, schema);
  }

  // Elements of one name are a list.
  json::value object_of(const NestedElement& element, const json::value* schema) const {
    json::object object;
    std::set<std::string> repeated;
    for (const NestedElement& child : element.children) {
      json::value value = of(child, schema_.member(schema, child.name));
      json::value* const there = object.if_contains(child.name);
      if (there == nullptr) {
        object.emplace(child.name, std::move(value));
        continue;
      }
      if (repeated.insert(child.name).second) *there = json::array{*there};
      there->get_array().push_back(std::move(value));
    }
    return object;
  }

 private:
  json::value list_of(const NestedElement& element, const json::value* schema) const {
    json::array list;
    for (const NestedElement& child : element.children)
      list.push_back(of(child, schema_.item(schema, list.size())));
    return list;
  }

  const NestedSchema schema_;
};

// Reads "<name>text" or "</name>" behind a mark; `text` is what stands in front of the next one.
// False where this is no tag, or one that closes another element.
bool take_tag(std::string_view text, std::vector<NestedElement*>& open) {
  while (!text.empty() && is_json_space(text[0])) text.remove_prefix(1);
  const size_t end = text.find('>');
  if (!text.starts_with('<') || end == std::string_view::npos) return false;
  const bool closes = text.starts_with("</");
  const std::string_view name = text.substr(closes ? 2 : 1, end - (closes ? 2 : 1));
  if (closes) {
    if (open.size() < 2 || open.back()->name != name) return false;
    open.pop_back();
    return true;
  }
  if (name.empty() || open.size() > kNestedDepthMax) return false;
  NestedElement& made = open.back()->children.emplace_back();
  made.name = name;
  made.text = text.substr(end + 1);
  open.push_back(&made);
  return true;
}

std::optional<NestedElement> read_elements(std::string_view text) {
  NestedElement root;
  std::vector<NestedElement*> open = {&root};
  size_t mark = text.find(kNestedMark);
  while (mark != std::string_view::npos) {
    text.remove_prefix(mark + std::string_view(kNestedMark).size());
    mark = text.find(kNestedMark);
    if (!take_tag(text.substr(0, mark), open)) return std::nullopt;
  }
  if (open.size() != 1) return std::nullopt;
  return root;
}

const json::value* schema_of_tool(const json::value* tools, std::string_view name) {
  if (tools == nullptr || !tools->is_array()) return nullptr;
  for (const json::value& one : tools->get_array()) {
    const json::object& function = one.at("function").get_object();
    if (function.at("name").get_string() == name) return function.if_contains("parameters");
  }
  return nullptr;
}

class NestedCalls final : public ToolCallParser {
 public:
  explicit NestedCalls(std::shared_ptr<const json::value> tools)
      : tools_(std::move(tools)),
        around_({mark("<tool_call>"), mark("</tool_call>"), mark("<invoke name=\"")}),
        name_end_({"\">"}),
        call_end_({mark("</invoke>")}) {}

 private:
  enum class State { kText, kOpened, kName, kBody };

  static std::string mark(const char* tag) { return std::string(kNestedMark) + tag; }

  void take(char c) override {
    std::string text;
    switch (state_) {
      case State::kText:
      case State::kOpened: {
        const auto found = around_.take(c, text);
        take_plain(text);
        if (found) take_mark(*found);
        return;
      }
      case State::kName:
        if (name_end_.take(c, name_)) {
          state_ = is_name() ? State::kBody : State::kText;
          if (state_ == State::kText) no_call(name_ + name_end_.mark(0));
        } else if (name_.size() > kNestedNameMax) {
          no_call(name_ + name_end_.flush());
        }
        return;
      case State::kBody:
        if (call_end_.take(c, body_)) end_body();
        return;
    }
  }

  bool is_name() const { return !name_.empty() && std::ranges::all_of(name_, is_tool_name_char); }

  // Between the mark of a group and its first call only space may stand.
  void take_plain(std::string_view text) {
    if (state_ == State::kText) return emit_text(text);
    raw_ += text;
    if (!std::ranges::all_of(text, is_json_space)) no_call("");
  }

  void take_mark(size_t found) {
    if (found == 1) {
      if (state_ == State::kOpened || num_calls() == 0) return no_call(around_.mark(1));
      return drop_space();
    }
    raw_ += around_.mark(found);
    state_ = found == 0 ? State::kOpened : State::kName;
    name_.clear();
  }

  void end_body() {
    const std::string body = std::exchange(body_, {});
    const auto arguments = nested_arguments_to_json(body, tools_.get(), name_);
    if (!arguments) return no_call(name_ + name_end_.mark(0) + body + call_end_.mark(0));
    raw_.clear();
    state_ = State::kText;
    begin_call(name_);
    emit_arguments(*arguments);
  }

  // What was read since the mark is text, with `rest` behind it.
  void no_call(const std::string& rest) {
    state_ = State::kText;
    emit_text(std::exchange(raw_, {}) + rest);
  }

  void end() override {
    std::string rest = around_.flush();
    if (state_ == State::kName) rest += name_ + name_end_.flush();
    if (state_ == State::kBody) rest += name_ + name_end_.mark(0) + body_ + call_end_.flush();
    no_call(rest);
  }

  const std::shared_ptr<const json::value> tools_;
  MarkFinder around_, name_end_, call_end_;
  State state_ = State::kText;
  std::string raw_;  // the marks since the text, until a call is certain
  std::string name_, body_;
};

}  // namespace

std::optional<std::string> nested_arguments_to_json(std::string_view text, const json::value* tools,
                                                    std::string_view tool) {
  const auto root = read_elements(text);
  if (!root) return std::nullopt;
  const json::value* const schema = schema_of_tool(tools, tool);
  return json::serialize(NestedValue(schema).object_of(*root, schema));
}

std::unique_ptr<ToolCallParser> make_nested_calls(std::shared_ptr<const json::value> tools) {
  return std::make_unique<NestedCalls>(std::move(tools));
}

}  // namespace espalier
