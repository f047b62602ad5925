// jinja2's tests (jinja2/tests.py): what follows `is`.
#include <algorithm>
#include <array>

#include "text/template/interpreter.h"

namespace espalier::jinja {
namespace {

using Bound = std::vector<std::optional<Value>>;

Result<Value> argument(std::string_view test, const Arguments& arguments) {
  ESP_ASSIGN_OR_RETURN(const Bound bound, bind(test, arguments, {"other"}));
  if (!bound[0]) {
    return fail(template_error(fmt::format("the test '{}' wants an argument", test)));
  }
  return *bound[0];
}

template <typename Fn>
Result<bool> ordered(std::string_view test, const Value& value, const Arguments& arguments,
                     Fn&& holds) {
  ESP_ASSIGN_OR_RETURN(const Value other, argument(test, arguments));
  ESP_ASSIGN_OR_RETURN(const int order, compare(value, other));
  return holds(order);
}

Result<int64_t> integer(std::string_view test, const Value& value) {
  if (value.is_undefined()) return fail(template_error(value.why_undefined()));
  if (value.is_number() && !value.is_float()) return value.integer();
  return fail(template_error(
      fmt::format("the test '{}' wants an integer, not {}", test, value.type_name())));
}

Result<bool> test_divisible_by(Interpreter&, const Value& value, const Arguments& arguments) {
  ESP_ASSIGN_OR_RETURN(const Value other, argument("divisibleby", arguments));
  ESP_ASSIGN_OR_RETURN(const int64_t divisor, integer("divisibleby", other));
  ESP_ASSIGN_OR_RETURN(const int64_t dividend, integer("divisibleby", value));
  if (divisor == 0) return fail(template_error("division by zero"));
  return divisor == -1 || dividend % divisor == 0;
}

Result<bool> test_equal(Interpreter&, const Value& value, const Arguments& arguments) {
  ESP_ASSIGN_OR_RETURN(const Value other, argument("equalto", arguments));
  return equal(value, other);
}
Result<bool> test_not_equal(Interpreter&, const Value& value, const Arguments& arguments) {
  ESP_ASSIGN_OR_RETURN(const Value other, argument("ne", arguments));
  return !equal(value, other);
}
Result<bool> test_in(Interpreter&, const Value& value, const Arguments& arguments) {
  ESP_ASSIGN_OR_RETURN(const Value other, argument("in", arguments));
  return contains(other, value);
}
Result<bool> test_same_as(Interpreter&, const Value& value, const Arguments& arguments) {
  ESP_ASSIGN_OR_RETURN(const Value other, argument("sameas", arguments));
  return value.same_as(other);
}
Result<bool> test_less(Interpreter&, const Value& value, const Arguments& a) {
  return ordered("lt", value, a, [](int order) { return order < 0; });
}
Result<bool> test_at_most(Interpreter&, const Value& value, const Arguments& a) {
  return ordered("le", value, a, [](int order) { return order <= 0; });
}
Result<bool> test_greater(Interpreter&, const Value& value, const Arguments& a) {
  return ordered("gt", value, a, [](int order) { return order > 0; });
}
Result<bool> test_at_least(Interpreter&, const Value& value, const Arguments& a) {
  return ordered("ge", value, a, [](int order) { return order >= 0; });
}
Result<bool> test_even(Interpreter&, const Value& value, const Arguments&) {
  ESP_ASSIGN_OR_RETURN(const int64_t i, integer("even", value));
  return i % 2 == 0;
}
Result<bool> test_odd(Interpreter&, const Value& value, const Arguments&) {
  ESP_ASSIGN_OR_RETURN(const int64_t i, integer("odd", value));
  return i % 2 != 0;
}
Result<bool> test_upper(Interpreter& i, const Value& value, const Arguments&) {
  ESP_ASSIGN_OR_RETURN(const Value result, call_method(i, Value(value.str()), "isupper", {}));
  return result.truthy();
}
Result<bool> test_lower(Interpreter& i, const Value& value, const Arguments&) {
  ESP_ASSIGN_OR_RETURN(const Value result, call_method(i, Value(value.str()), "islower", {}));
  return result.truthy();
}

// Tests of a value alone.
using Property = bool (*)(const Value&);
constexpr std::pair<std::string_view, Property> kProperties[] = {
    {"boolean", [](const Value& v) { return v.is_bool(); }},
    {"callable",
     [](const Value& v) {  // of jinja2's undefined values, too, which fail when they are called
       return v.is_undefined() || (v.is_object() && v.object()->callable());
     }},
    {"defined", [](const Value& v) { return !v.is_undefined(); }},
    {"escaped", [](const Value& v) { return v.is_markup(); }},
    {"false", [](const Value& v) { return v.is_bool() && !v.boolean(); }},
    {"filter", [](const Value& v) { return v.is_string() && find_filter(v.string()) != nullptr; }},
    {"float", [](const Value& v) { return v.is_float(); }},
    {"integer", [](const Value& v) { return v.is_integer(); }},
    {"iterable",
     [](const Value& v) {
       return v.is_string() || v.is_list() || v.is_dict() || v.is_undefined() || is_generator(v);
     }},
    {"mapping", [](const Value& v) { return v.is_dict(); }},
    {"none", [](const Value& v) { return v.is_none(); }},
    {"number", [](const Value& v) { return v.is_number(); }},
    {"sequence",
     [](const Value& v) {
       return v.is_string() || v.is_list() || v.is_dict() || v.is_undefined();
     }},
    {"string", [](const Value& v) { return v.is_string(); }},
    {"test", [](const Value& v) { return v.is_string() && find_test(v.string()) != nullptr; }},
    {"true", [](const Value& v) { return v.is_bool() && v.boolean(); }},
    {"undefined", [](const Value& v) { return v.is_undefined(); }},
};

template <size_t I>
Result<bool> test_property(Interpreter&, const Value& value, const Arguments&) {
  return kProperties[I].second(value);
}

template <size_t... I>
constexpr auto property_tests(std::index_sequence<I...>) {
  return std::array<std::pair<std::string_view, Test>, sizeof...(I)>{
      std::pair<std::string_view, Test>{kProperties[I].first, test_property<I>}...};
}
constexpr auto kPropertyTests = property_tests(std::make_index_sequence<std::size(kProperties)>());

constexpr std::pair<std::string_view, Test> kTests[] = {
    {"divisibleby", test_divisible_by},
    {"==", test_equal},
    {"eq", test_equal},
    {"equalto", test_equal},
    {"!=", test_not_equal},
    {"ne", test_not_equal},
    {"<", test_less},
    {"lt", test_less},
    {"lessthan", test_less},
    {"<=", test_at_most},
    {"le", test_at_most},
    {">", test_greater},
    {"gt", test_greater},
    {"greaterthan", test_greater},
    {">=", test_at_least},
    {"ge", test_at_least},
    {"in", test_in},
    {"sameas", test_same_as},
    {"even", test_even},
    {"odd", test_odd},
    {"upper", test_upper},
    {"lower", test_lower},
};

}  // namespace

Test find_test(std::string_view name) {
  for (const auto& [key, test] : kTests) {
    if (key == name) return test;
  }
  for (const auto& [key, test] : kPropertyTests) {
    if (key == name) return test;
  }
  return nullptr;
}

}  // namespace espalier::jinja
