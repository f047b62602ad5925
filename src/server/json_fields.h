// JSON bodies read by tables of fields. One table serves the parser, its error messages and
// /openapi.json, so the three cannot disagree. The rules, for every body:
//   - an explicit null is the default; unknown fields are ignored;
//   - a wrong type is an error that names the field, what it is and what is expected;
//   - a field that is known and not supported is refused by name once it is set to something.
// The functions here throw nothing and are pure.
#pragma once

#include <boost/json/fwd.hpp>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "base/status.h"
#include "engine/requests/request.h"
#include "seams/request_fields.h"
#include "seams/sampling.h"
#include "seams/vocab_view.h"

namespace espalier::server {

// Parses a body. kInvalidArgument says where it stops being JSON; invalid UTF-8, nesting beyond 512
// levels and anything after the value are errors. What a large body takes is charged first, as
// JsonChargeScope::charge() says.
Result<boost::json::value> parse_json(std::string_view text);

// "a string (\"hot\")", shortened.
std::string describe(const boost::json::value& value);
// Not null, false, "", [] or {}, nor a list of only such.
bool is_set(const boost::json::value& value);

// Of a list that has not an entry for each prompt.
Status wrong_size(std::string_view name, size_t num_entries, size_t num_prompts);

// One value for all items of a batch, or one for each.
template <typename X>
struct PerItem {
  std::deque<X> values;  // empty: absent. (A deque: std::vector<bool> has no elements to point at)
  bool is_list = false;

  // Item i's value, null when it has none. REQUIRES: check_size() passed.
  const X* at(size_t i) const {
    if (values.empty()) return nullptr;
    return &values[is_list ? i : 0];
  }
  Status check_size(std::string_view name, size_t num_items) const {
    if (!is_list || values.size() == num_items) return {};
    return wrong_size(name, values.size(), num_items);
  }
};

// Each reads a value that is not null into `out`; `where` is the field's name with its path. A
// number outside the type's range is an error. 3.0 counts as the integer 3.
using Json = boost::json::value;
Status read_value(const Json& value, std::string_view where, bool& out);
Status read_value(const Json& value, std::string_view where, int32_t& out);
Status read_value(const Json& value, std::string_view where, uint64_t& out);  // negative: wraps
Status read_value(const Json& value, std::string_view where, float& out);
Status read_value(const Json& value, std::string_view where, std::string& out);
Status read_value(const Json& value, std::string_view where, EarlyStopping& out);
Status read_value(const Json& value, std::string_view where, std::vector<std::string>& out);
Status read_value(const Json& value, std::string_view where, std::vector<TokenId>& out);
Status read_value(const Json& value, std::string_view where, std::map<TokenId, float>& out);

template <typename X>
Status read_value(const Json& value, std::string_view where, std::optional<X>& out) {
  X inner{};
  ESP_RETURN_IF_ERROR(read_value(value, where, inner));
  out = std::move(inner);
  return {};
}

// The elements of a list, with their places; the value itself when it is none. kInvalidArgument for
// more than one call may have.
using Elements = std::vector<std::pair<const Json*, std::string>>;
Result<Elements> elements(const Json& value, std::string_view where, bool of_lists, bool& is_list);
bool is_null(const Json& value);

template <typename X>
Status read_value(const Json& value, std::string_view where, PerItem<X>& out) {
  constexpr bool of_lists = std::is_same_v<X, std::vector<TokenId>>;
  ESP_ASSIGN_OR_RETURN(const Elements all, elements(value, where, of_lists, out.is_list));
  for (const auto& [element, place] : all) {
    X item{};
    if (!is_null(*element)) ESP_RETURN_IF_ERROR(read_value(*element, place, item));
    out.values.push_back(std::move(item));
  }
  return {};
}

// The samples of one call have a bound, for each has its place in the answer.
Status check_samples(size_t num_prompts, int32_t n);

// What /openapi.json says of each type: a JSON Schema.
template <typename X>
struct SchemaOf;
template <>
struct SchemaOf<bool> {
  static std::string get() { return R"({"type":"boolean"})"; }
};
template <>
struct SchemaOf<int32_t> {
  static std::string get() { return R"({"type":"integer"})"; }
};
template <>
struct SchemaOf<uint64_t> : SchemaOf<int32_t> {};
template <>
struct SchemaOf<float> {
  static std::string get() { return R"({"type":"number"})"; }
};
template <>
struct SchemaOf<std::string> {
  static std::string get() { return R"({"type":"string"})"; }
};
template <>
struct SchemaOf<EarlyStopping> {
  static std::string get() { return R"({"enum":[true,false,"never"]})"; }
};
template <>
struct SchemaOf<std::vector<std::string>> {
  static std::string get() {
    return R"({"anyOf":[{"type":"string"},{"type":"array","items":{"type":"string"}}]})";
  }
};
template <>
struct SchemaOf<std::vector<TokenId>> {
  static std::string get() { return R"({"type":"array","items":{"type":"integer"}})"; }
};
template <>
struct SchemaOf<std::map<TokenId, float>> {
  static std::string get() {
    return R"({"type":"object","additionalProperties":{"type":"number"}})";
  }
};
template <typename X>
struct SchemaOf<std::optional<X>> : SchemaOf<X> {};
template <typename X>
struct SchemaOf<PerItem<X>> {
  static std::string get() {
    const std::string one = SchemaOf<X>::get();
    return R"({"anyOf":[)" + one + R"(,{"type":"array","items":)" + one + "}]}";
  }
};

// One field of a body that is read into a T.
template <typename T>
struct Field {
  using Read = std::function<Status(const Json& value, std::string_view where, T& out)>;
  std::string name;
  std::string schema;  // JSON Schema; empty: taken and without effect
  std::string help;
  Read read;
  std::function<void(T&)> read_null;  // where null says more than absence
  bool required = false;
};

template <typename T>
using Fields = std::vector<Field<T>>;

// A field that is read into what `get` (T& -> X&) names.
template <typename T, typename Get>
Field<T> field(std::string name, std::string help, Get get) {
  using X = std::remove_cvref_t<decltype(get(std::declval<T&>()))>;
  return {std::move(name), SchemaOf<X>::get(), std::move(help),
          [get](const Json& value, std::string_view where, T& out) {
            return read_value(value, where, get(out));
          },
          nullptr};
}
template <typename T, typename C, typename X>
Field<T> field(std::string name, std::string help, X C::*member) {
  return field<T>(std::move(name), std::move(help), [member](T& t) -> X& { return t.*member; });
}
// The description of a sampling field in /openapi.json: its meaning, its range, its default.
std::string field_help(const FieldRow& row);

// A field with its own reader.
template <typename T>
Field<T> custom(std::string name, std::string schema, std::string help,
                typename Field<T>::Read read) {
  return {std::move(name), std::move(schema), std::move(help), std::move(read), nullptr};
}
// The sampling fields that `place` takes, by the table of request fields; `sampling` is
// (T& -> SamplingParams&) or a struct derived from it.
template <typename T, typename Sampling>
void append_sampling_fields(Fields<T>& fields, FieldPlaces place, Sampling sampling) {
  for_each_request_field([&](const auto& row) {
    if (!row.in(place)) return;
    const std::string_view name = place == kInGenerate ? row.name : row.openai_name();
    const auto get = [ sampling, param = row.param ](T & t) -> auto& { return param(sampling(t)); };
    fields.push_back(field<T>(std::string(name), field_help(row), get));
  });
}

// Known, harmless, without effect here.
template <typename T>
Field<T> ignored(std::string name) {
  return {std::move(name), "", "accepted, without effect", nullptr, nullptr};
}
// Known and not supported: kUnimplemented once it is set to something. `until` ends the message.
Status refuse(const Json& value, std::string_view where, std::string_view until);
template <typename T>
Field<T> refused(std::string name, std::string until = "is not supported yet") {
  auto read = [until](const Json& value, std::string_view where, T&) {
    return refuse(value, where, until);
  };
  return {std::move(name), "", "refused when set: it " + until, std::move(read), nullptr};
}

// A name, or {"name", "scale", "layers": [first, last]}.
Status read_control_vector(const Json& value, std::string_view where,
                           std::optional<ControlRequest>& out);
template <typename T, typename Get>
Field<T> control_vector_field(Get get) {
  return custom<T>(
      "control_vector",
      R"({"anyOf":[{"type":"string"},{"type":"object","required":["name"],"properties":{"name":{"type":"string"},"scale":{"type":"number"},"layers":{"type":"array","items":{"type":"integer"}}}}]})",
      "a vector of --control-vector that is added to hidden states: its name, or an object with "
      "name, scale (1) and layers (the first and the last, all unless stated)",
      [get](const Json& value, std::string_view where, T& out) {
        return read_control_vector(value, where, get(out));
      });
}

// Calls `visit` for each member of an object; kInvalidArgument when `value` is no object.
Status for_each_member(
    const Json& value, std::string_view where,
    const std::function<Status(std::string_view name, const Json& member)>& visit);

// Reads an object by its table. `prefix` stands before names in messages: "sampling_params.".
template <typename T>
Status read_fields(const Fields<T>& fields, const Json& value, std::string_view prefix, T& out) {
  std::vector<bool> seen(fields.size(), false);
  ESP_RETURN_IF_ERROR(
      for_each_member(value, prefix, [&](std::string_view name, const Json& member) -> Status {
        for (size_t i = 0; i < fields.size(); ++i) {
          if (fields[i].name != name) continue;
          if (is_null(member)) {
            if (fields[i].read_null) fields[i].read_null(out);
            return {};
          }
          seen[i] = true;
          return fields[i].read ? fields[i].read(member, std::string(prefix).append(name), out)
                                : Status();
        }
        return {};
      }));
  for (size_t i = 0; i < fields.size(); ++i) {
    if (fields[i].required && !seen[i]) {
      return invalid_argument("{}{} is missing", prefix, fields[i].name);
    }
  }
  return {};
}

// Hands the body's JSON to `read`. `malformed` is set for a body that cannot be read (not JSON, a
// wrong type) and cleared for one with a field that is refused by name.
Status read_body(std::string_view body, bool& malformed,
                 const std::function<Status(const Json&)>& read);
template <typename T>
Result<T> parse_body(const Fields<T>& fields, std::string_view body, bool& malformed) {
  T out;
  ESP_RETURN_IF_ERROR(read_body(
      body, malformed, [&](const Json& value) { return read_fields(fields, value, "", out); }));
  return out;
}

// The JSON Schema of an object read by such a table.
template <typename T>
std::string schema_of(const Fields<T>& fields);
std::string object_schema(
    const std::vector<std::tuple<std::string, std::string, std::string, bool>>& fields);
template <typename T>
std::string schema_of(const Fields<T>& fields) {
  std::vector<std::tuple<std::string, std::string, std::string, bool>> rows;
  for (const Field<T>& f : fields) rows.emplace_back(f.name, f.schema, f.help, f.required);
  return object_schema(rows);
}

}  // namespace espalier::server
