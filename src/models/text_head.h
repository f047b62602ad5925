// What an encoder of texts does with the row that a text was pooled into: layers of its head, on
// the host in float32, for they are small and what they make is the result. Immutable.
#pragma once

#include <span>
#include <vector>

#include "base/status.h"
#include "models/decoder_spec.h"
#include "models/model.h"

namespace espalier {

class TextHead {
 public:
  // Of the spec's layers; from the checkpoint, of a Dense module from its own folder.
  static Result<TextHead> load(const ModelLoadOptions& options, const DecoderSpec& spec);

  // A row through all layers; as it is where there are none.
  std::vector<float> apply(std::vector<float> row) const;

 private:
  struct Layer {
    TextsSpec::HeadLayer spec;
    std::vector<float> matrix;                  // [outputs, inputs]
    std::vector<float> bias;                    // [outputs], or empty
    std::vector<float> norm_weight, norm_bias;  // the same
  };
  std::vector<Layer> layers_;
};

}  // namespace espalier
