// A JSON object read from a file (config.json and its like), with typed accessors whose errors name
// the file and the field. A field that is null counts as absent, as Hugging Face's files mean it.
#pragma once

#include <boost/json/fwd.hpp>
#include <cstdint>
#include <filesystem>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace espalier {

// What to do with a key that an object holds twice.
enum class DuplicateKeys { kLastWins, kError };

// Immutable, cheap to copy, thread-safe to read.
class JsonObject {
 public:
  // kNotFound without the file, kDataLoss when it is not JSON, kInvalidArgument when its top level
  // is no object.
  static Result<JsonObject> read(const std::filesystem::path& path);
  // `name` stands for the file in messages.
  static Result<JsonObject> parse(std::string_view text, std::string name,
                                  DuplicateKeys duplicates = DuplicateKeys::kLastWins);

  bool has(std::string_view field) const;      // present and not null
  std::vector<std::string_view> keys() const;  // null fields too

  // An integer in [min, max]. A whole number written as 2.0 or 1e3 counts.
  Result<int64_t> integer(std::string_view field, int64_t min = std::numeric_limits<int64_t>::min(),
                          int64_t max = std::numeric_limits<int64_t>::max()) const;
  Result<double> number(std::string_view field) const;  // finite
  Result<bool> boolean(std::string_view field) const;
  Result<std::string> string(std::string_view field) const;
  Result<JsonObject> object(std::string_view field) const;
  // An integer alone is a list of one.
  Result<std::vector<int64_t>> integers(std::string_view field) const;
  Result<std::vector<std::vector<int64_t>>> integer_lists(std::string_view field) const;
  Result<std::vector<double>> numbers(std::string_view field) const;  // finite
  Result<std::vector<std::string>> strings(std::string_view field) const;
  // A list of pairs of positive integers below 2^31.
  Result<std::vector<std::pair<int32_t, int32_t>>> pairs(std::string_view field) const;
  Result<std::vector<JsonObject>> objects(std::string_view field) const;  // a list of them

  // The same with a value for a field that is absent; a field of the wrong type still fails.
  Result<int64_t> integer_or(std::string_view field, int64_t otherwise,
                             int64_t min = std::numeric_limits<int64_t>::min(),
                             int64_t max = std::numeric_limits<int64_t>::max()) const;
  Result<double> number_or(std::string_view field, double otherwise) const;
  Result<bool> boolean_or(std::string_view field, bool otherwise) const;
  Result<std::string> string_or(std::string_view field, std::string otherwise) const;

  // This object with the members of `overrides` in place of its own; objects in both are merged
  // the same way. Its reads are noted, those of objects inside too: see never_read().
  JsonObject merged(const JsonObject& overrides) const;
  // The members of `overrides`, by their whole names ("rope_scaling.factor"), that nobody has asked
  // for in this object. REQUIRES: merged() made it.
  std::vector<std::string> never_read(const JsonObject& overrides) const;

  // An invalid_argument that names this file and the field: "config.json: 'head_dim' MESSAGE".
  Status field_error(std::string_view field, std::string_view message) const;
  const std::string& name() const { return name_; }

 private:
  JsonObject() = default;
  Result<const boost::json::value*> find(std::string_view field) const;

  // Shared: objects inside keep the whole document.
  std::shared_ptr<const boost::json::value> document_;
  const boost::json::object* object_ = nullptr;
  struct Reads;
  void note(std::string_view field) const;
  // Shared with the objects inside; null where nobody wants to know.
  std::shared_ptr<Reads> reads_;
  std::string name_;    // the file
  std::string prefix_;  // of nested fields: "rope_scaling."
};

}  // namespace espalier
