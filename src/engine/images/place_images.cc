#include "engine/images/place_images.h"

#include <algorithm>
#include <iterator>
#include <string_view>
#include <utility>

namespace espalier {
namespace {

TokenId placeholder_of(const ImagesInfo& info, bool video) {
  return video ? info.video_placeholder : info.placeholder;
}

std::string_view noun(const ImagesInfo& info) { return info.sounds ? "sound" : "picture"; }

bool is_placeholder(const ImagesInfo& info, TokenId id) {
  return id == info.placeholder || (id == info.video_placeholder && id >= 0);
}

// Pictures and videos in the order of their placeholders, each kind in its own order: clients of
// /generate state them in a list for each kind. Where the placeholders are not those of the
// pictures the rest stays behind, for expand_placeholders() to refuse.
std::vector<EncodedImage> in_order(std::span<const TokenId> prompt, const ImagesInfo& info,
                                   std::span<const EncodedImage> images) {
  const auto is_video = [](const EncodedImage& image) { return image.rows->frame_rows > 0; };
  const bool one_each = std::cmp_equal(
      std::ranges::count_if(prompt, [&](TokenId id) { return is_placeholder(info, id); }),
      images.size());
  std::vector<EncodedImage> left(images.begin(), images.end()), out;
  for (size_t at = 0; at < prompt.size() && !left.empty(); ++at) {
    if (!is_placeholder(info, prompt[at])) continue;
    const bool video = prompt[at] == info.video_placeholder;
    const auto next = std::ranges::find(left, video, is_video);
    if (next == left.end()) break;
    // The placeholders of its other rows, between lines of which others may stand.
    int32_t others = one_each ? 0 : next->rows->num_tokens() - 1;
    while (others > 0 && ++at < prompt.size()) others -= is_placeholder(info, prompt[at]) ? 1 : 0;
    out.push_back(std::move(*next));
    left.erase(next);
  }
  std::ranges::move(left, std::back_inserter(out));
  return out;
}

// What stands in a prompt for a picture; for a video whose grids stand apart, one grid.
void append_picture(const ImagesInfo& info, const PictureShape& picture,
                    std::vector<TokenId>& out) {
  const int32_t line = picture.line_rows > 0 ? picture.line_rows : picture.num_rows;
  for (int32_t row = 0; row < picture.num_rows; row += line) {
    out.insert(out.end(), static_cast<size_t>(line), placeholder_of(info, picture.video));
    if (picture.line_rows > 0)
      out.push_back(row + line < picture.num_rows ? info.line_end : info.picture_end);
  }
}

// Whether the placeholders are those of whole pictures, in their order.
bool is_expanded(std::span<const TokenId> prompt, const ImagesInfo& info,
                 std::span<const PictureShape> pictures) {
  std::vector<TokenId> wanted;
  size_t next = 0, grid = 0;
  while (true) {
    const auto at =
        std::ranges::find_if(prompt, [&](TokenId id) { return is_placeholder(info, id); });
    if (at == prompt.end()) return next == pictures.size();
    if (next == pictures.size()) return false;
    prompt = prompt.subspan(static_cast<size_t>(at - prompt.begin()));
    wanted.clear();
    append_picture(info, pictures[next], wanted);
    if (prompt.size() < wanted.size() || !std::ranges::equal(prompt.first(wanted.size()), wanted))
      return false;
    prompt = prompt.subspan(wanted.size());
    if (++grid < pictures[next].grid_seconds.size()) continue;
    ++next;
    grid = 0;
  }
}

// A video whose grids stand apart: the time of each, what begins it, its rows, and what ends it. Of
// a prompt in which the latter stand around the placeholder already, `expanded` has the first one
// at its end, and the caller leaves out the other.
Status append_video(const ImagesInfo& info, const PictureShape& video,
                    const AppendTime& append_time, std::vector<TokenId>& expanded) {
  if (!append_time) {
    return error(StatusCode::kUnimplemented,
                 "the times of a video's frames stand in the prompt as text, and this engine has "
                 "no tokenizer: expand the placeholder as transformers' processor does");
  }
  for (const double seconds : video.grid_seconds) {
    append_time(seconds, expanded);
    expanded.push_back(info.grid_begin);
    append_picture(info, video, expanded);
    expanded.push_back(info.grid_end);
  }
  return Status();
}

// Puts the picture's key in place of the placeholders from `at` on.
std::vector<TokenId>::iterator place_image(const EncodedImage& image, int32_t shift,
                                           std::vector<TokenId>& prompt,
                                           std::vector<TokenId>::iterator at, PromptSpans& out) {
  const EncodedRows& rows = *image.rows;
  const TokenId placeholder = *at;
  const auto first = static_cast<int32_t>(at - prompt.begin());
  const int32_t all = rows.num_tokens();
  for (int32_t row = 0; row < all;) {
    const auto begin = static_cast<int32_t>(at - prompt.begin());
    // All grids of a video begin at its own rotary position.
    const bool timed = rows.frame_positions > 0 && rows.grid_columns > 0;
    const int32_t rotary = (timed ? first : begin) + shift;
    const PromptSpan& span = out.spans.emplace_back(
        PromptSpan{.begin = begin, .rows = image.rows, .rotary = rotary, .first_row = row});
    at = std::fill_n(at, span.count(), image.key);
    row += span.count();
    if (rows.line_rows > 0) ++at;  // what ends the line
    if (image.grid_seconds.empty() || row == all) continue;
    // Behind the next grid's time, which is text.
    shift = span.rotary_shift();
    at = std::find(at, prompt.end(), placeholder);
  }
  return at;
}

}  // namespace

Result<std::string> mark_pictures(std::string text, const ImagesInfo& info, size_t num_pictures) {
  if (info.mark.empty()) return text;
  size_t count = 0;
  for (size_t at = 0; (at = text.find(info.mark, at)) != std::string::npos; at += info.mark.size())
    ++count;
  if (count != num_pictures) {
    return fail(invalid_argument(
        "the prompt has {} placeholders of pictures ({}) and the request {} pictures: put one "
        "placeholder for each picture",
        count, info.mark, num_pictures));
  }
  std::string marked;
  marked.reserve(text.size() + count * info.marked.size());
  size_t begin = 0;
  for (size_t at = 0; (at = text.find(info.mark, begin)) != std::string::npos;
       begin = at + info.mark.size())
    marked.append(text, begin, at - begin).append(info.marked);
  return marked.append(text, begin);
}

Result<std::vector<TokenId>> expand_placeholders(std::vector<TokenId> prompt,
                                                 const ImagesInfo& info,
                                                 std::span<const PictureShape> pictures,
                                                 const AppendTime& append_time) {
  if (is_expanded(prompt, info, pictures)) return prompt;
  const auto count =
      std::ranges::count_if(prompt, [&](TokenId id) { return is_placeholder(info, id); });
  int64_t rows = 0;
  for (const PictureShape& picture : pictures)
    rows += picture.num_rows * std::max<int64_t>(1, std::ssize(picture.grid_seconds));
  if (pictures.empty()) {
    return fail(
        invalid_argument("the prompt has {} placeholders of {}s (token {}) and the request no {}: "
                         "send a {} for each "
                         "placeholder, or take them out of the prompt",
                         count, noun(info), info.placeholder, noun(info), noun(info)));
  }
  if (count != std::ssize(pictures)) {
    return fail(invalid_argument(
        "the prompt has {} placeholders of {}s (token {}) and the request {} {}s: put one "
        "placeholder for each {}, or all {} as transformers' processor does",
        count, noun(info), info.placeholder, pictures.size(), noun(info), noun(info), rows));
  }
  std::vector<TokenId> expanded;
  expanded.reserve(prompt.size() + static_cast<size_t>(rows));
  size_t next = 0;
  for (size_t at = 0; at < prompt.size(); ++at) {
    const TokenId id = prompt[at];
    if (!is_placeholder(info, id)) {
      expanded.push_back(id);
      continue;
    }
    const PictureShape& picture = pictures[next++];
    if (id != placeholder_of(info, picture.video)) {
      return fail(invalid_argument(
          "placeholder {} of the prompt is token {}, but the request's {} there: bring pictures "
          "and videos in the order of their placeholders",
          next, id, picture.video ? "video stands" : "picture stands"));
    }
    if (picture.grid_seconds.empty()) {
      append_picture(info, picture, expanded);
      continue;
    }
    if (at > 0 && prompt[at - 1] == info.grid_begin && at + 1 < prompt.size() &&
        prompt[at + 1] == info.grid_end) {
      expanded.pop_back();
      ++at;
    }
    ESP_RETURN_IF_ERROR(append_video(info, picture, append_time, expanded));
  }
  return expanded;
}

Result<std::vector<TokenId>> expand_placeholders(std::vector<TokenId> prompt,
                                                 const ImagesInfo& info, int32_t num_images) {
  if (info.num_rows == 0 && num_images > 0) return fail(rows_depend_on_sizes());
  const std::vector<PictureShape> pictures(static_cast<size_t>(num_images),
                                           {.num_rows = info.num_rows});
  return expand_placeholders(std::move(prompt), info, pictures);
}

Status rows_depend_on_sizes() {
  return error(StatusCode::kUnimplemented,
               "a picture of this model takes as many tokens as its size demands, which is known "
               "when it has been read: ask for no log-probabilities of the prompt "
               "(logprob_start_len) and no count of its tokens beside pictures");
}

Result<std::shared_ptr<const PromptSpans>> place_images(const ImagesInfo& info,
                                                        std::span<const EncodedImage> given,
                                                        std::vector<TokenId>& prompt,
                                                        const AppendTime& append_time) {
  const std::vector<EncodedImage> images = in_order(prompt, info, given);
  std::vector<PictureShape> pictures;
  for (const EncodedImage& image : images) {
    const EncodedRows& rows = *image.rows;
    pictures.push_back(
        {.num_rows = image.grid_seconds.empty() ? rows.num_tokens() : rows.frame_rows,
         .line_rows = rows.line_rows,
         .video = rows.frame_rows > 0,
         .grid_seconds = image.grid_seconds});
  }
  ESP_ASSIGN_OR_RETURN(prompt, expand_placeholders(std::move(prompt), info, pictures, append_time));
  auto placed = std::make_shared<PromptSpans>();
  placed->placeholder = info.placeholder;
  placed->whole = info.bidirectional;
  placed->cross = info.num_cross_layers > 0;
  int32_t shift = 0;  // from positions to rotary ones
  auto at = prompt.begin();
  for (const EncodedImage& image : images) {
    at = std::find_if(at, prompt.end(), [&](TokenId id) { return is_placeholder(info, id); });
    at = place_image(image, shift, prompt, at, *placed);
    shift = placed->spans.back().rotary_shift();
    placed->have_grids |= image.rows->grid_columns > 0;
  }
  return std::shared_ptr<const PromptSpans>(std::move(placed));
}

}  // namespace espalier
