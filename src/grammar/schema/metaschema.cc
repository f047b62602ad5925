#include "grammar/schema/metaschema.h"

#include <utility>

namespace espalier::grammar {
namespace {

// Written from the specifications: the types of each keyword's value.
#define ESP_META_KEYWORDS                                                                          \
  R"("title":{"type":"string"},"description":{"type":"string"},"$comment":{"type":"string"},)"     \
  R"("default":{},"readOnly":{"type":"boolean"},)"                                                 \
  R"("$ref":{"type":"string"},"$schema":{"type":"string"},"format":{"type":"string"},)"            \
  R"("pattern":{"type":"string"},"uniqueItems":{"type":"boolean"},)"                               \
  R"("minLength":{"$ref":"#/definitions/count"},"maxLength":{"$ref":"#/definitions/count"},)"      \
  R"("minItems":{"$ref":"#/definitions/count"},"maxItems":{"$ref":"#/definitions/count"},)"        \
  R"("minProperties":{"$ref":"#/definitions/count"},)"                                             \
  R"("maxProperties":{"$ref":"#/definitions/count"},)"                                             \
  R"("minimum":{"type":"number"},"maximum":{"type":"number"},)"                                    \
  R"("multipleOf":{"type":"number","exclusiveMinimum":0},)"                                        \
  R"("type":{"anyOf":[{"$ref":"#/definitions/type"},{"type":"array","minItems":1,)"                \
  R"("items":{"$ref":"#/definitions/type"},"uniqueItems":true}]},)"                                \
  R"("additionalProperties":{"$ref":"#"},"not":{"$ref":"#"},)"                                     \
  R"("properties":{"$ref":"#/definitions/map"},"patternProperties":{"$ref":"#/definitions/map"},)" \
  R"("definitions":{"$ref":"#/definitions/map"},"allOf":{"$ref":"#/definitions/list"},)"           \
  R"("anyOf":{"$ref":"#/definitions/list"},"oneOf":{"$ref":"#/definitions/list"},)"                \
  R"("dependencies":{"type":"object","additionalProperties":{"anyOf":[{"$ref":"#"},)"              \
  R"({"$ref":"#/definitions/names"}]}})"
#define ESP_META_LATER                                                                 \
  R"(,"$id":{"type":"string"},"exclusiveMinimum":{"type":"number"},)"                  \
  R"("exclusiveMaximum":{"type":"number"},"required":{"$ref":"#/definitions/names"},)" \
  R"("propertyNames":{"$ref":"#"},"contains":{"$ref":"#"},"if":{"$ref":"#"},)"         \
  R"("then":{"$ref":"#"},"else":{"$ref":"#"})"
#define ESP_META_LIST_ITEMS                                             \
  R"(,"items":{"anyOf":[{"$ref":"#"},{"$ref":"#/definitions/list"}]},)" \
  R"("additionalItems":{"$ref":"#"})"
#define ESP_META_NEWEST                                                                             \
  R"(,"$anchor":{"type":"string","pattern":"^[A-Za-z_][-A-Za-z0-9._]*$"},)"                         \
  R"("$defs":{"$ref":"#/definitions/map"},"dependentSchemas":{"$ref":"#/definitions/map"},)"        \
  R"("dependentRequired":{"type":"object","additionalProperties":{"$ref":"#/definitions/names"}},)" \
  R"("minContains":{"$ref":"#/definitions/count"},"maxContains":{"$ref":"#/definitions/count"},)"   \
  R"("unevaluatedItems":{"$ref":"#"},"unevaluatedProperties":{"$ref":"#"})"
#define ESP_META_DEFINITIONS                                                            \
  R"("definitions":{"count":{"type":"integer","minimum":0},)"                           \
  R"("type":{"enum":["null","boolean","integer","number","string","array","object"]},)" \
  R"("map":{"type":"object","additionalProperties":{"$ref":"#"}},)"                     \
  R"("list":{"type":"array","minItems":1,"items":{"$ref":"#"}},)"                       \
  R"("names":{"type":"array","items":{"type":"string"},"uniqueItems":true}})"

constexpr std::pair<std::string_view, std::string_view> kMetaschemas[] = {
    {"https://json-schema.org/draft/2020-12/schema",
     R"({"$id":"https://json-schema.org/draft/2020-12/schema","type":["object","boolean"],)"
     R"("$dynamicAnchor":"meta","properties":{)" ESP_META_KEYWORDS ESP_META_LATER ESP_META_NEWEST
     R"(,"items":{"$ref":"#"},"prefixItems":{"$ref":"#/definitions/list"}},)" ESP_META_DEFINITIONS
     "}"},
    {"https://json-schema.org/draft/2019-09/schema",
     R"({"$id":"https://json-schema.org/draft/2019-09/schema","type":["object","boolean"],)"
     R"("$recursiveAnchor":true,"properties":{)" ESP_META_KEYWORDS ESP_META_LATER ESP_META_NEWEST
         ESP_META_LIST_ITEMS "}," ESP_META_DEFINITIONS "}"},
    {"http://json-schema.org/draft-07/schema",
     R"({"$id":"http://json-schema.org/draft-07/schema","type":["object","boolean"],"properties":{)" ESP_META_KEYWORDS
         ESP_META_LATER ESP_META_LIST_ITEMS "}," ESP_META_DEFINITIONS "}"},
    {"http://json-schema.org/draft-06/schema",
     R"({"$id":"http://json-schema.org/draft-06/schema","type":["object","boolean"],"properties":{)" ESP_META_KEYWORDS
         ESP_META_LATER ESP_META_LIST_ITEMS "}," ESP_META_DEFINITIONS "}"},
    {"http://json-schema.org/draft-04/schema",
     R"({"id":"http://json-schema.org/draft-04/schema","$schema":"http://json-schema.org/draft-04/schema#",)"
     R"("type":"object","properties":{)" ESP_META_KEYWORDS
     R"(,"id":{"type":"string"},"exclusiveMinimum":{"type":"boolean"},)"
     R"("exclusiveMaximum":{"type":"boolean"},"required":{"allOf":[{"$ref":"#/definitions/names"}],)"
     R"("minItems":1},"items":{"anyOf":[{"$ref":"#"},{"$ref":"#/definitions/list"}]},)"
     R"("additionalItems":{"anyOf":[{"type":"boolean"},{"$ref":"#"}]},)"
     R"("additionalProperties":{"anyOf":[{"type":"boolean"},{"$ref":"#"}]}},)" ESP_META_DEFINITIONS
     "}"},
};

}  // namespace

std::optional<std::string_view> metaschema_text(std::string_view uri) {
  for (const auto& [address, text] : kMetaschemas) {
    if (uri == address) return text;
  }
  return std::nullopt;
}

}  // namespace espalier::grammar
