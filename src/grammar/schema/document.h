// JSON Schema documents: resolution of references, the draft, and negations of subschemas.
// Independent of grammars: validator.h judges values by what this resolves, and the compiler
// compiles it.
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
#include "grammar/schema/keywords.h"

namespace espalier::grammar {

enum class Draft : uint8_t { k4, k6, k7, k2019, k2020 };

// The dynamic scope: an interned list of the resources through which references led, outermost
// first.
using ScopeId = uint32_t;
inline constexpr ScopeId kNoScope = 0;

// Owns the documents and every schema derived from them; pointers stay valid for its life. Not
// thread-safe.
class SchemaDocument {
 public:
  // kInvalidArgument: not JSON, or not a schema.
  static Result<std::unique_ptr<SchemaDocument>> parse(std::string_view text,
                                                       const SchemaOptions& options);

  const boost::json::value& root() const { return *root_; }

  // A schema and the scope in which it is evaluated.
  struct Target {
    const boost::json::value* schema = nullptr;
    ScopeId scope = kNoScope;
  };
  // Resolves a $ref, $dynamicRef or $recursiveRef of the schema `from` in `scope`. kUnimplemented
  // for documents that were not supplied; kInvalidArgument when the target does not exist.
  Result<Target> resolve(const boost::json::value* from, std::string_view keyword,
                         std::string_view reference, ScopeId scope);

  // Returns the scope inside `schema` when it is entered from `scope`.
  ScopeId entered(ScopeId scope, const boost::json::value* schema);

  // Returns the negation of `schema`, one level deep: inner negations are written as "not" and
  // resolved when they are compiled. kUnimplemented names a keyword without a negation.
  Result<const boost::json::value*> negation(const boost::json::value& schema);

  // Takes ownership of a derived schema, which is located at `origin` for messages and references.
  const boost::json::value* keep(boost::json::value schema,
                                 const boost::json::value* origin = nullptr);

  // at() writes a reference to a schema of the document into a derived one; meant() follows it.
  boost::json::value at(const boost::json::value& schema);
  const boost::json::value* meant(const boost::json::value* schema) const;

  // Returns one representative of the schemas that are equal but for annotations (titles,
  // descriptions, definitions), found by a structural hash. Schemas with a name of their own and
  // derived schemas represent themselves.
  const boost::json::value* representative(const boost::json::value* schema);

  // The JSON pointer for messages, as in "#/properties/a"; of a derived schema that of its origin.
  std::string pointer_of(const boost::json::value* schema) const;

  // The order of schemas in their documents, outer ones first; a derived schema has the order of
  // its origin.
  uint32_t position_of(const boost::json::value* schema) const;

  Draft draft_of(const boost::json::value* schema) const;
  // Up to draft 7 the siblings of $ref are ignored.
  bool ref_hides_siblings(const boost::json::value* schema) const {
    return draft_of(schema) <= Draft::k7;
  }
  // if, then and else exist from draft 7 on.
  bool has_conditions(const boost::json::value* schema) const {
    return draft_of(schema) >= Draft::k7;
  }
  // Returns whether the dialect of `schema` asserts: a metaschema may omit the validation
  // vocabulary.
  bool asserts(const boost::json::value* schema) const;
  bool formats_annotate() const { return options_.formats_annotate; }
  // Whether unevaluatedItems or unevaluatedProperties occur anywhere.
  bool has_unevaluated() const { return has_unevaluated_; }
  bool has_dynamic() const { return has_dynamic_; }  // whether dynamic anchors occur

  size_t num_bytes() const;  // held; an estimate, in time linear in the document

 private:
  struct Resource {
    const boost::json::value* root = nullptr;
    std::string uri;  // absolute where it could be resolved; without a fragment
    Draft draft = Draft::k2020;
    bool asserts = true;
    std::unordered_map<std::string, const boost::json::value*> anchors, dynamic_anchors;
  };
  // The location of a value in a document.
  struct Location {
    const boost::json::value* parent = nullptr;
    std::string_view key;  // of the parent's member...
    uint32_t index = 0;    // ...or the item's number
    uint32_t resource = 0;
    uint32_t position = 0;
  };

  explicit SchemaDocument(const SchemaOptions& options) : options_(options) {}
  Result<const boost::json::value*> load(std::string_view text, std::string uri);
  // Records the locations of all values. `schema`: the value is a schema, so its $id counts.
  void index(const boost::json::value& value, Location location, bool schema, int depth);
  void set_location(const boost::json::value& value, Location location);
  uint32_t enter_resource(const boost::json::object& object, const boost::json::value& value,
                          uint32_t outer);
  Draft draft_named(std::string_view uri, Draft otherwise) const;
  Result<uint32_t> resource_at(const std::string& uri);
  uint32_t resource_of(const boost::json::value* schema) const;
  uint64_t structural_hash(const boost::json::value& value, Subschemas kind);

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
  // Results of representative(), structural hashes (kNamed: the schema has a name), and the first
  // schema of each hash.
  static constexpr uint64_t kNamed = 0;
  std::unordered_map<const boost::json::value*, const boost::json::value*> representatives_;
  std::unordered_map<const boost::json::value*, uint64_t> structural_hashes_;
  std::unordered_map<uint64_t, const boost::json::value*> first_of_hash_;
};

}  // namespace espalier::grammar
