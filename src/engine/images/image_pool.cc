#include "engine/images/image_pool.h"

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <utility>

#include "base/clock.h"
#include "base/memory_reserve.h"
#include "base/thread.h"

namespace espalier {
namespace {

// Rows with their part of the account.
struct ChargedRows {
  EncodedRows rows;
  MemoryCharge charge;
};

// Of the sources of pictures that wait, such as the texts of their data URLs.
constexpr int64_t kWaitingBytesMax = int64_t{1} << 30;

// Of a video's files, and of its frames' pixels, so many times what a picture may have.
constexpr int64_t kVideoPictures = 16;

std::span<const uint8_t> bytes_of(const std::string& file) {
  return {reinterpret_cast<const uint8_t*>(file.data()), file.size()};
}

// What of files makes their rows: of a video's the time too. Where rows depend on whether a picture
// is alone, one that is not has another digest, and so rows and a key of its own.
SpanKeys::Digest digest_of(std::span<const std::string> files, double frames_per_second,
                           bool alone) {
  Sha256 sha;
  if (files.size() == 1 && frames_per_second == 0) {
    sha.update(files[0]);
  } else {
    sha.update(fmt::format("video {} {}", files.size(), frames_per_second));
    for (const std::string& file : files) {
      sha.update(fmt::format(" {} ", file.size()));
      sha.update(file);
    }
  }
  SpanKeys::Digest digest = sha.finish();
  if (!alone) digest[0] ^= 1;
  return digest;
}

}  // namespace

ImagePool::ImagePool(std::unique_ptr<ImageEncoder> encoder, const ImagePoolConfig& config)
    : encoder_(std::move(encoder)),
      config_(config),
      waiting_(std::make_shared<MemoryAccount>("images", kWaitingBytesMax)),
      rows_(std::make_shared<MemoryAccount>("image_rows", config.row_bytes_max)),
      batches_(*encoder_),
      jobs_(config.num_waiting_max) {
  for (int32_t i = 0; i < config.num_threads; ++i) threads_.emplace_back([this] { work(); });
}

ImagePool::~ImagePool() {
  jobs_.close();
  std::vector<Job> dropped;
  jobs_.drain(dropped);
  {
    std::lock_guard lock(mutex_);
    for (auto& [id, stop] : requests_) stop.request_stop();
  }
  made_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

Status ImagePool::submit(RequestId id, std::vector<ImageInput> images, Done done) {
  // Where sizes decide, a picture has a row at least, and allocate() finds the rest out.
  const int32_t least = std::max(1, encoder_->info().num_rows);
  const int64_t most = config_.row_bytes_max / encoder_->row_bytes(least);
  if (std::ssize(images) > most)
    return invalid_argument("the request has {} pictures, and --image-cache-bytes has room for {}",
                            images.size(), most);
  Job job{.id = id,
          .stop = {},
          .images = std::move(images),
          .charge = MemoryCharge(waiting_),
          .done = std::move(done)};
  int64_t bytes = 0;
  for (const ImageInput& image : job.images) bytes += image.source_bytes;
  if (job.charge.resize(bytes)) {
    {
      std::lock_guard lock(mutex_);
      requests_[id] = job.stop;
    }
    if (jobs_.try_push(std::move(job))) return {};
    std::lock_guard lock(mutex_);
    requests_.erase(id);
  }
  return error(StatusCode::kResourceExhausted,
               "too many pictures wait to be encoded: try again later");
}

void ImagePool::cancel(RequestId id) {
  {
    std::lock_guard lock(mutex_);
    const auto found = requests_.find(id);
    if (found == requests_.end()) return;
    found->second.request_stop();
  }
  made_.notify_all();
}

void ImagePool::work() {
  set_thread_name("images");
  while (auto job = jobs_.pop()) {
    auto images = [&]() -> Result<std::vector<EncodedImage>> {
      try {
        return run(*job);
      } catch (const std::exception&) {  // the standard library's: no memory
        return fail(error(StatusCode::kResourceExhausted,
                          "there is no memory for a picture of the request: try again later"));
      }
    }();
    const MemoryReserveScope reserve;  // the answer is passed on even when memory is short
    {
      std::lock_guard lock(mutex_);
      requests_.erase(job->id);
    }
    if (!job->stop.stop_requested()) job->done(std::move(images));
  }
}

Result<std::vector<EncodedImage>> ImagePool::run(const Job& job) {
  std::vector<EncodedImage> images;
  const Asked asked{.alone = job.images.size() == 1, .stop = job.stop.get_token()};
  for (const ImageInput& input : job.images) {
    if (asked.stop.stop_requested()) return fail(encoding_stopped());
    auto image = encode(input, asked);
    if (!image)
      return fail(image.error().with_context(
          fmt::format("{} {} of {}", encoder_->info().patches.sound ? "sound" : "picture",
                      images.size() + 1, job.images.size())));
    images.push_back(*std::move(image));
  }
  return images;
}

// Whether the model reads what it is.
Status ImagePool::check_kind(const ImageInput& input) const {
  const PatchesSpec& patches = encoder_->info().patches;
  if (input.is_sound && !patches.sound)
    return error(StatusCode::kUnimplemented,
                 "it is a sound, and this model reads pictures: send its words as text");
  if (patches.sound && !input.is_sound)
    return error(StatusCode::kUnimplemented,
                 "it is a picture or a video, and this model takes sounds alone");
  if (!input.is_video() || patches.videos) return {};
  return error(StatusCode::kUnimplemented,
               "it is a video, and this model reads pictures alone: send its frames as pictures");
}

// Of a video whose grids stand behind their times; rate: of the frames that the indices count.
void ImagePool::set_times(Shots& shots, std::span<const int32_t> indices, double rate) const {
  const PatchesSpec& patches = encoder_->info().patches;
  if (patches.grids_apart) shots.grid_seconds = grid_seconds(indices, rate, patches.frames);
}

// The frames that are sampled, of whose files no others are read.
Result<ImagePool::Shots> ImagePool::read_frames(const ImageInput& input, const Asked& asked) const {
  const ImageProcessorSpec::Video& spec = *encoder_->info().processor.video;
  const auto total = static_cast<int32_t>(input.frames.size());
  const std::vector<int32_t> indices = sample_frames(spec, total, input.frames_per_second);
  Shots shots;
  shots.frames_per_second = spec.frames_per_second;
  if (input.frames_per_second > 0)
    shots.frames_per_second = static_cast<double>(indices.size()) / total * input.frames_per_second;
  set_times(shots, indices,
            input.frames_per_second > 0 ? input.frames_per_second : spec.frames_per_second);
  int64_t bytes = 0;
  for (const int32_t index : indices) {
    if (asked.stop.stop_requested()) return fail(encoding_stopped());
    ESP_ASSIGN_OR_RETURN(shots.files.emplace_back(), input.frames[static_cast<size_t>(index)]());
    bytes += std::ssize(shots.files.back());
    if (bytes <= kVideoPictures * config_.limits.bytes_max) continue;
    return fail(invalid_argument(
        "its frames are more than {} bytes: send fewer or smaller ones, or raise --max-image-bytes",
        kVideoPictures * config_.limits.bytes_max));
  }
  return shots;
}

// A video's file, of which nothing is decoded yet.
Result<ImagePool::Shots> ImagePool::open_video(const ImageInput& input) const {
  Shots shots;
  ESP_ASSIGN_OR_RETURN(shots.files.emplace_back(), input.read());
  const VideoLimits limits{.bytes_max = kVideoPictures * config_.limits.bytes_max,
                           .pixels_max = config_.limits.pixels_max,
                           .seconds_max = config_.video_seconds_max};
  ESP_ASSIGN_OR_RETURN(shots.video, VideoFile::open(bytes_of(shots.files[0]), limits));
  const VideoHeader& header = shots.video->header();
  ImageProcessorSpec::Video spec = *encoder_->info().processor.video;
  if (input.video_file->num_frames > 0) {
    spec.num_frames = input.video_file->num_frames;
  } else if (input.video_file->frames_per_second > 0) {
    spec.num_frames = 0;
    spec.frames_per_second = input.video_file->frames_per_second;
  }
  shots.indices = sample_frames(spec, header.num_frames, header.frames_per_second);
  shots.frames_per_second =
      static_cast<double>(shots.indices.size()) / header.num_frames * header.frames_per_second;
  set_times(shots, shots.indices, header.frames_per_second);
  return shots;
}

Status ImagePool::add_frame(Shots& shots, Image&& image, int64_t& pixels) const {
  pixels += int64_t{image.width} * image.height;
  if (pixels > kVideoPictures * config_.limits.pixels_max) {
    return invalid_argument(
        "its frames have more than {} pixels: send fewer or smaller ones, or raise "
        "--max-image-pixels",
        kVideoPictures * config_.limits.pixels_max);
  }
  shots.images.push_back(std::move(image));
  return Status();
}

Status ImagePool::decode(Shots& shots) const {
  if (encoder_->info().patches.sound) {
    ESP_ASSIGN_OR_RETURN(shots.sound, decode_audio(bytes_of(shots.files[0]), config_.sound_limits));
    return {};
  }
  int64_t pixels = 0;
  for (const std::string& file : shots.files) {
    ESP_ASSIGN_OR_RETURN(Image image, decode_image(bytes_of(file), config_.limits));
    ESP_RETURN_IF_ERROR(add_frame(shots, std::move(image), pixels));
  }
  return Status();
}

// Frames are resized as they come, so that memory holds what the encoder reads.
Status ImagePool::decode_video(Shots& shots, const Asked& asked) const {
  const ImageProcessorSpec spec =
      encoder_->info().processor.of_frames(static_cast<int32_t>(shots.count()));
  int64_t pixels = 0;
  return shots.video->read(
      shots.indices,
      [&](Image&& frame) -> Status {
        ESP_ASSIGN_OR_RETURN(Image fitted, fit_image(frame, spec));
        return add_frame(shots, std::move(fitted), pixels);
      },
      asked.stop);
}

Result<ImagePool::Shots> ImagePool::read_files(const ImageInput& input, const Asked& asked) const {
  if (input.video_file) return open_video(input);
  if (input.is_video()) return read_frames(input, asked);
  Shots shots;
  ESP_ASSIGN_OR_RETURN(shots.files.emplace_back(), input.read());
  return shots;
}

Result<EncodedImage> ImagePool::encode(const ImageInput& input, const Asked& asked) {
  const auto& tiles = encoder_->info().tiles;
  ESP_RETURN_IF_ERROR(check_kind(input));
  ESP_ASSIGN_OR_RETURN(Shots shots, read_files(input, asked));
  const SpanKeys::Digest digest =
      digest_of(shots.files, shots.frames_per_second, asked.alone || !tiles || !tiles->alone);
  std::shared_ptr<const EncodedRows> rows = find(digest);
  if (rows == nullptr) {
    ESP_ASSIGN_OR_RETURN(rows, make_rows(digest, shots, asked));
  }
  const std::optional<TokenId> key = keys_.key_of(digest);
  if (!key)
    return fail(error(StatusCode::kResourceExhausted,
                      "all keys of pictures are used up: start the engine again"));
  std::lock_guard lock(mutex_);
  ++stats_.num_images_total;
  return EncodedImage{
      .key = *key, .rows = std::move(rows), .grid_seconds = std::move(shots.grid_seconds)};
}

std::shared_ptr<const EncodedRows> ImagePool::find(const SpanKeys::Digest& digest) {
  std::lock_guard lock(mutex_);
  return find_locked(digest);
}

std::shared_ptr<const EncodedRows> ImagePool::find_locked(const SpanKeys::Digest& digest) {
  const auto found = places_.find(digest);
  if (found == places_.end()) return nullptr;
  kept_.splice(kept_.begin(), kept_, found->second);
  return found->second->rows;
}

// Of threads with the same picture one encodes it, and the others wait for its rows; where that one
// fails, the next one tries.
Result<std::shared_ptr<const EncodedRows>> ImagePool::make_rows(const SpanKeys::Digest& digest,
                                                                Shots& shots, const Asked& asked) {
  {
    std::unique_lock lock(mutex_);
    made_.wait(lock, [&] { return asked.stop.stop_requested() || !in_progress_.contains(digest); });
    if (asked.stop.stop_requested()) return fail(encoding_stopped());
    if (std::shared_ptr<const EncodedRows> rows = find_locked(digest)) return rows;
    in_progress_.insert(digest);
  }
  double seconds = 0;
  auto rows = [&]() -> Result<std::shared_ptr<EncodedRows>> {
    try {
      return encode(shots, asked, seconds);
    } catch (...) {
      std::lock_guard lock(mutex_);
      in_progress_.erase(digest);
      made_.notify_all();
      throw;
    }
  }();
  std::lock_guard lock(mutex_);
  in_progress_.erase(digest);
  made_.notify_all();
  if (!rows) return fail(std::move(rows.error()));
  ++stats_.num_encoded_total;
  stats_.encode_seconds_total += seconds;
  kept_.push_front({digest, *rows});
  places_[digest] = kept_.begin();
  return std::shared_ptr<const EncodedRows>(*rows);
}

Result<PreparedImage> ImagePool::plan(const Shots& shots, const Asked& asked) const {
  if (shots.sound) return encoder_->plan_sound(*shots.sound);
  ImageProcessorSpec::Size size;
  if (shots.video != nullptr) {
    size = {shots.video->header().width, shots.video->header().height};
  } else {
    size = {shots.images[0].width, shots.images[0].height};
  }
  if (!shots.is_video()) return encoder_->plan(size, asked.alone);
  return encoder_->plan_video(size, static_cast<int32_t>(shots.count()), shots.frames_per_second);
}

Result<PreparedImage> ImagePool::prepare(const Shots& shots, const Asked& asked) const {
  if (shots.sound) return encoder_->prepare_sound(*shots.sound);
  if (shots.is_video())
    return encoder_->prepare_video(shots.images, shots.frames_per_second, shots.video != nullptr);
  return encoder_->prepare(shots.images[0], asked.alone);
}

Result<std::shared_ptr<EncodedRows>> ImagePool::encode(Shots& shots, const Asked& asked,
                                                       double& seconds) {
  if (shots.video == nullptr) ESP_RETURN_IF_ERROR(decode(shots));
  // The rows first: a picture that there is no room for is not resized, and no video decoded.
  ESP_ASSIGN_OR_RETURN(const PreparedImage plan, this->plan(shots, asked));
  if (plan.last_frame_position() >= config_.num_rows_max) {
    return fail(
        invalid_argument("its last frames stand at the rotary position {:.0f}, and prompt and "
                         "output share {}: send fewer frames or a higher fps",
                         plan.last_frame_position(), config_.num_rows_max));
  }
  ESP_ASSIGN_OR_RETURN(std::shared_ptr<EncodedRows> rows, allocate(plan));
  if (shots.video != nullptr) ESP_RETURN_IF_ERROR(decode_video(shots, asked));
  ESP_ASSIGN_OR_RETURN(const PreparedImage prepared, prepare(shots, asked));
  rows->grid_columns = prepared.grid_columns;
  rows->line_rows = prepared.line_rows;
  rows->frame_rows = prepared.frame_rows;
  rows->frame_positions = prepared.frame_positions;
  rows->tile_rows = prepared.tile_rows;
  ESP_ASSIGN_OR_RETURN(
      seconds, batches_.encode({.image = &prepared, .rows = rows.get(), .stop = asked.stop}));
  return rows;
}

// Rows that a request uses are not dropped: their memory would stay.
Result<std::shared_ptr<EncodedRows>> ImagePool::allocate(const PreparedImage& plan) {
  const int32_t num_rows = plan.num_rows;
  const int64_t bytes = encoder_->row_bytes(num_rows);
  if (plan.num_tokens() > config_.num_rows_max)
    return fail(
        invalid_argument("it takes {} tokens, and prompt and output share {}: send a smaller one",
                         plan.num_tokens(), config_.num_rows_max));
  if (bytes > config_.row_bytes_max)
    return fail(invalid_argument(
        "it becomes {} rows, and --image-cache-bytes has no room for them: send a smaller one, or "
        "raise it",
        num_rows));
  auto charged = std::make_shared<ChargedRows>();
  charged->charge = MemoryCharge(rows_);
  while (!charged->charge.resize(bytes)) {
    std::lock_guard lock(mutex_);
    const auto unused = std::find_if(kept_.rbegin(), kept_.rend(),
                                     [](const Kept& kept) { return kept.rows.use_count() == 1; });
    if (unused == kept_.rend())
      return fail(error(StatusCode::kResourceExhausted,
                        "pictures of running requests hold all {} bytes of --image-cache-bytes: "
                        "try again later, or raise it",
                        config_.row_bytes_max));
    places_.erase(unused->digest);
    kept_.erase(std::next(unused).base());
  }
  ESP_ASSIGN_OR_RETURN(charged->rows, encoder_->allocate_rows(num_rows));
  EncodedRows* const rows = &charged->rows;
  return std::shared_ptr<EncodedRows>(std::move(charged), rows);
}

ImagePoolStats ImagePool::stats() const {
  std::lock_guard lock(mutex_);
  ImagePoolStats stats = stats_;
  stats.row_bytes = rows_->used();
  return stats;
}

}  // namespace espalier
