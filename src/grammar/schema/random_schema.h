// Random satisfiable schemas for tests: of uniqueItems, contains, propertyNames and counts, which
// the grammar enforces with checks and listed values.
//
// Thread safety: none; an object belongs to one test.
#pragma once

#include <algorithm>
#include <boost/json.hpp>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "base/rng.h"

namespace espalier::grammar {

// Draws an instance and a schema that it satisfies.
class RandomSchema {
 public:
  explicit RandomSchema(uint64_t seed) : rng_(seed) {}

  struct Pair {
    boost::json::value instance;
    boost::json::object schema;
  };
  Pair draw(int depth) {
    switch (rng_.below(depth > 0 ? 6 : 3)) {
      case 0:
      case 1:
      case 2:
        return scalar();
      case 3:
        return object(depth);
      default:
        return array(depth);
    }
  }

 private:
  size_t up_to(size_t most) { return static_cast<size_t>(rng_.below(most + 1)); }
  bool one_in(uint64_t count) { return rng_.below(count) == 0; }

  boost::json::value leaf() {
    switch (rng_.below(4)) {
      case 0:
        return static_cast<int64_t>(rng_.below(6));
      case 1:
        return rng_.below(2) == 0;
      case 2:
        return nullptr;
      default:
        return boost::json::value(
            std::string(1 + up_to(2), static_cast<char>('a' + rng_.below(4))));
    }
  }

  Pair scalar() {
    boost::json::value instance = leaf();
    boost::json::object schema;
    if (one_in(2)) {
      boost::json::array values = {instance};
      for (size_t i = up_to(4); i > 0; --i) values.push_back(leaf());
      schema["enum"] = distinct(std::move(values));
    } else if (instance.is_string()) {
      schema["type"] = "string";
      schema["maxLength"] = instance.get_string().size() + up_to(2);
    } else if (instance.is_int64()) {
      schema["type"] = "integer";
      schema["minimum"] = instance.get_int64() - static_cast<int64_t>(up_to(3));
      schema["maximum"] = instance.get_int64() + static_cast<int64_t>(up_to(9));
    } else {
      schema["type"] = instance.is_bool() ? "boolean" : "null";
    }
    return {instance, schema};
  }

  static boost::json::array distinct(boost::json::array values) {
    boost::json::array kept;
    for (boost::json::value& value : values) {
      if (std::ranges::find(kept, value) == kept.end()) kept.push_back(std::move(value));
    }
    return kept;
  }

  Pair array(int depth) {
    Pair item = draw(depth - 1);
    boost::json::array instance;
    boost::json::object schema = {{"type", "array"}};
    if (one_in(3)) {
      instance.push_back(item.instance);
      schema["items"] = item.schema;
    } else {
      boost::json::array pool;
      for (size_t i = 1 + up_to(5); i > 0; --i) pool.push_back(leaf());
      pool = distinct(std::move(pool));
      for (size_t i = up_to(5); i > 0; --i) instance.push_back(pool[up_to(pool.size() - 1)]);
      schema["items"] = {{"enum", pool}};
    }
    if (one_in(2)) {
      instance = distinct(std::move(instance));
      schema["uniqueItems"] = true;
    }
    if (!instance.empty() && one_in(2)) add_contains(instance, schema);
    if (one_in(2))
      schema["minItems"] = instance.size() - up_to(std::min<size_t>(instance.size(), 2));
    if (one_in(2)) schema["maxItems"] = instance.size() + up_to(3);
    return {instance, schema};
  }

  void add_contains(const boost::json::array& instance, boost::json::object& schema) {
    boost::json::array wanted = {instance[up_to(instance.size() - 1)]};
    if (one_in(2)) wanted.push_back(leaf());
    wanted = distinct(std::move(wanted));
    const auto count =
        static_cast<size_t>(std::ranges::count_if(instance, [&](const boost::json::value& v) {
          return std::ranges::find(wanted, v) != wanted.end();
        }));
    schema["contains"] = {{"enum", wanted}};
    if (one_in(2)) schema["minContains"] = count - up_to(count);
    if (one_in(2)) schema["maxContains"] = count + up_to(2);
  }

  Pair object(int depth) {
    const std::vector<std::string> names = {"a", "b", "cd", "ef", "ghi"};
    boost::json::object instance, properties;
    boost::json::array required, allowed;
    for (const std::string& name : names) {
      if (one_in(2)) continue;
      Pair member = draw(depth - 1);
      allowed.emplace_back(name);
      if (one_in(2)) {
        properties[name] = member.schema;
        instance[name] = member.instance;
        if (one_in(3)) required.emplace_back(name);
      } else {
        instance[name] = nullptr;
      }
    }
    boost::json::object schema = {{"type", "object"},
                                  {"properties", properties},
                                  {"additionalProperties", {{"type", "null"}}}};
    if (!required.empty()) schema["required"] = required;
    if (one_in(2)) {
      if (one_in(2)) allowed.emplace_back("x");
      schema["propertyNames"] = one_in(3) ? boost::json::object{{"maxLength", 3}}
                                          : boost::json::object{{"enum", allowed}};
    }
    if (one_in(2))
      schema["minProperties"] = instance.size() - up_to(std::min<size_t>(instance.size(), 2));
    if (one_in(2)) schema["maxProperties"] = instance.size() + up_to(2);
    return {instance, schema};
  }

  Rng rng_;
};

}  // namespace espalier::grammar
