// Which control vector the forward pass of a sequence's tokens adds to their hidden states. Plain
// data, as slots of a GPU hold it.
#pragma once

#include <cstdint>

namespace espalier {

// A control vector that is added to the hidden states behind layers [first_layer, last_layer],
// counted from 0.
struct ControlUse {
  int32_t index = -1;  // of the model's control vectors; -1: none
  float scale = 1;
  int32_t first_layer = 0, last_layer = 0;

  bool any() const { return index >= 0; }
  friend bool operator==(const ControlUse&, const ControlUse&) = default;
};

}  // namespace espalier
