// The names and keys that one formula is about: properties in their order, or positions of items,
// and classes of the keys that are not declared.
//
// A first pass over the schemas collects what is mentioned; fix_objects() or fix_arrays() then
// decides the names and classes; a second pass uses them.
#pragma once

#include <boost/json.hpp>
#include <cstddef>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "grammar/schema/compiler.h"

namespace espalier::grammar {

// Returns whether a schema plainly holds of every value.
bool says_nothing(const boost::json::value& schema);

// Not thread-safe. Borrows the compiler; elements borrow the schema's document.
class FormulaNames {
 public:
  // What the keys of a kind, none of them declared, have in common.
  struct KeyClass {
    ExprId key = 0;
    std::set<std::string> patterns;             // those that they match
    std::set<const boost::json::value*> named;  // schemas of propertyNames that they satisfy
  };

  explicit FormulaNames(SchemaCompiler& compiler) : c_(compiler) {}

  // Of the first pass: an element with keywords of members or items; a schema of propertyNames; a
  // name that is required or a dependency.
  void add_speaker(const Element& element) { speakers_.push_back(element); }
  void add_name_schema(const Element& names) { name_schemas_.insert(names); }
  void add_needed(std::string name) { needed_.insert(std::move(name)); }

  // Ends the first pass. kUnimplemented or kResourceExhausted when a formula is not practical.
  Status fix_objects();
  Status fix_arrays();
  bool known() const { return known_; }

  // REQUIRES of the rest: known().
  size_t size() const { return names_.size(); }
  const std::string& operator[](size_t name) const { return names_[name]; }
  size_t index_of(std::string_view name) const;  // REQUIRES: the name is one of them
  // Never empty for arrays, where one class stands for the items without a schema of their own.
  const std::vector<KeyClass>& classes() const { return classes_; }

 private:
  Status put_in_order();
  Status find_positions();
  Status find_classes();
  template <typename Mark>
  Status part_by(ExprId language, Mark mark);

  SchemaCompiler& c_;
  bool known_ = false;
  std::vector<Element> speakers_;
  std::set<Element> name_schemas_;
  std::set<std::string> needed_;
  std::vector<std::string> names_, patterns_;
  std::vector<KeyClass> classes_;
};

}  // namespace espalier::grammar
