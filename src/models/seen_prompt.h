// For tests of this room: the pictures and the prompt of a folder of tests/golden/images, and what
// transformers makes of them.
#pragma once

#include <cstdint>
#include <filesystem>
#include <initializer_list>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "media/audio.h"
#include "media/image.h"
#include "models/golden.h"
#include "models/image_encoder.h"
#include "models/model.h"

namespace espalier::golden {

struct Picture {
  Image image;
  std::vector<float> rows;
};
std::vector<Picture> read_pictures(const std::filesystem::path& folder);

// What encode() makes of an image.
std::vector<float> rows_of(ImageEncoder& encoder, const Image& image);
// The largest error of made[i], in units of the spread of the pictures' rows; a NaN stays one.
float rows_error(const std::vector<Picture>& pictures, const std::vector<std::vector<float>>& made);
float encoder_error(ImageEncoder& encoder, const std::filesystem::path& folder);

// A prompt with the first and the third of the folder's pictures.
struct SeenPrompt {
  std::vector<TokenId> tokens;  // placeholders are keys
  std::vector<EmbeddingSpan> spans;
  std::vector<RotarySpan> rotary_spans;  // of models whose rows have places in a grid
  std::vector<float> logits;             // [tokens, vocab], of transformers
  float spread = 0;

  float error(const std::vector<float>& made) const;  // of logits, in units of the spread
};
// The frames of a folder's video, of a model that reads videos.
struct DrawnVideo {
  std::vector<Image> frames;
  double frames_per_second = 0;
  std::vector<float> rows;
};
DrawnVideo read_video(const std::filesystem::path& folder);
// A prompt with the first picture and the video.
SeenPrompt read_video_prompt(const std::filesystem::path& folder, ImageEncoder& encoder);

// Of a folder of tests/golden/sounds: drawn sounds, and a prompt with the first and the third.
struct GoldenSound {
  Audio audio;
  std::vector<float> rows;
};
std::vector<GoldenSound> read_golden_sounds(const std::filesystem::path& folder);
SeenPrompt read_sound_prompt(const std::filesystem::path& folder, ImageEncoder& encoder);

inline constexpr TokenId kSeenPlaceholder = 97, kVideoPlaceholder = 98;
// name: of another prompt of the folder, with these pictures.
SeenPrompt read_seen_prompt(const std::filesystem::path& folder, ImageEncoder& encoder,
                            const std::string& name = "seen",
                            std::initializer_list<int> pictures = {0, 2});

// Logits of all positions, in pieces of at most `chunk` tokens, or more where a piece would end
// within a picture whose rows see each other; `beside`: tokens of another entry that has one token
// in each step.
std::vector<float> run_seen_prompt(Model& model, const SeenPrompt& prompt, KvType type,
                                   int32_t chunk, std::vector<TokenId> beside = {});

}  // namespace espalier::golden
