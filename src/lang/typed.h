// Typed values: numbers, truth values and described structs out of a variable's text. The functions
// are pure and thread-safe. Expected failures are a Status that names the member.
//
//   struct Person { std::string name; int age; };
//   ESPALIER_FIELDS(Person, name, age)
//
//   s += gen<Person>("person");               // constrained to the JSON schema of Person
//   const Person p = s.get<Person>("person");
#pragma once

#include <boost/json/fwd.hpp>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/status.h"
#include "lang/state.h"

namespace espalier::lang {

// ---- reading JSON; errors name `where` ("person.age") ----
using JsonValue = boost::json::value;
Status read_json(const JsonValue& value, const std::string& where, bool& out);
Status read_json(const JsonValue& value, const std::string& where, int64_t& out);
Status read_json(const JsonValue& value, const std::string& where, double& out);
Status read_json(const JsonValue& value, const std::string& where, std::string& out);

namespace internal {

// A parsed document, behind a pointer so that no JSON library is in the way.
class JsonDocument {
 public:
  static Result<JsonDocument> parse(std::string_view text);
  JsonDocument(JsonDocument&&) noexcept;
  ~JsonDocument();
  const JsonValue& root() const { return *root_; }

 private:
  explicit JsonDocument(std::unique_ptr<JsonValue> root);
  std::unique_ptr<JsonValue> root_;
};
const JsonValue* json_member(const JsonValue& value, std::string_view name);  // null: none
Result<std::vector<const JsonValue*>> json_items(const JsonValue& value, const std::string& where);
bool json_is_null(const JsonValue* value);

}  // namespace internal

// A struct whose fields ESPALIER_FIELDS names.
template <typename T>
concept Described = requires {
  espalier_fields(static_cast<const T*>(nullptr));
};

template <typename T>
Status read_json(const JsonValue& value, const std::string& where, std::vector<T>& out);
template <typename T>
Status read_json(const JsonValue& value, const std::string& where, std::optional<T>& out);
template <std::integral T>
requires(!std::is_same_v<T, bool> && !std::is_same_v<T, int64_t>) Status
    read_json(const JsonValue& value, const std::string& where, T& out) {
  int64_t wide = 0;
  ESP_RETURN_IF_ERROR(read_json(value, where, wide));
  out = static_cast<T>(wide);
  if (static_cast<int64_t>(out) != wide)
    return invalid_argument("{} is {}, which is too large for its type", where, wide);
  return {};
}
inline Status read_json(const JsonValue& value, const std::string& where, float& out) {
  double wide = 0;
  ESP_RETURN_IF_ERROR(read_json(value, where, wide));
  out = static_cast<float>(wide);
  return {};
}
template <Described T>
Status read_json(const JsonValue& value, const std::string& where, T& out) {
  Status status;
  std::apply(
      [&](const auto&... field) {
        const auto read = [&](const auto& f) {
          if (!status.ok()) return;
          const JsonValue* member = internal::json_member(value, f.first);
          auto& target = out.*f.second;
          using Target = std::remove_cvref_t<decltype(target)>;
          const std::string place = where + "." + f.first;
          if (member != nullptr) {
            status = read_json(*member, place, target);
          } else if constexpr (!requires {
                                 typename Target::value_type;
                                 target.has_value();
                               }) {
            status = invalid_argument("{} is missing", place);
          }
        };
        (read(field), ...);
      },
      espalier_fields(static_cast<const T*>(nullptr)));
  return status;
}
template <typename T>
Status read_json(const JsonValue& value, const std::string& where, std::vector<T>& out) {
  ESP_ASSIGN_OR_RETURN(const auto items, internal::json_items(value, where));
  out.clear();
  for (size_t i = 0; i < items.size(); ++i)
    ESP_RETURN_IF_ERROR(
        read_json(*items[i], where + "[" + std::to_string(i) + "]", out.emplace_back()));
  return {};
}
template <typename T>
Status read_json(const JsonValue& value, const std::string& where, std::optional<T>& out) {
  out.reset();
  if (internal::json_is_null(&value)) return {};
  return read_json(value, where, out.emplace());
}

// ---- JSON schemas ----
template <typename T>
struct SchemaOf;
template <>
struct SchemaOf<bool> {
  static std::string get() { return R"({"type":"boolean"})"; }
};
template <std::integral T>
struct SchemaOf<T> {
  static std::string get() { return R"({"type":"integer"})"; }
};
template <std::floating_point T>
struct SchemaOf<T> {
  static std::string get() { return R"({"type":"number"})"; }
};
template <>
struct SchemaOf<std::string> {
  static std::string get() { return R"({"type":"string"})"; }
};
template <typename T>
struct SchemaOf<std::vector<T>> {
  static std::string get() { return R"({"type":"array","items":)" + SchemaOf<T>::get() + "}"; }
};
template <typename T>
struct SchemaOf<std::optional<T>> : SchemaOf<T> {};
template <Described T>
struct SchemaOf<T> {
  static std::string get() {
    std::string properties, required;
    std::apply(
        [&](const auto&... field) {
          const auto add = [&](const auto& f) {
            using Target = std::remove_cvref_t<decltype(std::declval<T&>().*f.second)>;
            properties += (properties.empty() ? "\"" : ",\"") + std::string(f.first) +
                          "\":" + SchemaOf<Target>::get();
            if constexpr (!requires(Target t) { t.has_value(); })
              required += (required.empty() ? "\"" : ",\"") + std::string(f.first) + "\"";
          };
          (add(field), ...);
        },
        espalier_fields(static_cast<const T*>(nullptr)));
    return R"({"type":"object","properties":{)" + properties + R"(},"required":[)" + required +
           R"(],"additionalProperties":false})";
  }
};

// ---- gen<T>, Value::as<T>, State::get<T> ----

namespace internal {
// "+34" and "1.": numbers as models write them, JSON or not. kInvalidArgument quotes the text.
Status read_text(const std::string& text, bool& out);
Status read_text(const std::string& text, int64_t& out);
Status read_text(const std::string& text, double& out);
}  // namespace internal

// Of a text that a gen<T> wrote.
template <typename T>
Result<T> parse_as(const std::string& text) {
  if constexpr (std::is_same_v<T, std::string>) {
    return text;
  } else if constexpr (std::is_same_v<T, bool>) {
    bool value = false;
    ESP_RETURN_IF_ERROR(internal::read_text(text, value));
    return value;
  } else if constexpr (std::is_integral_v<T>) {
    int64_t wide = 0;
    ESP_RETURN_IF_ERROR(internal::read_text(text, wide));
    if (static_cast<int64_t>(static_cast<T>(wide)) != wide)
      return fail(invalid_argument("{} is too large for its type", text));
    return static_cast<T>(wide);
  } else if constexpr (std::is_floating_point_v<T>) {
    double wide = 0;
    ESP_RETURN_IF_ERROR(internal::read_text(text, wide));
    return static_cast<T>(wide);
  } else {
    ESP_ASSIGN_OR_RETURN(const auto document, internal::JsonDocument::parse(text));
    T value{};
    ESP_RETURN_IF_ERROR(read_json(document.root(), "value", value));
    return value;
  }
}

// A gen constrained to what parse_as<T> reads: a number, True or False, or JSON of T's schema.
template <typename T>
Expr gen(std::string name, GenOptions options = {}, Location where = Here::current()) {
  if constexpr (std::is_same_v<T, bool>) {
    options.dtype = Dtype::kBool;
  } else if constexpr (std::is_integral_v<T>) {
    options.dtype = Dtype::kInt;
  } else if constexpr (std::is_floating_point_v<T>) {
    options.dtype = Dtype::kFloat;
  } else if constexpr (!std::is_same_v<T, std::string>) {
    options.json_schema = SchemaOf<T>::get();
  }
  return gen(std::move(name), std::move(options), where);
}

template <typename T>
T Value::as() const {
  Result<T> value = parse_as<T>(str());
  if (!value) throw Error(std::move(value).error(), where_);
  return std::move(*value);
}

template <typename T>
T State::get(const Name& name) const {
  return (*this)[name].template as<T>();
}

}  // namespace espalier::lang

// Names the fields of a struct, in its namespace and after it; up to 16.
#define ESPALIER_FIELDS(Type, ...)                                 \
  [[maybe_unused]] inline auto espalier_fields(const Type*) {      \
    return std::make_tuple(ESPALIER_FOR_EACH_(Type, __VA_ARGS__)); \
  }
#define ESPALIER_FIELD_(Type, field) std::make_pair(#field, &Type::field)
#define ESPALIER_PICK_(_1, _2, _3, _4, _5, _6, _7, _8, _9, _10, _11, _12, _13, _14, _15, _16, n, \
                       ...)                                                                      \
  n
#define ESPALIER_FOR_EACH_(T, ...)                                                        \
  ESPALIER_PICK_(__VA_ARGS__, ESPALIER_F16_, ESPALIER_F15_, ESPALIER_F14_, ESPALIER_F13_, \
                 ESPALIER_F12_, ESPALIER_F11_, ESPALIER_F10_, ESPALIER_F9_, ESPALIER_F8_, \
                 ESPALIER_F7_, ESPALIER_F6_, ESPALIER_F5_, ESPALIER_F4_, ESPALIER_F3_,    \
                 ESPALIER_F2_, ESPALIER_F1_, )                                            \
  (T, __VA_ARGS__)
#define ESPALIER_F1_(T, a) ESPALIER_FIELD_(T, a)
#define ESPALIER_F2_(T, a, ...) ESPALIER_FIELD_(T, a), ESPALIER_F1_(T, __VA_ARGS__)
#define ESPALIER_F3_(T, a, ...) ESPALIER_FIELD_(T, a), ESPALIER_F2_(T, __VA_ARGS__)
#define ESPALIER_F4_(T, a, ...) ESPALIER_FIELD_(T, a), ESPALIER_F3_(T, __VA_ARGS__)
#define ESPALIER_F5_(T, a, ...) ESPALIER_FIELD_(T, a), ESPALIER_F4_(T, __VA_ARGS__)
#define ESPALIER_F6_(T, a, ...) ESPALIER_FIELD_(T, a), ESPALIER_F5_(T, __VA_ARGS__)
#define ESPALIER_F7_(T, a, ...) ESPALIER_FIELD_(T, a), ESPALIER_F6_(T, __VA_ARGS__)
#define ESPALIER_F8_(T, a, ...) ESPALIER_FIELD_(T, a), ESPALIER_F7_(T, __VA_ARGS__)
#define ESPALIER_F9_(T, a, ...) ESPALIER_FIELD_(T, a), ESPALIER_F8_(T, __VA_ARGS__)
#define ESPALIER_F10_(T, a, ...) ESPALIER_FIELD_(T, a), ESPALIER_F9_(T, __VA_ARGS__)
#define ESPALIER_F11_(T, a, ...) ESPALIER_FIELD_(T, a), ESPALIER_F10_(T, __VA_ARGS__)
#define ESPALIER_F12_(T, a, ...) ESPALIER_FIELD_(T, a), ESPALIER_F11_(T, __VA_ARGS__)
#define ESPALIER_F13_(T, a, ...) ESPALIER_FIELD_(T, a), ESPALIER_F12_(T, __VA_ARGS__)
#define ESPALIER_F14_(T, a, ...) ESPALIER_FIELD_(T, a), ESPALIER_F13_(T, __VA_ARGS__)
#define ESPALIER_F15_(T, a, ...) ESPALIER_FIELD_(T, a), ESPALIER_F14_(T, __VA_ARGS__)
#define ESPALIER_F16_(T, a, ...) ESPALIER_FIELD_(T, a), ESPALIER_F15_(T, __VA_ARGS__)
