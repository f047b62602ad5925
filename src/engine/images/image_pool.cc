#include "engine/images/image_pool.h"

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

// num_rows: of a picture.
int64_t row_bytes(const ImageEncoderInfo& info, int32_t num_rows) {
  return int64_t{num_rows} * info.width * static_cast<int64_t>(sizeof(float));
}

// What of a file makes its rows: where they depend on whether it is alone, one that is not has
// another digest, and so rows and a key of its own.
SpanKeys::Digest digest_of(std::string_view file, bool alone) {
  Sha256 sha;
  sha.update(file);
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
      jobs_(config.num_waiting_max) {
  for (int32_t i = 0; i < config.num_threads; ++i) threads_.emplace_back([this] { work(); });
}

ImagePool::~ImagePool() {
  jobs_.close();
  std::vector<Job> dropped;
  jobs_.drain(dropped);
  for (std::thread& thread : threads_) thread.join();
}

Status ImagePool::submit(std::vector<ImageInput> images, Done done) {
  // Where sizes decide, a picture has a row at least, and allocate() finds the rest out.
  const ImageEncoderInfo& info = encoder_->info();
  const int64_t most = config_.row_bytes_max / row_bytes(info, std::max(1, info.num_rows));
  if (std::ssize(images) > most)
    return invalid_argument("the request has {} pictures, and --image-cache-bytes has room for {}",
                            images.size(), most);
  Job job{.images = std::move(images), .charge = MemoryCharge(waiting_), .done = std::move(done)};
  int64_t bytes = 0;
  for (const ImageInput& image : job.images) bytes += image.source_bytes;
  if (job.charge.resize(bytes) && jobs_.try_push(std::move(job))) return {};
  return error(StatusCode::kResourceExhausted,
               "too many pictures wait to be encoded: try again later");
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
    job->done(std::move(images));
  }
}

Result<std::vector<EncodedImage>> ImagePool::run(const Job& job) {
  std::vector<EncodedImage> images;
  for (const ImageInput& input : job.images) {
    auto image = encode(input, job.images.size() == 1);
    if (!image)
      return fail(image.error().with_context(
          fmt::format("picture {} of {}", images.size() + 1, job.images.size())));
    images.push_back(*std::move(image));
  }
  return images;
}

Result<EncodedImage> ImagePool::encode(const ImageInput& input, bool alone) {
  ESP_ASSIGN_OR_RETURN(const std::string file, input.read());
  const std::span bytes(reinterpret_cast<const uint8_t*>(file.data()), file.size());
  const auto& tiles = encoder_->info().tiles;
  const SpanKeys::Digest digest = digest_of(file, alone || !tiles || !tiles->alone);
  std::shared_ptr<const EncodedRows> rows = find(digest);
  if (rows == nullptr) {
    ESP_ASSIGN_OR_RETURN(const Image image, decode_image(bytes, config_.limits));
    ESP_ASSIGN_OR_RETURN(const PreparedImage prepared, encoder_->prepare(image, alone));
    ESP_ASSIGN_OR_RETURN(rows, make_rows(digest, prepared));
  }
  const std::optional<TokenId> key = keys_.key_of(digest);
  if (!key)
    return fail(error(StatusCode::kResourceExhausted,
                      "all keys of pictures are used up: start the engine again"));
  std::lock_guard lock(mutex_);
  ++stats_.num_images_total;
  return EncodedImage{.key = *key, .rows = std::move(rows)};
}

std::shared_ptr<const EncodedRows> ImagePool::find(const SpanKeys::Digest& digest) {
  std::lock_guard lock(mutex_);
  const auto found = places_.find(digest);
  if (found == places_.end()) return nullptr;
  kept_.splice(kept_.begin(), kept_, found->second);
  return found->second->rows;
}

// Another thread may have encoded the same picture while this one waited.
Result<std::shared_ptr<const EncodedRows>> ImagePool::make_rows(const SpanKeys::Digest& digest,
                                                                const PreparedImage& image) {
  std::lock_guard one_at_a_time(encoder_mutex_);
  if (std::shared_ptr<const EncodedRows> rows = find(digest)) return rows;
  ESP_ASSIGN_OR_RETURN(const std::shared_ptr<EncodedRows> rows, allocate(image.num_rows));
  rows->grid_columns = image.grid_columns;
  const SteadyClock clock;
  const TimePoint start = clock.now();
  ESP_RETURN_IF_ERROR(encoder_->encode(image, rows->values));
  std::lock_guard lock(mutex_);
  ++stats_.num_encoded_total;
  stats_.encode_seconds_total += to_seconds(clock.now() - start);
  kept_.push_front({digest, rows});
  places_[digest] = kept_.begin();
  return std::shared_ptr<const EncodedRows>(rows);
}

// Rows that a request uses are not dropped: their memory would stay.
Result<std::shared_ptr<EncodedRows>> ImagePool::allocate(int32_t num_rows) {
  const ImageEncoderInfo& info = encoder_->info();
  if (num_rows > config_.num_rows_max)
    return fail(invalid_argument(
        "it takes {} tokens, and prompt and output share {}: send a smaller one", num_rows,
        config_.num_rows_max));
  if (row_bytes(info, num_rows) > config_.row_bytes_max)
    return fail(invalid_argument(
        "it becomes {} rows, and --image-cache-bytes has no room for them: send a smaller one, or "
        "raise it",
        num_rows));
  auto charged = std::make_shared<ChargedRows>();
  charged->charge = MemoryCharge(rows_);
  while (!charged->charge.resize(row_bytes(info, num_rows))) {
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
  charged->rows = {.num_rows = num_rows, .width = info.width, .values = {}};
  charged->rows.values.resize(static_cast<size_t>(num_rows) * static_cast<size_t>(info.width));
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
