// The threads that read pictures, decode and encode them before their requests are scheduled, so
// that no picture holds up a step; and the encoder's outputs that are kept for later requests.
//
//   ImageInput -> bytes -> digest -> kept rows
//                                      \-> decode, resize, normalise -> encode -> rows, kept
//
// Bounds: pictures wait for a thread, and their sources are an account; rows in use and rows kept
// are another one, from which the kept rows that were not used longest are dropped first. Beyond
// them a request fails with kResourceExhausted.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <stop_token>
#include <thread>
#include <vector>

#include "base/bounded_queue.h"
#include "base/memory_account.h"
#include "base/status.h"
#include "engine/images/batched_encoder.h"
#include "engine/images/place_images.h"
#include "engine/images/span_keys.h"
#include "engine/requests/queue_eviction.h"
#include "engine/requests/request.h"
#include "media/audio.h"
#include "media/image.h"
#include "media/video.h"
#include "models/image_encoder.h"

namespace espalier {

struct ImagePoolConfig {
  int32_t num_threads = 1;
  size_t num_waiting_max = 0;  // requests
  int64_t row_bytes_max = 0;   // of rows, in use and kept
  int64_t num_rows_max = 0;    // of a picture: what a prompt can hold
  ImageLimits limits;
  double video_seconds_max = 600;
  AudioLimits sound_limits;
};

struct ImagePoolStats {
  int64_t num_images_total = 0;     // that requests brought and that could be read
  int64_t num_encoded_total = 0;    // the others were found among the kept rows
  double encode_seconds_total = 0;  // resizing and decoding not included
  int64_t row_bytes = 0;            // of rows, in use and kept
};

// Thread-safe. Idle threads are parked.
class ImagePool {
 public:
  using Done = std::function<void(Result<std::vector<EncodedImage>>&& images)>;

  explicit ImagePool(std::unique_ptr<ImageEncoder> encoder, const ImagePoolConfig& config);
  ~ImagePool();  // cancels all requests

  // `done` is called once, on a thread of the pool, with the pictures in their order; a failure
  // names the picture. id: of the request, whose only call this is. kResourceExhausted where too
  // many wait, and kInvalidArgument for more pictures than the rows' bound has room for.
  Status submit(RequestId id, std::vector<ImageInput> images, Done done);
  // Of a request that has ended: its pictures that are not encoded are left out, what is being
  // encoded on the CPU stops, and `done` is not called. No effect where it has been.
  void cancel(RequestId id);

  ImagePoolStats stats() const;

 private:
  struct Job {
    RequestId id = 0;
    std::stop_source stop;
    std::vector<ImageInput> images;
    MemoryCharge charge;  // of their sources
    Done done;
  };
  struct Kept {
    SpanKeys::Digest digest;
    std::shared_ptr<const EncodedRows> rows;
  };
  void work();
  Result<std::vector<EncodedImage>> run(const Job& job);
  // What all pictures of a request have in common.
  struct Asked {
    bool alone = true;
    std::stop_token stop;
  };
  // A picture, the sampled frames of a video, or a sound: their files, or the video's, and what
  // they are decoded to.
  struct Shots {
    std::vector<std::string> files;
    std::vector<Image> images;
    double frames_per_second = 0;      // of a video, as sampled
    std::unique_ptr<VideoFile> video;  // of files[0]
    std::vector<int32_t> indices;      // of its frames
    std::vector<double> grid_seconds;  // EncodedImage's
    std::optional<Audio> sound;        // of files[0]

    bool is_video() const { return frames_per_second > 0; }
    size_t count() const { return video != nullptr ? indices.size() : images.size(); }
  };
  Result<EncodedImage> encode(const ImageInput& image, const Asked& asked);
  Status check_kind(const ImageInput& input) const;
  Result<Shots> read_frames(const ImageInput& input, const Asked& asked) const;
  Result<Shots> open_video(const ImageInput& input) const;
  void set_times(Shots& shots, std::span<const int32_t> indices, double rate) const;
  Result<Shots> read_files(const ImageInput& input, const Asked& asked) const;
  Status decode(Shots& shots) const;
  Status decode_video(Shots& shots, const Asked& asked) const;
  Status add_frame(Shots& shots, Image&& image, int64_t& pixels) const;
  std::shared_ptr<const EncodedRows> find(const SpanKeys::Digest& digest);
  std::shared_ptr<const EncodedRows> find_locked(const SpanKeys::Digest& digest);
  Result<std::shared_ptr<const EncodedRows>> make_rows(const SpanKeys::Digest& digest, Shots& shots,
                                                       const Asked& asked);
  Result<PreparedImage> plan(const Shots& shots, const Asked& asked) const;
  Result<PreparedImage> prepare(const Shots& shots, const Asked& asked) const;
  Result<std::shared_ptr<EncodedRows>> encode(Shots& shots, const Asked& asked, double& seconds);
  Result<std::shared_ptr<EncodedRows>> allocate(const PreparedImage& plan);

  const std::unique_ptr<ImageEncoder> encoder_;
  const ImagePoolConfig config_;
  const std::shared_ptr<MemoryAccount> waiting_;  // shared with the charges
  const std::shared_ptr<MemoryAccount> rows_;     // the same: requests may end later
  SpanKeys keys_;

  BatchedEncoder batches_;
  mutable std::mutex mutex_;  // of what follows
  std::condition_variable made_;
  std::set<SpanKeys::Digest> in_progress_;
  std::map<RequestId, std::stop_source> requests_;  // whose `done` is not yet called
  std::list<Kept> kept_;                            // the last used first
  std::map<SpanKeys::Digest, std::list<Kept>::iterator> places_;
  ImagePoolStats stats_;

  BoundedQueue<Job> jobs_;
  std::vector<std::thread> threads_;
};

}  // namespace espalier
