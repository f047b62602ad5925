#include "media/video.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <utility>

#include "base/check.h"
#include "media/ffmpeg_library.h"

namespace espalier {
namespace {

using media::Ffmpeg;

constexpr int kReadBytes = 1 << 16;
constexpr int kStreamsMax = 32;
// What is opened at all. Demuxers that read playlists, and so other files, are not among them.
constexpr const char* kContainers = "mov,matroska,avi,ogg,mpeg,mpegts";
constexpr const char* kCodecs =
    "h264,hevc,vp8,vp9,libdav1d,av1,mpeg4,mpeg2video,mpeg1video,mjpeg,theora";

struct MemoryFile {
  std::span<const uint8_t> bytes;
  int64_t at = 0;
};

int read_memory(void* opaque, uint8_t* to, int count) {
  auto& file = *static_cast<MemoryFile*>(opaque);
  const int64_t left = std::ssize(file.bytes) - file.at;
  if (left <= 0 || count <= 0) return AVERROR_EOF;
  const auto taken = static_cast<int>(std::min<int64_t>(count, left));
  std::memcpy(to, file.bytes.data() + file.at, static_cast<size_t>(taken));
  file.at += taken;
  return taken;
}

int64_t seek_memory(void* opaque, int64_t offset, int whence) {
  auto& file = *static_cast<MemoryFile*>(opaque);
  const int64_t size = std::ssize(file.bytes);
  if ((whence & AVSEEK_SIZE) != 0) return size;
  const int from = whence & ~AVSEEK_FORCE;
  const int64_t base = from == SEEK_SET ? 0 : from == SEEK_CUR ? file.at : size;
  if (offset < -base || offset > size - base) return AVERROR(EINVAL);
  return file.at = base + offset;
}

// A file may name others; they are not opened.
int refuse_open(AVFormatContext*, AVIOContext**, const char*, int, AVDictionary**) {
  return AVERROR(EPERM);
}

// What of the library a file's demuxer owns.
class Demuxer {
 public:
  explicit Demuxer(const Ffmpeg& library) : library_(library) {}
  ~Demuxer() {
    library_.avformat_close_input(&context_);
    if (io_ == nullptr) return;
    library_.av_freep(static_cast<void*>(&io_->buffer));
    library_.avio_context_free(&io_);
  }
  Demuxer(const Demuxer&) = delete;
  Demuxer& operator=(const Demuxer&) = delete;

  Status open(std::span<const uint8_t> bytes, int64_t pixels_max);
  // The next packet of the video; false at the end.
  bool next(AVPacket& packet) const;
  const AVStream& stream() const { return *context_->streams[stream_]; }

 private:
  Status find_stream(int64_t pixels_max);

  const Ffmpeg& library_;
  MemoryFile file_;
  AVIOContext* io_ = nullptr;
  AVFormatContext* context_ = nullptr;
  int stream_ = -1;
};

Status no_memory() {
  return error(StatusCode::kResourceExhausted, "no memory for a video: try again later");
}

Status Demuxer::open(std::span<const uint8_t> bytes, int64_t pixels_max) {
  file_ = {.bytes = bytes};
  auto* const buffer = static_cast<uint8_t*>(library_.av_malloc(kReadBytes));
  if (buffer == nullptr) return no_memory();
  io_ =
      library_.avio_alloc_context(buffer, kReadBytes, 0, &file_, read_memory, nullptr, seek_memory);
  if (io_ == nullptr) {
    void* unused = buffer;
    library_.av_freep(static_cast<void*>(&unused));
    return no_memory();
  }
  context_ = library_.avformat_alloc_context();
  if (context_ == nullptr) return no_memory();
  context_->pb = io_;
  context_->io_open = refuse_open;
  context_->max_streams = kStreamsMax;
  AVDictionary* options = nullptr;
  library_.av_dict_set(&options, "format_whitelist", kContainers, 0);
  library_.av_dict_set(&options, "codec_whitelist", kCodecs, 0);
  library_.av_dict_set(&options, "protocol_whitelist", "none", 0);
  const int opened = library_.avformat_open_input(&context_, nullptr, nullptr, &options);
  library_.av_dict_free(&options);
  if (opened < 0) {
    return invalid_argument(
        "the file is no video that is read here ({}): send MP4, WebM, Matroska, AVI, MPEG or Ogg",
        library_.reason(opened));
  }
  return find_stream(pixels_max);
}

// The streams' parameters, for which the first frames may be decoded.
Status Demuxer::find_stream(int64_t pixels_max) {
  const std::string pixels = std::to_string(pixels_max);
  std::vector<AVDictionary*> options(context_->nb_streams);
  for (AVDictionary*& each : options) {
    library_.av_dict_set(&each, "max_pixels", pixels.c_str(), 0);
    library_.av_dict_set(&each, "threads", "1", 0);
  }
  const int found =
      library_.avformat_find_stream_info(context_, options.empty() ? nullptr : options.data());
  for (AVDictionary*& each : options) library_.av_dict_free(&each);
  if (found < 0) return invalid_argument("the video is damaged: {}", library_.reason(found));
  stream_ = library_.av_find_best_stream(context_, AVMEDIA_TYPE_VIDEO, -1, -1, nullptr, 0);
  if (stream_ < 0) return invalid_argument("the file has no video in it");
  for (unsigned i = 0; i < context_->nb_streams; ++i)
    if (std::cmp_not_equal(i, stream_)) context_->streams[i]->discard = AVDISCARD_ALL;
  return {};
}

bool Demuxer::next(AVPacket& packet) const {
  while (library_.av_read_frame(context_, &packet) >= 0) {
    if (packet.stream_index == stream_) return true;
    library_.av_packet_unref(&packet);
  }
  return false;
}

class FfmpegVideo final : public VideoFile {
 public:
  FfmpegVideo(const Ffmpeg& library, std::span<const uint8_t> bytes, const VideoLimits& limits)
      : library_(library), bytes_(bytes), limits_(limits) {}
  ~FfmpegVideo() override {
    library_.sws_freeContext(to_rgb_);
    library_.av_frame_free(&rgb_);
    library_.av_frame_free(&frame_);
    library_.av_packet_free(&packet_);
    library_.avcodec_free_context(&decoder_);
  }
  FfmpegVideo(const FfmpegVideo&) = delete;
  FfmpegVideo& operator=(const FfmpegVideo&) = delete;

  const VideoHeader& header() const override { return header_; }
  Status measure();
  Status read(std::span<const int32_t> indices, const Take& take,
              const std::stop_token& stop) override;

 private:
  // What read() still has to do.
  struct Wanted {
    std::span<const int32_t> indices;
    const Take& take;
    int32_t next_frame = 0;  // that the decoder gives
    Image last;              // as it was taken
  };
  Status count_frames(const Demuxer& demuxer);
  Status check_limits() const;
  Status open_decoder(const AVStream& stream);
  Status receive(Wanted& wanted);
  Status take_frame(Wanted& wanted);
  Result<Image> converted();
  Status prepare_conversion();
  Status finish(Wanted& wanted);

  const Ffmpeg& library_;
  const std::span<const uint8_t> bytes_;
  const VideoLimits limits_;
  VideoHeader header_;
  AVPacket* packet_ = nullptr;
  AVFrame* frame_ = nullptr;
  AVFrame* rgb_ = nullptr;
  AVCodecContext* decoder_ = nullptr;
  SwsContext* to_rgb_ = nullptr;
  int format_ = -1;  // that to_rgb_ reads
};

// Sizes first: counting reads all of the file.
Status FfmpegVideo::measure() {
  packet_ = library_.av_packet_alloc();
  frame_ = library_.av_frame_alloc();
  if (packet_ == nullptr || frame_ == nullptr) return no_memory();
  Demuxer demuxer(library_);
  ESP_RETURN_IF_ERROR(demuxer.open(bytes_, limits_.pixels_max));
  const AVCodecParameters& parameters = *demuxer.stream().codecpar;
  header_.width = parameters.width;
  header_.height = parameters.height;
  if (header_.width < 1 || header_.height < 1)
    return invalid_argument("the video does not state the size of its frames: save it anew");
  if (int64_t{header_.width} * header_.height > limits_.pixels_max) {
    return invalid_argument(
        "a frame of {} x {} pixels is above the limit of {} pixels: make it "
        "smaller, or raise --max-image-pixels",
        header_.width, header_.height, limits_.pixels_max);
  }
  ESP_RETURN_IF_ERROR(count_frames(demuxer));
  return check_limits();
}

Status FfmpegVideo::count_frames(const Demuxer& demuxer) {
  constexpr int32_t kFramesMost = 1 << 24;
  int64_t first = INT64_MAX, last = INT64_MIN;
  while (demuxer.next(*packet_)) {
    // Of an edited file some packets are decoded for those behind them, and not shown.
    if ((packet_->flags & AV_PKT_FLAG_DISCARD) == 0) ++header_.num_frames;
    if (packet_->pts != AV_NOPTS_VALUE) {
      first = std::min(first, packet_->pts);
      last = std::max(last, packet_->pts);
    }
    library_.av_packet_unref(packet_);
    if (header_.num_frames >= kFramesMost) return invalid_argument("the video has too many frames");
  }
  if (header_.num_frames == 0) return invalid_argument("the video has no frames");
  const AVStream& stream = demuxer.stream();
  const auto rate_of = [](const AVRational& rate) {
    return rate.num > 0 && rate.den > 0 ? static_cast<double>(rate.num) / rate.den : 0.0;
  };
  double rate = rate_of(stream.avg_frame_rate);
  if (rate == 0 && last > first && header_.num_frames > 1) {
    const double ticks = static_cast<double>(last) - static_cast<double>(first);
    rate = (header_.num_frames - 1) / (ticks * rate_of(stream.time_base));
  }
  if (rate == 0) rate = rate_of(stream.r_frame_rate);
  header_.frames_per_second = rate;
  return {};
}

Status FfmpegVideo::check_limits() const {
  constexpr double kRateMin = 0.01, kRateMax = 1000;
  const double rate = header_.frames_per_second;
  if (!(rate >= kRateMin && rate <= kRateMax)) {
    return invalid_argument(
        "the video has {} frames a second, and between {} and {} are read: "
        "save it anew",
        rate, kRateMin, kRateMax);
  }
  if (header_.seconds() > limits_.seconds_max) {
    return invalid_argument(
        "the video of {:.1f} s is above the limit of {} s: send it in parts, "
        "or raise --max-video-seconds",
        header_.seconds(), limits_.seconds_max);
  }
  const double pixels = double{1} * header_.num_frames * header_.width * header_.height;
  if (pixels <= static_cast<double>(limits_.pixels_total_max())) return {};
  return invalid_argument(
      "the video's {} frames of {} x {} pixels are more than the limit of {} pixels: send fewer "
      "or smaller ones, or raise --max-video-seconds",
      header_.num_frames, header_.width, header_.height, limits_.pixels_total_max());
}

Status FfmpegVideo::open_decoder(const AVStream& stream) {
  decoder_ = library_.avcodec_alloc_context3(nullptr);
  if (decoder_ == nullptr || library_.avcodec_parameters_to_context(decoder_, stream.codecpar) < 0)
    return no_memory();
  decoder_->pkt_timebase = stream.time_base;
  decoder_->thread_count = std::max(1, limits_.num_threads);
  decoder_->max_pixels = limits_.pixels_max;
  AVDictionary* options = nullptr;
  library_.av_dict_set(&options, "codec_whitelist", kCodecs, 0);
  int opened = AVERROR_DECODER_NOT_FOUND;
  if (const AVCodec* found = library_.avcodec_find_decoder(stream.codecpar->codec_id))
    opened = library_.avcodec_open2(decoder_, found, &options);
  library_.av_dict_free(&options);
  if (opened >= 0) return {};
  return invalid_argument(
      "the video's codec is not read here ({}): send H.264, H.265, VP8, VP9, "
      "AV1, MPEG-4, MPEG-2, Motion JPEG or Theora",
      library_.reason(opened));
}

Status FfmpegVideo::read(std::span<const int32_t> indices, const Take& take,
                         const std::stop_token& stop) {
  ESP_CHECK(decoder_ == nullptr && std::ranges::is_sorted(indices) &&
            (indices.empty() || (indices[0] >= 0 && indices.back() < header_.num_frames)));
  Demuxer demuxer(library_);
  ESP_RETURN_IF_ERROR(demuxer.open(bytes_, limits_.pixels_max));
  ESP_RETURN_IF_ERROR(open_decoder(demuxer.stream()));
  Wanted wanted{.indices = indices, .take = take, .last = {}};
  while (!wanted.indices.empty() && demuxer.next(*packet_)) {
    // A damaged packet loses its frame alone; finish() counts them.
    static_cast<void>(library_.avcodec_send_packet(decoder_, packet_));
    library_.av_packet_unref(packet_);
    if (stop.stop_requested()) return error(StatusCode::kAborted, "the video is no longer wanted");
    ESP_RETURN_IF_ERROR(receive(wanted));
  }
  static_cast<void>(library_.avcodec_send_packet(decoder_, nullptr));
  ESP_RETURN_IF_ERROR(receive(wanted));
  return finish(wanted);
}

// All frames that the decoder has ready.
Status FfmpegVideo::receive(Wanted& wanted) {
  while (!wanted.indices.empty() && library_.avcodec_receive_frame(decoder_, frame_) >= 0) {
    const Status status = take_frame(wanted);
    library_.av_frame_unref(frame_);
    ESP_RETURN_IF_ERROR(status);
  }
  return {};
}

Status FfmpegVideo::take_frame(Wanted& wanted) {
  const int32_t index = wanted.next_frame++;
  if (index < wanted.indices[0]) return {};
  if (frame_->width != header_.width || frame_->height != header_.height) {
    return invalid_argument("frame {} has {} x {} pixels and the video {} x {}: save it anew",
                            index, frame_->width, frame_->height, header_.width, header_.height);
  }
  ESP_ASSIGN_OR_RETURN(wanted.last, converted());
  while (!wanted.indices.empty() && wanted.indices[0] == index) {
    ESP_RETURN_IF_ERROR(wanted.take(Image(wanted.last)));
    wanted.indices = wanted.indices.subspan(1);
  }
  return {};
}

Status FfmpegVideo::finish(Wanted& wanted) {
  if (wanted.indices.empty()) return {};
  const int32_t most = header_.num_frames - std::max(1, header_.num_frames / 10);
  if (wanted.last.rgb.empty() || wanted.next_frame < most) {
    return invalid_argument(
        "{} of the video's {} frames can be decoded: it is damaged or cut off, "
        "save it anew",
        wanted.next_frame, header_.num_frames);
  }
  for (size_t i = 0; i < wanted.indices.size(); ++i)
    ESP_RETURN_IF_ERROR(wanted.take(Image(wanted.last)));
  return {};
}

// With the matrix and range that the frame states, BT.601 where it states none.
Status FfmpegVideo::prepare_conversion() {
  if (to_rgb_ != nullptr && format_ == frame_->format) return {};
  library_.sws_freeContext(to_rgb_);
  format_ = frame_->format;
  to_rgb_ = library_.sws_getContext(
      header_.width, header_.height, static_cast<AVPixelFormat>(format_), header_.width,
      header_.height, AV_PIX_FMT_RGB24, SWS_BILINEAR, nullptr, nullptr, nullptr);
  if (to_rgb_ == nullptr)
    return invalid_argument(
        "the video's frames have colours that are not read here: save it as "
        "H.264 with yuv420p");
  const int space =
      frame_->colorspace == AVCOL_SPC_UNSPECIFIED ? SWS_CS_DEFAULT : frame_->colorspace;
  const int* const from = library_.sws_getCoefficients(space);
  const int* const to = library_.sws_getCoefficients(SWS_CS_DEFAULT);
  const int full_range = frame_->color_range == AVCOL_RANGE_JPEG ? 1 : 0;
  constexpr int kOne = 1 << 16;  // contrast and saturation, as they are
  library_.sws_setColorspaceDetails(to_rgb_, from, full_range, to, 1, 0, kOne, kOne);
  if (rgb_ != nullptr) return {};
  rgb_ = library_.av_frame_alloc();
  if (rgb_ == nullptr) return no_memory();
  rgb_->width = header_.width;
  rgb_->height = header_.height;
  rgb_->format = AV_PIX_FMT_RGB24;
  return library_.av_frame_get_buffer(rgb_, 0) < 0 ? no_memory() : Status();
}

Result<Image> FfmpegVideo::converted() {
  ESP_RETURN_IF_ERROR(prepare_conversion());
  library_.sws_scale(to_rgb_, frame_->data, frame_->linesize, 0, header_.height, rgb_->data,
                     rgb_->linesize);
  Image image{.width = header_.width, .height = header_.height, .rgb = {}};
  const auto line = static_cast<size_t>(header_.width) * 3;
  image.rgb.resize(line * static_cast<size_t>(header_.height));
  for (int32_t y = 0; y < header_.height; ++y) {
    const uint8_t* const from = rgb_->data[0] + int64_t{y} * rgb_->linesize[0];
    std::memcpy(image.rgb.data() + static_cast<size_t>(y) * line, from, line);
  }
  return image;
}

}  // namespace

Result<std::unique_ptr<VideoFile>> VideoFile::open(std::span<const uint8_t> bytes,
                                                   const VideoLimits& limits) {
  if (std::ssize(bytes) > limits.bytes_max) {
    return fail(
        invalid_argument("the video of {} bytes is above the limit of {}: send a smaller "
                         "one, or raise --max-image-bytes",
                         bytes.size(), limits.bytes_max));
  }
  if (!recognise_video(bytes)) {
    return fail(
        invalid_argument("the bytes are no video that is read here: send MP4, WebM, "
                         "Matroska, AVI, MPEG or Ogg"));
  }
  ESP_ASSIGN_OR_RETURN(const Ffmpeg* const library, media::ffmpeg());
  auto video = std::make_unique<FfmpegVideo>(*library, bytes, limits);
  ESP_RETURN_IF_ERROR(video->measure());
  return video;
}

}  // namespace espalier
