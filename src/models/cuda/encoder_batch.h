// What a batch of pictures is to an encoder's program on a GPU: the rows that it reads, the
// sequences that attention is made over, the rows that results are made of, and what becomes of
// tiles. Plain values and pure functions; no call to a device.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/embedding/op.h"
#include "models/decoder_spec.h"
#include "models/image_encoder.h"
#include "tensor/cuda/memory.h"

namespace espalier {

// Numbers of a batch, or the most of any batch. A unit is a tile, or a patch of a picture of any
// size: what a batch's memory is counted in.
struct EncoderSizes {
  int32_t rows = 0;       // of the program: patches and class rows
  int32_t outputs = 0;    // rows that the projector makes
  int32_t results = 0;    // rows of pictures: the outputs, or what tiles become
  int32_t sequences = 0;  // pictures or tiles
  int32_t windows = 0;

  // The most of a batch of so many units and pictures.
  static EncoderSizes most(const DecoderSpec& spec, int32_t units, int32_t pictures);
};

// Whether a picture's rows are made of those of its tiles' grid and learned ones (TilesSpec).
bool mixes_rows(const DecoderSpec& spec);
// Units of a picture.
int32_t units_of(const DecoderSpec& spec, const PreparedImage& image);
// Of the largest picture that an encoder takes: of any size one of patches_max patches, else the
// whole picture and its tiles. patches_max: at least those of a tile, or 0: as many as the
// processor makes.
int32_t units_max(const DecoderSpec& spec, const ImageProcessorSpec& processor,
                  int32_t patches_max);

// The arrays of a batch; the same layout in pinned and in device memory.
struct EncoderArrays {
  float* patches = nullptr;              // [rows without class rows, features]
  int32_t* positions = nullptr;          // [rows]: within each sequence; of learned positions
  int32_t* places = nullptr;             // [rows, 3]; of rotary ones
  kernels::MixedRow* between = nullptr;  // [rows]; of learned positions of a grid
  int32_t* begins = nullptr;             // [sequences + 1]; of pictures of any size, as `windows`
  int32_t* windows = nullptr;            // [windows + 1]
  int32_t* wanted = nullptr;             // [outputs]: rows, or the first ones of merged rows
  kernels::MixedRow* mixed = nullptr;    // [results], of a grid of tiles

  void lay_out(cuda::Arena& arena, const DecoderSpec& spec, const EncoderSizes& sizes);
};

struct EncoderBatch {
  EncoderSizes sizes;
  int32_t rows_longest = 0;  // of a sequence
  bool equal_rows = true;    // all sequences have that
  int32_t window_rows_longest = 0;
  std::vector<int32_t> result_begins;  // of each picture, and the end of the last
};

// Writes what the pictures are to `host`, which has room for them.
EncoderBatch write_batch(const DecoderSpec& spec, std::span<const EncoderTask> tasks,
                         const EncoderArrays& host);

}  // namespace espalier
