#include "models/seen_prompt.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "checkpoint/safetensors.h"
#include "media/drawn.h"
#include "media/drawn_sound.h"

namespace espalier::golden {
namespace {

SafetensorsFile open_reference(const std::filesystem::path& folder) {
  auto file = SafetensorsFile::open(folder / "reference.safetensors");
  ESP_CHECK(file.has_value(), "{}", file.error().message());
  return *std::move(file);
}

bool has(const SafetensorsFile& file, const std::string& name) {
  return std::ranges::any_of(file.tensors(),
                             [&](const CheckpointTensor& tensor) { return tensor.name == name; });
}

template <typename T>
std::vector<T> values(const SafetensorsFile& file, const std::string& name) {
  for (const CheckpointTensor& tensor : file.tensors()) {
    if (tensor.name != name) continue;
    std::vector<T> out(tensor.bytes.size() / sizeof(T));
    std::memcpy(out.data(), tensor.bytes.data(), tensor.bytes.size());
    return out;
  }
  ESP_CHECK(false, "no {}", name);
  return {};
}

Image drawn_image(const SafetensorsFile& file, const std::string& size) {
  const auto sides = values<int32_t>(file, size);
  return test::drawn(sides[0], sides[1]);
}

std::shared_ptr<const EncodedRows> encode(ImageEncoder& encoder,
                                          const Result<PreparedImage>& prepared) {
  ESP_CHECK(prepared.has_value(), "{}", prepared.error().message());
  auto rows = std::make_shared<EncodedRows>();
  rows->num_rows = prepared->num_rows;
  rows->width = encoder.info().width;
  rows->grid_columns = prepared->grid_columns;
  rows->line_rows = prepared->line_rows;
  rows->frame_rows = prepared->frame_rows;
  rows->frame_positions = prepared->frame_positions;
  rows->tile_rows = prepared->tile_rows;
  rows->values.resize(static_cast<size_t>(rows->num_rows) * static_cast<size_t>(rows->width));
  const Status status = encoder.encode(*prepared, rows->values);
  ESP_CHECK(status.ok(), "{}", status.message());
  return rows;
}

std::shared_ptr<const EncodedRows> encode(ImageEncoder& encoder, const Image& image) {
  return encode(encoder, encoder.prepare(image));
}

// Puts the rows in place of the next placeholders from `at` on, line by line and grid by grid.
std::vector<TokenId>::iterator place(const std::shared_ptr<const EncodedRows>& rows, TokenId id,
                                     TokenId key, std::vector<TokenId>::iterator at,
                                     SeenPrompt& prompt) {
  const int32_t count = rows->frame_rows > 0  ? rows->frame_rows
                        : rows->line_rows > 0 ? rows->line_rows
                                              : rows->num_tokens();
  const int32_t all = rows->tile_rows > 0 ? 1 : rows->num_rows;
  for (int32_t row = 0; row < all; row += count) {
    at = std::find(at, prompt.tokens.end(), id);
    prompt.spans.push_back({.token_begin = static_cast<int32_t>(at - prompt.tokens.begin()),
                            .count = count,
                            .first_row = row,
                            .rows = rows});
    at = std::fill_n(at, count, key);
  }
  return at;
}

// Where a picture stands, and the text behind it: transformers' get_rope_index, written again.
std::vector<RotarySpan> rotary_spans(const SeenPrompt& prompt) {
  std::vector<RotarySpan> out;
  int32_t position = 0, done = 0;
  const auto add_text = [&](int32_t end) {
    if (end > done) out.push_back({.token_begin = done, .count = end - done, .position = position});
    position += end - done;
    done = end;
  };
  for (const EmbeddingSpan& span : prompt.spans) {
    if (span.rows->grid_columns == 0) return {};
    add_text(span.token_begin);
    const int32_t columns = span.rows->grid_columns;
    const bool timed = span.rows->frame_positions > 0;
    const int32_t time = timed ? static_cast<int32_t>(span.rows->frame_positions *
                                                      (span.first_row / span.rows->frame_rows))
                               : 0;
    out.push_back({.token_begin = done,
                   .count = span.count,
                   .position = position,
                   .columns = columns,
                   .time = time});
    done += span.count;
    const bool last = !timed || span.first_row + span.count == span.rows->num_rows;
    if (last) position += std::max(columns, span.count / columns);
  }
  add_text(static_cast<int32_t>(prompt.tokens.size()));
  return out;
}

}  // namespace

std::vector<Picture> read_pictures(const std::filesystem::path& folder) {
  const SafetensorsFile file = open_reference(folder);
  std::vector<Picture> pictures;
  for (int i = 0; has(file, "size_" + std::to_string(i)); ++i) {
    const std::string index = std::to_string(i);
    pictures.push_back({drawn_image(file, "size_" + index), values<float>(file, "rows_" + index)});
  }
  return pictures;
}

std::vector<float> rows_of(ImageEncoder& encoder, const Image& image) {
  return encode(encoder, image)->values;
}

float rows_error(const std::vector<Picture>& pictures,
                 const std::vector<std::vector<float>>& made) {
  float error = 0, low = 0, high = 0;
  for (size_t picture = 0; picture < pictures.size(); ++picture) {
    const std::vector<float>& want = pictures[picture].rows;
    ESP_CHECK(made[picture].size() == want.size());
    for (size_t i = 0; i < want.size(); ++i) {
      const float off = std::fabs(made[picture][i] - want[i]);
      error = off <= error ? error : off;  // a NaN stays
      low = std::min(low, want[i]);
      high = std::max(high, want[i]);
    }
  }
  return error / (high - low);
}

float encoder_error(ImageEncoder& encoder, const std::filesystem::path& folder) {
  const std::vector<Picture> pictures = read_pictures(folder);
  ESP_CHECK(pictures.size() == 4);
  std::vector<std::vector<float>> made;
  for (const Picture& picture : pictures) made.push_back(rows_of(encoder, picture.image));
  return rows_error(pictures, made);
}

float SeenPrompt::error(const std::vector<float>& made) const {
  const size_t width = made.size() / tokens.size(), own = logits.size() / tokens.size();
  ESP_CHECK(width >= own && width * tokens.size() == made.size());
  float most = 0;
  for (size_t i = 0; i < logits.size(); ++i) {  // tokens behind the head's have no logit
    const float off = std::abs(made[i / own * width + i % own] - logits[i]);
    if (!(off <= most)) most = off;
  }
  return most / spread;
}

SeenPrompt read_seen_prompt(const std::filesystem::path& folder, ImageEncoder& encoder,
                            const std::string& name, std::initializer_list<int> pictures) {
  const SafetensorsFile file = open_reference(folder);
  SeenPrompt prompt{.tokens = values<TokenId>(file, name + "_prompt"),
                    .spans = {},
                    .rotary_spans = {},
                    .logits = values<float>(file, name + "_logits")};
  const auto [low, high] = std::ranges::minmax(prompt.logits);
  prompt.spread = high - low;
  auto at = prompt.tokens.begin();
  TokenId key = kFirstSpanKey;
  for (const int picture : pictures) {
    const Image image = drawn_image(file, "size_" + std::to_string(picture));
    at = place(encode(encoder, image), kSeenPlaceholder, ++key, at, prompt);
  }
  prompt.rotary_spans = rotary_spans(prompt);
  return prompt;
}

DrawnVideo read_video(const std::filesystem::path& folder) {
  const SafetensorsFile file = open_reference(folder);
  DrawnVideo video{.frames = {},
                   .frames_per_second = values<float>(file, "video_rate")[0],
                   .rows = values<float>(file, "video_rows")};
  const auto size = values<int32_t>(file, "video_size");
  for (int32_t i = 0; i < values<int32_t>(file, "video_frames")[0]; ++i) {
    const Image wide = test::drawn(size[0] + i, size[1]);
    Image& frame = video.frames.emplace_back(Image{.width = size[0], .height = size[1], .rgb = {}});
    for (int64_t y = 0; y < size[1]; ++y) {
      const auto from = wide.rgb.begin() + (y * wide.width + i) * 3;
      frame.rgb.insert(frame.rgb.end(), from, from + int64_t{size[0]} * 3);
    }
  }
  return video;
}

SeenPrompt read_video_prompt(const std::filesystem::path& folder, ImageEncoder& encoder) {
  const SafetensorsFile file = open_reference(folder);
  SeenPrompt prompt{.tokens = values<TokenId>(file, "video_prompt"),
                    .spans = {},
                    .rotary_spans = {},
                    .logits = values<float>(file, "video_logits")};
  const auto [low, high] = std::ranges::minmax(prompt.logits);
  prompt.spread = high - low;
  const auto at = place(encode(encoder, drawn_image(file, "size_0")), kSeenPlaceholder,
                        kFirstSpanKey + 1, prompt.tokens.begin(), prompt);
  const DrawnVideo video = read_video(folder);
  place(encode(encoder, encoder.prepare_video(video.frames, video.frames_per_second)),
        kVideoPlaceholder, kFirstSpanKey + 2, at, prompt);
  prompt.rotary_spans = rotary_spans(prompt);
  return prompt;
}

std::vector<GoldenSound> read_golden_sounds(const std::filesystem::path& folder) {
  const SafetensorsFile file = open_reference(folder);
  std::vector<GoldenSound> sounds;
  for (int i = 0; has(file, "samples_" + std::to_string(i)); ++i) {
    const std::string index = std::to_string(i);
    const auto count = values<int32_t>(file, "samples_" + index)[0];
    sounds.push_back({.audio = {.sample_rate = 16'000, .samples = test::drawn_samples(count)},
                      .rows = values<float>(file, "rows_" + index)});
  }
  return sounds;
}

SeenPrompt read_sound_prompt(const std::filesystem::path& folder, ImageEncoder& encoder) {
  const SafetensorsFile file = open_reference(folder);
  SeenPrompt prompt{.tokens = values<TokenId>(file, "seen_prompt"),
                    .spans = {},
                    .rotary_spans = {},
                    .logits = values<float>(file, "seen_logits")};
  const auto [low, high] = std::ranges::minmax(prompt.logits);
  prompt.spread = high - low;
  const std::vector<GoldenSound> sounds = read_golden_sounds(folder);
  auto at = prompt.tokens.begin();
  TokenId key = kFirstSpanKey;
  for (const size_t index : {size_t{0}, size_t{2}}) {
    at = place(encode(encoder, encoder.prepare_sound(sounds[index].audio)), kSeenPlaceholder, ++key,
               at, prompt);
  }
  return prompt;
}

std::vector<float> run_seen_prompt(Model& model, const SeenPrompt& prompt, KvType type,
                                   int32_t chunk, std::vector<TokenId> beside) {
  Rng rng(5);
  ESP_CHECK(model.reserve(512, 2).ok());
  KvMemory kv(model.info(), type, 4, 512, rng);
  Track track{.tokens = prompt.tokens,
              .pages = {},
              .logits = {},
              .spans = prompt.spans,
              .rotary_spans = prompt.rotary_spans};
  Track other{
      .tokens = std::move(beside), .pages = {}, .logits = {}, .spans = {}, .rotary_spans = {}};
  const bool whole = model.info().images->bidirectional;
  while (track.done < std::ssize(track.tokens)) {
    const auto left = static_cast<int32_t>(track.tokens.size()) - track.done;
    int32_t count = std::min(chunk, left);
    for (const EmbeddingSpan& span : prompt.spans) {
      const int32_t end = span.token_begin + span.count;
      if (whole && span.token_begin < track.done + count) count = std::max(count, end - track.done);
    }
    std::vector<Piece> pieces;
    if (other.done < std::ssize(other.tokens)) pieces.push_back({&other, 1, Piece::Want::kLast});
    pieces.push_back({&track, count});
    run_step(model, kv, pieces);
  }
  std::vector<float> all;
  for (const auto& [position, logits] : track.logits)
    all.insert(all.end(), logits.begin(), logits.end());
  return all;
}

}  // namespace espalier::golden
