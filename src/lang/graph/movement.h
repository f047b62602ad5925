// Code movement: parts of a template change places so that its constant beginning, which is cached
// once for all arguments, grows longer. A prompt then holds the same parts in another order, which
// is not strictly the same to a model, so no other pass does this. Pure; thread-safe, but for the
// proposals, which call the back end that they are given.
//
//   Text: {text}                          Answer in one word.
//   Answer in one word.         -->       Text: {text}
//   Mood:                                 Mood:
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "lang/backend.h"
#include "lang/graph/graph.h"

namespace espalier::lang {

// The parts that may change places: lines and sentences, cut within constant text alone, of the
// first message (or plain text) in which an argument stands, up to the first call, fork or scope.
// Arguments are shown as {name}.
std::vector<std::string> movable_parts(const Graph& graph);

struct Movement {
  Graph graph;
  std::vector<int> order;   // part order[i] stands at place i now
  std::string explanation;  // of a model's proposal: why it was refused; "" when it was taken
  std::string proposal;     // of a model: what it wrote

  bool is_moved() const;
};

// The safe mode: whole lines of constant text go before the first argument, when neither their text
// nor their position implies an order: a line that refers to another ("above", "then", "it"),
// introduces one (ends with a colon), is numbered or quoted, or is the last before the call stays.
// Lines keep their order among themselves, and so do arguments.
Movement move_constants_safely(const Graph& graph);

// `order` put into effect. kInvalidArgument unless it names every part exactly once.
Result<Movement> reorder(const Graph& graph, const std::vector<int>& order);

// The model-assisted mode: a model is shown the numbered parts and proposes an order. What it
// proposes is taken only when it is a permutation of the parts and the constant beginning grows;
// else the graph is unchanged and `explanation` says why. Fails when the model cannot be asked.
Result<Movement> move_with_model(const Graph& graph, const std::shared_ptr<Backend>& model);

}  // namespace espalier::lang
