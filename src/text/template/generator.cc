// Python's generators, as far as templates can distinguish them from lists. A generator is always
// true, has neither length nor items, cannot become JSON, and is empty after one iteration. Unlike
// Python's, its items are computed when it is made.
#include "text/template/interpreter.h"

namespace espalier::jinja {
namespace {

class Generator final : public Object {
 public:
  Generator(std::vector<Value> items, std::string type_name)
      : items_(std::move(items)), type_name_(std::move(type_name)) {}
  std::string type_name() const override { return type_name_; }
  std::vector<Value> take() { return std::exchange(items_, {}); }

 private:
  std::vector<Value> items_;
  const std::string type_name_;
};

Generator* as_generator(const Value& value) {
  return value.is_object() ? dynamic_cast<Generator*>(value.object().get()) : nullptr;
}

}  // namespace

Value make_generator(std::vector<Value> items, std::string type_name) {
  return Value(
      std::shared_ptr<Object>(std::make_shared<Generator>(std::move(items), std::move(type_name))));
}
bool is_generator(const Value& value) { return as_generator(value) != nullptr; }
std::vector<Value> take_generated(const Value& value) { return as_generator(value)->take(); }

}  // namespace espalier::jinja
