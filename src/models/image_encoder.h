// The encoder of the pictures that a model reads: a picture becomes rows of the decoder's width,
// which stand in a prompt where its placeholder stood.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <stop_token>
#include <utility>
#include <vector>

#include "base/status.h"
#include "media/audio.h"
#include "media/processor.h"
#include "models/model.h"
#include "models/patch_order.h"
#include "models/sound_stem.h"
#include "models/tile_rows.h"
#include "seams/forward_batch.h"

namespace espalier {

struct ImageEncoderInfo {
  int32_t num_rows = 0;  // that a picture becomes; 0: its size decides
  int32_t width = 0;     // of a row: the decoder's hidden size
  PatchesSpec patches;
  std::optional<TilesSpec> tiles;
  ImageProcessorSpec processor;
  int64_t num_parameters = 0;
  int64_t weight_bytes = 0;
};

// A picture, or a sound, as an encoder takes it: one tile, or several that are encoded each by
// itself.
struct PreparedImage {
  std::vector<float> patches;  // [tiles, patches of the grid in PatchOrder's order, features]
  int32_t num_tiles = 1;
  PatchGrid grid;            // of a tile
  TileGrid tiles;            // beside the whole picture, which comes first or, in sequence, last
  int32_t num_rows = 0;      // that the picture becomes
  int32_t grid_columns = 0;  // EncodedRows'
  int32_t line_rows = 0;     // the same
  int32_t frame_rows = 0;    // the same
  double frame_positions = 0;
  int32_t tile_rows = 0;  // the same

  // Of the prompt.
  int32_t num_tokens() const { return tile_rows > 0 ? 1 : num_rows; }
  // From a video's first grid to its last one, in rotary positions.
  double last_frame_position() const { return (num_tiles - 1) * frame_positions; }
};

// One picture of a batch.
struct EncoderTask {
  const PreparedImage* image = nullptr;
  EncodedRows* rows = nullptr;  // of allocate_rows() with the picture's number
  std::stop_token stop = {};    // encode()'s
};

class ImageEncoder {
 public:
  virtual ~ImageEncoder() = default;
  virtual const ImageEncoderInfo& info() const = 0;

  // Of a picture of this size, all that prepare() states but its patches: no memory of their size
  // is taken. Fails as prepare() does.
  Result<PreparedImage> plan(const ImageProcessorSpec::Size& picture, bool alone = true) const;
  // alone: no other picture stands in the prompt. Thread-safe. Fails with kInvalidArgument where
  // the picture cannot be resized as the model demands.
  Result<PreparedImage> prepare(const Image& image, bool alone = true) const;
  // A video of these frames, which have one size, sampled so many a second: each grid is one tile.
  // fitted: they are fit_image()'s of info().processor.of_frames(). REQUIRES:
  // info().patches.videos, and at least one frame. Fails as prepare() does.
  virtual Result<PreparedImage> prepare_video(std::span<const Image> frames,
                                              double frames_per_second, bool fitted = false) const;
  // As plan(); num_frames: that are sampled.
  virtual Result<PreparedImage> plan_video(const ImageProcessorSpec::Size& picture,
                                           int32_t num_frames, double frames_per_second) const;
  // A sound: one line of patches. REQUIRES: info().patches.sound. kInvalidArgument where it is too
  // short or too long.
  Result<PreparedImage> plan_sound(const Audio& audio) const;
  Result<PreparedImage> prepare_sound(const Audio& audio) const;
  // rows: [image.num_rows, width]. One call at a time, from any thread; beside the decoder's
  // forward(). Fails with kResourceExhausted where there is no memory for a picture of this size,
  // and with kAborted soon after `stop` is requested; encoders on GPUs, which are done soon, may
  // finish instead.
  virtual Status encode(const PreparedImage& image, std::span<float> rows,
                        const std::stop_token& stop = {});

  // Pictures that one call of encode_batch() takes at most.
  virtual int32_t batch_max() const { return 1; }
  // The bytes that `num_rows` rows take where requests keep them.
  virtual int64_t row_bytes(int32_t num_rows) const;
  // Allocates memory for `num_rows` rows; thread-safe. The rows may outlive the encoder.
  virtual Result<EncodedRows> allocate_rows(int32_t num_rows);
  // What prepare_sound() computes with. REQUIRED before it.
  void set_stem(SoundStem stem) { stem_.emplace(std::move(stem)); }
  // Calls of encode_batch() that may run at the same time.
  virtual int32_t batches_in_flight_max() const { return 1; }
  // As encode(), which is called for each picture. A failure states what is wrong with one of them,
  // and the rows of all are then undefined.
  virtual Status encode_batch(std::span<const EncoderTask> tasks);

 private:
  // Of a video whose frames become `size`.
  Result<PreparedImage> plan_grids(const ImageProcessorSpec::Size& size, int32_t num_frames,
                                   double frames_per_second) const;
  // Of one tile; rows: [patches of the grid / merge ^ 2, width]. stop: encode()'s.
  virtual Status encode_tile(std::span<const float> patches, const PatchGrid& grid,
                             std::span<float> rows, const std::stop_token& stop) = 0;
  // What ends each line of tiles, [width]. REQUIRES: info().tiles, not in sequence.
  virtual std::span<const float> line_end() const = 0;

  std::optional<SoundStem> stem_;
};

// That of pictures whose encoding was stopped.
Status encoding_stopped();

// The encoder of a folder's model, with its processor; null where the model reads text alone. The
// options' pool computes; it is not the decoder's, which runs meanwhile.
Result<std::unique_ptr<ImageEncoder>> load_image_encoder(const ModelLoadOptions& options);

}  // namespace espalier
