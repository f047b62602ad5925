#include "lang/interpreter/operation.h"

#include "lang/interpreter/live_stream.h"

namespace espalier::lang {

void fail_outputs(const Operation& op, const Status& why, Location where) {
  if (op.target != nullptr) op.target->fail(why, where);
  if (op.reasoning != nullptr) op.reasoning->fail(why, where);
  if (const auto* fork = std::get_if<ForkOp>(&op.what)) {
    for (const auto& weak : fork->branches) {
      const auto branch = weak.lock();
      if (branch == nullptr) continue;
      branch->fail_with(why, where);
      branch->activate({});
    }
  } else if (const auto* gather = std::get_if<GatherOp>(&op.what)) {
    for (const auto& [target, sources] : gather->lists) target->fail(why, where);
  }
}

}  // namespace espalier::lang
