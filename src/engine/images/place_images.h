// Where a prompt's pictures stand: its placeholders become the keys of their pictures' rows. Pure.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "engine/scheduler/scheduler.h"
#include "models/model.h"

namespace espalier {

struct EncodedImage {
  TokenId key = -1;  // SpanKeys'
  std::shared_ptr<const EncodedRows> rows;
  // Of a video whose grids stand apart in the prompt, each behind its time as text (Qwen3-VL): the
  // times. The rows' frame_positions is 0 then: each grid has positions like a picture.
  std::vector<double> grid_seconds = {};
};

// How a picture's rows stand in a prompt.
struct PictureShape {
  int32_t num_rows = 0;                       // of a video whose grids stand apart: of a grid
  int32_t line_rows = 0;                      // EncodedRows'
  bool video = false;                         // it has the video's placeholder
  std::span<const double> grid_seconds = {};  // EncodedImage's
};

// Appends the tokens of a time of a video, as they follow what `prompt` ends with (video_times.h).
using AppendTime = std::function<void(double seconds, std::vector<TokenId>& prompt)>;

// A text with what its template writes for a picture as transformers' processors replace it before
// it becomes tokens (ImagesSpec::mark). kInvalidArgument where the marks are not as many as the
// pictures; time and memory are linear in the text.
Result<std::string> mark_pictures(std::string text, const ImagesInfo& info, size_t num_pictures);

// A prompt with as many placeholders in place of each as its picture has rows, with the tokens
// between its lines, as transformers' processors make it. A prompt that is expanded already stays
// as it is. kInvalidArgument where the placeholders are not those of the pictures.
Result<std::vector<TokenId>> expand_placeholders(std::vector<TokenId> prompt,
                                                 const ImagesInfo& info,
                                                 std::span<const PictureShape> pictures,
                                                 const AppendTime& append_time = {});
// The same before pictures are read; kUnimplemented where their sizes decide about their rows.
Result<std::vector<TokenId>> expand_placeholders(std::vector<TokenId> prompt,
                                                 const ImagesInfo& info, int32_t num_images);

Status rows_depend_on_sizes();  // that failure

// Expands `prompt` and puts the keys of `images` in place of its placeholders, picture after
// picture and video after video; of both kinds, whichever placeholder comes next. Fails as
// expand_placeholders() does; then `prompt` is undefined.
Result<std::shared_ptr<const PromptSpans>> place_images(const ImagesInfo& info,
                                                        std::span<const EncodedImage> images,
                                                        std::vector<TokenId>& prompt,
                                                        const AppendTime& append_time = {});

}  // namespace espalier
