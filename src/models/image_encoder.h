// The encoder of the pictures that a model reads: a picture becomes rows of the decoder's width,
// which stand in a prompt where its placeholder stood.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/status.h"
#include "media/processor.h"
#include "models/model.h"

namespace espalier {

struct ImageEncoderInfo {
  int32_t num_rows = 0;  // that a picture becomes
  int32_t width = 0;     // of a row: the decoder's hidden size
  int32_t patch_size = 0;
  ImageProcessorSpec processor;
  int64_t num_parameters = 0;
  int64_t weight_bytes = 0;
};

class ImageEncoder {
 public:
  virtual ~ImageEncoder() = default;
  virtual const ImageEncoderInfo& info() const = 0;

  // The patches that encode() takes, [patches, 3 * patch_size * patch_size]. Thread-safe. Fails
  // with kInvalidArgument where the picture cannot be resized as the model demands.
  Result<std::vector<float>> prepare(const Image& image) const;
  // rows: [num_rows, width]. One call at a time, from any thread; beside the decoder's forward().
  virtual void encode(std::span<const float> patches, std::span<float> rows) = 0;
};

// The encoder of a folder's model, with its processor; null where the model reads text alone. The
// options' pool computes; it is not the decoder's, which runs meanwhile.
Result<std::unique_ptr<ImageEncoder>> load_image_encoder(const ModelLoadOptions& options);

}  // namespace espalier
