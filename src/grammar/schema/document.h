// JSON Schema documents: where their references lead, which draft they speak, and what a
// subschema's negation is. Knows no grammar; schema_validator.h judges values by what this
// resolves, json_schema.cc compiles it.
#pragma once

#include <boost/json.hpp>
#include <deque>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/status.h"
#include "grammar/schema/json_schema.h"

namespace espalier::grammar {

// Keywords that only this compiler writes, for negations that JSON Schema has no word for.
inline constexpr std::string_view kNotEnum = "\x01notEnum";        // an array of values
inline constexpr std::string_view kNotPattern = "\x01notPattern";  // a pattern that must not match
inline constexpr std::string_view kNotMultipleOf = "\x01notMultipleOf";
// Beside "not": what is negated fails by this keyword, in a way that no keyword says.
inline constexpr std::string_view kInexpressible =
    "\x01"
    "opposite";
inline constexpr std::string_view kNotFormat = "\x01notFormat";
inline constexpr std::string_view kFractionType = "\x01fraction";  // numbers that are not integers
// Stands for a schema of the document inside a derived one: its number (see SchemaDocument::at).
inline constexpr std::string_view kAt =
    "\x01"
    "at";

enum class Draft : uint8_t { k4, k6, k7, k2019, k2020 };

// The places that references were followed from, outermost first: interned lists of resources.
using ScopeId = uint32_t;
inline constexpr ScopeId kNoScope = 0;

// Owns the documents and every schema derived from them; addresses stay valid for its life. Not
// thread-safe.
class SchemaDocument {
 public:
  // What stands under a keyword.
  enum class Holds : uint8_t { kNoSchema, kSchema, kList, kMap, kSchemaOrList };

  // kInvalidArgument: not JSON, or not a schema.
  static Result<std::unique_ptr<SchemaDocument>> parse(std::string_view text,
                                                       const SchemaOptions& options);

  const boost::json::value& root() const { return *root_; }

  // A schema and the scope to read it in.
  struct Target {
    const boost::json::value* schema = nullptr;
    ScopeId scope = kNoScope;
  };
  // Where a $ref, $dynamicRef or $recursiveRef of the schema `from` leads, read in `scope`.
  // kUnimplemented for documents that were not supplied; kInvalidArgument: it leads nowhere.
  Result<Target> resolve(const boost::json::value* from, std::string_view keyword,
                         std::string_view reference, ScopeId scope);

  // The scope inside `schema`, read in `scope`.
  ScopeId entered(ScopeId scope, const boost::json::value* schema);

  // A schema that holds exactly where `schema` does not, one level deep (inner negations are
  // written as "not" and are resolved when they are compiled). kUnimplemented names what has no
  // negation here.
  Result<const boost::json::value*> negation(const boost::json::value& schema);

  // Takes a derived schema over. It belongs where `origin` stands.
  const boost::json::value* keep(boost::json::value schema,
                                 const boost::json::value* origin = nullptr);

  // A schema of the document as a part of a derived one; and back: what `schema` stands for.
  boost::json::value at(const boost::json::value& schema);
  const boost::json::value* meant(const boost::json::value* schema) const;

  // The first schema that was asked for of those that say the same as this one: equal but for what
  // no value hangs on (titles, descriptions, definitions). Itself where it has a name of its own or
  // is derived.
  const boost::json::value* representative(const boost::json::value* schema);

  // "#/properties/a", for messages; of derived schemas that of their origin.
  std::string pointer_of(const boost::json::value* schema) const;

  // Orders schemas as the documents have them, outer ones first; derived ones as their origin.
  uint32_t position_of(const boost::json::value* schema) const;

  Draft draft_of(const boost::json::value* schema) const;
  // Up to draft 7, what stands beside $ref does not count.
  bool ref_hides_siblings(const boost::json::value* schema) const {
    return draft_of(schema) <= Draft::k7;
  }
  // if, then and else came with draft 7.
  bool has_conditions(const boost::json::value* schema) const {
    return draft_of(schema) >= Draft::k7;
  }
  // Whether the dialect of `schema` asserts: a metaschema may leave the validation vocabulary out.
  bool asserts(const boost::json::value* schema) const;
  bool formats_annotate() const { return options_.formats_annotate; }
  // Whether unevaluatedItems or unevaluatedProperties stand anywhere.
  bool has_unevaluated() const { return has_unevaluated_; }
  bool has_dynamic() const { return has_dynamic_; }  // anchors that depend on the way there

 private:
  struct Resource {
    const boost::json::value* root = nullptr;
    std::string uri;  // absolute where it could be made so; no fragment
    Draft draft = Draft::k2020;
    bool asserts = true;
    std::unordered_map<std::string, const boost::json::value*> anchors, dynamic_anchors;
  };
  // Where a value of a document stands.
  struct Location {
    const boost::json::value* parent = nullptr;
    std::string_view key;  // of the parent's member...
    uint32_t index = 0;    // ...or the item's number
    uint32_t resource = 0;
    uint32_t position = 0;
  };

  explicit SchemaDocument(const SchemaOptions& options) : options_(options) {}
  Result<const boost::json::value*> load(std::string_view text, std::string uri);
  // Notes where everything stands. `schema`: the value is read as one, so its $id counts.
  void index(const boost::json::value& value, Location location, bool schema, int depth);
  void set_location(const boost::json::value& value, Location location);
  uint32_t enter_resource(const boost::json::object& object, const boost::json::value& value,
                          uint32_t outer);
  Draft draft_named(std::string_view uri, Draft otherwise) const;
  Result<uint32_t> resource_at(const std::string& uri);
  uint32_t resource_of(const boost::json::value* schema) const;
  uint64_t structural_hash(const boost::json::value& value, Holds kind);

  const SchemaOptions options_;
  const boost::json::value* root_ = nullptr;
  bool has_unevaluated_ = false, has_dynamic_ = false;
  std::deque<boost::json::value> documents_, derived_;
  std::vector<Resource> resources_;
  std::unordered_map<std::string, uint32_t> resource_by_uri_;
  std::unordered_map<const boost::json::value*, Location> locations_;
  std::unordered_map<const boost::json::value*, const boost::json::value*> negations_, origins_;
  std::vector<const boost::json::value*> at_;
  std::unordered_map<const boost::json::value*, size_t> at_index_;
  std::vector<std::vector<uint32_t>> scopes_ = {{}};
  // likeness(): answers, hashes of schemas (kNamed: it has a name) and the first of each hash.
  static constexpr uint64_t kNamed = 0;
  std::unordered_map<const boost::json::value*, const boost::json::value*> representatives_;
  std::unordered_map<const boost::json::value*, uint64_t> structural_hashes_;
  std::unordered_map<uint64_t, const boost::json::value*> first_of_hash_;
};

}  // namespace espalier::grammar
