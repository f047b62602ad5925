#include "grammar/schema/json_schema.h"

#include <memory>
#include <utility>

#include "grammar/schema/compiler.h"

namespace espalier::grammar {

Result<ExprId> parse_json_schema(Ir& ir, std::string_view schema, Whitespace whitespace,
                                 const SchemaOptions& options, const GrammarLimits& limits) {
  ESP_ASSIGN_OR_RETURN(auto document, SchemaDocument::parse(schema, options));
  auto checker = std::make_shared<SchemaChecker>(std::move(document));
  return SchemaCompiler(ir, std::move(checker), whitespace, options, limits).compile();
}

}  // namespace espalier::grammar
