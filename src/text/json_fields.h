// Reads the fields of a JSON document that comes from outside. A field that is missing or has
// another type is an error (kDataLoss) that names the path of the field. Nothing here is changed
// after it is made, so several threads may read one object.
#pragma once

#include <boost/json.hpp>
#include <string>
#include <string_view>

#include "base/status.h"

namespace espalier {

// An object within a document and the path to it ("model", "decoder.decoders[2]"). Borrowed: the
// document outlives it.
class JsonFields {
 public:
  // kDataLoss when `value` is no object.
  static Result<JsonFields> of(const boost::json::value& value, std::string path);

  const boost::json::value* find(std::string_view name) const;  // null also for an explicit null
  Result<std::string> string(std::string_view name) const;
  Result<std::string> string_or(std::string_view name, std::string_view otherwise) const;
  Result<bool> boolean_or(std::string_view name, bool otherwise) const;
  Result<int64_t> integer(std::string_view name) const;
  Result<const boost::json::array*> array(std::string_view name) const;
  Result<const boost::json::object*> object(std::string_view name) const;
  const std::string& path() const { return path_; }
  std::string path_to(std::string_view name) const;
  const boost::json::object& raw() const { return *object_; }

 private:
  JsonFields(const boost::json::object* object, std::string path)
      : object_(object), path_(std::move(path)) {}
  Status wrong(std::string_view name, std::string_view wanted) const;

  const boost::json::object* object_;
  std::string path_;
};

}  // namespace espalier
