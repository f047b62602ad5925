#include "grammar/schema/document.h"

#include <algorithm>
#include <bit>
#include <span>
#include <utility>

#include "base/rng.h"
#include "grammar/automata/held_bytes.h"
#include "grammar/schema/json_text.h"
#include "grammar/schema/keywords.h"
#include "grammar/schema/metaschema.h"
#include "grammar/schema/uri.h"

namespace espalier::grammar {
namespace {

namespace json = boost::json;

constexpr size_t kTextBytesMax = 16u << 20;

std::string escaped(std::string_view key) {
  std::string out;
  for (char c : key) {
    if (c == '~') {
      out += "~0";
    } else if (c == '/') {
      out += "~1";
    } else {
      out += c;
    }
  }
  return out;
}

const json::value* member(const json::value& value, std::string_view key) {
  const json::object* object = value.if_object();
  return object == nullptr ? nullptr : object->if_contains(key);
}
const json::string* string_member(const json::value& value, std::string_view key) {
  const json::value* found = member(value, key);
  return found == nullptr ? nullptr : found->if_string();
}

Subschemas subschemas_of(std::string_view key) {
  const Keyword* keyword = find_keyword(key);
  return keyword == nullptr ? Subschemas::kNone : keyword->subschemas;
}

// Where subschemas stand one level below the value of a keyword.
Subschemas below(Subschemas kind, const json::value& value) {
  switch (kind) {
    case Subschemas::kMap:
      return value.is_object() ? Subschemas::kValue : Subschemas::kNone;
    case Subschemas::kList:
    case Subschemas::kValueOrList:
      return value.is_array() ? Subschemas::kValue : Subschemas::kNone;
    case Subschemas::kNone:
    case Subschemas::kValue:
      break;
  }
  return Subschemas::kNone;
}
bool is_schema(Subschemas kind, const json::value& value) {
  return kind == Subschemas::kValue || (kind == Subschemas::kValueOrList && !value.is_array());
}

bool has_role(std::string_view key, Role role) {
  const Keyword* keyword = find_keyword(key);
  return keyword != nullptr && keyword->role == role;
}

// Returns whether two values compile to the same grammar.
bool alike(const json::value& a, const json::value& b, Subschemas kind) {
  if (a.kind() != b.kind()) return false;
  if (const json::object* object = a.if_object()) {
    const bool schema = is_schema(kind, a);
    const json::object& other = b.get_object();
    const auto skip = [&](auto at, auto end) {
      while (schema && at != end && has_role(at->key(), Role::kAnnotation)) ++at;
      return at;
    };
    auto x = skip(object->begin(), object->end());
    auto y = skip(other.begin(), other.end());
    for (; x != object->end() && y != other.end();
         x = skip(x + 1, object->end()), y = skip(y + 1, other.end())) {
      const Subschemas inner = schema ? subschemas_of(x->key()) : below(kind, a);
      if (x->key() != y->key() || !alike(x->value(), y->value(), inner)) return false;
    }
    return x == object->end() && y == other.end();
  }
  if (const json::array* list = a.if_array()) {
    return std::ranges::equal(
        *list, b.get_array(),
        [&](const json::value& x, const json::value& y) { return alike(x, y, below(kind, a)); });
  }
  if (a.is_double()) {
    return std::bit_cast<uint64_t>(a.get_double()) == std::bit_cast<uint64_t>(b.get_double());
  }
  return a == b;
}

std::string without_fragment(std::string_view uri) {
  return std::string(uri.substr(0, uri.find('#')));
}

// Returns the bytes that a value holds beside itself.
size_t held_by(const json::value& value) {
  size_t bytes = 0;
  if (const json::string* text = value.if_string()) {
    bytes = text->capacity() > 15 ? text->capacity() + 16 : 0;
  } else if (const json::array* list = value.if_array()) {
    bytes = list->capacity() * sizeof(json::value) + 16;
    for (const json::value& item : *list) bytes += held_by(item);
  } else if (const json::object* members = value.if_object()) {
    bytes = members->capacity() * (sizeof(json::key_value_pair) + sizeof(uint32_t)) + 16;
    for (const auto& [key, member] : *members) bytes += key.size() + 17 + held_by(member);
  }
  return bytes;
}

}  // namespace

Result<std::unique_ptr<SchemaDocument>> SchemaDocument::parse(std::string_view text,
                                                              const SchemaOptions& options) {
  std::unique_ptr<SchemaDocument> document(new SchemaDocument(options));
  ESP_ASSIGN_OR_RETURN(document->root_, document->load(text, ""));
  return document;
}

Result<const json::value*> SchemaDocument::load(std::string_view text, std::string uri) {
  if (text.size() > kTextBytesMax) {
    return fail(
        invalid_argument("the schema has {} bytes; the most is {}", text.size(), kTextBytesMax));
  }
  ESP_ASSIGN_OR_RETURN(json::value root, parse_exact_json_text(text, "the schema"));
  if (!root.is_object() && !root.is_bool()) {
    return fail(invalid_argument("a schema is an object, or true or false"));
  }
  documents_.push_back(std::move(root));
  const json::value& kept = documents_.back();
  const auto number = static_cast<uint32_t>(resources_.size());
  Resource resource{.root = &kept, .uri = uri, .anchors = {}, .dynamic_anchors = {}};
  resource.draft = draft_named(options_.draft, Draft::k2020);
  resources_.push_back(std::move(resource));
  resource_by_uri_.emplace(std::move(uri), number);
  index(kept, {.resource = number}, true, 0);
  return &kept;
}

Draft SchemaDocument::draft_named(std::string_view uri, Draft otherwise) const {
  constexpr std::pair<std::string_view, Draft> kDraftNames[] = {
      {"draft-03", Draft::k4},  {"draft-04", Draft::k4}, {"draft-05", Draft::k4},
      {"draft-06", Draft::k6},  {"draft-07", Draft::k7}, {"draft4", Draft::k4},
      {"draft6", Draft::k6},    {"draft7", Draft::k7},   {"2019-09", Draft::k2019},
      {"2020-12", Draft::k2020}};
  for (const auto& [name, draft] : kDraftNames) {
    if (uri.find(name) != std::string_view::npos) return draft;
  }
  return otherwise;
}

// A schema with an address of its own begins a resource.
uint32_t SchemaDocument::enter_resource(const json::object& object, const json::value& value,
                                        uint32_t outer) {
  Draft draft = resources_[outer].draft;
  bool asserts = resources_[outer].asserts;
  if (const json::string* dialect = string_member(value, "$schema")) {
    draft = draft_named(*dialect, draft);
    // A metaschema of ours says which vocabularies its dialect has.
    const std::string name = without_fragment(*dialect);
    const bool supplied =
        std::ranges::find(options_.documents, name, &SchemaText::uri) != options_.documents.end();
    if (const auto meta = resource_at(supplied ? name : ""); supplied && meta) {
      const json::value* vocabularies = member(*resources_[*meta].root, "$vocabulary");
      if (vocabularies != nullptr && vocabularies->is_object()) {
        asserts = std::ranges::any_of(vocabularies->get_object(), [](const auto& entry) {
          return std::string_view(entry.key()).ends_with("/vocab/validation");
        });
      }
    }
  }
  const bool hides = draft <= Draft::k7 && object.contains("$ref");
  const json::string* id = string_member(value, draft <= Draft::k4 ? "id" : "$id");
  uint32_t number = outer;
  const bool is_root = resources_[outer].root == &value;
  if (id != nullptr && !hides && !id->starts_with("#")) {
    const std::string uri =
        without_fragment(resolved_uri(resources_[outer].uri, std::string_view(*id)));
    if (is_root) {
      resources_[outer].uri = uri;
    } else {
      number = static_cast<uint32_t>(resources_.size());
      resources_.push_back({.root = &value, .uri = uri, .anchors = {}, .dynamic_anchors = {}});
    }
    resource_by_uri_.emplace(uri, number);
  } else if (id != nullptr && !hides) {
    resources_[number].anchors.emplace(std::string(std::string_view(*id).substr(1)), &value);
  }
  resources_[number].draft = draft;
  resources_[number].asserts = asserts;
  if (draft >= Draft::k2019) {
    if (const json::string* anchor = string_member(value, "$anchor")) {
      resources_[number].anchors.emplace(std::string(std::string_view(*anchor)), &value);
    }
    if (const json::string* anchor = string_member(value, "$dynamicAnchor")) {
      resources_[number].anchors.emplace(std::string(std::string_view(*anchor)), &value);
      resources_[number].dynamic_anchors.emplace(std::string(std::string_view(*anchor)), &value);
      has_dynamic_ = true;
    }
    const json::value* recursive = member(value, "$recursiveAnchor");
    if (recursive != nullptr && recursive->is_bool() && recursive->get_bool()) {
      resources_[number].dynamic_anchors.emplace("", &value);
      has_dynamic_ = true;
    }
  }
  return number;
}

void SchemaDocument::index(const json::value& value, Location location, bool schema, int depth) {
  if (depth > static_cast<int>(kJsonDepthMax)) return;
  if (const json::object* object = value.if_object()) {
    if (schema) location.resource = enter_resource(*object, value, location.resource);
    set_location(value, location);
    for (const auto& [key, child] : *object) {
      if (!child.is_structured() && !child.is_bool()) continue;
      if (schema && (key == "enum" || key == "const")) continue;
      has_unevaluated_ |= schema && std::string_view(key).starts_with("unevaluated");
      const Subschemas inner = schema ? subschemas_of(key) : Subschemas::kNone;
      const Location here{.parent = &value, .key = key, .resource = location.resource};
      const bool whole =
          inner == Subschemas::kValue || (inner == Subschemas::kValueOrList && !child.is_array());
      if (whole || inner == Subschemas::kNone || !child.is_structured()) {
        index(child, here, whole, depth + 1);
        continue;
      }
      set_location(child, here);
      if (const json::object* map = child.if_object()) {
        for (const auto& [name, item] : *map) {
          index(item, {.parent = &child, .key = name, .resource = location.resource},
                inner == Subschemas::kMap, depth + 1);
        }
      } else {
        uint32_t i = 0;
        for (const json::value& item : child.get_array()) {
          index(item, {.parent = &child, .index = i++, .resource = location.resource},
                inner != Subschemas::kMap, depth + 1);
        }
      }
    }
    return;
  }
  set_location(value, location);
  if (const json::array* array = value.if_array()) {
    uint32_t i = 0;
    for (const json::value& item : *array) {
      if (item.is_structured()) {
        index(item, {.parent = &value, .index = i, .resource = location.resource}, false,
              depth + 1);
      }
      ++i;
    }
  }
}

Result<uint32_t> SchemaDocument::resource_at(const std::string& uri) {
  if (const auto it = resource_by_uri_.find(uri); it != resource_by_uri_.end()) return it->second;
  for (const SchemaText& document : options_.documents) {
    if (without_fragment(document.uri) != uri) continue;
    const auto number = static_cast<uint32_t>(resources_.size());
    ESP_ASSIGN_OR_RETURN([[maybe_unused]] const json::value* root, load(document.text, uri));
    return number;
  }
  if (const auto metaschema = metaschema_text(uri)) {
    const auto number = static_cast<uint32_t>(resources_.size());
    ESP_ASSIGN_OR_RETURN([[maybe_unused]] const json::value* root, load(*metaschema, uri));
    return number;
  }
  return fail(error(StatusCode::kUnimplemented,
                    "the reference to '{}' leads out of this schema; put it under $defs, or supply "
                    "that document",
                    uri));
}

uint32_t SchemaDocument::resource_of(const json::value* schema) const {
  for (int hops = 0; hops < 64; ++hops) {
    if (const auto it = locations_.find(schema); it != locations_.end()) return it->second.resource;
    const auto origin = origins_.find(schema);
    if (origin == origins_.end()) break;
    schema = origin->second;
  }
  return 0;
}

ScopeId SchemaDocument::entered(ScopeId scope, const json::value* schema) {
  if (!has_dynamic_) return kNoScope;
  const uint32_t resource = resource_of(schema);
  // Only the outermost place that holds an anchor counts, so a resource is listed once.
  std::vector<uint32_t> list = scopes_[scope];
  if (std::ranges::find(list, resource) != list.end()) return scope;
  list.push_back(resource);
  const auto known = std::ranges::find(scopes_, list);
  if (known != scopes_.end()) return static_cast<ScopeId>(known - scopes_.begin());
  scopes_.push_back(std::move(list));
  return static_cast<ScopeId>(scopes_.size() - 1);
}

Result<SchemaDocument::Target> SchemaDocument::resolve(const json::value* from,
                                                       std::string_view keyword,
                                                       std::string_view reference, ScopeId scope) {
  const std::string uri = resolved_uri(resources_[resource_of(from)].uri, reference);
  const size_t hash = std::min(uri.find('#'), uri.size());
  const std::string fragment = hash < uri.size() ? percent_decoded(uri.substr(hash + 1)) : "";
  ESP_ASSIGN_OR_RETURN(const uint32_t number, resource_at(uri.substr(0, hash)));
  const Resource& resource = resources_[number];
  const json::value* target = resource.root;
  if (fragment.starts_with("/")) {
    boost::system::error_code failed;
    target = resource.root->find_pointer(fragment, failed);
    if (failed) target = nullptr;
  } else if (!fragment.empty()) {
    const auto anchor = resource.anchors.find(fragment);
    target = anchor == resource.anchors.end() ? nullptr : anchor->second;
  }
  if (target == nullptr) {
    return fail(
        invalid_argument("{}: {} '{}' leads nowhere", pointer_of(from), keyword, reference));
  }
  // What a pointer reaches outside the keywords' places is read as a schema now.
  if (!locations_.contains(target)) locations_.emplace(target, Location{.resource = number});
  // A dynamic reference to a dynamic anchor leads to the outermost of that name.
  const bool recursive = keyword == "$recursiveRef";
  const auto own = resource.dynamic_anchors.find(fragment);
  const bool dynamic = (recursive || keyword == "$dynamicRef") &&
                       own != resource.dynamic_anchors.end() && own->second == target;
  if (dynamic) {
    for (uint32_t outer : scopes_[scope]) {
      const auto found = resources_[outer].dynamic_anchors.find(fragment);
      if (found == resources_[outer].dynamic_anchors.end()) continue;
      target = found->second;
      break;
    }
  }
  return Target{target, entered(scope, target)};
}

const json::value* SchemaDocument::keep(json::value schema, const json::value* origin) {
  derived_.push_back(std::move(schema));
  const json::value* kept = &derived_.back();
  if (origin == nullptr) return kept;
  const auto note = [&](auto&& self, const json::value& value) -> void {
    if (!value.is_structured() && !value.is_bool()) return;
    origins_.emplace(&value, origin);
    if (const json::object* object = value.if_object()) {
      for (const auto& [key, child] : *object) self(self, child);
    } else if (const json::array* list = value.if_array()) {
      for (const json::value& item : *list) self(self, item);
    }
  };
  note(note, *kept);
  return kept;
}

json::value SchemaDocument::at(const json::value& schema) {
  const json::value* target = meant(&schema);
  const auto [it, added] = at_index_.try_emplace(target, at_.size());
  if (added) at_.push_back(target);
  return json::object{{kAt, it->second}};
}

const json::value* SchemaDocument::meant(const json::value* schema) const {
  const json::value* number = member(*schema, kAt);
  if (number == nullptr) return schema;
  const size_t index = number->is_uint64() ? number->get_uint64() : at_.size();
  return index < at_.size() ? at_[index] : schema;
}

// Equal where schemas are alike.
uint64_t SchemaDocument::structural_hash(const json::value& value, Subschemas kind) {
  uint64_t hash = mix64(static_cast<uint64_t>(value.kind()));
  const auto add = [&](uint64_t more) { hash = mix64(hash ^ more); };
  const auto text = [](std::string_view s) { return std::hash<std::string_view>()(s); };
  if (const json::object* object = value.if_object()) {
    const bool schema = is_schema(kind, value);
    if (schema) {
      const auto known = structural_hashes_.find(&value);
      if (known != structural_hashes_.end()) return known->second;
    }
    bool named = false;
    for (const auto& [key, child] : *object) {
      if (schema && has_role(key, Role::kAnnotation)) continue;
      const uint64_t inner =
          structural_hash(child, schema ? subschemas_of(key) : below(kind, value));
      named |= inner == kNamed || (schema && has_role(key, Role::kIdentifier));
      add(text(key));
      add(inner);
    }
    if (named) hash = kNamed;
    if (schema) structural_hashes_.emplace(&value, hash);
  } else if (const json::array* list = value.if_array()) {
    for (const json::value& item : *list) {
      const uint64_t inner = structural_hash(item, below(kind, value));
      if (inner == kNamed) return kNamed;
      add(inner);
    }
  } else if (const json::string* string = value.if_string()) {
    add(text(*string));
  } else if (value.is_bool()) {
    add(value.get_bool() ? 1 : 0);
  } else if (value.is_uint64()) {
    add(value.get_uint64());
  } else if (value.is_int64()) {
    add(static_cast<uint64_t>(value.get_int64()));
  } else if (value.is_double()) {
    add(std::bit_cast<uint64_t>(value.get_double()));
  }
  return hash;
}

const json::value* SchemaDocument::representative(const json::value* schema) {
  const auto location = locations_.find(schema);
  if (location == locations_.end() || !schema->is_object()) return schema;
  const auto [known, added] = representatives_.try_emplace(schema, schema);
  if (!added) return known->second;
  const uint64_t hash = structural_hash(*schema, Subschemas::kValue);
  if (hash == kNamed) return schema;
  const uint32_t resource = location->second.resource;
  const json::value* other =
      first_of_hash_.try_emplace(mix64(hash ^ resource), schema).first->second;
  const bool same = other != schema && locations_.at(other).resource == resource &&
                    alike(*schema, *other, Subschemas::kValue);
  return known->second = same ? other : schema;
}

std::string SchemaDocument::pointer_of(const json::value* schema) const {
  for (int hops = 0; hops < 64 && !locations_.contains(schema); ++hops) {
    const auto origin = origins_.find(schema);
    if (origin == origins_.end()) return "#";
    schema = origin->second;
  }
  std::string pointer;
  for (auto it = locations_.find(schema); it != locations_.end() && it->second.parent != nullptr;
       it = locations_.find(it->second.parent)) {
    const Location& location = it->second;
    const bool item = location.parent->is_array();
    pointer = "/" + (item ? std::to_string(location.index) : escaped(location.key)) + pointer;
  }
  return "#" + pointer;
}

void SchemaDocument::set_location(const json::value& value, Location location) {
  location.position = static_cast<uint32_t>(locations_.size());
  locations_.emplace(&value, location);
}

uint32_t SchemaDocument::position_of(const json::value* schema) const {
  for (int hops = 0; hops < 64; ++hops) {
    if (const auto it = locations_.find(schema); it != locations_.end()) return it->second.position;
    const auto origin = origins_.find(schema);
    if (origin == origins_.end()) break;
    schema = origin->second;
  }
  return ~uint32_t{0};
}

Draft SchemaDocument::draft_of(const json::value* schema) const {
  return resources_[resource_of(schema)].draft;
}

bool SchemaDocument::asserts(const json::value* schema) const {
  return resources_[resource_of(schema)].asserts;
}

size_t SchemaDocument::num_bytes() const {
  size_t bytes = held_bytes(resources_) + held_bytes(at_) + held_bytes_of_map(locations_) +
                 held_bytes_of_map(negations_) + held_bytes_of_map(origins_) +
                 held_bytes_of_map(at_index_) + held_bytes_of_map(representatives_) +
                 held_bytes_of_map(structural_hashes_) + held_bytes_of_map(first_of_hash_);
  for (const std::deque<json::value>* list : {&documents_, &derived_}) {
    for (const json::value& value : *list) bytes += sizeof(value) + held_by(value);
  }
  return bytes;
}

}  // namespace espalier::grammar
