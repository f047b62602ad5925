#include "grammar/schema/formula_compiler.h"

#include "grammar/schema/formula_atoms.h"
#include "grammar/schema/formula_builder.h"
#include "grammar/schema/formula_graph.h"
#include "grammar/schema/formula_names.h"

namespace espalier::grammar {

Result<ExprId> FormulaCompiler::lower(const Conjunction& elements) {
  const bool objects = of_ == Of::kObjects;
  FormulaNames names(compiler_);
  FormulaAtoms atoms(compiler_);
  // The first pass finds the names, the second one builds the formula over them.
  const auto mentioned = FormulaBuilder(compiler_, objects, names, atoms).build_all(elements);
  if (!mentioned) return fail(mentioned.error());
  ESP_RETURN_IF_ERROR(objects ? names.fix_objects() : names.fix_arrays());
  atoms.start(names.size());
  ESP_ASSIGN_OR_RETURN(const Formulas::Id whole,
                       FormulaBuilder(compiler_, objects, names, atoms).build_all(elements));
  ESP_ASSIGN_OR_RETURN(const ExprId inside,
                       FormulaGraph(compiler_, objects, names, atoms).make(whole));
  Ir& ir = compiler_.ir();
  return ir.sequence({ir.literal(objects ? "{" : "["), inside, ir.literal(objects ? "}" : "]")});
}

}  // namespace espalier::grammar
